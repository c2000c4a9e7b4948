//! Growth: the only way to cut a partition.

use super::layout::{
    EpochEvent, EpochRecord, Layout, LayoutError, LayoutParts, Parent, ShardSpan, aligned,
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
        let place = |shard: &ShardSpan| {
            let first_slot = moved[shard.first_slot as usize];
            let slots = moved[shard.end_slot() as usize] - first_slot;
            ShardSpan {
                first_slot,
                slots,
                ..shard.clone()
            }
        };
        let mut history = self.parts.history.clone();
        let event = EpochEvent::Grown { from, to };
        history.push(EpochRecord {
            epoch: self.epoch() + 1,
            at_ms,
            event,
        });
        Ok(Self::rebuilt(LayoutParts {
            slots,
            open: self.parts.open.iter().map(place).collect(),
            sealed: self.parts.sealed.iter().map(place).collect(),
            links: self.parts.links.clone(),
            history,
        }))
    }

    /// Where the keys of a partition were before it was made.
    pub fn parent_of(&self, partition: u32) -> Parent {
        let mut below = self.born();
        if partition < below {
            return Parent::None;
        }
        for record in &self.parts.history {
            if let EpochEvent::Grown { from, to } = record.event {
                if partition >= below && partition < to {
                    let known = partition >= from && aligned(from, to);
                    return if known {
                        Parent::Exact(partition % from)
                    } else {
                        Parent::Broken
                    };
                }
                below = to;
            }
        }
        Parent::Broken
    }

    /// How many partitions the topic was born with; 0 where the record of it was dropped.
    pub(super) fn born(&self) -> u32 {
        match self.parts.history.first().map(|r| &r.event) {
            Some(EpochEvent::Created { partitions }) => *partitions,
            _ => 0,
        }
    }
}
