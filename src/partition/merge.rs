//! Merging small files away, and rewriting files whose records are mostly deleted.
//!
//! A flush over many partitions leaves short runs of each; reading them back costs a seek per run.
//! Files whose mean run is short are merged by tiers of 16, so a byte is rewritten twice at most
//! before its run is long enough. Merging yields to flushes and runs on a thread of its own.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::partition::directory::Directory;
use crate::partition::entries::SegmentsEntry;
use crate::partition::figures::Figures;
use crate::partition::registry::Registry;
use crate::partition::shard::SegmentFile;
use crate::repeats::LINES;
use crate::store::segment::{ReadError, SegmentMeta, Source, merge};
use crate::types::{FileId, Offset, PartitionKey};

/// Files of one tier that are merged together.
const FAN_IN: usize = 16;
/// Runs of this length are never merged.
const LONG_RUN: u64 = 256 << 10;
/// Runs below this length are of the lower tier.
const SHORT_RUN: u64 = LONG_RUN / FAN_IN as u64;
/// While the disk is nearly full, files of which this part is deleted are rewritten.
const DEAD_WHEN_SHORT: u64 = 16;
/// Most bytes that one merge reads.
const MERGE_BYTES: u64 = 1 << 30;
/// Speed of a merge while nothing else needs the disk, in bytes a second.
const PACE: u64 = 32 << 20;
/// How long a merge waits before it looks again whether flushes need the disk.
const YIELD: Duration = Duration::from_millis(20);

/// What is known of a file when merges are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    bytes: u64,
    sections: u64,
    /// Bytes of records that are deleted.
    dead: u64,
}

impl Shape {
    fn of(file: &SegmentFile, log_start: &dyn Fn(PartitionKey) -> Offset) -> Self {
        let superseded: u64 = file
            .meta
            .sections
            .iter()
            .map(|section| section.bytes)
            .sum::<u64>()
            - file.sections().map(|section| section.bytes).sum::<u64>();
        let dead = file.sections().map(|section| {
            let records = (section.end - section.start).max(1) as u64;
            let gone = (log_start(section.key).min(section.end) - section.start).max(0) as u64;
            match gone >= records {
                true => section.bytes,
                false => section.bytes / records * gone,
            }
        });
        let sections = file.meta.sections.len() as u64;
        Self {
            bytes: file.meta.bytes,
            sections,
            dead: (superseded + dead.sum::<u64>()).saturating_sub(file.kept_dead()),
        }
    }

    /// 0 or 1 for files that are merged, `None` for those whose runs are long enough.
    fn tier(&self) -> Option<u8> {
        match self.bytes / self.sections.max(1) {
            run if run < SHORT_RUN => Some(0),
            run if run < LONG_RUN => Some(1),
            _ => None,
        }
    }

    fn is_half_dead(&self) -> bool {
        self.dead * 2 >= self.bytes
    }

    /// Bytes that a rewrite keeps.
    fn live(&self) -> u64 {
        self.bytes.saturating_sub(self.dead)
    }
}

/// Which file is rewritten while the disk is nearly full: the one that gives back the most, if the
/// rewrite finds room in `free` bytes.
fn choose_when_short(shapes: &[Shape], free: u64) -> Option<usize> {
    shapes
        .iter()
        .enumerate()
        .filter(|(_, shape)| shape.dead >= shape.bytes / DEAD_WHEN_SHORT && shape.dead > 0)
        .filter(|(_, shape)| shape.live() <= free)
        .max_by_key(|(_, shape)| shape.dead)
        .map(|(index, _)| index)
}

/// Which of some files, oldest first, are merged next: a tier that has enough of them, or one file
/// that is half dead.
fn choose(shapes: &[Shape]) -> Vec<usize> {
    for tier in [0, 1] {
        let mut bytes = 0;
        let mut chosen = Vec::new();
        for (index, shape) in shapes
            .iter()
            .enumerate()
            .filter(|(_, s)| s.tier() == Some(tier))
        {
            if chosen.len() == FAN_IN || (!chosen.is_empty() && bytes + shape.bytes > MERGE_BYTES) {
                break;
            }
            bytes += shape.bytes;
            chosen.push(index);
        }
        let full = chosen.len() > 1 && bytes * 2 > MERGE_BYTES;
        if chosen.len() == FAN_IN || full {
            return chosen;
        }
    }
    shapes
        .iter()
        .position(Shape::is_half_dead)
        .into_iter()
        .collect()
}

