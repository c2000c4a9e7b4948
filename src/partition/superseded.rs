//! Records that lie in two files: which of them counts.
//!
//! After a move, merges of the new home copy records out of files of the old one, whose other
//! sections may live on. A file leaves the lists when nothing in it counts any more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::partition::registry::Registry;
use crate::partition::shard::SegmentFile;
use crate::types::{DirectoryNo, Offset, PartitionKey};

impl Registry {
    /// Finds out which sections of a file that a merge made, or of those that were there before, do
    /// not count any more. With one directory no record is ever in two files for long.
    pub(super) fn compare_copies(&self, file: &Arc<SegmentFile>) {
        if !self.directories.are_several() {
            return;
        }
        for section in file.sections() {
            let shards = self.topic_shards(section.key.topic);
            let list = shards.map(|shards| shards.files(section.key.index));
            for other in list.iter().flat_map(|list| list.iter()) {
                self.supersede(section.key, file, other);
            }
        }
        for directory in self.directories.iter() {
            directory.has_foreign.store(true, Ordering::Release);
        }
    }

    /// Does so for all files, once a start has read all directories: what was found out before the
    /// process ended is not kept.
    pub(super) fn compare_all_copies(&self) {
        for shards in self.topics.iter() {
            for (_, list) in shards.lists() {
                let mut by_key: BTreeMap<PartitionKey, Vec<&Arc<SegmentFile>>> = BTreeMap::new();
                for file in list.iter() {
                    for section in &file.meta.sections {
                        by_key.entry(section.key).or_default().push(file);
                    }
                }
                for (key, mut files) in by_key {
                    let range = |file: &&Arc<SegmentFile>| {
                        let section = file.meta.section(key);
                        section.map(|s| (s.start, std::cmp::Reverse(s.end)))
                    };
                    files.sort_by_key(range);
                    let mut last: Option<&Arc<SegmentFile>> = None;
                    for file in files {
                        if let Some(before) = last {
                            self.supersede(key, before, file);
                        }
                        last = match last {
                            Some(before) if !file.counts(key) => Some(before),
                            _ => Some(file),
                        };
                    }
                }
            }
        }
    }

    /// If one of two files has all that another has of a partition, the other's section does not
    /// count any more. Of two that have the same, the one in the partition's home counts.
    fn supersede(&self, key: PartitionKey, one: &Arc<SegmentFile>, other: &Arc<SegmentFile>) {
        if Arc::ptr_eq(one, other) || other.meta.section(key).is_none() {
            return;
        }
        // Two directories' merges may look at the same two files with different homes in mind.
        let _alone = self.superseding.lock();
        let Some(partition) = self.get(key) else {
            return;
        };
        let log_start = partition.bounds().log_start;
        let home = partition.shard().map(|shard| shard.home.no);
        let Some(loser) = loser(key, log_start, home, one, other) else {
            return;
        };
        loser.supersede(key);
        let directory = self.directories.get(loser.directory);
        directory.garbage.store(true, Ordering::Release);
        directory.wake.raise();
    }
}

/// The one of two files whose section of a partition does not count beside the other's.
fn loser<'a>(
    key: PartitionKey,
    log_start: Offset,
    home: Option<DirectoryNo>,
    one: &'a Arc<SegmentFile>,
    other: &'a Arc<SegmentFile>,
) -> Option<&'a Arc<SegmentFile>> {
    let range = |file: &SegmentFile| {
        let section = file.section(key)?;
        let start = section.start.max(log_start);
        (start < section.end).then_some((start, section.end))
    };
    let (a, b) = (range(one)?, range(other)?);
    let rank = |file: &SegmentFile| {
        let at_home = Some(file.directory) == home;
        (at_home, file.meta.file, file.directory)
    };
    let one_has_all = a.0 <= b.0 && a.1 >= b.1;
    let other_has_all = b.0 <= a.0 && b.1 >= a.1;
    match (one_has_all, other_has_all) {
        (false, false) => None,
        (true, false) => Some(other),
        (false, true) => Some(one),
        (true, true) if rank(one) > rank(other) => Some(other),
        (true, true) => Some(one),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::segment::{SectionMeta, SegmentMeta};
    use crate::types::{FileId, TopicNo};

    const KEY: PartitionKey = PartitionKey {
        topic: TopicNo(1),
        index: 0,
    };

    fn file(directory: u16, number: u64, start: i64, end: i64) -> Arc<SegmentFile> {
        let section = SectionMeta {
            key: KEY,
            start,
            end,
            ..SectionMeta::default()
        };
        let meta = SegmentMeta {
            file: FileId(number),
            bytes: 1,
            sections: vec![section],
        };
        Arc::new(SegmentFile::new(DirectoryNo(directory), meta))
    }

    /// Which loses, 1 or 2 or neither, asked in both orders.
    fn loses(log_start: i64, one: &Arc<SegmentFile>, two: &Arc<SegmentFile>) -> u8 {
        let which = |loser: Option<&Arc<SegmentFile>>| match loser {
            None => 0,
            Some(file) if Arc::ptr_eq(file, one) => 1,
            Some(_) => 2,
        };
        let home = Some(DirectoryNo(1));
        let found = which(loser(KEY, log_start, home, one, two));
        assert_eq!(found, which(loser(KEY, log_start, home, two, one)));
        found
    }

    #[test]
    fn the_larger_counts_and_of_equals_the_one_at_home() {
        assert_eq!(loses(0, &file(0, 9, 0, 10), &file(1, 1, 0, 10)), 1);
        assert_eq!(loses(0, &file(1, 9, 0, 10), &file(1, 1, 0, 10)), 2);
        assert_eq!(loses(0, &file(0, 9, 0, 11), &file(1, 1, 0, 10)), 2);
        assert_eq!(loses(0, &file(0, 9, 0, 10), &file(1, 1, 10, 20)), 0);
        assert_eq!(loses(0, &file(0, 9, 0, 10), &file(1, 1, 5, 20)), 0);
    }

    #[test]
    fn what_is_deleted_makes_no_difference() {
        assert_eq!(loses(6, &file(0, 9, 0, 10), &file(1, 1, 4, 10)), 1);
        assert_eq!(loses(3, &file(0, 9, 0, 10), &file(1, 1, 4, 10)), 2);
        assert_eq!(loses(10, &file(0, 9, 0, 10), &file(1, 1, 4, 10)), 0);
    }

    #[test]
    fn what_does_not_count_takes_no_other_out() {
        let (one, two) = (file(0, 9, 0, 20), file(1, 1, 0, 10));
        one.supersede(KEY);
        assert_eq!(loses(0, &one, &two), 0);
    }
}
