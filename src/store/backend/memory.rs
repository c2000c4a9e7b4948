//! A disk in memory that knows which bytes and names a power cut would take back.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Disk, DiskFile, Space};

/// Bytes that reach the medium together or not at all are one sector; a page is what is tracked.
const PAGE: usize = 4096;
const SECTOR: usize = 512;

/// A disk in memory. Clones are handles to the same disk.
#[derive(Clone, Default)]
pub struct MemoryDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    names: BTreeMap<String, Arc<Mutex<Inode>>>,
    folders: Vec<String>,
    /// Names as they were when every earlier change had been synced, and the changes since.
    durable_names: BTreeMap<String, Arc<Mutex<Inode>>>,
    changes: Vec<Change>,
    capacity: Option<u64>,
}

#[derive(Clone)]
struct Change {
    kind: ChangeKind,
    synced: bool,
}

#[derive(Clone)]
enum ChangeKind {
    Create(String, Arc<Mutex<Inode>>),
    Delete(String),
    Rename(String, String),
}

#[derive(Clone, Default)]
struct Inode {
    bytes: Vec<u8>,
    /// Content, as a crash would find it, of each page written since the last sync.
    before: BTreeMap<usize, Vec<u8>>,
    /// The same of pages whose sync failed: they count as clean, and later syncs pass them over.
    lost: BTreeMap<usize, Vec<u8>>,
    durable_len: usize,
}

impl MemoryDisk {
    /// An empty disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// The disk as it would be found if the power failed now: un-synced pages are there, not
    /// there or torn, and un-synced names are there up to some change, or some of them, as `seed`
    /// has it.
    /// This disk stays as it is.
    pub fn crash(&self, seed: u64) -> MemoryDisk {
        let state = self.state.lock();
        let mut random = Random::new(seed);
        let open = state.changes.iter().filter(|c| !c.synced).count() as u64;
        // File systems keep the order of names as a rule, and no standard asks them to.
        let mut kept = match random.below(3) {
            0 => None,
            _ => Some(random.below(open + 1)),
        };
        let mut names = state.durable_names.clone();
        for change in &state.changes {
            let is_kept = match &mut kept {
                _ if change.synced => true,
                None => random.below(2) == 0,
                Some(0) => false,
                Some(left) => {
                    *left -= 1;
                    true
                }
            };
            if !is_kept {
                continue;
            }
            apply(&mut names, &change.kind);
        }
        let names = names
            .into_iter()
            .map(|(name, inode)| (name, Arc::new(Mutex::new(inode.lock().crash(&mut random)))))
            .collect::<BTreeMap<_, _>>();
        Self::from_parts(names.clone(), names, Vec::new(), &state)
    }

    /// The disk as a new process finds it after this one was killed: everything written is there
    /// to read, and what was not synced may still be lost by a later [`MemoryDisk::crash`].
    pub fn kill(&self) -> MemoryDisk {
        let state = self.state.lock();
        let mut copies: Vec<[Arc<Mutex<Inode>>; 2]> = Vec::new();
        let mut copy = |inode: &Arc<Mutex<Inode>>| {
            if let Some([_, new]) = copies.iter().find(|[old, _]| Arc::ptr_eq(old, inode)) {
                return Arc::clone(new);
            }
            let new = Arc::new(Mutex::new(inode.lock().clone()));
            copies.push([Arc::clone(inode), Arc::clone(&new)]);
            new
        };
        let names = state
            .names
            .iter()
            .map(|(n, i)| (n.clone(), copy(i)))
            .collect();
        let durable = state
            .durable_names
            .iter()
            .map(|(n, i)| (n.clone(), copy(i)))
            .collect();
        let changes = state
            .changes
            .iter()
            .map(|change| Change {
                kind: match &change.kind {
                    ChangeKind::Create(name, inode) => {
                        ChangeKind::Create(name.clone(), copy(inode))
                    }
                    other => other.clone(),
                },
                synced: change.synced,
            })
            .collect();
        Self::from_parts(names, durable, changes, &state)
    }

