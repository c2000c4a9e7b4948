//! A shard at run time: the lock that sequences its partitions, and its list of segment files.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Semaphore;

use crate::catalog::settings::ShardLimits;
use crate::partition::directory::Directory;
use crate::partition::load::{Flow, Traffic};
use crate::partition::producer_budget::ProducerBudget;
use crate::partition::producer_state::{Claim, Placed, Producers, Verdict, WindowBatch};
use crate::protocol::batch::{self, BatchInfo, BatchView, Patch, Stamp};
use crate::store::journal::{Entry, EntryKind, Fill};
use crate::store::segment::{SectionMeta, SegmentMeta};
use crate::types::{DirectoryNo, FileId, Offset, PartitionKey, Place, Position, ShardId};

/// A segment file that some shard's list names. The file may be deleted when no list and no
/// running read holds it.
#[derive(Debug)]
pub struct SegmentFile {
    /// The directory that it lies in.
    pub directory: DirectoryNo,
    /// Its sections, sorted by partition.
    pub meta: SegmentMeta,
    /// Its footer could not be read at the start. It stays on disk and in the lists of later
    /// checkpoints, and serves nothing.
    pub damaged: bool,
    /// Partitions whose sections here do not count any more: another file holds their records,
    /// too. Readers with an older list may still take them.
    superseded: Mutex<BTreeSet<PartitionKey>>,
    /// Bytes of deleted records that the merge which made it had to leave in it.
    kept_dead: AtomicU64,
    /// It could not be copied into another directory.
    left_there: AtomicBool,
}

impl SegmentFile {
    /// A file that serves everything in it.
    pub fn new(directory: DirectoryNo, meta: SegmentMeta) -> Self {
        Self {
            directory,
            meta,
            damaged: false,
            superseded: Mutex::default(),
            kept_dead: AtomicU64::new(0),
            left_there: AtomicBool::new(false),
        }
    }

    /// A file whose footer could not be read.
    pub fn damaged(directory: DirectoryNo, file: FileId) -> Self {
        let meta = SegmentMeta {
            file,
            bytes: 0,
            sections: Vec::new(),
        };
        Self {
            damaged: true,
            ..Self::new(directory, meta)
        }
    }

    /// The section of a partition, unless another file took its place.
    pub fn section(&self, key: PartitionKey) -> Option<&SectionMeta> {
        let section = self.meta.section(key)?;
        self.counts(key).then_some(section)
    }

    /// The sections that no other file took the place of.
    pub fn sections(&self) -> impl Iterator<Item = &SectionMeta> {
        let gone = self.superseded.lock().clone();
        let sections = self.meta.sections.iter();
        sections.filter(move |section| gone.is_empty() || !gone.contains(&section.key))
    }

    /// Whether no other file took the place of a partition's section.
    pub fn counts(&self, key: PartitionKey) -> bool {
        !self.superseded.lock().contains(&key)
    }

    /// Bytes of deleted records that another rewrite would leave in it as well.
    pub(super) fn kept_dead(&self) -> u64 {
        self.kept_dead.load(Ordering::Relaxed)
    }

    /// Says how many there are, right after a merge made the file.
    pub(super) fn keep_dead(&self, bytes: u64) {
        self.kept_dead.store(bytes, Ordering::Relaxed);
    }

    /// It is damaged, so that no other directory copies anything out of it until the next start.
    pub(super) fn leave_there(&self) {
        self.left_there.store(true, Ordering::Relaxed);
    }

    /// Whether another directory may copy what it wants out of it.
    pub(super) fn may_be_copied(&self) -> bool {
        !self.damaged && !self.left_there.load(Ordering::Relaxed)
    }

    /// Another file holds all that is left of a partition's section, and is on stable lists.
    pub(super) fn supersede(&self, key: PartitionKey) {
        self.superseded.lock().insert(key);
    }
}

/// Files in the order of their flushes, oldest first.
pub type FileList = Vec<Arc<SegmentFile>>;

/// The segment list of a shard, as readers see it: files that hold a section of one of its
/// partitions. It counts from when the shard is durable, and is swapped in journal order only.
pub struct SegmentList {
    /// The shard.
    pub id: ShardId,
    files: ArcSwap<FileList>,
}

impl SegmentList {
    /// A list with these files.
    pub fn new(id: ShardId, files: FileList) -> Self {
        let files = ArcSwap::from_pointee(files);
        Self { id, files }
    }

    /// The list as it is now.
    pub fn files(&self) -> Arc<FileList> {
        self.files.load_full()
    }

    /// Swaps the list.
    pub(super) fn set_files(&self, files: FileList) {
        self.files.store(Arc::new(files));
    }
}

