//! Which shard holds which partition, now and before.

use std::collections::BTreeMap;
use std::sync::Arc;

use thiserror::Error;

use super::range::HashRange;
use crate::types::{DirectoryId, Offset, ShardId};

/// Layout epochs that a topic keeps in memory. Older ones are forgotten; see
/// [`Layout::forgotten`].
pub const MAX_EPOCHS: usize = 1000;

/// Offsets that the sealed shards of a topic keep in memory (512 KiB): with large shards fewer
/// epochs are kept.
pub const MAX_STARTS: usize = 64 << 10;

/// Growths of a topic that are remembered. Partitions of older ones count as ones of unknown
/// parent.
pub const MAX_GROWTHS: usize = 1000;

/// What may be done with a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardState {
    /// Takes appends.
    Open,
    /// Takes none any more; its slots belong to its children.
    Sealed,
}

/// A shard: a run of slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardSpan {
    /// Its id, never reused.
    pub id: ShardId,
    /// Its first slot.
    pub first_slot: u32,
    /// How many slots it has, at least one.
    pub slots: u32,
    /// Open or sealed.
    pub state: ShardState,
    /// The data directory whose journal its appends go to.
    pub home: DirectoryId,
    /// Shards it came from.
    pub parents: Vec<ShardId>,
    /// Shards that took its slots.
    pub children: Vec<ShardId>,
    /// Layout epoch of its birth.
    pub created: u32,
    /// Layout epoch of its seal.
    pub sealed: Option<u32>,
    /// Partitions of the topic at its birth.
    pub born: u32,
    /// First offset that each of its partitions of that time got in it, in slot order; none where
    /// it has them from their first offset on.
    pub starts: Arc<[Offset]>,
}

impl ShardSpan {
    /// The slot behind its last one.
    pub fn end_slot(&self) -> u32 {
        self.first_slot + self.slots
    }
}

/// A stretch of a partition's log that was sequenced in one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The shard.
    pub shard: ShardId,
    /// First offset of the stretch.
    pub start: Offset,
}

/// What made a layout epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EpochEvent {
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
        /// The shards that were sealed.
        sealed: Vec<ShardId>,
        /// The shards that were opened.
        opened: Vec<ShardId>,
    },
}

/// One line of a topic's layout history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochRecord {
    /// The epoch, counted from 1.
    pub epoch: u32,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// What happened.
    pub event: EpochEvent,
}

/// Where the keys of a partition were before the growth that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parent {
    /// The partition is as old as the topic.
    None,
    /// All its keys were in this one partition.
    Exact(u32),
    /// They may have been in any partition.
    Broken,
}

/// Why a layout could not be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// Counts that make no layout.
    #[error(
        "a topic needs at least one partition and between one and {partitions} shards, got {shards}"
    )]
    Counts {
        /// Partitions asked for.
        partitions: u32,
        /// Shards asked for.
        shards: usize,
    },
    /// Not a growth.
    #[error("the topic has {have} partitions, which {to} would not increase")]
    NotAGrowth {
        /// Count now.
        have: u32,
        /// Count asked for.
        to: u32,
    },
    /// A reshape that names shards that can't be replaced so.
    #[error("the reshape does not fit: {0}")]
    Reshape(&'static str),
    /// Stored parts that break a rule.
    #[error("the stored layout is damaged: {0}")]
    Damaged(&'static str),
}

/// Everything a layout consists of, for storing it. A copy costs a few reference counts for each
/// shard and epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutParts {
    /// Partition of each slot.
    pub slots: Arc<[u32]>,
    /// Open shards in slot order.
    pub open: Vec<Arc<ShardSpan>>,
    /// Sealed shards, oldest seal first: those whose seal is in the history.
    pub sealed: Vec<Arc<ShardSpan>>,
    /// Partition counts: at birth (0 where that is forgotten), then after each growth.
    pub counts: Arc<[u32]>,
    /// The last epochs, oldest first.
    pub history: Vec<Arc<EpochRecord>>,
}

