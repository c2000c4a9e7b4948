//! Configs do what docs/compatibility.md says of them: those that are honoured and have no test
//! with the feature they belong to.

use std::time::{Duration, Instant};

use kafka_protocol::messages::{FetchRequest, MetadataRequest};
use protocol_tests::batch::{Batch, headers};
use protocol_tests::calls::*;
use protocol_tests::groups::*;
use protocol_tests::wire::Wire;
use protocol_tests::{Server, client, foreign, unique, wait_for};

use super::configs::change;

const MESSAGE_TOO_LARGE: i16 = 10;
const OFFSET_METADATA_TOO_LARGE: i16 = 12;
const INVALID_SESSION_TIMEOUT: i16 = 26;
const INVALID_PARTITIONS: i16 = 37;
const TOPIC_DELETION_DISABLED: i16 = 73;
const GROUP_MAX_SIZE_REACHED: i16 = 81;
const INVALID_RECORD: i16 = 87;

fn stored_codec(wire: &mut Wire, topic: &str) -> i16 {
    let fetched = fetch(wire, topic, 0, Wanted::from(0));
    headers(&fetched.records.expect("records"))[0].attributes & 7
}

fn partitions(wire: &mut Wire, topic: &str) -> usize {
    describe_topic(wire, topic).partitions.len()
}

#[test]
fn topics_follow_the_brokers_settings() {
    if foreign().is_some() {
        return;
    }
    let server = Server::with_settings(&[
        "auto.create.topics.enable=false",
        "delete.topic.enable=false",
        "num.partitions=3",
        "default.replication.factor=2",
        "max.partitions.per.topic=5",
        "broker.rack=rack-7",
        "node.id=9",
        "message.max.bytes=5000",
        "log.message.timestamp.type=LogAppendTime",
        "compression.type=gzip",
        "log.cleanup.policy=compact",
    ]);
    let mut wire = Wire::connect(&server.address());
    let metadata = wire.call(9, &MetadataRequest::default().with_topics(Some(vec![])));
    let node = &metadata.brokers[0];
    assert_eq!((node.node_id.0, node.rack.as_deref()), (9, Some("rack-7")));

    let missing = unique("missing");
    let topic = kafka_protocol::messages::metadata_request::MetadataRequestTopic::default()
        .with_name(Some(topic_name(&missing)));
    let request = MetadataRequest::default()
        .with_topics(Some(vec![topic]))
        .with_allow_auto_topic_creation(true);
    assert_eq!(
        wire.call(9, &request).topics[0].error_code,
        3,
        "not made by asking"
    );
    assert_eq!(describe_topic(&mut wire, &missing).error_code, 3);

    assert_eq!(
        create_topic(&mut wire, &unique("wide"), 6, &[]),
        INVALID_PARTITIONS
    );
    let topic = new_topic(&mut wire, 3, &[]);
    let defaults = unique("defaults");
    assert_eq!(create_topic(&mut wire, &defaults, -1, &[]), 0);
    assert_eq!(partitions(&mut wire, &defaults), 3);
    assert_eq!(delete_topic(&mut wire, &topic), TOPIC_DELETION_DISABLED);

    let mut batch = Batch::of(&[&"v".repeat(3000)]);
    assert_eq!(
        produce(&mut wire, &topic, 0, &batch).error_code,
        INVALID_RECORD,
        "no key"
    );
    batch.records[0].1 = Some(b"key".to_vec());
    let stored = produce(&mut wire, &topic, 0, &batch);
    assert_eq!(stored.error_code, 0);
    assert!(stored.log_append_time_ms > 0);
    assert_eq!(stored_codec(&mut wire, &topic), 1, "gzip");
    batch.records[0].2 = vec![b'v'; 6000];
    assert_eq!(
        produce(&mut wire, &topic, 0, &batch).error_code,
        MESSAGE_TOO_LARGE
    );

    // A change at run time reaches topics that say nothing themselves.
    assert_eq!(
        change(&mut wire, (4, ""), 0, "message.max.bytes", "9000"),
        0
    );
    assert_eq!(produce(&mut wire, &topic, 0, &batch).error_code, 0);
    assert_eq!(
        change(&mut wire, (4, "9"), 0, "message.max.bytes", "100"),
        0
    );
    assert_eq!(
        produce(&mut wire, &topic, 0, &batch).error_code,
        MESSAGE_TOO_LARGE
    );
    assert_eq!(
        change(&mut wire, (2, &topic), 0, "max.message.bytes", "8000"),
        0
    );
    assert_eq!(
        produce(&mut wire, &topic, 0, &batch).error_code,
        0,
        "the topic's own goes first"
    );
    assert_eq!(
        change(&mut wire, (4, "9"), 0, "listeners", "PLAINTEXT://:1"),
        42
    );
}

