//! One data directory: its journal, its segment files, the tail that they do not hold yet, and
//! what has been taken in of its journal.
//!
//! What happens to partitions is the registry's part, which hands each piece of work the directory
//! that it is about.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::budget::{Budget, Waiting};
use crate::partition::figures::Figures;
use crate::partition::gate::Gate;
use crate::partition::recovery::{Opening, OpeningDirectory};
use crate::partition::registry::RegistryOptions;
use crate::partition::shard::SegmentFile;
use crate::partition::witness::{Noted, Witness};
use crate::store::backend::{Disk, Space};
use crate::store::journal::{Group, Journal};
use crate::store::segment::SegmentStore;
use crate::types::{DirectoryId, DirectoryNo, FileId, Position};

/// One data directory.
pub struct Directory {
    /// Its place in `log.dirs`.
    pub no: DirectoryNo,
    /// What layouts call it.
    pub id: DirectoryId,
    /// What the operator calls it: its path.
    pub name: String,
    /// Names it in log lines if there are several.
    pub(super) span: tracing::Span,
    pub(crate) segments: Arc<SegmentStore>,
    journal: OnceLock<Arc<dyn Journal>>,
    /// Bytes of batches that the tail may hold.
    pub tail_limit: usize,
    budget: Arc<Semaphore>,
    /// Segment reads under way on threads that may wait for the disk.
    pub(super) reads: Budget,
    /// Who waits for room in the tail.
    waiting: AtomicUsize,
    pub(super) gate: Gate,
    pub(super) applied: Mutex<Applied>,
    pub(super) figures: Figures,
    pub(super) noted: Mutex<Noted>,
    /// Something was deleted since the files were last looked through.
    pub(super) garbage: AtomicBool,
    /// The number of the next segment file.
    pub(super) next_file: AtomicU64,
    /// Bytes of group buffers in the tail.
    pub(super) tail_bytes: AtomicU64,
    /// One flush at a time.
    pub(super) flushing: Mutex<()>,
    /// Held while a checkpoint is captured, and by a move from where it seals a shard to where its
    /// new home is taken in: no checkpoint shows half a move or trims what a start needs of it.
    pub(super) capturing: Mutex<()>,
    /// Files of other directories may hold records of partitions that live here.
    pub(super) has_foreign: AtomicBool,
    /// They wait for room to be copied here.
    pub(super) copies_wait: AtomicBool,
    /// Told when there is work for the maintenance thread.
    pub(super) wake: Signal,
    /// Told when merging is to stop.
    pub(super) merge_wake: Signal,
}

/// The data directories of a node, in the order of `log.dirs`.
pub struct Directories {
    first: Arc<Directory>,
    others: Vec<Arc<Directory>>,
}

impl Directories {
    /// The first one, and the others in order.
    pub fn new(first: Arc<Directory>, others: Vec<Arc<Directory>>) -> Self {
        Self { first, others }
    }

    /// The one whose journal holds the catalog.
    pub fn first(&self) -> &Arc<Directory> {
        &self.first
    }

    /// Whether there is another one than the first.
    pub fn are_several(&self) -> bool {
        !self.others.is_empty()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Directory>> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// The one of that number, which a directory of this node gave out.
    pub fn get(&self, no: DirectoryNo) -> &Arc<Directory> {
        self.iter().nth(usize::from(no.0)).unwrap_or(&self.first)
    }

    /// The one that a layout names. A start ends when one is named that is not there, and takes
    /// the first in its place until it has read all that could still delete the shard.
    pub(super) fn home(&self, id: DirectoryId) -> &Arc<Directory> {
        self.iter().find(|d| d.id == id).unwrap_or(&self.first)
    }
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
    /// What the journal noted last of the other directories.
    pub(super) witness: Witness,
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
    /// A directory without files and with these shares of the budgets; recovery fills it, then
    /// [`Directory::attach`] makes it writable. Its log lines carry the span that it is made in.
    pub fn new(
        (no, id, name): (DirectoryNo, DirectoryId, String),
        disk: Arc<dyn Disk>,
        segments: Arc<SegmentStore>,
        shares: &RegistryOptions,
    ) -> Self {
        Self {
            no,
            id,
            name,
            span: tracing::Span::current(),
            segments,
            journal: OnceLock::new(),
            tail_limit: shares.tail_bytes,
            budget: Arc::new(Semaphore::new(shares.tail_bytes)),
            waiting: AtomicUsize::new(0),
            reads: Budget::new("reads", shares.read_bytes),
            gate: Gate::new(disk, shares.reserve_bytes),
            applied: Mutex::default(),
            figures: Figures::default(),
            noted: Mutex::default(),
            garbage: AtomicBool::new(true),
            next_file: AtomicU64::new(1),
            tail_bytes: AtomicU64::new(0),
            flushing: Mutex::default(),
            capturing: Mutex::default(),
            has_foreign: AtomicBool::new(true),
            copies_wait: AtomicBool::new(false),
            wake: Signal::default(),
            merge_wake: Signal::default(),
        }
    }

    /// The directory as it is before its checkpoint and its journal are read, with its share of what
    /// is for all. Nothing is written.
    pub(super) fn of(
        no: DirectoryNo,
        opening: &OpeningDirectory,
        all: &Opening,
        of: usize,
    ) -> Self {
        let disk = &opening.disk;
        let span = match of {
            1 => tracing::Span::none(),
            _ => tracing::error_span!("directory", path = %opening.name),
        };
        let _named = span.enter();
        let segments = SegmentStore::new(Arc::clone(disk), all.footer_bytes / of as u64);
        let segments = segments.with_open_files((all.open_files / of).max(1));
        Self::new(
            (no, opening.id, opening.name.clone()),
            Arc::clone(disk),
            Arc::new(segments),
            &RegistryOptions {
                tail_bytes: all.registry.tail_bytes / of,
                read_bytes: all.registry.read_bytes / of as u64,
                ..all.registry.clone()
            },
        )
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

    /// Whether a flush is under way, for simulations.
    #[cfg(test)]
    pub(crate) fn is_flushing(&self) -> bool {
        self.flushing.try_lock().is_none()
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

    /// A segment file that some list names. It stays on disk as long as it is held.
    pub(super) fn listed_file(&self, id: FileId) -> Option<Arc<SegmentFile>> {
        self.applied.lock().files.get(&id).cloned()
    }

    /// Whether client writes are taken: false while the disk is nearly full.
    pub fn is_writable(&self) -> bool {
        self.gate.is_open()
            && !self
                .journal()
                .is_some_and(|journal| journal.short_of_space())
    }

    /// Bytes that copies may still take without coming near the reserve.
    pub fn spare_bytes(&self) -> std::io::Result<u64> {
        self.gate.spare_bytes()
    }

    /// Size and free space of the device.
    pub fn space(&self) -> std::io::Result<Space> {
        self.gate.space()
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
        let _waits = (self.budget.available_permits() < bytes).then(|| {
            self.wake.raise();
            Waiting::new(&self.waiting)
        });
        let permit = Arc::clone(&self.budget)
            .acquire_many_owned(permits)
            .await
            .ok()?;
        Some(Room { permit })
    }

    /// How many wait for room in the tail.
    pub fn waiting_for_tail(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
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
