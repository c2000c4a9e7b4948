//! A server under load for a long time: retention rolls, thousands of connections come and go,
//! some clients read slowly and some are dead. Memory, open files and the directory stay level.
//!
//! `SOAK_SECONDS` is its length (60; the long run is `SOAK_SECONDS=3600`), `SOAK_CONNECTIONS` the
//! number of connections (5000, or what the limit of open files allows).

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use protocol_tests::batch::Batch;
use protocol_tests::calls::*;
use protocol_tests::wire::Wire;
use protocol_tests::{Server, foreign};

const PARTITIONS: i32 = 8;
const SLOW_READERS: usize = 8;
const DEAD_PEERS: usize = 40;
const SETTINGS: &[&str] = &[
    "budget.tail.bytes=8388608",
    "checkpoint.interval.bytes=16777216",
    "journal.file.bytes=16777216",
    "log.retention.check.interval.ms=1000",
    "frame.timeout.ms=3000",
    "max.connections=20000",
];

struct Soak<'a> {
    address: String,
    topic: &'a str,
    stop: AtomicBool,
    produced: AtomicU64,
    fetched: AtomicU64,
    opened: AtomicU64,
    cut: AtomicU64,
}

impl Soak<'_> {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
}

fn number(name: &str, default: u64) -> u64 {
    let value = std::env::var(name).ok();
    value.and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// Files that this process may have open.
fn file_limit() -> u64 {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().nth(3)?.parse().ok());
    soft.unwrap_or(1024)
}