/// An epoch that a layout does not keep any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forgotten {
    /// Its record.
    pub record: Arc<EpochRecord>,
    /// The shards that it sealed.
    pub sealed: Vec<Arc<ShardSpan>>,
    /// Partitions of the topic by which these shards' slots are counted.
    pub partitions: u32,
}

/// The layout of one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub(super) parts: LayoutParts,
    /// Slot of each partition: the inverse of `parts.slots`.
    pub(super) positions: Arc<[u32]>,
}

impl Layout {
    /// The first layout of a topic: slots in partition order, cut evenly into one shard per id.
    pub fn create(partitions: u32, ids: &[ShardId], at_ms: i64) -> Result<Self, LayoutError> {
        let shards = ids.len();
        if shards == 0 || shards as u64 > u64::from(partitions) {
            return Err(LayoutError::Counts { partitions, shards });
        }
        let mut first_slot = 0;
        let open = ids
            .iter()
            .zip(Self::even_cut(partitions, shards as u32))
            .map(|(&id, slots)| {
                first_slot += slots;
                Arc::new(ShardSpan {
                    id,
                    first_slot: first_slot - slots,
                    slots,
                    state: ShardState::Open,
                    home: DirectoryId::FIRST,
                    parents: Vec::new(),
                    children: Vec::new(),
                    created: 1,
                    sealed: None,
                    born: partitions,
                    starts: Arc::default(),
                })
            })
            .collect();
        let event = EpochEvent::Created { partitions };
        let parts = LayoutParts {
            slots: (0..partitions).collect(),
            open,
            sealed: Vec::new(),
            counts: Arc::new([partitions]),
            history: vec![Arc::new(EpochRecord {
                epoch: 1,
                at_ms,
                event,
            })],
        };
        Ok(Self {
            positions: Arc::clone(&parts.slots),
            parts,
        })
    }

    /// Slots of each of so many shards of a new topic: they differ by one at most.
    pub fn even_cut(partitions: u32, shards: u32) -> impl Iterator<Item = u32> {
        let cut = move |i: u32| u64::from(i) * u64::from(partitions) / u64::from(shards);
        (0..shards).map(move |i| (cut(i + 1) - cut(i)) as u32)
    }

    /// The same layout with these open shards in these directories.
    pub fn with_homes(mut self, homes: impl Iterator<Item = (ShardId, DirectoryId)>) -> Self {
        let homes: BTreeMap<_, _> = homes.collect();
        for shard in &mut self.parts.open {
            if let Some(home) = homes.get(&shard.id) {
                Arc::make_mut(shard).home = *home;
            }
        }
        self
    }

    /// A layout out of stored parts, if they obey every rule.
    pub fn from_parts(parts: LayoutParts) -> Result<Self, LayoutError> {
        let positions = check(&parts)?;
        Ok(Self { parts, positions })
    }

    /// Built by growth and reshape, which keep the rules.
    pub(super) fn rebuilt(mut parts: LayoutParts, positions: Arc<[u32]>) -> Self {
        forget(&mut parts);
        Self { parts, positions }
    }

    /// What it consists of.
    pub fn parts(&self) -> &LayoutParts {
        &self.parts
    }

    /// How many partitions (and slots) there are.
    pub fn partitions(&self) -> u32 {
        self.parts.slots.len() as u32
    }

    /// The current layout epoch.
    pub fn epoch(&self) -> u32 {
        self.parts.history.last().map_or(0, |r| r.epoch)
    }

    /// Partitions in slot order.
    pub fn slots(&self) -> &[u32] {
        &self.parts.slots
    }

    /// The open shards, in slot order.
    pub fn shards(&self) -> &[Arc<ShardSpan>] {
        &self.parts.open
    }

    /// The shards that were sealed, oldest seal first.
    pub fn sealed(&self) -> &[Arc<ShardSpan>] {
        &self.parts.sealed
    }

    /// The layout history, oldest epoch first.
    pub fn history(&self) -> &[Arc<EpochRecord>] {
        &self.parts.history
    }

    /// The slot of a partition.
    pub fn slot_of(&self, partition: u32) -> Option<u32> {
        self.positions.get(partition as usize).copied()
    }

