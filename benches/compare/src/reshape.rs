//! What reshapes cost clients, and what a split buys.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use protocol_tests::batch::Batch;
use protocol_tests::calls::{await_topic, create_topic, new_topic, produce_request};
use protocol_tests::reshaper::Reshaper;
use protocol_tests::wire::Wire;
use protocol_tests::{Server, admin};

use crate::load::{self, Shape, Target};

/// Undisturbed rounds.
const ROUNDS: usize = 5;
/// Splits and merges in the disturbed one.
const RESHAPES: u64 = 200;
const PARTITIONS: i32 = 12;
/// Single Produce requests a second whose time is taken.
const RATE: u32 = 500;
const LOAD: Shape = Shape {
    connections: 2,
    in_flight: 4,
    batches_per_request: 12,
    batch_bytes: 16 << 10,
};

#[derive(clap::Args)]
pub struct Options {
    /// Seconds of an undisturbed round; the disturbed one lasts as long as its reshapes take.
    #[arg(long, default_value_t = 10)]
    seconds: u32,
}

/// Times single requests at a steady rate beside a full load: five rounds undisturbed, then one in
/// which the load's topic is split and merged 200 times.
pub fn measure(options: &Options) {
    // A full load for a minute would fill most disks.
    let server = Server::with_settings(&["log.retention.check.interval.ms=500"]);
    let mut wire = Wire::connect(&server.address());
    let topic = new_topic(&mut wire, PARTITIONS, &[("retention.bytes", "67108864")]);
    let targets: Vec<Target> = (0..PARTITIONS).map(|p| (topic.clone(), p)).collect();
    let running = load::start(&server.address(), &targets, LOAD);
    std::thread::sleep(Duration::from_secs(3));
    println!("p50, p99, p99.9 and max of one Produce of 1 KiB at {RATE}/s beside a full load, ms");
    let mut worst = Duration::ZERO;
    for round in 1..=ROUNDS {
        let count = RATE * options.seconds;
        let times = load::latencies(&server.address(), &targets[0], RATE, count);
        worst = worst.max(tell(&format!("undisturbed {round}"), times));
    }
    let (disturbed, done) = reshaped(&server, &targets[0]);
    let seen = tell(&format!("{done} reshapes"), disturbed);
    let done = running.stop();
    println!(
        "p99.9 with reshapes {:.2} ms, worst undisturbed {:.2} ms, ratio {:.2}; the load had {:.0} \
         MB/s over all",
        millis(seen),
        millis(worst),
        seen.as_secs_f64() / worst.as_secs_f64(),
        done.megabytes_per_second(),
    );
    let (_, metrics) = admin::get(&server.admin_address(), "/metrics").expect("metrics");
    for line in metrics
        .lines()
        .filter(|line| line.contains("reshape") && !line.starts_with('#'))
    {
        println!("{line}");
    }
}

fn reshaped(server: &Server, target: &Target) -> (Vec<Duration>, u64) {
    let stop = AtomicBool::new(false);
    let done = Arc::new(AtomicU64::new(0));
    let (address, data) = (server.admin_address(), server.data());
    let mut reshaper = Reshaper::new(&address, &data, 7, &done, std::io::sink());
    let mut times = Vec::new();
    std::thread::scope(|scope| {
        let stop = &stop;
        let watched = scope.spawn(move || {
            let mut times = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                times.extend(load::latencies(&server.address(), target, RATE, RATE));
            }
            times
        });
        while done.load(Ordering::Relaxed) < RESHAPES {
            reshaper.round();
        }
        stop.store(true, Ordering::Relaxed);
        times = watched.join().expect("the watching thread");
    });
    (times, done.load(Ordering::Relaxed))
}

/// Prints a round's percentiles and returns p99.9.
pub fn tell(name: &str, mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    let at = |part: f64| {
        let index = (times.len() as f64 * part) as usize;
        times[index.min(times.len() - 1)]
    };
    println!(
        "{name:<16} {:>8.2} {:>8.2} {:>8.2} {:>8.2}  of {}",
        millis(at(0.5)),
        millis(at(0.99)),
        millis(at(0.999)),
        millis(at(1.0)),
        times.len()
    );
    at(0.999)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Bytes a second that a shard takes in, in [`limits`].
const LIMIT: u64 = 1 << 20;
const BATCH: usize = 32 << 10;

/// A hot and a quiet partition of one shard with a write limit: both are held back before the
/// split, and only the hot one after it.
pub fn limits(options: &Options) {
    let server = Server::start();
    let mut wire = Wire::connect(&server.address());
    let topic = protocol_tests::unique("limits");
    let limit = LIMIT.to_string();
    let configs = [("shard.write.bytes.per.second", limit.as_str())];
    assert_eq!(create_topic(&mut wire, &topic, 2, &configs), 0);
    await_topic(&mut wire, &topic, 2);
    println!(
        "write limit of a shard {LIMIT} bytes/s; the hot partition is written to as fast as it takes"
    );
    println!("when     hot bytes/s  quiet p50 ms  quiet max ms  quiet told to pause");
    round("before", &server, &topic, options.seconds);
    let (_, text) = admin::get(&server.admin_address(), "/shards").expect("the admin port");
    let views: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let view = views
        .as_array()
        .and_then(|all| all.iter().find(|view| view["topic"] == topic[..]));
    let shard = view.expect("the topic")["shards"][0]["id"].clone();
    let token = std::fs::read_to_string(server.data().join("admin.token")).expect("the token");
    let body = serde_json::json!({ "shards": [shard], "at": "middle" }).to_string();
    let path = format!("/topics/{topic}/reshape");
    let (status, text) =
        admin::post(&server.admin_address(), &path, token.trim(), &body).expect("the admin port");
    assert_eq!(status, 200, "{text}");
    round("after", &server, &topic, options.seconds);
}

fn round(name: &str, server: &Server, topic: &str, seconds: u32) {
    let stop = AtomicBool::new(false);
    let started = Instant::now();
    let (mut hot, mut times, mut paused) = (0, Vec::new(), 0);
    std::thread::scope(|scope| {
        let stop = &stop;
        let writer = scope.spawn(move || {
            let mut wire = Wire::connect(&server.address());
            let batch = Batch::of(&[&"h".repeat(BATCH)]).bytes();
            let request = produce_request(topic, 0, -1, batch);
            let mut bytes = 0;
            while !stop.load(Ordering::Relaxed) {
                wire.call(9, &request);
                bytes += BATCH as u64;
            }
            bytes
        });
        let mut wire = Wire::connect(&server.address());
        let request = produce_request(topic, 1, -1, Batch::of(&["quiet"]).bytes());
        while started.elapsed() < Duration::from_secs(seconds.into()) {
            let sent = Instant::now();
            let answer = wire.call(9, &request);
            times.push(sent.elapsed());
            paused += u32::from(answer.throttle_time_ms > 0);
            std::thread::sleep(Duration::from_millis(100).saturating_sub(sent.elapsed()));
        }
        stop.store(true, Ordering::Relaxed);
        hot = writer.join().expect("the hot writer");
    });
    times.sort_unstable();
    println!(
        "{name:<8} {:>11.0}  {:>12.2}  {:>12.2}  {paused} of {}",
        hot as f64 / started.elapsed().as_secs_f64(),
        millis(times[times.len() / 2]),
        millis(times[times.len() - 1]),
        times.len()
    );
}
