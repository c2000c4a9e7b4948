//! Looking back: the reshape that sealed some shards, and epochs that memory has forgotten. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::layout::{EpochEvent, EpochRecord, Forgotten, Layout, ShardSpan};
use crate::types::ShardId;

/// A reshape that was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastReshape {
    /// The layout epoch that it made.
    pub epoch: u32,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// The shards that it sealed, in slot order.
    pub sealed: Vec<Arc<ShardSpan>>,
    /// The shards that it opened, in slot order; also those that were sealed since.
    pub opened: Vec<Arc<ShardSpan>>,
    /// What it replaced as one span, counted by the slots of that time.
    pub span: ShardSpan,
    /// Partitions of the topic at that time.
    pub partitions: u32,
}

impl PastReshape {
    /// Slots of the shards that it opened, as they were then.
    pub fn slots(&self) -> Vec<u32> {
        self.opened.iter().map(|s| s.slots_at_birth()).collect()
    }
}

impl ShardSpan {
    /// How many slots it had when a reshape opened it. A growth since has cut each into more.
    pub fn slots_at_birth(&self) -> u32 {
        match self.starts.is_empty() {
            true => self.slots,
            false => self.starts.len() as u32,
        }
    }
}

impl Layout {
    /// The shards that the layout knows, open and sealed, by id: for whoever looks many up, as there
    /// may be thousands.
    pub fn by_id(&self) -> BTreeMap<ShardId, &Arc<ShardSpan>> {
        self.known().map(|shard| (shard.id, shard)).collect()
    }

    /// The reshape that made an epoch, if the layout still knows it: its record, the shards that it
    /// sealed and those that it opened.
    pub fn reshape_of(&self, epoch: u32) -> Option<(&EpochRecord, &[ShardId], &[ShardId])> {
        let record = self.parts.history.iter().find(|r| r.epoch == epoch)?;
        match &record.event {
            EpochEvent::Reshaped { sealed, opened } => Some((record, sealed, opened)),
            _ => None,
        }
    }

    /// The reshape that sealed exactly these shards, named in any order, if the layout still knows
    /// them and what came of them.
    pub fn past_reshape(&self, sealed: &[ShardId]) -> Option<PastReshape> {
        let known = self.by_id();
        let epoch = known.get(sealed.first()?)?.sealed?;
        let (record, was, opened) = self.reshape_of(epoch)?;
        let mut named = sealed.to_vec();
        named.sort();
        let mut same = was.to_vec();
        same.sort();
        let spans = |ids: &[ShardId]| -> Option<Vec<Arc<ShardSpan>>> {
            let spans = ids.iter().map(|id| known.get(id).map(|s| Arc::clone(s)));
            spans.collect()
        };
        if named != same {
            return None;
        }
        let (sealed, opened) = (spans(was)?, spans(opened)?);
        let first = opened.first()?;
        let before = self.parts.slots.iter().take(first.first_slot as usize);
        let span = ShardSpan {
            first_slot: before.filter(|p| **p < first.born).count() as u32,
            slots: opened.iter().map(|s| s.slots_at_birth()).sum(),
            ..first.as_ref().clone()
        };
        Some(PastReshape {
            epoch,
            at_ms: record.at_ms,
            partitions: first.born,
            sealed,
            opened,
            span,
        })
    }

    /// The same layout with epochs that it has forgotten, oldest first, and the shards that they
    /// sealed. It is for looking at only.
    pub fn with_older(&self, older: &[Forgotten]) -> Self {
        let mut parts = self.parts.clone();
        let mut places = (self.partitions(), Vec::new());
        let mut sealed = Vec::new();
        for epoch in older {
            if epoch.partitions != places.0 {
                places = (epoch.partitions, self.places(epoch.partitions));
            }
            let place = |slot: u32| match epoch.partitions == self.partitions() {
                true => slot,
                false => {
                    let place = places.1.get(slot as usize);
                    place.copied().unwrap_or(self.partitions())
                }
            };
            sealed.extend(epoch.sealed.iter().map(|span| {
                let first_slot = place(span.first_slot);
                let slots = place(span.end_slot()).saturating_sub(first_slot);
                Arc::new(ShardSpan {
                    first_slot,
                    slots,
                    ..span.as_ref().clone()
                })
            }));
        }
        parts.sealed.splice(0..0, sealed);
        let records = older.iter().map(|epoch| Arc::clone(&epoch.record));
        parts.history.splice(0..0, records);
        Self {
            parts,
            positions: Arc::clone(&self.positions),
        }
    }

