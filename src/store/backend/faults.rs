//! Wraps another disk and makes chosen operations fail or hang.

use std::io;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::memory::Random;
use super::{Disk, DiskFile, Space};

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// [`Disk::create`]
    Create,
    /// [`Disk::open`]
    Open,
    /// [`Disk::list`] and [`Disk::folders`]
    List,
    /// [`Disk::delete`]
    Delete,
    /// [`Disk::rename`] (by the old name)
    Rename,
    /// [`Disk::create_dir`]
    CreateDir,
    /// [`Disk::sync_dir`]
    SyncDir,
    /// [`DiskFile::write_at`]
    Write,
    /// [`DiskFile::read_at`] and [`DiskFile::read_cached_at`]
    Read,
    /// [`DiskFile::sync_data`]
    Sync,
    /// [`DiskFile::set_len`]
    SetLen,
}

/// What happens instead of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Fails with EIO; nothing is done.
    Eio,
    /// Fails with ENOSPC; nothing is done.
    Enospc,
    /// Waits for [`FaultDisk::release`], then is done.
    Stall,
    /// A write stores only a random part of its bytes and fails with EIO.
    Torn,
}

/// Which operations a fault hits.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The kind of operation; all if `None`.
    pub op: Option<Op>,
    /// How the file's name starts.
    pub prefix: String,
    /// Matching operations that pass before the first one is hit.
    pub skip: u64,
    /// How many are hit.
    pub times: u64,
    /// Of 1 000 matching operations, how many are hit (1 000: each).
    pub permille: u64,
    /// What they suffer.
    pub fault: Fault,
}

impl Rule {
    /// Hits every `op` on names that start with `prefix`.
    pub fn new(op: Op, prefix: &str, fault: Fault) -> Self {
        let (prefix, times) = (prefix.to_owned(), u64::MAX);
        Self {
            op: Some(op),
            prefix,
            skip: 0,
            times,
            permille: 1000,
            fault,
        }
    }

    /// Lets the first `n` pass.
    pub fn after(mut self, n: u64) -> Self {
        self.skip = n;
        self
    }

    /// Hits at most `n`.
    pub fn times(mut self, n: u64) -> Self {
        self.times = n;
        self
    }
}

/// A disk with faults. Clones share their rules.
#[derive(Clone)]
pub struct FaultDisk {
    inner: Arc<dyn Disk>,
    faults: Arc<Faults>,
}

struct Faults {
    state: Mutex<State>,
    released: Condvar,
}

struct State {
    rules: Vec<Rule>,
    random: Random,
    /// Counts calls of [`FaultDisk::release`].
    releases: u64,
    stalled: usize,
    hits: u64,
}

impl FaultDisk {
    /// Wraps a disk; without rules nothing fails.
    pub fn new(inner: Arc<dyn Disk>, seed: u64) -> Self {
        let state = State {
            rules: Vec::new(),
            random: Random::new(seed),
            releases: 0,
            stalled: 0,
            hits: 0,
        };
        let faults = Faults {
            state: Mutex::new(state),
            released: Condvar::new(),
        };
        Self {
            inner,
            faults: Arc::new(faults),
        }
    }

    /// Adds a rule.
    pub fn add(&self, rule: Rule) {
        self.faults.state.lock().rules.push(rule);
    }

    /// Removes all rules and lets stalled operations go on.
    pub fn clear(&self) {
        self.faults.state.lock().rules.clear();
        self.release();
    }

    /// Lets every operation that is stalled now go on.
    pub fn release(&self) {
        self.faults.state.lock().releases += 1;
        self.faults.released.notify_all();
    }

    /// Operations that are stalled now.
    pub fn stalled(&self) -> usize {
        self.faults.state.lock().stalled
    }

    /// Operations that suffered a fault so far.
    pub fn hits(&self) -> u64 {
        self.faults.state.lock().hits
    }

    fn wrap(&self, name: &str, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(FaultFile {
            file,
            name: name.to_owned(),
            faults: Arc::clone(&self.faults),
        })
    }
}

