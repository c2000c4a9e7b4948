//! Every partition and shard of this directory, and the way to append to them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use parking_lot::{Condvar, Mutex};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::budget::Budget;
use crate::catalog::{Catalog, Topic};
use crate::clock::Clock;
use crate::partition::entries::encode_log_start;
use crate::partition::figures::Figures;
use crate::partition::gate::Gate;
use crate::partition::log::{Bounds, Partition};
use crate::partition::recovery::Fatal;
use crate::partition::shard::{
    Appended, Now, PartitionSequence, Prepared, Refused, SegmentFile, Shard,
};
use crate::store::backend::Disk;
use crate::store::journal::{Entry, EntryKind, Group, Journal};
use crate::store::segment::SegmentStore;
use crate::types::{FileId, Offset, PartitionKey, Position, ShardId, TopicNo};

/// Bounds and intervals of the registry.
#[derive(Clone, Debug)]
pub struct RegistryOptions {
    /// Bytes of batches that may wait in the tail for their flush.
    pub tail_bytes: usize,
    /// Producers remembered per partition.
    pub producers_per_partition: usize,
    /// Idle time after which a producer is forgotten, in milliseconds.
    pub producer_expiration_ms: i64,
    /// Client writes are refused while the device has less than this free.
    pub reserve_bytes: u64,
    /// Bytes of segment reads under way on threads that may wait for the disk.
    pub read_bytes: u64,
}

/// The registry.
pub struct Registry {
    pub(super) options: RegistryOptions,
    pub(super) catalog: Arc<Catalog>,
    pub(crate) segments: Arc<SegmentStore>,
    pub(super) clock: Arc<dyn Clock>,
    /// Wall and monotonic time when the process started.
    pub(super) started: (i64, Duration),
    pub(super) partitions: DashMap<PartitionKey, Arc<Partition>>,
    pub(super) shards: DashMap<ShardId, Arc<Shard>>,
    pub(super) fatal: Fatal,
    journal: OnceLock<Arc<dyn Journal>>,
    budget: Arc<Semaphore>,
    pub(super) reads: Budget,
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
    pub(super) fn wait(&self, at_most: std::time::Duration) -> bool {
        let mut raised = self.raised.lock();
        if !*raised {
            self.changed.wait_for(&mut raised, at_most);
        }
        std::mem::take(&mut *raised)
    }
}

/// State that follows the journal in order. Held while a group is taken in, so that whoever holds
/// it sees the store as of one group.
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
    fn take(&mut self, bytes: usize) -> u32 {
        let bytes = bytes.min(self.permit.num_permits());
        if let Some(part) = self.permit.split(bytes) {
            part.forget();
        }
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }
}

impl Registry {
    /// An empty registry; recovery fills it, then [`Registry::attach`] makes it writable.
    pub fn new(
        options: RegistryOptions,
        catalog: Arc<Catalog>,
        segments: Arc<SegmentStore>,
        clock: Arc<dyn Clock>,
        fatal: Fatal,
        disk: Arc<dyn Disk>,
    ) -> Self {
        Self {
            started: (clock.wall_ms(), clock.monotonic()),
            gate: Gate::new(disk, options.reserve_bytes),
            reads: Budget::new("reads", options.read_bytes),
            budget: Arc::new(Semaphore::new(options.tail_bytes)),
            options,
            catalog,
            segments,
            clock,
            fatal,
            partitions: DashMap::new(),
            shards: DashMap::new(),
            journal: OnceLock::new(),
            applied: Mutex::default(),
            figures: Figures::default(),
            garbage: AtomicBool::new(true),
            next_file: AtomicU64::new(1),
            tail_bytes: AtomicU64::new(0),
            wake: Signal::default(),
            merge_wake: Signal::default(),
        }
    }

    /// Gives the registry its journal, once, after recovery.
    pub fn attach(&self, journal: Arc<dyn Journal>) {
        if self.journal.set(journal).is_err() {
            tracing::error!("the registry has a journal already; the second one is ignored");
        }
    }

    /// The journal. `None` only while recovery runs.
    pub fn journal(&self) -> Option<&Arc<dyn Journal>> {
        self.journal.get()
    }

    /// A partition whose topic's creation is durable.
    pub fn get(&self, key: PartitionKey) -> Option<Arc<Partition>> {
        self.partitions.get(&key).map(|p| Arc::clone(&p))
    }

    /// The segment files that some list names.
    pub(super) fn listed_files(&self) -> BTreeSet<FileId> {
        self.applied.lock().files.keys().copied().collect()
    }

