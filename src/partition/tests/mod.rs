//! The store as a whole, on a disk in memory whose power can fail at any moment.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;

use crate::catalog::{Environment, NewTopic, Topic};
use crate::clock::SystemClock;
use crate::partition::recovery::{self, Opened, Opening, OpeningDirectory};
use crate::partition::registry::RegistryOptions;
use crate::partition::shard::{Stamping, claim_of};
use crate::partition::{Appended, Partition, Prepared, Refused};
use crate::protocol::batch::{BatchBuilder, BatchInfo, BatchView, Batches};
use crate::store::backend::Disk;
use crate::store::backend::faults::{Fault, FaultDisk, Op, Rule};
use crate::store::backend::memory::MemoryDisk;
use crate::store::journal::{Journal, JournalOptions};
use crate::types::{DirectoryId, Offset, PartitionKey, Place, Position};

mod directories;
mod history;
mod late_files;
mod moves;
mod producers;
mod reshape;
mod times;
mod verify_live;

const STORE: Uuid = Uuid::from_u128(7);

/// An open store on disks in memory, one per data directory.
struct Store {
    disk: MemoryDisk,
    others: Vec<MemoryDisk>,
    /// Makes operations on the first directory fail or hang.
    faults: FaultDisk,
    opened: Opened,
}

impl Store {
    fn open(disk: MemoryDisk) -> Self {
        Self::open_on(disk, Vec::new())
    }

    fn open_with(disk: MemoryDisk, producer_bytes: u64) -> Self {
        Self::try_open_with(disk, Vec::new(), producer_bytes).expect("the store opens")
    }

    fn open_on(disk: MemoryDisk, others: Vec<MemoryDisk>) -> Self {
        Self::try_open_on(disk, others).unwrap_or_else(|e| panic!("the store opens: {e}"))
    }

    fn try_open_on(disk: MemoryDisk, others: Vec<MemoryDisk>) -> Result<Self, String> {
        Self::try_open_with(disk, others, 1 << 20)
    }

    fn try_open_with(
        disk: MemoryDisk,
        others: Vec<MemoryDisk>,
        producer_bytes: u64,
    ) -> Result<Self, String> {
        let faults = FaultDisk::new(Arc::new(disk.clone()), 1);
        let first: Arc<dyn Disk> = Arc::new(faults.clone());
        let others_too = others.iter().map(|disk| Arc::new(disk.clone()) as _);
        let disks = std::iter::once(first).chain(others_too).collect();
        let opened = Self::open_disks(disks, producer_bytes, Vec::new())?;
        Ok(Self {
            disk,
            others,
            faults,
            opened,
        })
    }

    fn open_disks(
        disks: Vec<Arc<dyn Disk>>,
        producer_bytes: u64,
        absent: Vec<DirectoryId>,
    ) -> Result<Opened, String> {
        let journal = JournalOptions {
            file_bytes: 256 << 10,
            first_zero_bytes: 64 << 10,
            max_group: 64 << 10,
            ..JournalOptions::new(STORE)
        };
        let options = RegistryOptions {
            tail_bytes: 1 << 20,
            producers_per_partition: 10_000,
            producer_bytes,
            producer_expiration_ms: i64::MAX,
            reserve_bytes: 0,
            read_bytes: 1 << 20,
            // Long enough for a busy machine.
            move_patience: Duration::from_secs(5),
        };
        let directories = disks
            .into_iter()
            .zip(0u128..)
            .map(|(disk, no)| OpeningDirectory {
                disk,
                id: DirectoryId(Uuid::from_u128(no)),
                name: format!("data{no}"),
                journal: journal.clone(),
                is_new: false,
            });
        let opening = Opening {
            absent,
            registry: options,
            footer_bytes: 1 << 20,
            open_files: 16,
            environment: Environment::default(),
            clock: Arc::new(SystemClock::new()),
            fatal: Arc::new(|reason| panic!("the store gave up: {reason}")),
            join: None,
        };
        recovery::open(directories.collect(), opening, &|_, _| {})
    }