#[test]
fn retention_follows_the_broker_where_the_topic_says_nothing() {
    if foreign().is_some() {
        return;
    }
    let server = Server::with_settings(&[
        "log.retention.check.interval.ms=50",
        "log.retention.minutes=-1",
        "log.retention.hours=1",
    ]);
    let mut wire = Wire::connect(&server.address());
    let topic = new_topic(&mut wire, 1, &[]);
    let old = Batch::at(&[(1_000, "from 1970")]);
    let kept = new_topic(&mut wire, 1, &[("retention.ms", "-1")]);
    for name in [&topic, &kept] {
        assert_eq!(produce(&mut wire, name, 0, &old).error_code, 0);
    }
    let start = |wire: &mut Wire, topic: &str| list_offsets(wire, topic, 0, -2).offset;
    assert_eq!(
        start(&mut wire, &topic),
        0,
        "minutes go before hours, and -1 is no limit"
    );
    assert_eq!(change(&mut wire, (4, ""), 0, "log.retention.ms", "1000"), 0);
    wait_for("milliseconds go first", || {
        (start(&mut wire, &topic) == 1).then_some(())
    });
    assert_eq!(
        start(&mut wire, &kept),
        0,
        "the topic's own goes before all"
    );
    assert_eq!(change(&mut wire, (4, ""), 0, "log.retention.bytes", "1"), 0);
    assert_eq!(
        produce(&mut wire, &kept, 0, &Batch::of(&["next"])).error_code,
        0
    );
    wait_for("by size, too", || {
        (start(&mut wire, &kept) >= 1).then_some(())
    });
}

#[test]
fn every_codec_and_level_of_a_topic_is_used() {
    if foreign().is_some() {
        return;
    }
    let server = Server::start();
    let (mut wire, address) = (Wire::connect(&server.address()), server.address());
    let value: String = (0..6_000).map(|i| format!("{:x}", i * i % 977)).collect();
    let mut sizes = Vec::new();
    for (codec, id, level) in [
        ("uncompressed", 0, None),
        ("gzip", 1, Some(("compression.gzip.level", "1"))),
        ("gzip", 1, Some(("compression.gzip.level", "9"))),
        ("snappy", 2, None),
        ("lz4", 3, Some(("compression.lz4.level", "1"))),
        ("lz4", 3, Some(("compression.lz4.level", "12"))),
        ("zstd", 4, Some(("compression.zstd.level", "-50"))),
        ("zstd", 4, Some(("compression.zstd.level", "19"))),
    ] {
        let mut configs = vec![("compression.type", codec)];
        configs.extend(level);
        let topic = new_topic(&mut wire, 1, &configs);
        assert_eq!(
            produce(&mut wire, &topic, 0, &Batch::of(&[&value])).error_code,
            0
        );
        assert_eq!(stored_codec(&mut wire, &topic), id, "{codec}");
        let fetched = fetch(&mut wire, &topic, 0, Wanted::from(0));
        sizes.push((codec, fetched.records.expect("records").len()));
        let seen = client::read_partition(&address, &topic, 0, 0, 1);
        assert_eq!(seen[0].value, value.as_bytes(), "{codec}");
    }
    for pair in sizes.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
        assert!(
            pair[0].1 > pair[1].1,
            "a higher level packs closer: {sizes:?}"
        );
    }
}

#[test]
fn groups_keep_to_the_brokers_limits() {
    if foreign().is_some() {
        return;
    }
    let server = Server::with_settings(&[
        "group.max.size=1",
        "group.min.session.timeout.ms=500",
        "group.max.session.timeout.ms=20000",
        "group.initial.rebalance.delay.ms=0",
        "offset.metadata.max.bytes=3",
        "offsets.topic.num.partitions=2",
    ]);
    let mut wire = Wire::connect(&server.address());
    let topic = new_topic(&mut wire, 1, &[]);
    let group = unique("group");
    for (timeout, expected) in [
        (499, INVALID_SESSION_TIMEOUT),
        (20_001, INVALID_SESSION_TIMEOUT),
    ] {
        let request = join_request(&group, "", None).with_session_timeout_ms(timeout);
        assert_eq!(
            with_coordinator(|| wire.call(5, &request).error_code),
            expected
        );
    }
    let begun = Instant::now();
    let joined = settle(&mut wire, &group, Some("first"));
    assert!(begun.elapsed() < Duration::from_secs(2), "no initial delay");
    let mut other = Wire::connect(&server.address());
    let full = other
        .call(5, &join_request(&group, "", Some("second")))
        .error_code;
    assert_eq!(full, GROUP_MAX_SIZE_REACHED);
    let me = joined.member_id.to_string();
    let who = (joined.generation_id, me.as_str());
    let code = commit(&mut wire, &group, who, &topic, 1);
    assert_eq!(
        code, OFFSET_METADATA_TOO_LARGE,
        "the text beside an offset has four bytes"
    );
    assert_eq!(partitions(&mut wire, "__consumer_offsets"), 2);
}

