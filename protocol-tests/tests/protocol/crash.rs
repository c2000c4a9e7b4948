//! Rounds of kill -9 under load: every acknowledged record is there once, at its offset, and every
//! acknowledged commit holds.
//!
//! `KILL_ROUNDS` says how many rounds (5), `KILL_SEED` repeats a run's pauses.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::{OffsetCommitRequest, OffsetFetchRequest};
use protocol_tests::calls::*;
use protocol_tests::client::{self, ReportingProducer};
use protocol_tests::wire::Wire;
use protocol_tests::{Server, foreign, lineage, wait_for};
use rdkafka::producer::{BaseRecord, Producer};

const PARTITIONS: i32 = 8;
const PRODUCERS: usize = 3;
const GROUP: &str = "committer";

/// One idempotent producer under way, and what it has been told.
struct Load {
    thread: JoinHandle<Vec<Told>>,
    acknowledged: Arc<AtomicU64>,
}

/// An acknowledged record: partition, offset, index of the producer's record.
type Told = (i32, i64, usize);

/// How hard a run is on the store.
#[derive(Clone, Copy)]
struct Plan {
    settings: &'static [&'static str],
    /// Bytes behind the name of each record.
    padding: usize,
    /// Acknowledged records of each producer before a kill.
    records_per_round: u64,
    /// Shards are split, merged and moved between the data directories meanwhile.
    moves: bool,
}

/// A record's value: its name, and bytes that do not compress.
fn value(producer: usize, index: usize, padding: usize) -> Vec<u8> {
    let mut value = format!("producer {producer} record {index} ").into_bytes();
    let mut state = (producer as u64) << 32 | index as u64 | 1;
    value.extend((0..padding).map(|_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as u8
    }));
    value
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|value| value.parse().ok())
        .unwrap_or(default)
}

fn start_load(
    address: &str,
    topic: &str,
    name: usize,
    padding: usize,
    stop: &Arc<AtomicBool>,
) -> Load {
    let acknowledged = Arc::new(AtomicU64::new(0));
    let codec = ["none", "lz4", "zstd"][name % 3];
    let properties = [
        ("enable.idempotence", "true"),
        ("message.timeout.ms", "300000"),
        ("linger.ms", "2"),
        ("compression.codec", codec),
        ("queue.buffering.max.messages", "2000"),
    ];
    let producer = client::producer(address, &properties);
    let (topic, stop, counter) = (topic.to_owned(), stop.clone(), acknowledged.clone());
    let thread =
        std::thread::spawn(move || run_load(&producer, &topic, (name, padding), &stop, &counter));
    Load {
        thread,
        acknowledged,
    }
}

fn run_load(
    producer: &ReportingProducer,
    topic: &str,
    (name, padding): (usize, usize),
    stop: &AtomicBool,
    acknowledged: &AtomicU64,
) -> Vec<Told> {
    let mut told = Vec::new();
    let mut collect = || {
        let mut reports = producer.context().received.lock().expect("reports");
        for (index, fate) in reports.drain(..) {
            let (partition, offset) = fate.expect("an idempotent producer delivers in the end");
            told.push((partition, offset, index));
            acknowledged.fetch_add(1, Ordering::Relaxed);
        }
    };
    let mut index = 0;
    while !stop.load(Ordering::Relaxed) {
        let payload = value(name, index, padding);
        let record = BaseRecord::<(), [u8], Box<usize>>::with_opaque_to(topic, Box::new(index))
            .partition(index as i32 % PARTITIONS)
            .payload(&payload);
        match producer.send(record) {
            Ok(()) => index += 1,
            Err(_) => {
                producer.poll(Duration::from_millis(5));
            }
        }
        if index % 50 == 0 {
            producer.poll(Duration::from_millis(1));
            collect();
        }
    }
    producer
        .flush(Duration::from_secs(120))
        .expect("everything is delivered in the end");
    collect();
    assert_eq!(told.len(), index, "every record was acknowledged");
    told
}

/// What a consumer saw while the server was killed again and again: the checksum of each value.
type Seen = HashMap<(i32, i64), u32>;

