//! One data directory: its journal, its segment files, the tail that they do not hold yet, and
//! what has been taken in of its journal.
//!
//! What happens to partitions is the registry's part, which hands each piece of work the directory
//! that it is about.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::partition::figures::Figures;
use crate::partition::gate::Gate;
use crate::partition::shard::SegmentFile;
use crate::store::backend::Disk;
use crate::store::journal::{Group, Journal};
use crate::store::segment::SegmentStore;
use crate::types::{DirectoryNo, FileId, Position};

/// One data directory.
pub struct Directory {
    /// Its place in `log.dirs`.
    pub no: DirectoryNo,
    pub(crate) segments: Arc<SegmentStore>,
    journal: OnceLock<Arc<dyn Journal>>,
    /// Bytes of batches that the tail may hold.
    pub tail_limit: usize,
    budget: Arc<Semaphore>,
    pub(super) gate: Gate,
    pub(super) applied: Mutex<Applied>,
    pub(super) figures: Figures,
    /// Something was deleted since the files were last looked through.
    pub(super) garbage: AtomicBool,
    /// The number of the next segment file.
    pub(super) next_file: AtomicU64,
    /// Bytes of group buffers in the tail.
    pub(super) tail_bytes: AtomicU64,
    /// Told when there is work for the maintenance thread.
    pub(super) wake: Signal,
    /// Told when merging is to stop.
    pub(super) merge_wake: Signal,
}

/// A flag that a thread sleeps on.
#[derive(Default)]
pub(super) struct Signal {
    raised: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    pub(super) fn raise(&self) {
        *self.raised.lock() = true;
        self.changed.notify_all();
    }

    /// Waits until raised or until the time is over, and takes the flag down.
    pub(super) fn wait(&self, at_most: Duration) -> bool {
        let mut raised = self.raised.lock();
        if !*raised {
            self.changed.wait_for(&mut raised, at_most);
        }
        std::mem::take(&mut *raised)
    }
}

/// State that follows the journal in order. Held while a group is taken in, so that whoever holds
/// it sees the directory as of one group.
#[derive(Default)]
pub(super) struct Applied {
    /// The last entry taken in.
    pub(super) position: Position,
    /// The tail up to here is in segment files.
    pub(super) flushed: Position,
    /// Groups that hold un-flushed batches, oldest first.
    pub(super) groups: VecDeque<Arc<Group>>,
    /// Files named by at least one list.
    pub(super) files: BTreeMap<FileId, Arc<SegmentFile>>,
    /// Files that left all lists and wait for their last reader.
    pub(super) leaving: Vec<Arc<SegmentFile>>,
}

/// Room in the tail, held from before the shard's lock until the entry's flush.
pub struct Room {
    permit: OwnedSemaphorePermit,
}

impl Room {
    /// Moves part of the room to an entry, whose flush gives it back.
    pub(super) fn take(&mut self, bytes: usize) -> u32 {
        let bytes = bytes.min(self.permit.num_permits());
        if let Some(part) = self.permit.split(bytes) {
            part.forget();
        }
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }
}

impl Directory {
    /// A directory without files; recovery fills it, then [`Directory::attach`] makes it writable.
    pub fn new(
        no: DirectoryNo,
        disk: Arc<dyn Disk>,
        segments: Arc<SegmentStore>,
        tail_bytes: usize,
        reserve_bytes: u64,
    ) -> Self {
        Self {
            no,
            segments,
            journal: OnceLock::new(),
            tail_limit: tail_bytes,
            budget: Arc::new(Semaphore::new(tail_bytes)),
            gate: Gate::new(disk, reserve_bytes),
            applied: Mutex::default(),
            figures: Figures::default(),
            garbage: AtomicBool::new(true),
            next_file: AtomicU64::new(1),
            tail_bytes: AtomicU64::new(0),
            wake: Signal::default(),
            merge_wake: Signal::default(),
        }
    }

    /// Gives the directory its journal, once, after recovery.
    pub fn attach(&self, journal: Arc<dyn Journal>) {
        if self.journal.set(journal).is_err() {
            tracing::error!("the directory has a journal already; the second one is ignored");
        }
        // A disk that was full before the start still is. An error here is met again by the
        // background thread, which can end the process.
        let _ = self.gate.look();
    }

    /// The journal. `None` only while recovery runs.
    pub fn journal(&self) -> Option<&Arc<dyn Journal>> {
        self.journal.get()
    }

    /// The segment files that some list names, for simulations.
    #[cfg(test)]
    pub(crate) fn files(&self) -> Vec<Arc<SegmentFile>> {
        self.applied.lock().files.values().cloned().collect()
    }

    /// The segment files that some list names.
    pub(super) fn listed_files(&self) -> BTreeSet<FileId> {
        self.applied.lock().files.keys().copied().collect()
    }

    /// Whether client writes are taken: false while the disk is nearly full.
    pub fn is_writable(&self) -> bool {
        self.gate.is_open()
            && !self
                .journal()
                .is_some_and(|journal| journal.short_of_space())
    }

    /// Bytes of tail budget that are free.
    pub fn free_tail_bytes(&self) -> usize {
        self.budget.available_permits()
    }

    /// Bytes of group buffers that the tail holds.
    pub fn tail_bytes(&self) -> u64 {
        self.tail_bytes.load(Ordering::Relaxed)
    }

    /// Takes so much room in the tail, or what is left of it, without waiting.
    pub(super) fn take_room(&self, bytes: u64) -> u64 {
        let free = self.budget.available_permits();
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(free);
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        match self.budget.try_acquire_many(permits) {
            Ok(taken) => {
                taken.forget();
                u64::from(permits)
            }
            Err(_) => 0,
        }
    }

    pub(super) fn give_back(&self, charge: u64) {
        self.budget
            .add_permits(usize::try_from(charge).unwrap_or(0));
    }

    /// Waits for room in the tail. More than the whole budget is taken as the whole budget.
    pub async fn room(&self, bytes: usize) -> Option<Room> {
        let bytes = bytes.clamp(1, self.tail_limit);
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        if self.budget.available_permits() < bytes {
            self.wake.raise();
        }
        let permit = Arc::clone(&self.budget)
            .acquire_many_owned(permits)
            .await
            .ok()?;
        Some(Room { permit })
    }

    /// Blocks this thread until the journal is durable up to `position`. False if it ended before:
    /// what stands on that position must not be done.
    #[must_use]
    pub fn wait_durable(&self, position: Position) -> bool {
        self.journal().is_some_and(|journal| journal.wait(position))
    }

    /// A file number never used before, also not by a file that a crash left behind.
    pub(super) fn next_file_id(&self) -> FileId {
        FileId(self.next_file.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn is_flush_due(&self) -> bool {
        self.tail_bytes() >= self.tail_limit as u64 / 2
    }
}
