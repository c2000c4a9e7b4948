//! Random histories with kills and power losses, against a model.

use proptest::prelude::*;

use super::*;
use crate::catalog::ReshapeError;
use crate::partition::verify_live::verify_live;
use crate::types::DirectoryNo;

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
    Move {
        shard: usize,
        to: u16,
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
        2 => (any::<usize>(), 0..2u16).prop_map(|(shard, to)| Step::Move { shard, to }),
        1 => Just(Step::Kill),
        2 => any::<u64>().prop_map(|seed| Step::PowerLoss { seed }),
    ]
}

fn is_durable(place: &Place, durable: &[Position]) -> bool {
    place.position <= durable[usize::from(place.directory.0)]
}

/// What is known of one partition.
#[derive(Default)]
struct Model {
    /// Every batch sequenced since the last restart or known to be there, by base offset.
    batches: BTreeMap<Offset, (Bytes, Place)>,
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
    /// A store in so many directories, each with a shard of a topic with four partitions.
    fn new(directories: u32) -> Self {
        let others = (1..directories).map(|_| MemoryDisk::new()).collect();
        let store = Store::open_on(MemoryDisk::new(), others);
        store.create_topic_in_shards("t", 4, directories);
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
                for directory in registry.directories().iter() {
                    registry.drop_dead_files(directory).expect("dropped");
                    registry.delete_left_files(directory).expect("deleted");
                }
            }
            Step::Merge => {
                let registry = &self.store.opened.registry;
                for directory in registry.directories().iter() {
                    registry.merge_once(directory, &|_| ()).expect("merged");
                }
            }
            Step::Reshape { first, count, cut } => self.reshape(*first, *count, *cut),
            Step::Move { shard, to } => self.move_shard(*shard, *to),
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
            .insert(appended.base_offset, (payload, appended.place));
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
        let parts = &parts[usize::from(left == 0)..];
        match self.store.try_reshape(&self.topic, &sealed, parts) {
            Ok(done) => self.epochs.push((done.epoch, done.position)),
            Err(ReshapeError::DifferentHomes { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// A shard goes to a data directory, or is there already.
    fn move_shard(&mut self, shard: usize, to: u16) {
        let registry = &self.store.opened.registry;
        let to = DirectoryNo(to % self.store.opened.directories.len() as u16);
        let shards = self.store.shards(&self.topic);
        let id = shards[shard % shards.len()].0;
        let moved = registry.move_shard(self.topic.no, id, to).expect("moved");
        assert_eq!(moved.opened.len(), 1);
        let image = self.store.opened.catalog.sequenced();
        let layout = &image.topic("t").expect("there").layout;
        let span = layout.shard(moved.opened[0]).expect("known");
        let home = registry.directories().get(to).id;
        assert_eq!(span.home, home);
        if !moved.repeated {
            self.epochs.push((moved.epoch, moved.position));
        }
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

    /// What shards hold in files of other directories is brought home, and what is left there goes.
    fn settle(&mut self) {
        let registry = &self.store.opened.registry;
        let directories = || registry.directories().iter();
        while directories().any(|d| registry.merge_once(d, &|_| ()).expect("merged")) {}
        for directory in directories() {
            registry.drop_dead_files(directory).expect("dropped");
        }
        for partition in 0..4 {
            let partition = self.store.partition(self.key(partition));
            let home = partition.shard().expect("open").home.no;
            let elsewhere = partition.search(|bounds, files, _| {
                let files = files.iter().filter(|file| file.directory != home);
                let mut sections = files.filter_map(|file| file.section(partition.key));
                sections.any(|section| section.end > bounds.log_start)
            });
            assert!(!elsewhere, "{} is not home", partition.key);
        }
        assert_eq!(verify_live(registry, true).damage, []);
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
    fn restart(&mut self, end: impl Fn(&MemoryDisk) -> MemoryDisk) {
        // Asked before the end: more may become durable in between, but not less.
        let durable = self.store.durable();
        let disk = end(&self.store.disk);
        let others = self.store.others.iter().map(end).collect();
        let acknowledged: Vec<Vec<Offset>> = self
            .models
            .iter()
            .map(|m| {
                let safe = m
                    .batches
                    .iter()
                    .filter(|(_, (_, place))| is_durable(place, &durable));
                safe.map(|(base, _)| *base).collect()
            })
            .collect();
        let before = std::mem::replace(&mut self.store, Store::open_on(disk, others));
        before.close();
        for (partition, acknowledged) in acknowledged.iter().enumerate() {
            self.check(partition, acknowledged);
        }
        self.check_layout(durable[0]);
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
        let mut history = History::new(1);
        for step in &steps {
            history.run(step);
        }
        history.restart(|disk| disk.crash(99));
    }

    #[test]
    fn i5_i7_the_same_in_two_directories(steps in prop::collection::vec(step(), 10..120)) {
        let mut history = History::new(2);
        for step in &steps {
            history.run(step);
        }
        history.restart(|disk| disk.crash(99));
        history.settle();
        history.restart(|disk| disk.crash(98));
    }
}