    fn from_parts(
        names: BTreeMap<String, Arc<Mutex<Inode>>>,
        durable_names: BTreeMap<String, Arc<Mutex<Inode>>>,
        changes: Vec<Change>,
        old: &State,
    ) -> MemoryDisk {
        let folders = old.folders.clone();
        let state = State {
            names,
            folders,
            durable_names,
            changes,
            capacity: old.capacity,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Flips bits of a stored byte, behind everybody's back. False if there is no such byte.
    pub fn flip(&self, name: &str, offset: u64, mask: u8) -> bool {
        let Some(inode) = self.state.lock().names.get(name).cloned() else {
            return false;
        };
        let mut inode = inode.lock();
        let at = offset as usize;
        if let Some(page) = inode.before.get_mut(&(at / PAGE))
            && let Some(byte) = page.get_mut(at % PAGE)
        {
            *byte ^= mask;
        }
        inode.bytes.get_mut(at).map(|byte| *byte ^= mask).is_some()
    }

    /// What a failed sync does on Linux: the pages count as clean from then on and are not on the
    /// device. Only writing them again makes a later sync take them along.
    pub fn fail_sync(&self, name: &str) {
        let inode = self.state.lock().names.get(name).cloned();
        if let Some(inode) = inode {
            let mut inode = inode.lock();
            let before = std::mem::take(&mut inode.before);
            for (page, bytes) in before {
                inode.lost.entry(page).or_insert(bytes);
            }
        }
    }

    /// A file's bytes.
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let inode = self.state.lock().names.get(name).cloned()?;
        let bytes = inode.lock().bytes.clone();
        Some(bytes)
    }

    /// Limits the bytes that all files together may hold; writes beyond it find no space.
    pub fn set_capacity(&self, capacity: Option<u64>) {
        self.state.lock().capacity = capacity;
    }

    /// Every file name on the disk, with its folder.
    pub fn names(&self) -> Vec<String> {
        self.state.lock().names.keys().cloned().collect()
    }
}

fn apply(names: &mut BTreeMap<String, Arc<Mutex<Inode>>>, change: &ChangeKind) {
    match change {
        ChangeKind::Create(name, inode) => {
            names.insert(name.clone(), Arc::clone(inode));
        }
        ChangeKind::Delete(name) => {
            names.remove(name);
        }
        ChangeKind::Rename(from, to) => {
            if let Some(inode) = names.remove(from) {
                names.insert(to.clone(), inode);
            }
        }
    }
}

fn folder_of(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(folder, _)| folder)
}

fn not_found(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("no file {name}"))
}

impl State {
    fn used(&self) -> u64 {
        self.names
            .values()
            .map(|inode| inode.lock().bytes.len() as u64)
            .sum()
    }

    fn record(&mut self, kind: ChangeKind) {
        apply(&mut self.names, &kind);
        self.changes.push(Change {
            kind,
            synced: false,
        });
    }

    /// Moves the synced changes at the front of the log into the durable names.
    fn fold(&mut self) {
        let done = self.changes.iter().take_while(|c| c.synced).count();
        for change in self.changes.drain(..done) {
            apply(&mut self.durable_names, &change.kind);
        }
    }
}

