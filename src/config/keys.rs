//! Every key we know. A key is *honoured* (it does what Kafka's does, or it is ours), *mapped* (it
//! sets something that is not quite the same here) or *meaningless* here, with the reason.

use std::time::Duration;

use super::value::{ConfigError, Raw};
use super::{Config, JournalSync, ReplicationFactorPolicy};

/// What setting a key does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It does what its name says.
    Honoured,
    /// It does something close, see the note.
    Mapped,
    /// It does nothing here, see the note.
    Meaningless,
}

impl Effect {
    /// The word in reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::Honoured => "honoured",
            Self::Mapped => "mapped",
            Self::Meaningless => "meaningless here",
        }
    }
}

/// What is known about a key that has an effect.
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// Honoured or mapped.
    pub effect: Effect,
    /// The default as one would write it.
    pub default: &'static str,
    /// What it sets, in a line.
    pub doc: &'static str,
    /// Checks the value and puts it in place. Keys that only work together are read in
    /// [`super::load`] and need no step here.
    pub apply: fn(&mut Config, Raw<'_>) -> Result<(), ConfigError>,
}

type Apply = fn(&mut Config, Raw<'_>) -> Result<(), ConfigError>;

const fn honoured(
    name: &'static str,
    default: &'static str,
    doc: &'static str,
    apply: Apply,
) -> Key {
    Key {
        name,
        effect: Effect::Honoured,
        default,
        doc,
        apply,
    }
}

const fn mapped(name: &'static str, default: &'static str, doc: &'static str, apply: Apply) -> Key {
    Key {
        name,
        effect: Effect::Mapped,
        default,
        doc,
        apply,
    }
}

/// The key with this name, if it has an effect.
pub fn find(name: &str) -> Option<&'static Key> {
    groups().find(|key| key.name == name)
}

/// All keys with an effect, by theme.
pub fn groups() -> impl Iterator<Item = &'static Key> {
    [
        ADDRESSES,
        NETWORK,
        TOPICS,
        TOPIC_DEFAULTS,
        CLIENTS,
        GROUPS,
        STORE,
        BUDGETS,
    ]
    .into_iter()
    .flatten()
}

fn later(_: &mut Config, _: Raw<'_>) -> Result<(), ConfigError> {
    Ok(())
}

fn whole(_: &mut Config, raw: Raw<'_>) -> Result<(), ConfigError> {
    raw.number(i64::MIN..=i64::MAX).map(drop)
}

fn node_id(config: &mut Config, raw: Raw<'_>) -> Result<(), ConfigError> {
    config.node_id = raw.number(0..=i32::MAX)?;
    Ok(())
}

static ADDRESSES: &[Key] = &[
    honoured("node.id", "1", "This node's id, shown to clients", node_id),
    mapped("broker.id", "1", "As `node.id`", node_id),
    honoured(
        "broker.rack",
        "",
        "Shown to clients in Metadata",
        |c, raw| {
            c.rack = Some(raw.value.trim().to_owned()).filter(|rack| !rack.is_empty());
            Ok(())
        },
    ),
    honoured(
        "listeners",
        super::listener::DEFAULT_LISTENERS,
        "Where clients connect: `NAME://host:port`, commas between; IPv6 in brackets; no host for \
         every interface; port 0 lets the system choose",
        later,
    ),
    honoured(
        "advertised.listeners",
        "as `listeners`",
        "What clients are told to connect to, by listener name",
        later,
    ),
    honoured(
        "listener.security.protocol.map",
        "PLAINTEXT:PLAINTEXT",
        "Security protocol by listener name; PLAINTEXT only in this version",
        later,
    ),
    mapped(
        "controller.listener.names",
        "",
        "Listeners with these names are skipped: there is no controller quorum here",
        later,
    ),
    mapped(
        "process.roles",
        "broker",
        "Must include `broker`; there are no other roles here",
        roles,
    ),
    honoured(
        "allow.insecure.listeners",
        "false",
        "Lets a plaintext listener be reachable from other machines",
        |_, raw| raw.boolean().map(drop),
    ),
    honoured(
        "admin.port",
        "9644",
        "HTTP on 127.0.0.1 with `/livez`, `/readyz`, `/metrics`; 0 is off. A port that is taken \
         stops the start only if this key was set",
        |c, raw| {
            c.admin.port = raw.number(0..=u16::MAX)?;
            c.admin.explicit = true;
            Ok(())
        },
    ),
];