/// The most files from some point on, oldest first, in which each partition's sections join. A
/// partition that had a file of its own in between breaks it.
fn joined(files: &[Arc<SegmentFile>]) -> &[Arc<SegmentFile>] {
    joined_of(files, &|_, _| true)
}

/// As [`joined`], of the sections that are wanted.
fn joined_of<'a>(
    files: &'a [Arc<SegmentFile>],
    wanted: &dyn Fn(&SegmentFile, PartitionKey) -> bool,
) -> &'a [Arc<SegmentFile>] {
    for from in 0..files.len() {
        for to in (from + 2..=files.len()).rev() {
            if joins(&files[from..to], wanted) {
                return &files[from..to];
            }
        }
    }
    &[]
}

fn joins(files: &[Arc<SegmentFile>], wanted: &dyn Fn(&SegmentFile, PartitionKey) -> bool) -> bool {
    let mut sections: Vec<_> = files
        .iter()
        .flat_map(|file| {
            let sections = file.sections().filter(|s| wanted(file, s.key));
            sections
                .map(|s| (s.key, s.start, s.end))
                .collect::<Vec<_>>()
        })
        .collect();
    sections.sort_unstable();
    sections
        .windows(2)
        .all(|pair| pair[0].0 != pair[1].0 || pair[0].2 == pair[1].1)
}

impl Registry {
    /// Does one merge, if one is due; `pace` is told of bytes written.
    pub(crate) fn merge_once(&self, directory: &Directory, pace: &dyn Fn(u64)) -> io::Result<bool> {
        let gate = &directory.gate;
        let mut sources = match gate.is_open() {
            true => self.due_for_merge(directory),
            false => self.due_when_short(directory)?,
        };
        let foreign = sources.is_empty() && gate.is_open();
        if foreign {
            sources = self.due_for_copy(directory);
        }
        let bytes: u64 = match foreign {
            // Most of such a file may belong to others.
            true => sources
                .iter()
                .map(|f| self.wanted_bytes(f, directory))
                .sum(),
            false => sources.iter().map(|file| file.meta.bytes).sum(),
        };
        let has_room = !gate.is_open() || gate.spare_bytes()? >= bytes;
        if foreign {
            let waits = (!sources.is_empty() && !has_room).then_some(bytes);
            tell_waiting(directory, waits);
        }
        if sources.is_empty() || !has_room {
            return Ok(false);
        }
        let added = self.merge_files(directory, &sources, foreign, pace);
        if foreign && let Err(error) = &added {
            // The others are copied all the same; what is sound in this one is served from there.
            let damaged = damaged_file(error);
            let found = sources.iter().filter(|f| Some(f.meta.file) == damaged);
            found.for_each(|file| file.leave_there());
        }
        let added = added?;
        let id = added.as_ref().map(|meta| meta.file);
        let removed = match foreign {
            // They are in another directory's lists, which finds out that they do not count.
            true => Vec::new(),
            false => {
                self.sync_others(directory, &sources, None)?;
                sources.iter().map(|file| file.meta.file).collect()
            }
        };
        let entry = SegmentsEntry {
            flushed: directory.applied.lock().flushed,
            added: added.into_iter().collect(),
            removed,
        };
        directory.commit_segments(entry)?;
        if let Some(file) = id.and_then(|id| directory.listed_file(id)) {
            self.compare_copies(&file);
            // A rewrite cuts at blocks: what it left of deleted records the next one would, too.
            file.keep_dead(Shape::of(&file, &|key| self.log_start_of(key)).dead);
        }
        Ok(true)
    }

    /// Writes what the directory wants of some files into a new one of its own.
    fn merge_files(
        &self,
        directory: &Directory,
        sources: &[Arc<SegmentFile>],
        foreign: bool,
        pace: &dyn Fn(u64),
    ) -> io::Result<Option<SegmentMeta>> {
        let keeps: Vec<_> = sources
            .iter()
            .map(|file| {
                move |key| match foreign && !self.lives_in(key, directory) {
                    true => None,
                    false => self.kept_from(file, key),
                }
            })
            .collect();
        let wanted = sources.iter().zip(&keeps).map(|(file, keep)| Source {
            store: &self.directories.get(file.directory).segments,
            file: file.meta.file,
            keep,
        });
        let into = directory.next_file_id();
        let added = match merge(&directory.segments, &wanted.collect::<Vec<_>>(), into, pace) {
            Ok(meta) => meta,
            Err(error) => {
                self.remove_unlisted(directory, into);
                return Err(error);
            }
        };
        let bytes = added.as_ref().map_or(0, |meta| meta.bytes);
        Figures::add(&directory.figures.merges, 1);
        Figures::add(&directory.figures.merged_bytes, bytes);
        if foreign {
            Figures::add(&directory.figures.copied_bytes, bytes);
        }
        Ok(added)
    }

