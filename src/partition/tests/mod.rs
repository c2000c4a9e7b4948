//! The store as a whole, on a disk in memory whose power can fail at any moment.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use uuid::Uuid;

use crate::catalog::{Environment, NewTopic, Topic};
use crate::clock::SystemClock;
use crate::partition::recovery::{self, Opened, Opening};
use crate::partition::registry::RegistryOptions;
use crate::partition::shard::{Stamping, claim_of};
use crate::partition::{Appended, Partition, Prepared, Refused};
use crate::protocol::batch::{BatchBuilder, BatchInfo, BatchView, Batches};
use crate::store::backend::Disk;
use crate::store::backend::memory::MemoryDisk;
use crate::store::journal::{Journal, JournalOptions};
use crate::types::{Offset, PartitionKey, Position};

mod producers;
mod reshape;
mod times;

const STORE: Uuid = Uuid::from_u128(7);

/// An open store on a disk in memory.
struct Store {
    disk: MemoryDisk,
    opened: Opened,
}

impl Store {
    fn open(disk: MemoryDisk) -> Self {
        Self::open_with(disk, 1 << 20)
    }

    fn open_with(disk: MemoryDisk, producer_bytes: u64) -> Self {
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
        };
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let opening = Opening {
            journal,
            registry: options,
            footer_bytes: 1 << 20,
            open_files: 16,
            environment: Environment::default(),
            clock: Arc::new(SystemClock::new()),
            fatal: Arc::new(|reason| panic!("the store gave up: {reason}")),
        };
        let opened = recovery::open(&shared, opening, &|_, _| {}).expect("the store opens");
        Self { disk, opened }
    }

    fn create_topic(&self, name: &str, partitions: i32) -> Position {
        let new = NewTopic {
            name: name.into(),
            id: Uuid::new_v4(),
            partitions,
            replication_factor: 1,
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

    fn sync(&self) {
        let appended = self.opened.directories[0].journal.appended();
        assert!(self.opened.registry.first().wait_durable(appended));
    }

    fn flush(&self) {
        let registry = &self.opened.registry;
        registry
            .flush(registry.first(), u64::MAX / 2)
            .expect("a flush");
    }

    fn checkpoint(&mut self) {
        self.flush();
        let directory = &mut self.opened.directories[0];
        self.opened
            .registry
            .checkpoint(
                &directory.directory,
                &mut directory.checkpoints,
                &mut directory.checkpointer,
            )
            .expect("a checkpoint");
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
    store.opened.directories[0].journal.close();
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

/// One step of a random history.
#[derive(Clone, Debug)]
enum Step {
    Append {
        partition: usize,
        records: usize,
        bytes: usize,
        idempotent: bool,
    },
    Retry {
        partition: usize,
    },
    Sync,
    Flush,
    Checkpoint,
    DeleteRecords {
        partition: usize,
        part: u8,
    },
    Collect,
    Merge,
    Reshape {
        first: usize,
        count: usize,
        cut: u32,
    },
    Kill,
    PowerLoss {
        seed: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let append = (0..4usize, 1..5usize, 0..3000usize, any::<bool>()).prop_map(
        |(partition, records, bytes, idempotent)| Step::Append {
            partition,
            records,
            bytes,
            idempotent,
        },
    );
    prop_oneof![
        12 => append,
        3 => (0..4usize).prop_map(|partition| Step::Retry { partition }),
        4 => Just(Step::Sync),
        2 => Just(Step::Flush),
        1 => Just(Step::Checkpoint),
        1 => (0..4usize, any::<u8>())
            .prop_map(|(partition, part)| Step::DeleteRecords { partition, part }),
        1 => Just(Step::Collect),
        1 => Just(Step::Merge),
        4 => (any::<usize>(), 1..3usize, any::<u32>())
            .prop_map(|(first, count, cut)| Step::Reshape { first, count, cut }),
        1 => Just(Step::Kill),
        2 => any::<u64>().prop_map(|seed| Step::PowerLoss { seed }),
    ]
}

/// What is known of one partition.
#[derive(Default)]
struct Model {
    /// Every batch sequenced since the last restart or known to be there, by base offset.
    batches: BTreeMap<Offset, (Bytes, Position)>,
    /// The next sequence of its idempotent producer, and the batch it sent last.
    sequence: i32,
    last: Option<(Bytes, Offset)>,
    log_start: Offset,
}

struct History {
    store: Store,
    topic: Arc<Topic>,
    models: Vec<Model>,
    tag: u64,
    /// Layout epochs and where they stand in the journal.
    epochs: Vec<(u32, Position)>,
}

impl History {
    fn new() -> Self {
        let store = Store::open(MemoryDisk::new());
        store.create_topic("t", 4);
        store.sync();
        let topic = store.topic("t").expect("created");
        let models = (0..4).map(|_| Model::default()).collect();
        Self {
            store,
            topic,
            models,
            tag: 0,
            epochs: Vec::new(),
        }
    }

    fn key(&self, partition: usize) -> PartitionKey {
        self.topic.partition(partition as i32).expect("a partition")
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Append {
                partition,
                records,
                bytes,
                idempotent,
            } => {
                self.append(*partition, *records, *bytes, *idempotent);
            }
            Step::Retry { partition } => self.retry(*partition),
            Step::Sync => self.store.sync(),
            Step::Flush => {
                self.store.sync();
                self.store.flush();
            }
            Step::Checkpoint => self.store.checkpoint(),
            Step::DeleteRecords { partition, part } => self.delete_records(*partition, *part),
            Step::Collect => {
                let registry = &self.store.opened.registry;
                registry.drop_dead_files(registry.first()).expect("dropped");
                registry
                    .delete_left_files(registry.first())
                    .expect("deleted");
            }
            Step::Merge => {
                let registry = &self.store.opened.registry;
                registry
                    .merge_once(registry.first(), &|_| ())
                    .expect("merged");
            }
            Step::Reshape { first, count, cut } => self.reshape(*first, *count, *cut),
            Step::Kill => self.restart(MemoryDisk::kill),
            Step::PowerLoss { seed } => self.restart(|disk| disk.crash(*seed)),
        }
    }

    fn append(&mut self, partition: usize, records: usize, bytes: usize, idempotent: bool) {
        self.tag += 1;
        let producer = idempotent.then(|| (partition as i64, self.models[partition].sequence));
        let payload = batch(self.tag, records, bytes, producer);
        let appended = self
            .store
            .append(self.key(partition), &payload)
            .expect("appended");
        let model = &mut self.models[partition];
        let end = model
            .batches
            .last_key_value()
            .map_or(model.log_start, |(base, (b, _))| {
                base + BatchInfo::read(b).expect("a batch").last_offset() + 1
            });
        assert_eq!(appended.base_offset, end, "offsets are dense");
        assert!(!appended.duplicate);
        if idempotent {
            model.sequence += records as i32;
            model.last = Some((payload.clone(), appended.base_offset));
        }
        model
            .batches
            .insert(appended.base_offset, (payload, appended.position));
    }

    fn retry(&mut self, partition: usize) {
        let Some((payload, base)) = self.models[partition].last.clone() else {
            return;
        };
        let again = self
            .store
            .append(self.key(partition), &payload)
            .expect("answered");
        assert_eq!(
            (again.base_offset, again.duplicate),
            (base, true),
            "the original's offset"
        );
    }

    /// Some neighbours become two shards, or one.
    fn reshape(&mut self, first: usize, count: usize, cut: u32) {
        let shards = self.store.shards(&self.topic);
        let run = &shards[first % shards.len()..];
        let run = &run[..count.min(run.len())];
        let slots: u32 = run.iter().map(|(_, slots)| slots).sum();
        let left = cut % slots;
        let parts = [left, slots - left];
        let sealed: Vec<u64> = run.iter().map(|(id, _)| id.0).collect();
        let done = self
            .store
            .reshape(&self.topic, &sealed, &parts[usize::from(left == 0)..]);
        self.epochs.push((done.epoch, done.position));
    }

    /// The layout that survived is whole, holds what was acknowledged, and its links end where the
    /// records do.
    fn check_layout(&mut self, durable: Position) {
        let topic = self.store.topic("t").expect("it is there");
        let flaw = crate::partition::verify::layout_flaw(&topic);
        assert_eq!(flaw, None);
        let acknowledged = self.epochs.iter().filter(|(_, at)| *at <= durable);
        let least = acknowledged.map(|(epoch, _)| *epoch).max().unwrap_or(1);
        assert!(topic.layout.epoch() >= least, "epoch {least} is lost");
        for partition in 0..4 {
            let links = topic.layout.links(partition as u32);
            let end = self
                .store
                .partition(self.key(partition))
                .bounds()
                .high_watermark;
            assert_eq!(links[0].start, 0);
            assert!(
                links[links.len() - 1].start <= end,
                "a link starts behind the end"
            );
        }
        let now = topic.layout.epoch();
        self.epochs.retain(|(epoch, _)| *epoch <= now);
    }

    fn delete_records(&mut self, partition: usize, part: u8) {
        let key = self.key(partition);
        let target = self.store.partition(key);
        let bounds = target.bounds();
        let span = bounds.high_watermark - bounds.log_start;
        let offset = bounds.log_start + span * i64::from(part) / 255;
        let (start, _) = self
            .store
            .opened
            .registry
            .move_log_start(&target, offset)
            .expect("moved");
        self.store.sync();
        self.models[partition].log_start = start;
        assert_eq!(target.bounds().log_start, start);
    }

    /// The process dies here; what was acknowledged must be there when the next one starts.
    fn restart(&mut self, end: impl FnOnce(&MemoryDisk) -> MemoryDisk) {
        // Asked before the end: more may become durable in between, but not less.
        let durable = self.store.opened.directories[0].journal.durable();
        let disk = end(&self.store.disk);
        let acknowledged: Vec<Vec<Offset>> = self
            .models
            .iter()
            .map(|m| {
                let safe = m
                    .batches
                    .iter()
                    .filter(|(_, (_, position))| *position <= durable);
                safe.map(|(base, _)| *base).collect()
            })
            .collect();
        let before = std::mem::replace(&mut self.store, Store::open(disk));
        before.opened.directories[0].journal.close();
        for (partition, acknowledged) in acknowledged.iter().enumerate() {
            self.check(partition, acknowledged);
        }
        self.check_layout(durable);
    }

    fn check(&mut self, partition: usize, acknowledged: &[Offset]) {
        let key = self.key(partition);
        let bounds = self.store.partition(key).bounds();
        let got: BTreeMap<Offset, Bytes> = self.store.read_all(key).into_iter().collect();
        let model = &mut self.models[partition];
        assert!(
            bounds.log_start >= model.log_start,
            "{key}: the log start went back"
        );
        for (base, batch) in &got {
            let (sent, _) = model
                .batches
                .get(base)
                .expect("nothing that was never sent");
            assert_eq!(body(sent), body(batch), "{key} offset {base}");
        }
        for base in acknowledged {
            let last = base
                + BatchInfo::read(&model.batches[base].0)
                    .expect("one")
                    .last_offset();
            assert!(
                last < bounds.log_start || got.contains_key(base),
                "{key}: acknowledged offset {base} is lost; {bounds:?}"
            );
        }
        model
            .batches
            .retain(|base, _| *base < bounds.high_watermark);
        model.log_start = bounds.log_start;
        self.resume_producer(partition);
    }

    /// The producer goes on behind its newest batch that survived.
    fn resume_producer(&mut self, partition: usize) {
        let model = &mut self.models[partition];
        model.last = None;
        model.sequence = 0;
        for (base, (batch, _)) in &model.batches {
            let view = BatchView::first(batch).expect("a batch");
            if view.info.has_producer_id() {
                model.sequence = view.info.last_sequence() + 1;
                model.last = Some((batch.clone(), *base));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// I4, I5 and I7: offsets are dense, each is in the link of the shard that gave it out, and what
    /// was acknowledged survives flushes, merges, deletions, splits and merges of shards, kills and
    /// power losses in any order.
    #[test]
    fn i5_i7_what_was_acknowledged_survives(steps in prop::collection::vec(step(), 10..120)) {
        let mut history = History::new();
        for step in &steps {
            history.run(step);
        }
        history.restart(|disk| disk.crash(99));
    }
}
