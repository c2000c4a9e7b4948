//! The keys of groups, other clients, the store and the budgets.

use std::path::PathBuf;

use super::Config;
use super::JournalSync;
use super::keys::{Key, honoured, mapped, millis};
use super::value::{ConfigError, Raw};

pub(super) static CLIENTS: &[Key] = &[
    honoured(
        "fetch.max.bytes",
        "57671680",
        "Most bytes in one Fetch answer",
        |c, raw| {
            c.fetch_max_bytes = raw.number(1_024..=i32::MAX)?;
            Ok(())
        },
    ),
    honoured(
        "fetch.max.wait.limit.ms",
        "300000",
        "Longest wait that a Fetch gets",
        |c, raw| {
            c.fetch_max_wait_ms = raw.number(0..=i32::MAX)?;
            Ok(())
        },
    ),
    honoured(
        "max.incremental.fetch.session.cache.slots",
        "1000",
        "Fetch sessions kept at once",
        |c, raw| {
            c.fetch_sessions = raw.number(0..=1_000_000)?;
            Ok(())
        },
    ),
    honoured(
        "producer.id.expiration.ms",
        "86400000",
        "A producer idle for longer is forgotten",
        |c, raw| {
            c.producer_id_expiration_ms = raw.number(1..=i64::from(i32::MAX))?;
            Ok(())
        },
    ),
    honoured(
        "max.producers.per.partition",
        "10000",
        "Idempotent producers remembered by one partition; the longest idle one goes first",
        |c, raw| {
            c.max_producers_per_partition = raw.number(1..=10_000_000)?;
            Ok(())
        },
    ),
];

pub(super) static GROUPS: &[Key] = &[
    honoured(
        "group.min.session.timeout.ms",
        "6000",
        "Shortest session a member may ask for",
        |c, raw| {
            c.group.min_session_timeout_ms = raw.number(0..=i32::MAX)?;
            Ok(())
        },
    ),
    honoured(
        "group.max.session.timeout.ms",
        "1800000",
        "Longest session",
        |c, raw| {
            c.group.max_session_timeout_ms = raw.number(0..=i32::MAX)?;
            Ok(())
        },
    ),
    honoured(
        "group.initial.rebalance.delay.ms",
        "3000",
        "How long a new group waits for more members",
        |c, raw| {
            c.group.initial_rebalance_delay_ms = raw.number(0..=i32::MAX)?;
            Ok(())
        },
    ),
    honoured(
        "group.max.size",
        "2147483647",
        "Most members in a group",
        |c, raw| {
            c.group.max_size = raw.number(1..=i32::MAX)?;
            Ok(())
        },
    ),
    honoured(
        "offset.metadata.max.bytes",
        "4096",
        "Longest text beside a committed offset",
        |c, raw| {
            c.group.offset_metadata_max_bytes = raw.number(0..=i32::MAX)?;
            Ok(())
        },
    ),
    honoured(
        "offsets.topic.num.partitions",
        "50",
        "Partitions of `__consumer_offsets`, fixed at its creation",
        |c, raw| {
            c.group.offsets_topic_partitions = raw.number(1..=10_000)?;
            Ok(())
        },
    ),
    mapped(
        "offsets.topic.replication.factor",
        "1",
        "Kept and shown",
        |c, raw| {
            c.group.offsets_topic_replication_factor = raw.number(1..=i16::MAX)?;
            Ok(())
        },
    ),
    honoured(
        "offsets.retention.minutes",
        "10080",
        "Offsets of a group without members are forgotten after this time",
        |c, raw| {
            c.group.offsets_retention_ms = raw.number(1..=i64::from(i32::MAX))? * 60_000;
            Ok(())
        },
    ),
    honoured(
        "offsets.retention.check.interval.ms",
        "600000",
        "How often that is looked at",
        |c, raw| {
            c.group.offsets_retention_check_interval_ms = raw.number(1..=i64::MAX)?;
            Ok(())
        },
    ),
];

pub(super) static STORE: &[Key] = &[
    honoured(
        "log.dirs",
        "data",
        "The data directories, commas between; the first one also holds topics, configs and groups",
        directories,
    ),
    mapped("log.dir", "data", "As `log.dirs`", directories),
    honoured(
        "describe.log.dirs.shards",
        "false",
        "kafka-log-dirs shows each shard as a directory of its own below its data directory",
        |c, raw| {
            c.describe_shards = raw.boolean()?;
            Ok(())
        },
    ),
    honoured(
        "journal.sync",
        "always",
        "`always`: on stable storage before it is acknowledged. A number of milliseconds: synced \
         that often, and a power loss takes what was acknowledged since",
        |c, raw| {
            c.journal_sync = match raw.value.trim() {
                word if word.eq_ignore_ascii_case("always") => JournalSync::Always,
                _ => JournalSync::Interval(
                    millis(raw, 1..=60_000).map_err(|_| raw.error(SYNC_ALLOWED))?,
                ),
            };
            Ok(())
        },
    ),
    honoured(
        "journal.file.bytes",
        "67108864",
        "Size of a journal file",
        |c, raw| {
            c.journal_file_bytes = raw.number((16 << 20)..=(4 << 30))?;
            Ok(())
        },
    ),
    honoured(
        "journal.truncate.corruption",
        "false",
        "Cuts a damaged journal at the damage instead of refusing to start; what lies behind is lost",
        |c, raw| {
            c.journal_truncate_corruption = raw.boolean()?;
            Ok(())
        },
    ),
    honoured(
        "checkpoint.interval.bytes",
        "268435456",
        "Journal between two checkpoints",
        |c, raw| {
            c.checkpoint_interval_bytes = raw.number((1 << 20)..=(1 << 40))?;
            Ok(())
        },
    ),
    honoured(
        "disk.reserve.bytes",
        "268435456",
        "With less than this free, client writes are refused until there is room again",
        |c, raw| {
            c.disk_reserve_bytes = raw.number(0..=(1 << 50))?;
            Ok(())
        },
    ),
];

