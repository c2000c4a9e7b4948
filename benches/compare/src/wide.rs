//! Many partitions: the same requests over 12 and over 10 000, and a restart under that load.

use std::time::{Duration, Instant};

use clap::Args;
use protocol_tests::calls::{await_topic, create_topic, list_offsets};
use protocol_tests::wire::Wire;
use protocol_tests::{Server, unique};

use crate::broker::{Broker, Servers, usage_of};
use crate::load::{self, Shape, Target};
use crate::median;

/// How the load looks.
#[derive(Args)]
pub struct Options {
    /// Rounds of each; the median counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of each load.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Partitions of the wide load, half of them in each of two topics.
    #[arg(long, default_value_t = 10_000)]
    partitions: i32,
    /// Bytes of records in one batch.
    #[arg(long, default_value_t = 4096)]
    batch_bytes: usize,
    /// Which servers (`recover` measures Shardgate alone).
    #[arg(long, value_enum, default_value_t = Servers::Shardgate)]
    servers: Servers,
    /// Journal between two checkpoints (`recover`): a large one leaves all of it to be read.
    #[arg(long)]
    checkpoint_bytes: Option<u64>,
}

impl Options {
    fn shape(&self) -> Shape {
        Shape {
            connections: 2,
            in_flight: 4,
            batches_per_request: 12,
            batch_bytes: self.batch_bytes,
        }
    }
}

/// Creates topics and names all their partitions.
fn targets(address: &str, topics: i32, partitions: i32) -> Vec<Target> {
    let mut wire = Wire::connect(address);
    let mut targets = Vec::new();
    for _ in 0..topics {
        let name = unique("wide");
        assert_eq!(
            create_topic(&mut wire, &name, partitions, &[]),
            0,
            "create {name}"
        );
        await_topic(&mut wire, &name, partitions);
        targets.extend((0..partitions).map(|partition| (name.clone(), partition)));
    }
    targets
}

/// Prints the throughput over 12 partitions, over many, and their ratio.
pub fn measure(options: &Options) {
    for start in options.servers.starts() {
        compare(&start(), options);
    }
}

fn compare(broker: &Broker, options: &Options) {
    let address = broker.address();
    let before = broker.usage().resident_mib;
    let narrow = targets(&address, 1, 12);
    let wide = targets(&address, 2, options.partitions / 2);
    let name = broker.name();
    println!(
        "{name}: {} partitions cost {:.1} MiB of memory",
        options.partitions,
        broker.usage().resident_mib - before
    );
    let mut rates = [Vec::new(), Vec::new()];
    for round in 1..=options.rounds {
        for (targets, rates) in [&narrow, &wide].into_iter().zip(&mut rates) {
            let used = broker.usage().cpu_seconds;
            let running = load::start(&address, targets, options.shape());
            std::thread::sleep(Duration::from_secs(options.seconds));
            let done = running.stop();
            let cpu = (broker.usage().cpu_seconds - used) / (done.bytes as f64 / 1e9);
            let rate = done.megabytes_per_second();
            let count = targets.len();
            println!(
                "{name}: round {round}: {count} partitions: {rate:.1} MB/s, {cpu:.2} CPU s/GB"
            );
            rates.push(rate);
        }
    }
    let [narrow, wide] = rates.map(median);
    println!(
        "{name}: median over 12 partitions {narrow:.1} MB/s, over {} {wide:.1} MB/s, ratio {:.2}; \
         {:.1} MiB of memory at the end",
        options.partitions,
        wide / narrow,
        broker.usage().resident_mib
    );
}

/// Prints how long the server takes to serve again after kill -9 under the wide load, and once more
/// right away, when all of the journal is in the page cache.
pub fn recover(options: &Options) {
    let interval = options
        .checkpoint_bytes
        .map(|bytes| format!("checkpoint.interval.bytes={bytes}"));
    let settings: Vec<&str> = interval.iter().map(String::as_str).collect();
    let mut server = Server::with_settings(&settings);
    let address = server.address();
    let targets = targets(&address, 2, options.partitions / 2);
    let mut times = Vec::new();
    for round in 1..=options.rounds {
        let running = load::start(&address, &targets, options.shape());
        std::thread::sleep(Duration::from_secs(options.seconds));
        let acknowledged = running.acknowledged();
        server.kill();
        running.stop();
        let start = Instant::now();
        server.start_again();
        let mut wire = Wire::connect(&address);
        let (topic, partition) = targets.last().expect("partitions");
        let answer = list_offsets(&mut wire, topic, *partition, -1);
        assert_eq!(answer.error_code, 0, "the server serves");
        let took = start.elapsed().as_secs_f64();
        println!(
            "round {round}: killed after {:.0} MB, served again after {took:.2} s",
            acknowledged as f64 / 1e6
        );
        server.kill();
        let start = Instant::now();
        server.start_again();
        // Taken while the journal is replayed, and answered behind it.
        list_offsets(&mut Wire::connect(&address), topic, *partition, -1);
        let (warm, cpu) = (
            start.elapsed().as_secs_f64(),
            usage_of(server.pid()).cpu_seconds,
        );
        let journal = server.metric("replay_total_bytes") / 1e9;
        println!(
            "round {round}: warm, {journal:.2} GB of journal: {:.2} s/GB, {:.2} CPU s/GB",
            warm / journal,
            cpu / journal
        );
        times.push(took);
    }
    println!("median {:.2} s", median(times));
}
