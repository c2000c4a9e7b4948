//! docs/compatibility.md, printed from the API table and the lists of the foreign test suites. A
//! test keeps the file up to date; run it with `UPDATE_DOCS=1` to write the file anew.

use std::fmt::Write;

use super::api::{ApiRow, ROWS};
use super::{edge_cases, foreign_suites};

/// What Apache Kafka offers to clients and this server does not, by subject.
const NOT_SERVED: &[(&str, &str)] = &[
    (
        "Transactions",
        "AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit, WriteTxnMarkers, \
         DescribeProducers, DescribeTransactions, ListTransactions",
    ),
    (
        "The consumer protocol of KIP-848, share groups, streams groups",
        "ConsumerGroupHeartbeat, ConsumerGroupDescribe; those for share groups and their offsets; \
         those for streams groups",
    ),
    (
        "Security",
        "SaslHandshake, SaslAuthenticate; those for ACLs, SCRAM users and delegation tokens",
    ),
    ("Quotas", "DescribeClientQuotas, AlterClientQuotas"),
    (
        "Replicas and controllers, of which there are none here",
        "AlterReplicaLogDirs, ElectLeaders, AlterPartitionReassignments, \
         ListPartitionReassignments, DescribeQuorum, UpdateFeatures, UnregisterBroker, \
         AddRaftVoter, RemoveRaftVoter",
    ),
    ("Others", "ListConfigResources"),
];

/// The whole page.
pub fn markdown() -> String {
    let mut out = String::from(HEAD);
    for row in ROWS {
        line(&mut out, row);
    }
    out.push_str(NOTES);
    out.push_str("| subject | APIs |\n|---|---|\n");
    for (subject, apis) in NOT_SERVED {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "| {subject} | {apis} |");
    }
    out.push_str(&edge_cases::markdown());
    out.push_str(&foreign_suites::markdown());
    out.push_str(CONFIGS);
    out.push_str(&crate::config::here::markdown());
    out
}

const HEAD: &str = "\
# Compatibility

<!-- Printed from src/protocol/api.rs and the tables of configs: UPDATE_DOCS=1 cargo test --lib compatibility -->

Clients find out by ApiVersions what a server speaks; this is the same list to read. A version is
served when both our message decoders and Apache Kafka know it, and every version of a range works
without negotiation.

| API | key | here | Apache Kafka 4.4 | notes |
|---|---|---|---|---|
";

const NOTES: &str = "
Clients that know newer versions negotiate down to these by themselves.

## What a connection that misbehaves gets

As from Apache Kafka: an unknown API, a version out of range, a header that ends early or a body
that is not what its version says ends the connection, because without a layout there is no answer.
The one exception is ApiVersions, see its note. What differs: a frame may be as long as its API
needs (Produce 100 MiB, APIs that list partitions or members 4 MiB, others 1 MiB), and one request
may hold 100 000 array elements.

## Record batches

Message format 2 only, as Apache Kafka 4 takes. Beyond its checks, a compressed batch whose offset
deltas do not count up by one is refused (INVALID_RECORD), an uncompressed one with a delta outside
the batch (their order is free, as in Apache Kafka), and so are bytes behind the batch. Compressed
batches are opened and checked without being held in memory, up to a limit on what comes out of
them; beyond it the answer is MESSAGE_TOO_LARGE, on which producers split the batch.

## Idempotent producers

As in Apache Kafka: the last five batches of a producer are known, a batch sent again gets its first
offset, a new epoch starts at sequence 0, and a producer that a partition does not know may start
anywhere, because it may have been forgotten. One case is stricter: a partition that was never
written has forgotten nothing, so it takes only sequence 0 from a producer whose id this server gave
out after the topic was created. Anything else means that an earlier batch was refused or is still on
its way; the answer is OUT_OF_ORDER_SEQUENCE_NUMBER, which clients retry in order. Producers that
outlive their topic go on in the one that is created after it.

## Not served

";

const CONFIGS: &str = "
## Configs

DescribeConfigs answers for every config that Apache Kafka 4.4 has, with its type, default, source
and synonyms; a recording of Apache Kafka holds it to that. Each is accepted, kept and shown.
*honoured* does what it does there, *mapped* does something close, *meaningless here* does nothing,
for the reason given. A change at run time of a config that is honoured acts at once;
`max.connections` and `max.connections.per.ip` can be lowered so, and raised up to what the process
started with. Brokers also list this server's own keys (docs/operations.md), read-only. Where this
differs from Apache Kafka: `num.partitions` and six limits have other defaults, named below, and
`log.retention.hours` shows the value that was set where Apache Kafka shows the built-in one once
`log.retention.ms` was set at run time.
";

fn line(out: &mut String, row: &ApiRow) {
    let kafka = match row.kafka_max {
        max if max == row.max => "the same".to_owned(),
        max => format!("{}–{max}", row.min),
    };
    let versions = match (row.min, row.max) {
        (min, max) if min == max => min.to_string(),
        (min, max) => format!("{min}–{max}"),
    };
    let ApiRow {
        name, key, note, ..
    } = row;
    let _ = writeln!(out, "| {name} | {key} | {versions} | {kafka} | {note} |");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_on_disk_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/compatibility.md");
        let wanted = markdown();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, &wanted).unwrap();
        }
        let found = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            found == wanted,
            "docs/compatibility.md is behind the API table or the suites' lists: run UPDATE_DOCS=1 cargo test --lib \
             compatibility"
        );
    }
}
