//! The part of docs/compatibility.md about foreign test suites: what Apache Kafka passes and what
//! this server has to pass, from the lists that a run is judged by (protocol-tests/suites).

use std::collections::BTreeMap;
use std::fmt::Write;

/// A suite: what it is called, what Apache Kafka 4.4 passes, and what must pass here.
struct Suite {
    name: &'static str,
    kafka: &'static str,
    here: &'static str,
}

const SUITES: &[Suite] = &[
    Suite {
        name: "librdkafka",
        kafka: include_str!("../../protocol-tests/suites/baseline-librdkafka.tsv"),
        here: include_str!("../../protocol-tests/suites/librdkafka.expected"),
    },
    Suite {
        name: "rust-rdkafka",
        kafka: include_str!("../../protocol-tests/suites/baseline-rust-rdkafka.tsv"),
        here: include_str!("../../protocol-tests/suites/rust-rdkafka.expected"),
    },
];

const HEAD: &str = "
## Foreign test suites

librdkafka 2.12.1's and rust-rdkafka 0.39.0's own tests, in full mode with the classic group
protocol. `protocol-tests/suites/run-librdkafka.sh` and `run-rust-rdkafka.sh` run them; the lists
beside those scripts say what a run must show. Apache Kafka's column is its best configuration
(three brokers, an authorizer, TLS and SASL where a test wants them); here it is one node. Tests
that librdkafka marks as local or as known issues do not count. A test some of whose subtests are
exceptions runs by subtest (`test/subtest`).

";

/// One row of a list by its column names; a column that is not there reads as nothing.
type Row<'a> = BTreeMap<&'a str, &'a str>;

fn rows(text: &str) -> Vec<Row<'_>> {
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let names: Vec<&str> = lines.next().unwrap_or_default().split('\t').collect();
    lines
        .map(|line| names.iter().copied().zip(line.split('\t')).collect())
        .collect()
}

fn column<'a>(row: &Row<'a>, name: &str) -> &'a str {
    row.get(name).copied().unwrap_or_default()
}

/// The heading, the sums, what does not pass on both sides, and the names of what does.
pub fn markdown() -> String {
    let mut sums = String::from(
        "| suite | tests and subtests | pass on Apache Kafka 4.4 | pass here | exceptions |\n|---|---|---|---|---|\n",
    );
    let mut differ = String::from(
        "\n| suite | test | Apache Kafka 4.4 | here | reason |\n|---|---|---|---|---|\n",
    );
    let mut same = String::new();
    for suite in SUITES {
        let kafka: BTreeMap<&str, &str> = rows(suite.kafka)
            .iter()
            .map(|row| (column(row, "test"), column(row, "result")))
            .collect();
        let here = rows(suite.here);
        let (mut theirs, mut ours, mut names) = (0, 0, Vec::new());
        for row in &here {
            let test = column(row, "test");
            let whole = test.split('/').next().unwrap_or_default();
            let there = kafka.get(whole).copied().unwrap_or("not run");
            let passes_here = column(row, "expect") == "pass";
            theirs += usize::from(matches!(there, "pass" | "flaky"));
            ours += usize::from(passes_here);
            if passes_here && there == "pass" {
                names.push(format!("`{}`", test.trim_end_matches(':')));
            } else {
                let result = if passes_here { "pass" } else { "exception" };
                let (name, test) = (suite.name, test.trim_end_matches(':'));
                let why = column(row, "why");
                // Writing to a String cannot fail.
                let _ = writeln!(differ, "| {name} | `{test}` | {there} | {result} | {why} |");
            }
        }
        let (name, all) = (suite.name, here.len());
        let _ = writeln!(
            sums,
            "| {name} | {all} | {theirs} | {ours} | {} |",
            all - ours
        );
        let _ = writeln!(same, "\nPass on both, {name}: {}.", names.join(", "));
    }
    format!("{HEAD}{sums}{differ}{same}")
}