/// The lock of one shard: whoever holds it sequences the shard's partitions.
pub struct Shard {
    /// Its id.
    pub id: ShardId,
    /// The directory whose journal its entries go to.
    pub home: Arc<Directory>,
    standing: Mutex<Standing>,
    flow: Mutex<Flow>,
}

/// What may be appended under a shard's lock.
#[derive(Clone, Debug, Default)]
pub enum Standing {
    /// Anything.
    #[default]
    Open,
    /// Nothing now: the shard is on its way to another directory. The semaphore has no permits and
    /// is closed when that is over: then the topic's routes tell where to go.
    Waiting(Arc<Semaphore>),
    /// Nothing: other shards took its place, and the topic's routes lead to them.
    Moved,
    /// Nothing: the topic's deletion is sequenced.
    Deleted,
}

impl Shard {
    /// A shard.
    pub fn new(id: ShardId, home: Arc<Directory>, standing: Standing) -> Self {
        let standing = Mutex::new(standing);
        let flow = Mutex::default();
        Self {
            id,
            home,
            standing,
            flow,
        }
    }

    /// Counts traffic against the shard's limits; whoever sent or fetched it is to pause for so
    /// long.
    pub fn count(&self, traffic: Traffic, limits: ShardLimits, now_ms: i64) -> Duration {
        self.flow.lock().count(traffic, limits, now_ms)
    }

    /// The most of each kind of traffic in one second of the last minute.
    pub fn busiest_second(&self, now_ms: i64) -> Traffic {
        self.flow.lock().busiest(now_ms)
    }

    /// Takes the lock.
    pub(super) fn lock(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock()
    }
}

impl Standing {
    /// Nothing may be appended until it is [`set`](Standing::set) to something else.
    pub(super) fn waiting() -> Self {
        Self::Waiting(Arc::new(Semaphore::new(0)))
    }

    /// Changes it; whoever waited goes on.
    pub(super) fn set(&mut self, to: Self) {
        if let Self::Waiting(until) = std::mem::replace(self, to) {
            until.close();
        }
    }
}

/// Where a partition's next append goes. It runs ahead of what is durable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionSequence {
    /// Offset of the next record.
    pub next_offset: Offset,
    /// First offset that may be read.
    pub log_start: Offset,
    /// The leader epoch that new batches get.
    pub leader_epoch: i32,
    /// The last entry of this partition.
    pub last_position: Position,
    /// Idempotent producers; nothing is allocated for a partition without one.
    pub producers: Option<Box<Producers>>,
}

/// A batch that passed every check which needs no lock.
#[derive(Clone)]
pub struct Prepared {
    /// The batch as the client sent it (or recompressed).
    pub payload: Bytes,
    /// Number of records less one.
    pub last_offset_delta: i32,
    /// The batch's max timestamp.
    pub max_timestamp: i64,
    /// Producer and sequence, if the batch has one.
    pub claim: Option<Claim>,
    /// What becomes of its timestamps.
    pub stamping: Stamping,
    /// Bytes of tail budget that the entry holds.
    pub charge: u32,
}

/// The time of an append.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// What LogAppendTime topics stamp. May jump.
    pub wall_ms: i64,
    /// What idle times are measured by: goes on evenly while the process runs.
    pub steady_ms: i64,
}

/// What becomes of a batch's timestamps on append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamping {
    /// They stay as sent.
    Keep,
    /// The header's max timestamp is put right.
    MaxTimestamp(i64),
    /// The topic stamps batches with the time of their append.
    LogAppendTime,
}

impl Stamping {
    fn stamp(self, now_ms: i64) -> Stamp {
        match self {
            Self::Keep => Stamp::Keep,
            Self::MaxTimestamp(max) => Stamp::CreateTime(max),
            Self::LogAppendTime => Stamp::LogAppendTime(now_ms),
        }
    }
}

/// The outcome of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Offset of the first record.
    pub base_offset: Offset,
    /// The append time of a LogAppendTime topic, else -1; of a duplicate its original's timestamp.
    pub log_append_time_ms: i64,
    /// First offset of the partition's log.
    pub log_start: Offset,
    /// The answer may leave when this is durable.
    pub place: Place,
    /// The batch was there already; nothing was appended.
    pub duplicate: bool,
}

/// Why a batch got no place in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The topic is deleted.
    Sealed,
    /// Not refused: the shard is on its way to another directory. Try again when
    /// [`Partition::settled`](crate::partition::Partition::settled) says so, holding nothing
    /// meanwhile.
    Moving,
    /// INVALID_PRODUCER_EPOCH.
    InvalidProducerEpoch,
    /// OUT_OF_ORDER_SEQUENCE_NUMBER.
    OutOfOrderSequence,
}

