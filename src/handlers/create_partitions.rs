//! CreatePartitions 0–3: grows topics.
//!
//! KIP-195 (the API). A count that is a multiple of the old one cuts every partition in equal
//! parts and keeps exact lineage; other counts are taken as in Kafka.
//!
//! The answer leaves once the growth is durable. While the disk is nearly full nothing grows
//! (KAFKA_STORAGE_ERROR, as for Produce).
//!
//! Deliberate gap: internal topics can't grow, because coordinators find their state by hashing
//! over the number of partitions.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_partitions_response::CreatePartitionsTopicResult;
use kafka_protocol::messages::{CreatePartitionsRequest, CreatePartitionsResponse, TopicName};

use super::answers::{Refusal, if_room, require_room, text};
use super::{Connection, Reply};
use crate::catalog::{Change, Image};
use crate::config::Config;
use crate::protocol::error::ErrorCode;
use crate::types::Position;

/// Grows each topic; one topic's error does not touch the others.
pub async fn handle(
    cx: &Arc<Connection>,
    request: CreatePartitionsRequest,
    _version: i16,
) -> Reply<CreatePartitionsResponse> {
    let twice = named_twice(&request.topics);
    let mut after = Position(0);
    let mut results = Vec::with_capacity(request.topics.len());
    for topic in request.topics.iter().filter(|topic| !twice.contains(topic.name.as_str())) {
        let grown = grow(cx, topic, request.validate_only);
        // A refusal may rest on a change that is not durable yet, such as the same growth.
        let shown = grown.as_ref().map_or_else(|_| cx.broker.journal.appended(), |at| *at);
        after = after.max(shown);
        results.push(result(topic.name.clone(), grown.err()));
    }
    for name in &twice {
        let refusal = Refusal::invalid("the topic is named more than once in the request");
        results.push(result(TopicName(text(name)), Some(refusal)));
    }
    Reply::after(CreatePartitionsResponse::default().with_results(results), after)
}

fn named_twice(topics: &[CreatePartitionsTopic]) -> BTreeSet<&str> {
    let mut seen = HashSet::with_capacity(topics.len());
    topics.iter().map(|topic| topic.name.as_str()).filter(|name| !seen.insert(*name)).collect()
}

fn grow(
    cx: &Connection,
    topic: &CreatePartitionsTopic,
    validate_only: bool,
) -> Result<Position, Refusal> {
    let broker = &cx.broker;
    let now = broker.clock.wall_ms();
    let decide = |image: &Image| -> Result<Change, Refusal> {
        let change = decide(image, topic, broker.node_id, now)?;
        check_count(topic.count, &broker.config)?;
        if_room(cx, image, change)
    };
    if validate_only {
        decide(&broker.catalog.sequenced())?;
        return Ok(Position(0));
    }
    broker.catalog.propose(|image: &Image| {
        let change = decide(image)?;
        require_room(broker)?;
        Ok(change)
    })
}

/// Holds a topic to `max.partitions.per.topic`.
pub fn check_count(count: i32, config: &Config) -> Result<(), Refusal> {
    let most = config.max_partitions_per_topic;
    if count <= most {
        return Ok(());
    }
    let text = format!("{count} partitions are more than max.partitions.per.topic={most}");
    Err(Refusal::new(ErrorCode::InvalidPartitions, text))
}

fn decide(
    image: &Image,
    asked: &CreatePartitionsTopic,
    node: i32,
    at_ms: i64,
) -> Result<Change, Refusal> {
    let name = asked.name.as_str();
    let topic = image.topic(name).ok_or_else(|| {
        Refusal::new(ErrorCode::UnknownTopicOrPartition, "there is no such topic here")
    })?;
    if topic.internal {
        let text = format!("{name} is internal: its number of partitions is fixed");
        return Err(Refusal::new(ErrorCode::PolicyViolation, text));
    }
    let assigned = asked.assignments.as_deref().unwrap_or_default();
    let assignments: Vec<Vec<i32>> =
        assigned.iter().map(|a| a.broker_ids.iter().map(|id| id.0).collect()).collect();
    let known = Some([node]);
    let known = known.as_ref().map(<[i32; 1]>::as_slice);
    Ok(image.add_partitions(topic.no, asked.count, &assignments, known, at_ms)?)
}

fn result(name: TopicName, refusal: Option<Refusal>) -> CreatePartitionsTopicResult {
    let result = CreatePartitionsTopicResult::default().with_name(name);
    match refusal {
        None => result,
        Some(refusal) => {
            result.with_error_code(refusal.code.code()).with_error_message(refusal.text())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::BrokerId;
    use kafka_protocol::messages::create_partitions_request::CreatePartitionsAssignment;
    use kafka_protocol::protocol::StrBytes;

    use crate::catalog::{Environment, NewTopic};

    /// An image with topic `t` of three partitions.
    fn image() -> Image {
        let image = Image::empty(Environment { node_id: 1, ..Environment::default() });
        let new = NewTopic {
            name: "t".into(),
            id: uuid::Uuid::from_u128(1),
            partitions: 3,
            replication_factor: 1,
            ..NewTopic::default()
        };
        let change = image.create_topic(&new).unwrap();
        image.apply(&change, Position(1)).unwrap()
    }

    fn code(name: &'static str, count: i32, brokers: &[&[i32]]) -> i16 {
        let assignments = brokers.iter().map(|brokers| {
            let ids = brokers.iter().copied().map(BrokerId).collect();
            CreatePartitionsAssignment::default().with_broker_ids(ids)
        });
        let assignments = Some(assignments.collect()).filter(|list: &Vec<_>| !list.is_empty());
        let asked = CreatePartitionsTopic::default()
            .with_name(TopicName(StrBytes::from_static_str(name)))
            .with_count(count)
            .with_assignments(assignments);
        decide(&image(), &asked, 1, 0).map_or_else(|refusal| refusal.code.code(), |_| 0)
    }

    #[test]
    fn counts_must_rise() {
        assert_eq!(code("t", 6, &[]), 0);
        for count in [-1, 0, 2, 3] {
            assert_eq!(code("t", count, &[]), 37, "{count}");
        }
        assert_eq!(code("t", 20_000, &[]), 44);
        assert_eq!(code("unknown", 5, &[]), 3);
    }

    #[test]
    fn assignments_must_fit() {
        assert_eq!(code("t", 4, &[&[1]]), 0);
        assert_eq!(code("t", 5, &[&[1]]), 39);
        assert_eq!(code("t", 4, &[&[78]]), 39);
        assert_eq!(code("t", 4, &[&[1, 1]]), 39);
        assert_eq!(code("t", 4, &[&[]]), 39);
    }
}
