//! Requests that no client library sends, and what a broker answers to them: malformed batches,
//! things named twice, clients that know more than the log.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic, ForgottenTopic};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::{
    BrokerId, DeleteRecordsRequest, FetchRequest, FetchResponse, ListOffsetsRequest,
    MetadataResponse,
};
use kafka_protocol::protocol::Decodable;
use protocol_tests::batch::Batch;
use protocol_tests::calls::*;
use protocol_tests::wire::Wire;

const UNKNOWN_SERVER_ERROR: i16 = -1;
const OFFSET_OUT_OF_RANGE: i16 = 1;
const CORRUPT_MESSAGE: i16 = 2;
const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const INVALID_TOPIC_EXCEPTION: i16 = 17;
const INVALID_REQUIRED_ACKS: i16 = 21;
const INVALID_REQUEST: i16 = 42;
const TRANSACTIONAL_ID_AUTHORIZATION_FAILED: i16 = 53;
const FETCH_SESSION_ID_NOT_FOUND: i16 = 70;
const FENCED_LEADER_EPOCH: i16 = 74;
const INVALID_RECORD: i16 = 87;

/// Sets bytes in a batch and puts its checksum right.
fn edited(batch: &Batch, at: usize, with: &[u8]) -> Bytes {
    let mut bytes = BytesMut::from(&batch.bytes()[..]);
    bytes[at..at + with.len()].copy_from_slice(with);
    let crc = crc32c::crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    bytes.freeze()
}

fn end_of(wire: &mut Wire, topic: &str) -> i64 {
    list_offsets(wire, topic, 0, -1).offset
}

#[test]
fn a_fault_found_on_append_names_the_log_start() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    let good = Batch::of(&["a", "b", "c"]);
    let deltas_with_gaps = edited(&good, 23, &4i32.to_be_bytes());
    let base_offset = edited(&good, 0, &100i64.to_be_bytes());
    let control = edited(&good, 21, &0x20i16.to_be_bytes());
    for bytes in [deltas_with_gaps, base_offset, control] {
        let refused = produce_bytes(&mut wire, 9, &topic, 0, bytes);
        assert_eq!(
            (refused.error_code, refused.log_start_offset),
            (INVALID_RECORD, 0)
        );
        assert_eq!((refused.base_offset, refused.log_append_time_ms), (-1, -1));
    }
    let mut damaged = BytesMut::from(&good.bytes()[..]);
    damaged[17] ^= 1;
    for (bytes, code) in [
        (damaged.freeze(), CORRUPT_MESSAGE),
        (edited(&good, 16, &[1]), INVALID_RECORD),
        (Bytes::new(), INVALID_RECORD),
    ] {
        let refused = produce_bytes(&mut wire, 9, &topic, 0, bytes);
        assert_eq!((refused.error_code, refused.log_start_offset), (code, -1));
    }
    assert_eq!(end_of(&mut wire, &topic), 0);
}

#[test]
fn bytes_behind_a_batch_that_are_no_batch_are_left_out() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    let batch = Batch::of(&["a"]).bytes();
    let cut = &batch[..batch.len() - 1];
    for rest in [&b"junk"[..], cut] {
        let sent = [&batch[..], rest].concat();
        assert_eq!(
            produce_bytes(&mut wire, 9, &topic, 0, sent.into()).error_code,
            0
        );
    }
    let twice = [&batch[..], &batch[..]].concat();
    let refused = produce_bytes(&mut wire, 9, &topic, 0, twice.into());
    assert_eq!(
        (refused.error_code, refused.log_start_offset),
        (INVALID_RECORD, -1)
    );
    let fetched = fetch(&mut wire, &topic, 0, Wanted::from(0));
    let length = fetched.records.map_or(0, |records| records.len());
    assert_eq!((length, fetched.high_watermark), (2 * batch.len(), 2));
}

#[test]
fn a_transactional_batch_without_a_transactional_id_refuses_the_whole_request() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 2, &[]);
    let transactional = Batch {
        attributes: 0x10,
        ..Batch::of(&["a"])
    };
    let mut request = produce_request(&topic, 0, -1, Batch::of(&["b"]).bytes());
    let more = produce_request(&topic, 1, -1, transactional.from_producer(77, 0, 0).bytes());
    let more = more.topic_data[0].partition_data[0].clone();
    request.topic_data[0].partition_data.push(more);
    let answer = wire.call(9, &request);
    let codes = answer.responses[0]
        .partition_responses
        .iter()
        .map(|p| p.error_code);
    let codes: Vec<i16> = codes.collect();
    assert_eq!(codes, [TRANSACTIONAL_ID_AUTHORIZATION_FAILED; 2]);
    assert_eq!(end_of(&mut wire, &topic), 0);
}

