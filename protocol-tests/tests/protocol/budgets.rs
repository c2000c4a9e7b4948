//! Every budget pushed over its limit: what is refused, what makes room, and that the rest goes on.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use kafka_protocol::messages::fetch_request::ForgottenTopic;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::produce_request::PartitionProduceData;
use kafka_protocol::messages::{
    HeartbeatRequest, MetadataRequest, OffsetCommitRequest, ProduceRequest,
};
use kafka_protocol::protocol::Encodable;
use protocol_tests::batch::Batch;
use protocol_tests::calls::*;
use protocol_tests::server::{Server, free_port};
use protocol_tests::wire::Wire;
use protocol_tests::{foreign, unique, wait_for};

const POLICY_VIOLATION: i16 = 44;
const MESSAGE_TOO_LARGE: i16 = 10;

/// A server whose metrics can be asked.
struct Metered {
    server: Server,
    admin: u16,
}

impl Metered {
    fn start(settings: &[&str]) -> Metered {
        let admin = free_port();
        let port = format!("admin.port={admin}");
        let all: Vec<&str> = settings.iter().copied().chain([port.as_str()]).collect();
        let server = Server::with_settings(&all);
        let server = Metered { server, admin };
        // The admin port is there before the rest, and the start itself tries a connection.
        wait_for("it is ready and has no client", || {
            let ready = server
                .metrics()
                .lines()
                .any(|line| line == "shardgate_ready 1.0");
            (ready && server.value("budget_used_items", "connections") == 0).then_some(())
        });
        server
    }

    fn wire(&self) -> Wire {
        Wire::connect(&self.server.address())
    }

    fn metrics(&self) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.admin)).expect("the admin port");
        let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request).expect("ask for metrics");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("metrics");
        text
    }

    /// All values of a metric by budget.
    fn by_budget(&self, metric: &str) -> BTreeMap<String, u64> {
        let start = format!("shardgate_{metric}{{budget=\"");
        let text = self.metrics();
        let values = text.lines().filter_map(|line| {
            let (name, value) = line.strip_prefix(&start)?.split_once("\"} ")?;
            Some((
                name.to_owned(),
                value.trim().parse::<f64>().expect("a number") as u64,
            ))
        });
        values.collect()
    }

    fn value(&self, metric: &str, budget: &str) -> u64 {
        let all = self.by_budget(metric);
        *all.get(budget)
            .unwrap_or_else(|| panic!("{metric} of {budget}: {all:?}"))
    }
}

/// Rows of the table of budgets in docs/operations.md: name, key, default, metric.
fn documented() -> Vec<[String; 4]> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operations.md");
    let page = std::fs::read_to_string(path).expect("docs/operations.md");
    let (_, from) = page
        .split_once("| Budget | Key | Default |")
        .expect("the table");
    let rows = from
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let rows = rows.map(|row| {
        let cells: Vec<&str> = row
            .split('|')
            .map(|cell| cell.trim().trim_matches('`'))
            .collect();
        [cells[1], cells[2], cells[3], cells[5]].map(str::to_owned)
    });
    let rows: Vec<_> = rows.collect();
    for [name, key, default, _] in &rows {
        let listed = format!("| `{key}` | `{default}` |");
        assert!(
            page.contains(&listed),
            "{name}: the table of keys has no row {listed}"
        );
    }
    rows
}

#[test]
fn the_table_of_budgets_is_what_a_server_shows() {
    if foreign().is_some() {
        return;
    }
    // The limit of open files may allow fewer connections than the default.
    let server = Metered::start(&["max.connections=100"]);
    let mut limits = server.by_budget("budget_limit_bytes");
    limits.extend(server.by_budget("budget_limit_items"));
    let mut used = server.by_budget("budget_used_bytes");
    used.extend(server.by_budget("budget_used_items"));
    let rows = documented();
    let names: Vec<&String> = rows.iter().map(|row| &row[0]).collect();
    for name in limits.keys() {
        assert!(names.contains(&name), "{name} is not in docs/operations.md");
    }
    assert_eq!(limits.len(), rows.len(), "{limits:?}");
    for [name, _, default, metric] in &rows {
        let limit = if name == "connections" {
            100
        } else {
            default.parse().expect("a number")
        };
        assert_eq!(limits.get(name), Some(&limit), "{name}");
        assert!(used.contains_key(name), "{name}");
        let outcomes = [
            "budget_waiting",
            "budget_evicted_total",
            "budget_refused_total",
        ];
        let shown = outcomes.map(|outcome| server.by_budget(outcome).contains_key(name));
        let wanted = outcomes.map(|outcome| outcome.trim_end_matches("_total") == metric);
        assert_eq!(shown, wanted, "{name}: {metric}");
    }
}

