//! CreateTopics 2–7: creates topics, with defaults or a manual assignment.
//!
//! KIP-4 (the API), KIP-464 (-1 for the broker's defaults), KIP-525 (configs and counts in the
//! answer, from version 5), KIP-516 (topic ids, version 7). Automatic creation by Metadata takes
//! the same way.
//!
//! The answer leaves once the topics are durable, and they take records from then on. While the disk
//! is nearly full nothing is created (KAFKA_STORAGE_ERROR, as for Produce).
//!
//! Deliberate gaps: with `replication.factor.policy=accept` a factor up to 10 is taken, kept and
//! shown, although one node holds the data: durability comes from the journal. Internal topics are
//! made by their coordinators only.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::create_topics_response::{CreatableTopicConfigs, CreatableTopicResult};
use kafka_protocol::messages::{CreateTopicsRequest, CreateTopicsResponse, TopicName};
use uuid::Uuid;

use super::answers::{Refusal, canonical, if_room, require_room, text};
use super::create_partitions::check_count;
use super::{Connection, Reply};
use crate::catalog::configs::{Scope, table};
use crate::catalog::{Change, Image, MAX_PARTITIONS_PER_REQUEST, NewTopic, from_request, names};
use crate::config::{Config, ReplicationFactorPolicy};
use crate::protocol::error::ErrorCode;
use crate::types::Position;

/// Largest replication factor taken: each partition in a Metadata answer names that many brokers.
const MAX_REPLICATION_FACTOR: i16 = 10;

/// First version whose answers show counts and configs.
const SHOWS_CONFIGS: i16 = 5;

/// Creates each topic; one topic's error does not touch the others.
pub async fn handle(
    cx: &Arc<Connection>,
    request: CreateTopicsRequest,
    version: i16,
) -> Reply<CreateTopicsResponse> {
    let twice = named_twice(&request.topics);
    let alone = || request.topics.iter().filter(|topic| !twice.contains(topic.name.as_str()));
    let fits = check_total(alone(), cx.broker.config.num_partitions);
    let mut after = Position(0);
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in alone() {
        let created = fits.clone().and_then(|()| create(cx, topic, request.validate_only));
        // A refusal may rest on a change that is not durable yet, such as a topic of that name.
        let shown = created.as_ref().map_or_else(|_| cx.broker.journal.appended(), |c| c.position);
        after = after.max(shown);
        topics.push(result(topic.name.clone(), created.map(|created| created.shown), version));
    }
    for name in &twice {
        let refusal = Refusal::invalid("the topic is named more than once in the request");
        topics.push(result(TopicName(text(name)), Err(refusal), version));
    }
    Reply::after(CreateTopicsResponse::default().with_topics(topics), after)
}

/// Creates a topic that a client asked about, with the broker's defaults.
pub fn create_automatically(cx: &Connection, name: &str) -> Result<(), Refusal> {
    let topic = CreatableTopic::default()
        .with_name(TopicName(text(name)))
        .with_num_partitions(-1)
        .with_replication_factor(-1);
    create(cx, &topic, false).map(|_| ())
}

fn named_twice(topics: &[CreatableTopic]) -> BTreeSet<&str> {
    let mut seen = HashSet::with_capacity(topics.len());
    topics.iter().map(|topic| topic.name.as_str()).filter(|name| !seen.insert(*name)).collect()
}

/// Bounds the partitions that one request may create.
fn check_total<'a>(
    topics: impl Iterator<Item = &'a CreatableTopic>,
    default: i32,
) -> Result<(), Refusal> {
    let count = |topic: &CreatableTopic| match topic.num_partitions {
        _ if !topic.assignments.is_empty() => topic.assignments.len() as u64,
        -1 => u64::try_from(default).unwrap_or(0),
        given => u64::try_from(given).unwrap_or(0),
    };
    let total = topics.map(count).fold(0, u64::saturating_add);
    let limit = u64::from(MAX_PARTITIONS_PER_REQUEST);
    if total <= limit {
        return Ok(());
    }
    Err(Refusal::new(
        ErrorCode::PolicyViolation,
        format!("{total} partitions in one request; at most {limit} are created at once"),
    ))
}

/// What an answer shows of a new topic.
#[derive(Debug, Default)]
struct Shown {
    id: Uuid,
    partitions: i32,
    replication_factor: i16,
    configs: Vec<CreatableTopicConfigs>,
}

#[derive(Debug)]
struct Created {
    shown: Shown,
    position: Position,
}

fn create(
    cx: &Connection,
    topic: &CreatableTopic,
    validate_only: bool,
) -> Result<Created, Refusal> {
    let broker = &cx.broker;
    let new = new_topic(topic, &broker.config, broker.node_id)
        .map(|new| NewTopic { id: Uuid::new_v4(), at_ms: broker.clock.wall_ms(), ..new });
    let policy = broker.config.replication_factor_policy;
    let mut shown = None;
    let decide = |image: &Image| -> Result<Change, Refusal> {
        let (change, shows) = decide(image, topic.name.as_str(), new, policy)?;
        check_count(shows.partitions, &broker.config)?;
        if !validate_only {
            require_room(broker)?;
        }
        shown = Some(shows);
        if_room(cx, image, change)
    };
    let position = if validate_only {
        decide(&broker.catalog.sequenced())?;
        Position(0)
    } else {
        broker.catalog.propose(decide)?
    };
    // A change that was decided is always shown.
    let shown = shown.unwrap_or_default();
    Ok(Created { shown, position })
}