const SYNC_ALLOWED: &str = "always, or a number of milliseconds from 1 to 60000, is allowed";

/// Data directories that a node may have: each has threads and a journal of its own.
const MAX_DIRECTORIES: usize = 64;

fn directories(config: &mut Config, raw: Raw<'_>) -> Result<(), ConfigError> {
    let directories: Vec<PathBuf> = raw.list().into_iter().map(PathBuf::from).collect();
    if directories.is_empty() {
        return Err(raw.error("a directory is needed"));
    }
    if directories.len() > MAX_DIRECTORIES {
        return Err(raw.error(format!("at most {MAX_DIRECTORIES} directories are allowed")));
    }
    let twice = (1..directories.len()).find(|at| directories[..*at].contains(&directories[*at]));
    if let Some(at) = twice {
        let name = directories[at].display();
        return Err(raw.error(format!("{name} is named twice")));
    }
    config.data_dirs = directories;
    Ok(())
}

pub(super) static BUDGETS: &[Key] = &[
    honoured(
        "budget.tail.bytes",
        "67108864",
        "Appended data that no segment holds yet",
        |c, raw| {
            c.budgets.tail = raw.number(bytes(4 << 20))?;
            Ok(())
        },
    ),
    honoured(
        "budget.requests.bytes",
        "16777216",
        "Requests being read and handled",
        |c, raw| {
            c.budgets.requests = raw.number(bytes(1 << 20))?;
            Ok(())
        },
    ),
    mapped(
        "queued.max.request.bytes",
        "-1",
        "As `budget.requests.bytes`; -1 leaves that at its default",
        |c, raw| {
            if let Ok(limit) = u64::try_from(raw.number(-1..=i64::MAX)?) {
                c.budgets.requests = limit.clamp(1 << 20, u64::from(u32::MAX));
            }
            Ok(())
        },
    ),
    honoured(
        "budget.small.requests.bytes",
        "4194304",
        "Requests up to 64 KiB other than Produce, so that heartbeats pass under overload",
        |c, raw| {
            c.budgets.small_requests = raw.number(bytes(1 << 18))?;
            Ok(())
        },
    ),
    honoured(
        "budget.responses.bytes",
        "16777216",
        "Answers that were not sent yet",
        |c, raw| {
            c.budgets.responses = raw.number(bytes(1 << 20))?;
            Ok(())
        },
    ),
    honoured(
        "budget.footers.bytes",
        "8388608",
        "Cached segment footers",
        |c, raw| {
            c.budgets.footers = raw.number(bytes(1 << 18))?;
            Ok(())
        },
    ),
    honoured(
        "budget.reads.bytes",
        "8388608",
        "Segment reads under way",
        |c, raw| {
            c.budgets.reads = raw.number(bytes(1 << 20))?;
            Ok(())
        },
    ),
    honoured(
        "budget.decompression.bytes",
        "8388608",
        "Memory for decompression under way",
        |c, raw| {
            c.budgets.decompression = raw.number(bytes(1 << 20))?;
            Ok(())
        },
    ),
    honoured(
        "budget.producers.bytes",
        "67108864",
        "Idempotent producers remembered by all partitions; the longest idle ones go first",
        |c, raw| {
            c.budgets.producers = raw.number(bytes(1 << 18))?;
            Ok(())
        },
    ),
    honoured(
        "budget.groups.bytes",
        "67108864",
        "Members and committed offsets of consumer groups; what is new is refused beyond it",
        |c, raw| {
            c.budgets.groups = raw.number(bytes(1 << 18))?;
            Ok(())
        },
    ),
    honoured(
        "budget.topics.bytes",
        "268435456",
        "Topics, partitions (512 bytes each) and configs; what is new is refused beyond it",
        |c, raw| {
            c.budgets.topics = raw.number(bytes(1 << 20))?;
            Ok(())
        },
    ),
    honoured(
        "budget.fetch.waiters",
        "500000",
        "Partitions that waiting fetches ask for; beyond it a Fetch is answered without a wait",
        |c, raw| {
            c.budgets.fetch_waiters = raw.number(1..=100_000_000)?;
            Ok(())
        },
    ),
    honoured(
        "budget.fetch.session.partitions",
        "500000",
        "Partitions that fetch sessions remember; beyond it clients fetch without a session",
        |c, raw| {
            c.budgets.fetch_session_partitions = raw.number(1..=100_000_000)?;
            Ok(())
        },
    ),
    honoured(
        "budget.long.decompressions",
        "2",
        "Batches looked at side by side of which more than 4 MiB comes out; others wait",
        |c, raw| {
            c.budgets.long_decompressions = raw.number(1..=1_024)?;
            Ok(())
        },
    ),
];

fn bytes(least: u64) -> std::ops::RangeInclusive<u64> {
    least..=u64::from(u32::MAX)
}
