//! The two servers under measurement, and what the system knows of their processes.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use protocol_tests::Server;
use tempfile::TempDir;

/// A running server.
pub enum Broker {
    /// Shardgate with its default settings.
    Shardgate(Server),
    /// Apache Kafka 4.4.0 with a heap of 1 GiB and G1.
    Kafka(Kafka),
}

/// A Kafka process and its folder.
pub struct Kafka {
    home: TempDir,
    address: String,
}

/// What a process has used so far.
#[derive(Clone, Copy)]
pub struct Usage {
    /// Processor time in user and system mode, in seconds.
    pub cpu_seconds: f64,
    /// Resident memory in MiB.
    pub resident_mib: f64,
}

/// Which servers to measure.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Servers {
    /// Apache Kafka, then Shardgate.
    Both,
    /// Apache Kafka alone.
    Kafka,
    /// Shardgate alone.
    Shardgate,
}

/// Starts a server.
pub type Start = fn() -> Broker;

impl Servers {
    /// How to start each of them, in the order in which they are measured.
    pub fn starts(self) -> Vec<Start> {
        match self {
            Servers::Both => vec![Broker::kafka, Broker::shardgate],
            Servers::Kafka => vec![Broker::kafka],
            Servers::Shardgate => vec![Broker::shardgate],
        }
    }
}

impl Broker {
    /// Starts Shardgate on an empty directory.
    pub fn shardgate() -> Broker {
        Broker::Shardgate(Server::start())
    }

    /// Starts Apache Kafka on an empty directory.
    pub fn kafka() -> Broker {
        let home = tempfile::Builder::new()
            .prefix("kafka-bench-")
            .tempdir()
            .expect("temp dir");
        let output = oracle("start", home.path())
            .output()
            .expect("run kafka_oracle.sh");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "Kafka did not start: {said}");
        let printed = String::from_utf8_lossy(&output.stdout);
        let address = printed
            .split_whitespace()
            .last()
            .expect("an address")
            .to_owned();
        Broker::Kafka(Kafka { home, address })
    }

    /// Its name in tables.
    pub fn name(&self) -> &'static str {
        match self {
            Broker::Shardgate(_) => "shardgate",
            Broker::Kafka(_) => "kafka",
        }
    }

    /// Where it listens.
    pub fn address(&self) -> String {
        match self {
            Broker::Shardgate(server) => server.address(),
            Broker::Kafka(kafka) => kafka.address.clone(),
        }
    }

    /// What its process has used so far.
    pub fn usage(&self) -> Usage {
        usage_of(match self {
            Broker::Shardgate(server) => server.pid(),
            Broker::Kafka(kafka) => kafka.pid(),
        })
    }
}

impl Kafka {
    fn pid(&self) -> u32 {
        let file = self.home.path().join("n1/pid");
        fs::read_to_string(file)
            .ok()
            .and_then(|pid| pid.trim().parse().ok())
            .expect("Kafka's pid")
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        let _ = oracle("stop", self.home.path()).status();
    }
}

fn oracle(command: &str, home: &Path) -> Command {
    let script =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../protocol-tests/suites/kafka_oracle.sh");
    let mut oracle = Command::new("bash");
    oracle.arg(script).arg(command).arg(home);
    oracle
        .env("HEAP", "1g")
        .env("GC", "G1")
        .env("AUTHORIZER", "0")
        .env("RACKS", "0");
    oracle.env("PORT", two_free_ports().to_string());
    oracle
}

/// A free port whose successor is free as well: the script takes the second one for the controller.
fn two_free_ports() -> u16 {
    loop {
        let first = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = first.local_addr().expect("an address").port();
        if port < u16::MAX && TcpListener::bind(("127.0.0.1", port + 1)).is_ok() {
            return port;
        }
    }
}

/// What a process has used so far, out of `/proc`.
pub fn usage_of(pid: u32) -> Usage {
    const TICKS_PER_SECOND: f64 = 100.0;
    let proc = PathBuf::from(format!("/proc/{pid}"));
    let stat = fs::read_to_string(proc.join("stat")).expect("read /proc/PID/stat");
    // The second field is the name in parentheses, which may hold blanks.
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or("")
        .split_whitespace()
        .collect();
    let ticks = |index: usize| {
        fields
            .get(index)
            .and_then(|f| f.parse::<f64>().ok())
            .unwrap_or(0.0)
    };
    let status = fs::read_to_string(proc.join("status")).expect("read /proc/PID/status");
    let resident = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|kib| kib.parse::<f64>().ok())
        .unwrap_or(0.0);
    Usage {
        cpu_seconds: (ticks(11) + ticks(12)) / TICKS_PER_SECOND,
        resident_mib: resident / 1024.0,
    }
}

/// Starts a server, leaves it alone for a minute and prints its memory.
pub fn idle() {
    let broker = Broker::shardgate();
    println!("waiting 60 s");
    std::thread::sleep(Duration::from_secs(60));
    println!(
        "resident memory 60 s after the start: {:.1} MiB",
        broker.usage().resident_mib
    );
}