/// What was asked, in the catalog's terms. Whether it fits is decided there.
fn new_topic(topic: &CreatableTopic, config: &Config, node: i32) -> Result<NewTopic, Refusal> {
    let name = topic.name.as_str();
    if names::is_internal(name) {
        let code = match name {
            // Clients may count on it: it is there from the first group on.
            names::CONSUMER_OFFSETS => ErrorCode::TopicAlreadyExists,
            _ => ErrorCode::InvalidTopicException,
        };
        let text = format!("{name} is internal: its coordinator creates it when it is needed");
        return Err(Refusal::new(code, text));
    }
    let configs = from_request(topic.configs.iter().map(|config| {
        let def = table(Scope::Topic).get(&config.name);
        (config.name.to_string(), config.value.as_ref().map(|value| canonical(def, value)))
    }))?;
    let assignments = topic.assignments.iter().map(|assignment| {
        let brokers = assignment.broker_ids.iter().map(|id| id.0).collect();
        (assignment.partition_index, brokers)
    });
    Ok(NewTopic {
        name: name.to_owned(),
        partitions: topic.num_partitions,
        replication_factor: topic.replication_factor,
        default_partitions: config.num_partitions,
        default_replication_factor: config.default_replication_factor,
        assignments: assignments.collect(),
        known_brokers: Some(vec![node]),
        configs,
        ..NewTopic::default()
    })
}

/// Decides on an image whether the topic can be. What is wrong with its name comes first.
fn decide(
    image: &Image,
    name: &str,
    new: Result<NewTopic, Refusal>,
    policy: ReplicationFactorPolicy,
) -> Result<(Change, Shown), Refusal> {
    let new = match new {
        Ok(new) => new,
        Err(refusal) => {
            image.create_topic(&NewTopic { name: name.to_owned(), ..NewTopic::default() })?;
            return Err(refusal);
        }
    };
    let change = image.create_topic(&new)?;
    let shown = show(image, &change, &new);
    check_factor(shown.replication_factor, policy)?;
    Ok((change, shown))
}

fn check_factor(factor: i16, policy: ReplicationFactorPolicy) -> Result<(), Refusal> {
    let (limit, hint) = match policy {
        ReplicationFactorPolicy::Strict => (1, " (replication.factor.policy=strict)"),
        ReplicationFactorPolicy::Accept => (MAX_REPLICATION_FACTOR, ""),
    };
    if factor <= limit {
        return Ok(());
    }
    Err(Refusal::new(
        ErrorCode::InvalidReplicationFactor,
        format!("replication factor {factor} is more than the {limit} taken here{hint}"),
    ))
}

fn show(image: &Image, change: &Change, new: &NewTopic) -> Shown {
    let (partitions, replication_factor) = match change {
        Change::TopicCreated(created) => (created.partitions, created.replication_factor),
        _ => (0, 0),
    };
    let entries = image.describe_new_topic(&new.configs).into_iter().map(|entry| {
        CreatableTopicConfigs::default()
            .with_name(text(entry.def.name))
            .with_value(entry.value.as_deref().map(text))
            .with_read_only(entry.def.read_only)
            .with_config_source(entry.source as i8)
            .with_is_sensitive(entry.def.sensitive)
    });
    Shown {
        id: new.id,
        partitions: i32::try_from(partitions).unwrap_or(i32::MAX),
        replication_factor,
        configs: entries.collect(),
    }
}