/// One batch of one producer to each of many partitions.
fn to_all(topic: &str, partitions: i32, id: i64, sequence: i32) -> ProduceRequest {
    let batch = Batch::of(&["x"]).from_producer(id, 0, sequence).bytes();
    let mut request = produce_request(topic, 0, -1, batch.clone());
    let data = |index| {
        PartitionProduceData::default()
            .with_index(index)
            .with_records(Some(batch.clone()))
    };
    request.topic_data[0].partition_data = (0..partitions).map(data).collect();
    request
}

fn codes(wire: &mut Wire, request: &ProduceRequest) -> Vec<(i16, i64)> {
    let answer = wire.call(9, request);
    let partitions = answer.responses[0].partition_responses.iter();
    partitions.map(|p| (p.error_code, p.base_offset)).collect()
}

#[test]
fn idempotent_producers_beyond_the_budget_make_room() {
    if foreign().is_some() {
        return;
    }
    let server = Metered::start(&["budget.producers.bytes=262144"]);
    let mut wire = server.wire();
    let topic = new_topic(&mut wire, 100, &[]);
    let first = codes(&mut wire, &to_all(&topic, 100, 1_000_000, 0));
    for id in 0..60 {
        codes(&mut wire, &to_all(&topic, 100, id, 0));
        // One that is in use goes on, and its retries are known.
        let request = to_all(&topic, 100, 1_000_000, id as i32 + 1);
        let sent = codes(&mut wire, &request);
        assert_eq!(
            codes(&mut wire, &request),
            sent,
            "a retry is told of its original"
        );
    }
    assert!(first.iter().all(|(code, _)| *code == 0));
    wait_for("the budget is kept", || {
        let used = server.value("budget_used_bytes", "producers");
        (used <= 262_144 && server.value("budget_evicted_total", "producers") > 1_000).then_some(())
    });
    // A producer that was forgotten is a new one, wherever it begins.
    let again = codes(&mut wire, &to_all(&topic, 100, 0, 17));
    assert!(again.iter().all(|(code, offset)| *code == 0 && *offset > 0));
}

/// A commit of some partitions of a topic, each with a text.
fn commit(group: &str, topic: &str, partitions: i32, text_bytes: usize) -> OffsetCommitRequest {
    let metadata = text(&"m".repeat(text_bytes));
    let one = |index| {
        OffsetCommitRequestPartition::default()
            .with_partition_index(index)
            .with_committed_offset(1)
            .with_committed_metadata(Some(metadata.clone()))
    };
    let topic = OffsetCommitRequestTopic::default()
        .with_name(topic_name(topic))
        .with_partitions((0..partitions).map(one).collect());
    OffsetCommitRequest::default()
        .with_group_id(group_id(group))
        .with_generation_id_or_member_epoch(-1)
        .with_topics(vec![topic])
}

fn commit_codes(wire: &mut Wire, request: &OffsetCommitRequest) -> Vec<i16> {
    let ask = |wire: &mut Wire| wire.call(8, request).topics[0].partitions.clone();
    with_coordinator(|| ask(wire)[0].error_code);
    ask(wire).iter().map(|p| p.error_code).collect()
}

#[test]
fn commits_beyond_the_budget_are_refused_and_groups_at_work_go_on() {
    if foreign().is_some() {
        return;
    }
    let server = Metered::start(&["budget.groups.bytes=1048576"]);
    let mut wire = server.wire();
    let topic = new_topic(&mut wire, 10, &[]);
    let own = unique("group");
    assert_eq!(commit_codes(&mut wire, &commit(&own, &topic, 1, 10)), [0]);
    let mut refused = 0;
    for n in 0..50 {
        let all = commit_codes(&mut wire, &commit(&format!("g{n}"), &topic, 10, 4_000));
        assert!(
            all.iter().all(|code| [0, POLICY_VIOLATION].contains(code)),
            "{all:?}"
        );
        refused += all.iter().filter(|code| **code != 0).count();
    }
    assert!((200..300).contains(&refused), "{refused}");
    assert!(server.value("budget_used_bytes", "groups") <= 1_048_576);
    assert!(server.value("budget_refused_total", "groups") >= refused as u64);
    let log = server.server.log();
    let told = log
        .lines()
        .find(|line| line.contains("budget.groups.bytes"));
    assert!(told.is_some_and(|line| line.contains("\"g2")), "{log}");
    assert_eq!(commit_codes(&mut wire, &commit(&own, &topic, 1, 10)), [0]);
    assert_eq!(
        commit_codes(&mut wire, &commit("g0", &topic, 10, 4_000)),
        [0; 10]
    );
    let heartbeat = HeartbeatRequest::default()
        .with_group_id(group_id(&own))
        .with_member_id(text("nobody"));
    assert_eq!(
        wire.call(4, &heartbeat).error_code,
        25,
        "it is answered as ever"
    );
}