impl Disk for MemoryDisk {
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.state.lock();
        if state.names.contains_key(name) {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                format!("{name} exists"),
            ));
        }
        let folder = folder_of(name);
        if !folder.is_empty() && !state.folders.iter().any(|f| f == folder) {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("no folder {folder}"),
            ));
        }
        let inode = Arc::new(Mutex::new(Inode::default()));
        state.record(ChangeKind::Create(name.to_owned(), Arc::clone(&inode)));
        Ok(Arc::new(MemoryFile {
            inode,
            disk: self.clone(),
        }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let inode = self.state.lock().names.get(name).cloned();
        let inode = inode.ok_or_else(|| not_found(name))?;
        Ok(Arc::new(MemoryFile {
            inode,
            disk: self.clone(),
        }))
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let state = self.state.lock();
        let inside = state.names.keys().filter(|name| folder_of(name) == folder);
        Ok(inside
            .filter_map(|name| name.rsplit('/').next())
            .map(str::to_owned)
            .collect())
    }

    fn folders(&self, folder: &str) -> io::Result<Vec<String>> {
        let state = self.state.lock();
        let inside = state
            .folders
            .iter()
            .filter(|name| folder_of(name) == folder);
        let mut names: Vec<_> = inside
            .filter_map(|name| name.rsplit('/').next())
            .map(str::to_owned)
            .collect();
        names.sort_unstable();
        Ok(names)
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        let mut state = self.state.lock();
        if !state.names.contains_key(name) {
            return Err(not_found(name));
        }
        state.record(ChangeKind::Delete(name.to_owned()));
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state.lock();
        if !state.names.contains_key(from) {
            return Err(not_found(from));
        }
        state.record(ChangeKind::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn create_dir(&self, folder: &str) -> io::Result<()> {
        let mut state = self.state.lock();
        let mut path = String::new();
        for part in folder.split('/') {
            if !path.is_empty() {
                path.push('/');
            }
            path.push_str(part);
            if !state.folders.contains(&path) {
                state.folders.push(path.clone());
            }
        }
        Ok(())
    }

    fn sync_dir(&self, folder: &str) -> io::Result<()> {
        let mut state = self.state.lock();
        for change in &mut state.changes {
            let name = match &change.kind {
                ChangeKind::Create(name, _) | ChangeKind::Delete(name) => name,
                ChangeKind::Rename(_, to) => to,
            };
            change.synced |= folder_of(name) == folder;
        }
        state.fold();
        Ok(())
    }

    fn space(&self) -> io::Result<Space> {
        let state = self.state.lock();
        let total = state.capacity.unwrap_or(1 << 40);
        Ok(Space {
            free: total.saturating_sub(state.used()),
            total,
        })
    }
}

impl Inode {
    fn crash(&self, random: &mut Random) -> Inode {
        let (low, high) = (
            self.durable_len.min(self.bytes.len()),
            self.durable_len.max(self.bytes.len()),
        );
        let len = match random.below(3) {
            0 => self.durable_len,
            1 => self.bytes.len(),
            _ => low + random.below((high - low + 1) as u64) as usize,
        };
        let mut bytes = self.bytes.clone();
        bytes.resize(self.bytes.len().max(self.durable_len), 0);
        for (page, before) in self.before.iter().chain(&self.lost) {
            let start = page * PAGE;
            let end = (start + PAGE).min(bytes.len());
            let fate = random.below(4);
            for sector in (start..end).step_by(SECTOR) {
                let keep = match fate {
                    0 => true,
                    1 | 2 => false,
                    _ => random.below(2) == 0,
                };
                if !keep {
                    let stop = (sector + SECTOR).min(end);
                    bytes[sector..stop].fill(0);
                    let old = before.get(sector - start..).unwrap_or_default();
                    let old = &old[..old.len().min(stop - sector)];
                    bytes[sector..sector + old.len()].copy_from_slice(old);
                }
            }
        }
        bytes.resize(len, 0);
        Inode {
            durable_len: len,
            bytes,
            before: BTreeMap::new(),
            lost: BTreeMap::new(),
        }
    }

    /// Remembers what a crash would find in the pages of a range that is about to change.
    fn remember(&mut self, start: usize, end: usize) {
        for page in start / PAGE..end.div_ceil(PAGE) {
            let bytes = &self.bytes;
            let lost = self.lost.remove(&page);
            self.before.entry(page).or_insert_with(|| {
                if let Some(lost) = lost {
                    return lost;
                }
                let from = (page * PAGE).min(bytes.len());
                bytes[from..(page * PAGE + PAGE).min(bytes.len())].to_vec()
            });
        }
    }
}

struct MemoryFile {
    inode: Arc<Mutex<Inode>>,
    disk: MemoryDisk,
}

impl MemoryFile {
    fn room_for(&self, growth: usize) -> io::Result<()> {
        let state = self.disk.state.lock();
        match state.capacity {
            Some(capacity) if state.used() + growth as u64 > capacity => {
                Err(io::Error::from(io::ErrorKind::StorageFull))
            }
            _ => Ok(()),
        }
    }
}

impl DiskFile for MemoryFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let start = offset as usize;
        let end = start + bytes.len();
        let growth = end.saturating_sub(self.inode.lock().bytes.len());
        if growth > 0 {
            self.room_for(growth)?;
        }
        let mut inode = self.inode.lock();
        inode.remember(start, end);
        if inode.bytes.len() < end {
            inode.bytes.resize(end, 0);
        }
        inode.bytes[start..end].copy_from_slice(bytes);
        Ok(())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let inode = self.inode.lock();
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.saturating_add(bytes.len());
        let stored = inode
            .bytes
            .get(start..end)
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        bytes.copy_from_slice(stored);
        Ok(())
    }

    fn read_cached_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut inode = self.inode.lock();
        inode.before.clear();
        inode.durable_len = inode.bytes.len();
        Ok(())
    }

    fn start_writeback(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let len = len as usize;
        let old = self.inode.lock().bytes.len();
        if len > old {
            self.room_for(len - old)?;
        }
        let mut inode = self.inode.lock();
        inode.remember(len.min(old), len.max(old));
        inode.bytes.resize(len, 0);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.inode.lock().bytes.len() as u64)
    }
}

