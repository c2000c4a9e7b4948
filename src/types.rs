//! Ids and numbers that must not be swapped for one another.

use std::fmt;

/// A topic's id as clients see it: random, never reused.
pub type TopicId = uuid::Uuid;

/// An offset in a partition's log. Negative values are never stored.
pub type Offset = i64;

/// A topic's number inside this store: allocated upwards, never reused, never shown to clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicNo(pub u32);

/// One partition of one topic, inside this store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartitionKey {
    /// The topic's number.
    pub topic: TopicNo,
    /// The partition's index, from 0.
    pub index: u32,
}

impl fmt::Display for PartitionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic.0, self.index)
    }
}

/// A shard's id: allocated upwards over all topics, never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardId(pub u64);

/// A data directory of this node: its place in `log.dirs`, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DirectoryNo(pub u16);

/// A place in a directory's journal: the number of an entry, counted from 1 and never reset.
/// 0 stands for "before the first entry", so a wait for it is over at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position(pub u64);

/// The number of a segment file, counted from 1 and never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u64);