    /// Where the slots of the time with so many partitions begin now. Growth puts new partitions
    /// behind old ones, which keep their order.
    fn places(&self, partitions: u32) -> Vec<u32> {
        let slots = (0..).zip(self.parts.slots.iter());
        let old = slots.filter(|(_, partition)| **partition < partitions);
        old.map(|(slot, _)| slot).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::cut;

    const AT: i64 = 7;

    fn id(n: u64) -> ShardId {
        ShardId(n)
    }

    /// 1 is split into 2 and 3 at slot 2 of 5, and 2 into 4 and 5 at slot 1.
    fn split_twice() -> Layout {
        let layout = Layout::create(5, &[id(1)], 0).unwrap();
        let first = [(id(2), 2), (id(3), 3)];
        let layout = layout.reshape(&[id(1)], &first, &[9; 5], AT).unwrap();
        let second = [(id(4), 1), (id(5), 1)];
        layout.reshape(&[id(2)], &second, &[9; 2], AT).unwrap()
    }

    #[test]
    fn a_reshape_is_found_as_it_was_whatever_came_after_it() {
        let layout = split_twice();
        let merged = layout
            .reshape(&[id(5), id(3)], &[(id(6), 4)], &[9; 4], AT)
            .unwrap();
        for (layout, what) in [
            (layout.clone(), "at once"),
            (merged.clone(), "merged on"),
            (merged.grow(15, AT).unwrap(), "grown by a multiple"),
            (merged.grow(12, AT).unwrap(), "grown otherwise"),
        ] {
            let first = layout.past_reshape(&[id(1)]).unwrap();
            assert_eq!((first.epoch, first.partitions), (2, 5), "{what}");
            assert_eq!(first.slots(), [2, 3], "{what}");
            let opened: Vec<_> = first.opened.iter().map(|s| s.id).collect();
            assert_eq!(opened, [id(2), id(3)], "{what}");
            let second = layout.past_reshape(&[id(2)]).unwrap();
            assert_eq!((second.epoch, second.slots()), (3, vec![1, 1]), "{what}");
            let again = cut::at_slot(&second.span, 1).unwrap();
            assert_eq!(again, second.slots(), "{what}");
        }
        let merge = merged.past_reshape(&[id(3), id(5)]).unwrap();
        assert_eq!((merge.slots(), merge.span.first_slot), (vec![4], 1));
        for other in [&[id(3)][..], &[id(4)], &[id(9)], &[id(1), id(2)], &[]] {
            assert_eq!(merged.past_reshape(other), None, "{other:?}");
        }
    }

    #[test]
    fn older_epochs_come_back_to_their_places() {
        let whole = split_twice().grow(15, AT).unwrap();
        let merge = [(id(6), 12)];
        let whole = whole
            .reshape(&[id(5), id(3)], &merge, &[9; 12], AT)
            .unwrap();
        // What is forgotten after the growth and before it is counted by other slots.
        for partitions in [5, 15] {
            let told = match partitions {
                5 => split_twice(),
                _ => whole.clone(),
            };
            let mut parts = whole.parts().clone();
            parts.history.drain(..3);
            parts.sealed.drain(..2);
            let rest = Layout::from_parts(parts).unwrap();
            let older = told.forgotten(&rest);
            assert_eq!((older.len(), older[1].partitions), (3, partitions));
            assert_eq!(rest.past_reshape(&[id(1)]), None);
            assert_eq!(rest.with_older(&older), whole);
        }
    }
}