    /// From which offset on a file's section of a partition is wanted, if at all.
    fn kept_from(&self, file: &SegmentFile, key: PartitionKey) -> Option<Offset> {
        let partition = self.get(key)?;
        file.counts(key).then(|| partition.bounds().log_start)
    }

    fn lives_in(&self, key: PartitionKey, directory: &Directory) -> bool {
        self.get(key).is_some_and(|p| p.lives_in(directory))
    }

    /// Files that serve, and what is known of each.
    fn shapes(&self, directory: &Directory) -> (Vec<Arc<SegmentFile>>, Vec<Shape>) {
        let files: Vec<_> = {
            let applied = directory.applied.lock();
            let sound = applied.files.values().filter(|file| !file.damaged);
            sound.cloned().collect()
        };
        let log_start = |key| self.log_start_of(key);
        let shapes = files.iter().map(|file| Shape::of(file, &log_start));
        let shapes = shapes.collect();
        (files, shapes)
    }

    /// The file to rewrite while client writes are refused. Files are shared by topics, so without
    /// it a deleted topic would give nothing back, and writes would be refused for good.
    fn due_when_short(&self, directory: &Directory) -> io::Result<Vec<Arc<SegmentFile>>> {
        let (files, shapes) = self.shapes(directory);
        let chosen = choose_when_short(&shapes, directory.gate.room_to_free()?);
        Ok(chosen
            .into_iter()
            .map(|index| Arc::clone(&files[index]))
            .collect())
    }

    /// Files to merge now. Holding them keeps them on disk while they are read.
    fn due_for_merge(&self, directory: &Directory) -> Vec<Arc<SegmentFile>> {
        let (files, shapes) = self.shapes(directory);
        let chosen: Vec<_> = choose(&shapes)
            .into_iter()
            .map(|index| Arc::clone(&files[index]))
            .collect();
        if chosen.len() == 1 {
            chosen
        } else {
            joined(&chosen).to_vec()
        }
    }

    /// Files of other directories that hold records of partitions which live in this one since a
    /// move: as many as go into one file.
    fn due_for_copy(&self, directory: &Directory) -> Vec<Arc<SegmentFile>> {
        if !directory.has_foreign.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        let mut chosen: Vec<Arc<SegmentFile>> = Vec::new();
        let mut bytes = 0;
        for other in self.directories.iter().filter(|d| d.no != directory.no) {
            let files: Vec<_> = other.applied.lock().files.values().cloned().collect();
            for file in files.into_iter().filter(|file| file.may_be_copied()) {
                let wanted = self.wanted_bytes(&file, directory);
                let full = chosen.len() == FAN_IN || bytes + wanted > MERGE_BYTES;
                if wanted == 0 || (full && !chosen.is_empty()) {
                    continue;
                }
                bytes += wanted;
                chosen.push(file);
            }
        }
        if chosen.is_empty() {
            return chosen;
        }
        // There may be more than go at once.
        directory.has_foreign.store(true, Ordering::Release);
        let wanted = |file: &SegmentFile, key| {
            self.lives_in(key, directory) && self.kept_from(file, key).is_some()
        };
        match joined_of(&chosen, &wanted) {
            [] => chosen[..1].to_vec(),
            run => run.to_vec(),
        }
    }

    /// Bytes of a file's sections that a directory's partitions have there.
    fn wanted_bytes(&self, file: &SegmentFile, directory: &Directory) -> u64 {
        let sections = file.sections().filter(|section| {
            let partition = self.get(section.key);
            partition.is_some_and(|partition| {
                partition.lives_in(directory) && partition.bounds().log_start < section.end
            })
        });
        sections.map(|section| section.bytes).sum()
    }

    /// Merges until stopped. An error must end the process, unless it is about one damaged file.
    pub(super) fn run_merges(
        &self,
        directory: &Directory,
        stop: &AtomicBool,
    ) -> Result<(), String> {
        while !stop.load(Ordering::Acquire) {
            let started = Instant::now();
            let written = std::cell::Cell::new(0u64);
            let pace = |bytes: u64| {
                written.set(written.get() + bytes);
                let due = Duration::from_secs_f64(written.get() as f64 / PACE as f64);
                while !stop.load(Ordering::Acquire)
                    && (started.elapsed() < due || directory.is_flush_due())
                {
                    std::thread::sleep(YIELD);
                }
            };
            match self.merge_once(directory, &pace) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) if is_about_one_file(&error) => {
                    tracing::error!(
                        %error,
                        "segment files cannot be merged; they are served as they are"
                    );
                    std::thread::sleep(Duration::from_secs(60));
                }
                Err(error) => return Err(format!("merging segment files failed: {error}")),
            }
            directory.merge_wake.wait(Duration::from_secs(1));
        }
        Ok(())
    }
}

