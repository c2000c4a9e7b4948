//! Every offered version of every API, asked for without negotiation.

use std::collections::HashMap;

use kafka_protocol::messages::*;
use kafka_protocol::protocol::{Message, Request};
use protocol_tests::batch::{Batch, headers};
use protocol_tests::calls::*;
use protocol_tests::wire::Wire;
use protocol_tests::{bootstrap, client};

type Offered = HashMap<i16, (i16, i16)>;

fn offered() -> Offered {
    let request = ApiVersionsRequest::default()
        .with_client_software_name(text("protocol-tests"))
        .with_client_software_version(text("1"));
    let answer = Wire::open().call(3, &request);
    answer
        .api_keys
        .iter()
        .map(|api| (api.api_key, (api.min_version, api.max_version)))
        .collect()
}

/// Sends a request in every version that is offered and that the typed messages know, each on a
/// connection of its own. Getting an answer that decodes without a rest is the test.
fn sweep<R: Request>(offered: &Offered, request: &R) {
    let Some((min, max)) = offered.get(&R::KEY) else {
        panic!("API {} is not offered", R::KEY)
    };
    let known = <R as Message>::VERSIONS;
    for version in (*min).max(known.min)..=(*max).min(known.max) {
        println!("API {} version {version}", R::KEY);
        Wire::open().call(version, request);
    }
}

#[test]
fn every_version_is_answered_in_its_own_layout() {
    let offered = offered();
    sweep(
        &offered,
        &ProduceRequest::default()
            .with_acks(-1)
            .with_timeout_ms(1000),
    );
    sweep(
        &offered,
        &FetchRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_max_bytes(1000),
    );
    sweep(
        &offered,
        &ListOffsetsRequest::default().with_replica_id(BrokerId(-1)),
    );
    sweep(
        &offered,
        &MetadataRequest::default().with_topics(Some(vec![])),
    );
    sweep(
        &offered,
        &OffsetCommitRequest::default().with_group_id(group_id("nobody")),
    );
    sweep(
        &offered,
        &JoinGroupRequest::default().with_session_timeout_ms(10_000),
    );
    sweep(&offered, &HeartbeatRequest::default());
    sweep(&offered, &LeaveGroupRequest::default());
    sweep(&offered, &SyncGroupRequest::default());
    sweep(
        &offered,
        &DescribeGroupsRequest::default().with_groups(vec![]),
    );
    sweep(&offered, &ListGroupsRequest::default());
    sweep(
        &offered,
        &CreateTopicsRequest::default().with_timeout_ms(1000),
    );
    sweep(
        &offered,
        &DeleteTopicsRequest::default().with_timeout_ms(1000),
    );
    sweep(
        &offered,
        &DeleteRecordsRequest::default().with_timeout_ms(1000),
    );
    sweep(&offered, &OffsetForLeaderEpochRequest::default());
    sweep(&offered, &DescribeConfigsRequest::default());
    sweep(&offered, &AlterConfigsRequest::default());
    sweep(&offered, &IncrementalAlterConfigsRequest::default());
    sweep(
        &offered,
        &CreatePartitionsRequest::default().with_timeout_ms(1000),
    );
    sweep(&offered, &DeleteGroupsRequest::default());
    sweep(&offered, &OffsetDeleteRequest::default());
    sweep(&offered, &DescribeTopicPartitionsRequest::default());
    sweep(
        &offered,
        &DescribeLogDirsRequest::default().with_topics(Some(vec![])),
    );
    sweep(&offered, &DescribeClusterRequest::default());
    let ids = InitProducerIdRequest::default()
        .with_transactional_id(None)
        .with_transaction_timeout_ms(60_000);
    sweep(&offered, &ids);
}

#[test]
fn records_go_in_and_out_in_every_version() {
    let offered = offered();
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    let id = describe_topic(&mut wire, &topic).topic_id;
    let mut produced = 0;
    for version in 3..=offered[&0].1.min(13) {
        let batch = Batch::of(&[&format!("in version {version}")]).bytes();
        let mut request = produce_request(&topic, 0, -1, batch);
        if version >= 13 {
            request.topic_data[0].name = TopicName::default();
            request.topic_data[0].topic_id = id;
        }
        let answer = Wire::open().call(version, &request);
        let partition = &answer.responses[0].partition_responses[0];
        assert_eq!(
            (partition.error_code, partition.base_offset),
            (0, produced),
            "v{version}"
        );
        produced += 1;
    }
    for version in 4..=offered[&1].1.min(18) {
        let mut request = Wanted::from(0).request(&topic, &[0]);
        if version >= 13 {
            request.topics[0].topic = TopicName::default();
            request.topics[0].topic_id = id;
        }
        let answer = Wire::open().call(version, &request);
        let partition = &answer.responses[0].partitions[0];
        assert_eq!(
            (partition.error_code, partition.high_watermark),
            (0, produced),
            "v{version}"
        );
        let batches = headers(partition.records.as_ref().expect("records"));
        assert_eq!(batches.len() as i64, produced, "v{version}");
    }
}

#[test]
fn zstd_wants_a_new_produce_version_and_a_topic_can_ask_for_it() {
    const UNSUPPORTED_COMPRESSION_TYPE: i16 = 76;
    let bootstrap = bootstrap();
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    let producer = client::producer(&bootstrap, &[("compression.codec", "zstd")]);
    client::produce_values(&producer, &topic, 0, &[vec![b'z'; 10_000]]);
    let stored = fetch(&mut wire, &topic, 0, Wanted::from(0))
        .records
        .expect("records");
    assert_eq!(headers(&stored)[0].attributes & 7, 4, "zstd");
    let refused = produce_bytes(&mut wire, 6, &topic, 0, stored);
    assert_eq!(refused.error_code, UNSUPPORTED_COMPRESSION_TYPE);
    let always = new_topic(&mut wire, 1, &[("compression.type", "zstd")]);
    assert_eq!(
        produce(&mut wire, &always, 0, &Batch::of(&[&"z".repeat(9000)])).error_code,
        0
    );
    let new = wire.call(10, &Wanted::from(0).request(&always, &[0]));
    let records = new.responses[0].partitions[0]
        .records
        .clone()
        .expect("records");
    assert_eq!(
        headers(&records)[0].attributes & 7,
        4,
        "recompressed by the broker"
    );
}
