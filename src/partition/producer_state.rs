//! What a partition remembers of idempotent producers (KIP-98, KIP-360).
//!
//! Per producer id: its epoch and its last five batches. A batch that is in the window is a
//! duplicate and gets the original's offset; the next one must continue the sequence.

use std::collections::BTreeMap;

use crate::types::{Offset, Position};

/// Batches remembered for each producer, as many as a client may have in flight.
pub const WINDOW: usize = 5;

/// About what a producer takes in the map of its partition, whose nodes are half full, and in the
/// list of those idle longest.
const PRODUCER_BYTES: u64 = 114;
/// What a map takes however few producers are in it.
const MAP_BYTES: u64 = 512;

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
    pub window: Vec<WindowBatch>,
}

impl Producer {
    /// Where its last batch is in the journal.
    pub fn last_position(&self) -> Position {
        self.window.last().map_or(Position(0), |b| b.position)
    }

    /// About what it takes in memory.
    pub fn bytes(&self) -> u64 {
        PRODUCER_BYTES + (self.window.capacity() * size_of::<WindowBatch>()) as u64
    }
}

/// Which producers a partition may remember.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Beyond so many one is forgotten for each that comes.
    pub cap: usize,
    /// One whose last batch lies behind this is kept: its retry has to wait for that batch.
    pub durable: Position,
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
    /// The producer is younger than the partition, so that what it writes there starts at 0.
    pub is_younger: bool,
}

impl Claim {
    fn last_sequence(&self) -> i32 {
        add_sequence(self.first_sequence, self.last_offset_delta)
    }
}

