//! What a topic's layout must be, kept by the simplest code that can: the slots, the open shards,
//! and for each partition which shard sequenced it from which offset on.

use std::collections::{BTreeMap, BTreeSet};

use crate::shard::{Layout, ShardSpan};
use crate::types::{DirectoryId, DirectoryNo, Offset, ShardId};

/// What layouts call the data directory of this number.
pub(super) fn directory_id(no: DirectoryNo) -> DirectoryId {
    match no.0 {
        0 => DirectoryId::FIRST,
        no => DirectoryId(uuid::Uuid::from_u128(0xd0 + u128::from(no))),
    }
}

/// Birth and end of a shard, in layout epochs, and where it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Life {
    home: DirectoryNo,
    created: u32,
    sealed: Option<u32>,
}

/// A topic's shards, now and before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lineage {
    pub(super) epoch: u32,
    /// Partition of each slot.
    slots: Vec<u32>,
    /// Open shards and how many slots each has, in slot order.
    pub(super) open: Vec<(ShardId, u32)>,
    lives: BTreeMap<ShardId, Life>,
    links: BTreeMap<u32, Vec<(ShardId, Offset)>>,
}

impl Lineage {
    /// A new topic's: its shards, how many slots each has, and its home.
    pub(super) fn new(partitions: u32, open: Vec<(ShardId, u32, DirectoryNo)>) -> Self {
        let mut lineage = Self {
            epoch: 1,
            slots: (0..partitions).collect(),
            ..Self::default()
        };
        for (id, slots, home) in open {
            lineage.live(id, home);
            lineage.open.push((id, slots));
        }
        for partition in 0..partitions {
            lineage.link(partition, 0);
        }
        lineage
    }

    /// A shard begins.
    fn live(&mut self, id: ShardId, home: DirectoryNo) {
        let life = Life {
            home,
            created: self.epoch,
            sealed: None,
        };
        let before = self.lives.insert(id, life);
        assert_eq!(before, None, "{id:?} is used again");
    }

    /// The directory of a partition's open shard.
    pub(super) fn home_of(&self, partition: u32) -> DirectoryNo {
        self.home(self.shard_of(partition))
    }

    /// Where a partition's last link starts.
    pub(super) fn last_link(&self, partition: u32) -> Option<Offset> {
        let links = self.links.get(&partition)?;
        links.last().map(|(_, start)| *start)
    }

    /// The directory of a shard.
    pub(super) fn home(&self, id: ShardId) -> DirectoryNo {
        self.lives[&id].home
    }

    /// Puts a link to the partition's shard behind its links; one that never held a record goes.
    fn link(&mut self, partition: u32, start: Offset) {
        let shard = self.shard_of(partition);
        let links = self.links.entry(partition).or_default();
        if links.last().is_some_and(|(_, last)| *last == start) {
            links.pop();
        }
        links.push((shard, start));
    }

    /// The open shard of a partition.
    pub(super) fn shard_of(&self, partition: u32) -> ShardId {
        let slot = self.slots.iter().position(|p| *p == partition);
        let mut left = slot.expect("a partition has a slot") as u32;
        for (id, slots) in &self.open {
            match left.checked_sub(*slots) {
                Some(rest) => left = rest,
                None => return *id,
            }
        }
        panic!("the open shards do not cover partition {partition}")
    }

    /// Behind each old partition come those that take over its keys.
    pub(super) fn grow(&mut self, to: u32) {
        let from = self.slots.len() as u32;
        let mut old = std::mem::take(&mut self.slots).into_iter();
        self.epoch += 1;
        for (_, slots) in &mut self.open {
            let before = self.slots.len();
            for partition in old.by_ref().take(*slots as usize) {
                self.slots.extend((partition..to).step_by(from as usize));
            }
            *slots = (self.slots.len() - before) as u32;
        }
        for partition in from..to {
            self.link(partition, 0);
        }
    }

