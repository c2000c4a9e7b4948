//! Every key we know. A key is *honoured* (it does what Kafka's does, or it is ours), *mapped* (it
//! sets something that is not quite the same here) or *meaningless* here, with the reason.

use std::time::Duration;

use super::store_keys::{BUDGETS, CLIENTS, GROUPS, STORE};
use super::value::{ConfigError, Raw};
use super::{Config, ReplicationFactorPolicy};
pub use crate::catalog::configs::Effect;
use crate::catalog::configs::{Scope, table, validate};

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

pub(super) type Apply = fn(&mut Config, Raw<'_>) -> Result<(), ConfigError>;

pub(super) const fn honoured(
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

pub(super) const fn mapped(
    name: &'static str,
    default: &'static str,
    doc: &'static str,
    apply: Apply,
) -> Key {
    Key {
        name,
        effect: Effect::Mapped,
        default,
        doc,
        apply,
    }
}

/// Keys that set the same thing: an older name, and the one that counts where both are given.
pub const SAME: [(&str, &str); 3] = [
    ("broker.id", "node.id"),
    ("log.dir", "log.dirs"),
    ("queued.max.request.bytes", "budget.requests.bytes"),
];

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

/// Read by the catalog; the rule is the one that clients' changes of the key are held to.
fn topic_default(_: &mut Config, raw: Raw<'_>) -> Result<(), ConfigError> {
    let Some(def) = table(Scope::Broker).get(raw.key) else {
        return Ok(());
    };
    validate(def, raw.value).map_err(|error| {
        let text = error.to_string();
        let reason = text.split_once(&format!("{}: ", raw.key));
        raw.error(reason.map_or(text.as_str(), |(_, reason)| reason))
    })
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
    honoured(
        "slow.request.ms",
        "1000",
        "A request that takes this long, without what its client asked to wait, is logged with \
         where the time went; 0 logs none",
        |c, raw| {
            let limit = millis(raw, 0..=i64::MAX)?;
            c.net.slow_request = Some(limit).filter(|limit| !limit.is_zero());
            Ok(())
        },
    ),
];

fn buffer(raw: Raw<'_>) -> Result<Option<u32>, ConfigError> {
    Ok(u32::try_from(raw.number(-1..=i32::MAX)?)
        .ok()
        .filter(|bytes| *bytes > 0))
}

pub(super) fn millis(
    raw: Raw<'_>,
    range: std::ops::RangeInclusive<i64>,
) -> Result<Duration, ConfigError> {
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
        "shard.write.bytes.per.second",
        "0",
        "Topic default: bytes a second that each shard takes in, 0 for any",
        topic_default,
    ),
    honoured(
        "shard.read.bytes.per.second",
        "0",
        "Topic default: bytes a second that each shard gives out, 0 for any",
        topic_default,
    ),
    honoured(
        "shard.limits.preset",
        "none",
        "sls: each shard takes in 5 MB/s and gives out 10 MB/s, where nothing else is set",
        |_, raw| match raw.value.trim() {
            "none" | "sls" => Ok(()),
            _ => Err(raw.error("none or sls is allowed")),
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
        "max.decompressed.batch.bytes",
        "134217728",
        "Most bytes that may come out of a compressed batch, or 16 times `max.message.bytes` of \
         its topic if that is more; beyond it MESSAGE_TOO_LARGE",
        |c, raw| {
            c.max_decompressed_batch_bytes = raw.number((1 << 20)..=u64::from(u32::MAX))?;
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
        topic_default,
    ),
    honoured(
        "log.retention.minutes",
        "",
        "The same in minutes; goes before hours",
        topic_default,
    ),
    honoured(
        "log.retention.hours",
        "168",
        "The same in hours",
        topic_default,
    ),
    honoured(
        "log.retention.bytes",
        "-1",
        "Topic default `retention.bytes`",
        topic_default,
    ),
    honoured(
        "log.cleanup.policy",
        "delete",
        "Topic default `cleanup.policy`",
        topic_default,
    ),
    honoured(
        "compression.type",
        "producer",
        "Topic default `compression.type`",
        topic_default,
    ),
    honoured(
        "compression.gzip.level",
        "-1",
        "Topic default `compression.gzip.level`",
        topic_default,
    ),
    honoured(
        "compression.lz4.level",
        "9",
        "Topic default `compression.lz4.level`",
        topic_default,
    ),
    honoured(
        "compression.zstd.level",
        "3",
        "Topic default `compression.zstd.level`",
        topic_default,
    ),
    honoured(
        "max.decompressed.message.bytes",
        "2147483639",
        "Topic default `max.decompressed.message.bytes`",
        topic_default,
    ),
    honoured(
        "log.message.timestamp.type",
        "CreateTime",
        "Topic default `message.timestamp.type`",
        topic_default,
    ),
    honoured(
        "log.message.timestamp.before.max.ms",
        "9223372036854775807",
        "Topic default `message.timestamp.before.max.ms`",
        topic_default,
    ),
    honoured(
        "log.message.timestamp.after.max.ms",
        "3600000",
        "Topic default `message.timestamp.after.max.ms`",
        topic_default,
    ),
    mapped(
        "min.insync.replicas",
        "1",
        "Kept and shown; durability comes from the journal",
        topic_default,
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
