//! Measures Shardgate beside Apache Kafka, with the same clients on the same machine, in turn.
//!
//! | command | what it measures |
//! |---|---|
//! | `kafka` | produce, consume, latency, CPU and memory of both, as ratios |
//! | `wide` | pre-encoded Produce requests over 12 and over 10 000 partitions |
//! | `recover` | time to serve again after kill -9 under the load over 10 000 partitions |
//! | `reshape` | latency of Produce under full load, undisturbed and over 200 splits and merges |
//! | `limits` | a hot and a quiet partition of a shard with a write limit, before and after a split |
//! | `directories` | latency of Produce to one data directory while another one's device is slow |
//! | `idle` | memory of a server that nobody uses, 60 s after its start |

mod broker;
mod directories;
mod kafka;
mod librdkafka;
mod load;
mod reshape;
mod wide;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Shardgate measured beside Apache Kafka, with the same clients")]
struct Arguments {
    #[command(subcommand)]
    command: Measure,
}

#[derive(Subcommand)]
enum Measure {
    /// Shardgate and Apache Kafka in turn: throughput, latency, CPU, memory.
    Kafka(kafka::Options),
    /// Produce over 12 partitions and over 10 000, in turn.
    Wide(wide::Options),
    /// How long a restart takes after kill -9 under load over 10 000 partitions.
    Recover(wide::Options),
    /// Latency of Produce under full load, undisturbed and over 200 splits and merges.
    Reshape(reshape::Options),
    /// A hot and a quiet partition of a shard with a write limit, before and after a split.
    Limits(reshape::Options),
    /// Latency of Produce to one data directory while another one's device is slow.
    Directories(directories::Options),
    /// Resident memory 60 s after the start.
    Idle,
}

fn main() {
    match Arguments::parse().command {
        Measure::Kafka(options) => kafka::measure(&options),
        Measure::Wide(options) => wide::measure(&options),
        Measure::Recover(options) => wide::recover(&options),
        Measure::Reshape(options) => reshape::measure(&options),
        Measure::Limits(options) => reshape::limits(&options),
        Measure::Directories(options) => directories::measure(&options),
        Measure::Idle => broker::idle(),
    }
}

/// The middle value; of an even number of values the lower one of the two.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values
        .get(values.len().saturating_sub(1) / 2)
        .copied()
        .unwrap_or(f64::NAN)
}
