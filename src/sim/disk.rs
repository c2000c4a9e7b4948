//! The simulation's disk: a disk in memory behind injected faults, which is gone when its machine's
//! power is.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::clock::SimClock;
use super::power::Power;
use crate::store::backend::faults::{FaultDisk, Op};
use crate::store::backend::memory::MemoryDisk;
use crate::store::backend::{Disk, DiskFile, Space};
use crate::types::DirectoryNo;

/// Clones are handles to the same disk.
#[derive(Clone)]
pub(super) struct SimDisk {
    pub(super) memory: MemoryDisk,
    pub(super) faults: FaultDisk,
    shared: Arc<Shared>,
}

struct Shared {
    no: DirectoryNo,
    power: Arc<Power>,
    clock: Arc<SimClock>,
    state: Mutex<State>,
    meanwhile: fn(),
}

#[derive(Default)]
struct State {
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
        no: DirectoryNo,
        memory: MemoryDisk,
        power: Arc<Power>,
        clock: Arc<SimClock>,
        seed: u64,
        meanwhile: fn(),
    ) -> Self {
        let seed = seed ^ 0xfa ^ u64::from(no.0) << 8;
        let faults = FaultDisk::new(Arc::new(memory.clone()), seed);
        let shared = Shared {
            no,
            power,
            clock,
            state: Mutex::default(),
            meanwhile,
        };
        Self {
            memory,
            faults,
            shared: Arc::new(shared),
        }
    }

    /// Writes of segment files that found no space so far.
    pub(super) fn segments_full(&self) -> u64 {
        self.shared.state.lock().segments_full
    }

    /// Writes into journal files so far.
    pub(super) fn journal_writes(&self) -> u64 {
        self.shared.state.lock().journal_writes
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
        if state.stuck == 0 || !self.shared.power.is_on() {
            return false;
        }
        state.stuck -= 1;
        let took = Duration::from_millis(1 + self.shared.power.below(100));
        self.shared.clock.advance(took);
        true
    }

    fn enter(&self, op: Op, name: &str, number: u64) -> io::Result<()> {
        let (power, changes) = (&self.shared.power, changes_something(op));
        let mut state = self.shared.state.lock();
        let journal = op == Op::Write && name.starts_with("journal");
        state.journal_writes += u64::from(journal && power.is_on());
        let number = number ^ u64::from(self.shared.no.0) << 56;
        power.count(number, name, op as u64, changes);
        if !power.is_on() {
            return Err(io::Error::other("the simulated process has ended"));
        }
        if op == Op::Sync && power.below(1000) < state.slow_permille {
            let took = Duration::from_millis(1 + power.below(1000));
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
