//! The background threads of each data directory: flush, checkpoint, retention, file deletion, and
//! the watch over free space.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::catalog::Topic;
use crate::partition::checkpoint::Checkpointer;
use crate::partition::directory::Directory;
use crate::partition::entries::SegmentsEntry;
use crate::partition::figures::Figures;
use crate::partition::recovery::{Fatal, Opened, OpenedDirectory};
use crate::partition::registry::Registry;
use crate::partition::retention::{Limits, Run, new_log_start};
use crate::partition::shard::SegmentFile;
use crate::store::checkpoint::CheckpointStore;
use crate::types::{Offset, PartitionKey, Position};

/// How often free space is looked at, and work that failed is tried again.
const TICK: Duration = Duration::from_secs(1);
/// Time between two looks at retention while client writes are refused for want of space.
const RETENTION_WHEN_SHORT: Duration = Duration::from_secs(10);
/// How long the thread that flushes waits for the journal of another directory: what lives here
/// must not stop where a device of others does.
const OTHERS: Duration = Duration::from_millis(100);

/// Intervals and limits of the background work.
#[derive(Clone, Copy, Debug)]
pub struct MaintenanceOptions {
    /// Journal bytes between two checkpoints.
    pub checkpoint_bytes: u64,
    /// Time between two looks at retention.
    pub retention_interval: Duration,
}

/// The running threads. Each directory has two: one flushes, checkpoints and deletes, the other
/// merges.
pub struct Maintenance {
    registry: Arc<Registry>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Maintenance {
    /// Starts them.
    pub fn start(opened: Opened, options: MaintenanceOptions, fatal: &Fatal) -> io::Result<Self> {
        let mut running = Self {
            registry: opened.registry,
            stop: Arc::new(AtomicBool::new(false)),
            threads: Vec::new(),
        };
        for opened in opened.directories {
            running.add(opened, options, fatal)?;
        }
        Ok(running)
    }

    fn add(
        &mut self,
        opened: OpenedDirectory,
        options: MaintenanceOptions,
        fatal: &Fatal,
    ) -> io::Result<()> {
        let directory = opened.directory;
        let no = directory.no.0;
        let (registry, stop) = (Arc::clone(&self.registry), Arc::clone(&self.stop));
        let span = directory.span.clone();
        let (merging, merge_fatal) = (Arc::clone(&directory), Arc::clone(fatal));
        let merges = std::thread::Builder::new()
            .name(format!("store-merge-{no}"))
            .spawn(move || {
                let _named = merging.span.enter();
                if let Err(reason) = registry.run_merges(&merging, &stop) {
                    merge_fatal(reason);
                }
            })?;
        self.threads.push(merges);
        let worker = Worker::new(
            Arc::clone(&self.registry),
            directory,
            options,
            opened.checkpoints,
            opened.checkpointer,
        );
        let (stop, fatal) = (Arc::clone(&self.stop), Arc::clone(fatal));
        let thread = std::thread::Builder::new()
            .name(format!("store-work-{no}"))
            .spawn(move || {
                let _named = span.entered();
                worker.run(&stop, &fatal);
            })?;
        self.threads.push(thread);
        Ok(())
    }

    /// Flushes the tails, writes checkpoints and ends the threads, so that the next start is quick.
    pub fn stop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for directory in self.registry.directories().iter() {
            directory.wake.raise();
            directory.merge_wake.raise();
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!(
                    "a background thread of the store panicked; nothing acknowledged is lost"
                );
            }
        }
    }
}

impl Drop for Maintenance {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What the thread does, a turn at a time.
pub(crate) struct Worker {
    registry: Arc<Registry>,
    directory: Arc<Directory>,
    options: MaintenanceOptions,
    checkpoints: CheckpointStore,
    checkpointer: Checkpointer,
    /// Live journal bytes right after the last checkpoint.
    journal_at_checkpoint: u64,
    /// When the last flush began, and the bytes flushed by it.
    flushed_last: (Duration, u64),
    last_retention: Duration,
    /// What the journal held when it was emptied last, for want of space.
    emptied: Position,
}

impl Worker {
    /// A worker for an open directory, which is writable from here on.
    pub(crate) fn new(
        registry: Arc<Registry>,
        directory: Arc<Directory>,
        options: MaintenanceOptions,
        checkpoints: CheckpointStore,
        checkpointer: Checkpointer,
    ) -> Self {
        let now = registry.clock.monotonic();
        Self {
            journal_at_checkpoint: directory.journal().map_or(0, |j| j.live_bytes()),
            registry,
            directory,
            options,
            checkpoints,
            checkpointer,
            flushed_last: (now, 0),
            last_retention: now,
            emptied: Position(0),
        }
    }

