//! DescribeTopicPartitions 0: topics and partitions in pages.
//!
//! KIP-966 (the API). Topics come sorted by name; an answer that would exceed the limit ends with a
//! cursor to go on from.
//!
//! Deliberate gap: there are no eligible leader replicas beside the leader, so both lists of them
//! are empty.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use kafka_protocol::messages::describe_topic_partitions_response::{
    Cursor, DescribeTopicPartitionsResponsePartition, DescribeTopicPartitionsResponseTopic,
};
use kafka_protocol::messages::{
    BrokerId, DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse, TopicName,
};

use super::answers::{TOPIC_OPERATIONS, index, leader_epoch, replicas, text};
use super::{Connection, Reply};
use crate::catalog::{Topic, names};
use crate::protocol::error::ErrorCode;

/// `max.request.partition.size.limit` of a broker that was not told otherwise.
const MAX_PARTITIONS: u32 = 2_000;

/// Answers with one page of partitions.
pub async fn handle(
    cx: &Arc<Connection>,
    request: DescribeTopicPartitionsRequest,
    _version: i16,
) -> Reply<DescribeTopicPartitionsResponse> {
    let Ok(cursor) = cursor(&request) else {
        return refused(request).into();
    };
    let image = cx.broker.catalog.image();
    let from = cursor.map_or("", |(name, _)| name);
    let limit = u32::try_from(request.response_partition_limit).unwrap_or(0);
    let limit = limit.clamp(1, MAX_PARTITIONS);
    let page = if request.topics.is_empty() {
        let all = image.topics().map(|topic| (&*topic.name, Some(topic.partitions)));
        page(all.filter(|(name, _)| *name >= from), cursor, limit)
    } else {
        let asked: BTreeSet<&str> = request.topics.iter().map(|t| t.name.as_str()).collect();
        let count = |name| image.topic(name).map(|topic| topic.partitions);
        page(asked.range(from..).map(|name| (*name, count(name))), cursor, limit)
    };
    let topics = page.topics.into_iter().map(|(name, range)| match image.topic(name).zip(range) {
        Some((topic, range)) => known(cx, topic, range),
        None => unknown(name),
    });
    let next = page.next.map(|(name, partition)| {
        Cursor::default()
            .with_topic_name(TopicName(text(name)))
            .with_partition_index(i32::try_from(partition).unwrap_or(i32::MAX))
    });
    DescribeTopicPartitionsResponse::default()
        .with_topics(topics.collect())
        .with_next_cursor(next)
        .into()
}

/// Where the request wants to go on from. With a list of topics, the cursor must be on one of them.
fn cursor(request: &DescribeTopicPartitionsRequest) -> Result<Option<(&str, u32)>, ErrorCode> {
    let Some(cursor) = &request.cursor else { return Ok(None) };
    let partition = index(cursor.partition_index).ok_or(ErrorCode::InvalidRequest)?;
    let listed = request.topics.iter().any(|topic| topic.name == cursor.topic_name);
    if !request.topics.is_empty() && !listed {
        return Err(ErrorCode::InvalidRequest);
    }
    Ok(Some((cursor.topic_name.as_str(), partition)))
}

/// Per topic the partitions to show (none if there is no such topic), and where the next page
/// starts.
#[derive(Debug, PartialEq)]
struct Page<'a> {
    topics: Vec<(&'a str, Option<Range<u32>>)>,
    next: Option<(&'a str, u32)>,
}

fn page<'a>(
    topics: impl Iterator<Item = (&'a str, Option<u32>)>,
    cursor: Option<(&str, u32)>,
    limit: u32,
) -> Page<'a> {
    let mut page = Page { topics: Vec::new(), next: None };
    let mut left = limit;
    for (name, partitions) in topics {
        if left == 0 {
            page.next = Some((name, 0));
            break;
        }
        let Some(count) = partitions else {
            page.topics.push((name, None));
            continue;
        };
        let first = cursor.filter(|(at, _)| *at == name).map_or(0, |(_, first)| first.min(count));
        let end = count.min(first.saturating_add(left));
        page.topics.push((name, Some(first..end)));
        left -= end - first;
        if end < count {
            page.next = Some((name, end));
            break;
        }
    }
    page
}