#[test]
fn topics_beyond_the_budget_are_refused_and_the_others_serve() {
    if foreign().is_some() {
        return;
    }
    let server = Metered::start(&["budget.topics.bytes=1048576"]);
    let mut wire = server.wire();
    let kept = new_topic(&mut wire, 4, &[]);
    let mut names = Vec::new();
    let code = loop {
        let name = unique("many");
        match create_topic(&mut wire, &name, 500, &[]) {
            0 => names.push(name),
            code => break code,
        }
    };
    assert_eq!(code, POLICY_VIOLATION);
    assert!((2..5).contains(&names.len()), "{}", names.len());
    assert!(server.value("budget_refused_total", "topics") > 0);
    assert_eq!(
        produce(&mut wire, &kept, 0, &Batch::of(&["a"])).error_code,
        0
    );
    assert_eq!(
        create_topic(&mut wire, &unique("small"), 1, &[]),
        0,
        "it fits"
    );
    assert_eq!(delete_topic(&mut wire, &names[0]), 0);
    assert_eq!(
        create_topic(&mut wire, &unique("next"), 500, &[]),
        0,
        "there is room again"
    );
}

#[test]
fn a_fetch_beyond_the_places_is_answered_at_once_and_its_client_held_back() {
    if foreign().is_some() {
        return;
    }
    let server = Metered::start(&["budget.fetch.waiters=2"]);
    let mut wire = server.wire();
    let topic = new_topic(&mut wire, 3, &[]);
    let long = Wanted {
        max_wait_ms: 30_000,
        min_bytes: 1,
        ..Wanted::from(0)
    };
    let mut parked = server.wire();
    let pending = parked.send(11, &long.request(&topic, &[0, 1]));
    wait_for("it waits", || {
        (server.value("budget_used_items", "fetch_waiters") == 2).then_some(())
    });
    let start = Instant::now();
    let answer = wire.call(11, &long.request(&topic, &[2]));
    assert_eq!(answer.responses[0].partitions[0].error_code, 0);
    assert_eq!(
        answer.throttle_time_ms, 500,
        "well-behaved clients wait by themselves"
    );
    assert!(start.elapsed() < Duration::from_secs(20));
    assert_eq!(server.value("budget_refused_total", "fetch_waiters"), 1);
    produce(&mut server.wire(), &topic, 0, &Batch::of(&["a"]));
    let woken = parked.receive(pending);
    assert!(woken.responses[0].partitions[0].records.is_some());
    wait_for("its places are free", || {
        (server.value("budget_used_items", "fetch_waiters") == 0).then_some(())
    });
}

/// A few bytes ask for very many, which wait for whoever reads none of them.
#[test]
fn large_answers_wait_for_one_another_and_readers_go_on() {
    if foreign().is_some() {
        return;
    }
    const LIMIT: u64 = 1 << 20;
    let server = Metered::start(&[
        "budget.responses.bytes=1048576",
        "socket.send.buffer.bytes=8192",
    ]);
    let mut wire = server.wire();
    let topic = new_topic(&mut wire, 10_000, &[]);
    let all = MetadataRequest::default().with_topics(None);
    let size = |wire: &mut Wire| {
        let answer = wire.call(12, &all);
        answer.compute_size(12).expect("its size") as u64
    };
    let bytes = size(&mut wire);
    assert!((150_000..LIMIT / 2).contains(&bytes), "{bytes}");
    let mut silent: Vec<Wire> = Vec::new();
    for id in 0..12 {
        let mut wire = server.wire();
        match id % 2 {
            0 => drop(wire.send(12, &all)),
            _ => drop(wire.send(9, &to_all(&topic, 10_000, id, 0))),
        }
        silent.push(wire);
    }
    wait_for("some have their shares and the others wait", || {
        let (used, waiting) = (
            server.value("budget_used_bytes", "responses"),
            server.value("budget_waiting", "responses"),
        );
        assert!(used <= LIMIT, "{used}");
        (used > LIMIT / 2 && waiting >= 2).then_some(())
    });
    // Small answers need none.
    let answer = produce(&mut wire, &topic, 1, &Batch::of(&["y"]));
    assert_eq!(answer.error_code, 0);
    drop(silent);
    assert_eq!(size(&mut wire), bytes);
    wait_for("all is given back", || {
        (server.value("budget_used_bytes", "responses") == 0).then_some(())
    });
}

