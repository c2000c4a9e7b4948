//! Shardgate and Apache Kafka in turn, with the same clients.

use std::time::Duration;

use clap::Args;
use protocol_tests::calls::new_topic;
use protocol_tests::wire::Wire;

use crate::broker::{Broker, Servers};
use crate::load::{self, Shape};
use crate::{librdkafka, median};

const PARTITIONS: i32 = 12;

/// How much to measure.
#[derive(Args)]
pub struct Options {
    /// Which servers.
    #[arg(long, value_enum, default_value_t = Servers::Both)]
    servers: Servers,
    /// Rounds; each starts both servers anew, and the median of the rounds counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Megabytes that the librdkafka client produces and consumes.
    #[arg(long, default_value_t = 1000)]
    megabytes: usize,
    /// Seconds of the load of pre-encoded requests.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

/// One number of a round, named as in the table.
type Figure = (&'static str, &'static str, f64);

/// Measures the servers in turn and prints a table of medians and, for two servers, ratios.
pub fn measure(options: &Options) {
    let starts = options.servers.starts();
    let mut measured: Vec<Vec<Vec<Figure>>> = vec![Vec::new(); starts.len()];
    let mut names = Vec::new();
    for round in 1..=options.rounds {
        for (start, rounds) in starts.iter().zip(&mut measured) {
            let broker = start();
            println!("round {round} of {}: {}", options.rounds, broker.name());
            let figures = round_of(&broker, options);
            for (name, unit, value) in &figures {
                println!("  {name:<36} {value:>10.2} {unit}");
            }
            rounds.push(figures);
            names.push(broker.name());
        }
    }
    names.truncate(starts.len());
    let ratio = if names.len() == 2 { " ratio |" } else { "" };
    println!(
        "\n| median of {} rounds | unit | {} |{ratio}",
        options.rounds,
        names.join(" | ")
    );
    println!(
        "|---|---|{}",
        "---:|".repeat(names.len() + usize::from(names.len() == 2))
    );
    for (index, (name, unit, _)) in measured[0][0].iter().enumerate() {
        let of = |rounds: &Vec<Vec<Figure>>| median(rounds.iter().map(|r| r[index].2).collect());
        let values: Vec<f64> = measured.iter().map(of).collect();
        let cells: String = values
            .iter()
            .map(|value| format!(" {value:.2} |"))
            .collect();
        let ratio = match values[..] {
            [kafka, shardgate] => format!(" {:.2} |", shardgate / kafka),
            _ => String::new(),
        };
        println!("| {name} | {unit} |{cells}{ratio}");
    }
}

fn round_of(broker: &Broker, options: &Options) -> Vec<Figure> {
    let address = broker.address();
    let mut wire = Wire::connect(&address);
    let mut figures = vec![("memory after the start", "MiB", broker.usage().resident_mib)];

    let topic = new_topic(&mut wire, PARTITIONS, &[]);
    let gigabytes = options.megabytes as f64 / 1000.0;
    // A first short run warms caches, connections and the other side's compiler.
    librdkafka::produce(&address, &topic, PARTITIONS, options.megabytes.div_ceil(10));
    let topic = new_topic(&mut wire, PARTITIONS, &[]);
    let before = broker.usage();
    let took = librdkafka::produce(&address, &topic, PARTITIONS, options.megabytes);
    let between = broker.usage();
    figures.push((
        "librdkafka produce, acks=all",
        "MB/s",
        rate(options.megabytes, took),
    ));
    let cpu = (between.cpu_seconds - before.cpu_seconds) / gigabytes;
    figures.push(("librdkafka produce, server CPU", "s/GB", cpu));
    let took = librdkafka::consume(&address, &topic, PARTITIONS, options.megabytes);
    let after = broker.usage();
    figures.push(("librdkafka consume", "MB/s", rate(options.megabytes, took)));
    let cpu = (after.cpu_seconds - between.cpu_seconds) / gigabytes;
    figures.push(("librdkafka consume, server CPU", "s/GB", cpu));

    let topic = new_topic(&mut wire, PARTITIONS, &[]);
    let targets: Vec<load::Target> = (0..PARTITIONS).map(|p| (topic.clone(), p)).collect();
    let shape = Shape {
        connections: 2,
        in_flight: 4,
        batches_per_request: 12,
        batch_bytes: 16 * 1024,
    };
    let before = broker.usage();
    let running = load::start(&address, &targets, shape);
    std::thread::sleep(Duration::from_secs(options.seconds));
    let done = running.stop();
    let after = broker.usage();
    figures.push((
        "pre-encoded produce, acks=all",
        "MB/s",
        done.megabytes_per_second(),
    ));
    let cpu = (after.cpu_seconds - before.cpu_seconds) / (done.bytes as f64 / 1e9);
    figures.push(("pre-encoded produce, server CPU", "s/GB", cpu));
    figures.push(("memory after the loads", "MiB", after.resident_mib));

    // What the loads left behind is written out first.
    std::thread::sleep(Duration::from_secs(5));
    let mut times = load::latencies(&address, &targets[0], 200, 2000);
    times.sort_unstable();
    for (name, part) in [
        ("ack of 1 KiB at 200/s, median", 0.5),
        ("ack of 1 KiB at 200/s, p99", 0.99),
    ] {
        let time = times[(times.len() as f64 * part) as usize];
        figures.push((name, "ms", time.as_secs_f64() * 1e3));
    }
    figures
}

fn rate(megabytes: usize, took: Duration) -> f64 {
    megabytes as f64 / took.as_secs_f64()
}
