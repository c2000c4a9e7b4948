//! A server that is killed again and again while real clients write and read, judged by the
//! history checker.
//!
//! `KILLS` is the number of kills (3; the long run is `KILLS=100`), `KILL_SEED` repeats its pauses.
//! With the background reshaper, shards are replaced between each two kills.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use protocol_tests::calls::*;
use protocol_tests::client;
use protocol_tests::history::{self, Action, Key, Op, Outcome, Value};
use protocol_tests::wire::Wire;
use protocol_tests::{PATIENCE, Server, foreign, lineage, wait_for};
use rdkafka::client::ClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, Rebalance};
use rdkafka::message::Message;
use rdkafka::producer::{BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};

const PARTITIONS: i32 = 6;
const WRITERS: usize = 3;
const GROUP: &str = "kills";
/// Small tail, files and checkpoints, so that kills meet all of them.
const SETTINGS: &[&str] = &[
    "budget.tail.bytes=4194304",
    "checkpoint.interval.bytes=1048576",
    "journal.file.bytes=16777216",
];

struct World<'a> {
    address: String,
    topic: &'a str,
    history: Mutex<Vec<Op>>,
    acknowledged: [AtomicU64; WRITERS],
    values: AtomicU64,
    processes: AtomicU32,
    stop_writing: AtomicBool,
    stop_reading: AtomicBool,
}

impl World<'_> {
    fn note(&self, process: u32, action: Action, outcome: Outcome) {
        let op = Op {
            process,
            action,
            outcome,
        };
        self.history.lock().expect("history").push(op);
    }

    fn new_process(&self) -> u32 {
        self.processes.fetch_add(1, Ordering::Relaxed)
    }
}

fn number(name: &str, default: u64) -> u64 {
    let value = std::env::var(name).ok();
    value.and_then(|v| v.parse().ok()).unwrap_or(default)
}

fn payload(value: Value) -> Vec<u8> {
    let mut bytes = value.to_be_bytes().to_vec();
    bytes.resize(8 + (value % 1500) as usize, value as u8);
    bytes
}

fn value_of(payload: &[u8]) -> Value {
    let value = payload
        .first_chunk()
        .map_or(Value::MAX, |b| u64::from_be_bytes(*b));
    assert_eq!(payload, self::payload(value), "the payload of {value}");
    value
}

/// One client after the other: each writes for a while and then ends, in peace or as a crash.
fn write(world: &World<'_>, writer: usize) {
    while !world.stop_writing.load(Ordering::Relaxed) {
        let process = world.new_process();
        let codec = ["none", "lz4", "zstd"][writer % 3];
        let properties = [
            ("enable.idempotence", "true"),
            ("message.timeout.ms", "300000"),
            ("linger.ms", "1"),
            ("compression.codec", codec),
            ("queue.buffering.max.messages", "500"),
        ];
        let producer = client::producer(&world.address, &properties);
        let mut sent: Vec<(Key, Value)> = Vec::new();
        let mut fates: BTreeMap<usize, (Outcome, Option<i64>)> = BTreeMap::new();
        let mut collect = || {
            let reports =
                std::mem::take(&mut *producer.context().received.lock().expect("reports"));
            for (index, fate) in reports {
                // An error of an idempotent producer says that the fate is unknown.
                let fate = match fate {
                    Ok((_, offset)) => (Outcome::Ok, Some(offset)),
                    Err(_) => (Outcome::Info, None),
                };
                fates.insert(index, fate);
                world.acknowledged[writer].fetch_add(1, Ordering::Relaxed);
            }
        };
        let until = Instant::now() + Duration::from_secs(5 + writer as u64);
        while Instant::now() < until && !world.stop_writing.load(Ordering::Relaxed) {
            let value = world.values.fetch_add(1, Ordering::Relaxed);
            let key = (value % PARTITIONS as u64) as i32;
            let bytes = payload(value);
            let record = BaseRecord::<(), [u8], Box<usize>>::with_opaque_to(
                world.topic,
                Box::new(sent.len()),
            );
            if producer.send(record.partition(key).payload(&bytes)).is_ok() {
                sent.push((key, value));
            }
            producer.poll(Duration::from_millis(u64::from(
                sent.len().is_multiple_of(20),
            )));
            collect();
        }
        // Every second client of a writer crashes with requests under way.
        if process.is_multiple_of(2) || world.stop_writing.load(Ordering::Relaxed) {
            producer.flush(PATIENCE * 2).expect("delivered in the end");
        }
        collect();
        for (index, (key, value)) in sent.into_iter().enumerate() {
            let (outcome, offset) = fates.get(&index).copied().unwrap_or((Outcome::Info, None));
            world.note(process, Action::Send { key, value, offset }, outcome);
        }
    }
}

/// Hears of rebalances.
#[derive(Default)]
struct Watch(AtomicBool);

impl ClientContext for Watch {}

