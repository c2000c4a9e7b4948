//! Metadata 0–13: brokers, the controller, and topics with their partitions and leaders.
//!
//! KIP-4 (ids of cluster and controller), KIP-204 (leader epochs), KIP-430 (authorized
//! operations), KIP-516 (topic ids, from version 10 in answers, from 12 in requests).
//!
//! A topic that is to be created automatically is answered with UNKNOWN_TOPIC_OR_PARTITION, as
//! Kafka does; the client asks again and finds it. Only durable topics are shown.
//!
//! Deliberate gaps: one node leads everything. A replication factor above 1 is shown by naming this
//! node that many times, so that every replica a client reads about is a broker it can reach. A
//! name that collides with another in metric names is refused at once rather than never created.

use std::collections::HashSet;
use std::sync::Arc;

use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{BrokerId, MetadataRequest, MetadataResponse, TopicName};
use uuid::Uuid;

use super::answers::{
    CLUSTER_OPERATIONS, OPERATIONS_NOT_ASKED, Refusal, TOPIC_OPERATIONS, leader_epoch, replicas,
    text};
use super::{Connection, Reply};
use crate::catalog::{Image, Topic, names};
use crate::protocol::error::ErrorCode;
use crate::repeats::LINES;

/// Topics that one request may create; the others are created by the client's next request.
const MAX_AUTO_CREATED: usize = 1_000;

/// First version whose requests may name topics by id.
const BY_ID: i16 = 12;

/// Answers from the durable catalog, and creates missing topics if asked to and allowed to.
pub async fn handle(
    cx: &Arc<Connection>,
    request: MetadataRequest,
    version: i16,
) -> Reply<MetadataResponse> {
    let wanted = match wanted(request.topics.as_deref(), version) {
        Ok(wanted) => wanted,
        Err(code) => return refused(request.topics.unwrap_or_default(), code).into(),
    };
    let image = cx.broker.catalog.image();
    let shown = Shown {
        cx,
        version,
        operations: request.include_topic_authorized_operations && version >= 8,
    };
    let topics = match wanted {
        Wanted::All => image.topics().map(|topic| shown.topic(topic)).collect(),
        Wanted::Ids(ids) => ids.into_iter().map(|id| shown.by_id(&image, id)).collect(),
        Wanted::Names(names) => {
            let create = request.allow_auto_topic_creation && cx.broker.config.auto_create_topics;
            shown.by_name(&image, &names, create)
        }
    };
    let mut response = shell(cx, version).with_topics(topics);
    if request.include_cluster_authorized_operations && (8..=10).contains(&version) {
        response.cluster_authorized_operations = CLUSTER_OPERATIONS;
    }
    response.into()
}

/// What a request asks about.
#[derive(Debug, PartialEq)]
enum Wanted<'a> {
    All,
    Names(Vec<&'a TopicName>),
    Ids(Vec<Uuid>),
}

/// Sorts out how the topics are named; each comes once. If any is named by id, all are.
fn wanted(topics: Option<&[MetadataRequestTopic]>, version: i16) -> Result<Wanted<'_>, ErrorCode> {
    let Some(topics) = topics else { return Ok(Wanted::All) };
    if topics.is_empty() && version == 0 {
        return Ok(Wanted::All);
    }
    let by_id = topics.iter().any(|topic| !topic.topic_id.is_nil());
    if by_id && version < BY_ID {
        return Err(ErrorCode::InvalidRequest);
    }
    let nameless = |topic: &MetadataRequestTopic| topic.name.is_none();
    if topics.iter().any(|topic| nameless(topic) && topic.topic_id.is_nil()) {
        return Err(ErrorCode::InvalidRequest);
    }
    if by_id {
        let mut seen = HashSet::with_capacity(topics.len());
        let ids = topics.iter().map(|topic| topic.topic_id).filter(|id| !id.is_nil());
        return Ok(Wanted::Ids(ids.filter(|id| seen.insert(*id)).collect()));
    }
    let mut seen = HashSet::with_capacity(topics.len());
    let names = topics.iter().filter_map(|topic| topic.name.as_ref());
    Ok(Wanted::Names(names.filter(|name| seen.insert(name.as_str())).collect()))
}

/// The answer to a request that contradicts itself: the error at every topic, no brokers.
fn refused(topics: Vec<MetadataRequestTopic>, code: ErrorCode) -> MetadataResponse {
    let topics = topics.into_iter().map(|topic| {
        MetadataResponseTopic::default()
            .with_error_code(code.code())
            .with_name(Some(topic.name.unwrap_or_default()))
            .with_topic_id(topic.topic_id)
    });
    MetadataResponse::default().with_topics(topics.collect()).with_cluster_id(None)
}

fn shell(cx: &Connection, version: i16) -> MetadataResponse {
    let node = BrokerId(cx.broker.node_id);
    let address = &cx.listener.advertised;
    let rack = cx.broker.config.rack.as_deref().filter(|_| version >= 1);
    let broker = MetadataResponseBroker::default()
        .with_node_id(node)
        .with_host(text(&address.host))
        .with_port(i32::from(address.port))
        .with_rack(rack.map(text));
    MetadataResponse::default()
        .with_brokers(vec![broker])
        .with_cluster_id(Some(text(&cx.broker.cluster_id)))
        .with_controller_id(node)
}

/// How topics are shown in one answer.
struct Shown<'a> {
    cx: &'a Connection,
    version: i16,
    operations: bool,
}

