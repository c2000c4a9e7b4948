//! A topic in the image.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::codec::Configs;
use super::settings::TopicSettings;
use crate::shard::Layout;
use crate::types::{PartitionKey, ShardId, TopicId, TopicNo};

/// Most partitions of a topic.
pub const MAX_PARTITIONS: u32 = 100_000;

/// Replicas that a client assigned by hand, per partition. A partition that is not in it has the
/// default ones.
pub type Replicas = BTreeMap<u32, Vec<i32>>;

/// One topic. Immutable: a change makes a new one.
#[derive(Clone, Debug, PartialEq)]
pub struct Topic {
    /// Its number inside this store.
    pub no: TopicNo,
    /// Its id for clients.
    pub id: TopicId,
    /// Its name.
    pub name: Arc<str>,
    /// How many partitions it has.
    pub partitions: u32,
    /// How many replicas a client asked for; kept and shown.
    pub replication_factor: i16,
    /// Whether clients may not write to it.
    pub internal: bool,
    /// Configs that are set on it.
    pub configs: Arc<Configs>,
    /// Values in force.
    pub settings: Arc<TopicSettings>,
    /// Its shards.
    pub layout: Arc<Layout>,
    /// Manual assignment.
    pub replicas: Arc<Replicas>,
    /// When it was created, in milliseconds since the Unix epoch.
    pub created_ms: i64,
}

impl Topic {
    /// The key of one of its partitions, if there is such a one.
    pub fn partition(&self, index: i32) -> Option<PartitionKey> {
        let index = u32::try_from(index).ok().filter(|i| *i < self.partitions)?;
        Some(PartitionKey {
            topic: self.no,
            index,
        })
    }

    /// The shard that sequences a partition.
    pub fn shard_of(&self, partition: u32) -> Option<ShardId> {
        self.layout.shard_of(partition)
    }

    /// The replicas that a client assigned to a partition by hand.
    pub fn manual_replicas(&self, partition: u32) -> Option<&[i32]> {
        self.replicas.get(&partition).map(Vec::as_slice)
    }
}
