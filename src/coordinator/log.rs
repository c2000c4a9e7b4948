//! What the coordinator needs of the partitions of `__consumer_offsets`.

use bytes::Bytes;

use crate::types::{Offset, Position};

/// One record: a tombstone has no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// Says what the value is about; a later record with the same key replaces it.
    pub key: Bytes,
    /// What is known about the key, `None` to forget it.
    pub value: Option<Bytes>,
}

/// Where an append went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The journal entry: the records are safe once it is durable.
    pub position: Position,
    /// Offset of the first record.
    pub base_offset: Offset,
}

/// Why nothing was appended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// The disk is nearly full: client writes wait.
    #[error("no space left for the group coordinator's log")]
    NoSpace,
    /// The records together are larger than a batch may be.
    #[error("the records are larger than a batch may be")]
    TooLarge,
    /// The partition can't be written now.
    #[error("the partition of __consumer_offsets can't be written: {0}")]
    Unavailable(String),
}

/// Why a partition could not be read back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LoadError(pub String);

/// The partitions of `__consumer_offsets`.
///
/// The topic is made by the first append if it is not there. An append that returns a position
/// becomes durable or the process ends; one that returns an error left nothing behind. Appends to
/// one partition come one after the other, under the coordinator's lock.
pub trait CoordinatorLog: Send + Sync {
    /// How many partitions the topic has, or will have when it is made.
    fn partitions(&self) -> i32;
    /// Sequences the records as one batch.
    fn append(
        &self,
        partition: i32,
        records: Vec<LogRecord>,
        timestamp_ms: i64,
    ) -> Result<Appended, AppendError>;
    /// Reads the whole partition from its log start to its end, in order. May block.
    fn load(
        &self,
        partition: i32,
        each: &mut dyn FnMut(Offset, Bytes, Option<Bytes>),
    ) -> Result<(), LoadError>;
    /// Bytes between log start and end.
    fn log_bytes(&self, partition: i32) -> u64;
    /// Lets go of everything below `offset`.
    fn move_log_start(&self, partition: i32, offset: Offset) -> Result<Position, AppendError>;
}

/// What the coordinator asks about topics.
pub trait Topics: Send + Sync {
    /// The id of the topic that has this name now.
    fn topic_id(&self, name: &str) -> Option<crate::types::TopicId>;
}
