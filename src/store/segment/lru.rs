//! A cache bounded by weight that lets go of what was not used for longest.

use std::collections::{BTreeMap, HashMap};

use crate::types::FileId;

struct Slot<V> {
    value: V,
    weight: u64,
    used: u64,
}

/// Values by file number. One that outweighs the whole limit is kept alone.
pub(super) struct Lru<V> {
    limit: u64,
    weight: u64,
    clock: u64,
    evicted: u64,
    slots: HashMap<FileId, Slot<V>>,
    order: BTreeMap<u64, FileId>,
}

impl<V: Clone> Lru<V> {
    pub(super) fn new(limit: u64) -> Self {
        Self {
            limit,
            weight: 0,
            clock: 0,
            evicted: 0,
            slots: HashMap::new(),
            order: BTreeMap::new(),
        }
    }

    /// The value of a file, now the one used last.
    pub(super) fn get(&mut self, file: FileId) -> Option<V> {
        let slot = self.slots.get_mut(&file)?;
        self.order.remove(&slot.used);
        self.clock += 1;
        slot.used = self.clock;
        self.order.insert(self.clock, file);
        Some(slot.value.clone())
    }

    /// Puts a value in, letting go of others until it fits.
    pub(super) fn insert(&mut self, file: FileId, value: V, weight: u64) {
        self.remove(file);
        while self.weight + weight > self.limit {
            let Some((_, oldest)) = self.order.pop_first() else {
                break;
            };
            if let Some(slot) = self.slots.remove(&oldest) {
                self.weight -= slot.weight;
                self.evicted += 1;
            }
        }
        self.clock += 1;
        self.order.insert(self.clock, file);
        self.slots.insert(
            file,
            Slot {
                value,
                weight,
                used: self.clock,
            },
        );
        self.weight += weight;
    }

    pub(super) fn remove(&mut self, file: FileId) {
        if let Some(slot) = self.slots.remove(&file) {
            self.order.remove(&slot.used);
            self.weight -= slot.weight;
        }
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// How many values had to make room.
    pub(super) fn evicted(&self) -> u64 {
        self.evicted
    }

    pub(super) fn weight(&self) -> u64 {
        self.weight
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }
}
