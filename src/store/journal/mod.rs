//! The journal: one ordered stream of entries per data directory, made durable in groups.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::watch;

use crate::types::{PartitionKey, Position};

mod core;
mod durable;
mod file;
mod files;
mod group;
pub mod memory;
mod open;
mod options;
mod reader;
mod recover;
mod shortage;
mod stall;
mod verify;
mod writer;

#[cfg(test)]
pub(crate) mod stepped;
#[cfg(test)]
mod tests;

pub use durable::{Durable, Ended};
pub use file::FileJournal;
pub use open::Opened;
pub use options::{JournalError, JournalOptions, JournalStats, ReplaySummary, SyncPolicy};
pub use verify::{DamagedGroup, Verified};

/// What an entry is about. The numbers are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EntryKind {
    /// Records of one partition.
    Batch = 1,
    /// A change of topics, configs or ids.
    Catalog = 2,
    /// Segment files that joined and left the segment lists.
    Segments = 3,
    /// A partition's log start moved up.
    LogStart = 4,
    /// A step in the move of a shard to another data directory.
    Move = 5,
    /// How far the journals of the node's other directories were.
    Witness = 6,
}

/// Work done on an entry's bytes after they were copied into the group buffer.
#[derive(Clone, Copy)]
pub struct Fill {
    /// Numbers for `apply`.
    pub args: [i64; 3],
    /// Patches the copied payload in place.
    pub apply: fn(&mut [u8], [i64; 3]),
}

/// One thing to append.
pub struct Entry {
    /// What the payload is.
    pub kind: EntryKind,
    /// The partition it belongs to; the default key where it belongs to none.
    pub key: PartitionKey,
    /// Copied once into the group buffer, then dropped.
    pub payload: Bytes,
    /// Patch of the copy, if any.
    pub fill: Option<Fill>,
    /// Bytes of tail budget that the entry holds until the tail is freed past it.
    pub charge: u32,
}

/// An entry inside a group's buffer.
#[derive(Clone, Debug)]
pub struct EntryRef {
    /// Its position.
    pub position: Position,
    /// What the payload is.
    pub kind: EntryKind,
    /// The partition it belongs to.
    pub key: PartitionKey,
    /// The payload, in [`Group::buffer`].
    pub range: Range<u32>,
}

/// Entries that became durable together.
#[derive(Clone, Debug)]
pub struct Group {
    /// The whole group as it is on disk; payloads are slices of it.
    pub buffer: Bytes,
    /// In journal order.
    pub entries: Vec<EntryRef>,
    /// Sum of the entries' tail charges (0 after a restart).
    pub charge: u64,
    /// Position of the last entry; for an empty group that of the entry before it.
    pub last: Position,
}

impl Group {
    /// The payload of one of its entries, sharing the group's buffer.
    pub fn payload(&self, entry: &EntryRef) -> Bytes {
        self.buffer
            .slice(entry.range.start as usize..entry.range.end as usize)
    }
}

/// Told of each group in journal order, after it is durable and before
/// [`Journal::durable`] says so.
pub trait Sink: Send + Sync {
    /// Takes a group in. Must not block on the journal.
    fn commit(&self, group: Group);
}

/// An ordered, durable stream of entries.
pub trait Journal: Send + Sync {
    /// Queues an entry and gives it its position. Never blocks and cannot fail: the entry becomes
    /// durable or the process ends.
    fn append(&self, entry: Entry) -> Position;
    /// Every entry up to here is durable (or written, with an interval as sync policy) and was
    /// taken in by the sink.
    fn durable(&self) -> Position;
    /// Every entry up to here is on stable storage, whatever the sync policy.
    fn synced(&self) -> Position {
        self.durable()
    }
    /// Follows [`Journal::durable`].
    fn subscribe(&self) -> watch::Receiver<Position>;
    /// The position given out last.
    fn appended(&self) -> Position;
    /// Says that entries up to and including `through` are not needed for recovery any more.
    fn trim(&self, through: Position);
    /// Bytes of journal that recovery would read now.
    fn live_bytes(&self) -> u64;
    /// What it did so far.
    fn stats(&self) -> JournalStats {
        JournalStats::default()
    }
    /// Files that hold it, and the one that is being written.
    fn live_files(&self) -> u64 {
        1
    }
    /// No space was found for the next journal file: nothing should be appended that can wait.
    fn short_of_space(&self) -> bool {
        false
    }
    /// Waits until every entry appended so far is on stable storage, whatever the sync policy;
    /// false if that will never be. What is published outside the journal (a checkpoint, a deleted
    /// segment file) must not be ahead of what a crash leaves in it. Blocks.
    fn sync(&self) -> bool {
        true
    }
    /// As [`Journal::sync`], but no longer than `at_most`; says whether it is on stable storage.
    fn sync_at_most(&self, _at_most: Duration) -> Result<bool, Ended> {
        match self.sync() {
            true => Ok(true),
            false => Err(Ended),
        }
    }
    /// Blocks this thread until [`Journal::durable`] reaches `position`. False if it never will,
    /// because the journal has ended: then nothing that stands on the entry may be done.
    fn wait(&self, position: Position) -> bool {
        block_until(&mut self.subscribe(), position)
    }
    /// Says that the process is to end: from here on a journal that waits for space gives up after
    /// a while, so that those who wait for it do not keep the process.
    fn end_soon(&self) {}
    /// As [`Journal::wait`], but no longer than `at_most`; says whether it is durable.
    fn wait_at_most(&self, position: Position, at_most: Duration) -> Result<bool, Ended> {
        let until = Instant::now() + at_most;
        let mut durable = self.subscribe();
        loop {
            if *durable.borrow_and_update() >= position {
                return Ok(true);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            if durable.has_changed().is_err() {
                return Err(Ended);
            }
            std::thread::sleep(left.min(Duration::from_millis(1)));
        }
    }
    /// Waits until all entries are durable, marks the last group as synced and stops.
    fn close(&self);
}

/// Waits on a watch from a plain thread; false if its sender is gone first.
fn block_until(durable: &mut watch::Receiver<Position>, position: Position) -> bool {
    let waker = std::task::Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = std::task::Context::from_waker(&waker);
    while *durable.borrow_and_update() < position {
        let mut changed = std::pin::pin!(durable.changed());
        loop {
            match changed.as_mut().poll(&mut context) {
                Poll::Ready(Ok(())) => break,
                Poll::Ready(Err(_)) => return false,
                Poll::Pending => std::thread::park(),
            }
        }
    }
    true
}

struct Unpark(std::thread::Thread);

impl std::task::Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