fn roles(_: &mut Config, raw: Raw<'_>) -> Result<(), ConfigError> {
    let roles = raw.list();
    match roles.is_empty() || roles.contains(&"broker") {
        true => Ok(()),
        false => {
            Err(raw.error("must include broker: this process serves clients and nothing else"))
        }
    }
}

static NETWORK: &[Key] = &[
    honoured(
        "socket.request.max.bytes",
        "104857600",
        "Longest request; many APIs have a lower bound of their own",
        |c, raw| {
            c.net.request_max_bytes = raw.number(1_024..=i32::MAX as u32)?;
            Ok(())
        },
    ),
    honoured(
        "socket.send.buffer.bytes",
        "-1",
        "Send buffer of a socket; -1 for the system's",
        |c, raw| {
            c.net.send_buffer = buffer(raw)?;
            Ok(())
        },
    ),
    honoured(
        "socket.receive.buffer.bytes",
        "-1",
        "Receive buffer of a socket; -1 for the system's",
        |c, raw| {
            c.net.receive_buffer = buffer(raw)?;
            Ok(())
        },
    ),
    honoured(
        "socket.listen.backlog.size",
        "1024",
        "Connections that may wait to be taken",
        |c, raw| {
            c.net.backlog = raw.number(1..=65_535)?;
            Ok(())
        },
    ),
    honoured(
        "connections.max.idle.ms",
        "600000",
        "A connection idle for longer is closed",
        |c, raw| {
            c.net.max_idle = millis(raw, 1_000..=i64::MAX)?;
            Ok(())
        },
    ),
    honoured(
        "max.connections",
        "10000",
        "More connections than this are closed at once",
        |c, raw| {
            c.net.max_connections = raw.number(1..=i32::MAX as usize)?;
            Ok(())
        },
    ),
    honoured(
        "max.connections.per.ip",
        "10000",
        "The same for one address",
        |c, raw| {
            c.net.max_connections_per_ip = raw.number(0..=i32::MAX as usize)?;
            Ok(())
        },
    ),
    honoured(
        "connection.max.answers",
        "256",
        "Answers of one connection that wait for the disk or the client before reading stops",
        |c, raw| {
            c.net.max_answers = raw.number(1..=65_536)?;
            Ok(())
        },
    ),
    honoured(
        "frame.timeout.ms",
        "30000",
        "A request must arrive whole within this time",
        |c, raw| {
            c.net.frame_timeout = millis(raw, 100..=i64::MAX)?;
            Ok(())
        },
    ),
    honoured(
        "drain.timeout.ms",
        "10000",
        "How long requests under way get after SIGTERM",
        |c, raw| {
            c.net.drain_timeout = millis(raw, 0..=3_600_000)?;
            Ok(())
        },
    ),
];

fn buffer(raw: Raw<'_>) -> Result<Option<u32>, ConfigError> {
    Ok(u32::try_from(raw.number(-1..=i32::MAX)?)
        .ok()
        .filter(|bytes| *bytes > 0))
}

fn millis(raw: Raw<'_>, range: std::ops::RangeInclusive<i64>) -> Result<Duration, ConfigError> {
    Ok(Duration::from_millis(raw.number(range)?.unsigned_abs()))
}