    fn create_topic(&self, name: &str, partitions: i32) -> Position {
        self.create_topic_in_shards(name, partitions, 1)
    }

    fn create_topic_in_shards(&self, name: &str, partitions: i32, shards: u32) -> Position {
        let new = NewTopic {
            name: name.into(),
            id: Uuid::new_v4(),
            partitions,
            replication_factor: 1,
            configs: [("shard.count".to_owned(), shards.to_string())].into(),
            ..NewTopic::default()
        };
        self.opened
            .catalog
            .propose(|image| image.create_topic(&new))
            .expect("a new topic")
    }

    fn delete_topic(&self, topic: &Topic) -> Position {
        self.opened
            .catalog
            .propose(|image| {
                let change = image.delete_topic(topic.no)?;
                self.opened.registry.seal_topic(topic);
                Ok::<_, crate::catalog::CatalogError>(change)
            })
            .expect("the topic is there")
    }

    fn topic(&self, name: &str) -> Option<Arc<Topic>> {
        self.opened.catalog.image().topic(name).cloned()
    }

    fn partition(&self, key: PartitionKey) -> Arc<Partition> {
        self.opened
            .registry
            .get(key)
            .expect("the partition is there")
    }

    fn append(&self, key: PartitionKey, payload: &Bytes) -> Result<Appended, Refused> {
        let info = BatchInfo::read(payload).expect("a batch");
        let batch = Prepared {
            payload: payload.clone(),
            last_offset_delta: info.last_offset_delta,
            max_timestamp: info.max_timestamp,
            claim: claim_of(&info),
            stamping: Stamping::Keep,
            charge: 0,
        };
        self.opened
            .registry
            .append(&self.partition(key), batch, None)
    }

    /// Lets no sync of the first directory's files of this folder come back.
    fn stall(&self, folder: &str) {
        self.faults.add(Rule::new(Op::Sync, folder, Fault::Stall));
    }

    fn await_stall(&self) {
        while self.faults.stalled() == 0 {
            std::thread::yield_now();
        }
    }

    fn go_on(&self) {
        self.faults.clear();
        self.faults.release();
    }

    fn sync(&self) {
        for directory in &self.opened.directories {
            let appended = directory.journal.appended();
            assert!(directory.directory.wait_durable(appended));
        }
    }

    fn flush(&self) {
        let registry = &self.opened.registry;
        for directory in registry.directories().iter() {
            registry.flush(directory, u64::MAX / 2).expect("a flush");
        }
    }

    fn checkpoint(&mut self) {
        self.flush();
        for directory in &mut self.opened.directories {
            self.opened
                .registry
                .checkpoint(
                    &directory.directory,
                    &mut directory.checkpoints,
                    &mut directory.checkpointer,
                )
                .expect("a checkpoint");
        }
    }

    fn close(&self) {
        for directory in &self.opened.directories {
            directory.journal.close();
        }
    }

    /// How far each directory's journal is durable.
    fn durable(&self) -> Vec<Position> {
        let directories = self.opened.directories.iter();
        directories.map(|d| d.journal.durable()).collect()
    }

    /// All records from the log start to the high watermark, checked to be dense.
    fn read_all(&self, key: PartitionKey) -> Vec<(Offset, Bytes)> {
        let partition = self.partition(key);
        let bounds = partition.bounds();
        let mut offset = bounds.log_start;
        let mut batches = Vec::new();
        while offset < bounds.high_watermark {
            let slices = self
                .opened
                .registry
                .read_blocking(&partition, offset, 10_000)
                .unwrap_or_else(|e| panic!("{key} offset {offset} of {bounds:?}: {e}"));
            for slice in &slices {
                for batch in Batches::new(slice) {
                    let batch = batch.expect("a whole batch");
                    batch.check_crc().expect("an undamaged batch");
                    assert!(
                        batch.info.base_offset <= offset && offset <= batch.info.last_offset(),
                        "{key}: wanted offset {offset}, got {}..{}",
                        batch.info.base_offset,
                        batch.info.last_offset()
                    );
                    batches.push((batch.info.base_offset, slice.slice_ref(batch.bytes)));
                    offset = batch.info.last_offset() + 1;
                }
            }
        }
        batches
    }
}

