//! What the coordinator counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Groups;
use crate::budget::Unit;
use crate::coordinator::group::record::Record;
use crate::coordinator::group::view::Census;
use crate::metrics::{Full, Metrics, SampleKind};

/// Counters, touched without a lock.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub rebalances: AtomicU64,
    pub commits: AtomicU64,
    pub tombstones: AtomicU64,
    pub append_errors: AtomicU64,
    pub compactions: AtomicU64,
    pub loaded: AtomicU64,
    pub load_ms: AtomicU64,
}

impl Counters {
    pub fn records(&self, records: &[Record]) {
        for record in records {
            match record {
                Record::Offset { value: Some(_), .. } => &self.commits,
                Record::Offset { value: None, .. } => &self.tombstones,
                Record::Group { .. } => continue,
            }
            .fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A look at the coordinator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Groups, members and commits there are.
    pub census: Census,
    /// Callers that wait for other members.
    pub waiting: u64,
    /// Rebalances completed.
    pub rebalances: u64,
    /// Offsets committed.
    pub commits: u64,
    /// Commits that expired or went with their topic or group.
    pub tombstones: u64,
    /// Changes that could not be stored.
    pub append_errors: u64,
    /// Times that a partition's state was written anew.
    pub compactions: u64,
    /// Partitions that are ready.
    pub loaded: u64,
    /// How long reading them took.
    pub load_ms: u64,
}

impl Groups {
    /// Counts everything. Takes each partition's lock for a moment.
    pub fn stats(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let c = &self.counters;
        let mut stats = Stats {
            rebalances: read(&c.rebalances),
            commits: read(&c.commits),
            tombstones: read(&c.tombstones),
            append_errors: read(&c.append_errors),
            compactions: read(&c.compactions),
            loaded: read(&c.loaded),
            load_ms: read(&c.load_ms),
            ..Stats::default()
        };
        for part in &self.parts {
            let part = part.lock();
            let one = part.machine.census();
            stats.census.empty += one.empty;
            stats.census.preparing += one.preparing;
            stats.census.completing += one.completing;
            stats.census.stable += one.stable;
            stats.census.members += one.members;
            stats.census.commits += one.commits;
            stats.waiting += part.waiting.len() as u64;
        }
        stats
    }

    /// What [`Groups::stats`] said a moment ago: one look serves all figures of a scrape.
    fn recent(&self) -> Stats {
        const FRESH_MS: u64 = 1_000;
        let now = self.now().tick;
        let mut shown = self.shown.lock();
        if now >= shown.0 {
            *shown = (now + FRESH_MS, self.stats());
        }
        shown.1
    }

    /// Shows the coordinator's figures on `/metrics`.
    pub fn watch(self: &Arc<Self>, metrics: &Metrics) {
        metrics.watch_account("groups", Unit::Bytes, Full::Refused, &self.memory);
        let (gauge, counter) = (SampleKind::Gauge, SampleKind::Counter);
        type InState = (&'static str, fn(&Stats) -> u64);
        let states: [InState; 4] = [
            ("Empty", |s| s.census.empty),
            ("PreparingRebalance", |s| s.census.preparing),
            ("CompletingRebalance", |s| s.census.completing),
            ("Stable", |s| s.census.stable),
        ];
        for (state, read) in states {
            let groups = Arc::clone(self);
            let label = Some(("state", state));
            metrics.sample(
                "groups",
                "Consumer groups by state",
                gauge,
                label,
                move || read(&groups.recent()) as f64,
            );
        }
        type Figure = (&'static str, &'static str, SampleKind, fn(&Stats) -> u64);
        let figures: [Figure; 8] = [
            ("group_members", "Members of all groups", gauge, |s| {
                s.census.members
            }),
            ("group_offsets", "Commits kept", gauge, |s| s.census.commits),
            (
                "group_waiting",
                "JoinGroup and SyncGroup that wait",
                gauge,
                |s| s.waiting,
            ),
            ("group_rebalances", "Rebalances completed", counter, |s| {
                s.rebalances
            }),
            ("group_commits", "Offsets committed", counter, |s| s.commits),
            (
                "group_tombstones",
                "Commits that were let go",
                counter,
                |s| s.tombstones,
            ),
            ("group_append_errors", "Changes not stored", counter, |s| {
                s.append_errors
            }),
            (
                "group_compactions",
                "Group logs written anew",
                counter,
                |s| s.compactions,
            ),
        ];
        for (name, help, kind, read) in figures {
            let groups = Arc::clone(self);
            metrics.sample(name, help, kind, None, move || {
                read(&groups.recent()) as f64
            });
        }
    }
}