static TOPICS: &[Key] = &[
    honoured(
        "num.partitions",
        "16",
        "Partitions of a topic created without a count. A partition costs next to nothing here, \
         and a topic with only one cannot be split",
        |c, raw| {
            c.num_partitions = raw.number(1..=c.max_partitions_per_topic)?;
            Ok(())
        },
    ),
    mapped(
        "default.replication.factor",
        "1",
        "Kept and shown; durability comes from the journal",
        |c, raw| {
            c.default_replication_factor = raw.number(1..=i16::MAX)?;
            Ok(())
        },
    ),
    honoured(
        "replication.factor.policy",
        "accept",
        "`accept` takes any replication factor and `min.insync.replicas` and shows them; `strict` \
         refuses more than 1",
        |c, raw| {
            c.replication_factor_policy = raw.choice(&[
                ("accept", ReplicationFactorPolicy::Accept),
                ("strict", ReplicationFactorPolicy::Strict),
            ])?;
            Ok(())
        },
    ),
    honoured(
        "auto.create.topics.enable",
        "true",
        "Clients may create topics by asking",
        |c, raw| {
            c.auto_create_topics = raw.boolean()?;
            Ok(())
        },
    ),
    honoured(
        "delete.topic.enable",
        "true",
        "Clients may delete topics",
        |c, raw| {
            c.delete_topics = raw.boolean()?;
            Ok(())
        },
    ),
    honoured(
        "shard.count",
        "1",
        "Shards of a new topic, at most its partition count",
        |c, raw| {
            c.shard_count = raw.number(1..=100_000)?;
            Ok(())
        },
    ),
    honoured(
        "max.partitions.per.topic",
        "100000",
        "Most partitions that one topic may have",
        |c, raw| {
            c.max_partitions_per_topic = raw.number(1..=1_000_000)?;
            Ok(())
        },
    ),
    honoured(
        "message.max.bytes",
        "1048588",
        "Largest batch, unless a topic says otherwise",
        |c, raw| {
            c.message_max_bytes = raw.number(0..=i32::MAX)?;
            Ok(())
        },
    ),
];

/// Read where topics are: a value here is what a topic has that says nothing itself.
static TOPIC_DEFAULTS: &[Key] = &[
    honoured(
        "log.retention.ms",
        "",
        "Topic default `retention.ms`; goes before minutes and hours",
        whole,
    ),
    honoured(
        "log.retention.minutes",
        "",
        "The same in minutes; goes before hours",
        whole,
    ),
    honoured("log.retention.hours", "168", "The same in hours", whole),
    honoured(
        "log.retention.bytes",
        "-1",
        "Topic default `retention.bytes`",
        whole,
    ),
    honoured(
        "log.cleanup.policy",
        "delete",
        "Topic default `cleanup.policy`",
        later,
    ),
    honoured(
        "compression.type",
        "producer",
        "Topic default `compression.type`",
        later,
    ),
    honoured(
        "compression.gzip.level",
        "-1",
        "Topic default `compression.gzip.level`",
        whole,
    ),
    honoured(
        "compression.lz4.level",
        "9",
        "Topic default `compression.lz4.level`",
        whole,
    ),
    honoured(
        "compression.zstd.level",
        "3",
        "Topic default `compression.zstd.level`",
        whole,
    ),
    honoured(
        "log.message.timestamp.type",
        "CreateTime",
        "Topic default `message.timestamp.type`",
        |_, raw| raw.choice(&[("CreateTime", ()), ("LogAppendTime", ())]),
    ),
    honoured(
        "log.message.timestamp.before.max.ms",
        "9223372036854775807",
        "Topic default `message.timestamp.before.max.ms`",
        whole,
    ),
    honoured(
        "log.message.timestamp.after.max.ms",
        "3600000",
        "Topic default `message.timestamp.after.max.ms`",
        whole,
    ),
    mapped(
        "min.insync.replicas",
        "1",
        "Kept and shown; durability comes from the journal",
        whole,
    ),
    honoured(
        "log.retention.check.interval.ms",
        "300000",
        "How often retention looks for old records",
        |c, raw| {
            c.retention_check_interval_ms = raw.number(1..=i64::MAX)?;
            Ok(())
        },
    ),
];

static CLIENTS: &[Key] = &[
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

static GROUPS: &[Key] = &[
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

static STORE: &[Key] = &[
    honoured(
        "log.dirs",
        "data",
        "The data directory; the first of several is used",
        directory,
    ),
    mapped("log.dir", "data", "As `log.dirs`", directory),
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

fn directory(config: &mut Config, raw: Raw<'_>) -> Result<(), ConfigError> {
    let first = raw
        .list()
        .first()
        .copied()
        .ok_or_else(|| raw.error("a directory is needed"))?;
    config.data_dir = first.into();
    Ok(())
}

static BUDGETS: &[Key] = &[
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
        "Decompressed data under way",
        |c, raw| {
            c.budgets.decompression = raw.number(bytes(1 << 20))?;
            Ok(())
        },
    ),
];

fn bytes(least: u64) -> std::ops::RangeInclusive<u64> {
    least..=u64::from(u32::MAX)
}
