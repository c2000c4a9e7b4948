//! What the admin port says about shards, as JSON. The command line reads the same types.
//!
//! Hashes are 128-bit hex strings; a range is left-closed and right-open, and the end of the space
//! is shown as all `f`. Rates are a second, averaged over about a minute. Times are milliseconds
//! since the Unix epoch.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::partition::load::Traffic;
use crate::shard::{EpochEvent, EpochRecord, HashRange, Layout, Parent, ShardSpan, ShardState};
use crate::types::DirectoryId;

/// Traffic a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrafficView {
    /// Bytes of batches taken in.
    pub bytes_in: f64,
    /// Records taken in.
    pub records_in: f64,
    /// Bytes of batches given out.
    pub bytes_out: f64,
}

impl From<Traffic> for TrafficView {
    fn from(traffic: Traffic) -> Self {
        Self {
            bytes_in: traffic.bytes_in,
            records_in: traffic.records_in,
            bytes_out: traffic.bytes_out,
        }
    }
}

/// One shard.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShardView {
    /// Its id, never reused; 0 for one that a dry run plans.
    pub id: u64,
    /// Takes appends; else its slots belong to its children.
    pub open: bool,
    /// First hash inside.
    pub begin: String,
    /// First hash behind.
    pub end: String,
    /// First slot.
    pub first_slot: u32,
    /// Number of slots, one per partition.
    pub slots: u32,
    /// Its partitions, in slot order.
    pub partitions: Vec<u32>,
    /// Shards that it came from.
    pub parents: Vec<u64>,
    /// Shards that took its slots.
    pub children: Vec<u64>,
    /// Layout epoch of its birth.
    pub created_epoch: u32,
    /// Layout epoch of its seal.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sealed_epoch: Option<u32>,
    /// In a lineage: the data directory that its appends go to, or went to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub home: Option<String>,
    /// What an open shard carries and holds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub now: Option<ShardNow>,
}

/// What an open shard carries and holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShardNow {
    /// The data directory it lives in.
    pub directory: String,
    /// Bytes of its partitions' logs.
    pub log_bytes: u64,
    /// Those of them that lie in segment files of other data directories, since a move: they are
    /// copied in the background.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub bytes_elsewhere: u64,
    /// Mean rates of the last minute.
    pub load: TrafficView,
    /// The most of each kind in one second of the last minute.
    pub busiest_second: TrafficView,
    /// Bytes a second that may be written; 0 is no limit.
    pub write_limit: u64,
    /// Bytes a second that may be read; 0 is no limit.
    pub read_limit: u64,
    /// Its partition with the most bytes in, and that one's share of them.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub busiest_partition: Option<BusiestPartition>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// A shard's busiest partition.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BusiestPartition {
    /// Its number.
    pub partition: u32,
    /// Its part of the shard's bytes in, from 0 to 1.
    pub share: f64,
}

/// The shards of a topic.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TopicView {
    /// Name of the topic.
    pub topic: String,
    /// Number of partitions.
    pub partitions: u32,
    /// Layout epoch.
    pub epoch: u32,
    /// Whether every growth kept the keys of a new partition under one parent.
    pub lineage_exact: bool,
    /// Its shards in slot order.
    pub shards: Vec<ShardView>,
}

/// One line of the layout history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpochView {
    /// The epoch.
    pub epoch: u32,
    /// When.
    pub at_ms: i64,
    /// What happened.
    pub event: EventView,
}

/// What made a layout epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum EventView {
    /// The topic was created.
    Created {
        /// Partitions at birth.
        partitions: u32,
    },
    /// Partitions were added.
    Grown {
        /// Count before.
        from: u32,
        /// Count after.
        to: u32,
    },
    /// Shards were replaced by others over the same slots.
    Reshaped {
        /// Those that were sealed.
        sealed: Vec<u64>,
        /// Those that were opened.
        opened: Vec<u64>,
    },
}

/// The history of a topic's layout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LineageView {
    /// Name of the topic.
    pub topic: String,
    /// Number of partitions.
    pub partitions: u32,
    /// Partitions in slot order.
    pub slots: Vec<u32>,
    /// Shards, open and sealed, without what they carry.
    pub shards: Vec<ShardView>,
    /// Layout epochs, oldest first.
    pub epochs: Vec<EpochView>,
    /// How many epochs before these are left out, with the shards that they sealed.
    #[serde(default)]
    pub older_epochs: u32,
    /// Links and parent of the partitions asked for.
    pub chains: Vec<ChainView>,
}

/// Which shards held a partition, and from which offset on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChainView {
    /// The partition.
    pub partition: u32,
    /// The partition that held its keys before; absent for one as old as the topic.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub parent: Option<u32>,
    /// Its keys may have been in any partition.
    pub parent_unknown: bool,
    /// Shard and first offset, oldest first.
    pub links: Vec<LinkView>,
}

/// A stretch of a partition's log that one shard sequenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkView {
    /// The shard.
    pub shard: u64,
    /// First offset.
    pub start: i64,
}