/// Two directories, and a topic of four partitions with two in each.
fn in_two() -> (Store, Arc<Topic>) {
    let store = Store::open_on(MemoryDisk::new(), vec![MemoryDisk::new()]);
    store.create_topic_in_shards("t", 4, 2);
    store.sync();
    let topic = store.topic("t").expect("created");
    (store, topic)
}

/// A batch of `records` records whose bytes tell it from all others.
fn batch(tag: u64, records: usize, bytes: usize, producer: Option<(i64, i32)>) -> Bytes {
    let mut builder = BatchBuilder::new();
    if let Some((id, sequence)) = producer {
        builder = builder.producer(id, 0, sequence);
    }
    for n in 0..records {
        let mut value = format!("{tag}-{n}-").into_bytes();
        value.resize(value.len() + bytes, b'x');
        builder.push(1_000 + n as i64, Some(&tag.to_be_bytes()), Some(&value));
    }
    builder.build().expect("a batch")
}

/// What is compared: everything from the CRC on, as offsets and leader epoch are the server's.
fn body(batch: &[u8]) -> &[u8] {
    &batch[17..]
}

#[test]
fn records_come_back_from_tail_segments_and_after_a_restart() {
    let mut store = Store::open(MemoryDisk::new());
    store.create_topic("t", 3);
    store.sync();
    let topic = store.topic("t").expect("created");
    let mut sent: BTreeMap<PartitionKey, Vec<Bytes>> = BTreeMap::new();
    for round in 0..40u64 {
        for index in 0..3 {
            let key = topic.partition(index).expect("a partition");
            let payload = batch(round * 10 + index as u64, 3, 200, None);
            store.append(key, &payload).expect("appended");
            sent.entry(key).or_default().push(payload);
        }
        match round {
            10 | 20 => {
                store.sync();
                store.flush();
            }
            30 => store.checkpoint(),
            _ => {}
        }
    }
    store.sync();
    let check = |store: &Store| {
        for (key, batches) in &sent {
            let got = store.read_all(*key);
            assert_eq!(got.len(), batches.len());
            for (n, (sent, (base, got))) in batches.iter().zip(&got).enumerate() {
                assert_eq!(*base, n as i64 * 3);
                assert_eq!(body(sent), body(got));
            }
        }
    };
    check(&store);
    let disk = store.disk.crash(1);
    store.close();
    check(&Store::open(disk));
}

#[test]
fn a_deleted_topic_frees_its_files_and_its_name() {
    let mut store = Store::open(MemoryDisk::new());
    store.create_topic("t", 2);
    store.sync();
    let old = store.topic("t").expect("created");
    let key = old.partition(0).expect("a partition");
    store
        .append(key, &batch(1, 1, 100, None))
        .expect("appended");
    store.sync();
    store.flush();
    store.delete_topic(&old);
    assert_eq!(
        store.append(key, &batch(2, 1, 100, None)),
        Err(Refused::Sealed)
    );
    store.create_topic("t", 2);
    store.sync();
    let new = store.topic("t").expect("created again");
    assert_ne!(old.id, new.id);
    assert_eq!(
        store
            .partition(new.partition(0).expect("a partition"))
            .bounds()
            .high_watermark,
        0
    );
    let registry = &store.opened.registry;
    registry.drop_dead_files(registry.first()).expect("dropped");
    registry
        .delete_left_files(registry.first())
        .expect("deleted");
    assert_eq!(
        store.disk.list("segments").expect("a folder"),
        Vec::<String>::new()
    );
    store.checkpoint();
    let again = Store::open(store.disk.crash(3));
    assert_eq!(again.topic("t").map(|t| t.id), Some(new.id));
}
