//! The simulation's disk: a disk in memory behind injected faults, which loses its power (or its
//! process) at an operation that was chosen before.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::clock::SimClock;
use super::random::Random;
use crate::store::backend::faults::{FaultDisk, Op};
use crate::store::backend::memory::MemoryDisk;
use crate::store::backend::{Disk, DiskFile, Space};

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// What was not synced may be gone.
    PowerLoss,
    /// What was written is there to read, and may be gone after a later power loss.
    Kill,
}

/// Clones are handles to the same disk.
#[derive(Clone)]
pub(super) struct SimDisk {
    pub(super) memory: MemoryDisk,
    pub(super) faults: FaultDisk,
    shared: Arc<Shared>,
}

struct Shared {
    on: AtomicBool,
    clock: Arc<SimClock>,
    state: Mutex<State>,
    meanwhile: fn(),
}

struct State {
    random: Random,
    /// Operations that change something, so far.
    changes: u64,
    /// Folds every operation, its name and place.
    digest: u64,
    end_after: Option<(u64, End)>,
    left: Option<MemoryDisk>,
    ended_by: Option<End>,
    /// Writes of segment files that found no space.
    segments_full: u64,
    journal_writes: u64,
    slow_permille: u64,
    /// How many more looks find a sync unfinished.
    stuck: u64,
    /// Somebody waits for such a sync of a file other than the journal's.
    file_stuck: bool,
}

impl SimDisk {
    /// `meanwhile` runs after each operation that changes something.
    pub(super) fn new(
        memory: MemoryDisk,
        clock: Arc<SimClock>,
        seed: u64,
        meanwhile: fn(),
    ) -> Self {
        let faults = FaultDisk::new(Arc::new(memory.clone()), seed ^ 0xfa);
        let state = State {
            random: Random::new(seed),
            changes: 0,
            digest: 0xcbf2_9ce4_8422_2325,
            end_after: None,
            left: None,
            ended_by: None,
            segments_full: 0,
            journal_writes: 0,
            slow_permille: 0,
            stuck: 0,
            file_stuck: false,
        };
        let shared = Shared {
            on: AtomicBool::new(true),
            clock,
            state: Mutex::new(state),
            meanwhile,
        };
        Self {
            memory,
            faults,
            shared: Arc::new(shared),
        }
    }

    /// Ends the process at the operation after `changes` more that change something.
    pub(super) fn end_after(&self, changes: u64, end: End) {
        self.shared.state.lock().end_after = Some((changes, end));
    }

    /// Ends the process now.
    pub(super) fn end_now(&self, end: End) {
        let mut state = self.shared.state.lock();
        self.end(&mut state, end);
    }

