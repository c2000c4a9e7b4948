//! The `shardgate` binary.

use std::process::ExitCode;

/// Large buffers come and go with every request; this allocator gives them back cheaply.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    shardgate::cli::run(std::env::args_os())
}
