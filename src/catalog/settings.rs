//! A topic's configs as the engine uses them.

use super::configs::{Layers, Scope, effective, table};

/// Which time a record carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimestampType {
    /// The producer's.
    CreateTime,
    /// That of the append.
    LogAppendTime,
}

/// Codec that batches are stored with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// As they came.
    Producer,
    /// Plain.
    Uncompressed,
    /// gzip at this level, -1 for the codec's default.
    Gzip(i32),
    /// snappy.
    Snappy,
    /// lz4 at this level.
    Lz4(i32),
    /// zstd at this level.
    Zstd(i32),
}

/// Bytes a second that each shard of a topic may carry; 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardLimits {
    /// Of batches taken in.
    pub write: u64,
    /// Of batches given out.
    pub read: u64,
}

/// The values in force for a topic.
#[derive(Clone, Debug, PartialEq)]
pub struct TopicSettings {
    /// Age from which records go; -1 is no limit.
    pub retention_ms: i64,
    /// Size of a partition from which its oldest records go; -1 is no limit.
    pub retention_bytes: i64,
    /// Largest batch, compressed.
    pub max_message_bytes: u32,
    /// Largest record of a compressed batch, decompressed.
    pub max_decompressed_bytes: u32,
    /// Which time records carry.
    pub timestamp_type: TimestampType,
    /// How far a record's timestamp may lie behind the clock.
    pub timestamp_before_max_ms: i64,
    /// How far it may lie ahead.
    pub timestamp_after_max_ms: i64,
    /// Whether only the last value of each key is kept.
    pub cleanup_compact: bool,
    /// Whether old records are removed.
    pub cleanup_delete: bool,
    /// Codec that batches are stored with.
    pub compression: Compression,
    /// Kept and shown.
    pub min_insync_replicas: i32,
    /// How long tombstones stay readable.
    pub delete_retention_ms: i64,
    /// Shortest time out of compaction.
    pub min_compaction_lag_ms: i64,
    /// Longest time out of compaction.
    pub max_compaction_lag_ms: i64,
    /// Share of superseded records from which compaction starts.
    pub min_cleanable_ratio: f64,
    /// Shards that a topic is born with.
    pub shard_count: u32,
    /// Bytes a second that each shard takes in and gives out.
    pub shard_limits: ShardLimits,
}

impl TopicSettings {
    /// The values in force. One that does not parse counts as not set; that can only be in the
    /// configuration that the process started with, as all others were checked when they were set.
    pub fn resolve(layers: &Layers) -> Self {
        let values = Values { layers };
        let cleanup = values.text("cleanup.policy");
        let has = |policy: &str| cleanup.split(',').any(|p| p.trim() == policy);
        Self {
            retention_ms: values.long("retention.ms"),
            retention_bytes: values.long("retention.bytes"),
            max_message_bytes: values.size("max.message.bytes"),
            max_decompressed_bytes: values.size("max.decompressed.message.bytes"),
            timestamp_type: match values.text("message.timestamp.type").as_str() {
                "LogAppendTime" => TimestampType::LogAppendTime,
                _ => TimestampType::CreateTime,
            },
            timestamp_before_max_ms: values.long("message.timestamp.before.max.ms"),
            timestamp_after_max_ms: values.long("message.timestamp.after.max.ms"),
            cleanup_compact: has("compact"),
            cleanup_delete: has("delete"),
            compression: values.compression(),
            min_insync_replicas: values.int("min.insync.replicas"),
            delete_retention_ms: values.long("delete.retention.ms"),
            min_compaction_lag_ms: values.long("min.compaction.lag.ms"),
            max_compaction_lag_ms: values.long("max.compaction.lag.ms"),
            min_cleanable_ratio: values.parsed("min.cleanable.dirty.ratio").unwrap_or(0.5),
            shard_count: values.size("shard.count").max(1),
            shard_limits: ShardLimits {
                write: values.rate("shard.write.bytes.per.second"),
                read: values.rate("shard.read.bytes.per.second"),
            },
        }
    }
}

/// Typed access to the values in force.
struct Values<'a> {
    layers: &'a Layers<'a>,
}

impl Values<'_> {
    fn text(&self, name: &str) -> String {
        let def = table(Scope::Topic).get(name);
        let value = def.and_then(|def| effective(def, self.layers));
        value.map(|v| v.trim().to_owned()).unwrap_or_default()
    }

    fn parsed<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        let default = || table(Scope::Topic).get(name).and_then(|def| def.default);
        self.text(name)
            .parse()
            .ok()
            .or_else(|| default()?.parse().ok())
    }

    fn rate(&self, name: &str) -> u64 {
        u64::try_from(self.long(name)).unwrap_or(0)
    }

    fn long(&self, name: &str) -> i64 {
        self.parsed(name).unwrap_or(-1)
    }

    fn int(&self, name: &str) -> i32 {
        self.parsed(name).unwrap_or(-1)
    }

    fn size(&self, name: &str) -> u32 {
        self.parsed::<i64>(name)
            .map_or(0, |n| u32::try_from(n.max(0)).unwrap_or(u32::MAX))
    }

    fn compression(&self) -> Compression {
        match self.text("compression.type").as_str() {
            "uncompressed" => Compression::Uncompressed,
            "gzip" => Compression::Gzip(self.int("compression.gzip.level")),
            "snappy" => Compression::Snappy,
            "lz4" => Compression::Lz4(self.int("compression.lz4.level")),
            "zstd" => Compression::Zstd(self.int("compression.zstd.level")),
            _ => Compression::Producer,
        }
    }
}
