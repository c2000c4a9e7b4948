//! Reshape: open shards replaced by others over the same slots. Split, merge and move in one verb.

use std::sync::Arc;

use super::layout::{EpochEvent, EpochRecord, Layout, LayoutError, ShardSpan, ShardState};
use crate::types::{DirectoryId, Offset, ShardId};

impl Layout {
    /// The layout in which the adjacent open shards `sealed` are replaced by `opened`: new shards
    /// with their numbers of slots, in slot order. `starts` are the offsets that their partitions
    /// hand out next, in slot order, where the links to the new shards start.
    pub fn reshape(
        &self,
        sealed: &[ShardId],
        opened: &[(ShardId, u32)],
        starts: &[Offset],
        at_ms: i64,
    ) -> Result<Self, LayoutError> {
        let run = self.adjacent(sealed)?;
        let old = &self.parts.open[run.clone()];
        let slots: u64 = old.iter().map(|s| u64::from(s.slots)).sum();
        self.check_opened(opened, slots)?;
        if old.iter().any(|shard| shard.home != old[0].home) {
            return Err(LayoutError::Reshape(
                "the shards are in different directories",
            ));
        }
        if starts.len() as u64 != slots {
            return Err(LayoutError::Reshape("not each partition has a start"));
        }
        let epoch = self.epoch() + 1;
        let fresh = self.place(opened, starts, old, epoch);
        let mut parts = self.parts.clone();
        parts.sealed.extend(old.iter().map(|shard| {
            Arc::new(ShardSpan {
                state: ShardState::Sealed,
                children: overlapping(shard, &fresh),
                sealed: Some(epoch),
                ..shard.as_ref().clone()
            })
        }));
        parts.open.splice(run, fresh);
        let event = EpochEvent::Reshaped {
            sealed: sealed.to_vec(),
            opened: opened.iter().map(|o| o.0).collect(),
        };
        parts.history.push(Arc::new(EpochRecord {
            epoch,
            at_ms,
            event,
        }));
        Ok(Self::rebuilt(parts, Arc::clone(&self.positions)))
    }

    /// Indexes of the open shards of those ids, which must stand side by side in that order.
    fn adjacent(&self, ids: &[ShardId]) -> Result<std::ops::Range<usize>, LayoutError> {
        let first = ids
            .first()
            .ok_or(LayoutError::Reshape("no shard is named"))?;
        let start = self.parts.open.iter().position(|s| s.id == *first);
        let start = start.ok_or(LayoutError::Reshape("a shard is not open"))?;
        let run = start..start + ids.len();
        match self.parts.open.get(run.clone()) {
            Some(found) if found.iter().map(|s| s.id).eq(ids.iter().copied()) => Ok(run),
            _ => Err(LayoutError::Reshape(
                "the shards are not open, adjacent and in slot order",
            )),
        }
    }

    fn check_opened(&self, opened: &[(ShardId, u32)], slots: u64) -> Result<(), LayoutError> {
        if opened.iter().any(|o| o.1 == 0) {
            return Err(LayoutError::Reshape("a new shard would be empty"));
        }
        if opened.iter().map(|o| u64::from(o.1)).sum::<u64>() != slots {
            return Err(LayoutError::Reshape(
                "the new shards do not cover the old ones",
            ));
        }
        let highest = self.known().map(|s| s.id).max();
        if opened.first().map(|o| o.0) <= highest || !opened.is_sorted_by(|a, b| a.0 < b.0) {
            return Err(LayoutError::Reshape("a new shard's id is not a new one"));
        }
        Ok(())
    }

    fn place(
        &self,
        opened: &[(ShardId, u32)],
        mut starts: &[Offset],
        old: &[Arc<ShardSpan>],
        epoch: u32,
    ) -> Vec<Arc<ShardSpan>> {
        let mut first_slot = old.first().map_or(0, |s| s.first_slot);
        let mut fresh = Vec::with_capacity(opened.len());
        for &(id, slots) in opened {
            let (own, rest) = starts.split_at(starts.len().min(slots as usize));
            starts = rest;
            let mut shard = ShardSpan {
                id,
                first_slot,
                slots,
                state: ShardState::Open,
                home: old.first().map_or(DirectoryId::FIRST, |s| s.home),
                parents: Vec::new(),
                children: Vec::new(),
                created: epoch,
                sealed: None,
                born: self.partitions(),
                starts: own.into(),
            };
            shard.parents = overlapping(&shard, old);
            first_slot += slots;
            fresh.push(Arc::new(shard));
        }
        fresh
    }
}

/// Ids of the shards that share a slot with this one.
fn overlapping(shard: &ShardSpan, others: &[Arc<ShardSpan>]) -> Vec<ShardId> {
    others
        .iter()
        .filter(|o| o.first_slot < shard.end_slot() && shard.first_slot < o.end_slot())
        .map(|o| o.id)
        .collect()
}