impl Faults {
    /// Decides about one operation. `Ok(Some(share))` asks a write to store part of its bytes.
    fn check(&self, op: Op, name: &str) -> io::Result<Option<u64>> {
        let mut state = self.state.lock();
        let Some(fault) = state.pick(op, name) else {
            return Ok(None);
        };
        state.hits += 1;
        match fault {
            Fault::Eio => Err(eio()),
            Fault::Enospc => Err(io::Error::from(rustix::io::Errno::NOSPC)),
            Fault::Torn => Ok(Some(state.random.below(1000))),
            Fault::Stall => {
                let seen = state.releases;
                state.stalled += 1;
                while state.releases == seen {
                    self.released.wait(&mut state);
                }
                state.stalled -= 1;
                Ok(None)
            }
        }
    }
}

impl State {
    fn pick(&mut self, op: Op, name: &str) -> Option<Fault> {
        let random = &mut self.random;
        for rule in &mut self.rules {
            if rule.op.is_some_and(|wanted| wanted != op) || !name.starts_with(&rule.prefix) {
                continue;
            }
            if rule.skip > 0 {
                rule.skip -= 1;
                continue;
            }
            if rule.times == 0 || random.below(1000) >= rule.permille {
                continue;
            }
            rule.times -= 1;
            return Some(rule.fault);
        }
        None
    }
}

fn eio() -> io::Error {
    io::Error::from(rustix::io::Errno::IO)
}

impl Disk for FaultDisk {
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.faults.check(Op::Create, name)?;
        Ok(self.wrap(name, self.inner.create(name)?))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.faults.check(Op::Open, name)?;
        Ok(self.wrap(name, self.inner.open(name)?))
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.faults.check(Op::List, folder)?;
        self.inner.list(folder)
    }

    fn folders(&self, folder: &str) -> io::Result<Vec<String>> {
        self.faults.check(Op::List, folder)?;
        self.inner.folders(folder)
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        self.faults.check(Op::Delete, name)?;
        self.inner.delete(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.faults.check(Op::Rename, from)?;
        self.inner.rename(from, to)
    }

    fn create_dir(&self, folder: &str) -> io::Result<()> {
        self.faults.check(Op::CreateDir, folder)?;
        self.inner.create_dir(folder)
    }

    fn sync_dir(&self, folder: &str) -> io::Result<()> {
        self.faults.check(Op::SyncDir, folder)?;
        self.inner.sync_dir(folder)
    }

    fn space(&self) -> io::Result<Space> {
        self.inner.space()
    }
}

struct FaultFile {
    file: Arc<dyn DiskFile>,
    name: String,
    faults: Arc<Faults>,
}

impl DiskFile for FaultFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        match self.faults.check(Op::Write, &self.name)? {
            None => self.file.write_at(bytes, offset),
            Some(share) => {
                let part = (bytes.len() as u64 * share / 1000) as usize;
                self.file.write_at(&bytes[..part], offset)?;
                Err(eio())
            }
        }
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.faults.check(Op::Read, &self.name)?;
        self.file.read_at(bytes, offset)
    }

    fn read_cached_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.faults.check(Op::Read, &self.name)?;
        self.file.read_cached_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.faults.check(Op::Sync, &self.name)?;
        self.file.sync_data()
    }

    fn start_writeback(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.start_writeback(offset, len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.faults.check(Op::SetLen, &self.name)?;
        self.file.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::MemoryDisk;
    use super::*;

    #[test]
    fn the_nth_sync_of_a_name_fails_and_others_pass() {
        let disk = FaultDisk::new(Arc::new(MemoryDisk::new()), 1);
        disk.add(Rule::new(Op::Sync, "a", Fault::Eio).after(1).times(1));
        let (a, b) = (disk.create("a1").unwrap(), disk.create("b1").unwrap());
        b.sync_data().unwrap();
        a.sync_data().unwrap();
        assert_eq!(a.sync_data().unwrap_err().raw_os_error(), Some(5));
        a.sync_data().unwrap();
        disk.add(Rule::new(Op::Create, "", Fault::Enospc));
        assert_eq!(
            disk.create("c").err().unwrap().kind(),
            io::ErrorKind::StorageFull
        );
        assert_eq!(disk.hits(), 2);
    }

    #[test]
    fn a_stalled_write_goes_on_when_released() {
        let disk = FaultDisk::new(Arc::new(MemoryDisk::new()), 1);
        let file = disk.create("a").unwrap();
        disk.add(Rule::new(Op::Write, "a", Fault::Stall).times(1));
        let thread = std::thread::spawn(move || file.write_at(b"x", 0));
        while disk.stalled() == 0 {
            std::thread::yield_now();
        }
        disk.release();
        thread.join().unwrap().unwrap();
    }
}
