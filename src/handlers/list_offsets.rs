//! ListOffsets (key 2), versions 1 to 10.
//!
//! - v2: isolation level · v4: leader epoch · v6: flexible · v7: max timestamp (KIP-734)
//! - v8: earliest local offset (KIP-405) · v9: latest tiered offset · v10: timeout
//! - There is no tiered storage: the earliest local offset is the log start, and no offset is tiered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kafka_protocol::messages::{ListOffsetsRequest, TopicName};
use kafka_protocol::messages::list_offsets_request::ListOffsetsPartition;
use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsResponse, ListOffsetsTopicResponse,
};

use crate::catalog::Topic;
use crate::handlers::{Connection, Reply};
use crate::partition::read::ReadFailure;
use crate::partition::time_search::Target;
use crate::protocol::error::ErrorCode;

/// The end of the log.
const LATEST: i64 = -1;
/// The log start.
const EARLIEST: i64 = -2;
/// The record with the largest timestamp.
const MAX_TIMESTAMP: i64 = -3;
/// The first offset on local disk.
const EARLIEST_LOCAL: i64 = -4;
/// The last offset in tiered storage.
const LATEST_TIERED: i64 = -5;

/// Read only what transactions have committed.
const READ_COMMITTED: i8 = 1;

/// Handles one ListOffsets request.
pub async fn handle(
    cx: &Connection,
    request: ListOffsetsRequest,
    version: i16,
) -> Reply<ListOffsetsResponse> {
    let image = cx.broker.catalog.image();
    let twice = asked_twice(&request);
    let unknown_isolation = !matches!(request.isolation_level, 0 | READ_COMMITTED);
    let mut topics: Vec<ListOffsetsTopicResponse> = Vec::new();
    let (mut places, mut answered) = (BTreeMap::new(), BTreeSet::new());
    for topic in request.topics {
        let known = image.topic(&topic.name);
        for partition in topic.partitions {
            let asked = (partition.partition_index, topic.name.clone());
            let outcome = match known {
                _ if unknown_isolation || twice.contains(&asked) => Err(ErrorCode::InvalidRequest),
                Some(known) => {
                    list(cx, known, &partition, request.isolation_level, version).await
                }
                None => Err(ErrorCode::UnknownTopicOrPartition),
            };
            // A partition named twice is refused, once, and a topic is answered in one place.
            let place = *places.entry(asked.1.clone()).or_insert_with(|| {
                topics.push(ListOffsetsTopicResponse::default().with_name(topic.name.clone()));
                topics.len() - 1
            });
            if answered.insert(asked)
                && let Some(response) = topics.get_mut(place)
            {
                let found = outcome.unwrap_or_else(|code| nothing().with_error_code(code.code()));
                let found = found.with_partition_index(partition.partition_index);
                response.partitions.push(found);
            }
        }
    }
    ListOffsetsResponse::default().with_topics(topics).into()
}

/// Partitions that the request names more than once. Names are shared with the request: it may
/// name many partitions of a topic with a long name.
fn asked_twice(request: &ListOffsetsRequest) -> BTreeSet<(i32, TopicName)> {
    let mut seen = BTreeSet::new();
    let mut twice = BTreeSet::new();
    for topic in &request.topics {
        for partition in &topic.partitions {
            let asked = (partition.partition_index, topic.name.clone());
            if !seen.insert(asked.clone()) {
                twice.insert(asked);
            }
        }
    }
    twice
}

/// An answer without an offset.
fn nothing() -> ListOffsetsPartitionResponse {
    ListOffsetsPartitionResponse::default().with_timestamp(-1).with_offset(-1).with_leader_epoch(-1)
}

/// The first version that knows a special timestamp; later ones are refused as Kafka does.
fn first_version(timestamp: i64) -> i16 {
    match timestamp {
        MAX_TIMESTAMP => 7,
        EARLIEST_LOCAL => 8,
        LATEST_TIERED => 9,
        _ => 1,
    }
}

async fn list(
    cx: &Connection,
    topic: &Arc<Topic>,
    asked: &ListOffsetsPartition,
    isolation_level: i8,
    version: i16,
) -> Result<ListOffsetsPartitionResponse, ErrorCode> {
    let partition = topic
        .partition(asked.partition_index)
        .and_then(|key| cx.broker.partitions.get(key))
        .ok_or(ErrorCode::UnknownTopicOrPartition)?;
    let bounds = partition.bounds();
    check_epoch(asked.current_leader_epoch, bounds.leader_epoch)?;
    if version < first_version(asked.timestamp) || asked.timestamp < LATEST_TIERED {
        return Err(ErrorCode::UnsupportedVersion);
    }
    let at = |offset| {
        let epoch = if version >= 4 { bounds.leader_epoch } else { -1 };
        Ok(nothing().with_offset(offset).with_leader_epoch(epoch))
    };
    let target = match asked.timestamp {
        LATEST if isolation_level == READ_COMMITTED => return at(bounds.last_stable),
        LATEST => return at(bounds.high_watermark),
        EARLIEST | EARLIEST_LOCAL => return at(bounds.log_start),
        LATEST_TIERED => return Ok(nothing()),
        MAX_TIMESTAMP => Target::Max,
        timestamp => Target::AtOrAfter(timestamp),
    };
    // What is stored passed the bounds of its day.
    let limit = u64::from(u32::MAX);
    let found = cx.broker.partitions.find_by_time(&partition, target, limit).await;
    match found {
        Ok(Some(found)) => Ok(nothing()
            .with_offset(found.offset)
            .with_timestamp(found.timestamp)
            .with_leader_epoch(if version >= 4 { found.leader_epoch } else { -1 })),
        Ok(None) => Ok(nothing()),
        Err(ReadFailure::Deleted) => Err(ErrorCode::UnknownTopicOrPartition),
        Err(ReadFailure::OutOfRange(_)) => Err(ErrorCode::OffsetOutOfRange),
        Err(ReadFailure::Storage(_)) => Err(ErrorCode::KafkaStorageError),
    }
}

/// Holds a client's idea of the leader epoch against ours (KIP-320); -1 asks for no check.
pub fn check_epoch(asked: i32, current: i32) -> Result<(), ErrorCode> {
    match asked {
        epoch if epoch == -1 || epoch == current => Ok(()),
        epoch if epoch < current => Err(ErrorCode::FencedLeaderEpoch),
        _ => Err(ErrorCode::UnknownLeaderEpoch),
    }
}
