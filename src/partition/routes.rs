//! Which shard has a partition: for appends as sequenced, for reads as durable.
//!
//! A reshape is sequenced under the locks of the old shards: from that moment appends go to the
//! new ones. Readers follow when its journal entry is durable. Neither needs to touch a partition.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use crate::partition::directory::{Directories, Directory};
use crate::partition::shard::{FileList, SegmentFile, SegmentList, Shard, Standing};
use crate::shard::{Layout, ShardSpan};
use crate::types::{PartitionKey, ShardId, TopicNo};

/// One thing per open shard of a layout.
pub(super) struct Table<T> {
    layout: Arc<Layout>,
    /// In slot order, as the layout's open shards.
    open: Vec<Arc<T>>,
}

impl<T> Table<T> {
    fn new(layout: &Arc<Layout>, make: impl Fn(&ShardSpan) -> T) -> Self {
        let open = layout.shards().iter().map(|span| Arc::new(make(span)));
        Self {
            open: open.collect(),
            layout: Arc::clone(layout),
        }
    }

    /// All, in slot order.
    pub(super) fn open(&self) -> &[Arc<T>] {
        &self.open
    }

    fn of(&self, partition: u32) -> Option<&Arc<T>> {
        self.open.get(self.layout.open_index(partition)?)
    }

    /// The table for a later layout. Shards that are in both keep what they have; `make` gets each
    /// new one and those of this table whose slots it took. These are right only if the layouts
    /// count the same slots: a growth in between gives slots other numbers.
    fn follow(&self, layout: &Arc<Layout>, make: impl Fn(&ShardSpan, &[Arc<T>]) -> T) -> Self {
        let before = self.layout.shards();
        let kept: BTreeMap<_, _> = before.iter().map(|old| old.id).zip(&self.open).collect();
        let open = layout.shards().iter().map(|span| match kept.get(&span.id) {
            Some(kept) => Arc::clone(kept),
            None => {
                let start = before.partition_point(|old| old.end_slot() <= span.first_slot);
                let end = before.partition_point(|old| old.first_slot < span.end_slot());
                Arc::new(make(span, self.open.get(start..end).unwrap_or(&[])))
            }
        });
        let open = open.collect();
        Self {
            layout: Arc::clone(layout),
            open,
        }
    }
}

/// The open shards of one topic at run time.
pub(super) struct TopicShards {
    no: TopicNo,
    /// Where appends go. Swapped under the catalog's lock and those of the shards that are left.
    routes: ArcSwap<Table<Shard>>,
    /// Where reads go. Changed by the journals' sinks, each in the order of its journal.
    lists: ArcSwap<Table<SegmentList>>,
    /// Held by a sink while it changes lists.
    listing: Mutex<()>,
    /// Producer ids from here on were given out after the topic came to be.
    pub(super) first_younger_producer: i64,
}

impl TopicShards {
    /// The shards of a new topic: those of `sequenced` for appends, of `durable` for reads.
    pub(super) fn new(
        no: TopicNo,
        sequenced: &Arc<Layout>,
        make: impl Fn(&ShardSpan) -> Shard,
        durable: &Arc<Layout>,
        first_younger_producer: i64,
    ) -> Self {
        let routes = Table::new(sequenced, make);
        let lists = Table::new(durable, |span| SegmentList::new(span.id, FileList::new()));
        Self {
            no,
            routes: ArcSwap::from_pointee(routes),
            lists: ArcSwap::from_pointee(lists),
            listing: Mutex::default(),
            first_younger_producer,
        }
    }

    /// Where appends go now.
    pub(super) fn routes(&self) -> Arc<Table<Shard>> {
        self.routes.load_full()
    }

    /// The shard that sequences a partition now.
    pub(super) fn route(&self, partition: u32) -> Option<Arc<Shard>> {
        self.routes.load().of(partition).map(Arc::clone)
    }

    /// Whether appends to a partition go to this directory now.
    pub(super) fn lives_in(&self, partition: u32, directory: &Directory) -> bool {
        let routes = self.routes.load();
        let shard = routes.of(partition);
        shard.is_some_and(|shard| shard.home.no == directory.no)
    }

    /// The files that may hold a partition's records.
    pub(super) fn files(&self, partition: u32) -> Arc<FileList> {
        let lists = self.lists.load();
        lists.of(partition).map(|l| l.files()).unwrap_or_default()
    }

    /// The list of each shard, in slot order.
    pub(super) fn lists(&self) -> Vec<(ShardId, Arc<FileList>)> {
        let lists = self.lists.load();
        lists.open.iter().map(|l| (l.id, l.files())).collect()
    }

    /// Sends appends where this layout says, unless they are further already. The caller holds the
    /// catalog's lock, and the locks of all shards that the layout does not have any more. Shards in
    /// `moved` take nothing until it is durable that their new directory counts.
    pub(super) fn reroute(
        &self,
        layout: &Arc<Layout>,
        directories: &Directories,
        moved: &[ShardId],
    ) {
        let routes = self.routes.load();
        if layout.epoch() > routes.layout.epoch() {
            let next = routes.follow(layout, |span, _| {
                let home = Arc::clone(directories.home(span.home));
                let standing = match moved.contains(&span.id) {
                    true => Standing::waiting(),
                    false => Standing::Open,
                };
                Shard::new(span.id, home, standing)
            });
            self.routes.store(Arc::new(next));
        }
    }

