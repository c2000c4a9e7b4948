//! The journal in a small world of its own: one thread, a disk in memory, a clock that moves when
//! told, and a choice at every step that follows from a seed.

use std::sync::atomic::{AtomicU64, Ordering};

use super::super::core::Event;
use super::super::writer::{Outcome, Writer};
use super::*;
use crate::clock::Clock;

/// A clock that moves when told.
#[derive(Default)]
pub(super) struct ManualClock(AtomicU64);

impl ManualClock {
    pub(super) fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn wall_ms(&self) -> i64 {
        0
    }

    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// splitmix64.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// One journal that is stepped by hand.
pub(super) struct World {
    pub(super) disk: MemoryDisk,
    pub(super) options: JournalOptions,
    pub(super) clock: Arc<ManualClock>,
    pub(super) writer: Writer,
    event: Option<Event>,
    /// Payload of every entry, by position from 1.
    pub(super) appended: Vec<Bytes>,
    /// What readers were told.
    pub(super) acked: Position,
    pub(super) trimmed: Position,
    stopped: bool,
}

impl World {
    pub(super) fn new(options: JournalOptions) -> Self {
        Self::on(MemoryDisk::new(), options, Vec::new(), Position(0))
    }

    /// Goes on with a disk that a stop left behind.
    pub(super) fn on(
        disk: MemoryDisk,
        options: JournalOptions,
        mut appended: Vec<Bytes>,
        trimmed: Position,
    ) -> Self {
        let mut opened = FileJournal::open(Arc::new(disk.clone()), options.clone()).unwrap();
        let kept = trimmed.0 as usize + replay(&mut opened, trimmed).unwrap().len();
        appended.truncate(kept);
        let clock = Arc::new(ManualClock::default());
        let writer = opened.into_writer(Arc::clone(&clock) as Arc<dyn Clock>, 0);
        let acked = Position(kept as u64);
        Self {
            disk,
            options,
            clock,
            writer,
            event: None,
            appended,
            acked,
            trimmed,
            stopped: false,
        }
    }

    pub(super) fn append(&mut self, random: &mut Random) {
        let number = self.appended.len() as u64 + 1;
        let len = match random.below(20) {
            0 => 20_000 + random.below(80_000),
            1..5 => random.below(9_000),
            _ => random.below(300),
        };
        self.append_len(number, len as usize);
    }

    pub(super) fn append_len(&mut self, number: u64, len: usize) {
        let entry = entry(number, len);
        self.appended.push(entry.payload.clone());
        assert_eq!(
            self.writer.inbox.push(entry),
            Position(self.appended.len() as u64)
        );
    }

    /// One action of the writer. True while there is something to do without time passing.
    pub(super) fn step(&mut self) -> Result<bool, String> {
        if self.stopped {
            return Ok(false);
        }
        let event = self.event.take().unwrap_or_else(|| self.writer.look());
        match self.writer.step(event)? {
            Outcome::Next(event) => self.event = Some(event),
            Outcome::Idle(_) => return Ok(false),
            Outcome::Committed(group) => self.committed(&group),
            Outcome::Stopped => {
                self.stopped = true;
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn committed(&mut self, group: &Group) {
        for entry in &group.entries {
            assert_eq!(entry.position.0, self.acked.0 + 1);
            assert_eq!(group.payload(entry), self.appended[self.acked.0 as usize]);
            self.acked = entry.position;
        }
        assert_eq!(group.last, self.acked);
    }

    /// Steps until nothing is left to do, time included.
    pub(super) fn settle(&mut self) {
        // A step that was under way may end idle before it saw what was queued last.
        for _ in 0..3 {
            while self.step().unwrap() {}
            self.clock.advance(Duration::from_secs(10));
        }
        assert_eq!(self.acked.0 as usize, self.appended.len());
    }

    pub(super) fn trim(&mut self, through: Position) {
        self.trimmed = self.trimmed.max(through);
        self.writer.inbox.trim(through);
        self.writer.ledger.lock().trim(through);
    }

    /// Opens a disk and checks that it holds a prefix of what was appended, at least up to `least`.
    pub(super) fn check(&self, disk: &MemoryDisk, least: Position) -> usize {
        self.check_as(Arc::new(disk.clone()), least)
    }

    pub(super) fn check_as(&self, disk: Arc<dyn Disk>, least: Position) -> usize {
        let mut opened = FileJournal::open(disk, self.options.clone()).unwrap();
        let kept = replay(&mut opened, self.trimmed).unwrap();
        let from = self.trimmed.0 as usize;
        assert!(
            from + kept.len() >= least.0 as usize,
            "acknowledged entries are lost"
        );
        assert_eq!(kept, self.appended[from..from + kept.len()], "not a prefix");
        from + kept.len()
    }
}
