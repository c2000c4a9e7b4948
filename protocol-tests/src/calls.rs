//! The requests most tests need, in short form, over a plain connection.

use bytes::Bytes;
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::MetadataResponseTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::produce_response::PartitionProduceResponse;
use kafka_protocol::messages::{
    BrokerId, CreatePartitionsRequest, CreateTopicsRequest, DeleteRecordsRequest,
    DeleteTopicsRequest, FetchRequest, GroupId, ListOffsetsRequest, MetadataRequest,
    ProduceRequest, TopicName,
};
use kafka_protocol::protocol::StrBytes;

use crate::batch::Batch;
use crate::wire::{Pending, Wire};
use crate::{unique, wait_for};

/// Text as the messages hold it.
pub fn text(value: &str) -> StrBytes {
    StrBytes::from_string(value.to_owned())
}

/// A topic's name as the messages hold it.
pub fn topic_name(name: &str) -> TopicName {
    TopicName(text(name))
}

/// A group's id as the messages hold it.
pub fn group_id(name: &str) -> GroupId {
    GroupId(text(name))
}

/// Creates a topic of a fresh name and waits until all its partitions serve.
pub fn new_topic(wire: &mut Wire, partitions: i32, configs: &[(&str, &str)]) -> String {
    let name = unique("topic");
    assert_eq!(
        create_topic(wire, &name, partitions, configs),
        0,
        "create {name}"
    );
    await_topic(wire, &name, partitions);
    name
}

/// Creates a topic and returns the error code.
pub fn create_topic(wire: &mut Wire, name: &str, partitions: i32, configs: &[(&str, &str)]) -> i16 {
    let config = |(key, value): &(&str, &str)| {
        CreatableTopicConfig::default()
            .with_name(text(key))
            .with_value(Some(text(value)))
    };
    let topic = CreatableTopic::default()
        .with_name(topic_name(name))
        .with_num_partitions(partitions)
        .with_replication_factor(1)
        .with_configs(configs.iter().map(config).collect());
    let request = CreateTopicsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(30_000);
    wire.call(5, &request).topics[0].error_code
}

/// Waits until every partition of a topic answers for its end.
pub fn await_topic(wire: &mut Wire, name: &str, partitions: i32) {
    for partition in 0..partitions {
        wait_for("the new topic serves", || {
            (list_offsets(wire, name, partition, -1).error_code == 0).then_some(())
        });
    }
}

/// Deletes a topic and returns the error code.
pub fn delete_topic(wire: &mut Wire, name: &str) -> i16 {
    let request = DeleteTopicsRequest::default()
        .with_topic_names(vec![topic_name(name)])
        .with_timeout_ms(30_000);
    wire.call(5, &request).responses[0].error_code
}

/// Grows a topic to `count` partitions and returns the error code.
pub fn grow_topic(wire: &mut Wire, name: &str, count: i32) -> i16 {
    let topic = CreatePartitionsTopic::default()
        .with_name(topic_name(name))
        .with_count(count)
        .with_assignments(None);
    let request = CreatePartitionsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(30_000);
    wire.call(3, &request).results[0].error_code
}

/// Deletes a partition's records before `offset` (all of them for -1); returns the error code and
/// the low watermark.
pub fn delete_records(wire: &mut Wire, topic: &str, partition: i32, offset: i64) -> (i16, i64) {
    let partition = DeleteRecordsPartition::default()
        .with_partition_index(partition)
        .with_offset(offset);
    let topic = DeleteRecordsTopic::default()
        .with_name(topic_name(topic))
        .with_partitions(vec![partition]);
    let request = DeleteRecordsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(30_000);
    let answer = wire.call(1, &request).topics.remove(0).partitions.remove(0);
    (answer.error_code, answer.low_watermark)
}

/// What Metadata says about one topic, without creating it.
pub fn describe_topic(wire: &mut Wire, name: &str) -> MetadataResponseTopic {
    let topic = MetadataRequestTopic::default().with_name(Some(topic_name(name)));
    let request = MetadataRequest::default()
        .with_topics(Some(vec![topic]))
        .with_allow_auto_topic_creation(false);
    wire.call(12, &request).topics.remove(0)
}

/// A Produce request of one batch.
pub fn produce_request(topic: &str, partition: i32, acks: i16, records: Bytes) -> ProduceRequest {
    let data = PartitionProduceData::default()
        .with_index(partition)
        .with_records(Some(records));
    let topic = TopicProduceData::default()
        .with_name(topic_name(topic))
        .with_partition_data(vec![data]);
    ProduceRequest::default()
        .with_acks(acks)
        .with_timeout_ms(30_000)
        .with_topic_data(vec![topic])
}