    /// Shards give way to others over the same slots, from these offsets on, where they were or in
    /// another directory.
    pub(super) fn reshape(
        &mut self,
        sealed: &[ShardId],
        opened: &[(ShardId, u32)],
        starts: &BTreeMap<u32, Offset>,
        home: Option<DirectoryNo>,
    ) {
        self.epoch += 1;
        let at = self.open.iter().position(|(id, _)| *id == sealed[0]);
        let at = at.expect("it was open");
        let replaced: Vec<_> = self.open.drain(at..at + sealed.len()).collect();
        assert!(
            replaced.iter().map(|(id, _)| id).eq(sealed),
            "neighbours, in slot order"
        );
        let total = |shards: &[(ShardId, u32)]| shards.iter().map(|(_, n)| n).sum::<u32>();
        assert_eq!(total(&replaced), total(opened), "the same slots");
        for id in sealed {
            let life = self.lives.get_mut(id).expect("it was open");
            life.sealed = Some(self.epoch);
        }
        let home = home.unwrap_or_else(|| self.home(sealed[0]));
        for (id, _) in opened {
            self.live(*id, home);
        }
        let first = total(&self.open[..at]);
        self.open.splice(at..at, opened.iter().copied());
        for slot in first..first + total(opened) {
            let partition = self.slots[slot as usize];
            self.link(partition, starts[&partition]);
        }
    }

    /// Whether these shards were opened together in this epoch.
    pub(super) fn was_opened(&self, ids: &[ShardId], epoch: u32) -> bool {
        let life = |id: &ShardId| self.lives.get(id).map(|life| life.created);
        ids.iter().all(|id| life(id) == Some(epoch))
    }

    /// Compares the store's layout with it.
    pub(super) fn is(&self, layout: &Layout, topic: &str) {
        assert_eq!(layout.epoch(), self.epoch, "layout epoch of {topic}");
        assert_eq!(layout.slots(), self.slots, "slots of {topic}");
        let mut next = 0;
        let open = layout.shards().iter().map(|span| {
            // I1: no slot is in none or in two.
            assert!(span.slots > 0 && span.first_slot == next, "{topic}: a gap");
            next = span.end_slot();
            (span.id, span.slots)
        });
        assert_eq!(
            open.collect::<Vec<_>>(),
            self.open,
            "open shards of {topic}"
        );
        assert_eq!(next as usize, self.slots.len(), "{topic} is covered");
        self.conserves(layout, topic);
        for (partition, links) in &self.links {
            assert_eq!(layout.shard_of(*partition), Some(self.shard_of(*partition)));
            let found = layout.links(*partition).into_iter();
            let found: Vec<_> = found.map(|link| (link.shard, link.start)).collect();
            // I3: the first link starts the log, and each ends where the next one starts.
            assert_eq!(found, *links, "links of {topic}-{partition}");
            assert_eq!(links[0].1, 0);
            assert!(links.windows(2).all(|pair| pair[0].1 < pair[1].1));
        }
    }

    /// I2: a sealed shard's slots are those of its children, which began when it ended.
    fn conserves(&self, layout: &Layout, topic: &str) {
        let all: Vec<&ShardSpan> = layout
            .shards()
            .iter()
            .chain(layout.sealed())
            .map(|span| span.as_ref())
            .collect();
        let ids: BTreeSet<_> = all.iter().map(|span| span.id).collect();
        assert_eq!(ids.len(), all.len(), "{topic}: an id twice");
        assert!(ids.iter().eq(self.lives.keys()), "{topic}: shards");
        for span in &all {
            let life = self.lives[&span.id];
            assert_eq!((span.created, span.sealed), (life.created, life.sealed));
            assert_eq!(span.home, directory_id(life.home), "{topic}: a home");
            let Some(sealed) = span.sealed else { continue };
            let children: Vec<_> = all
                .iter()
                .filter(|c| span.children.contains(&c.id))
                .collect();
            assert_eq!(
                children.len(),
                span.children.len(),
                "{topic}: a child is missing"
            );
            let mut slots: BTreeSet<u32> = (span.first_slot..span.end_slot()).collect();
            for child in children {
                assert_eq!(child.created, sealed, "{topic}: a child of {:?}", span.id);
                assert!(child.parents.contains(&span.id));
                slots.retain(|slot| !(child.first_slot..child.end_slot()).contains(slot));
            }
            assert_eq!(
                slots,
                BTreeSet::new(),
                "{topic}: slots of {:?} are lost",
                span.id
            );
        }
    }
}
