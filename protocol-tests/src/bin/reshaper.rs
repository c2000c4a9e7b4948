//! `reshaper ADMIN-HOST:PORT DATA-DIRECTORY`: splits and merges the shards of all topics of a
//! running gateway until it is killed, and tells how often on standard error.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use protocol_tests::reshaper::Reshaper;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, data] = arguments.as_slice() else {
        eprintln!("usage: reshaper ADMIN-HOST:PORT DATA-DIRECTORY");
        return ExitCode::from(2);
    };
    let seed = u64::from(std::process::id());
    let mut reshaper = Reshaper::new(address, Path::new(data), seed);
    let mut told = Instant::now();
    loop {
        reshaper.round();
        if told.elapsed() > Duration::from_secs(5) {
            told = Instant::now();
            let (count, last) = &reshaper.refused;
            eprintln!("reshaped {}, refused {count} {last}", reshaper.done);
        }
    }
}