/// Produces one batch with acks=all.
pub fn produce(
    wire: &mut Wire,
    topic: &str,
    partition: i32,
    batch: &Batch,
) -> PartitionProduceResponse {
    produce_bytes(wire, 9, topic, partition, batch.bytes())
}

/// Produces bytes that claim to be a batch, with acks=all.
pub fn produce_bytes(
    wire: &mut Wire,
    version: i16,
    topic: &str,
    partition: i32,
    records: Bytes,
) -> PartitionProduceResponse {
    let request = produce_request(topic, partition, -1, records);
    wire.call(version, &request)
        .responses
        .remove(0)
        .partition_responses
        .remove(0)
}

/// What a test wants fetched of one partition.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The first offset.
    pub offset: i64,
    /// How long the broker may wait.
    pub max_wait_ms: i32,
    /// How much the broker shall wait for.
    pub min_bytes: i32,
    /// The limit of the whole answer.
    pub max_bytes: i32,
    /// The limit of each partition.
    pub partition_max_bytes: i32,
}

impl Wanted {
    /// Everything from `offset`, at once.
    pub fn from(offset: i64) -> Wanted {
        Wanted {
            offset,
            max_wait_ms: 0,
            min_bytes: 0,
            max_bytes: 50 << 20,
            partition_max_bytes: 10 << 20,
        }
    }

    /// The Fetch request for these partitions of a topic.
    pub fn request(&self, topic: &str, partitions: &[i32]) -> FetchRequest {
        let partition = |index: &i32| {
            FetchPartition::default()
                .with_partition(*index)
                .with_current_leader_epoch(-1)
                .with_fetch_offset(self.offset)
                .with_partition_max_bytes(self.partition_max_bytes)
        };
        let topic = FetchTopic::default()
            .with_topic(topic_name(topic))
            .with_partitions(partitions.iter().map(partition).collect());
        FetchRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_max_wait_ms(self.max_wait_ms)
            .with_min_bytes(self.min_bytes)
            .with_max_bytes(self.max_bytes)
            .with_session_epoch(-1)
            .with_topics(vec![topic])
    }
}

/// Fetches one partition.
pub fn fetch(wire: &mut Wire, topic: &str, partition: i32, wanted: Wanted) -> PartitionData {
    let pending = send_fetch(wire, topic, partition, wanted);
    receive_fetch(wire, pending)
}

/// Sends a Fetch of one partition.
pub fn send_fetch(
    wire: &mut Wire,
    topic: &str,
    partition: i32,
    wanted: Wanted,
) -> Pending<FetchRequest> {
    wire.send(11, &wanted.request(topic, &[partition]))
}

/// Reads the answer to [`send_fetch`].
pub fn receive_fetch(wire: &mut Wire, pending: Pending<FetchRequest>) -> PartitionData {
    wire.receive(pending)
        .responses
        .remove(0)
        .partitions
        .remove(0)
}

/// What ListOffsets answers for one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundOffset {
    /// Kafka's error code.
    pub error_code: i16,
    /// The offset, or -1.
    pub offset: i64,
    /// The timestamp of that record, or -1.
    pub timestamp: i64,
}

/// Asks for the offset of a time, or of a special timestamp (-1 latest, -2 earliest, -3 newest).
pub fn list_offsets(wire: &mut Wire, topic: &str, partition: i32, timestamp: i64) -> FoundOffset {
    let wanted = ListOffsetsPartition::default()
        .with_partition_index(partition)
        .with_current_leader_epoch(-1)
        .with_timestamp(timestamp);
    let topic = ListOffsetsTopic::default()
        .with_name(topic_name(topic))
        .with_partitions(vec![wanted]);
    let request = ListOffsetsRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_topics(vec![topic]);
    let answer = wire.call(7, &request).topics.remove(0).partitions.remove(0);
    FoundOffset {
        error_code: answer.error_code,
        offset: answer.offset,
        timestamp: answer.timestamp,
    }
}

/// Repeats a request to a group's coordinator while the answer is that the coordinator is not
/// ready (14, 15, 16), as every client does, and returns the first other error code.
pub fn with_coordinator(mut request: impl FnMut() -> i16) -> i16 {
    wait_for("the coordinator serves", || match request() {
        14..=16 => None,
        code => Some(code),
    })
}