    fn run(mut self, stop: &AtomicBool, fatal: &Fatal) {
        loop {
            self.directory.wake.wait(TICK);
            let stopping = stop.load(Ordering::Acquire);
            if let Err(reason) = self.turn(stopping) {
                fatal(reason);
                return;
            }
            if stopping {
                return;
            }
        }
    }

    /// One look at everything there is to do. An error must end the process.
    pub(crate) fn turn(&mut self, stopping: bool) -> Result<(), String> {
        match self.round(stopping) {
            Ok(()) => {
                if self.directory.gate.set_work_is_short(false) {
                    tracing::info!("background work on the data directory succeeds again");
                }
            }
            Err(error) if is_out_of_space(&error) => {
                Figures::add(&self.directory.figures.failures, 1);
                if !self.directory.gate.set_work_is_short(true) {
                    tracing::error!(
                        %error,
                        "no space left for segment files: client writes are refused until \
                         space is free; reads, retention and deletion go on. Free space, or delete \
                         records or topics"
                    );
                }
            }
            Err(error) => {
                return Err(format!(
                    "background work on the data directory failed: {error}"
                ));
            }
        }
        Ok(())
    }

    fn round(&mut self, stopping: bool) -> io::Result<()> {
        self.directory.gate.look()?;
        self.registry.witness(&self.directory, false);
        self.registry.bound_producers(&self.directory);
        let flushed = self.flush_if_due(stopping);
        if let Err(error) = &flushed
            && !is_out_of_space(error)
        {
            return flushed;
        }
        // These give space back, so they have their turn also when the flush found none.
        let now = self.registry.clock.monotonic();
        let short = !self.directory.gate.is_open();
        let interval = match short {
            true => self.options.retention_interval.min(RETENTION_WHEN_SHORT),
            false => self.options.retention_interval,
        };
        if now >= self.last_retention + interval {
            self.last_retention = now;
            self.registry.retain(&self.directory);
        }
        self.registry.drop_dead_files(&self.directory)?;
        self.registry.delete_left_files(&self.directory)?;
        let keeps_catalog = self.directory.no == self.registry.first().no;
        if keeps_catalog {
            self.registry.delete_left_lineage()?;
        }
        flushed?;
        if keeps_catalog {
            self.registry.archive_epochs(false)?;
        }
        let live = self.directory.journal().map_or(0, |j| j.live_bytes());
        let grown = live.saturating_sub(self.journal_at_checkpoint);
        if stopping || grown >= self.options.checkpoint_bytes {
            self.checkpoint()?;
        }
        if short && !stopping {
            self.empty_journal()?;
        }
        Ok(())
    }

    /// Lets the journal give its files back, which deleting records alone does not do. It takes two
    /// checkpoints, as the journal is kept for the older one.
    fn empty_journal(&mut self) -> io::Result<()> {
        let Some(journal) = self.directory.journal() else {
            return Ok(());
        };
        let appended = journal.appended();
        if journal.live_files() < 2 || appended <= self.emptied {
            return Ok(());
        }
        if !(self.write_checkpoint()? && self.write_checkpoint()?) {
            return Ok(());
        }
        // What came meanwhile may still hold a file: the next turn looks again.
        self.emptied = appended;
        Ok(())
    }

    fn flush_if_due(&mut self, stopping: bool) -> io::Result<()> {
        let tail = self.directory.tail_bytes();
        let limit = self.directory.tail_limit as u64;
        let pressed = (self.directory.free_tail_bytes() as u64) < limit / 2;
        if stopping || tail >= limit / 2 || pressed {
            self.flush()?;
        }
        Ok(())
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let (last, bytes) = self.flushed_last;
        let now = self.registry.clock.monotonic();
        let elapsed = now.saturating_sub(last).as_secs_f64().max(0.001);
        let ingest = (bytes.max(self.directory.tail_bytes()) as f64 / elapsed) as u64;
        self.flushed_last = (now, self.directory.tail_bytes());
        self.registry.flush(&self.directory, ingest).map(|_| ())
    }

    pub(crate) fn checkpoint(&mut self) -> io::Result<()> {
        self.write_checkpoint().map(|_| ())
    }