/// A change that is asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChangeRequest {
    /// The shards to replace: one for a split or a move, neighbours for a merge.
    pub shards: Vec<u64>,
    /// The data directory to move to, as log.dirs has it or another path to it; only for a move.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub to: Option<String>,
    /// The path that `to` is where the caller stands, if that is no name in log.dirs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub to_path: Option<PathBuf>,
    /// Where to cut: `middle`, `load`, `even:N`, `slot:N` or `hash:HEX`; absent for a merge
    /// and a move.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub at: Option<String>,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// A change that was done, or would be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChangeView {
    /// Name of the topic.
    pub topic: String,
    /// Nothing was changed.
    pub dry_run: bool,
    /// It was done before, and the answer is that of then.
    pub repeated: bool,
    /// Layout epoch after it.
    pub epoch: u32,
    /// The shards that go.
    pub before: Vec<ShardView>,
    /// The shards that come.
    pub after: Vec<ShardView>,
    /// Whether it helps, in a sentence.
    pub verdict: String,
}

/// What limits a topic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExplainView {
    /// Name of the topic.
    pub topic: String,
    /// What was seen, one sentence each.
    pub observations: Vec<String>,
    /// Whether a split helps, in a sentence.
    pub verdict: String,
}

/// Where the records of a key go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LocateView {
    /// Name of the topic.
    pub topic: String,
    /// One line per way that clients choose partitions.
    pub places: Vec<PlaceView>,
}

/// Where one kind of client sends a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceView {
    /// Name of the partitioner.
    pub partitioner: String,
    /// Clients that use it.
    pub clients: String,
    /// The partition.
    pub partition: u32,
    /// The shard that holds it now.
    pub shard: u64,
    /// First hash of the partition's range.
    pub begin: String,
    /// First hash behind it.
    pub end: String,
}

/// A refusal, in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorView {
    /// What is wrong and what to do.
    pub error: String,
}

/// A range's first hash and the first one behind it, as hex.
pub fn hex(range: HashRange) -> (String, String) {
    let end = range.last.saturating_add(1);
    (format!("{:032x}", range.begin), format!("{end:032x}"))
}

impl ShardView {
    /// A shard of a layout, without what it carries.
    pub fn of(layout: &Layout, span: &ShardSpan) -> Self {
        let (begin, end) = hex(layout.range_of(span));
        Self {
            id: span.id.0,
            open: span.state == ShardState::Open,
            begin,
            end,
            first_slot: span.first_slot,
            slots: span.slots,
            partitions: layout.partitions_of(span).to_vec(),
            parents: span.parents.iter().map(|id| id.0).collect(),
            children: span.children.iter().map(|id| id.0).collect(),
            created_epoch: span.created,
            sealed_epoch: span.sealed,
            home: None,
            now: None,
        }
    }
}

impl From<&EpochRecord> for EpochView {
    fn from(record: &EpochRecord) -> Self {
        let event = match &record.event {
            EpochEvent::Created { partitions } => EventView::Created {
                partitions: *partitions,
            },
            EpochEvent::Grown { from, to } => EventView::Grown {
                from: *from,
                to: *to,
            },
            EpochEvent::Reshaped { sealed, opened, .. } => EventView::Reshaped {
                sealed: sealed.iter().map(|id| id.0).collect(),
                opened: opened.iter().map(|id| id.0).collect(),
            },
        };
        Self {
            epoch: record.epoch,
            at_ms: record.at_ms,
            event,
        }
    }
}

impl ChainView {
    /// The chain of a partition.
    pub fn of(layout: &Layout, partition: u32) -> Self {
        let parent = layout.parent_of(partition);
        let links = layout.links(partition);
        Self {
            partition,
            parent: match parent {
                Parent::Exact(parent) => Some(parent),
                Parent::None | Parent::Broken => None,
            },
            parent_unknown: parent == Parent::Broken,
            links: links
                .iter()
                .map(|link| LinkView {
                    shard: link.shard.0,
                    start: link.start,
                })
                .collect(),
        }
    }
}

impl LineageView {
    /// The lineage of a topic, with the chains of the partitions in `chains`; `name` names data
    /// directories.
    pub fn of(
        topic: &str,
        layout: &Layout,
        chains: &BTreeSet<u32>,
        name: &dyn Fn(DirectoryId) -> String,
    ) -> Self {
        let shards = layout.sealed().iter().chain(layout.shards());
        let shards = shards.map(|span| ShardView {
            home: Some(name(span.home)),
            ..ShardView::of(layout, span)
        });
        let oldest = layout.history().first().map_or(1, |record| record.epoch);
        Self {
            topic: topic.to_owned(),
            partitions: layout.partitions(),
            slots: layout.slots().to_vec(),
            shards: shards.collect(),
            epochs: layout
                .history()
                .iter()
                .map(|record| EpochView::from(record.as_ref()))
                .collect(),
            older_epochs: oldest.saturating_sub(1),
            chains: chains
                .iter()
                .map(|partition| ChainView::of(layout, *partition))
                .collect(),
        }
    }
}
