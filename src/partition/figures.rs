//! What `/metrics` shows of the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::budget::Unit;
use crate::metrics::{Full, Limit, Metrics, SampleKind};
use crate::partition::directory::Directory;
use crate::partition::recovery::OpenedDirectory;
use crate::partition::registry::Registry;
use crate::store::checkpoint::CheckpointStore;
use crate::store::journal::JournalStats;

/// Counters of the background work.
#[derive(Default)]
pub(super) struct Figures {
    /// Flushes done.
    pub(super) flushes: AtomicU64,
    /// Bytes of segment files written by them.
    pub(super) flushed_bytes: AtomicU64,
    /// Merges done.
    pub(super) merges: AtomicU64,
    /// Bytes of segment files written by them.
    pub(super) merged_bytes: AtomicU64,
    /// Those of them with records that other directories held.
    pub(super) copied_bytes: AtomicU64,
    /// Checkpoints written.
    pub(super) checkpoints: AtomicU64,
    /// Bytes written for them.
    pub(super) checkpoint_bytes: AtomicU64,
    /// Notes about the other directories in the journal.
    pub(super) witnesses: AtomicU64,
    /// Damaged files met while a checkpoint was read or written.
    pub(super) damaged_checkpoints: AtomicU64,
    /// Segment files deleted.
    pub(super) deleted_files: AtomicU64,
    /// Rounds of background work that failed.
    pub(super) failures: AtomicU64,
}

impl Figures {
    pub(super) fn add(counter: &AtomicU64, by: u64) {
        counter.fetch_add(by, Ordering::Relaxed);
    }

    /// Takes over what a checkpoint store counts by itself.
    pub(super) fn note_checkpoints(&self, store: &CheckpointStore) {
        self.checkpoint_bytes
            .store(store.written_bytes(), Ordering::Relaxed);
        self.damaged_checkpoints
            .store(store.damaged_files(), Ordering::Relaxed);
    }
}

type OfRegistry = (&'static str, &'static str, SampleKind, fn(&Registry) -> u64);
type OfDirectory = (
    &'static str,
    &'static str,
    SampleKind,
    fn(&Directory) -> u64,
);
type OfJournal = (
    &'static str,
    &'static str,
    SampleKind,
    fn(&JournalStats) -> u64,
);

const GAUGE: SampleKind = SampleKind::Gauge;
const COUNTER: SampleKind = SampleKind::Counter;

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

const OF_REGISTRY: [OfRegistry; 3] = [
    ("partitions", "Partitions of all topics", GAUGE, |r| {
        r.partition_count() as u64
    }),
    ("topics", "Topics", GAUGE, |r| {
        r.catalog.image().topic_count() as u64
    }),
    (
        "damaged_reads",
        "Reads that met damage in a segment file and answered KAFKA_STORAGE_ERROR",
        COUNTER,
        |r| read(&r.damaged_reads),
    ),
];

const OF_DIRECTORY: [OfDirectory; 17] = [
    (
        "writable",
        "1 while client writes are taken, 0 while the disk is nearly full",
        GAUGE,
        |d| u64::from(d.is_writable()),
    ),
    (
        "disk_free_bytes",
        "Bytes free on the data directory's device",
        GAUGE,
        |d| d.gate.free(),
    ),
    (
        "tail_buffer_bytes",
        "Memory of batches that no segment file holds yet",
        GAUGE,
        |d| d.tail_bytes(),
    ),
    (
        "tail_limit_bytes",
        "Bytes of batches that the tail may hold",
        GAUGE,
        |d| d.tail_limit as u64,
    ),
    (
        "tail_free_bytes",
        "Bytes of batches that the tail has room for",
        GAUGE,
        |d| d.free_tail_bytes() as u64,
    ),
    ("segment_files", "Segment files in use", GAUGE, |d| {
        d.applied.lock().files.len() as u64
    }),
    (
        "segment_footer_bytes",
        "Memory of cached segment footers",
        GAUGE,
        |d| d.segments.cache_stats().footer_bytes,
    ),
    ("flushes", "Flushes of the tail", COUNTER, |d| {
        read(&d.figures.flushes)
    }),
    (
        "flushed_bytes",
        "Bytes of segment files written by flushes",
        COUNTER,
        |d| read(&d.figures.flushed_bytes),
    ),
    ("merges", "Merges of segment files", COUNTER, |d| {
        read(&d.figures.merges)
    }),
    (
        "merged_bytes",
        "Bytes of segment files written by merges",
        COUNTER,
        |d| read(&d.figures.merged_bytes),
    ),
    (
        "copied_bytes",
        "Bytes of segment files written by merges that bring records of moved shards home",
        COUNTER,
        |d| read(&d.figures.copied_bytes),
    ),
    ("checkpoints", "Checkpoints written", COUNTER, |d| {
        read(&d.figures.checkpoints)
    }),
    (
        "checkpoint_bytes",
        "Bytes written for checkpoints",
        COUNTER,
        |d| read(&d.figures.checkpoint_bytes),
    ),
    (
        "checkpoint_files_damaged",
        "Damaged checkpoint files met; another one was used",
        COUNTER,
        |d| read(&d.figures.damaged_checkpoints),
    ),
    (
        "segment_files_deleted",
        "Segment files deleted",
        COUNTER,
        |d| read(&d.figures.deleted_files),
    ),
    (
        "background_failures",
        "Rounds of background work that failed",
        COUNTER,
        |d| read(&d.figures.failures),
    ),
];

