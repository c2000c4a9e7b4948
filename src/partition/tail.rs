//! A partition's newest batches, still in the buffers that the journal wrote.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::types::{Offset, Position};

/// One durable batch that no segment holds yet.
#[derive(Clone, Debug)]
pub struct TailBatch {
    /// Offset of its first record.
    pub base: Offset,
    /// Offset of its last record.
    pub last: Offset,
    /// Its max timestamp in milliseconds.
    pub max_timestamp: i64,
    /// Where it is in the journal.
    pub position: Position,
    /// The batch as it is stored, a slice of its group's buffer.
    pub payload: Bytes,
}

/// Batches in offset order.
#[derive(Debug, Default)]
pub struct Tail {
    batches: VecDeque<TailBatch>,
}

impl Tail {
    /// Adds a batch behind all others.
    pub fn push(&mut self, batch: TailBatch) {
        self.batches.push_back(batch);
    }

    /// First offset held.
    pub fn start(&self) -> Option<Offset> {
        self.batches.front().map(|b| b.base)
    }

    /// Batches from the one that holds `offset` on.
    pub fn from(&self, offset: Offset) -> impl Iterator<Item = &TailBatch> {
        let first = self.batches.partition_point(|b| b.last < offset);
        self.batches.range(first..)
    }

    /// All batches.
    pub fn iter(&self) -> impl Iterator<Item = &TailBatch> {
        self.batches.iter()
    }

    /// Drops the batches that a segment holds now.
    pub fn free_through(&mut self, flushed: Position) {
        let keep = self.batches.partition_point(|b| b.position <= flushed);
        self.batches.drain(..keep);
        self.shrink();
    }

    /// Drops the batches that lie wholly below the log start.
    pub fn drop_below(&mut self, log_start: Offset) {
        let keep = self.batches.partition_point(|b| b.last < log_start);
        self.batches.drain(..keep);
        self.shrink();
    }

    /// An idle partition keeps no buffer.
    fn shrink(&mut self) {
        if self.batches.is_empty() && self.batches.capacity() > 0 {
            self.batches = VecDeque::new();
        }
    }
}