/// Reads all partitions until told to stop.
fn start_reader(address: &str, topic: &str, stop: &Arc<AtomicBool>) -> JoinHandle<Seen> {
    let consumer = client::reader(address, topic, PARTITIONS);
    let stop = stop.clone();
    std::thread::spawn(move || {
        let mut seen = Seen::new();
        let mut records = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            client::poll_once(&consumer, &mut records);
            for record in records.drain(..) {
                let place = (record.partition, record.offset);
                let sum = crc32c::crc32c(&record.value);
                let before = seen.insert(place, sum);
                assert!(
                    before.is_none_or(|before| before == sum),
                    "{place:?} was another record"
                );
            }
        }
        seen
    })
}

/// Commits rising offsets until a connection breaks; returns the last acknowledged one.
fn commit_until_broken(address: &str, topic: &str, from: i64, attempted: &AtomicI64) -> i64 {
    let mut wire = Wire::connect(address);
    let mut acknowledged = from;
    loop {
        let next = acknowledged + 1;
        attempted.store(next, Ordering::Relaxed);
        let partition = OffsetCommitRequestPartition::default().with_committed_offset(next);
        let topic = OffsetCommitRequestTopic::default()
            .with_name(topic_name(topic))
            .with_partitions(vec![partition]);
        let request = OffsetCommitRequest::default()
            .with_group_id(group_id(GROUP))
            .with_generation_id_or_member_epoch(-1)
            .with_topics(vec![topic]);
        match wire.try_call(7, &request) {
            Ok(answer) if answer.topics[0].partitions[0].error_code == 0 => acknowledged = next,
            Ok(_) => std::thread::sleep(Duration::from_millis(20)),
            Err(_) => return acknowledged,
        }
    }
}

fn committed(address: &str, topic: &str) -> i64 {
    let mut wire = Wire::connect(address);
    let topic = OffsetFetchRequestTopic::default()
        .with_name(topic_name(topic))
        .with_partition_indexes(vec![0]);
    let request = OffsetFetchRequest::default()
        .with_group_id(group_id(GROUP))
        .with_topics(Some(vec![topic]));
    wait_for("the coordinator serves", || {
        let answer = wire.call(7, &request);
        (answer.error_code == 0).then(|| answer.topics[0].partitions[0].committed_offset)
    })
}

#[test]
fn acknowledged_records_are_there_once_at_their_offsets_after_every_kill() {
    kill_under_load(Plan {
        settings: &[],
        padding: 0,
        records_per_round: 300,
        moves: false,
    });
}

#[test]
fn kills_amid_flushes_checkpoints_and_new_journal_files_lose_nothing() {
    kill_under_load(Plan {
        settings: &[
            "budget.tail.bytes=4194304",
            "checkpoint.interval.bytes=2097152",
            "journal.file.bytes=16777216",
        ],
        padding: 1000,
        records_per_round: 3000,
        moves: false,
    });
}

const IN_TWO_DIRECTORIES: &[&str] = &[
    "log.dirs=data,second",
    "shard.count=4",
    "budget.tail.bytes=8388608",
    "checkpoint.interval.bytes=2097152",
    "journal.file.bytes=16777216",
];

#[test]
fn kills_of_a_store_in_two_directories_lose_nothing() {
    kill_under_load(Plan {
        settings: IN_TWO_DIRECTORIES,
        padding: 1000,
        records_per_round: 2000,
        moves: false,
    });
}

#[test]
fn kills_while_shards_move_between_two_directories_lose_nothing() {
    kill_under_load(Plan {
        settings: IN_TWO_DIRECTORIES,
        padding: 1000,
        records_per_round: 2000,
        moves: true,
    });
}

/// Reshapes the server's topics until told to stop; counts moves.
fn start_reshaper(server: &Server, stop: &Arc<AtomicBool>) -> Arc<AtomicU64> {
    let mut reshaper = server.reshaper(std::io::sink());
    let (moves, stop) = (reshaper.moves(), Arc::clone(stop));
    std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            reshaper.round();
        }
    });
    moves
}

