//! What a partition remembers of idempotent producers (KIP-98, KIP-360).
//!
//! Per producer id: its epoch and its last five batches. A batch that is in the window is a
//! duplicate and gets the original's offset; the next one must continue the sequence.

use std::collections::BTreeMap;
use std::collections::VecDeque;

use crate::types::{Offset, Position};

/// Batches remembered for each producer, as many as a client may have in flight.
pub const WINDOW: usize = 5;

/// The epoch of a batch without one.
const NO_EPOCH: i16 = -1;

/// A remembered batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBatch {
    /// Sequence of its first record.
    pub first_sequence: i32,
    /// Sequence of its last record.
    pub last_sequence: i32,
    /// Offset of its first record.
    pub base_offset: Offset,
    /// Its max timestamp, or the append time of a LogAppendTime topic.
    pub timestamp: i64,
    /// Where it is in the journal: a duplicate's answer waits for it.
    pub position: Position,
}

/// One producer id in one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Producer {
    /// The newest epoch seen.
    pub epoch: i16,
    /// When its last batch came: the time of [`crate::partition::shard::Now::steady_ms`].
    pub last_used_ms: i64,
    /// Newest last, at most [`WINDOW`].
    pub window: VecDeque<WindowBatch>,
}

/// The identity and sequence that a batch carries.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// Producer id, 0 or more.
    pub producer_id: i64,
    /// Producer epoch.
    pub epoch: i16,
    /// Sequence of the first record.
    pub first_sequence: i32,
    /// Number of records less one.
    pub last_offset_delta: i32,
}

impl Claim {
    fn last_sequence(&self) -> i32 {
        add_sequence(self.first_sequence, self.last_offset_delta)
    }
}

/// What to do with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It continues the sequence: append it.
    Append,
    /// It is there already.
    Duplicate(WindowBatch),
    /// Its epoch is older than the newest seen.
    InvalidProducerEpoch,
    /// It leaves a gap or goes back further than the window.
    OutOfOrderSequence,
}

/// All producers of one partition, at most `cap` of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Producers {
    by_id: BTreeMap<i64, Producer>,
}

impl Producers {
    /// Judges a batch. Of a producer that is not known any first sequence is taken, as by Apache
    /// Kafka: it may have been forgotten, and one that outlives its topic goes on where it was.
    pub fn check(&self, claim: &Claim) -> Verdict {
        let Some(producer) = self.by_id.get(&claim.producer_id) else {
            return if claim.epoch < NO_EPOCH {
                Verdict::InvalidProducerEpoch
            } else {
                Verdict::Append
            };
        };
        if claim.epoch < producer.epoch {
            return Verdict::InvalidProducerEpoch;
        }
        if claim.epoch > producer.epoch {
            return if claim.first_sequence == 0 {
                Verdict::Append
            } else {
                Verdict::OutOfOrderSequence
            };
        }
        let same = |batch: &&WindowBatch| {
            batch.first_sequence == claim.first_sequence
                && batch.last_sequence == claim.last_sequence()
        };
        if let Some(batch) = producer.window.iter().find(same) {
            return Verdict::Duplicate(*batch);
        }
        match producer.window.back() {
            Some(last) if claim.first_sequence == add_sequence(last.last_sequence, 1) => {
                Verdict::Append
            }
            None => Verdict::Append,
            Some(_) => Verdict::OutOfOrderSequence,
        }
    }

    /// Remembers an appended batch. Beyond `cap` producers the one idle longest is forgotten.
    pub fn record(
        &mut self,
        claim: &Claim,
        base: Offset,
        timestamp: i64,
        at: Position,
        cap: usize,
        now_ms: i64,
    ) {
        if !self.by_id.contains_key(&claim.producer_id) && self.by_id.len() >= cap.max(1) {
            let idle = self
                .by_id
                .iter()
                // By place in the journal, which a restart does not change.
                .min_by_key(|(_, p)| (p.window.back().map(|b| b.position), p.last_used_ms))
                .map(|(id, _)| *id);
            if let Some(id) = idle {
                self.by_id.remove(&id);
            }
        }
        let producer = self
            .by_id
            .entry(claim.producer_id)
            .or_insert_with(|| Producer {
                epoch: claim.epoch,
                last_used_ms: now_ms,
                window: VecDeque::new(),
            });
        if producer.epoch != claim.epoch {
            producer.epoch = claim.epoch;
            producer.window.clear();
        }
        if producer.window.len() == WINDOW {
            producer.window.pop_front();
        }
        producer.last_used_ms = now_ms;
        producer.window.push_back(WindowBatch {
            first_sequence: claim.first_sequence,
            last_sequence: claim.last_sequence(),
            base_offset: base,
            timestamp,
            position: at,
        });
    }

