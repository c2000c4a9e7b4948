//! Configuration: Kafka's own key names, read from `server.properties`, the environment and
//! `--set`, typed once here and never parsed again elsewhere.
//!
//! | module | what it holds |
//! |---|---|
//! | [`properties`] | the `.properties` file format |
//! | [`listener`] | `listeners`, `advertised.listeners`, the security protocol map |
//! | [`keys`] | every key with an effect; `meaningless` has the others, with the reason |
//! | [`here`] | what each config that clients see does here |
//! | [`load`] | sources in order of precedence, and the report about each key |
//! | [`value`] | numbers, booleans and lists with errors that name key, value and what is allowed |

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub mod here;
pub mod keys;
pub mod listener;
pub mod load;
mod meaningless;
pub mod properties;
mod store_keys;
pub mod value;

pub use listener::{Address, Listener, SecurityProtocol};
pub use load::{KeyReport, Loaded, Source, load};
pub use value::ConfigError;

/// The environment variable that names a configuration file.
pub const ENV_CONFIG: &str = "SHARDGATE_CONFIG";

const MIB: u64 = 1024 * 1024;

/// When the journal makes an entry durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalSync {
    /// Before it is acknowledged.
    Always,
    /// At this interval; what was acknowledged since the last sync can be lost with the power.
    Interval(Duration),
}

/// What to do with a replication factor (and `min.insync.replicas`) above what one node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicationFactorPolicy {
    /// Take, keep and show it; durability comes from the journal.
    Accept,
    /// Refuse it as a broker with one node would.
    Strict,
}

/// Shape of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Where the admin port stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdminConfig {
    /// The port on loopback; 0 is off.
    pub port: u16,
    /// Whether somebody asked for this port: then not getting it is an error, else a warning.
    pub explicit: bool,
}

/// Byte budgets, each with its own gauge in `/metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budgets {
    /// Appended data that no segment file holds yet.
    pub tail: u64,
    /// Frames of requests being read and handled.
    pub requests: u64,
    /// Frames up to 64 KiB of APIs other than Produce, so that heartbeats pass under overload.
    pub small_requests: u64,
    /// Buffers held by answers that were not sent yet.
    pub responses: u64,
    /// Cached segment footers.
    pub footers: u64,
    /// Segment reads under way.
    pub reads: u64,
    /// Memory of decompression under way.
    pub decompression: u64,
    /// Batches of which much comes out that are looked at side by side.
    pub long_decompressions: u64,
    /// Idempotent producers that are remembered.
    pub producers: u64,
    /// Members and commits of consumer groups.
    pub groups: u64,
    /// Topics, partitions and configs.
    pub topics: u64,
    /// Partitions that waiting fetches ask for.
    pub fetch_waiters: u64,
    /// Partitions that fetch sessions remember.
    pub fetch_session_partitions: usize,
}

/// Limits of the network side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetConfig {
    /// `socket.request.max.bytes`: the longest frame taken from anybody.
    pub request_max_bytes: u32,
    /// `connections.max.idle.ms`.
    pub max_idle: Duration,
    /// `max.connections` over all listeners.
    pub max_connections: usize,
    /// `max.connections.per.ip`.
    pub max_connections_per_ip: usize,
    /// `socket.listen.backlog.size`.
    pub backlog: u32,
    /// `socket.send.buffer.bytes`; `None` leaves it to the system.
    pub send_buffer: Option<u32>,
    /// `socket.receive.buffer.bytes`; `None` leaves it to the system.
    pub receive_buffer: Option<u32>,
    /// `connection.max.answers`: answers of one connection that wait for the disk or the peer
    /// before reading from it stops.
    pub max_answers: usize,
    /// `frame.timeout.ms`: how long a frame may take from its first byte to its last.
    pub frame_timeout: Duration,
    /// `drain.timeout.ms`: how long requests under way get at shutdown.
    pub drain_timeout: Duration,
    /// `slow.request.ms`: requests that take this long are logged; `None` for none.
    pub slow_request: Option<Duration>,
}