fn kill_under_load(plan: Plan) {
    if foreign().is_some() {
        return;
    }
    let rounds = number("KILL_ROUNDS", 5);
    let seed = number("KILL_SEED", u64::from(std::process::id()));
    println!("KILL_ROUNDS={rounds} KILL_SEED={seed}");
    let mut server = Server::with_settings(plan.settings);
    let address = server.address();
    let topic = new_topic(&mut Wire::connect(&address), PARTITIONS, &[]);
    let stop = Arc::new(AtomicBool::new(false));
    let loads: Vec<Load> = (0..PRODUCERS)
        .map(|name| start_load(&address, &topic, name, plan.padding, &stop))
        .collect();
    let reader = start_reader(&address, &topic, &stop);
    let moves = plan.moves.then(|| start_reshaper(&server, &stop));
    let mut last_commit = -1;
    for round in 0..rounds {
        let counts = || {
            loads
                .iter()
                .map(|load| load.acknowledged.load(Ordering::Relaxed))
        };
        let before: Vec<u64> = counts().collect();
        let attempted = Arc::new(AtomicI64::new(-1));
        let committer = std::thread::spawn({
            let (address, topic, attempted) = (address.clone(), topic.clone(), attempted.clone());
            move || commit_until_broken(&address, &topic, last_commit, &attempted)
        });
        wait_for("every producer is served", || {
            counts()
                .zip(&before)
                .all(|(now, before)| now > before + plan.records_per_round)
                .then_some(())
        });
        server.await_reshapes(2);
        if let Some(moves) = &moves {
            let before = moves.load(Ordering::Relaxed);
            wait_for("shards are moved", || {
                (moves.load(Ordering::Relaxed) > before + 1).then_some(())
            });
        }
        let pause = (seed.wrapping_mul(2_654_435_761).wrapping_add(round * 97)) % 400;
        std::thread::sleep(Duration::from_millis(pause));
        let shown = lineage::of(&server, &topic, PARTITIONS);
        server.kill();
        let acknowledged = committer.join().expect("the committer");
        server.start_again();
        let flaws = lineage::flaws(&shown, &lineage::of(&server, &topic, PARTITIONS));
        assert!(flaws.is_empty(), "round {round}: {flaws:#?}");
        let found = committed(&address, &topic);
        let attempted = attempted.load(Ordering::Relaxed);
        assert!(
            (acknowledged..=attempted.max(acknowledged)).contains(&found),
            "round {round}: committed {found}, acknowledged {acknowledged}, tried {attempted}"
        );
        last_commit = found;
        println!("round {round}: killed after {pause} ms more, commit {found}");
    }
    stop.store(true, Ordering::Relaxed);
    let told: Vec<Vec<Told>> = loads
        .into_iter()
        .map(|load| load.thread.join().expect("a producer"))
        .collect();
    let seen = reader.join().expect("the reader");
    server.kill();
    let (code, text) = server.verify(&[]);
    assert_eq!(code, 0, "{text}");
    server.start_again();
    check(&address, &topic, &told, &seen, plan.padding);
}

/// Reads everything and compares it with what the producers were told and the consumer saw.
fn check(address: &str, topic: &str, told: &[Vec<Told>], seen: &Seen, padding: usize) {
    let mut expected: HashMap<(i32, i64), (usize, usize)> = HashMap::new();
    for (producer, told) in told.iter().enumerate() {
        for (partition, offset, index) in told {
            let other = expected.insert((*partition, *offset), (producer, *index));
            assert_eq!(other, None, "two records at {partition}/{offset}");
        }
    }
    let mut stored = 0;
    for partition in 0..PARTITIONS {
        let end = list_offsets(&mut Wire::connect(address), topic, partition, -1).offset;
        let records = client::read_partition(address, topic, partition, 0, end as usize);
        for (offset, record) in records.iter().enumerate() {
            assert_eq!(record.offset, offset as i64, "offsets have no gaps");
            let known = expected.remove(&(partition, record.offset));
            let (producer, index) = known.expect("no record that nobody was told of");
            let same = record.value == value(producer, index, padding);
            assert!(
                same,
                "{partition}/{offset} is not record {index} of producer {producer}"
            );
            let read = seen.get(&(partition, record.offset));
            let as_read = read.is_none_or(|sum| *sum == crc32c::crc32c(&record.value));
            assert!(
                as_read,
                "a consumer saw another record at {partition}/{offset}"
            );
            stored += 1;
        }
    }
    assert!(
        expected.is_empty(),
        "{} acknowledged records are lost",
        expected.len()
    );
    let places = seen.len();
    println!("{stored} records, each once at its offset; {places} of them were read meanwhile");
}