fn known(
    cx: &Connection,
    topic: &Topic,
    range: Range<u32>,
) -> DescribeTopicPartitionsResponseTopic {
    let node = cx.broker.node_id;
    let partitions = range.map(|index| {
        let replicas = replicas(topic, index, node);
        DescribeTopicPartitionsResponsePartition::default()
            .with_partition_index(i32::try_from(index).unwrap_or(i32::MAX))
            .with_leader_id(BrokerId(node))
            .with_leader_epoch(leader_epoch(cx, topic, index))
            .with_replica_nodes(replicas.clone())
            .with_isr_nodes(replicas)
            .with_eligible_leader_replicas(Some(Vec::new()))
            .with_last_known_elr(Some(Vec::new()))
    });
    DescribeTopicPartitionsResponseTopic::default()
        .with_name(Some(TopicName(text(&topic.name))))
        .with_topic_id(topic.id)
        .with_is_internal(topic.internal)
        .with_partitions(partitions.collect())
        .with_topic_authorized_operations(TOPIC_OPERATIONS)
}

fn unknown(name: &str) -> DescribeTopicPartitionsResponseTopic {
    let code = match names::validate(name) {
        Ok(()) => ErrorCode::UnknownTopicOrPartition,
        Err(_) => ErrorCode::InvalidTopicException,
    };
    DescribeTopicPartitionsResponseTopic::default()
        .with_error_code(code.code())
        .with_name(Some(TopicName(text(name))))
        .with_topic_authorized_operations(TOPIC_OPERATIONS)
}

fn refused(request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse {
    let topics = request.topics.into_iter().map(|topic| {
        DescribeTopicPartitionsResponseTopic::default()
            .with_error_code(ErrorCode::InvalidRequest.code())
            .with_name(Some(topic.name))
    });
    DescribeTopicPartitionsResponse::default().with_topics(topics.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::ApiKey;
    use kafka_protocol::messages::describe_topic_partitions_request as wire;
    use kafka_protocol::protocol::StrBytes;

    use crate::protocol::response::encode_response;

    const TOPICS: [(&str, Option<u32>); 3] = [("a", Some(3)), ("b", None), ("c", Some(2))];

    fn cut(skip: usize, cursor: Option<(&'static str, u32)>, limit: u32) -> Page<'static> {
        page(TOPICS.into_iter().skip(skip), cursor, limit)
    }

    #[test]
    fn pages_end_inside_a_topic_or_before_the_next() {
        let first = cut(0, None, 2);
        assert_eq!(first.topics, [("a", Some(0..2))]);
        assert_eq!(first.next, Some(("a", 2)));
        let second = cut(0, first.next, 2);
        assert_eq!(second.topics, [("a", Some(2..3)), ("b", None), ("c", Some(0..1))]);
        assert_eq!(second.next, Some(("c", 1)));
        let whole = cut(0, None, 3);
        assert_eq!((whole.topics.len(), whole.next), (1, Some(("b", 0))));
        assert_eq!(cut(0, None, 5).next, None);
    }

    #[test]
    fn a_cursor_behind_the_last_partition_shows_an_empty_topic() {
        let page = cut(2, Some(("c", 7)), 5);
        assert_eq!(page, Page { topics: vec![("c", Some(2..2))], next: None });
    }

    #[test]
    fn cursors_must_be_on_a_listed_topic() {
        let name = |name| TopicName(StrBytes::from_static_str(name));
        let request = |topics: &[&'static str], at, partition| {
            let topics = topics.iter().map(|t| wire::TopicRequest::default().with_name(name(t)));
            let cursor = wire::Cursor::default()
                .with_topic_name(name(at))
                .with_partition_index(partition);
            DescribeTopicPartitionsRequest::default()
                .with_topics(topics.collect())
                .with_cursor(Some(cursor))
        };
        assert_eq!(cursor(&request(&["t"], "t", 2)), Ok(Some(("t", 2))));
        assert_eq!(cursor(&request(&[], "x", 0)), Ok(Some(("x", 0))));
        assert!(cursor(&request(&["t"], "x", 0)).is_err());
        assert!(cursor(&request(&["t"], "t", -1)).is_err());
        let answer = refused(request(&["t"], "t", -1));
        assert!(encode_response(1, ApiKey::DescribeTopicPartitions, 0, &answer).is_ok());
    }
}