    fn end(&self, state: &mut State, end: End) {
        if self.shared.on.swap(false, Ordering::Relaxed) {
            state.ended_by = Some(end);
            state.left = Some(match end {
                End::PowerLoss => self.memory.crash(state.random.next()),
                End::Kill => self.memory.kill(),
            });
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.shared.on.load(Ordering::Relaxed)
    }

    /// What the end left behind.
    pub(super) fn take_left(&self) -> Option<MemoryDisk> {
        self.shared.state.lock().left.take()
    }

    /// How the process ended, if it did.
    pub(super) fn ended_by(&self) -> Option<End> {
        self.shared.state.lock().ended_by
    }

    /// Writes of segment files that found no space so far.
    pub(super) fn segments_full(&self) -> u64 {
        self.shared.state.lock().segments_full
    }

    /// Writes into journal files so far.
    pub(super) fn journal_writes(&self) -> u64 {
        self.shared.state.lock().journal_writes
    }

    /// Operations that changed something, and the digest of all operations.
    pub(super) fn figures(&self) -> (u64, u64) {
        let state = self.shared.state.lock();
        (state.changes, state.digest)
    }

    /// Of 1 000 syncs, how many take up to a second.
    pub(super) fn slow_syncs(&self, permille: u64) {
        self.shared.state.lock().slow_permille = permille;
    }

    /// Lets the device finish no sync before it was looked at so many times.
    pub(super) fn stick(&self, looks: u64) {
        self.shared.state.lock().stuck = looks;
    }

    /// Whether the device is stuck, without a look that brings its end nearer.
    pub(super) fn stays_stuck(&self) -> bool {
        self.shared.state.lock().stuck > 0
    }

    /// Whether a background job waits for a sync that does not come back.
    pub(super) fn is_file_stuck(&self) -> bool {
        self.shared.state.lock().file_stuck
    }

    /// Looks at a sync: whether it is still not finished. Each look takes a moment.
    pub(super) fn is_stuck(&self) -> bool {
        let mut state = self.shared.state.lock();
        if state.stuck == 0 || !self.is_on() {
            return false;
        }
        state.stuck -= 1;
        let took = Duration::from_millis(1 + state.random.below(100));
        self.shared.clock.advance(took);
        true
    }

    fn enter(&self, op: Op, name: &str, number: u64) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        let random = state.digest ^ number;
        state.digest = name.bytes().fold(random, |digest, byte| {
            (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        }) ^ op as u64;
        if changes_something(op) && self.is_on() {
            state.changes += 1;
            state.journal_writes += u64::from(op == Op::Write && name.starts_with("journal"));
            match state.end_after.take() {
                Some((0, end)) => self.end(&mut state, end),
                Some((left, end)) => state.end_after = Some((left - 1, end)),
                None => {}
            }
        }
        if !self.is_on() {
            return Err(io::Error::other("the simulated process has ended"));
        }
        if op == Op::Sync && state.random.below(1000) < state.slow_permille {
            let took = Duration::from_millis(1 + state.random.below(1000));
            self.shared.clock.advance(took);
        }
        Ok(())
    }

    fn leave(&self, op: Op, name: &str) {
        // The journal's writer is in the middle of a step: whoever waits for it would wait forever.
        if changes_something(op) && !name.starts_with("journal") {
            (self.shared.meanwhile)();
        }
    }

    fn run<T>(
        &self,
        op: Op,
        name: &str,
        number: u64,
        f: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        self.enter(op, name, number)?;
        let done = f();
        if let Err(error) = &done
            && error.kind() == io::ErrorKind::StorageFull
            && name.starts_with("segments")
        {
            self.shared.state.lock().segments_full += 1;
        }
        self.leave(op, name);
        done
    }

    fn wrap(&self, name: &str, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(SimFile {
            disk: self.clone(),
            name: name.to_owned(),
            file,
        })
    }
}

fn changes_something(op: Op) -> bool {
    !matches!(op, Op::Open | Op::List | Op::Read)
}

impl Disk for SimDisk {
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.run(Op::Create, name, 0, || self.faults.create(name))?;
        Ok(self.wrap(name, file))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.run(Op::Open, name, 0, || self.faults.open(name))?;
        Ok(self.wrap(name, file))
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.run(Op::List, folder, 0, || self.faults.list(folder))
    }

    fn folders(&self, folder: &str) -> io::Result<Vec<String>> {
        self.run(Op::List, folder, 0, || self.faults.folders(folder))
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        self.run(Op::Delete, name, 0, || self.faults.delete(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.run(Op::Rename, from, 0, || self.faults.rename(from, to))
    }

    fn create_dir(&self, folder: &str) -> io::Result<()> {
        self.run(Op::CreateDir, folder, 0, || self.faults.create_dir(folder))
    }

    fn sync_dir(&self, folder: &str) -> io::Result<()> {
        self.run(Op::SyncDir, folder, 0, || self.faults.sync_dir(folder))
    }

    fn space(&self) -> io::Result<Space> {
        self.faults.space()
    }
}

struct SimFile {
    disk: SimDisk,
    name: String,
    file: Arc<dyn DiskFile>,
}

impl DiskFile for SimFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let number = offset ^ (bytes.len() as u64) << 40;
        self.disk.run(Op::Write, &self.name, number, || {
            self.file.write_at(bytes, offset)
        })
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.disk.run(Op::Read, &self.name, offset, || {
            self.file.read_at(bytes, offset)
        })
    }

    fn read_cached_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        // The journal has its own way to wait: its writer must not be in the middle of a step.
        while !self.name.starts_with("journal") && self.disk.is_stuck() {
            self.disk.shared.state.lock().file_stuck = true;
            (self.disk.shared.meanwhile)();
            self.disk.shared.state.lock().file_stuck = false;
        }
        self.disk.run(Op::Sync, &self.name, 0, || {
            let synced = self.file.sync_data();
            if synced.is_err() {
                self.disk.memory.fail_sync(&self.name);
            }
            synced
        })
    }

    fn start_writeback(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.start_writeback(offset, len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk
            .run(Op::SetLen, &self.name, len, || self.file.set_len(len))
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}