impl Shown<'_> {
    fn by_id(&self, image: &Image, id: Uuid) -> MetadataResponseTopic {
        match image.topic_by_id(id) {
            Some(topic) => self.topic(topic),
            None => MetadataResponseTopic::default()
                .with_error_code(ErrorCode::UnknownTopicId.code())
                .with_name(None)
                .with_topic_id(id),
        }
    }

    fn by_name(
        &self,
        image: &Image,
        asked: &[&TopicName],
        create: bool,
    ) -> Vec<MetadataResponseTopic> {
        let mut creations_left = if create { MAX_AUTO_CREATED } else { 0 };
        let show = |name: &&TopicName| {
            if let Some(topic) = image.topic(name.as_str()) {
                return self.topic(topic);
            }
            let mut code = ErrorCode::UnknownTopicOrPartition;
            if names::validate(name.as_str()).is_err() {
                code = ErrorCode::InvalidTopicException;
            } else if creations_left > 0 && !names::is_internal(name) {
                creations_left -= 1;
                if let Err(refusal) = self.create(name.as_str()) {
                    code = refusal;
                }
            }
            MetadataResponseTopic::default()
                .with_error_code(code.code())
                .with_name(Some((*name).clone()))
                .with_topic_authorized_operations(self.operations())
        };
        asked.iter().map(show).collect()
    }

    /// Starts a topic's creation. Nothing is acknowledged by it, so nobody waits for it.
    fn create(&self, name: &str) -> Result<(), ErrorCode> {
        match super::create_topics::create_automatically(self.cx, name) {
            Ok(()) => Ok(()),
            Err(Refusal { code: ErrorCode::TopicAlreadyExists, .. }) => Ok(()),
            Err(refusal) => {
                if LINES.allow("a topic was not created automatically", None) {
                    tracing::warn!(
                        topic = name,
                        reason = refusal.message,
                        "a topic was not created automatically; clients that wait for it will fail"
                    );
                }
                match refusal.code {
                    ErrorCode::InvalidTopicException => Err(refusal.code),
                    _ => Err(ErrorCode::UnknownTopicOrPartition),
                }
            }
        }
    }

    fn operations(&self) -> i32 {
        if self.operations { TOPIC_OPERATIONS } else { OPERATIONS_NOT_ASKED }
    }

    fn topic(&self, topic: &Topic) -> MetadataResponseTopic {
        let partitions = (0..topic.partitions).map(|index| {
            let epoch = leader_epoch(self.cx, topic, index);
            partition(topic, index, self.cx.broker.node_id, epoch)
        });
        MetadataResponseTopic::default()
            .with_name(Some(TopicName(text(&topic.name))))
            .with_topic_id(if self.version >= 10 { topic.id } else { Uuid::nil() })
            .with_is_internal(topic.internal)
            .with_partitions(partitions.collect())
            .with_topic_authorized_operations(self.operations())
    }
}

fn partition(topic: &Topic, index: u32, node: i32, leader_epoch: i32) -> MetadataResponsePartition {
    let replicas = replicas(topic, index, node);
    MetadataResponsePartition::default()
        .with_partition_index(i32::try_from(index).unwrap_or(i32::MAX))
        .with_leader_id(BrokerId(node))
        .with_leader_epoch(leader_epoch)
        .with_replica_nodes(replicas.clone())
        .with_isr_nodes(replicas)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::ApiKey;
    use kafka_protocol::protocol::StrBytes;

    use crate::protocol::response::encode_response;

    fn name(name: &'static str) -> TopicName {
        TopicName(StrBytes::from_static_str(name))
    }

    fn named(topic: &'static str) -> MetadataRequestTopic {
        MetadataRequestTopic::default().with_name(Some(name(topic)))
    }

    fn with_id(id: u128) -> MetadataRequestTopic {
        MetadataRequestTopic::default().with_name(None).with_topic_id(Uuid::from_u128(id))
    }

    #[test]
    fn an_empty_list_means_all_in_version_0_only() {
        assert_eq!(wanted(None, 12), Ok(Wanted::All));
        assert_eq!(wanted(Some(&[]), 0), Ok(Wanted::All));
        assert_eq!(wanted(Some(&[]), 1), Ok(Wanted::Names(vec![])));
    }

    #[test]
    fn topics_come_once_and_ids_win_over_names() {
        let (a, b) = (name("a"), name("b"));
        let asked = [named("a"), named("b"), named("a")];
        assert_eq!(wanted(Some(&asked), 12), Ok(Wanted::Names(vec![&a, &b])));
        let asked = [named("a"), with_id(7), with_id(7)];
        assert_eq!(wanted(Some(&asked), 12), Ok(Wanted::Ids(vec![Uuid::from_u128(7)])));
    }

    #[test]
    fn contradictions_are_refused_with_every_topic_named() {
        assert_eq!(wanted(Some(&[with_id(7)]), 10), Err(ErrorCode::InvalidRequest));
        assert_eq!(wanted(Some(&[named("a"), with_id(0)]), 12), Err(ErrorCode::InvalidRequest));
        for version in 0..=13 {
            let answer = refused(vec![with_id(7), named("a")], ErrorCode::InvalidRequest);
            assert!(answer.brokers.is_empty() && answer.topics.len() == 2);
            assert_eq!(answer.controller_id.0, -1);
            assert!(encode_response(1, ApiKey::Metadata, version, &answer).is_ok());
        }
    }
}
