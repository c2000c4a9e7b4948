//! A small store with everything in it that a data directory can hold, and the check that it is
//! all still there.
//!
//! The folders in `golden` beside this crate are such directories, each written by the first release
//! that had its formats; every later one has to read them.

use std::fs;
use std::path::Path;

use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::{
    DescribeConfigsRequest, IncrementalAlterConfigsRequest, OffsetCommitRequest, OffsetFetchRequest,
};
use serde_json::Value;

use crate::batch::Batch;
use crate::calls::*;
use crate::wire::Wire;
use crate::{Server, admin, client, wait_for};

/// What a server needs to be told so that time does not change an old store.
pub const TIMELESS: &[&str] = &[
    "shard.count=2",
    "offsets.topic.num.partitions=4",
    "offsets.retention.minutes=2000000000",
    "producer.id.expiration.ms=2000000000",
    "log.retention.ms=-1",
];

/// A topic's name, partitions and configs.
type Described = (&'static str, i32, &'static [(&'static str, &'static str)]);

/// Records of each partition and each writing.
const RECORDS: i64 = 20;
/// Partitions and reshapes of a topic without records: so many that the oldest layout epochs go to
/// a lineage file.
const WIDE: (i32, i64) = (5000, 17);
const CODECS: [&str; 5] = ["none", "gzip", "snappy", "lz4", "zstd"];
const GROUP: &str = "golden-group";
/// Name, partitions and configs of each topic.
const TOPICS: [Described; 4] = [
    (
        "orders",
        6,
        &[("retention.ms", "-1"), ("max.message.bytes", "70000")],
    ),
    (
        "stamped",
        1,
        &[
            ("retention.ms", "-1"),
            ("message.timestamp.type", "LogAppendTime"),
        ],
    ),
    ("grown", 4, &[("retention.ms", "-1")]),
    (
        "codecs",
        5,
        &[("retention.ms", "-1"), ("segment.bytes", "1048576")],
    ),
];

/// Partitions of a topic while writing number `part` is under way: one grows in between.
fn partitions(topic: &str, part: i64) -> i32 {
    match (topic, part) {
        ("grown", 0) => 2,
        ("grown", _) => 4,
        _ => TOPICS.iter().find(|t| t.0 == topic).map_or(0, |t| t.1),
    }
}

fn value(topic: &str, partition: i32, offset: i64) -> String {
    format!("{topic}/{partition}/{offset} {}", "golden ".repeat(20))
}

/// Fills an empty server in three parts, with two stops between them, and kills it in the end: so
/// there are segment files, two checkpoints and a journal that is needed.
pub fn fill(server: &mut Server) {
    fill_and(server, |_| ());
}