    /// Sends reads where this layout says. A new shard's list has each file of the old ones' lists
    /// that holds a section of its partitions. Only the journal's sink does this.
    pub(super) fn relist(&self, layout: &Arc<Layout>) {
        let _alone = self.listing.lock();
        let lists = self.lists.load();
        let next = lists.follow(layout, |span, old| {
            let partitions = layout.partitions_of(span);
            let mut files: FileList = old
                .iter()
                .flat_map(|list| list.files().as_ref().clone())
                .collect();
            files.sort_by_key(|file| (file.meta.file, file.directory));
            files.dedup_by(|a, b| Arc::ptr_eq(a, b));
            files.retain(|file| holds_any(file, self.no, layout, span, partitions));
            SegmentList::new(span.id, files)
        });
        self.lists.store(Arc::new(next));
    }

    /// Puts a file into the lists of those shards that have a partition in it.
    pub(super) fn list(&self, file: &Arc<SegmentFile>) {
        let _alone = self.listing.lock();
        for list in self.lists_with(file) {
            let mut files = list.files().as_ref().clone();
            files.push(Arc::clone(file));
            list.set_files(files);
        }
    }

    /// Takes a file out of all lists.
    pub(super) fn unlist(&self, file: &Arc<SegmentFile>) {
        let _alone = self.listing.lock();
        for list in self.lists_with(file) {
            let files = list.files();
            let rest = files.iter().filter(|f| !Arc::ptr_eq(f, file));
            list.set_files(rest.cloned().collect());
        }
    }

    fn lists_with(&self, file: &SegmentFile) -> Vec<Arc<SegmentList>> {
        let lists = self.lists.load();
        let mut with = vec![false; lists.open.len()];
        for key in keys_of(file, self.no) {
            let index = lists.layout.open_index(key.index);
            if let Some(seen) = index.and_then(|index| with.get_mut(index)) {
                *seen = true;
            }
        }
        let pairs = lists.open.iter().zip(with);
        pairs
            .filter(|(_, with)| *with)
            .map(|(list, _)| Arc::clone(list))
            .collect()
    }
}

/// The partitions of one topic that have a section in a file.
fn keys_of(file: &SegmentFile, no: TopicNo) -> impl Iterator<Item = PartitionKey> {
    let sections = &file.meta.sections;
    let first = sections.partition_point(|section| section.key.topic < no);
    let of_topic = sections.iter().skip(first);
    of_topic
        .take_while(move |section| section.key.topic == no)
        .map(|section| section.key)
}

/// Whether a file has a section of a shard's partitions: asked from the side that has fewer.
fn holds_any(
    file: &SegmentFile,
    no: TopicNo,
    layout: &Layout,
    span: &ShardSpan,
    partitions: &[u32],
) -> bool {
    if partitions.len() < file.meta.sections.len() {
        return partitions.iter().any(|&index| {
            let key = PartitionKey { topic: no, index };
            file.meta.section(key).is_some()
        });
    }
    let inside = |slot: u32| (span.first_slot..span.end_slot()).contains(&slot);
    keys_of(file, no).any(|key| layout.slot_of(key.index).is_some_and(inside))
}

/// The topics that have a section in a file, in ascending order.
pub(super) fn topics_of(file: &SegmentFile) -> Vec<TopicNo> {
    let mut topics: Vec<TopicNo> = file.meta.sections.iter().map(|s| s.key.topic).collect();
    topics.dedup();
    topics
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::ShardId;

    /// Appends follow a reshape at once and a growth only when it is durable, so that both may
    /// have to be followed together. Whoever waits for the lock of a shard that stays must not be
    /// left with another one than those who come after.
    #[test]
    fn a_shard_that_stays_keeps_what_it_has_over_a_growth_and_a_reshape_at_once() {
        let ids = [ShardId(1), ShardId(2), ShardId(3)];
        let born = Arc::new(Layout::create(6, &ids, 0).unwrap());
        let grown = born.grow(12, 0).unwrap();
        let opened = [(ShardId(4), 1), (ShardId(5), 3)];
        for replaced in ids {
            let reshaped = grown.reshape(&[replaced], &opened, &[0; 4], 0).unwrap();
            let before = Table::new(&born, |span| span.id);
            let after = before.follow(&Arc::new(reshaped), |span, _| span.id);
            for (old, id) in before.open().iter().zip(ids) {
                let stayed = after.open().iter().any(|new| Arc::ptr_eq(new, old));
                assert_eq!(
                    stayed,
                    id != replaced,
                    "{id:?} when {replaced:?} was replaced"
                );
            }
            let spans = after.layout.shards().iter().map(|span| span.id);
            assert!(after.open().iter().map(|id| **id).eq(spans));
        }
    }
}
