//! What idempotent producers of all partitions may take in memory together.
//!
//! What goes first is decided by the journal: the producer whose last batch is the oldest. A start
//! meets batches in the same order and comes to the same choice, or remembers more than before,
//! because it reads the batches of producers that were forgotten since the checkpoint. Both are
//! safe: a batch of a producer that is not known is taken whatever its sequence, as by Apache
//! Kafka, and one that is known gets its original's offset.

use std::sync::Arc;

use crate::budget::Account;
use crate::partition::directory::Directory;
use crate::partition::producer_state::{Claim, Placed, Room};
use crate::partition::registry::Registry;
use crate::partition::shard::PartitionSequence;
use crate::types::Position;

/// Bounds on the producers that are remembered.
pub struct ProducerBudget {
    /// Producers of one partition.
    pub per_partition: usize,
    /// Bytes of all, and how many were forgotten to keep to them.
    pub account: Account,
}

impl ProducerBudget {
    /// Remembers a batch. `durable` says how far the journal is on stable storage.
    pub fn record(
        &self,
        sequence: &mut PartitionSequence,
        claim: &Claim,
        placed: Placed,
        durable: impl FnOnce() -> Position,
    ) {
        let account = &self.account;
        let producers = sequence.producers.get_or_insert_default();
        let before = producers.bytes();
        let mut room = Room {
            cap: self.per_partition,
            durable: Position(u64::MAX),
        };
        // Well beyond the budget, whoever adds producers pays for them with its own.
        if account.excess() > account.limit() / 4 {
            room.cap = room.cap.min(producers.len());
        }
        if producers.len() >= room.cap && !producers.knows(claim.producer_id) {
            room.durable = durable();
        }
        let forgotten = producers.record(claim, placed, room);
        account.change(before, producers.bytes());
        account.deny(u64::from(forgotten));
    }

    /// Counts what a partition brings along.
    pub fn count(&self, sequence: &PartitionSequence) {
        let bytes = sequence.producers.as_ref().map_or(0, |p| p.bytes());
        self.account.change(0, bytes);
    }

    /// Replaces a partition's state by one that was handed over, or adds to it the producers that
    /// came in a later piece.
    pub fn take_over(
        &self,
        sequence: &mut PartitionSequence,
        handed: PartitionSequence,
        is_first: bool,
    ) {
        if is_first {
            self.forget_all(sequence);
            *sequence = handed;
            self.count(sequence);
            return;
        }
        let before = sequence.producers.as_ref().map_or(0, |p| p.bytes());
        for (id, producer) in handed
            .producers
            .iter()
            .flat_map(|producers| producers.iter())
        {
            let all = sequence.producers.get_or_insert_default();
            all.restore(id, producer.clone());
        }
        let after = sequence.producers.as_ref().map_or(0, |p| p.bytes());
        self.account.change(before, after);
    }

    /// Forgets all producers of a partition that is no more.
    pub fn forget_all(&self, sequence: &mut PartitionSequence) {
        let bytes = sequence.producers.take().map_or(0, |p| p.bytes());
        self.account.change(bytes, 0);
    }
}

impl Registry {
    /// Forgets the producers that were idle longest until a tenth of the budget is free, as far as
    /// a directory's partitions have their part in it: positions in different journals cannot be
    /// compared. One whose last batch is not durable is kept: its retry has to wait for it.
    pub(super) fn bound_producers(&self, directory: &Directory) {
        let account = &self.producers.account;
        let Some(journal) = directory.journal() else {
            return;
        };
        if account.excess() == 0 {
            return;
        }
        let durable = journal.durable();
        let mut idle = Vec::new();
        self.each_sequence(directory, |sequence| {
            let producers = sequence.producers.iter().flat_map(|p| p.iter());
            idle.extend(producers.map(|(_, p)| (p.last_position(), p.bytes())));
        });
        let here: u64 = idle.iter().map(|(_, bytes)| bytes).sum();
        let part = here as f64 / account.used().max(1) as f64;
        let to_free = (account.excess() + account.limit() / 10) as f64 * part.min(1.0);
        let Some(through) = oldest(&mut idle, to_free as u64) else {
            return;
        };
        let through = through.min(durable);
        let mut count = 0;
        self.each_sequence(directory, |sequence| {
            if let Some(producers) = &mut sequence.producers {
                let before = producers.bytes();
                count += producers.forget_through(through);
                account.change(before, producers.bytes());
                if producers.is_empty() {
                    sequence.producers = None;
                }
            }
        });
        if count == 0 {
            return;
        }
        account.deny(count);
        tracing::info!(
            producers = count,
            "budget.producers.bytes is used up: the idempotent producers idle longest were \
             forgotten; should one of them send a batch again, it is written twice"
        );
    }

    /// Looks at every partition of a directory under its shard's lock, which is let go in between.
    fn each_sequence(&self, directory: &Directory, mut look: impl FnMut(&mut PartitionSequence)) {
        let partitions: Vec<_> = self.partitions.iter().map(|p| Arc::clone(&p)).collect();
        for partition in partitions {
            partition.sequenced(|shard, sequence| {
                if shard.is_some_and(|shard| shard.home.no == directory.no) {
                    look(sequence);
                }
            });
        }
    }
}

/// The position up to which the oldest of these make up so many bytes.
fn oldest(idle: &mut [(Position, u64)], bytes: u64) -> Option<Position> {
    idle.sort_unstable();
    let mut sum = 0;
    for (position, size) in idle.iter() {
        sum += size;
        if sum >= bytes {
            return Some(*position);
        }
    }
    idle.last().map(|(position, _)| *position)
}
