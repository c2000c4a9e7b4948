//! One partition as readers see it: durable state only.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::partition::directory::Directory;
use crate::partition::load::{Rates, Traffic};
use crate::partition::routes::TopicShards;
use crate::partition::shard::{FileList, PartitionSequence, Refused, Shard, Standing};
use crate::partition::tail::{Tail, TailBatch};
use crate::partition::waiters::Waiter;
use crate::types::{DirectoryNo, Offset, PartitionKey, Position, TopicId};

/// How often whoever waited for a shard's lock found the shard replaced.
#[cfg(test)]
pub(crate) static FOLLOWED: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// One partition. Small while idle: no buffer, no file, no task.
pub struct Partition {
    /// Its key in this store.
    pub key: PartitionKey,
    /// The id of its topic.
    pub topic_id: TopicId,
    shards: Arc<TopicShards>,
    /// Taken by whoever holds the lock of the partition's shard, so nobody ever waits for it.
    sequence: Mutex<PartitionSequence>,
    visible: Mutex<Visible>,
    load: Mutex<Rates>,
}

#[derive(Default)]
struct Visible {
    log_start: Offset,
    high_watermark: Offset,
    leader_epoch: i32,
    deleted: bool,
    tail: Tail,
    waiters: Vec<Arc<Waiter>>,
}

/// The borders of a partition's log, taken together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// First offset that may be read.
    pub log_start: Offset,
    /// One past the last durable record.
    pub high_watermark: Offset,
    /// One past the last record that a read-committed reader may see.
    pub last_stable: Offset,
    /// The leader epoch of the newest records.
    pub leader_epoch: i32,
}

/// One consistent cut of a partition for a read.
pub struct Cut {
    /// The borders at that moment.
    pub bounds: Bounds,
    /// Where the records from the asked offset on are.
    pub source: Source,
}

/// Where a read finds its records.
pub enum Source {
    /// The topic is deleted.
    Deleted,
    /// Below the log start or above the high watermark.
    OutOfRange,
    /// Exactly at the end: nothing yet.
    End,
    /// In the tail: batches from the one that holds the offset.
    Tail(Vec<Bytes>),
    /// In one of these files.
    Files(Arc<FileList>),
}

impl Partition {
    /// A partition as a checkpoint kept it, or at its start.
    pub(super) fn new(
        key: PartitionKey,
        topic_id: TopicId,
        shards: Arc<TopicShards>,
        sequence: PartitionSequence,
    ) -> Self {
        let visible = Visible {
            log_start: sequence.log_start,
            high_watermark: sequence.next_offset,
            leader_epoch: sequence.leader_epoch,
            ..Visible::default()
        };
        Self {
            key,
            topic_id,
            shards,
            sequence: Mutex::new(sequence),
            visible: Mutex::new(visible),
            load: Mutex::default(),
        }
    }

    /// Whether a producer id among those given out so far, which end before `next`, is younger than
    /// the topic. What is not known, because the process started since, counts as older.
    pub fn predates(&self, producer_id: i64, next: i64) -> bool {
        (self.shards.first_younger_producer..next).contains(&producer_id)
    }

    /// The shard that sequences it now; `None` never happens for a partition of a live topic.
    pub fn shard(&self) -> Option<Arc<Shard>> {
        self.shards.route(self.key.index)
    }

    /// Whether its appends go to this directory now.
    pub(super) fn lives_in(&self, directory: &Directory) -> bool {
        self.shards.lives_in(self.key.index, directory)
    }

    /// Runs `f` on the sequencing state under the lock of the shard that has the partition now,
    /// and gives it that shard, or `None` when the topic's deletion is sequenced. A shard that was
    /// left meanwhile has led its routes elsewhere before it let go of its lock, so each further
    /// round follows one more reshape.
    pub fn sequenced<R>(&self, f: impl FnOnce(Option<&Shard>, &mut PartitionSequence) -> R) -> R {
        while let Some(shard) = self.shard() {
            let standing = shard.lock();
            let shard = match *standing {
                Standing::Moved => {
                    #[cfg(test)]
                    FOLLOWED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    continue;
                }
                Standing::Open | Standing::Waiting(_) => Some(shard.as_ref()),
                Standing::Deleted => None,
            };
            return f(shard, &mut self.sequence.lock());
        }
        f(None, &mut self.sequence.lock())
    }