#[test]
fn a_batch_that_is_written_anew_must_be_one_that_could_be_built() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[("compression.type", "gzip")]);
    let as_sent = new_topic(&mut wire, 1, &[("retention.ms", "-1")]);
    let good = Batch::at(&[(1_000, "a")]);
    let without_epoch = good.clone().from_producer(7, -1, 0).bytes();
    let with_negative_time = edited(&good, 27, &[(-5i64).to_be_bytes(); 2].concat());
    for bytes in [without_epoch, with_negative_time] {
        let refused = produce_bytes(&mut wire, 9, &topic, 0, bytes.clone());
        assert!([INVALID_RECORD, UNKNOWN_SERVER_ERROR].contains(&refused.error_code));
        assert_eq!(
            produce_bytes(&mut wire, 9, &as_sent, 0, bytes).error_code,
            0
        );
    }
    assert_eq!(end_of(&mut wire, &topic), 0);
}

#[test]
fn acks_are_judged_behind_the_batch_and_topics_without_partitions_are_not_answered() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    let code = |wire: &mut Wire, records: Bytes| {
        let answer = wire.call(9, &produce_request(&topic, 0, 5, records));
        answer.responses[0].partition_responses[0].error_code
    };
    assert_eq!(
        code(&mut wire, Batch::of(&["a"]).bytes()),
        INVALID_REQUIRED_ACKS
    );
    assert_eq!(code(&mut wire, Bytes::from_static(b"xx")), INVALID_RECORD);
    let mut empty = produce_request(&topic, 0, -1, Bytes::new());
    empty.topic_data[0].partition_data.clear();
    assert_eq!(wire.call(9, &empty).responses.len(), 0);
}

#[test]
fn a_client_that_is_ahead_of_the_log_is_told_where_it_ends() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    produce(&mut wire, &topic, 0, &Batch::of(&["a"]));
    let mut ask = |offset, last_fetched_epoch| {
        let mut request = Wanted::from(offset).request(&topic, &[0]);
        request.topics[0].partitions[0].last_fetched_epoch = last_fetched_epoch;
        wire.call(12, &request).responses[0].partitions[0].clone()
    };
    let ahead = ask(9, 0);
    assert_eq!((ahead.error_code, ahead.high_watermark), (0, 1));
    assert_eq!(
        (
            ahead.diverging_epoch.epoch,
            ahead.diverging_epoch.end_offset
        ),
        (0, 1)
    );
    let fine = ask(1, 0);
    assert_eq!((fine.error_code, fine.diverging_epoch.epoch), (0, -1));
    assert_eq!(ask(0, 5).error_code, OFFSET_OUT_OF_RANGE);
    assert_eq!(ask(9, -1).error_code, OFFSET_OUT_OF_RANGE);
}

#[test]
fn unknown_partitions_do_not_end_a_wait_and_are_told_at_its_end() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    let wanted = Wanted {
        max_wait_ms: 700,
        min_bytes: 1,
        ..Wanted::from(0)
    };
    let start = Instant::now();
    let answer = wire.call(11, &wanted.request(&topic, &[0, 7]));
    assert!(
        start.elapsed() >= Duration::from_millis(650),
        "it waited for the other"
    );
    let mut codes: Vec<_> = answer.responses[0]
        .partitions
        .iter()
        .map(|p| {
            (
                p.partition_index,
                p.error_code,
                p.aborted_transactions.is_some(),
            )
        })
        .collect();
    codes.sort_unstable();
    assert_eq!(
        codes,
        [(0, 0, false), (7, UNKNOWN_TOPIC_OR_PARTITION, true)]
    );
    let long = Wanted {
        max_wait_ms: 20_000,
        ..wanted
    };
    let start = Instant::now();
    wire.call(11, &long.request(&topic, &[7]));
    wire.call(
        11,
        &Wanted {
            min_bytes: 1 << 20,
            max_bytes: 0,
            ..long
        }
        .request(&topic, &[0]),
    );
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "there was nothing to wait for"
    );
}

fn session_step(
    id: i32,
    epoch: i32,
    topic: &str,
    named: &[i32],
    forgotten: &[i32],
) -> FetchRequest {
    let partition = |p: &i32| {
        FetchPartition::default()
            .with_partition(*p)
            .with_current_leader_epoch(-1)
            .with_partition_max_bytes(1 << 20)
    };
    let topics = FetchTopic::default()
        .with_topic(topic_name(topic))
        .with_partitions(named.iter().map(partition).collect());
    let forget = ForgottenTopic::default()
        .with_topic(topic_name(topic))
        .with_partitions(forgotten.to_vec());
    FetchRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_max_bytes(1 << 20)
        .with_session_id(id)
        .with_session_epoch(epoch)
        .with_topics((!named.is_empty()).then_some(topics).into_iter().collect())
        .with_forgotten_topics_data(
            (!forgotten.is_empty())
                .then_some(forget)
                .into_iter()
                .collect(),
        )
}