#[test]
fn connections_and_fetches_keep_to_the_brokers_limits() {
    if foreign().is_some() {
        return;
    }
    let server = Server::with_settings(&[
        "connections.max.idle.ms=1000",
        "socket.request.max.bytes=100000",
        "fetch.max.bytes=30000",
        "fetch.max.wait.limit.ms=300",
        "max.incremental.fetch.session.cache.slots=0",
    ]);
    let mut wire = Wire::connect(&server.address());
    let topic = new_topic(&mut wire, 3, &[]);
    for partition in 0..3 {
        let batch = Batch::of(&[&"v".repeat(20_000)]);
        assert_eq!(produce(&mut wire, &topic, partition, &batch).error_code, 0);
    }
    let answer = wire.call(11, &Wanted::from(0).request(&topic, &[0, 1, 2]));
    let bytes: usize = answer.responses[0]
        .partitions
        .iter()
        .map(|partition| {
            partition
                .records
                .as_ref()
                .map_or(0, |records| records.len())
        })
        .sum();
    assert!(
        (20_000..=30_000).contains(&bytes),
        "{bytes} bytes in one answer"
    );
    let begun = Instant::now();
    let end = Wanted {
        max_wait_ms: 30_000,
        min_bytes: 1,
        ..Wanted::from(1)
    };
    assert_eq!(fetch(&mut wire, &topic, 0, end).error_code, 0);
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "waited {:?}",
        begun.elapsed()
    );
    let session: FetchRequest = Wanted::from(0).request(&topic, &[0]).with_session_epoch(0);
    assert_eq!(
        wire.call(11, &session).session_id,
        0,
        "no place for a session"
    );

    let mut long = Wire::connect(&server.address());
    long.send_raw(&100_001_u32.to_be_bytes()).expect("send");
    assert!(long.is_closed(), "a frame over socket.request.max.bytes");
    let begun = Instant::now();
    assert!(wire.is_closed(), "idle");
    assert!(
        (500..20_000).contains(&begun.elapsed().as_millis()),
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn a_batch_that_grows_too_large_when_opened_is_refused() {
    let mut wire = Wire::open();
    let source = new_topic(&mut wire, 1, &[("compression.type", "gzip")]);
    let batch = Batch::of(&[&"v".repeat(100_000)]);
    assert_eq!(produce(&mut wire, &source, 0, &batch).error_code, 0);
    let packed = fetch(&mut wire, &source, 0, Wanted::from(0))
        .records
        .expect("records");
    assert!(packed.len() < 5_000);
    for (limit, expected) in [("200000", 0), ("50000", INVALID_RECORD)] {
        let topic = new_topic(&mut wire, 1, &[("max.decompressed.message.bytes", limit)]);
        let answer = produce_bytes(&mut wire, 9, &topic, 0, packed.clone());
        assert_eq!(
            answer.error_code, expected,
            "max.decompressed.message.bytes={limit}"
        );
    }
}

#[test]
fn only_what_is_stored_counts_as_produced() {
    if foreign().is_some() {
        return;
    }
    let server = Server::start();
    let mut wire = Wire::connect(&server.address());
    let topic = new_topic(&mut wire, 1, &[]);
    let batch = |sequence| Batch::of(&["a", "b"]).from_producer(77, 0, sequence);
    for (sequence, expected) in [(0, 0), (2, 0), (0, 0), (9, 45), (9, 45)] {
        assert_eq!(
            produce(&mut wire, &topic, 0, &batch(sequence)).error_code,
            expected
        );
    }
    for (name, expected) in [
        ("produced_batches_total", 2.0),
        ("produced_records_total", 4.0),
        ("duplicate_batches_total", 1.0),
        ("refused_batches_total", 2.0),
    ] {
        assert_eq!(server.metric(name), expected, "{name}");
    }
}

#[test]
fn an_idle_producer_is_forgotten_after_the_time_set_at_run_time() {
    if foreign().is_some() {
        return;
    }
    let mut server = Server::start();
    let mut wire = Wire::connect(&server.address());
    let topic = new_topic(&mut wire, 1, &[]);
    let batch = Batch::of(&["once"]).from_producer(77, 0, 0);
    assert_eq!(produce(&mut wire, &topic, 0, &batch).base_offset, 0);
    assert!(server.terminate());
    server.start_again();
    let mut wire = Wire::connect(&server.address());
    assert_eq!(
        produce(&mut wire, &topic, 0, &batch).base_offset,
        0,
        "remembered"
    );
    assert_eq!(
        change(&mut wire, (4, ""), 0, "producer.id.expiration.ms", "1"),
        0
    );
    std::thread::sleep(Duration::from_millis(20));
    assert!(server.terminate());
    server.start_again();
    let mut wire = Wire::connect(&server.address());
    assert_eq!(
        produce(&mut wire, &topic, 0, &batch).base_offset,
        1,
        "forgotten, and so new"
    );
}
