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
use protocol_tests::{Server, foreign, wait_for};
use rdkafka::producer::{BaseRecord, Producer};

const PARTITIONS: i32 = 8;
const PRODUCERS: usize = 3;
const GROUP: &str = "committer";

/// One idempotent producer under way, and what it has been told.
struct Load {
    thread: JoinHandle<Vec<Told>>,
    acknowledged: Arc<AtomicU64>,
}

/// An acknowledged record: partition, offset, value.
type Told = (i32, i64, String);

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|value| value.parse().ok())
        .unwrap_or(default)
}

fn start_load(address: &str, topic: &str, name: usize, stop: &Arc<AtomicBool>) -> Load {
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
    let thread = std::thread::spawn(move || run_load(&producer, &topic, name, &stop, &counter));
    Load {
        thread,
        acknowledged,
    }
}

fn run_load(
    producer: &ReportingProducer,
    topic: &str,
    name: usize,
    stop: &AtomicBool,
    acknowledged: &AtomicU64,
) -> Vec<Told> {
    let value = |index: usize| format!("producer {name} record {index}");
    let mut told = Vec::new();
    let mut collect = || {
        let mut reports = producer.context().received.lock().expect("reports");
        for (index, fate) in reports.drain(..) {
            let (partition, offset) = fate.expect("an idempotent producer delivers in the end");
            told.push((partition, offset, value(index)));
            acknowledged.fetch_add(1, Ordering::Relaxed);
        }
    };
    let mut index = 0;
    while !stop.load(Ordering::Relaxed) {
        let payload = value(index);
        let record = BaseRecord::<(), [u8], Box<usize>>::with_opaque_to(topic, Box::new(index))
            .partition(index as i32 % PARTITIONS)
            .payload(payload.as_bytes());
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
    if foreign().is_some() {
        return;
    }
    let rounds = number("KILL_ROUNDS", 5);
    let seed = number("KILL_SEED", u64::from(std::process::id()));
    println!("KILL_ROUNDS={rounds} KILL_SEED={seed}");
    let mut server = Server::start();
    let address = server.address();
    let topic = new_topic(&mut Wire::connect(&address), PARTITIONS, &[]);
    let stop = Arc::new(AtomicBool::new(false));
    let loads: Vec<Load> = (0..PRODUCERS)
        .map(|name| start_load(&address, &topic, name, &stop))
        .collect();
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
                .all(|(now, before)| now > before + 300)
                .then_some(())
        });
        let pause = (seed.wrapping_mul(2_654_435_761).wrapping_add(round * 97)) % 400;
        std::thread::sleep(Duration::from_millis(pause));
        server.kill();
        let acknowledged = committer.join().expect("the committer");
        server.start_again();
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
    server.kill();
    server.start_again();
    check(&address, &topic, &told);
}

/// Reads everything and compares it with what the producers were told.
fn check(address: &str, topic: &str, told: &[Vec<Told>]) {
    let mut expected: HashMap<(i32, i64), &str> = HashMap::new();
    for (partition, offset, value) in told.iter().flatten() {
        let other = expected.insert((*partition, *offset), value);
        assert_eq!(other, None, "two records at {partition}/{offset}");
    }
    let mut stored = 0;
    for partition in 0..PARTITIONS {
        let end = list_offsets(&mut Wire::connect(address), topic, partition, -1).offset;
        let records = client::read_partition(address, topic, partition, 0, end as usize);
        for (offset, record) in records.iter().enumerate() {
            let value = String::from_utf8_lossy(&record.value);
            assert_eq!(record.offset, offset as i64, "offsets have no gaps");
            let known = expected.remove(&(partition, record.offset));
            assert_eq!(known, Some(value.as_ref()), "at {partition}/{offset}");
            stored += 1;
        }
    }
    assert!(
        expected.is_empty(),
        "{} acknowledged records are lost",
        expected.len()
    );
    println!("{stored} records, each once at its offset");
}
