//! Growth: the only way to cut a partition.

use std::sync::Arc;

use super::layout::{
    EpochEvent, EpochRecord, Layout, LayoutError, LayoutParts, MAX_GROWTHS, Parent, ShardSpan,
    aligned,
};

impl Layout {
    /// The layout with `to` partitions. Behind the slot of each old partition `p` of N come the
    /// new ones `p + N, p + 2N, …`, in the same shard. Where N divides `to`, that is exactly where
    /// clients that take a key's hash modulo the count send the keys of `p` from then on; for
    /// other counts the lineage of the new partitions is broken.
    pub fn grow(&self, to: u32, at_ms: i64) -> Result<Self, LayoutError> {
        let from = self.partitions();
        if to <= from {
            return Err(LayoutError::NotAGrowth { have: from, to });
        }
        let mut slots = Vec::with_capacity(to as usize);
        // Where each boundary between old slots comes to lie.
        let mut moved = Vec::with_capacity(from as usize + 1);
        for &partition in self.slots() {
            moved.push(slots.len() as u32);
            slots.extend((partition..to).step_by(from as usize));
        }
        moved.push(to);
        let place = |shard: &Arc<ShardSpan>| {
            let first_slot = moved[shard.first_slot as usize];
            let slots = moved[shard.end_slot() as usize] - first_slot;
            Arc::new(ShardSpan {
                first_slot,
                slots,
                ..shard.as_ref().clone()
            })
        };
        let mut positions = vec![0; slots.len()];
        for (slot, &partition) in (0..).zip(&slots) {
            positions[partition as usize] = slot;
        }
        let mut history = self.parts.history.clone();
        let event = EpochEvent::Grown { from, to };
        history.push(Arc::new(EpochRecord {
            epoch: self.epoch() + 1,
            at_ms,
            event,
        }));
        let parts = LayoutParts {
            slots: slots.into(),
            open: self.parts.open.iter().map(place).collect(),
            sealed: self.parts.sealed.iter().map(place).collect(),
            counts: grown(&self.parts.counts, to),
            history,
        };
        Ok(Self::rebuilt(parts, positions.into()))
    }

    /// Where the keys of a partition were before it was made.
    pub fn parent_of(&self, partition: u32) -> Parent {
        let counts = &self.parts.counts;
        let made = counts.partition_point(|count| *count <= partition);
        match (made.checked_sub(1).map(|i| counts[i]), counts.get(made)) {
            (_, None) => Parent::Broken,
            (None, Some(_)) => Parent::None,
            (Some(from), Some(to)) if partition >= from && aligned(from, *to) => {
                Parent::Exact(partition % from)
            }
            _ => Parent::Broken,
        }
    }
}

/// The counts with one more growth; of too many the oldest are forgotten.
fn grown(counts: &[u32], to: u32) -> Arc<[u32]> {
    let surplus = (counts.len() + 1).saturating_sub(MAX_GROWTHS + 1);
    let kept = counts.iter().copied().skip(surplus).chain([to]);
    match surplus {
        0 => kept.collect(),
        // What stands in for the forgotten ones: no partition counts as there from the start.
        _ => [0].into_iter().chain(kept.skip(1)).collect(),
    }
}
