//! What a slow device under one data directory costs the clients of another.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use protocol_tests::Server;
use protocol_tests::calls::new_topic;
use protocol_tests::trace::{attach, detach, slow_journal};
use protocol_tests::wire::Wire;

use crate::load::{self, Target};
use crate::reshape::tell;

/// Single Produce requests a second to each directory.
const RATE: u32 = 200;
/// Time that a sync on the slowed directory takes longer, in microseconds.
const DELAY: u32 = 20_000;

#[derive(clap::Args)]
pub struct Options {
    /// Seconds of a round.
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// Rounds of each kind, in turn.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
}

/// Times single requests to one directory while others go to a second one, whose journal is as fast
/// as it is or syncs 20 ms slower. The server is traced in both cases, so that tracing costs the same.
pub fn measure(options: &Options) {
    let server = Server::with_settings(&["log.dirs=data,second", "shard.count=2"]);
    let topic = new_topic(&mut Wire::connect(&server.address()), 2, &[]);
    let (first, second) = ((topic.clone(), 0), (topic, 1));
    println!("p50, p99, p99.9 and max of one Produce of 1 KiB at {RATE}/s to each directory, ms");
    for _ in 0..options.rounds {
        for (name, delay) in [("even", 0), ("20 ms syncs", DELAY)] {
            let journal = server.data().with_file_name("second");
            let strace = slow_journal(&journal, delay.max(1));
            let strace: Vec<&str> = strace.iter().map(String::as_str).collect();
            let output = server.data().with_file_name("trace");
            let strace = attach(&server, &strace, &output).expect("strace");
            let (fast, slow) = round(&server, &first, &second, options.seconds);
            detach(strace);
            tell(&format!("{name}, 1st"), fast);
            tell(&format!("{name}, 2nd"), slow);
        }
    }
}

/// The times of the first directory's requests, and of the second one's beside them.
fn round(
    server: &Server,
    first: &Target,
    second: &Target,
    seconds: u32,
) -> (Vec<Duration>, Vec<Duration>) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| {
            let mut times = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                times.extend(load::latencies(&server.address(), second, RATE, RATE / 10));
            }
            times
        });
        let times = load::latencies(&server.address(), first, RATE, RATE * seconds);
        stop.store(true, Ordering::Relaxed);
        (times, beside.join().expect("the other directory"))
    })
}
