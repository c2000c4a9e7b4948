//! Power is lost at each operation of a move that changes a disk.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::*;
use crate::store::backend::{DiskFile, Space};

/// Takes the state of all disks before one operation that changes any of them.
struct Witness {
    disks: Vec<MemoryDisk>,
    /// Operations up to that one; 0 takes none.
    left: AtomicU64,
    seed: u64,
    taken: Mutex<Option<Vec<MemoryDisk>>>,
}

impl Witness {
    /// Runs an operation. Nothing else changes a disk meanwhile.
    fn see<R>(&self, operation: impl FnOnce() -> R) -> R {
        let mut taken = self.taken.lock();
        let left = self.left.load(Ordering::Relaxed);
        if left == 1 {
            let disks = self.disks.iter().map(|disk| disk.crash(self.seed));
            *taken = Some(disks.collect());
        }
        self.left.store(left.saturating_sub(1), Ordering::Relaxed);
        operation()
    }
}

struct Watched {
    disk: MemoryDisk,
    witness: Arc<Witness>,
}

struct WatchedFile {
    file: Arc<dyn DiskFile>,
    witness: Arc<Witness>,
}

impl Watched {
    fn file(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        let witness = Arc::clone(&self.witness);
        Arc::new(WatchedFile { file, witness })
    }
}

impl Disk for Watched {
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.witness.see(|| self.disk.create(name))?;
        Ok(self.file(file))
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.file(self.disk.open(name)?))
    }
    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.disk.list(folder)
    }
    fn delete(&self, name: &str) -> io::Result<()> {
        self.witness.see(|| self.disk.delete(name))
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.witness.see(|| self.disk.rename(from, to))
    }
    fn create_dir(&self, folder: &str) -> io::Result<()> {
        self.witness.see(|| self.disk.create_dir(folder))
    }
    fn sync_dir(&self, folder: &str) -> io::Result<()> {
        self.witness.see(|| self.disk.sync_dir(folder))
    }
    fn space(&self) -> io::Result<Space> {
        self.disk.space()
    }
}

impl DiskFile for WatchedFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.witness.see(|| self.file.write_at(bytes, offset))
    }
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_at(bytes, offset)
    }
    fn read_cached_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_cached_at(bytes, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.witness.see(|| self.file.sync_data())
    }
    fn start_writeback(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.start_writeback(offset, len)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.witness.see(|| self.file.set_len(len))
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}

/// What the starts after the power losses found.
#[derive(Debug, Default)]
struct Outcomes {
    stayed: u32,
    resumed: u32,
    moved: u32,
}

impl Store {
    fn is_sealed(&self, shard: u64) -> bool {
        let image = self.opened.catalog.image();
        let topic = image.topic("t").expect("there");
        let span = topic.layout.shard(ShardId(shard)).expect("known");
        span.sealed.is_some()
    }

    fn crash(&self, seed: u64) -> Self {
        let disks = std::iter::once(&self.disk).chain(&self.others);
        let mut disks: Vec<_> = disks.map(|disk| disk.crash(seed)).collect();
        let others = disks.split_off(1);
        self.close();
        Self::open_on(disks.swap_remove(0), others)
    }
}

/// Runs a move, the checkpoints around it and the copying behind it; gives the disks as they were
/// at its `at`-th operation, if there are so many.
fn run(at: u64, shard: u64, to: DirectoryNo) -> Option<(Vec<MemoryDisk>, Arc<Topic>)> {
    let disks = vec![MemoryDisk::new(), MemoryDisk::new()];
    let witness = Arc::new(Witness {
        disks: disks.clone(),
        left: AtomicU64::new(0),
        seed: at,
        taken: Mutex::new(None),
    });
    let watched = disks.iter().map(|disk| {
        let (disk, witness) = (disk.clone(), Arc::clone(&witness));
        Arc::new(Watched { disk, witness }) as Arc<dyn Disk>
    });
    let opened = Store::open_disks(watched.collect(), 1 << 20, Vec::new());
    let mut store = Store {
        disk: disks[0].clone(),
        others: disks[1..].to_vec(),
        faults: FaultDisk::new(Arc::new(disks[0].clone()), 1),
        opened: opened.expect("it opens"),
    };
    store.create_topic_in_shards("t", 4, 2);
    store.sync();
    let topic = store.topic("t").expect("created");
    send(&store, &topic, &ALL, 0, 3);
    store.sync();
    store.checkpoint();
    send(&store, &topic, &ALL, 3, 6);
    store.sync();
    witness.left.store(at, Ordering::Relaxed);
    store.move_shard(&topic, shard, to).expect("moved");
    store.checkpoint();
    store.settle_files();
    store.checkpoint();
    witness.left.store(0, Ordering::Relaxed);
    let taken = witness.taken.lock().take();
    store.close();
    taken.map(|disks| (disks, topic))
}

/// What was acknowledged is there after a power loss at that operation, and a start carries the
/// move out if it was about to be made. False if there is no such operation.
fn lose_power_at(at: u64, shard: u64, to: DirectoryNo, outcomes: &mut Outcomes) -> bool {
    let Some((disks, topic)) = run(at, shard, to) else {
        return false;
    };
    let again = Store::open_on(disks[0].clone(), disks[1..].to_vec());
    check(&again, &topic, 6);
    again.assert_sound();
    let before = again.is_sealed(shard);
    again.opened.registry.resume_moves();
    match (before, again.is_sealed(shard)) {
        (true, _) => outcomes.moved += 1,
        (false, true) => outcomes.resumed += 1,
        (false, false) => outcomes.stayed += 1,
    }
    send(&again, &topic, &ALL, 6, 9);
    again.sync();
    let mut last = again.crash(at + 1);
    check(&last, &topic, 9);
    last.settle_files();
    last.checkpoint();
    check(&last, &topic, 9);
    last.assert_sound();
    let last = last.crash(at + 2);
    check(&last, &topic, 9);
    last.assert_sound();
    last.close();
    true
}

#[test]
fn power_may_be_lost_at_each_step_of_a_move() {
    for (shard, to) in [(1, SECOND), (2, FIRST)] {
        let mut outcomes = Outcomes::default();
        let mut at = 1;
        while lose_power_at(at, shard, to, &mut outcomes) {
            at += 1;
        }
        let Outcomes {
            stayed,
            resumed,
            moved,
        } = outcomes;
        assert!(stayed > 0 && resumed > 0 && moved > 0, "{outcomes:?}");
    }
}
