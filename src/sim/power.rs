//! The power of the machine, which all of its disks lose at once, each with what it had not synced.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::clock::SimClock;
use super::disk::SimDisk;
use super::random::Random;
use crate::store::backend::memory::MemoryDisk;
use crate::types::DirectoryNo;

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// What was not synced may be gone.
    PowerLoss,
    /// What was written is there to read, and may be gone after a later power loss.
    Kill,
}

/// The power, and the process that needs it.
pub(super) struct Power {
    on: AtomicBool,
    memories: Vec<MemoryDisk>,
    state: Mutex<State>,
}

struct State {
    random: Random,
    /// Operations of all disks that change something, so far.
    changes: u64,
    /// Folds every operation, its name and place.
    digest: u64,
    end_after: Option<(u64, End)>,
    left: Option<Vec<MemoryDisk>>,
    ended_by: Option<End>,
}

impl Power {
    fn new(memories: Vec<MemoryDisk>, seed: u64) -> Self {
        let state = State {
            random: Random::new(seed),
            changes: 0,
            digest: 0xcbf2_9ce4_8422_2325,
            end_after: None,
            left: None,
            ended_by: None,
        };
        Self {
            on: AtomicBool::new(true),
            memories,
            state: Mutex::new(state),
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    pub(super) fn below(&self, bound: u64) -> u64 {
        self.state.lock().random.below(bound)
    }

    /// Counts an operation, at which the process may end.
    pub(super) fn count(&self, number: u64, name: &str, op: u64, changes: bool) {
        let mut state = self.state.lock();
        let mixed = state.digest ^ number;
        state.digest = name.bytes().fold(mixed, |digest, byte| {
            (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        }) ^ op;
        if changes && self.is_on() {
            state.changes += 1;
            match state.end_after.take() {
                Some((0, end)) => self.end(&mut state, end),
                Some((left, end)) => state.end_after = Some((left - 1, end)),
                None => {}
            }
        }
    }

    fn end(&self, state: &mut State, end: End) {
        if self.on.swap(false, Ordering::Relaxed) {
            state.ended_by = Some(end);
            let left = self.memories.iter().map(|memory| match end {
                End::PowerLoss => memory.crash(state.random.next()),
                End::Kill => memory.kill(),
            });
            state.left = Some(left.collect());
        }
    }
}

/// The disks of the machine, one for each data directory. Clones are handles to the same ones.
#[derive(Clone)]
pub(super) struct Disks {
    power: Arc<Power>,
    all: Vec<SimDisk>,
}

impl Disks {
    /// `meanwhile` runs after each operation that changes something.
    pub(super) fn new(
        memories: Vec<MemoryDisk>,
        clock: &Arc<SimClock>,
        seed: u64,
        meanwhile: fn(),
    ) -> Self {
        let power = Arc::new(Power::new(memories.clone(), seed));
        let all = (0..).zip(memories).map(|(no, memory)| {
            let (power, clock) = (Arc::clone(&power), Arc::clone(clock));
            SimDisk::new(DirectoryNo(no), memory, power, clock, seed, meanwhile)
        });
        Self {
            all: all.collect(),
            power,
        }
    }

    pub(super) fn of(&self, directory: DirectoryNo) -> &SimDisk {
        &self.all[usize::from(directory.0)]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &SimDisk> {
        self.all.iter()
    }

    /// The number of each.
    pub(super) fn numbers(&self) -> impl Iterator<Item = DirectoryNo> + use<> {
        (0..self.all.len() as u16).map(DirectoryNo)
    }

    /// Ends the process at the operation after `changes` more that change something.
    pub(super) fn end_after(&self, changes: u64, end: End) {
        self.power.state.lock().end_after = Some((changes, end));
    }

    /// Ends the process now.
    pub(super) fn end_now(&self, end: End) {
        let mut state = self.power.state.lock();
        self.power.end(&mut state, end);
    }

    pub(super) fn is_on(&self) -> bool {
        self.power.is_on()
    }

    /// What the end left behind.
    pub(super) fn take_left(&self) -> Option<Vec<MemoryDisk>> {
        self.power.state.lock().left.take()
    }

    /// How the process ended, if it did.
    pub(super) fn ended_by(&self) -> Option<End> {
        self.power.state.lock().ended_by
    }

    /// Operations that changed something, and the digest of all operations.
    pub(super) fn figures(&self) -> (u64, u64) {
        let state = self.power.state.lock();
        (state.changes, state.digest)
    }

    /// What the next process would find if this one were killed now.
    pub(super) fn killed(&self) -> Vec<MemoryDisk> {
        self.iter().map(|disk| disk.memory.kill()).collect()
    }

    /// How often an injected fault struck.
    pub(super) fn fault_hits(&self) -> u64 {
        self.iter().map(|disk| disk.faults.hits()).sum()
    }
}
