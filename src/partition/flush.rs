//! Moving the tail into segment files.
//!
//! Order: files written and synced, folder synced, `segments` entry durable, lists swapped, tail
//! freed. A crash before the entry leaves files that no list names; recovery deletes them.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::partition::directory::Directory;
use crate::partition::entries::SegmentsEntry;
use crate::partition::figures::Figures;
use crate::partition::registry::Registry;
use crate::protocol::batch::BatchInfo;
use crate::store::journal::{Entry, EntryKind, EntryRef, Group};
use crate::store::segment::SegmentMeta;
use crate::types::{FileId, PartitionKey, Position, ShardId};

/// A shard with this much to flush gets a file of its own.
const OWN_FILE_BYTES: usize = 8 << 20;
/// Least speed of a paced flush, in bytes a second.
const PACE_FLOOR: u64 = 16 << 20;
/// What a failing device says: nothing it said lately can be trusted, and the process ends.
const EIO: i32 = rustix::io::Errno::IO.raw_os_error();

/// The batches of one flush in one shard, by partition.
type ShardCut = BTreeMap<PartitionKey, Vec<(Arc<Group>, EntryRef)>>;

/// The batches of one flush.
type Cut = BTreeMap<ShardId, ShardCut>;

/// Holds a writer back so that the journal, on the same disk, keeps its latency.
struct Pacer<'a> {
    directory: &'a Directory,
    started: Instant,
    written: Cell<u64>,
    bytes_per_second: u64,
}

impl Pacer<'_> {
    /// Accounts for bytes just written; sleeps while ahead of the pace, unless the tail is three
    /// quarters full.
    fn step(&self, bytes: u64) {
        self.written.set(self.written.get() + bytes);
        let due = self.written.get() as f64 / self.bytes_per_second as f64;
        let due = Duration::from_secs_f64(due);
        while self.started.elapsed() < due {
            let free = self.directory.free_tail_bytes();
            if free < self.directory.tail_limit / 4 {
                return;
            }
            let ahead = due.saturating_sub(self.started.elapsed());
            std::thread::sleep(ahead.min(Duration::from_millis(10)));
        }
    }
}

impl Registry {
    /// Flushes the whole tail as of now. Returns whether there was anything to flush.
    pub(crate) fn flush(&self, directory: &Directory, ingest_per_second: u64) -> io::Result<bool> {
        let _alone = directory.flushing.lock();
        let (through, cut) = self.cut_tail(directory);
        let Some(through) = through else {
            return Ok(false);
        };
        let pacer = Pacer {
            directory,
            started: Instant::now(),
            written: Cell::new(0),
            bytes_per_second: PACE_FLOOR.max(ingest_per_second.saturating_mul(3) / 2),
        };
        let mut added = Vec::new();
        let result = self.write_files(cut, &pacer, &mut added);
        if let Err(error) = result {
            for meta in &added {
                self.remove_unlisted(directory, meta.file);
            }
            return Err(error);
        }
        Figures::add(&directory.figures.flushes, 1);
        Figures::add(
            &directory.figures.flushed_bytes,
            added.iter().map(|meta| meta.bytes).sum(),
        );
        directory.commit_segments(SegmentsEntry {
            flushed: through,
            added,
            removed: Vec::new(),
        })?;
        Ok(true)
    }

    fn cut_tail(&self, directory: &Directory) -> (Option<Position>, Cut) {
        let groups: Vec<Arc<Group>> = directory.applied.lock().groups.iter().cloned().collect();
        let through = groups.last().map(|g| g.last);
        let mut cut = Cut::new();
        // Asked once for each: a partition whose shard changes meanwhile is not cut in two.
        let mut shards: BTreeMap<PartitionKey, Option<ShardId>> = BTreeMap::new();
        for group in groups {
            for entry in group.entries.iter().filter(|e| e.kind == EntryKind::Batch) {
                let shard = shards
                    .entry(entry.key)
                    .or_insert_with(|| self.get(entry.key)?.shard().map(|shard| shard.id));
                let Some(shard) = *shard else {
                    continue;
                };
                cut.entry(shard)
                    .or_default()
                    .entry(entry.key)
                    .or_default()
                    .push((Arc::clone(&group), entry.clone()));
            }
        }
        (through, cut)
    }

