//! Connections: negotiation of versions, order of answers, and bytes that mean harm.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::{
    ApiVersionsRequest, ApiVersionsResponse, MetadataRequest, OffsetCommitRequest, ResponseHeader,
};
use kafka_protocol::protocol::{Decodable, Request};
use protocol_tests::batch::Batch;
use protocol_tests::calls::*;
use protocol_tests::wire::Wire;
use protocol_tests::{Server, foreign, unique};

const UNSUPPORTED_VERSION: i16 = 35;

fn api_versions() -> ApiVersionsRequest {
    ApiVersionsRequest::default()
        .with_client_software_name(text("protocol-tests"))
        .with_client_software_version(text("1"))
}

/// Sends a body of arbitrary bytes and returns once the broker closed the connection or answered.
fn provoke(key: i16, version: i16, body: &[u8]) {
    let mut wire = Wire::open();
    wire.set_patience(Duration::from_secs(20));
    wire.send_body(key, version, 1, body);
    let _ = wire.read_frame();
}

fn assert_alive() {
    let mut wire = Wire::open();
    assert_eq!(
        wire.call(3, &api_versions()).error_code,
        0,
        "the broker still serves"
    );
}

#[test]
fn a_too_new_api_versions_is_answered_in_version_0_and_the_connection_lives() {
    let mut wire = Wire::open();
    wire.send_body(ApiVersionsRequest::KEY, 99, 7, &[0, 1, 2, 3]);
    let mut frame = wire.read_frame().expect("an answer");
    let header = ResponseHeader::decode(&mut frame, 0).expect("header");
    assert_eq!(header.correlation_id, 7);
    let answer = ApiVersionsResponse::decode(&mut frame, 0).expect("version 0");
    assert_eq!(answer.error_code, UNSUPPORTED_VERSION);
    let own = answer
        .api_keys
        .iter()
        .find(|api| api.api_key == ApiVersionsRequest::KEY);
    let own = own.expect("the range of ApiVersions itself");
    assert!(own.min_version == 0 && own.max_version >= 4);
    assert_eq!(
        wire.call(3, &api_versions()).error_code,
        0,
        "the next one is served"
    );
}

#[test]
fn old_minimum_versions_are_offered() {
    let mut wire = Wire::open();
    let offered: HashMap<i16, (i16, i16)> = wire
        .call(3, &api_versions())
        .api_keys
        .iter()
        .map(|api| (api.api_key, (api.min_version, api.max_version)))
        .collect();
    // librdkafka before 2.11 switches a feature off unless the range holds these versions.
    let needed: &[(&str, i16, i16, i16)] = &[
        ("Produce", 0, 0, 13),
        ("Fetch", 1, 4, 18),
        ("ListOffsets", 2, 1, 10),
        ("Metadata", 3, 0, 13),
        ("OffsetCommit", 8, 2, 9),
        ("OffsetFetch", 9, 1, 9),
        ("FindCoordinator", 10, 0, 6),
        ("JoinGroup", 11, 0, 9),
        ("Heartbeat", 12, 0, 4),
        ("LeaveGroup", 13, 0, 5),
        ("SyncGroup", 14, 0, 5),
        ("DescribeGroups", 15, 0, 6),
        ("ListGroups", 16, 0, 5),
        ("ApiVersions", 18, 0, 4),
        ("CreateTopics", 19, 2, 7),
        ("DeleteTopics", 20, 1, 6),
        ("DeleteRecords", 21, 0, 2),
        ("InitProducerId", 22, 0, 5),
        ("OffsetForLeaderEpoch", 23, 2, 4),
        ("DescribeConfigs", 32, 1, 4),
        ("AlterConfigs", 33, 0, 2),
        ("CreatePartitions", 37, 0, 3),
        ("DeleteGroups", 42, 0, 2),
        ("IncrementalAlterConfigs", 44, 0, 1),
        ("OffsetDelete", 47, 0, 0),
        ("DescribeCluster", 60, 0, 2),
        ("DescribeTopicPartitions", 75, 0, 0),
    ];
    for (name, key, min, max) in needed {
        let range = offered
            .get(key)
            .unwrap_or_else(|| panic!("{name} is not offered"));
        assert!(
            range.0 <= *min && range.1 >= *max,
            "{name}: offered {range:?}"
        );
    }
}

#[test]
fn answers_come_in_request_order_behind_a_waiting_fetch() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 2, &[]);
    let wanted = Wanted {
        max_wait_ms: 1000,
        min_bytes: 1,
        ..Wanted::from(0)
    };
    let start = Instant::now();
    let fetch = send_fetch(&mut wire, &topic, 0, wanted);
    let metadata = wire.send(9, &MetadataRequest::default().with_topics(Some(vec![])));
    let produce = wire.send(
        9,
        &produce_request(&topic, 1, 1, Batch::of(&["behind"]).bytes()),
    );
    let fetched = receive_fetch(&mut wire, fetch);
    let waited = start.elapsed();
    assert!(fetched.records.is_none_or(|records| records.is_empty()));
    assert!(
        waited >= Duration::from_millis(900),
        "the Fetch waits its time: {waited:?}"
    );
    assert!(!wire.receive(metadata).brokers.is_empty());
    let produced = wire.receive(produce);
    assert_eq!(produced.responses[0].partition_responses[0].error_code, 0);
}

