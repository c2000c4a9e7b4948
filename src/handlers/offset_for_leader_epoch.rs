//! OffsetForLeaderEpoch 2–4: where a leader epoch ends in a log.
//!
//! KIP-101 (the API), KIP-320 (consumers detect truncation with it, and are fenced by the epoch
//! they believe to be current).
//!
//! Deliberate gap: a partition's epoch rises only when an unclean start had to cut its log, and the
//! ends of earlier epochs are not kept. Asked for one of those the answer is "unknown", and the
//! consumer goes on from its own offset, checked against the log's borders.

use std::sync::Arc;

use kafka_protocol::messages::offset_for_leader_epoch_request::OffsetForLeaderPartition;
use kafka_protocol::messages::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderTopicResult,
};
use kafka_protocol::messages::{OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse};

use super::answers::index;
use super::list_offsets::check_epoch;
use super::{Connection, Reply};
use crate::catalog::Topic;
use crate::protocol::error::ErrorCode;
use crate::types::{Offset, PartitionKey};

/// Answers for each partition with the largest epoch at or below the asked one, and its end.
pub async fn handle(
    cx: &Arc<Connection>,
    request: OffsetForLeaderEpochRequest,
    _version: i16,
) -> Reply<OffsetForLeaderEpochResponse> {
    let image = cx.broker.catalog.image();
    let topics = request.topics.into_iter().map(|topic| {
        let known = image.topic(topic.topic.as_str());
        let partitions = topic.partitions.iter().map(|asked| {
            let found = known.ok_or(ErrorCode::UnknownTopicOrPartition);
            let end = found.and_then(|topic| end_of_epoch(cx, topic, asked));
            entry(asked.partition, end)
        });
        OffsetForLeaderTopicResult::default()
            .with_partitions(partitions.collect())
            .with_topic(topic.topic)
    });
    OffsetForLeaderEpochResponse::default().with_topics(topics.collect()).into()
}

/// An epoch and the offset one past its last record.
type EpochEnd = (i32, Offset);

fn end_of_epoch(
    cx: &Connection,
    topic: &Topic,
    asked: &OffsetForLeaderPartition,
) -> Result<EpochEnd, ErrorCode> {
    let partition = index(asked.partition)
        .and_then(|index| cx.broker.partitions.get(PartitionKey { topic: topic.no, index }))
        .ok_or(ErrorCode::UnknownTopicOrPartition)?;
    let bounds = partition.bounds();
    check_epoch(asked.current_leader_epoch, bounds.leader_epoch)?;
    Ok(end_of(asked.leader_epoch, bounds.leader_epoch, bounds.high_watermark))
}

/// Where an epoch ends. Only the current one is known; it ends where the log does.
fn end_of(asked: i32, current: i32, high_watermark: Offset) -> EpochEnd {
    if asked == current { (current, high_watermark) } else { (-1, -1) }
}

fn entry(partition: i32, end: Result<EpochEnd, ErrorCode>) -> EpochEndOffset {
    let entry = EpochEndOffset::default().with_partition(partition);
    match end {
        Ok((epoch, offset)) => entry.with_leader_epoch(epoch).with_end_offset(offset),
        Err(code) => {
            entry.with_error_code(code.code()).with_leader_epoch(-1).with_end_offset(-1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_current_epoch_is_fenced_or_unknown() {
        assert_eq!(check_epoch(-1, 4), Ok(()));
        assert_eq!(check_epoch(4, 4), Ok(()));
        assert_eq!(check_epoch(-2, 4), Err(ErrorCode::FencedLeaderEpoch));
        assert_eq!(check_epoch(3, 4), Err(ErrorCode::FencedLeaderEpoch));
        assert_eq!(check_epoch(5, 4), Err(ErrorCode::UnknownLeaderEpoch));
    }

    #[test]
    fn only_the_current_epoch_has_an_end() {
        assert_eq!(end_of(0, 0, 3), (0, 3));
        assert_eq!(end_of(1, 0, 3), (-1, -1));
        assert_eq!(end_of(-1, 0, 3), (-1, -1));
    }

    #[test]
    fn an_error_names_no_epoch() {
        let entry = entry(3, Err(ErrorCode::UnknownTopicOrPartition));
        let got = (entry.partition, entry.error_code, entry.leader_epoch, entry.end_offset);
        assert_eq!(got, (3, 3, -1, -1));
    }
}
