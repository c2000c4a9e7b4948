//! `reshaper ADMIN-HOST:PORT DATA-DIRECTORY…`: splits and merges the shards of all topics of a
//! running gateway until it is killed, moves them if there are several data directories (the first
//! one first), and prints each.

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use protocol_tests::reshaper::Reshaper;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, directories @ ..] = arguments.as_slice() else {
        eprintln!("usage: reshaper ADMIN-HOST:PORT DATA-DIRECTORY…");
        return ExitCode::from(2);
    };
    let Some(data) = directories.first() else {
        eprintln!("usage: reshaper ADMIN-HOST:PORT DATA-DIRECTORY…");
        return ExitCode::from(2);
    };
    let seed = u64::from(std::process::id());
    let data = Path::new(data);
    let mut reshaper = Reshaper::new(address, data, seed, &Arc::default(), io::stdout())
        .with_directories(directories.to_vec());
    loop {
        reshaper.round();
    }
}