/// Limits of the group coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    /// `group.min.session.timeout.ms`.
    pub min_session_timeout_ms: i32,
    /// `group.max.session.timeout.ms`.
    pub max_session_timeout_ms: i32,
    /// `group.initial.rebalance.delay.ms`.
    pub initial_rebalance_delay_ms: i32,
    /// `group.max.size`: members in one group.
    pub max_size: i32,
    /// `offset.metadata.max.bytes`.
    pub offset_metadata_max_bytes: i32,
    /// `offsets.topic.num.partitions`, fixed once the topic exists.
    pub offsets_topic_partitions: i32,
    /// `offsets.topic.replication.factor`, shown only.
    pub offsets_topic_replication_factor: i16,
    /// `offsets.retention.minutes`, in milliseconds.
    pub offsets_retention_ms: i64,
    /// `offsets.retention.check.interval.ms`.
    pub offsets_retention_check_interval_ms: i64,
}

/// The whole configuration, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `node.id`, or `broker.id` in older files.
    pub node_id: i32,
    /// `broker.rack`.
    pub rack: Option<String>,
    /// Client listeners, at least one. Ports are as configured; see [`crate::net`] for bound ones.
    pub listeners: Vec<Listener>,
    /// The data directories: `log.dirs`, at least one.
    pub data_dirs: Vec<PathBuf>,
    /// `describe.log.dirs.shards`: DescribeLogDirs shows each shard as a directory.
    pub describe_shards: bool,
    /// `admin.port`.
    pub admin: AdminConfig,
    /// Network limits.
    pub net: NetConfig,
    /// Group coordinator limits.
    pub group: GroupConfig,
    /// Byte budgets.
    pub budgets: Budgets,

    /// `num.partitions` of topics created without a count.
    pub num_partitions: i32,
    /// `default.replication.factor`.
    pub default_replication_factor: i16,
    /// `replication.factor.policy`.
    pub replication_factor_policy: ReplicationFactorPolicy,
    /// `auto.create.topics.enable`.
    pub auto_create_topics: bool,
    /// `delete.topic.enable`.
    pub delete_topics: bool,
    /// `shard.count` of new topics; at most the partition count is used.
    pub shard_count: u32,
    /// `max.partitions.per.topic`.
    pub max_partitions_per_topic: i32,
    /// `message.max.bytes`: default of the topic config `max.message.bytes`.
    pub message_max_bytes: i32,
    /// `max.decompressed.batch.bytes`: most bytes that may come out of a compressed batch.
    pub max_decompressed_batch_bytes: u64,

    /// `fetch.max.bytes`: most bytes in one Fetch answer.
    pub fetch_max_bytes: i32,
    /// `fetch.max.wait.limit.ms`: longest wait a Fetch may ask for.
    pub fetch_max_wait_ms: i32,
    /// `max.incremental.fetch.session.cache.slots`.
    pub fetch_sessions: usize,
    /// `producer.id.expiration.ms`.
    pub producer_id_expiration_ms: i64,
    /// `max.producers.per.partition`: idle producers beyond it are forgotten, oldest first.
    pub max_producers_per_partition: usize,

    /// `journal.sync`.
    pub journal_sync: JournalSync,
    /// `journal.file.bytes`.
    pub journal_file_bytes: u64,
    /// Segment files kept open at most; follows from the limit of open files.
    pub segment_open_files: usize,
    /// `journal.truncate.corruption`: cut a damaged journal at the damage rather than stop.
    pub journal_truncate_corruption: bool,
    /// `checkpoint.interval.bytes` of journal.
    pub checkpoint_interval_bytes: u64,
    /// `disk.reserve.bytes`: client writes are refused when less is free.
    pub disk_reserve_bytes: u64,
    /// `log.retention.check.interval.ms`.
    pub retention_check_interval_ms: i64,

    /// Every key that was set, with its value as written: what DescribeConfigs shows as static
    /// broker configs, and where topic defaults (`log.retention.ms`, …) are resolved from.
    pub properties: BTreeMap<String, String>,
}