/// Tells once that copies of so many bytes wait for room, until none does any more.
fn tell_waiting(directory: &Directory, bytes: Option<u64>) {
    let waited = directory
        .copies_wait
        .swap(bytes.is_some(), Ordering::AcqRel);
    if let Some(bytes) = bytes
        && !waited
        && LINES.allow("records of moved shards wait for room", None)
    {
        tracing::warn!(
            directory = directory.name,
            bytes,
            "records of shards that moved here are not copied: there is no room for them above \
             disk.reserve.bytes. They are served from where they are, and that directory is still \
             needed; free space here, or move shards to another directory"
        );
    }
}

/// The file that an error says is damaged.
fn damaged_file(error: &io::Error) -> Option<FileId> {
    match error.get_ref()?.downcast_ref()? {
        ReadError::Damaged { file, .. } => Some(*file),
        _ => None,
    }
}

/// Damage and a full disk leave everything else as it was.
fn is_about_one_file(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, QuotaExceeded, StorageFull, Unsupported};
    matches!(
        error.kind(),
        InvalidData | InvalidInput | QuotaExceeded | StorageFull | Unsupported
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::segment::SectionMeta;
    use crate::types::{DirectoryNo, TopicNo};

    fn shape(bytes: u64, sections: u64, dead: u64) -> Shape {
        Shape {
            bytes,
            sections,
            dead,
        }
    }

    #[test]
    fn short_runs_are_merged_by_tiers_and_long_ones_never() {
        let small = shape(32 << 20, 10_000, 0);
        assert_eq!(choose(&[small; 15]), Vec::<usize>::new(), "not enough yet");
        assert_eq!(choose(&[small; 20]), (0..16).collect::<Vec<_>>());
        let merged = shape(512 << 20, 10_000, 0);
        assert_eq!(merged.tier(), Some(1));
        assert_eq!(
            choose(&[merged; 2]),
            vec![0, 1],
            "as much as one merge may read"
        );
        let long = shape(64 << 20, 4, 0);
        assert_eq!(choose(&[long; 40]), Vec::<usize>::new());
    }

    #[test]
    fn a_half_dead_file_is_rewritten() {
        let long = shape(64 << 20, 4, 1 << 20);
        let dead = shape(64 << 20, 4, 33 << 20);
        assert_eq!(choose(&[long, dead, long]), vec![1]);
    }

    #[test]
    fn a_full_disk_has_the_file_rewritten_that_gives_the_most_back() {
        let kept = shape(64 << 20, 4, 1 << 20);
        let some = shape(64 << 20, 4, 8 << 20);
        let more = shape(64 << 20, 4, 20 << 20);
        let all = [kept, some, more, some];
        assert_eq!(choose(&all), Vec::<usize>::new(), "with room it can wait");
        assert_eq!(choose_when_short(&all, 64 << 20), Some(2));
        assert_eq!(
            choose_when_short(&all, 30 << 20),
            None,
            "no room for a rewrite"
        );
        assert_eq!(choose_when_short(&[kept], 64 << 20), None);
    }

    #[test]
    fn a_gap_ends_what_can_be_joined() {
        let file = |n, start, end| {
            let key = PartitionKey {
                topic: TopicNo(1),
                index: 0,
            };
            let section = SectionMeta {
                key,
                start,
                end,
                ..SectionMeta::default()
            };
            let meta = SegmentMeta {
                file: FileId(n),
                bytes: 1,
                sections: vec![section],
            };
            Arc::new(SegmentFile::new(DirectoryNo(0), meta))
        };
        let files = [
            file(1, 0, 5),
            file(2, 5, 9),
            file(3, 12, 20),
            file(4, 20, 30),
        ];
        let ids =
            |files: &[Arc<SegmentFile>]| files.iter().map(|f| f.meta.file.0).collect::<Vec<_>>();
        assert_eq!(ids(joined(&files)), [1, 2]);
        assert_eq!(ids(joined(&files[1..])), [3, 4]);
        assert_eq!(ids(joined(&files[1..3])), [] as [u64; 0]);
        let rewritten = [file(2, 5, 9), file(3, 0, 5)];
        assert_eq!(
            ids(joined(&rewritten)),
            [2, 3],
            "a rewritten file holds what is older"
        );
    }
}
