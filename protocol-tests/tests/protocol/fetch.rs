//! Fetch: long poll, limits, offsets out of range, sessions, topic ids.

use std::time::{Duration, Instant};

use kafka_protocol::messages::FetchRequest;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use protocol_tests::batch::{Batch, headers, now_ms};
use protocol_tests::calls::*;
use protocol_tests::wire::Wire;

const OFFSET_OUT_OF_RANGE: i16 = 1;
const UNKNOWN_TOPIC_ID: i16 = 100;
const FETCH_SESSION_ID_NOT_FOUND: i16 = 70;
const INVALID_FETCH_SESSION_EPOCH: i16 = 71;

fn length(records: &Option<bytes::Bytes>) -> usize {
    records.as_ref().map_or(0, |records| records.len())
}

#[test]
fn a_fetch_at_the_end_waits_its_time_and_no_longer() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    let wanted = Wanted {
        max_wait_ms: 1000,
        min_bytes: 1,
        ..Wanted::from(0)
    };
    let start = Instant::now();
    let fetched = fetch(&mut wire, &topic, 0, wanted);
    let waited = start.elapsed();
    assert_eq!((fetched.error_code, length(&fetched.records)), (0, 0));
    assert!(waited >= Duration::from_millis(950), "it waits: {waited:?}");
    assert!(
        waited < Duration::from_millis(3000),
        "but not much longer: {waited:?}"
    );
}

#[test]
fn a_waiting_fetch_is_answered_as_soon_as_there_is_a_record() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    let wanted = Wanted {
        max_wait_ms: 20_000,
        min_bytes: 1,
        ..Wanted::from(0)
    };
    let start = Instant::now();
    let pending = send_fetch(&mut wire, &topic, 0, wanted);
    std::thread::sleep(Duration::from_millis(200));
    produce(&mut Wire::open(), &topic, 0, &Batch::of(&["news"]));
    let fetched = receive_fetch(&mut wire, pending);
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "long before its time is over"
    );
    assert_eq!(headers(&fetched.records.expect("records")).len(), 1);
    assert_eq!(fetched.high_watermark, 1);
}

#[test]
fn a_fetch_of_more_than_there_is_waits_and_then_takes_what_is_there() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    produce(&mut wire, &topic, 0, &Batch::of(&["little"]));
    let wanted = Wanted {
        max_wait_ms: 700,
        min_bytes: 1 << 20,
        ..Wanted::from(0)
    };
    let start = Instant::now();
    let fetched = fetch(&mut wire, &topic, 0, wanted);
    assert!(start.elapsed() >= Duration::from_millis(650));
    assert_eq!(headers(&fetched.records.expect("records")).len(), 1);
}

#[test]
fn the_first_batch_comes_whole_whatever_the_limits() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 2, &[]);
    let large = Batch::of(&[&"x".repeat(500_000)]);
    for partition in 0..2 {
        assert_eq!(produce(&mut wire, &topic, partition, &large).error_code, 0);
    }
    let wanted = Wanted {
        max_bytes: 1,
        partition_max_bytes: 1,
        ..Wanted::from(0)
    };
    let answer = wire.call(11, &wanted.request(&topic, &[0, 1]));
    let partitions = &answer.responses[0].partitions;
    assert_eq!(partitions.len(), 2);
    let first = partitions[0].records.as_ref().expect("records");
    assert_eq!(headers(first).len(), 1, "a whole batch of 500 KB");
    assert_eq!(
        length(&partitions[1].records),
        0,
        "and nothing of the other partition"
    );
}

#[test]
fn limits_of_a_partition_and_of_the_answer_hold() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 3, &[]);
    let batch = Batch::of(&[&"x".repeat(10_000)]);
    for partition in 0..3 {
        for _ in 0..10 {
            assert_eq!(produce(&mut wire, &topic, partition, &batch).error_code, 0);
        }
    }
    let wanted = Wanted {
        partition_max_bytes: 35_000,
        ..Wanted::from(0)
    };
    let answer = wire.call(11, &wanted.request(&topic, &[0, 1, 2]));
    for partition in &answer.responses[0].partitions {
        let size = length(&partition.records);
        assert!(
            size > 20_000 && size <= 35_000,
            "{size} bytes of one partition"
        );
    }
    let wanted = Wanted {
        max_bytes: 50_000,
        partition_max_bytes: 35_000,
        ..Wanted::from(0)
    };
    let answer = wire.call(11, &wanted.request(&topic, &[0, 1, 2]));
    let sizes = answer.responses[0]
        .partitions
        .iter()
        .map(|p| length(&p.records));
    let total: usize = sizes.sum();
    assert!(
        total > 20_000 && total <= 50_000,
        "{total} bytes in one answer"
    );
}

