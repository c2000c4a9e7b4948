//! The part of docs/compatibility.md about the differential test: how many of its cases agree with
//! Apache Kafka, and for which reasons the rest differ, from the list that a run is judged by.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// One line a case: what Apache Kafka passes, which is all of them.
const CASES: &str = include_str!("../../protocol-tests/suites/baseline-edges.tsv");
/// case, steps, reason, explanation.
const LIST: &str = include_str!("../../protocol-tests/suites/edges.differences.tsv");

const REASONS: &[(&str, &str)] = &[
    (
        "newer-version",
        "asked in a version that our message decoders do not know; in the version before they agree",
    ),
    ("setting", "the recorded broker ran with another setting"),
    ("deliberate", "on purpose, for the reason below"),
    ("not-built", "an API or resource that is not served"),
];

const HEAD: &str = "
## Answers compared with Apache Kafka 4.4

`protocol-tests/suites/edges.sh` sends 1 214 raw requests in cases, malformed ones included, and
compares each answer with a recording of Apache Kafka 4.4.0. CI fails on a difference that is not
listed in `edges.differences.tsv`, and on a listed one that is gone. `edges_settings.sh` records a
live broker anew with other settings and compares with those: limits (7 partitions, 200 kB batches,
no automatic topics), groups (two members at most, other session time-outs), times (LogAppendTime,
offset metadata of 100 bytes, uncompressed topics, a day of retention), and batches rewritten with
gzip. The same list holds there.

";

fn differences() -> Vec<[&'static str; 4]> {
    let lines = LIST.lines().filter(|line| !line.starts_with('#'));
    let columns = |line: &'static str| {
        let mut fields = line.split('\t');
        [(); 4].map(|()| fields.next().unwrap_or_default())
    };
    lines.map(columns).collect()
}

/// The heading, the counts, and each deliberate difference.
pub fn markdown() -> String {
    let mut out = String::from(HEAD);
    let differences = differences();
    let differing: BTreeSet<&str> = differences.iter().map(|line| line[0]).collect();
    let mut cases_of = BTreeMap::<&str, BTreeSet<&str>>::new();
    for [case, _, reason, _] in &differences {
        cases_of.entry(reason).or_default().insert(case);
    }
    let all = CASES.lines().count();
    // Writing to a String cannot fail.
    let _ = writeln!(out, "| answers | cases |\n|---|---|\n| all cases | {all} |");
    let _ = writeln!(out, "| every answer agrees | {} |", all - differing.len());
    for (reason, meaning) in REASONS {
        let count = cases_of.get(reason).map_or(0, BTreeSet::len);
        let _ = writeln!(out, "| some differ, {reason}: {meaning} | {count} |");
    }
    let twice = cases_of.values().map(BTreeSet::len).sum::<usize>() - differing.len();
    let _ = writeln!(
        out,
        "\n{twice} cases count under two reasons. Differences on purpose:\n"
    );
    let _ = writeln!(out, "| case | answers | why |\n|---|---|---|");
    for [case, steps, reason, why] in differences {
        if reason == "deliberate" {
            let _ = writeln!(out, "| `{case}` | {steps} | {why} |");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_list_names_a_case_and_a_reason() {
        let cases: BTreeSet<&str> = CASES.lines().filter_map(|l| l.split('\t').next()).collect();
        for [case, steps, reason, why] in differences() {
            assert!(cases.contains(case), "{case}");
            assert!(
                REASONS.iter().any(|(name, _)| *name == reason),
                "{case}: {reason}"
            );
            assert!(!steps.is_empty() && !why.is_empty(), "{case}");
        }
    }
}
