//! Shards as an operator sees and changes them, on the command line, while clients run.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use protocol_tests::batch::{Batch, headers};
use protocol_tests::calls::*;
use protocol_tests::server::binary;
use protocol_tests::wire::Wire;
use protocol_tests::{Server, admin, client, wait_for};
use serde_json::{Value, json};

struct Gateway {
    server: Server,
}

impl Gateway {
    fn start() -> Gateway {
        Gateway {
            server: Server::calm(&[]),
        }
    }

    /// Runs `shardgate shards` once the gateway is ready: exit code and everything it printed.
    fn shards(&self, arguments: &[&str]) -> (i32, String) {
        wait_for("the gateway is ready", || {
            let answer = self.shards_now(arguments);
            (!answer.1.contains("is not ready yet")).then_some(answer)
        })
    }

    fn shards_now(&self, arguments: &[&str]) -> (i32, String) {
        let mut command = Command::new(binary());
        command
            .arg("--set")
            .arg(format!("log.dirs={}", self.server.data().display()));
        command.args(["shards", "--admin", &self.server.admin_address()]);
        let output = command.args(arguments).output().expect("run shards");
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.code().unwrap_or(-1),
            String::from_utf8_lossy(&text).into_owned(),
        )
    }

    fn verify_live(&self) -> (i32, String) {
        let address = self.server.admin_address();
        self.server
            .verify(&["--live", "--deep", "--admin", &address])
    }

    fn done(&self, arguments: &[&str]) -> String {
        let (code, text) = self.shards(arguments);
        assert_eq!(code, 0, "{arguments:?}: {text}");
        text
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let text = self.done(&[&["--json"], arguments].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    fn open_shards(&self, topic: &str) -> Vec<u64> {
        let view = self.json(&["list", topic]);
        let shards = view["shards"].as_array().expect("shards");
        shards
            .iter()
            .map(|shard| shard["id"].as_u64().expect("an id"))
            .collect()
    }
}

/// Raises a flag when dropped.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn shards_are_split_and_merged_under_load_and_no_client_notices() {
    let gateway = Gateway::start();
    let mut wire = Wire::connect(&gateway.server.address());
    let partitions = 8;
    let topic = new_topic(&mut wire, partitions, &[]);
    let stop = AtomicBool::new(false);
    let mut produced: Vec<usize> = Vec::new();
    thread::scope(|scope| {
        let writers: Vec<_> = (0..partitions)
            .map(|partition| {
                let (topic, stop) = (&topic, &stop);
                let mut wire = Wire::connect(&gateway.server.address());
                scope.spawn(move || {
                    let mut count = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let batch = Batch::of(&[&format!("{partition} {count}")]);
                        let answer = produce(&mut wire, topic, partition, &batch);
                        assert_eq!((answer.error_code, answer.base_offset), (0, count as i64));
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        // Writers end also when the test fails.
        let stop = Ending(&stop);
        for _ in 0..5 {
            let all = gateway.open_shards(&topic);
            assert_eq!(all.len(), 1);
            gateway.done(&["split", &topic, &all[0].to_string(), "--into", "4"]);
            let (code, text) = gateway.verify_live();
            assert_eq!(code, 0, "under load: {text}");
            let four = gateway.open_shards(&topic);
            assert_eq!(four.len(), 4);
            let names: Vec<String> = four.iter().map(u64::to_string).collect();
            let mut merge = vec!["merge", topic.as_str()];
            merge.extend(names.iter().map(String::as_str));
            gateway.done(&merge);
        }
        drop(stop);
        produced = writers
            .into_iter()
            .map(|w| w.join().expect("a writer"))
            .collect();
    });
    for (partition, count) in produced.iter().enumerate() {
        let seen = client::read_partition(
            &gateway.server.address(),
            &topic,
            partition as i32,
            0,
            *count,
        );
        for (offset, record) in seen.iter().enumerate() {
            assert_eq!(record.offset, offset as i64);
            assert_eq!(record.value, format!("{partition} {offset}").as_bytes());
        }
    }
    let (code, text) = gateway.verify_live();
    assert_eq!(code, 0, "{text}");
    let lineage = gateway.json(&["lineage", &topic, "--partition", "3"]);
    assert_eq!(lineage["epochs"].as_array().map(Vec::len), Some(11));
    assert_eq!(gateway.server.log().matches(" ERROR ").count(), 0);
}

#[test]
fn the_lineage_is_the_same_after_a_kill() {
    let mut gateway = Gateway::start();
    let mut wire = Wire::connect(&gateway.server.address());
    let topic = new_topic(&mut wire, 4, &[]);
    let send = |wire: &mut Wire| {
        let answer = produce(wire, &topic, 1, &Batch::of(&["a", "b"]));
        assert_eq!(answer.error_code, 0);
    };
    send(&mut wire);
    let first = gateway.open_shards(&topic)[0].to_string();
    gateway.done(&["split", &topic, &first, "--at", "slot:1"]);
    send(&mut wire);
    let shards: Vec<String> = gateway
        .open_shards(&topic)
        .iter()
        .map(u64::to_string)
        .collect();
    gateway.done(&["merge", &topic, &shards[0], &shards[1]]);
    send(&mut wire);
    let arguments = ["lineage", &topic, "--partition", "1"];
    let before = gateway.done(&arguments);
    for line in ["offsets 0 to 1:", "offsets 2 to 3:", "offsets 4 to now:"] {
        assert!(before.contains(line), "{before}");
    }
    gateway.server.kill();
    gateway.server.start_again();
    assert_eq!(gateway.done(&arguments), before);
    let mut wire = Wire::connect(&gateway.server.address());
    let records = fetch(&mut wire, &topic, 1, Wanted::from(0))
        .records
        .expect("records");
    let offsets: Vec<i64> = headers(&records)
        .iter()
        .map(|batch| batch.base_offset)
        .collect();
    assert_eq!(offsets, [0, 2, 4]);
    let dot = gateway.done(&["lineage", &topic, "--dot"]);
    assert!(dot.starts_with("digraph") && dot.contains("->"), "{dot}");
    gateway.server.kill();
    let (code, text) = gateway.server.verify(&[]);
    assert_eq!(code, 0, "{text}");
}

/// The shards that come of a change.
fn ids(view: &Value) -> Vec<u64> {
    let after = view["after"].as_array().expect("shards").iter();
    after
        .map(|shard| shard["id"].as_u64().expect("an id"))
        .collect()
}

#[test]
fn a_dry_run_changes_nothing_and_a_repetition_is_safe() {
    let gateway = Gateway::start();
    let mut wire = Wire::connect(&gateway.server.address());
    let topic = new_topic(&mut wire, 4, &[]);
    let shard = gateway.open_shards(&topic)[0].to_string();
    let planned = gateway.json(&["split", &topic, &shard, "--dry-run"]);
    assert_eq!(planned["dry_run"], Value::Bool(true));
    assert_eq!(planned["after"].as_array().map(Vec::len), Some(2));
    assert_eq!(
        planned["after"][0]["end"],
        "80000000000000000000000000000000"
    );
    assert_eq!(gateway.open_shards(&topic), [shard.parse::<u64>().unwrap()]);

    let done = gateway.json(&["split", &topic, &shard]);
    assert_eq!(done["repeated"], Value::Bool(false));
    let repeated = gateway.json(&["split", &topic, &shard]);
    assert_eq!(repeated["repeated"], Value::Bool(true));
    assert_eq!(ids(&repeated), ids(&done));
    assert_eq!(gateway.open_shards(&topic), ids(&done));
    assert_eq!(repeated["epoch"], done["epoch"]);
}

/// Programs may reshape fifty times a second.
#[test]
fn many_changes_are_told_in_few_lines_which_say_how_many_there_were() {
    let mut gateway = Gateway::start();
    let mut wire = Wire::connect(&gateway.server.address());
    let topic = new_topic(&mut wire, 16, &[]);
    const CHANGES: usize = 15;
    let mut shard = gateway.open_shards(&topic)[0];
    let token = gateway.server.data().join("admin.token");
    let token = std::fs::read_to_string(token).expect("the token");
    for slot in 1..=CHANGES {
        let body = format!(r#"{{"shards": [{shard}], "at": "slot:{slot}"}}"#);
        let path = format!("/topics/{topic}/reshape");
        let answer = admin::post(&gateway.server.admin_address(), &path, token.trim(), &body);
        let (code, text) = answer.expect("an answer");
        assert_eq!(code, 200, "{text}");
        shard = ids(&serde_json::from_str(&text).expect("JSON"))[1];
    }
    assert!(gateway.server.terminate());
    let log = gateway.server.log();
    let told = log.matches("shards were reshaped; clients go on").count();
    let lines = log.lines().filter(|line| line.contains("were left out"));
    let left_out = lines.map(|line| {
        assert!(
            line.contains(" INFO ") && line.ends_with("shards were reshaped"),
            "{line}"
        );
        let count = line
            .split_whitespace()
            .find_map(|word| word.parse::<usize>().ok());
        count.expect("how many")
    });
    let left_out: usize = left_out.sum();
    assert!(told >= 5 && left_out > 0, "{told} and {left_out}: {log}");
    assert_eq!(told + left_out, CHANGES);
}

/// Whatever became of the shards since: of so many partitions few epochs stay in memory.
#[test]
fn a_change_is_answered_as_it_was_then_after_merges_growth_and_when_only_the_disk_knows_it() {
    let gateway = Gateway::start();
    let mut wire = Wire::connect(&gateway.server.address());
    let topic = new_topic(&mut wire, 9_999, &[]);
    let first = gateway.open_shards(&topic)[0].to_string();
    let mut done: Vec<(Vec<String>, Value)> = Vec::new();
    let mut change = |arguments: &[&str]| {
        let view = gateway.json(arguments);
        assert_eq!(view["repeated"], Value::Bool(false), "{arguments:?}");
        let arguments = arguments.iter().map(|a| (*a).to_owned());
        let view = Value::from_iter([("epoch", view["epoch"].clone()), ("ids", ids(&view).into())]);
        done.push((arguments.collect(), view.clone()));
        let ids = view["ids"].as_array().expect("ids").iter();
        ids.map(Value::to_string).collect::<Vec<_>>()
    };
    let three = change(&["split", &topic, &first, "--into", "3"]);
    let cut = change(&["split", &topic, &three[1], "--at", "slot:4001"]);
    let left = change(&["split", &topic, &cut[0], "--at", "load"]);
    let hash = "4c000000000000000000000000000000";
    let right = change(&[
        "split",
        &topic,
        &three[0],
        "--at",
        &format!("hash:{hash}")[..],
    ]);
    let mut one = change(&["merge", &topic, &left[1], &cut[1], &three[2]]);
    assert_eq!(grow_topic(&mut wire, &topic, 19_998), 0);
    let grown = one[0].clone();
    for _ in 0..6 {
        let two = change(&["split", &topic, &one[0]]);
        one = change(&["merge", &topic, &two[0], &two[1]]);
    }
    let lineage = gateway.json(&["lineage", &topic]);
    let oldest = lineage["epochs"][0]["epoch"].as_u64();
    assert!(oldest > Some(4), "{oldest:?} is not forgotten");
    assert_eq!(
        lineage["older_epochs"].as_u64(),
        oldest.map(|oldest| oldest - 1)
    );
    let first_id: u64 = first.parse().expect("a number");
    let has_first = |view: &Value| {
        let mut shards = view["shards"].as_array().expect("shards").iter();
        shards.any(|shard| shard["id"] == first_id)
    };
    assert!(!has_first(&lineage));
    let text = gateway.done(&["lineage", &topic]);
    assert!(text.contains("and the shards that they sealed are not shown"));
    let whole = gateway.json(&["lineage", &topic, "--older", "100"]);
    assert!(has_first(&whole));
    assert_eq!(
        (&whole["epochs"][0]["epoch"], &whole["older_epochs"]),
        (&json!(1), &json!(0))
    );
    let drawn = gateway.done(&["lineage", &topic, "--older", "100"]);
    assert!(
        drawn.contains("  e1  ") && !drawn.contains("not shown"),
        "{drawn}"
    );
    let graph = gateway.done(&["lineage", &topic, "--older", "100", "--dot"]);
    assert!(graph.contains(&format!("  s{first} -> s{};", three[0])));
    let open = gateway.open_shards(&topic);
    for (arguments, then) in &done {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        for how in [&[][..], &["--dry-run"]] {
            let view = gateway.json(&[&arguments, how].concat());
            assert_eq!(view["repeated"], Value::Bool(true), "{arguments:?}");
            assert_eq!(view["epoch"], then["epoch"], "{arguments:?}");
            assert_eq!(Value::from(ids(&view)), then["ids"], "{arguments:?}");
        }
    }
    for other in [
        &["split", &topic, &first][..],
        &["split", &topic, &three[1], "--at", "slot:4002"],
        &["merge", &topic, &right[0], &grown],
    ] {
        let (code, text) = gateway.shards(other);
        assert!(
            code == 1 && text.contains("sealed since"),
            "{other:?}: {text}"
        );
    }
    assert_eq!(gateway.open_shards(&topic), open);
}

#[test]
fn what_cannot_be_done_is_refused_in_words() {
    let gateway = Gateway::start();
    let mut wire = Wire::connect(&gateway.server.address());
    let topic = new_topic(&mut wire, 3, &[]);
    let shard = gateway.open_shards(&topic)[0].to_string();
    gateway.done(&["split", &topic, &shard, "--into", "3"]);
    let shards: Vec<String> = gateway
        .open_shards(&topic)
        .iter()
        .map(u64::to_string)
        .collect();
    let refused = |arguments: &[&str], words: &str| {
        let (code, text) = gateway.shards(arguments);
        assert_eq!(code, 1, "{arguments:?}: {text}");
        assert!(text.contains(words), "{arguments:?}: {text}");
        assert_eq!(text.lines().count(), 1, "one line: {text}");
    };
    refused(
        &["list", "no-such-topic"],
        "topic no-such-topic does not exist",
    );
    refused(&["split", &topic, "999"], "no shard 999");
    refused(
        &["split", &topic, &shard, "--at", "slot:1"],
        "sealed since epoch 2",
    );
    refused(&["split", &topic, &shards[0]], "too few for 2 parts");
    refused(&["merge", &topic, &shards[0], &shards[2]], "no neighbours");
    refused(
        &["split", &topic, &shards[0], "--at", "nowhere"],
        "nowhere is no place to cut",
    );
    refused(
        &["lineage", &topic, "--partition", "3"],
        "has no partition 3",
    );
    refused(
        &["locate", &topic, "--key", "k", "--partitioner", "md5"],
        "md5 is not known",
    );

    let mut command = Command::new(binary());
    command.args(["--set", "log.dirs=/nonexistent", "shards", "--admin"]);
    command.arg(gateway.server.admin_address());
    let output = command
        .args(["merge", &topic, &shards[0], &shards[1]])
        .output()
        .expect("run");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && text.contains("admin.token"),
        "{text}"
    );
    assert_eq!(gateway.open_shards(&topic).len(), 3);
}

#[test]
fn a_key_is_located_where_clients_send_it() {
    let gateway = Gateway::start();
    let address = gateway.server.address();
    let mut wire = Wire::connect(&address);
    let topic = new_topic(&mut wire, 7, &[]);
    for (setting, partitioner) in [("consistent", "crc32"), ("murmur2", "murmur2")] {
        let producer = client::producer(&address, &[("partitioner", setting)]);
        let mut sent = BTreeMap::new();
        for n in 0..20 {
            let key = format!("key {n}");
            let fate = client::produce_keyed(&producer, &topic, key.as_bytes(), b"v");
            sent.insert(key, fate.expect("acknowledged").0);
        }
        for (key, partition) in sent {
            let arguments = [
                "locate",
                &topic,
                "--key",
                &key,
                "--partitioner",
                partitioner,
            ];
            let view = gateway.json(&arguments);
            assert_eq!(
                view["places"][0]["partition"], partition,
                "{partitioner} {key}"
            );
        }
    }
    let all = gateway.json(&["locate", &topic, "--key", "k"]);
    assert_eq!(all["places"].as_array().map(Vec::len), Some(5));
}

#[test]
fn load_is_seen_and_a_cut_by_load_follows_it() {
    let gateway = Gateway::start();
    let mut wire = Wire::connect(&gateway.server.address());
    let topic = new_topic(&mut wire, 8, &[("shard.write.bytes.per.second", "20000")]);
    for partition in [0, 1] {
        let batch = Batch::of(&[&"x".repeat(30_000)]);
        assert_eq!(produce(&mut wire, &topic, partition, &batch).error_code, 0);
    }
    let shard = gateway.open_shards(&topic)[0].to_string();
    let planned = gateway.json(&["split", &topic, &shard, "--at", "load", "--dry-run"]);
    assert_eq!(planned["after"][0]["slots"], 1, "{planned}");
    let verdict = planned["verdict"].as_str().unwrap_or_default();
    assert!(
        verdict.contains("divided: the sides carry 50 % / 50 % of it"),
        "{planned}"
    );
    let explained = gateway.json(&["explain", &topic]);
    let seen = explained["observations"].to_string();
    assert!(
        seen.contains("in partition") && seen.contains("directory"),
        "{explained}"
    );
}