    fn write_files(
        &self,
        cut: Cut,
        pacer: &Pacer<'_>,
        added: &mut Vec<SegmentMeta>,
    ) -> io::Result<()> {
        let size = |partitions: &ShardCut| {
            partitions
                .values()
                .flatten()
                .map(|(_, e)| e.range.len())
                .sum::<usize>()
        };
        let (own, shared): (Vec<_>, Vec<_>) = cut
            .into_values()
            .partition(|partitions| size(partitions) >= OWN_FILE_BYTES);
        for partitions in own {
            self.write_file(vec![partitions], pacer, added)?;
        }
        if !shared.is_empty() {
            self.write_file(shared, pacer, added)?;
        }
        Ok(())
    }

    fn write_file(
        &self,
        shards: Vec<ShardCut>,
        pacer: &Pacer<'_>,
        added: &mut Vec<SegmentMeta>,
    ) -> io::Result<()> {
        let id = pacer.directory.next_file_id();
        added.extend(self.write_sections(id, shards, pacer)?);
        Ok(())
    }

    /// Writes one file; `None` when every batch lies below its partition's log start by now.
    fn write_sections(
        &self,
        id: FileId,
        shards: Vec<ShardCut>,
        pacer: &Pacer<'_>,
    ) -> io::Result<Option<SegmentMeta>> {
        let pace = |bytes| pacer.step(bytes);
        let mut writer = pacer.directory.segments.create(id, &pace)?;
        let mut empty = true;
        for (key, batches) in shards.into_iter().flatten() {
            let log_start = self.get(key).map_or(i64::MAX, |p| p.bounds().log_start);
            let mut begun = false;
            for (group, entry) in batches {
                let payload = group.payload(&entry);
                let info = BatchInfo::read(&payload)
                    .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
                if info.last_offset() < log_start {
                    continue;
                }
                if !begun {
                    writer.begin_section(key);
                    begun = true;
                    empty = false;
                }
                writer.push(
                    info.base_offset,
                    info.last_offset(),
                    info.max_timestamp,
                    &payload,
                )?;
            }
        }
        if empty {
            return Ok(None);
        }
        writer.finish().map(Some)
    }

    /// Deletes a file that no list names.
    pub(super) fn remove_unlisted(&self, directory: &Directory, id: FileId) {
        if let Err(error) = directory.segments.delete(id) {
            if error.raw_os_error() == Some(EIO) {
                (self.fatal)(format!("segment file {} cannot be deleted: {error}", id.0));
            }
            tracing::warn!(
                file = id.0, %error,
                "a segment file that is not in use could not be deleted; it takes space until \
                 the next start removes it"
            );
        }
    }
}

impl Directory {
    /// Appends a `segments` entry and waits until lists and tail follow it.
    pub(super) fn commit_segments(&self, entry: SegmentsEntry) -> io::Result<()> {
        let journal = self.journal().ok_or_else(journal_ended)?;
        let position = journal.append(Entry {
            kind: EntryKind::Segments,
            key: PartitionKey::default(),
            payload: entry.encode(),
            fill: None,
            charge: 0,
        });
        if self.wait_durable(position) {
            Ok(())
        } else {
            Err(journal_ended())
        }
    }

    /// Blocks this thread until all that was appended so far is on stable storage, whatever the
    /// journal's sync policy.
    pub(super) fn sync_journal(&self) -> io::Result<()> {
        if self.journal().is_some_and(|journal| journal.sync()) {
            Ok(())
        } else {
            Err(journal_ended())
        }
    }

    /// As [`Directory::sync_journal`], but no longer than `at_most`; says whether it was done.
    pub(super) fn sync_journal_at_most(&self, at_most: Duration) -> io::Result<bool> {
        let journal = self.journal().ok_or_else(journal_ended)?;
        journal
            .sync_at_most(at_most)
            .map_err(|_ended| journal_ended())
    }
}

fn journal_ended() -> io::Error {
    io::Error::other("the journal has ended, so nothing can be made durable any more")
}