/// A small generator (splitmix64): the same seed gives the same crash.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synced_bytes_and_names_survive_every_crash() {
        let disk = MemoryDisk::new();
        disk.create_dir("a").unwrap();
        let file = disk.create("a/x").unwrap();
        file.write_at(&[1; 10_000], 0).unwrap();
        file.sync_data().unwrap();
        disk.sync_dir("a").unwrap();
        file.write_at(&[2; 5_000], 5_000).unwrap();
        let _ = disk.create("a/y").unwrap();
        let (mut old, mut new, mut torn, mut named) = (0, 0, 0, 0);
        for seed in 0..200 {
            let after = disk.crash(seed);
            let bytes = after.contents("a/x").unwrap();
            assert_eq!(bytes.len(), 10_000);
            assert!(bytes[..4096].iter().all(|b| *b == 1));
            match bytes[8192..].iter().filter(|b| **b == 2).count() {
                0 => old += 1,
                1808 => new += 1,
                _ => torn += 1,
            }
            named += usize::from(after.contents("a/y").is_some());
        }
        assert!(old > 0 && new > 0 && torn > 0 && named > 0 && named < 200);
        assert_eq!(disk.crash(7).contents("a/x"), disk.crash(7).contents("a/x"));
    }

    #[test]
    fn a_killed_process_leaves_its_writes_to_read_but_not_safe() {
        let disk = MemoryDisk::new();
        let file = disk.create("x").unwrap();
        disk.sync_dir("").unwrap();
        file.write_at(&[7; 100], 0).unwrap();
        let next = disk.kill();
        assert_eq!(next.contents("x").unwrap(), [7; 100]);
        assert!((0..50).any(|seed| next.crash(seed).contents("x").unwrap() != [7; 100]));
        next.open("x").unwrap().sync_data().unwrap();
        assert!((0..50).all(|seed| next.crash(seed).contents("x").unwrap() == [7; 100]));
    }

    #[test]
    fn capacity_is_a_full_disk() {
        let disk = MemoryDisk::new();
        disk.set_capacity(Some(10));
        let file = disk.create("x").unwrap();
        file.write_at(&[1; 10], 0).unwrap();
        assert_eq!(
            file.write_at(&[1; 1], 10).unwrap_err().kind(),
            io::ErrorKind::StorageFull
        );
        file.write_at(&[2; 10], 0).unwrap();
        assert_eq!(disk.space().unwrap().free, 0);
    }
}