    /// As [`Partition::sequenced`], for whoever puts an entry about the partition into its shard's
    /// journal: not while the topic's deletion is sequenced or the shard is on its way elsewhere.
    pub fn appending<R>(
        &self,
        f: impl FnOnce(&Shard, &mut PartitionSequence) -> Result<R, Refused>,
    ) -> Result<R, Refused> {
        while let Some(shard) = self.shard() {
            let standing = shard.lock();
            match *standing {
                Standing::Moved => {
                    #[cfg(test)]
                    FOLLOWED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
                Standing::Waiting(_) => return Err(Refused::Moving),
                Standing::Deleted => break,
                Standing::Open => return f(&shard, &mut self.sequence.lock()),
            }
        }
        Err(Refused::Sealed)
    }

    /// Waits while the partition's shard is on its way to another directory.
    pub async fn settled(&self) {
        while let Some(shard) = self.shard() {
            let until = match &*shard.lock() {
                Standing::Waiting(until) => Arc::clone(until),
                Standing::Moved => continue,
                Standing::Open | Standing::Deleted => return,
            };
            // It has no permit to give: this ends when it is closed.
            let _ = until.acquire().await;
        }
    }

    /// The offset of the next record. The caller holds the lock of the partition's shard.
    pub(super) fn next_offset(&self) -> Offset {
        self.sequence.lock().next_offset
    }

    /// The borders, taken together.
    pub fn bounds(&self) -> Bounds {
        self.visible.lock().bounds()
    }

    /// Counts traffic.
    pub fn count(&self, traffic: Traffic, now_ms: i64) {
        self.load.lock().add(traffic, now_ms);
    }

    /// What it carries a second, averaged over about the last minute.
    pub fn load(&self, now_ms: i64) -> Traffic {
        self.load.lock().at(now_ms)
    }

    /// Whether the topic's deletion is durable.
    pub fn is_deleted(&self) -> bool {
        self.visible.lock().deleted
    }

    /// Cuts the partition for a read of at most `max_bytes` from `offset`; the first batch comes
    /// whole even when it is larger, if `whole_first`.
    pub fn cut(&self, offset: Offset, max_bytes: usize, whole_first: bool) -> Cut {
        let visible = self.visible.lock();
        let bounds = visible.bounds();
        let source = if visible.deleted {
            Source::Deleted
        } else if offset < bounds.log_start || offset > bounds.high_watermark {
            Source::OutOfRange
        } else if offset == bounds.high_watermark {
            Source::End
        } else if visible.tail.start().is_some_and(|start| start <= offset) {
            Source::Tail(take(visible.tail.from(offset), max_bytes, whole_first))
        } else {
            Source::Files(self.shards.files(self.key.index))
        };
        Cut { bounds, source }
    }

    /// Looks at the files and the tail together, as a search by time does.
    pub fn search<R>(&self, f: impl FnOnce(Bounds, &FileList, &Tail) -> R) -> R {
        let visible = self.visible.lock();
        let files = self.shards.files(self.key.index);
        f(visible.bounds(), &files, &visible.tail)
    }

    /// Bytes of the records that readers can reach; a file section counts whole.
    pub fn size_bytes(&self) -> u64 {
        self.bytes_by_directory().values().sum()
    }

    /// Where these bytes lie; those that no file holds yet are at home.
    pub fn bytes_by_directory(&self) -> BTreeMap<DirectoryNo, u64> {
        let mut bytes = BTreeMap::new();
        let home = self.shard().map(|shard| shard.home.no).unwrap_or_default();
        self.search(|bounds, files, tail| {
            let tail = tail.iter().map(|batch| batch.payload.len() as u64);
            bytes.insert(home, tail.sum());
            for file in files {
                let section = file.section(self.key);
                if let Some(section) = section.filter(|s| s.end > bounds.log_start) {
                    *bytes.entry(file.directory).or_insert(0) += section.bytes;
                }
            }
        });
        bytes
    }

    /// Bytes in segment files of other directories than the one that it lives in.
    pub fn bytes_elsewhere(&self) -> u64 {
        let home = self.shard().map(|shard| shard.home.no);
        let bytes = self.bytes_by_directory().into_iter();
        let elsewhere = bytes.filter(|(directory, _)| Some(*directory) != home);
        elsewhere.map(|(_, bytes)| bytes).sum()
    }

    /// Takes in a durable batch: it becomes visible, and waiting fetches hear of it.
    pub fn publish(&self, batch: TailBatch, leader_epoch: i32, keep_in_tail: bool) {
        let mut visible = self.visible.lock();
        // Recovery meets batches that the checkpoint's borders count already.
        visible.high_watermark = visible.high_watermark.max(batch.last + 1);
        visible.leader_epoch = visible.leader_epoch.max(leader_epoch);
        let bytes = batch.payload.len() as u64;
        if keep_in_tail {
            visible.tail.push(batch);
        }
        visible.waiters.iter().for_each(|waiter| waiter.add(bytes));
    }

    /// Takes in, at a start, the state that the partition was handed over with. What the directory
    /// had of it before is in segment files, here or elsewhere.
    pub fn publish_hand_over(&self, log_start: Offset, next_offset: Offset, leader_epoch: i32) {
        let mut visible = self.visible.lock();
        visible.log_start = log_start;
        visible.high_watermark = next_offset;
        visible.leader_epoch = leader_epoch;
        visible.tail = Tail::default();
    }

    /// Takes in a durable move of the log start.
    pub fn publish_log_start(&self, log_start: Offset) {
        let mut visible = self.visible.lock();
        visible.log_start = visible.log_start.max(log_start);
        let log_start = visible.log_start;
        visible.tail.drop_below(log_start);
        visible.waiters.iter().for_each(|waiter| waiter.wake());
    }

    /// Takes in the deletion of its topic.
    pub fn publish_deletion(&self) {
        let mut visible = self.visible.lock();
        visible.deleted = true;
        visible.tail = Tail::default();
        visible.waiters.iter().for_each(|waiter| waiter.wake());
    }

    /// Frees the tail up to a flushed position. The segment list has the records by now.
    pub fn free_tail(&self, flushed: Position) {
        self.visible.lock().tail.free_through(flushed);
    }

    /// Registers a waiting fetch; it hears of everything from here on.
    pub fn wait(&self, waiter: &Arc<Waiter>) {
        self.visible.lock().waiters.push(Arc::clone(waiter));
    }

    /// Takes a waiting fetch out.
    pub fn leave(&self, waiter: &Arc<Waiter>) {
        let mut visible = self.visible.lock();
        visible.waiters.retain(|w| !Arc::ptr_eq(w, waiter));
        if visible.waiters.is_empty() {
            visible.waiters = Vec::new();
        }
    }
}

impl Visible {
    fn bounds(&self) -> Bounds {
        Bounds {
            log_start: self.log_start,
            high_watermark: self.high_watermark,
            last_stable: self.high_watermark,
            leader_epoch: self.leader_epoch,
        }
    }
}

/// Batches in order while they fit.
fn take<'a>(
    batches: impl Iterator<Item = &'a TailBatch>,
    max_bytes: usize,
    whole_first: bool,
) -> Vec<Bytes> {
    let mut taken = Vec::new();
    let mut bytes = 0;
    for batch in batches {
        bytes += batch.payload.len();
        if bytes > max_bytes && !(taken.is_empty() && whole_first) {
            break;
        }
        taken.push(batch.payload.clone());
    }
    taken
}