/// About 2 MB a second.
fn produce_steadily(soak: &Soak<'_>) {
    let mut wire = Wire::connect(&soak.address);
    let value = "x".repeat(10_000);
    let values = [&value[..]; 4];
    let mut partition = 0;
    while soak.goes_on() {
        let batch = Batch::of(&values);
        let answer = produce(&mut wire, soak.topic, partition, &batch);
        assert_eq!(answer.error_code, 0, "produce");
        partition = (partition + 1) % PARTITIONS;
        soak.produced.fetch_add(40_000, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Follows the end of the log, and now and then reads its start.
fn follow(soak: &Soak<'_>) {
    let mut wire = Wire::connect(&soak.address);
    let mut offsets = [0; PARTITIONS as usize];
    while soak.goes_on() {
        for partition in 0..PARTITIONS {
            let offset = &mut offsets[partition as usize];
            let answer = fetch(&mut wire, soak.topic, partition, Wanted::from(*offset));
            match answer.error_code {
                0 => {}
                // Retention took the records: go on where the log begins now.
                1 => {
                    *offset = list_offsets(&mut wire, soak.topic, partition, -2).offset;
                    continue;
                }
                code => panic!("fetch: error {code}"),
            }
            let records = answer.records.unwrap_or_default();
            soak.fetched
                .fetch_add(records.len() as u64, Ordering::Relaxed);
            if let Some(last) = protocol_tests::batch::headers(&records).last() {
                *offset = last.last_offset + 1;
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Connections that ask once and stay; some end and others come in their place.
fn crowd(soak: &Soak<'_>, size: usize) {
    let mut open: Vec<TcpStream> = Vec::with_capacity(size);
    let mut oldest = 0;
    while soak.goes_on() {
        let room = size - open.len();
        for _ in 0..room.min(50) {
            open.push(greet(soak));
        }
        if room == 0 {
            for _ in 0..10 {
                open[oldest] = greet(soak);
                oldest = (oldest + 1) % size;
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn greet(soak: &Soak<'_>) -> TcpStream {
    soak.opened.fetch_add(1, Ordering::Relaxed);
    let mut stream = TcpStream::connect(&soak.address).expect("connect");
    // ApiVersions, version 0, without a client id.
    let request = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0xff, 0xff];
    stream.write_all(&request).expect("send");
    let mut length = [0; 4];
    stream.read_exact(&mut length).expect("an answer");
    let mut answer = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut answer).expect("an answer");
    stream
}

/// Asks for much and reads a little at a time.
fn read_slowly(soak: &Soak<'_>) {
    while soak.goes_on() {
        let mut stream = ask_for_much(soak);
        let mut some = [0; 16 * 1024];
        let timeout = Some(Duration::from_millis(500));
        stream.set_read_timeout(timeout).expect("a timeout");
        while soak.goes_on() {
            match stream.read(&mut some) {
                Ok(0) => break,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
                _ => std::thread::sleep(Duration::from_millis(100)),
            }
        }
        soak.cut.fetch_add(1, Ordering::Relaxed);
    }
}

fn ask_for_much(soak: &Soak<'_>) -> TcpStream {
    let mut stream = TcpStream::connect(&soak.address).expect("connect");
    let mut wanted = Wanted::from(0);
    let mut wire = Wire::connect(&soak.address);
    wanted.offset = list_offsets(&mut wire, soak.topic, 0, -2).offset;
    let request = wanted.request(soak.topic, &(0..PARTITIONS).collect::<Vec<_>>());
    let mut body = bytes::BytesMut::new();
    kafka_protocol::protocol::Encodable::encode(&request, &mut body, 11).expect("encode");
    let mut frame = vec![0, 1, 0, 11, 0, 0, 0, 1, 0xff, 0xff];
    frame.extend_from_slice(&body);
    // Several requests: only the first answers fit into the socket.
    for _ in 0..4 {
        let length = (frame.len() as u32).to_be_bytes();
        if stream.write_all(&[&length[..], &frame].concat()).is_err() {
            break;
        }
    }
    stream
}

/// Peers that stop in the middle of a request, or never read their answers.
fn be_dead(soak: &Soak<'_>) {
    let mut peers: Vec<TcpStream> = Vec::new();
    let mut turn = 0;
    while soak.goes_on() {
        while peers.len() < DEAD_PEERS {
            turn += 1;
            peers.push(match turn % 4 {
                0 => ask_for_much(soak),
                _ => {
                    let mut stream = TcpStream::connect(&soak.address).expect("connect");
                    // A Produce request of 100 000 bytes, of which a few come.
                    let begun = [0, 1, 0x86, 0xa0, 0, 0, 0, 9, 0, 0, 0, 1, 0xff, 0xff, 0xff];
                    stream.write_all(&begun).expect("send");
                    stream
                }
            });
        }
        peers.retain_mut(|stream| {
            stream.set_nonblocking(true).expect("non-blocking");
            let mut byte = [0];
            let open = match stream.peek(&mut byte) {
                Ok(read) => read > 0,
                Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
            };
            soak.cut.fetch_add(u64::from(!open), Ordering::Relaxed);
            open
        });
        // Some vanish by themselves.
        if turn % 7 == 0 && !peers.is_empty() {
            peers.remove(0);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// What is measured once a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Sample {
    resident_kib: u64,
    open_files: u64,
    directory_kib: u64,
}

fn sample(server: &Server) -> Sample {
    Sample {
        resident_kib: server.resident_kib(),
        open_files: server.open_files(),
        directory_kib: bytes_below(&server.data()) / 1024,
    }
}

fn bytes_below(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.path() {
            path if path.is_dir() => bytes_below(&path),
            path => fs::metadata(path).map_or(0, |data| data.len()),
        })
        .sum()
}

/// The middle of each figure.
fn median(samples: &[Sample]) -> Sample {
    let middle = |figure: &dyn Fn(&Sample) -> u64| {
        let mut figures: Vec<u64> = samples.iter().map(figure).collect();
        figures.sort_unstable();
        figures[figures.len() / 2]
    };
    Sample {
        resident_kib: middle(&|s| s.resident_kib),
        open_files: middle(&|s| s.open_files),
        directory_kib: middle(&|s| s.directory_kib),
    }
}

#[test]
#[ignore = "takes a minute or, as asked, an hour; .ci/run has the short one"]
fn memory_and_files_stay_level() {
    if foreign().is_some() {
        return;
    }
    let seconds = number("SOAK_SECONDS", 60).max(30);
    let most = file_limit().saturating_sub(500);
    let crowd_size = number("SOAK_CONNECTIONS", 5000).min(most) as usize;
    let mut server = Server::with_settings(SETTINGS);
    let mut wire = Wire::connect(&server.address());
    let configs = [("retention.bytes", "2000000"), ("retention.ms", "20000")];
    let topic = new_topic(&mut wire, PARTITIONS, &configs);
    let soak = Soak {
        address: server.address(),
        topic: &topic,
        stop: AtomicBool::new(false),
        produced: AtomicU64::new(0),
        fetched: AtomicU64::new(0),
        opened: AtomicU64::new(0),
        cut: AtomicU64::new(0),
    };
    let mut samples = Vec::new();
    std::thread::scope(|scope| {
        let soak = &soak;
        scope.spawn(move || produce_steadily(soak));
        scope.spawn(move || follow(soak));
        scope.spawn(move || crowd(soak, crowd_size));
        scope.spawn(move || be_dead(soak));
        for _ in 0..SLOW_READERS {
            scope.spawn(move || read_slowly(soak));
        }
        let until = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < until {
            std::thread::sleep(Duration::from_secs(1));
            samples.push(sample(&server));
            if samples.len() % 60 == 0 {
                println!("{} s: {:?}", samples.len(), samples[samples.len() - 1]);
            }
        }
        soak.stop.store(true, Ordering::Relaxed);
    });
    let third = samples.len() / 3;
    let (middle, last) = (
        median(&samples[third..2 * third]),
        median(&samples[2 * third..]),
    );
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "{seconds} s, {crowd_size} connections ({} opened, {} cut): {} MB in, {} MB out",
        count(&soak.opened),
        count(&soak.cut),
        count(&soak.produced) / 1_000_000,
        count(&soak.fetched) / 1_000_000
    );
    println!("middle third {middle:?}\nlast third   {last:?}");
    let level = |before: u64, after: u64, slack: u64| after <= before + before / 10 + slack;
    assert!(
        level(middle.resident_kib, last.resident_kib, 8 * 1024),
        "memory grows"
    );
    assert!(
        level(middle.open_files, last.open_files, 50),
        "open files grow"
    );
    assert!(
        level(middle.directory_kib, last.directory_kib, 16 * 1024),
        "the directory grows"
    );
    assert!(count(&soak.fetched) > 0 && count(&soak.cut) > 0);
    let start = list_offsets(&mut Wire::connect(&server.address()), &topic, 0, -2).offset;
    assert!(start > 0, "retention rolls");
    settle(&server);
    assert!(server.terminate(), "the server stops well");
    let (code, text) = server.verify(&[]);
    println!("{text}");
    assert_eq!(code, 0, "{text}");
}

/// When all clients are gone, their files are.
fn settle(server: &Server) {
    let left = protocol_tests::wait_for("connections are let go", || {
        let open = server.open_files();
        (open < 400).then_some(open)
    });
    println!(
        "{left} files open without clients, {} KiB resident",
        server.resident_kib()
    );
}