impl PartitionSequence {
    /// Gives a batch its offsets and its place in the journal, under the shard's lock.
    pub(super) fn append(
        &mut self,
        key: PartitionKey,
        batch: Prepared,
        now: Now,
        producers: &ProducerBudget,
        home: &Directory,
    ) -> Result<Appended, Refused> {
        let journal = home.journal().ok_or(Refused::Sealed)?;
        if let Some(claim) = &batch.claim {
            match self.judge(claim) {
                Verdict::Append => {}
                Verdict::InvalidProducerEpoch => return Err(Refused::InvalidProducerEpoch),
                Verdict::OutOfOrderSequence => return Err(Refused::OutOfOrderSequence),
                Verdict::Duplicate(original) => return Ok(self.repeat(&original, home.no)),
            }
        }
        let base_offset = self.next_offset;
        let stamp = batch.stamping.stamp(now.wall_ms);
        let (log_append_time_ms, timestamp) = match stamp {
            Stamp::LogAppendTime(now) => (now, now),
            Stamp::CreateTime(max) => (-1, max),
            Stamp::Keep => (-1, batch.max_timestamp),
        };
        let position = journal.append(Entry {
            kind: EntryKind::Batch,
            key,
            payload: batch.payload,
            fill: Some(Fill {
                args: patch_args(base_offset, self.leader_epoch, stamp),
                apply: patch_batch,
            }),
            charge: batch.charge,
        });
        self.next_offset = base_offset + i64::from(batch.last_offset_delta) + 1;
        self.last_position = position;
        if let Some(claim) = &batch.claim {
            let placed = Placed {
                base_offset,
                timestamp,
                position,
                now_ms: now.steady_ms,
            };
            producers.record(self, claim, placed, || journal.durable());
        }
        Ok(Appended {
            base_offset,
            log_append_time_ms,
            log_start: self.log_start,
            place: Place {
                directory: home.no,
                position,
            },
            duplicate: false,
        })
    }

    /// The answer that a batch's original got, for one that was sent again.
    fn repeat(&self, original: &WindowBatch, directory: DirectoryNo) -> Appended {
        Appended {
            base_offset: original.base_offset,
            // Kafka names the original's timestamp here whoever gave it.
            log_append_time_ms: original.timestamp,
            log_start: self.log_start,
            place: Place {
                directory,
                position: original.position,
            },
            duplicate: true,
        }
    }

    /// Where nothing was ever written nothing was forgotten either: a producer that is younger than
    /// the partition starts at 0, or an earlier batch of it is still to come, and would be refused
    /// for good if a later one were taken before it. Kafka has no such rule.
    fn judge(&self, claim: &Claim) -> Verdict {
        if self.next_offset == 0 && claim.is_younger && claim.first_sequence != 0 {
            return Verdict::OutOfOrderSequence;
        }
        match &self.producers {
            Some(producers) => producers.check(claim),
            None => Producers::default().check(claim),
        }
    }

    /// Takes in a batch that the journal already holds.
    pub fn replay_batch(
        &mut self,
        view: &BatchView<'_>,
        at: Position,
        producers: &ProducerBudget,
        now_ms: i64,
    ) {
        self.next_offset = view.info.last_offset() + 1;
        self.last_position = at;
        if let Some(claim) = claim_of(&view.info) {
            let placed = Placed {
                base_offset: view.info.base_offset,
                timestamp: view.info.max_timestamp,
                position: at,
                now_ms,
            };
            producers.record(self, &claim, placed, || at);
        }
    }
}

/// The producer and sequence of a batch, if it has one.
pub fn claim_of(info: &BatchInfo) -> Option<Claim> {
    (info.has_producer_id() && !info.is_control()).then_some(Claim {
        producer_id: info.producer_id,
        epoch: info.producer_epoch,
        first_sequence: info.base_sequence,
        last_offset_delta: info.last_offset_delta,
        is_younger: false,
    })
}

/// Packs a patch into the numbers that a fill step carries: the stamp's kind lies above the leader
/// epoch.
fn patch_args(base_offset: Offset, leader_epoch: i32, stamp: Stamp) -> [i64; 3] {
    let (kind, time) = match stamp {
        Stamp::Keep => (0, 0),
        Stamp::CreateTime(max) => (1, max),
        Stamp::LogAppendTime(now) => (2, now),
    };
    [
        base_offset,
        kind << 32 | i64::from(leader_epoch.cast_unsigned()),
        time,
    ]
}

/// The fill step of batch entries: offsets, leader epoch and timestamps into the journal's copy.
fn patch_batch(payload: &mut [u8], [base_offset, epoch_and_kind, time]: [i64; 3]) {
    let stamp = match epoch_and_kind >> 32 {
        1 => Stamp::CreateTime(time),
        2 => Stamp::LogAppendTime(time),
        _ => Stamp::Keep,
    };
    let leader_epoch = epoch_and_kind as i32;
    batch::patch(
        payload,
        Patch {
            base_offset,
            leader_epoch,
            stamp,
        },
    );
}