    /// Says whether one was written.
    fn write_checkpoint(&mut self) -> io::Result<bool> {
        // The journal is kept from the flushed position on, so an old tail would hold it.
        self.flush()?;
        let written = self.registry.checkpoint(
            &self.directory,
            &mut self.checkpoints,
            &mut self.checkpointer,
        )?;
        if written {
            self.journal_at_checkpoint = self.directory.journal().map_or(0, |j| j.live_bytes());
        }
        Ok(written)
    }
}

pub(super) fn is_out_of_space(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

impl Registry {
    /// Moves log starts of the partitions that live in a directory by time and size, where the
    /// topic's cleanup policy says delete.
    pub(crate) fn retain(&self, directory: &Directory) {
        let image = self.catalog.image();
        let now = self.clock.wall_ms();
        for topic in image.topics().filter(|topic| topic.settings.cleanup_delete) {
            let limits = Limits {
                retention_ms: topic.settings.retention_ms,
                retention_bytes: topic.settings.retention_bytes,
            };
            if limits.retention_ms < 0 && limits.retention_bytes < 0 {
                continue;
            }
            self.retain_topic(directory, topic, limits, now);
        }
    }

    fn retain_topic(&self, directory: &Directory, topic: &Topic, limits: Limits, now: i64) {
        for index in 0..topic.partitions {
            let key = PartitionKey {
                topic: topic.no,
                index,
            };
            let Some(partition) = self.get(key) else {
                continue;
            };
            if !partition.lives_in(directory) {
                continue;
            }
            let (log_start, runs) = partition.search(|bounds, files, tail| {
                let mut runs: Vec<Run> = files
                    .iter()
                    .filter_map(|file| file.section(key))
                    .filter(|section| section.end > bounds.log_start)
                    .map(|s| Run {
                        end: s.end,
                        bytes: s.bytes,
                        max_timestamp: s.max_timestamp,
                    })
                    .collect();
                runs.sort_by_key(|run| run.end);
                runs.extend(tail.iter().map(|b| Run {
                    end: b.last + 1,
                    bytes: b.payload.len() as u64,
                    max_timestamp: b.max_timestamp,
                }));
                (bounds.log_start, runs)
            });
            if let Some(start) = new_log_start(log_start, &runs, limits, now) {
                // A refusal means that the topic was deleted meanwhile, and its records with it, or
                // that its shard is on its way elsewhere, where the next look finds it.
                let _ = self.move_log_start(&partition, start);
            }
        }
    }

    /// Takes files out of the lists whose every record is deleted.
    pub(crate) fn drop_dead_files(&self, directory: &Directory) -> io::Result<()> {
        if !directory.garbage.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let mut starts: BTreeMap<PartitionKey, Offset> = BTreeMap::new();
        let mut start_of =
            |key: PartitionKey| *starts.entry(key).or_insert_with(|| self.log_start_of(key));
        let files: Vec<_> = directory.applied.lock().files.values().cloned().collect();
        let dead: Vec<_> = files
            .into_iter()
            .filter(|file| !file.damaged)
            .filter(|file| {
                let mut sections = file.meta.sections.iter();
                sections.all(|s| s.end <= start_of(s.key) || !file.counts(s.key))
            })
            .collect();
        if dead.is_empty() {
            return Ok(());
        }
        if !self.sync_others(directory, &dead, Some(OTHERS))? {
            tracing::debug!("the journal of another data directory is slow: files wait for it");
            directory.garbage.store(true, Ordering::Release);
            return Ok(());
        }
        let flushed = directory.applied.lock().flushed;
        directory.commit_segments(SegmentsEntry {
            flushed,
            added: Vec::new(),
            removed: dead.iter().map(|file| file.meta.file).collect(),
        })
    }

    /// Waits until what lets files of a directory go is on stable storage, also where it is in
    /// another directory's journal: a copy that was listed there, or a move of a log start. False
    /// if one of those takes longer than `at_most`.
    pub(super) fn sync_others(
        &self,
        directory: &Directory,
        files: &[Arc<SegmentFile>],
        at_most: Option<Duration>,
    ) -> io::Result<bool> {
        if !self.directories().are_several() {
            return Ok(true);
        }
        let lives_elsewhere = |key: PartitionKey| {
            let partition = self.get(key);
            partition.is_some_and(|partition| !partition.lives_in(directory))
        };
        let mut sections = files
            .iter()
            .flat_map(|file| file.meta.sections.iter().map(move |s| (file, s.key)));
        if sections.any(|(file, key)| !file.counts(key) || lives_elsewhere(key)) {
            for other in self.directories().iter() {
                if other.no == directory.no {
                    continue;
                }
                match at_most {
                    Some(at_most) if !other.sync_journal_at_most(at_most)? => return Ok(false),
                    Some(_) => {}
                    None => other.sync_journal()?,
                }
            }
        }
        Ok(true)
    }

    /// Deletes files that left the lists and that no running read holds.
    pub(crate) fn delete_left_files(&self, directory: &Directory) -> io::Result<()> {
        let free: Vec<_> = {
            let mut applied = directory.applied.lock();
            let (free, held) = std::mem::take(&mut applied.leaving)
                .into_iter()
                .partition(|file| Arc::strong_count(file) == 1);
            applied.leaving = held;
            free
        };
        if free.is_empty() {
            return Ok(());
        }
        // A start that did not find the entries which took them out would look for the files.
        directory.sync_journal()?;
        for file in free {
            self.remove_unlisted(directory, file.meta.file);
            Figures::add(&directory.figures.deleted_files, 1);
        }
        Ok(())
    }
}