fn named(answer: &FetchResponse) -> Vec<i32> {
    let partitions = answer.responses.iter().flat_map(|topic| &topic.partitions);
    partitions.map(|p| p.partition_index).collect()
}

#[test]
fn a_session_of_which_everything_is_forgotten_ends() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 2, &[]);
    let opened = wire.call(11, &session_step(0, 0, &topic, &[0, 1, 0], &[]));
    assert_eq!(named(&opened), [0, 1], "named twice, answered once");
    let id = opened.session_id;
    let less = wire.call(11, &session_step(id, 1, &topic, &[], &[0]));
    assert_eq!((less.session_id, named(&less).len()), (id, 0));
    let none = wire.call(11, &session_step(id, 2, &topic, &[], &[1]));
    assert_eq!((none.error_code, none.session_id), (0, 0));
    let gone = wire.call(11, &session_step(id, 3, &topic, &[0], &[]));
    assert_eq!(gone.error_code, FETCH_SESSION_ID_NOT_FOUND);
}

#[test]
fn list_offsets_refuses_what_is_named_twice_once() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 2, &[]);
    let partition = |index, epoch| {
        ListOffsetsPartition::default()
            .with_partition_index(index)
            .with_current_leader_epoch(epoch)
            .with_timestamp(-1)
    };
    let of = |partitions| {
        ListOffsetsTopic::default()
            .with_name(topic_name(&topic))
            .with_partitions(partitions)
    };
    let mut ask = |topics, isolation| {
        let request = ListOffsetsRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_isolation_level(isolation)
            .with_topics(topics);
        let answer = wire.call(7, &request);
        assert_eq!(answer.topics.len(), 1, "a topic is answered in one place");
        let mut found: Vec<_> = answer.topics[0]
            .partitions
            .iter()
            .map(|p| (p.partition_index, p.error_code))
            .collect();
        found.sort_unstable();
        found
    };
    let twice = vec![
        of(vec![partition(0, -1), partition(1, -1)]),
        of(vec![partition(0, -1)]),
    ];
    assert_eq!(ask(twice, 0), [(0, INVALID_REQUEST), (1, 0)]);
    assert_eq!(
        ask(vec![of(vec![partition(0, -2)])], 0),
        [(0, FENCED_LEADER_EPOCH)]
    );
    assert_ne!(
        ask(vec![of(vec![partition(0, -1)])], 9),
        [(0, 0)],
        "no such isolation level"
    );
}

#[test]
fn the_newest_record_is_one_that_can_be_read() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[("retention.ms", "-1")]);
    produce(
        &mut wire,
        &topic,
        0,
        &Batch::at(&[(5_000, "a"), (3_000, "b"), (4_000, "c")]),
    );
    produce(
        &mut wire,
        &topic,
        0,
        &Batch::at(&[(1_000, "d"), (2_000, "e")]),
    );
    let newest = |wire: &mut Wire| {
        let found = list_offsets(wire, &topic, 0, -3);
        (found.offset, found.timestamp)
    };
    assert_eq!(newest(&mut wire), (0, 5_000));
    let partition = |offset| DeleteRecordsPartition::default().with_offset(offset);
    let topics = DeleteRecordsTopic::default()
        .with_name(topic_name(&topic))
        .with_partitions(vec![partition(1), partition(3)]);
    let request = DeleteRecordsRequest::default()
        .with_timeout_ms(5_000)
        .with_topics(vec![topics]);
    let answer = wire.call(2, &request);
    let moved: Vec<_> = answer.topics[0]
        .partitions
        .iter()
        .map(|p| (p.error_code, p.low_watermark))
        .collect();
    assert_eq!(moved, [(0, 3)], "the last of two counts");
    if protocol_tests::foreign().is_none() {
        // Kafka finds records that are still in its files.
        assert_eq!(newest(&mut wire), (4, 2_000));
    }
}

#[test]
fn every_negative_length_is_null() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    wire.send_body(3, 1, 99, &(-5i32).to_be_bytes());
    let mut answer = wire.read_frame().expect("an answer").slice(4..);
    let metadata = MetadataResponse::decode(&mut answer, 1).expect("metadata");
    let mut names = metadata.topics.iter().filter_map(|t| t.name.as_ref());
    assert!(
        names.any(|name| name.as_str() == topic),
        "null asks for all topics"
    );
}

#[test]
fn text_that_is_not_utf_8_is_taken_as_some_name() {
    let mut wire = Wire::open();
    // Metadata 1 for one topic whose name is a single broken byte.
    let mut body = vec![0, 0, 0, 1, 0, 1];
    body.push(0xff);
    wire.send_body(3, 1, 98, &body);
    let mut answer = wire.read_frame().expect("an answer").slice(4..);
    let metadata = MetadataResponse::decode(&mut answer, 1).expect("metadata");
    assert_eq!(metadata.topics[0].error_code, INVALID_TOPIC_EXCEPTION);
}