    /// The open shard that sequences a partition.
    pub fn shard_of(&self, partition: u32) -> Option<ShardId> {
        let index = self.open_index(partition)?;
        self.parts.open.get(index).map(|s| s.id)
    }

    /// Where in [`Layout::shards`] the open shard of a partition stands.
    pub fn open_index(&self, partition: u32) -> Option<usize> {
        let slot = self.slot_of(partition)?;
        Some(self.parts.open.partition_point(|s| s.end_slot() <= slot))
    }

    /// The shard of that id, open or sealed.
    pub fn shard(&self, id: ShardId) -> Option<&Arc<ShardSpan>> {
        self.known().find(|s| s.id == id)
    }

    /// All shards in memory, open ones first.
    pub(super) fn known(&self) -> impl Iterator<Item = &Arc<ShardSpan>> {
        self.parts.open.iter().chain(&self.parts.sealed)
    }

    /// The partitions of a shard, in slot order.
    pub fn partitions_of(&self, shard: &ShardSpan) -> &[u32] {
        let range = shard.first_slot as usize..shard.end_slot() as usize;
        self.parts.slots.get(range).unwrap_or(&[])
    }

    /// The part of the hash space that a shard holds.
    pub fn range_of(&self, shard: &ShardSpan) -> HashRange {
        HashRange::of_slots(shard.first_slot, shard.slots, self.partitions())
    }

    /// The part of the hash space that a partition holds.
    pub fn range_of_partition(&self, partition: u32) -> Option<HashRange> {
        Some(HashRange::of_slots(
            self.slot_of(partition)?,
            1,
            self.partitions(),
        ))
    }

    /// The links of a partition, oldest first; empty for an unknown partition. Links of shards
    /// that are forgotten are missing, as are those that never held a record.
    pub fn links(&self, partition: u32) -> Vec<Link> {
        let Some(slot) = self.slot_of(partition) else {
            return Vec::new();
        };
        let mut spans: Vec<_> = self
            .known()
            .filter(|s| (s.first_slot..s.end_slot()).contains(&slot))
            .collect();
        spans.sort_by_key(|span| span.created);
        let mut links = Vec::new();
        for span in spans {
            let old = |p: &&u32| **p < span.born;
            let before = self.partitions_of(span).iter();
            let before = before.take_while(|p| **p != partition).filter(old).count();
            push_link(&mut links, span, partition, before);
        }
        links
    }

    /// The links of all partitions, by partition.
    pub fn all_links(&self) -> Vec<Vec<Link>> {
        let mut all = vec![Vec::new(); self.parts.slots.len()];
        let mut spans: Vec<_> = self.known().collect();
        spans.sort_by_key(|span| span.created);
        for span in spans {
            let mut rank = 0;
            for &partition in self.partitions_of(span) {
                if let Some(links) = all.get_mut(partition as usize) {
                    push_link(links, span, partition, rank);
                }
                rank += usize::from(partition < span.born);
            }
        }
        all
    }

    /// The epochs, oldest first, that this layout has and a later one of the topic has forgotten.
    pub fn forgotten(&self, later: &Self) -> Vec<Forgotten> {
        let oldest = later.parts.history.first().map_or(0, |r| r.epoch);
        let gone = self.parts.history.iter().take_while(|r| r.epoch < oldest);
        gone.map(|record| {
            let of_epoch = |s: &&Arc<ShardSpan>| s.sealed == Some(record.epoch);
            Forgotten {
                record: Arc::clone(record),
                sealed: self.parts.sealed.iter().filter(of_epoch).cloned().collect(),
                partitions: self.partitions(),
            }
        })
        .collect()
    }

    /// Whether every growth so far kept keys under an exact parent.
    pub fn lineage_exact(&self) -> bool {
        let mut pairs = self.parts.counts.windows(2);
        pairs.all(|pair| aligned(pair[0], pair[1]))
    }
}