/// A batch that was given its place.
#[derive(Clone, Copy)]
pub struct Placed {
    /// Offset of its first record.
    pub base_offset: Offset,
    /// Its max timestamp, or the append time of a LogAppendTime topic.
    pub timestamp: i64,
    /// Its place in the journal.
    pub position: Position,
    /// The time of [`crate::partition::shard::Now::steady_ms`].
    pub now_ms: i64,
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

/// All producers of one partition.
#[derive(Clone, Debug, Default)]
pub struct Producers {
    by_id: BTreeMap<i64, Producer>,
    /// What they take in memory, but for the map itself.
    bytes: u64,
    /// Some of those idle longest with the places of their last batches, the oldest at the end. One
    /// that has sent again since, or is gone, does not count.
    idle: Vec<(Position, i64)>,
}

impl PartialEq for Producers {
    fn eq(&self, other: &Self) -> bool {
        self.by_id == other.by_id
    }
}

impl Eq for Producers {}

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
        match producer.window.last() {
            Some(last) if claim.first_sequence == add_sequence(last.last_sequence, 1) => {
                Verdict::Append
            }
            None => Verdict::Append,
            Some(_) => Verdict::OutOfOrderSequence,
        }
    }

    /// Remembers an appended batch. Where there is no room for another producer the one idle longest
    /// is forgotten; says whether one was.
    pub fn record(&mut self, claim: &Claim, placed: Placed, room: Room) -> bool {
        let full = self.by_id.len() >= room.cap.max(1);
        let forgotten = full && !self.knows(claim.producer_id) && self.forget_oldest(room.durable);
        let producer = self
            .by_id
            .entry(claim.producer_id)
            .or_insert_with(|| Producer {
                epoch: claim.epoch,
                last_used_ms: placed.now_ms,
                window: Vec::new(),
            });
        let before = match producer.window.is_empty() {
            true => 0,
            false => producer.bytes(),
        };
        if producer.epoch != claim.epoch {
            producer.epoch = claim.epoch;
            producer.window.clear();
        }
        if producer.window.len() == WINDOW {
            producer.window.remove(0);
        }
        producer.last_used_ms = placed.now_ms;
        // Many producers send only once: room for a whole window would be wasted on them.
        producer.window.reserve_exact(1);
        producer.window.push(WindowBatch {
            first_sequence: claim.first_sequence,
            last_sequence: claim.last_sequence(),
            base_offset: placed.base_offset,
            timestamp: placed.timestamp,
            position: placed.position,
        });
        self.bytes = self.bytes + producer.bytes() - before;
        forgotten
    }

    /// Forgets the producer idle longest, by place in the journal, which a restart does not change.
    fn forget_oldest(&mut self, durable: Position) -> bool {
        loop {
            let Some(&(position, id)) = self.idle.last() else {
                self.look_for_idle();
                if self.idle.is_empty() {
                    return false;
                }
                continue;
            };
            let known = self.by_id.get(&id);
            let is_idle = known.is_some_and(|p| p.last_position() == position);
            // All others are younger than it.
            if is_idle && position > durable {
                return false;
            }
            self.idle.pop();
            if is_idle && let Some(gone) = self.by_id.remove(&id) {
                self.bytes -= gone.bytes();
                return true;
            }
        }
    }

    /// Looks for an eighth of all, those idle longest. Who sends after that stands behind all of
    /// them in the journal, so this is done once for so many that came or sent again.
    fn look_for_idle(&mut self) {
        let age = |(id, p): (&i64, &Producer)| (p.last_position(), p.last_used_ms, *id);
        let mut ages: Vec<_> = self.by_id.iter().map(age).collect();
        let count = ages.len().div_ceil(8);
        if count < ages.len() {
            ages.select_nth_unstable(count);
            ages.truncate(count);
        }
        ages.sort_unstable();
        let idle = ages.iter().rev().map(|(position, _, id)| (*position, *id));
        self.idle = idle.collect();
    }

    /// Forgets all whose last batch is at `position` or before; returns how many.
    pub fn forget_through(&mut self, position: Position) -> u64 {
        let before = self.by_id.len();
        self.retain(|producer| producer.last_position() > position);
        (before - self.by_id.len()) as u64
    }

    fn retain(&mut self, mut keep: impl FnMut(&Producer) -> bool) {
        let bytes = &mut self.bytes;
        self.by_id.retain(|_, producer| {
            let keep = keep(producer);
            if !keep {
                *bytes -= producer.bytes();
            }
            keep
        });
    }

    /// Whether the producer is remembered.
    pub fn knows(&self, id: i64) -> bool {
        self.by_id.contains_key(&id)
    }

    /// About what they take in memory.
    pub fn bytes(&self) -> u64 {
        match self.by_id.is_empty() {
            true => 0,
            false => MAP_BYTES + self.bytes,
        }
    }

    /// Forgets producers that were idle for longer than `expiration_ms`. Only time since
    /// `started_ms` counts: what the clocks did before, or while the process was down, is not
    /// known, and a producer that is forgotten too early gets its retries written twice.
    pub fn expire(&mut self, now_ms: i64, started_ms: i64, expiration_ms: i64) {
        self.retain(|producer| {
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

    /// Says of every batch that it stands at this place of a journal: where the partition's state
    /// was handed over, after the batches themselves were durable in another one.
    pub fn stand_at(&mut self, position: Position) {
        let windows = self.by_id.values_mut().map(|p| &mut p.window);
        for batch in windows.flatten() {
            batch.position = position;
        }
    }

    /// Puts a producer back as a checkpoint kept it.
    pub fn restore(&mut self, id: i64, producer: Producer) {
        self.idle.clear();
        self.bytes += producer.bytes();
        if let Some(before) = self.by_id.insert(id, producer) {
            self.bytes -= before.bytes();
        }
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
            is_younger: false,
        }
    }

    fn placed(base_offset: i64, position: u64, now_ms: i64) -> Placed {
        Placed {
            base_offset,
            timestamp: 0,
            position: Position(position),
            now_ms,
        }
    }

    const ROOM: Room = Room {
        cap: 10,
        durable: Position(u64::MAX),
    };

    fn with(batches: &[(i16, i32, i32)]) -> Producers {
        let mut producers = Producers::default();
        let mut offset = 0;
        for (n, (epoch, first, count)) in batches.iter().enumerate() {
            let c = claim(*epoch, *first, *count);
            producers.record(&c, placed(offset, n as u64 + 1, 0), ROOM);
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
                is_younger: false,
            };
            let room = Room { cap: 3, ..ROOM };
            let forgotten = producers.record(&c, placed(id, 1, id), room);
            assert_eq!(forgotten, id == 3);
        }
        let ids: Vec<_> = producers.iter().map(|(id, _)| id).collect();
        assert_eq!(ids, vec![1, 2, 3]);
    }

    fn one_each(ids: std::ops::Range<i64>) -> Producers {
        let mut producers = Producers::default();
        for id in ids {
            let c = Claim {
                producer_id: id,
                ..claim(0, 0, 1)
            };
            producers.record(&c, placed(id, id as u64 + 1, 0), Room { cap: 100, ..ROOM });
        }
        producers
    }

    #[test]
    fn a_producer_whose_last_batch_is_not_durable_is_kept() {
        let mut producers = one_each(0..3);
        for (id, durable, left) in [
            (3, 0, vec![0, 1, 2, 3]),
            (4, 2, vec![1, 2, 3, 4]),
            (5, 2, vec![2, 3, 4, 5]),
            (6, 2, vec![2, 3, 4, 5, 6]),
        ] {
            let c = Claim {
                producer_id: id,
                ..claim(0, 0, 1)
            };
            let durable = Position(durable);
            let position = id as u64 + 1;
            producers.record(&c, placed(id, position, 0), Room { cap: 3, durable });
            assert_eq!(producers.iter().map(|(id, _)| id).collect::<Vec<_>>(), left);
        }
    }

    /// It happens under the lock of the shard.
    #[test]
    fn a_new_producer_at_the_cap_does_not_look_at_all_others() {
        const CAP: usize = 10_000;
        let mut producers = Producers::default();
        let begun = std::time::Instant::now();
        for n in 0..100_000 {
            let c = Claim {
                producer_id: n,
                ..claim(0, 0, 1)
            };
            let room = Room { cap: CAP, ..ROOM };
            producers.record(&c, placed(n, n as u64 + 1, 0), room);
        }
        let first = producers.iter().next().map(|(id, _)| id);
        assert_eq!((producers.len(), first), (CAP, Some(90_000)));
        // Without optimization it takes a minute if each looks at all.
        let took = begun.elapsed();
        assert!(took < std::time::Duration::from_secs(10), "{took:?}");
    }

    #[test]
    fn those_idle_longest_are_forgotten_by_their_place_in_the_journal() {
        let mut producers = one_each(0..10);
        let c = Claim {
            producer_id: 0,
            ..claim(0, 1, 1)
        };
        producers.record(&c, placed(10, 11, 0), ROOM);
        assert_eq!(producers.forget_through(Position(4)), 3);
        let left: Vec<_> = producers.iter().map(|(id, _)| id).collect();
        assert_eq!(left, [0, 4, 5, 6, 7, 8, 9]);
    }

    proptest! {
        #[test]
        fn the_bytes_are_the_sum_of_what_is_there(
            steps in prop::collection::vec((0..4i64, 0..2i16, 0..3u8), 1..60),
        ) {
            let mut producers = Producers::default();
            for (n, (id, epoch, what)) in steps.iter().enumerate() {
                let c = Claim { producer_id: *id, ..claim(*epoch, 0, 1) };
                let at = n as u64 + 1;
                match what {
                    0 => drop(producers.forget_through(Position(at / 2))),
                    1 => producers.expire(at as i64, 0, 10),
                    _ => drop(producers.record(&c, placed(0, at, at as i64), Room { cap: 3, ..ROOM })),
                }
                let sum: u64 = producers.iter().map(|(_, p)| p.bytes()).sum();
                let map = if producers.is_empty() { 0 } else { MAP_BYTES };
                prop_assert_eq!(producers.bytes(), sum + map);
            }
        }

        /// Which one goes is decided anew each time, as far as anybody can see.
        #[test]
        fn the_one_that_goes_is_always_the_one_idle_longest(
            steps in prop::collection::vec((0..40i64, 0..12u8, 0..8u64), 1..400),
        ) {
            let mut producers = Producers::default();
            let mut model: BTreeMap<i64, u64> = BTreeMap::new();
            for (n, (id, what, behind)) in steps.iter().enumerate() {
                let at = n as u64 + 1;
                let c = Claim { producer_id: *id, ..claim(0, 0, 1) };
                let c = Claim { epoch: at as i16, ..c };
                let durable = at.saturating_sub(*behind);
                match what {
                    0 => {
                        producers.forget_through(Position(at.saturating_sub(30)));
                        model.retain(|_, last| *last > at.saturating_sub(30));
                    }
                    1 => {
                        let old = producers.iter().next().map(|(id, p)| (id, p.clone()));
                        if let Some((id, old)) = old {
                            producers.restore(id, old);
                        }
                    }
                    _ => {
                        let durable = Position(durable);
                        producers.record(&c, placed(0, at, 0), Room { cap: 17, durable });
                        if model.len() >= 17 && !model.contains_key(id) {
                            let last = |(id, last): (&i64, &u64)| (*last, *id);
                            let oldest = model.iter().map(last).min();
                            let oldest = oldest.filter(|(last, _)| *last <= durable.0);
                            oldest.map(|(_, id)| model.remove(&id));
                        }
                        model.insert(*id, at);
                    }
                }
                let left = producers.iter().map(|(id, p)| (id, p.last_position().0));
                prop_assert!(left.eq(model.iter().map(|(id, last)| (*id, *last))));
            }
        }

        #[test]
        fn a_continued_sequence_is_always_taken(counts in prop::collection::vec(1..50i32, 1..40)) {
            let mut producers = Producers::default();
            let (mut sequence, mut offset) = (0, 0);
            for (n, count) in counts.iter().enumerate() {
                let c = claim(0, sequence, *count);
                prop_assert_eq!(producers.check(&c), Verdict::Append);
                producers.record(&c, placed(offset, n as u64 + 1, 0), ROOM);
                let is_duplicate = matches!(producers.check(&c), Verdict::Duplicate(_));
                prop_assert!(is_duplicate);
                sequence += count;
                offset += i64::from(*count);
            }
        }
    }
}