impl ConsumerContext for Watch {
    fn pre_rebalance(&self, _: &BaseConsumer<Self>, _: &Rebalance<'_>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn consumer(world: &World<'_>) -> BaseConsumer<Watch> {
    let properties = [
        ("group.id", GROUP),
        ("auto.offset.reset", "earliest"),
        ("auto.commit.interval.ms", "200"),
        ("session.timeout.ms", "6000"),
    ];
    client::config(&world.address, &properties)
        .create_with_context(Watch::default())
        .expect("a consumer")
}

fn begin(world: &World<'_>, reader: &BaseConsumer<Watch>, process: u32, assign: bool) {
    if assign {
        let mut all = TopicPartitionList::new();
        for key in 0..PARTITIONS {
            all.add_partition_offset(world.topic, key, Offset::Beginning)
                .expect("an offset");
        }
        reader.assign(&all).expect("assign");
        world.note(process, Action::Assign, Outcome::Ok);
    } else {
        reader.subscribe(&[world.topic]).expect("subscribe");
        world.note(process, Action::Subscribe, Outcome::Ok);
    }
}

fn poll(world: &World<'_>, reader: &BaseConsumer<Watch>, process: u32) -> Vec<(Key, i64, Value)> {
    let until = Instant::now() + Duration::from_millis(100);
    let mut reads = Vec::new();
    while Instant::now() < until && reads.len() < 500 {
        if let Some(Ok(message)) = reader.poll(Duration::from_millis(20)) {
            let value = value_of(message.payload().unwrap_or_default());
            reads.push((message.partition(), message.offset(), value));
        }
    }
    let moved = reader.context().0.swap(false, Ordering::Relaxed);
    let rebalanced: BTreeSet<Key> = match moved {
        true => (0..PARTITIONS).collect(),
        false => BTreeSet::new(),
    };
    if !reads.is_empty() || moved {
        let action = Action::Poll {
            reads: reads.clone(),
            rebalanced,
        };
        world.note(process, action, Outcome::Ok);
    }
    reads
}

/// A reader that crashes now and then.
fn read(world: &World<'_>, assign: bool) {
    let process = world.new_process();
    let mut life = 7 + u64::from(process % 5);
    while !world.stop_reading.load(Ordering::Relaxed) {
        let reader = consumer(world);
        begin(world, &reader, process, assign);
        let until = Instant::now() + Duration::from_secs(life);
        while Instant::now() < until && !world.stop_reading.load(Ordering::Relaxed) {
            poll(world, &reader, process);
        }
        life += 4;
        world.note(process, Action::Crash, Outcome::Ok);
    }
}

/// Reads all partitions from the start to their ends.
fn read_to_the_end(world: &World<'_>) {
    let ends: Vec<i64> = (0..PARTITIONS)
        .map(|key| list_offsets(&mut Wire::connect(&world.address), world.topic, key, -1).offset)
        .collect();
    let process = world.new_process();
    let reader = consumer(world);
    begin(world, &reader, process, true);
    let mut next = vec![0; PARTITIONS as usize];
    let deadline = Instant::now() + PATIENCE * 5;
    while next != ends {
        assert!(Instant::now() < deadline, "read to {next:?} of {ends:?}");
        for (key, offset, _) in poll(world, &reader, process) {
            next[key as usize] = offset + 1;
        }
    }
}

#[test]
fn a_server_killed_again_and_again_keeps_every_promise() {
    if foreign().is_some() {
        return;
    }
    let (kills, seed) = (
        number("KILLS", 3),
        number("KILL_SEED", u64::from(std::process::id())),
    );
    let started = Instant::now();
    let mut server = Server::with_settings(SETTINGS);
    let topic = new_topic(&mut Wire::connect(&server.address()), PARTITIONS, &[]);
    let world = World {
        address: server.address(),
        topic: &topic,
        history: Mutex::default(),
        acknowledged: Default::default(),
        values: AtomicU64::new(0),
        processes: AtomicU32::new(0),
        stop_writing: AtomicBool::new(false),
        stop_reading: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                scope.spawn({
                    let world = &world;
                    move || write(world, writer)
                })
            })
            .collect();
        for assign in [true, true, false, false] {
            scope.spawn({
                let world = &world;
                move || read(world, assign)
            });
        }
        for kill in 0..kills {
            let counts = || {
                world
                    .acknowledged
                    .each_ref()
                    .map(|count| count.load(Ordering::Relaxed))
            };
            let before = counts();
            wait_for("every writer is served", || {
                let served = counts()
                    .iter()
                    .zip(before)
                    .all(|(now, before)| *now > before + 50);
                served.then_some(())
            });
            server.await_reshapes(2);
            let pause = seed.wrapping_mul(2_654_435_761).wrapping_add(kill * 97) % 700;
            std::thread::sleep(Duration::from_millis(pause));
            let shown = lineage::of(&server, &topic, PARTITIONS);
            server.kill();
            // What a kill leaves is whole, before anything puts it in order.
            let (code, text) = server.verify(&[]);
            assert_eq!(code, 0, "{text}");
            // A kill in the middle of recovery is harmless.
            for after in (0..kill % 3).map(|turn| (pause + turn * 37) % 60) {
                server.start_and_kill(Duration::from_millis(after));
            }
            server.start_again();
            // What was shown was durable.
            let flaws = lineage::flaws(&shown, &lineage::of(&server, &topic, PARTITIONS));
            assert!(flaws.is_empty(), "kill {kill}: {flaws:#?}");
        }
        world.stop_writing.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.join().expect("a writer");
        }
        server.kill();
        server.start_again();
        read_to_the_end(&world);
        world.stop_reading.store(true, Ordering::Relaxed);
    });
    let history = world.history.into_inner().expect("history");
    let is_ok_send =
        |op: &&Op| matches!(op.action, Action::Send { .. }) && op.outcome == Outcome::Ok;
    let acknowledged = history.iter().filter(is_ok_send).count();
    println!(
        "{kills} kills, seed {seed}: {} operations, {acknowledged} acknowledged, {:?}",
        history.len(),
        started.elapsed()
    );
    assert!(server.terminate(), "the server stops well");
    let (code, text) = server.verify(&[]);
    println!("{text}");
    assert_eq!(code, 0, "{text}");
    let anomalies = history::check(&history, true);
    let shown = &anomalies[..anomalies.len().min(20)];
    assert!(
        anomalies.is_empty(),
        "{} anomalies: {shown:#?}",
        anomalies.len()
    );
}