/// As [`fill`]; before the last part the server gets a second directory, and shards move there and
/// one of them back.
pub fn fill_with_moves(server: &mut Server) {
    fill_and(server, |server| {
        server.kill();
        server.set("log.dirs=data,second");
        server.start_again();
        for (topic, to) in [
            ("stamped", "second"),
            ("codecs", "second"),
            ("codecs", "data"),
        ] {
            replace(server, topic, 1, &format!(r#","to":"{to}""#));
        }
    });
}

fn fill_and(server: &mut Server, more: fn(&mut Server)) {
    for part in 0..3 {
        if part == 2 {
            more(server);
        }
        let mut wire = Wire::connect(&server.address());
        match part {
            0 => create(&mut wire),
            1 => change(&mut wire),
            _ => {}
        }
        reshape(server, part);
        write(&mut wire, &server.address(), part);
        if part == 1 {
            assert_eq!(delete_records(&mut wire, "orders", 1, 7).0, 0);
        }
        commit(&mut wire, part);
        drop(wire);
        if part < 2 {
            assert!(server.terminate(), "the server stops well");
            server.start_again();
        }
    }
    // The journal marks its last entries as synced a moment after it fell idle.
    std::thread::sleep(std::time::Duration::from_millis(500));
    server.kill();
}

fn create(wire: &mut Wire) {
    assert_eq!(create_topic(wire, "deleted", 3, &[]), 0);
    await_topic(wire, "deleted", 3);
    let batch = Batch::of(&["this goes"]);
    assert_eq!(produce(wire, "deleted", 2, &batch).error_code, 0);
    assert_eq!(create_topic(wire, "wide", WIDE.0, &[]), 0);
    await_topic(wire, "wide", WIDE.0);
    for (topic, _, configs) in TOPICS {
        let count = partitions(topic, 0);
        assert_eq!(create_topic(wire, topic, count, configs), 0, "{topic}");
        await_topic(wire, topic, count);
    }
}

fn change(wire: &mut Wire) {
    assert_eq!(delete_topic(wire, "deleted"), 0);
    assert_eq!(grow_topic(wire, "grown", 4), 0);
    await_topic(wire, "grown", 4);
    set_config(wire, 4, "", "log.retention.bytes", "123456789");
    set_config(wire, 2, "stamped", "max.message.bytes", "60000");
}

/// Splits and merges shards: of one topic more than the checkpoint keeps.
fn reshape(server: &Server, part: i64) {
    match part {
        0 => {}
        1 => {
            replace(server, "orders", 2, "");
            (0..WIDE.1).for_each(|n| match n % 2 {
                0 => replace(server, "wide", 2, ""),
                _ => replace(server, "wide", 1, r#","at":"even:2""#),
            });
        }
        _ => {
            replace(server, "orders", 1, r#","at":"even:3""#);
            replace(server, "orders", 1, r#","at":"middle""#);
        }
    }
}

/// Replaces the first open shards of a topic.
fn replace(server: &Server, topic: &str, count: usize, how: &str) {
    let view = view(server, &format!("/topics/{topic}/shards"));
    let shards = view["shards"].as_array().expect("shards").iter();
    let ids: Vec<String> = shards.take(count).map(|s| s["id"].to_string()).collect();
    let body = format!(r#"{{"shards":[{}]{how}}}"#, ids.join(","));
    let token = fs::read_to_string(server.data().join("admin.token")).expect("a token");
    let path = format!("/topics/{topic}/reshape");
    let answer = admin::post(&server.admin_address(), &path, token.trim(), &body);
    let (code, text) = answer.expect("an answer");
    assert_eq!(code, 200, "{body}: {text}");
}

/// What the admin port shows, once the server is ready.
fn view(server: &Server, path: &str) -> Value {
    wait_for("the admin port shows shards", || {
        let (code, text) = server.http(path);
        (code == 200).then(|| serde_json::from_str(&text).expect("a view"))
    })
}

/// Checks the lineage that [`fill`] made.
pub fn check_lineage(server: &Server) {
    for (topic, epochs, starts) in [
        ("orders", 4, &[0, RECORDS, 2 * RECORDS][..]),
        ("wide", WIDE.1 + 1, &[0][..]),
    ] {
        let view = view(server, &format!("/topics/{topic}/lineage?partition=0"));
        let last = view["epochs"].as_array().and_then(|epochs| epochs.last());
        let last = last.and_then(|epoch| epoch["epoch"].as_i64());
        assert!(last >= Some(epochs), "{topic}: {last:?}");
        let links = view["chains"][0]["links"].as_array().expect("links");
        let found: Vec<i64> = links
            .iter()
            .filter_map(|link| link["start"].as_i64())
            .collect();
        assert!(found.starts_with(starts), "{topic}: {found:?}");
    }
}

fn set_config(wire: &mut Wire, kind: i8, resource: &str, key: &str, value: &str) {
    let config = AlterableConfig::default()
        .with_name(text(key))
        .with_config_operation(0)
        .with_value(Some(text(value)));
    let resource = AlterConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(resource))
        .with_configs(vec![config]);
    let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
    let answer = wire.call(1, &request).responses.remove(0);
    assert_eq!(answer.error_code, 0, "{key}: {:?}", answer.error_message);
}

fn write(wire: &mut Wire, address: &str, part: i64) {
    for (topic, ..) in TOPICS {
        for partition in 0..partitions(topic, part) {
            let from = first_of(topic, partition, part);
            let values: Vec<String> = (from..from + RECORDS)
                .map(|offset| value(topic, partition, offset))
                .collect();
            if topic == "codecs" {
                let codec = CODECS[partition as usize];
                let producer = client::producer(address, &[("compression.codec", codec)]);
                let values: Vec<Vec<u8>> = values.into_iter().map(String::into_bytes).collect();
                let fates = client::produce_values(&producer, topic, partition, &values);
                assert!(fates.iter().all(Result::is_ok), "{fates:?}");
                continue;
            }
            let parts = if partition == 0 { 2 } else { 1 };
            for (n, half) in values.chunks(RECORDS as usize / parts).enumerate() {
                let values: Vec<&str> = half.iter().map(String::as_str).collect();
                let batch = producer_batch(topic, partition, part, n, &values);
                assert_eq!(produce(wire, topic, partition, &batch).error_code, 0);
            }
        }
    }
}

/// Offset of the first record that a partition gets in a part.
fn first_of(topic: &str, partition: i32, part: i64) -> i64 {
    let late = topic == "grown" && partition >= 2;
    RECORDS * (part - i64::from(late))
}

/// Partition 0 of each topic is written by an idempotent producer.
fn producer_batch(topic: &str, partition: i32, part: i64, half: usize, values: &[&str]) -> Batch {
    let records: Vec<(i64, &str)> = values
        .iter()
        .map(|value| (1_700_000_000_000 + part * 1000, *value))
        .collect();
    let batch = Batch::at(&records);
    if partition != 0 || topic == "codecs" {
        return batch;
    }
    let sequence = part * RECORDS + half as i64 * RECORDS / 2;
    batch.from_producer(77, 3, sequence as i32)
}

fn commit(wire: &mut Wire, part: i64) {
    let partition = |index: i32| {
        OffsetCommitRequestPartition::default()
            .with_partition_index(index)
            .with_committed_offset(part * 10 + i64::from(index))
            .with_committed_metadata(Some(text("golden metadata")))
    };
    let topic = OffsetCommitRequestTopic::default()
        .with_name(topic_name("orders"))
        .with_partitions((0..4).map(partition).collect());
    let request = OffsetCommitRequest::default()
        .with_group_id(group_id(GROUP))
        .with_generation_id_or_member_epoch(-1)
        .with_topics(vec![topic]);
    let code = with_coordinator(|| wire.call(7, &request).topics[0].partitions[0].error_code);
    assert_eq!(code, 0);
}

/// Copies a store without the zeros at the end of journal files, which tell nothing.
pub fn copy_compact(from: &Path, to: &Path) {
    copy(from, to, &|folder, bytes| {
        if folder != "journal" {
            return Some(bytes);
        }
        let used = bytes.iter().rposition(|byte| *byte != 0)? + 1;
        let end = used.next_multiple_of(4096).min(bytes.len());
        Some(bytes[..end].to_vec())
    });
}

/// Copies a store as it is.
pub fn copy_whole(from: &Path, to: &Path) {
    copy(from, to, &|_, bytes| Some(bytes));
}

type Change<'a> = &'a dyn Fn(&str, Vec<u8>) -> Option<Vec<u8>>;

fn copy(from: &Path, to: &Path, change: Change<'_>) {
    fs::create_dir_all(to).expect("make a folder");
    let folder = from.file_name().unwrap_or_default().to_string_lossy();
    for entry in fs::read_dir(from).expect("read a folder").flatten() {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &target, change);
        } else if let Some(bytes) = change(&folder, fs::read(&path).expect("read a file")) {
            fs::write(target, bytes).expect("write a file");
        }
    }
}

/// Checks every record, commit, topic and config of a server that runs on a filled store.
pub fn check(address: &str) {
    let mut wire = Wire::connect(address);
    check_topics(&mut wire);
    for (topic, ..) in TOPICS {
        for partition in 0..partitions(topic, 2) {
            check_records(&mut wire, topic, partition);
        }
    }
    check_commits(&mut wire);
    check_producers(&mut wire);
}

fn check_topics(wire: &mut Wire) {
    assert_eq!(describe_topic(wire, "deleted").error_code, 3);
    for (topic, count, configs) in TOPICS {
        let found = describe_topic(wire, topic);
        assert_eq!(
            (found.error_code, found.partitions.len()),
            (0, count as usize)
        );
        for (key, value) in configs {
            assert_eq!(
                config(wire, 2, topic, key).as_deref(),
                Some(*value),
                "{topic} {key}"
            );
        }
    }
    let changed = config(wire, 2, "stamped", "max.message.bytes");
    assert_eq!(changed.as_deref(), Some("60000"));
    let inherited = config(wire, 2, "codecs", "retention.bytes");
    assert_eq!(inherited.as_deref(), Some("123456789"));
}

fn config(wire: &mut Wire, kind: i8, resource: &str, key: &str) -> Option<String> {
    let resource = DescribeConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(resource))
        .with_configuration_keys(Some(vec![text(key)]));
    let request = DescribeConfigsRequest::default().with_resources(vec![resource]);
    let mut answer = wire.call(4, &request).results.remove(0);
    assert_eq!(answer.error_code, 0, "{:?}", answer.error_message);
    answer.configs.pop()?.value.map(|value| value.to_string())
}

fn check_records(wire: &mut Wire, topic: &str, partition: i32) {
    let start = if (topic, partition) == ("orders", 1) {
        7
    } else {
        0
    };
    let end = first_of(topic, partition, 3);
    let earliest = list_offsets(wire, topic, partition, -2).offset;
    let latest = list_offsets(wire, topic, partition, -1).offset;
    assert_eq!((earliest, latest), (start, end), "{topic}-{partition}");
    let seen = client::read_partition(
        &wire.peer(),
        topic,
        partition,
        start,
        (end - start) as usize,
    );
    for (offset, record) in (start..end).zip(seen) {
        let expected = value(topic, partition, offset);
        assert_eq!(record.offset, offset, "{topic}-{partition}");
        assert_eq!(String::from_utf8_lossy(&record.value), expected);
    }
}

fn check_commits(wire: &mut Wire) {
    let topic = OffsetFetchRequestTopic::default()
        .with_name(topic_name("orders"))
        .with_partition_indexes((0..4).collect());
    let request = OffsetFetchRequest::default()
        .with_group_id(group_id(GROUP))
        .with_topics(Some(vec![topic]));
    let answer = wait_for("the coordinator serves", || {
        let answer = wire.call(7, &request);
        (answer.error_code == 0).then_some(answer)
    });
    for partition in &answer.topics[0].partitions {
        let expected = 20 + i64::from(partition.partition_index);
        assert_eq!(partition.committed_offset, expected);
        let metadata = partition.metadata.as_ref().map(|m| m.as_str());
        assert_eq!(metadata, Some("golden metadata"));
    }
}

/// A batch that was there already is answered with its old offset.
fn check_producers(wire: &mut Wire) {
    for topic in ["orders", "grown"] {
        let values: Vec<String> = (50..60).map(|offset| value(topic, 0, offset)).collect();
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        let batch = producer_batch(topic, 0, 2, 1, &values);
        let answer = produce(wire, topic, 0, &batch);
        assert_eq!((answer.error_code, answer.base_offset), (0, 50), "{topic}");
    }
}
