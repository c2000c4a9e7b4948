//! DeleteRecords 0–2: moves the log start of partitions up.
//!
//! KIP-107 (the API). -1 stands for the high watermark. The answer leaves once the move is durable.

use std::collections::BTreeMap;
use std::sync::Arc;

use kafka_protocol::messages::delete_records_request::DeleteRecordsPartition;
use kafka_protocol::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsTopicResult,
};
use kafka_protocol::messages::{DeleteRecordsRequest, DeleteRecordsResponse};

use super::answers::index;
use super::{Connection, Reply};
use crate::catalog::{Topic, names};
use crate::partition::Refused;
use crate::protocol::error::ErrorCode;
use crate::types::{Offset, PartitionKey, Place, Places};

/// Moves each partition's log start; one partition's error does not touch the others.
pub async fn handle(
    cx: &Arc<Connection>,
    request: DeleteRecordsRequest,
    _version: i16,
) -> Reply<DeleteRecordsResponse> {
    let image = cx.broker.catalog.image();
    let mut after = Places::default();
    let mut topics = Vec::with_capacity(request.topics.len());
    for asked in request.topics {
        let name = asked.name.as_str();
        let topic = check_topic(name, image.topic(name).map(AsRef::as_ref));
        // Of a partition named twice the last offset counts, as in Kafka.
        let last: BTreeMap<_, _> =
            asked.partitions.iter().map(|p| (p.partition_index, p)).collect();
        let mut partitions = Vec::with_capacity(last.len());
        for partition in last.into_values() {
            let moved = match topic {
                Ok(topic) => delete(cx, topic, partition).await,
                Err(code) => Err(code),
            };
            if let Ok((_, place)) = moved {
                after.add(place);
            }
            let log_start = moved.map(|(log_start, _)| log_start);
            partitions.push(entry(partition.partition_index, log_start));
        }
        topics.push(
            DeleteRecordsTopicResult::default().with_name(asked.name).with_partitions(partitions),
        );
    }
    Reply::after(DeleteRecordsResponse::default().with_topics(topics), after)
}

fn check_topic<'a>(name: &str, topic: Option<&'a Topic>) -> Result<&'a Topic, ErrorCode> {
    // Kafka makes the topic of offsets when a client looks for its coordinator, we when it is
    // first needed: until then it only looks as if it were there.
    if names::is_internal(name) && (topic.is_some() || name == names::CONSUMER_OFFSETS) {
        return Err(ErrorCode::InvalidTopicException);
    }
    let topic = topic.ok_or(ErrorCode::UnknownTopicOrPartition)?;
    // Nothing may be removed from a topic that is only compacted, or that keeps everything.
    if !topic.settings.cleanup_delete {
        return Err(ErrorCode::PolicyViolation);
    }
    Ok(topic)
}

async fn delete(
    cx: &Connection,
    topic: &Topic,
    asked: &DeleteRecordsPartition,
) -> Result<(Offset, Place), ErrorCode> {
    let partition = index(asked.partition_index)
        .and_then(|index| cx.broker.partitions.get(PartitionKey { topic: topic.no, index }))
        .ok_or(ErrorCode::UnknownTopicOrPartition)?;
    let offset = target(asked.offset, partition.bounds().high_watermark)?;
    loop {
        match cx.broker.partitions.move_log_start(&partition, offset) {
            Err(Refused::Moving) => partition.settled().await,
            moved => return moved.map_err(|_deleted| ErrorCode::UnknownTopicOrPartition),
        }
    }
}

/// The offset to move the log start to.
fn target(asked: Offset, high_watermark: Offset) -> Result<Offset, ErrorCode> {
    match asked {
        -1 => Ok(high_watermark),
        asked if (0..=high_watermark).contains(&asked) => Ok(asked),
        _ => Err(ErrorCode::OffsetOutOfRange),
    }
}

fn entry(partition: i32, log_start: Result<Offset, ErrorCode>) -> DeleteRecordsPartitionResult {
    let entry = DeleteRecordsPartitionResult::default().with_partition_index(partition);
    match log_start {
        Ok(log_start) => entry.with_low_watermark(log_start),
        Err(code) => entry.with_error_code(code.code()).with_low_watermark(-1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_lie_between_zero_and_the_high_watermark() {
        assert_eq!(target(-1, 5), Ok(5));
        assert_eq!(target(0, 5), Ok(0));
        assert_eq!(target(5, 5), Ok(5));
        for bad in [-2, 6, i64::MAX, i64::MIN] {
            assert_eq!(target(bad, 5), Err(ErrorCode::OffsetOutOfRange), "{bad}");
        }
    }

    #[test]
    fn errors_carry_no_watermark() {
        let entry = entry(2, Err(ErrorCode::OffsetOutOfRange));
        let got = (entry.partition_index, entry.error_code, entry.low_watermark);
        assert_eq!(got, (2, 1, -1));
    }
}