#[test]
fn many_produce_requests_in_flight_are_answered_in_order_with_rising_offsets() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    let pending: Vec<_> = (0..50)
        .map(|i| {
            let batch = Batch::of(&[&format!("record {i}")]);
            wire.send(9, &produce_request(&topic, 0, -1, batch.bytes()))
        })
        .collect();
    for (expected, pending) in pending.into_iter().enumerate() {
        let answer = wire.receive(pending);
        let partition = &answer.responses[0].partition_responses[0];
        assert_eq!(
            (partition.error_code, partition.base_offset),
            (0, expected as i64)
        );
    }
}

#[test]
fn clients_that_never_ask_for_versions_are_served() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    let mut wire = Wire::open();
    let metadata = MetadataRequest::default().with_topics(None);
    assert!(!wire.call(9, &metadata).brokers.is_empty());
    let produced = produce_bytes(&mut wire, 7, &topic, 0, Batch::of(&["one"]).bytes());
    assert_eq!(produced.error_code, 0);
    let fetched = fetch(&mut wire, &topic, 0, Wanted::from(0));
    assert_eq!((fetched.error_code, fetched.high_watermark), (0, 1));
    let partition = OffsetCommitRequestPartition::default().with_committed_offset(1);
    let commit = OffsetCommitRequest::default()
        .with_group_id(group_id(&unique("group")))
        .with_generation_id_or_member_epoch(-1)
        .with_topics(vec![
            OffsetCommitRequestTopic::default()
                .with_name(topic_name(&topic))
                .with_partitions(vec![partition]),
        ]);
    let answer = protocol_tests::calls::with_coordinator(|| {
        let answer = wire.call(7, &commit);
        answer.topics[0].partitions[0].error_code
    });
    assert_eq!(answer, 0);
}

#[test]
fn frames_that_make_no_sense_close_the_connection_and_nothing_else() {
    let frames: &[&[u8]] = &[
        &[],                                   // shorter than any header
        &[0, 3],                               // a lone API key
        &[0, 3, 0, 1, 0, 0],                   // a cut correlation id
        &[0x7f, 0xff, 0, 0, 0, 0, 0, 1, 0],    // no such API
        &[0, 3, 0, 99, 0, 0, 0, 1, 0, 0],      // no such version
        &[0, 3, 0, 1, 0, 0, 0, 1, 0x7f, 0xff], // a client id longer than the frame
    ];
    for frame in frames {
        let mut wire = Wire::open();
        wire.set_patience(Duration::from_secs(20));
        wire.send_frame(frame).expect("send");
        assert!(wire.is_closed(), "after {frame:?}");
    }
    for length in [-1_i32, i32::MIN, i32::MAX, 200 << 20] {
        let mut wire = Wire::open();
        wire.set_patience(Duration::from_secs(20));
        let _ = wire.send_raw(&length.to_be_bytes());
        assert!(wire.is_closed(), "after a frame length of {length}");
    }
    assert_alive();
}

#[test]
fn array_lengths_are_not_believed() {
    let billions = [0x7f, 0xff, 0xff, 0xff];
    let compact_billions = [0xff, 0xff, 0xff, 0xff, 0x0f];
    // (key, version, bytes in front of the first array)
    let before_fixed: &[(i16, i16, &[u8])] = &[
        (0, 3, &[0xff, 0xff, 0, 1, 0, 0, 0, 1]),
        (
            1,
            4,
            &[
                0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0,
            ],
        ),
        (2, 2, &[0xff, 0xff, 0xff, 0xff, 0]),
        (3, 1, &[]),
        (
            8,
            2,
            &[
                0, 1, b'g', 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            ],
        ),
        (9, 1, &[0, 1, b'g']),
        (
            11,
            1,
            &[0, 1, b'g', 0, 0, 0x30, 0, 0, 0, 0x30, 0, 0, 0, 0, 1, b'c'],
        ),
        (15, 0, &[]),
        (19, 2, &[]),
        (20, 1, &[]),
        (32, 1, &[]),
        (37, 0, &[]),
        (42, 0, &[]),
    ];
    for (key, version, before) in before_fixed {
        provoke(*key, *version, &[before, &billions[..]].concat());
    }
    for (key, version) in [
        (3, 9),
        (3, 12),
        (15, 5),
        (19, 5),
        (20, 4),
        (32, 4),
        (37, 2),
        (42, 2),
    ] {
        provoke(key, version, &compact_billions);
    }
    assert_alive();
}

#[test]
fn hostile_bytes_leave_the_memory_of_the_process_alone() {
    if foreign().is_some() {
        return;
    }
    let server = Server::start();
    let before = server.resident_kib();
    for round in 0..200_u32 {
        let mut wire = Wire::connect(&server.address());
        wire.set_patience(Duration::from_secs(5));
        match round % 4 {
            0 => wire.send_body(3, 9, 1, &[0xff, 0xff, 0xff, 0xff, 0x0f]),
            1 => wire.send_body(3, 1, 1, &[0x7f, 0xff, 0xff, 0xff]),
            2 => drop(wire.send_raw(&(90_u32 << 20).to_be_bytes())),
            _ => drop(wire.send_frame(&[0xff; 2000])),
        }
        if round % 4 != 2 {
            let _ = wire.read_frame();
        }
    }
    let after = server.resident_kib();
    assert!(
        after < before + 32 * 1024,
        "resident memory grew from {before} to {after} KiB"
    );
    let mut wire = Wire::connect(&server.address());
    assert_eq!(wire.call(3, &api_versions()).error_code, 0);
}