fn result(
    name: TopicName,
    outcome: Result<Shown, Refusal>,
    version: i16,
) -> CreatableTopicResult {
    let result = CreatableTopicResult::default().with_name(name);
    match outcome {
        Ok(shown) if version >= SHOWS_CONFIGS => result
            .with_topic_id(shown.id)
            .with_num_partitions(shown.partitions)
            .with_replication_factor(shown.replication_factor)
            .with_configs(Some(shown.configs)),
        Ok(_) => result,
        Err(refusal) => result
            .with_error_code(refusal.code.code())
            .with_error_message(refusal.text())
            .with_num_partitions(-1)
            .with_replication_factor(-1)
            .with_configs(Some(Vec::new())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::create_topics_request::{
        CreatableReplicaAssignment, CreatableTopicConfig,
    };
    use kafka_protocol::messages::{ApiKey, BrokerId};
    use kafka_protocol::protocol::StrBytes;

    use crate::catalog::Environment;
    use crate::protocol::response::encode_response;
    use ReplicationFactorPolicy::{Accept, Strict};

    fn asked(name: &'static str, partitions: i32, factor: i16) -> CreatableTopic {
        CreatableTopic::default()
            .with_name(TopicName(StrBytes::from_static_str(name)))
            .with_num_partitions(partitions)
            .with_replication_factor(factor)
    }

    fn assigned(brokers: &[&[i32]]) -> CreatableTopic {
        let assignments = (0..).zip(brokers).map(|(at, brokers)| {
            CreatableReplicaAssignment::default()
                .with_partition_index(at)
                .with_broker_ids(brokers.iter().copied().map(BrokerId).collect())
        });
        asked("t", -1, -1).with_assignments(assignments.collect())
    }

    fn with_config(name: &'static str, value: Option<&'static str>) -> CreatableTopic {
        let config = CreatableTopicConfig::default()
            .with_name(StrBytes::from_static_str(name))
            .with_value(value.map(StrBytes::from_static_str));
        asked("t", 1, 1).with_configs(vec![config])
    }

    fn image() -> Image {
        Image::empty(Environment { node_id: 1, ..Environment::default() })
    }

    fn try_create(topic: &CreatableTopic, policy: ReplicationFactorPolicy) -> Result<Shown, i16> {
        let new = new_topic(topic, &Config::defaults(), 1);
        decide(&image(), topic.name.as_str(), new, policy)
            .map(|(_, shown)| shown)
            .map_err(|refusal| refusal.code.code())
    }

    fn code(topic: &CreatableTopic) -> i16 {
        try_create(topic, Strict).map_or_else(|code| code, |_| 0)
    }

    #[test]
    fn defaults_are_filled_in_and_shown() {
        let shown = try_create(&asked("t", -1, -1), Strict).unwrap();
        assert_eq!((shown.partitions, shown.replication_factor), (16, 1));
        assert_eq!(shown.configs.len(), 37);
        let shown = try_create(&with_config("retention.ms", Some(" 1000 ")), Strict).unwrap();
        let retention = shown.configs.iter().find(|c| c.name == *"retention.ms").unwrap();
        assert_eq!(retention.value.as_deref(), Some("1000"));
        assert_eq!(retention.config_source, 1);
    }

    #[test]
    fn refusals_have_kafkas_codes() {
        assert_eq!(code(&asked("a/b", 1, 1)), 17);
        assert_eq!(code(&asked("t", 1, 3)), 38);
        assert_eq!(code(&asked("t", 1, 0)), 38);
        assert_eq!(code(&asked("t", 1, -2)), 38);
        assert_eq!(code(&asked("t", 0, 1)), 37);
        assert_eq!(code(&asked("t", -2, 1)), 37);
        assert_eq!(code(&with_config("no.such.config", Some("1"))), 40);
        assert_eq!(code(&with_config("retention.ms", Some("abc"))), 40);
        assert_eq!(code(&with_config("retention.ms", None)), 40);
        assert_eq!(code(&asked("__transaction_state", 1, 1)), 17);
        assert_eq!(code(&asked("__consumer_offsets", 1, 1)), 36);
    }

    #[test]
    fn manual_assignments_decide_the_counts() {
        let shown = try_create(&assigned(&[&[1], &[1]]), Strict).unwrap();
        assert_eq!((shown.partitions, shown.replication_factor), (2, 1));
        assert_eq!(code(&assigned(&[&[1]]).with_num_partitions(1)), 42);
        assert_eq!(code(&assigned(&[&[1]]).with_replication_factor(1)), 42);
        assert_eq!(code(&assigned(&[&[78]])), 39);
        assert_eq!(code(&assigned(&[&[1, 1]])), 39);
        assert_eq!(code(&assigned(&[&[]])), 39);
    }

    #[test]
    fn factors_are_kept_where_the_policy_accepts_them() {
        let shown = try_create(&asked("t", 1, 3), Accept).unwrap();
        assert_eq!(shown.replication_factor, 3);
        assert_eq!(try_create(&asked("t", 1, 11), Accept).unwrap_err(), 38);
    }

    #[test]
    fn the_partitions_of_one_request_are_bounded_together() {
        let total = |topics: &[CreatableTopic]| check_total(topics.iter(), 16).is_ok();
        assert!(total(&[asked("a", 5_000, 1), asked("b", 5_000, 1), asked("c", -2, 1)]));
        assert!(!total(&[asked("a", 9_999, 1), asked("b", -1, 1)]));
        assert!(!total(&[asked("a", i32::MAX, 1), asked("b", i32::MAX, 1)]));
    }

    #[test]
    fn a_name_given_twice_is_answered_once() {
        let topics = [asked("a", 1, 1), asked("b", 1, 1), asked("a", 1, 1), asked("a", 1, 1)];
        assert_eq!(named_twice(&topics).into_iter().collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn answers_fit_every_version() {
        for version in 2..=7 {
            let good = result(TopicName::default(), try_create(&asked("t", 1, 1), Strict)
                .map_err(|_| Refusal::invalid("")), version);
            let bad = result(TopicName::default(), Err(Refusal::invalid("no")), version);
            let answer = CreateTopicsResponse::default().with_topics(vec![good, bad]);
            assert!(encode_response(1, ApiKey::CreateTopics, version, &answer).is_ok());
        }
    }
}