impl Config {
    /// The first data directory, which holds what belongs to the node as a whole.
    pub fn data_dir(&self) -> &Path {
        self.data_dirs.first().map_or(Path::new("data"), |d| d)
    }

    /// The data directories as they are written in `log.dirs`.
    pub fn directory_names(&self) -> String {
        let names: Vec<String> = self
            .data_dirs
            .iter()
            .map(|d| d.display().to_string())
            .collect();
        names.join(",")
    }

    /// Defaults: one plaintext listener on `127.0.0.1:9092`, data under `./data`.
    pub fn defaults() -> Self {
        Self {
            node_id: 1,
            rack: None,
            listeners: vec![Listener::plaintext("PLAINTEXT", "127.0.0.1", 9092)],
            data_dirs: vec![PathBuf::from("data")],
            describe_shards: false,
            admin: AdminConfig {
                port: 9644,
                explicit: false,
            },
            net: NetConfig::default(),
            group: GroupConfig::default(),
            budgets: Budgets::default(),
            num_partitions: 16,
            default_replication_factor: 1,
            replication_factor_policy: ReplicationFactorPolicy::Accept,
            auto_create_topics: true,
            delete_topics: true,
            shard_count: 1,
            max_partitions_per_topic: 100_000,
            message_max_bytes: 1_048_588,
            max_decompressed_batch_bytes: 128 * MIB,
            fetch_max_bytes: 57_671_680,
            fetch_max_wait_ms: 300_000,
            fetch_sessions: 1_000,
            producer_id_expiration_ms: 86_400_000,
            max_producers_per_partition: 10_000,
            journal_sync: JournalSync::Always,
            journal_file_bytes: 64 * MIB,
            segment_open_files: 256,
            journal_truncate_corruption: false,
            checkpoint_interval_bytes: 256 * MIB,
            disk_reserve_bytes: 256 * MIB,
            retention_check_interval_ms: 300_000,
            properties: BTreeMap::new(),
        }
    }

    /// The explicitly set value of a key, as written.
    pub fn property(&self, key: &str) -> Option<&str> {
        self.properties.get(key).map(String::as_str)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::defaults()
    }
}

impl Default for NetConfig {
    fn default() -> Self {
        Self {
            request_max_bytes: 104_857_600,
            max_idle: Duration::from_secs(600),
            max_connections: 10_000,
            max_connections_per_ip: 10_000,
            backlog: 1_024,
            send_buffer: None,
            receive_buffer: None,
            max_answers: 256,
            frame_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(10),
            slow_request: Some(Duration::from_secs(1)),
        }
    }
}

impl Default for GroupConfig {
    fn default() -> Self {
        Self {
            min_session_timeout_ms: 6_000,
            max_session_timeout_ms: 1_800_000,
            initial_rebalance_delay_ms: 3_000,
            max_size: i32::MAX,
            offset_metadata_max_bytes: 4_096,
            offsets_topic_partitions: 50,
            offsets_topic_replication_factor: 1,
            offsets_retention_ms: 10_080 * 60_000,
            offsets_retention_check_interval_ms: 600_000,
        }
    }
}

impl Default for Budgets {
    fn default() -> Self {
        Self {
            tail: 64 * MIB,
            requests: 16 * MIB,
            small_requests: 4 * MIB,
            responses: 16 * MIB,
            footers: 8 * MIB,
            reads: 8 * MIB,
            decompression: 8 * MIB,
            long_decompressions: 2,
            producers: 64 * MIB,
            groups: 64 * MIB,
            topics: 256 * MIB,
            fetch_waiters: 500_000,
            fetch_session_partitions: 500_000,
        }
    }
}