    /// Forgets producers that were idle for longer than `expiration_ms`. Only time since
    /// `started_ms` counts: what the clocks did before, or while the process was down, is not
    /// known, and a producer that is forgotten too early gets its retries written twice.
    pub fn expire(&mut self, now_ms: i64, started_ms: i64, expiration_ms: i64) {
        self.by_id.retain(|_, producer| {
            let used = match producer.last_used_ms > now_ms {
                true => started_ms,
                false => producer.last_used_ms.max(started_ms),
            };
            now_ms.saturating_sub(used) < expiration_ms
        });
    }

    /// Producers in id order.
    pub fn iter(&self) -> impl Iterator<Item = (i64, &Producer)> {
        self.by_id.iter().map(|(id, producer)| (*id, producer))
    }

    /// Puts a producer back as a checkpoint kept it.
    pub fn restore(&mut self, id: i64, producer: Producer) {
        self.by_id.insert(id, producer);
    }

    /// How many producers are remembered.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether none is remembered.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }
}

/// Sequences run from 0 to 2^31 - 1 and start again at 0.
fn add_sequence(sequence: i32, by: i32) -> i32 {
    let sum = i64::from(sequence) + i64::from(by);
    i32::try_from(sum % (i64::from(i32::MAX) + 1)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn claim(epoch: i16, first: i32, count: i32) -> Claim {
        Claim {
            producer_id: 7,
            epoch,
            first_sequence: first,
            last_offset_delta: count - 1,
        }
    }

    fn with(batches: &[(i16, i32, i32)]) -> Producers {
        let mut producers = Producers::default();
        let mut offset = 0;
        for (n, (epoch, first, count)) in batches.iter().enumerate() {
            let c = claim(*epoch, *first, *count);
            producers.record(&c, offset, 0, Position(n as u64 + 1), 10, 0);
            offset += i64::from(*count);
        }
        producers
    }

    #[test]
    fn window_answers_the_last_five_with_their_offsets() {
        let all: Vec<_> = (0..10).map(|n| (0, n, 1)).collect();
        let producers = with(&all);
        for n in 5..10 {
            match producers.check(&claim(0, n, 1)) {
                Verdict::Duplicate(batch) => assert_eq!(batch.base_offset, i64::from(n)),
                other => panic!("sequence {n}: {other:?}"),
            }
        }
        assert_eq!(
            producers.check(&claim(0, 4, 1)),
            Verdict::OutOfOrderSequence
        );
        assert_eq!(
            producers.check(&claim(0, 11, 1)),
            Verdict::OutOfOrderSequence
        );
        assert_eq!(producers.check(&claim(0, 10, 1)), Verdict::Append);
    }

    #[test]
    fn epochs_only_rise_and_start_at_zero() {
        let producers = with(&[(3, 0, 5)]);
        assert_eq!(
            producers.check(&claim(2, 5, 1)),
            Verdict::InvalidProducerEpoch
        );
        assert_eq!(
            producers.check(&claim(4, 5, 1)),
            Verdict::OutOfOrderSequence
        );
        assert_eq!(producers.check(&claim(4, 0, 1)), Verdict::Append);
    }

    #[test]
    fn an_unknown_producer_starts_anywhere() {
        let none = Producers::default();
        assert_eq!(none.check(&claim(0, 17, 1)), Verdict::Append);
        assert_eq!(none.check(&claim(0, 0, 1)), Verdict::Append);
        assert_eq!(none.check(&claim(-2, 0, 1)), Verdict::InvalidProducerEpoch);
    }

    #[test]
    fn sequences_wrap() {
        let producers = with(&[(0, i32::MAX - 1, 3)]);
        assert_eq!(producers.check(&claim(0, 1, 1)), Verdict::Append);
        assert_eq!(
            producers.check(&claim(0, 2, 1)),
            Verdict::OutOfOrderSequence
        );
    }

    #[test]
    fn the_cap_forgets_the_idle_one() {
        let mut producers = Producers::default();
        for id in 0..4 {
            let c = Claim {
                producer_id: id,
                epoch: 0,
                first_sequence: 0,
                last_offset_delta: 0,
            };
            producers.record(&c, id, 0, Position(1), 3, id);
        }
        let ids: Vec<_> = producers.iter().map(|(id, _)| id).collect();
        assert_eq!(ids, vec![1, 2, 3]);
    }

    proptest! {
        #[test]
        fn a_continued_sequence_is_always_taken(counts in prop::collection::vec(1..50i32, 1..40)) {
            let mut producers = Producers::default();
            let (mut sequence, mut offset) = (0, 0);
            for (n, count) in counts.iter().enumerate() {
                let c = claim(0, sequence, *count);
                prop_assert_eq!(producers.check(&c), Verdict::Append);
                producers.record(&c, offset, 0, Position(n as u64 + 1), 10, 0);
                let is_duplicate = matches!(producers.check(&c), Verdict::Duplicate(_));
                prop_assert!(is_duplicate);
                sequence += count;
                offset += i64::from(*count);
            }
        }
    }
}