#[test]
fn an_offset_out_of_range_says_so_and_keeps_the_connection() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    produce(&mut wire, &topic, 0, &Batch::of(&["a", "b", "c"]));
    for offset in [4, 1_000_000, -1, -7] {
        let fetched = fetch(&mut wire, &topic, 0, Wanted::from(offset));
        assert_eq!(fetched.error_code, OFFSET_OUT_OF_RANGE, "offset {offset}");
        let offsets = (
            fetched.high_watermark,
            fetched.last_stable_offset,
            fetched.log_start_offset,
        );
        assert_eq!(offsets, (-1, -1, -1), "offset {offset}");
    }
    let at_the_end = fetch(&mut wire, &topic, 0, Wanted::from(3));
    assert_eq!((at_the_end.error_code, at_the_end.high_watermark), (0, 3));
}

#[test]
fn an_offset_inside_a_batch_brings_the_batch_that_holds_it() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    for _ in 0..3 {
        produce(&mut wire, &topic, 0, &Batch::of(&["a", "b", "c", "d"]));
    }
    let fetched = fetch(&mut wire, &topic, 0, Wanted::from(6));
    let batches = headers(&fetched.records.expect("records"));
    assert_eq!((batches[0].base_offset, batches[0].last_offset), (4, 7));
    assert_eq!(batches.len(), 2);
}

#[test]
fn log_append_time_replaces_the_producers_times() {
    let mut wire = Wire::open();
    let created = new_topic(&mut wire, 1, &[]);
    let appended = new_topic(&mut wire, 1, &[("message.timestamp.type", "LogAppendTime")]);
    let batch = Batch::at(&[(1000, "old"), (2000, "older")]);
    let answer = produce(&mut wire, &created, 0, &batch);
    assert_eq!((answer.error_code, answer.log_append_time_ms), (0, -1));
    let before = now_ms();
    let answer = produce(&mut wire, &appended, 0, &batch);
    assert_eq!(answer.error_code, 0);
    assert!((before - 1000..=now_ms() + 1000).contains(&answer.log_append_time_ms));
    let fetched = fetch(&mut wire, &appended, 0, Wanted::from(0))
        .records
        .expect("records");
    let header = headers(&fetched)[0];
    assert!(header.intact, "the checksum covers the new time");
    assert_eq!(header.attributes & 8, 8, "the timestamp type bit");
    assert_eq!(header.max_timestamp, answer.log_append_time_ms);
    let fetched = fetch(&mut wire, &created, 0, Wanted::from(0))
        .records
        .expect("records");
    assert_eq!(headers(&fetched)[0].max_timestamp, 2000);
}

/// A Fetch of one partition by topic id, as a step of a session.
fn session_request(
    id: Option<uuid::Uuid>,
    session_id: i32,
    epoch: i32,
    offset: i64,
) -> FetchRequest {
    let topic = |id| {
        let partition = FetchPartition::default()
            .with_partition(0)
            .with_current_leader_epoch(-1)
            .with_fetch_offset(offset)
            .with_partition_max_bytes(1 << 20);
        FetchTopic::default()
            .with_topic_id(id)
            .with_partitions(vec![partition])
    };
    FetchRequest::default()
        .with_max_wait_ms(0)
        .with_min_bytes(0)
        .with_max_bytes(1 << 20)
        .with_session_id(session_id)
        .with_session_epoch(epoch)
        .with_topics(id.map(topic).into_iter().collect())
}

#[test]
fn a_session_sends_only_what_changed() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    let id = describe_topic(&mut wire, &topic).topic_id;
    let full = wire.call(16, &session_request(Some(id), 0, 0, 0));
    assert_eq!(full.error_code, 0);
    assert_eq!(
        full.responses.len(),
        1,
        "the first answer names every partition"
    );
    let session = full.session_id;
    assert!(session > 0, "a session was made");
    let quiet = wire.call(16, &session_request(None, session, 1, 0));
    assert_eq!(
        (quiet.error_code, quiet.responses.len()),
        (0, 0),
        "nothing changed"
    );
    produce(&mut wire, &topic, 0, &Batch::of(&["news"]));
    let news = wire.call(16, &session_request(None, session, 2, 0));
    assert_eq!(news.responses.len(), 1);
    assert!(length(&news.responses[0].partitions[0].records) > 0);
    let skipped = wire.call(16, &session_request(None, session, 9, 0));
    assert_eq!(skipped.error_code, INVALID_FETCH_SESSION_EPOCH);
    let unknown = wire.call(16, &session_request(None, session ^ 1, 1, 0));
    assert_eq!(unknown.error_code, FETCH_SESSION_ID_NOT_FOUND);
}

#[test]
fn an_unknown_topic_id_is_named_per_partition() {
    let mut wire = Wire::open();
    let answer = wire.call(16, &session_request(Some(uuid::Uuid::new_v4()), 0, -1, 0));
    let code = match answer.error_code {
        0 => answer.responses[0].partitions[0].error_code,
        code => code,
    };
    assert_eq!(code, UNKNOWN_TOPIC_ID);
}