const OF_JOURNAL: [OfJournal; 10] = [
    (
        "journal_groups",
        "Groups written to the journal",
        COUNTER,
        |s| s.groups,
    ),
    (
        "journal_entries",
        "Entries written to the journal",
        COUNTER,
        |s| s.entries,
    ),
    (
        "journal_bytes",
        "Bytes written to the journal",
        COUNTER,
        |s| s.bytes,
    ),
    ("journal_syncs", "Syncs of the journal", COUNTER, |s| {
        s.syncs
    }),
    (
        "journal_queue_entries",
        "Entries that wait to be written",
        GAUGE,
        |s| s.queue_entries,
    ),
    (
        "journal_queue_bytes",
        "Bytes that wait to be written",
        GAUGE,
        |s| s.queue_bytes,
    ),
    (
        "journal_live_bytes",
        "Journal that a start would read",
        GAUGE,
        |s| s.live_bytes,
    ),
    (
        "journal_files",
        "Journal files, spare ones included",
        GAUGE,
        |s| s.files,
    ),
    (
        "journal_live_files",
        "Journal files that are needed or written to",
        GAUGE,
        |s| s.live_files,
    ),
    (
        "journal_short_of_space",
        "1 while there is no space for a journal file",
        GAUGE,
        |s| u64::from(s.short_of_space),
    ),
];

impl Registry {
    /// Shows the store's figures on `/metrics`.
    pub fn watch(self: &Arc<Self>, metrics: &Metrics) {
        let reads = self.directories.iter().map(|d| d.reads.clone());
        metrics.watch_budgets("reads", &reads.collect::<Vec<_>>());
        self.watch_reshapes(metrics);
        let producers = &self.producers.account;
        metrics.watch_account("producers", Unit::Bytes, Full::Evicted, producers);
        self.watch_limit(metrics, "tail", Full::Waiting, |d| {
            let used = d.tail_limit - d.free_tail_bytes().min(d.tail_limit);
            [
                d.tail_limit as u64,
                used as u64,
                d.waiting_for_tail() as u64,
            ]
        });
        self.watch_limit(metrics, "footers", Full::Evicted, |d| {
            let stats = d.segments.cache_stats();
            [
                stats.footer_limit,
                stats.footer_bytes,
                stats.footers_evicted,
            ]
        });
        for (name, help, kind, figure) in OF_REGISTRY {
            let registry = Arc::clone(self);
            metrics.sample(name, help, kind, None, move || figure(&registry) as f64);
        }
    }
}

impl Registry {
    /// Shows a limit that each directory has, summed up: all of it, what is used, and how often it
    /// was met or who waits.
    fn watch_limit(
        self: &Arc<Self>,
        metrics: &Metrics,
        name: &'static str,
        full: Full,
        read: fn(&Directory) -> [u64; 3],
    ) {
        let sum = |which: usize| -> Box<dyn Fn() -> u64 + Send + Sync> {
            let registry = Arc::clone(self);
            Box::new(move || registry.directories().iter().map(|d| read(d)[which]).sum())
        };
        metrics.watch_limit(Limit {
            name,
            unit: Unit::Bytes,
            limit: sum(0),
            used: sum(1),
            full,
            count: sum(2),
        });
    }
}

impl OpenedDirectory {
    /// Shows the directory's figures on `/metrics`, under its name if there are several.
    pub fn watch(&self, metrics: &Metrics, name: Option<&str>) {
        let label = name.map(|name| ("directory", name));
        for (name, help, kind, figure) in OF_DIRECTORY {
            let directory = Arc::clone(&self.directory);
            metrics.sample(name, help, kind, label, move || figure(&directory) as f64);
        }
        for (name, help, kind, figure) in OF_JOURNAL {
            let journal = Arc::clone(&self.journal);
            metrics.sample(name, help, kind, label, move || {
                figure(&journal.stats()) as f64
            });
        }
        let waits = Arc::clone(&self.journal);
        let help = "Seconds that the journal's write or sync under way has taken";
        metrics.sample("journal_waiting_seconds", help, GAUGE, label, move || {
            waits.stats().waiting.as_secs_f64()
        });
        let timed = Arc::clone(&self.journal);
        let help = "Seconds spent in syncs of the journal";
        metrics.sample("journal_sync_seconds", help, COUNTER, label, move || {
            timed.stats().sync_nanos_total as f64 / 1e9
        });
    }
}