    /// How many partitions there are.
    pub fn partition_count(&self) -> usize {
        self.partitions.len()
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
        let bytes = bytes.clamp(1, self.options.tail_bytes);
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

    /// Sequences a batch: it has its offsets and its place in the journal when this returns.
    pub fn append(
        &self,
        partition: &Partition,
        mut batch: Prepared,
        room: Option<&mut Room>,
    ) -> Result<Appended, Refused> {
        let journal = self.journal().ok_or(Refused::Sealed)?;
        self.gate.count(batch.payload.len() as u64);
        let held = room.map(|room| {
            let bytes = room.take(batch.payload.len() + ENTRY_OVERHEAD);
            batch.charge = bytes;
            bytes
        });
        let result = partition.shard().append(
            partition.key.index,
            batch,
            self.now(),
            self.options.producers_per_partition,
            journal.as_ref(),
        );
        let unused = !matches!(&result, Ok(appended) if !appended.duplicate);
        if let Some(bytes) = held.filter(|_| unused) {
            self.give_back(u64::from(bytes));
        }
        result
    }

    pub(super) fn now(&self) -> Now {
        let passed = self.clock.monotonic().saturating_sub(self.started.1);
        let passed = i64::try_from(passed.as_millis()).unwrap_or(i64::MAX);
        Now {
            wall_ms: self.clock.wall_ms(),
            steady_ms: self.started.0.saturating_add(passed),
        }
    }

    /// Sequences a move of the log start up to `offset`, which must not lie beyond the high
    /// watermark. A lower offset than the present log start changes nothing. Returns the log start
    /// and the position that an answer waits for.
    pub fn move_log_start(
        &self,
        partition: &Partition,
        offset: Offset,
    ) -> Result<(Offset, Position), Refused> {
        let journal = self.journal().ok_or(Refused::Sealed)?;
        partition.shard().locked(|shard| {
            if shard.is_sealed() {
                return Err(Refused::Sealed);
            }
            let sequence = shard
                .partition(partition.key.index)
                .ok_or(Refused::Sealed)?;
            if offset > sequence.log_start {
                sequence.log_start = offset;
                sequence.last_position = journal.append(Entry {
                    kind: EntryKind::LogStart,
                    key: partition.key,
                    payload: encode_log_start(offset),
                    fill: None,
                    charge: 0,
                });
            }
            Ok((sequence.log_start, sequence.last_position))
        })
    }

    /// Seals all shards of a topic, so that no append follows. The caller sequences the topic's
    /// deletion next, under the catalog's lock, and nothing can stop it from doing so.
    pub fn seal_topic(&self, topic: &Topic) {
        for span in topic.layout.shards() {
            if let Some(shard) = self.shards.get(&span.id).map(|shard| Arc::clone(&shard)) {
                shard.locked(|sequencing| sequencing.seal());
            }
        }
    }

    /// Makes room for a topic's partitions. Called in journal order.
    pub(super) fn create_partitions(&self, topic: &Topic, first: u32) {
        for index in first..topic.partitions {
            let key = PartitionKey {
                topic: topic.no,
                index,
            };
            let Some(shard) = self.shard_for(topic, index) else {
                continue;
            };
            shard.add_partition(index, PartitionSequence::default());
            let bounds = Bounds {
                log_start: 0,
                high_watermark: 0,
                last_stable: 0,
                leader_epoch: 0,
            };
            self.partitions
                .insert(key, Arc::new(Partition::new(key, topic.id, shard, bounds)));
        }
    }

    /// The run-time shard that the topic's layout names for a partition, made if need be.
    pub(super) fn shard_for(&self, topic: &Topic, index: u32) -> Option<Arc<Shard>> {
        let id = topic.layout.shard_of(index)?;
        let shard = self
            .shards
            .entry(id)
            .or_insert_with(|| Arc::new(Shard::new(id, topic.no)));
        Some(Arc::clone(&shard))
    }

    /// Takes a topic out. Called in journal order.
    pub(super) fn drop_topic(&self, no: TopicNo, partitions: u32) {
        for index in 0..partitions {
            if let Some((_, partition)) = self.partitions.remove(&PartitionKey { topic: no, index })
            {
                partition.shard().locked(|shard| shard.seal());
                partition.publish_deletion();
                self.shards.remove(&partition.shard().id);
            }
        }
        self.garbage.store(true, Ordering::Release);
        self.wake.raise();
    }
}

/// Tail bytes that an entry costs beyond its payload.
pub const ENTRY_OVERHEAD: usize = 64;