/// Adds a shard's link to a partition's. `rank` counts the partitions in front of it that the
/// shard was born with. A link that never held a record says nothing.
fn push_link(links: &mut Vec<Link>, span: &ShardSpan, partition: u32, rank: usize) {
    let start = match partition < span.born {
        true => span.starts.get(rank).copied().unwrap_or(0),
        false => 0,
    };
    if links.last().is_some_and(|last| last.start == start) {
        links.pop();
    }
    let shard = span.id;
    links.push(Link { shard, start });
}

/// Whether growth from one count to the other keeps every key under the same parent.
pub(super) fn aligned(from: u32, to: u32) -> bool {
    from != 0 && to.is_multiple_of(from)
}

/// Drops the oldest epochs, with the shards they sealed, until the rest is within its bounds. The
/// newest one always stays.
fn forget(parts: &mut LayoutParts) {
    let mut starts: usize = parts.sealed.iter().map(|s| s.starts.len()).sum();
    let (mut epochs, mut shards) = (0, 0);
    while let Some(record) = parts.history.get(epochs)
        && parts.history.len() - epochs > 1
        && (parts.history.len() - epochs > MAX_EPOCHS || starts > MAX_STARTS)
    {
        while let Some(shard) = parts.sealed.get(shards)
            && shard.sealed <= Some(record.epoch)
        {
            starts -= shard.starts.len();
            shards += 1;
        }
        epochs += 1;
    }
    parts.history.drain(..epochs);
    parts.sealed.drain(..shards);
}

/// Checks stored parts and returns the slot of each partition.
fn check(parts: &LayoutParts) -> Result<Arc<[u32]>, LayoutError> {
    let count = parts.slots.len();
    let total = u32::try_from(count).map_err(|_| LayoutError::Damaged("too many slots"))?;
    let mut positions = vec![u32::MAX; count];
    for (slot, &partition) in parts.slots.iter().enumerate() {
        match positions.get_mut(partition as usize) {
            Some(p) if *p == u32::MAX => *p = slot as u32,
            _ => {
                return Err(LayoutError::Damaged(
                    "slots are no permutation of the partitions",
                ));
            }
        }
    }
    let mut next = 0;
    for shard in &parts.open {
        let fits = shard
            .slots
            .checked_add(next)
            .is_some_and(|end| end <= total);
        if shard.first_slot != next || shard.slots == 0 || !fits {
            return Err(LayoutError::Damaged("open shards do not tile the slots"));
        }
        next += shard.slots;
    }
    if next != total || total == 0 {
        return Err(LayoutError::Damaged("open shards do not cover the slots"));
    }
    for shard in &parts.sealed {
        if shard
            .first_slot
            .checked_add(shard.slots)
            .is_none_or(|end| end > total)
        {
            return Err(LayoutError::Damaged(
                "a sealed shard lies outside the slots",
            ));
        }
    }
    if parts.open.iter().any(|s| s.state != ShardState::Open)
        || parts.sealed.iter().any(|s| s.state != ShardState::Sealed)
    {
        return Err(LayoutError::Damaged("a shard stands in the wrong list"));
    }
    if !parts.sealed.is_sorted_by_key(|s| s.sealed) {
        return Err(LayoutError::Damaged("sealed shards are out of order"));
    }
    let counts = &parts.counts;
    if counts.last() != Some(&total) || counts.windows(2).any(|w| w[0] >= w[1]) {
        return Err(LayoutError::Damaged(
            "the partition counts do not rise to the present one",
        ));
    }
    for shard in parts.open.iter().chain(&parts.sealed) {
        let range = shard.first_slot as usize..shard.end_slot() as usize;
        let partitions = parts.slots.get(range).unwrap_or(&[]);
        let old = partitions.iter().filter(|p| **p < shard.born).count();
        if !shard.starts.is_empty() && shard.starts.len() != old {
            return Err(LayoutError::Damaged("a shard lacks the start of a link"));
        }
    }
    if parts.history.is_empty() || parts.history.windows(2).any(|w| w[0].epoch >= w[1].epoch) {
        return Err(LayoutError::Damaged("layout epochs do not rise"));
    }
    Ok(positions.into())
}