#[test]
fn connections_beyond_the_limit_are_closed_and_counted() {
    if foreign().is_some() {
        return;
    }
    let server = Metered::start(&["max.connections=2"]);
    let (mut first, second) = (server.wire(), server.wire());
    let topic = new_topic(&mut first, 1, &[]);
    assert!(server.wire().is_closed());
    assert!(server.value("budget_refused_total", "connections") >= 1);
    assert_eq!(
        produce(&mut first, &topic, 0, &Batch::of(&["a"])).error_code,
        0
    );
    drop(second);
    wait_for("there is room again", || {
        (server.value("budget_used_items", "connections") < 2).then_some(())
    });
}

#[test]
fn batches_of_which_too_much_comes_out_are_refused() {
    if foreign().is_some() {
        return;
    }
    let server = Metered::start(&["max.decompressed.batch.bytes=1048576"]);
    let mut wire = server.wire();
    let topic = new_topic(&mut wire, 1, &[("max.message.bytes", "65536")]);
    let bomb = |bytes: usize| {
        let mut batch = Batch::of(&[&"x".repeat(bytes)]);
        batch.attributes = 2;
        batch.packed(snappy_of_runs)
    };
    let fits = produce_bytes(&mut wire, 9, &topic, 0, bomb(900_000));
    assert_eq!(fits.error_code, 0, "{:?}", fits.error_message);
    let refused = produce_bytes(&mut wire, 9, &topic, 0, bomb(1_100_000));
    assert_eq!(refused.error_code, MESSAGE_TOO_LARGE);
    let told = refused.error_message.expect("a reason");
    assert!(told.contains("max.decompressed.batch.bytes"), "{told}");
}

/// Raw snappy of bytes that are long runs but for a few: literals, and copies of the byte before.
fn snappy_of_runs(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut length = bytes.len();
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    let mut before = None;
    let mut rest = bytes;
    while let Some(&byte) = rest.first() {
        if before != Some(byte) {
            out.extend([0, byte]);
            (before, rest) = (Some(byte), &rest[1..]);
            continue;
        }
        let run = rest.iter().take(64).take_while(|b| **b == byte).count();
        out.extend([((run - 1) as u8) << 2 | 2, 1, 0]);
        rest = &rest[run..];
    }
    out
}

/// What much state of clients takes: run it on a release build, and on an older one by
/// `PROTOCOL_TESTS_SERVER`, to compare.
#[test]
#[ignore = "a measurement"]
fn memory_of_producers_and_groups() {
    let server = Server::with_settings(&[]);
    let mut wire = Wire::connect(&server.address());
    let topic = new_topic(&mut wire, 900, &[]);
    println!("idle: {} KiB", server.resident_kib());
    for id in 0..4_000 {
        codes(&mut wire, &to_all(&topic, 200, id, 0));
    }
    println!(
        "4000 producers on 200 partitions: {} KiB",
        server.resident_kib()
    );
    drop(server);
    let server = Server::with_settings(&[]);
    let mut wire = Wire::connect(&server.address());
    let topic = new_topic(&mut wire, 900, &[]);
    println!("idle: {} KiB", server.resident_kib());
    for n in 0..60 {
        commit_codes(&mut wire, &commit(&format!("g{n}"), &topic, 900, 4_000));
    }
    println!(
        "60 groups, 900 commits of 4000 bytes: {} KiB",
        server.resident_kib()
    );
}

/// How long a request takes that forgets one of 10 000 partitions of a fetch session.
#[test]
#[ignore = "a measurement"]
fn time_to_forget_partitions_of_a_session() {
    let server = Server::with_settings(&[]);
    let mut wire = Wire::connect(&server.address());
    let topic = new_topic(&mut wire, 10_000, &[]);
    let all: Vec<i32> = (0..10_000).collect();
    let mut request = Wanted::from(0).request(&topic, &all);
    request.session_epoch = 0;
    let session = wire.call(11, &request).session_id;
    request.topics.clear();
    request.session_id = session;
    for forget in [false, true] {
        let start = Instant::now();
        for n in 0..200 {
            request.session_epoch += 1;
            request.forgotten_topics_data = Vec::new();
            if forget {
                let gone = ForgottenTopic::default()
                    .with_topic(topic_name(&topic))
                    .with_partitions(vec![n]);
                request.forgotten_topics_data.push(gone);
            }
            assert_eq!(wire.call(11, &request).error_code, 0);
        }
        println!("forget {forget}: {:?} each", start.elapsed() / 200);
    }
}
