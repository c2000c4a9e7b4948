//! Reshape: what clients must not notice, and what must survive it.

use std::time::{Duration, Instant};

use super::*;
use crate::catalog::ReshapeError;
use crate::partition::Reshaped;
use crate::partition::verify_live::verify_live;
use crate::store::backend::faults::{Fault, Op, Rule};
use crate::types::ShardId;

impl Store {
    pub(super) fn shards(&self, topic: &Topic) -> Vec<(ShardId, u32)> {
        let image = self.opened.catalog.sequenced();
        let layout = &image.topic_by_no(topic.no).expect("it is there").layout;
        layout.shards().iter().map(|s| (s.id, s.slots)).collect()
    }

    pub(super) fn reshape(&self, topic: &Topic, sealed: &[u64], opened: &[u32]) -> Reshaped {
        self.try_reshape(topic, sealed, opened).expect("a reshape")
    }

    pub(super) fn try_reshape(
        &self,
        topic: &Topic,
        sealed: &[u64],
        opened: &[u32],
    ) -> Result<Reshaped, ReshapeError> {
        let sealed: Vec<_> = sealed.iter().map(|id| ShardId(*id)).collect();
        self.opened.registry.reshape(topic.no, &sealed, opened)
    }

    fn with_topic(partitions: i32) -> (Self, Arc<Topic>) {
        let store = Self::open(MemoryDisk::new());
        store.create_topic("t", partitions);
        store.sync();
        let topic = store.topic("t").expect("created");
        (store, topic)
    }
}

fn ids(shards: &[(ShardId, u32)]) -> Vec<u64> {
    shards.iter().map(|(id, _)| id.0).collect()
}

#[test]
fn a_split_and_a_merge_keep_offsets_records_and_duplicates() {
    let (store, topic) = Store::with_topic(4);
    let keys: Vec<_> = (0..4).map(|i| topic.partition(i).expect("one")).collect();
    let send = |round: u64| {
        for (n, key) in (0..).zip(&keys) {
            let payload = batch(round * 10 + n, 2, 50, Some((7, round as i32 * 2)));
            let appended = store.append(*key, &payload).expect("appended");
            assert_eq!(appended.base_offset, round as i64 * 2);
            let again = store.append(*key, &payload).expect("answered");
            assert_eq!(
                (again.base_offset, again.duplicate),
                (round as i64 * 2, true)
            );
        }
    };
    send(0);
    let split = store.reshape(&topic, &[1], &[1, 3]);
    assert_eq!(
        (split.epoch, &split.opened[..]),
        (2, &[ShardId(2), ShardId(3)][..])
    );
    send(1);
    store.sync();
    store.flush();
    let merged = store.reshape(&topic, &[3, 2], &[4]);
    assert_eq!(merged.opened, [ShardId(4)]);
    send(2);
    store.sync();
    // What was sent in an earlier shard is known in the later ones.
    let first = batch(0, 2, 50, Some((7, 0)));
    let again = store.append(keys[0], &first).expect("answered");
    assert_eq!((again.base_offset, again.duplicate), (0, true));
    let check = |store: &Store| {
        for key in &keys {
            let bases: Vec<_> = store.read_all(*key).iter().map(|(base, _)| *base).collect();
            assert_eq!(bases, [0, 2, 4]);
        }
        assert_eq!(ids(&store.shards(&topic)), [4]);
    };
    check(&store);
    let disk = store.disk.crash(1);
    store.close();
    check(&Store::open(disk));
}

#[test]
fn a_repetition_answers_the_same_and_what_does_not_fit_is_refused() {
    let (store, topic) = Store::with_topic(4);
    let first = store.reshape(&topic, &[1], &[2, 2]);
    let again = store.reshape(&topic, &[1], &[2, 2]);
    assert_eq!((again.epoch, &again.opened), (first.epoch, &first.opened));
    assert!(again.repeated && again.position >= first.position);
    let refused = |sealed: &[u64], opened: &[u32]| {
        store
            .try_reshape(&topic, sealed, opened)
            .expect_err("it does not fit")
    };
    assert!(matches!(
        refused(&[1], &[1, 3]),
        ReshapeError::Sealed { .. }
    ));
    assert!(matches!(
        refused(&[9], &[1]),
        ReshapeError::UnknownShard { .. }
    ));
    assert!(matches!(
        refused(&[2], &[1, 2]),
        ReshapeError::DoesNotCover { .. }
    ));
    assert!(matches!(
        refused(&[2], &[0, 2]),
        ReshapeError::DoesNotCover { .. }
    ));
    assert_eq!(refused(&[], &[]), ReshapeError::BadNames);
    assert_eq!(refused(&[2, 2], &[4]), ReshapeError::BadNames);
    store.reshape(&topic, &[2], &[1, 1]);
    assert!(matches!(
        refused(&[4, 3], &[3]),
        ReshapeError::NotAdjacent { .. }
    ));
    store.delete_topic(&topic);
    assert_eq!(refused(&[4, 5], &[2]), ReshapeError::UnknownTopic);
}

/// The files that a partition's shard has in its list.
fn listed(store: &Store, key: PartitionKey) -> Vec<u64> {
    let partition = store.partition(key);
    let mut files = partition.search(|_, files, _| {
        files
            .iter()
            .map(|file| file.meta.file.0)
            .collect::<Vec<_>>()
    });
    files.sort_unstable();
    files
}

/// Lists hold clipped references: a split copies them to the sides that have a part, a merge joins
/// them without doubles.
#[test]
fn lists_follow_partitions_and_do_not_grow() {
    let (store, topic) = Store::with_topic(4);
    let keys: Vec<_> = (0..4).map(|i| topic.partition(i).expect("one")).collect();
    let fill = |indexes: &[usize]| {
        for &index in indexes {
            store
                .append(keys[index], &batch(7, 1, 10, None))
                .expect("appended");
        }
        store.sync();
        store.flush();
    };
    fill(&[0, 1]);
    fill(&[2]);
    fill(&[0, 3]);
    let all = listed(&store, keys[0]);
    assert_eq!(all.len(), 3);
    store.reshape(&topic, &[1], &[2, 2]);
    store.sync();
    assert_eq!(listed(&store, keys[1]), [all[0], all[2]]);
    assert_eq!(listed(&store, keys[2]), [all[1], all[2]]);
    for round in 0..20 {
        let first = 2 + round * 3;
        store.reshape(&topic, &[first, first + 1], &[4]);
        store.reshape(&topic, &[first + 2], &[2, 2]);
    }
    store.sync();
    assert_eq!(listed(&store, keys[1]), [all[0], all[2]]);
    assert_eq!(listed(&store, keys[2]), [all[1], all[2]]);
    // A file that was cut before, but listed after a reshape, lands where its partitions are.
    fill(&[1, 2]);
    assert_eq!(
        (listed(&store, keys[0]).len(), listed(&store, keys[3]).len()),
        (3, 3)
    );
}

/// I15: a file goes when no list names it and no reader holds it, and not before.
#[test]
fn i15_files_go_when_nothing_holds_them() {
    let (store, topic) = Store::with_topic(2);
    let keys: Vec<_> = (0..2).map(|i| topic.partition(i).expect("one")).collect();
    for key in &keys {
        store
            .append(*key, &batch(7, 1, 10, None))
            .expect("appended");
    }
    store.sync();
    store.flush();
    store.reshape(&topic, &[1], &[1, 1]);
    store.sync();
    let registry = &store.opened.registry;
    let collect = || {
        registry.drop_dead_files(registry.first()).expect("dropped");
        registry
            .delete_left_files(registry.first())
            .expect("deleted");
        store.disk.list("segments").expect("a folder").len()
    };
    let delete = |key: PartitionKey| {
        registry
            .move_log_start(&store.partition(key), 1)
            .expect("moved");
        store.sync();
    };
    delete(keys[0]);
    assert_eq!(collect(), 1, "the other side still has it");
    // An answer that is on its way: it holds the list it was cut from.
    let held = store.partition(keys[1]).cut(0, 100, true);
    delete(keys[1]);
    assert_eq!(collect(), 1, "a reader holds it");
    drop(held);
    assert_eq!(collect(), 0);
}

/// I6 and I4, with threads: nobody is refused, offsets are dense, the order of each producer is
/// kept, duplicates are known, and no record lies behind the end of its link.
#[test]
fn i6_appends_from_many_threads_notice_no_reshape() {
    const PARTITIONS: i32 = 8;
    const BATCHES: i64 = 150;
    let (store, topic) = Store::with_topic(PARTITIONS);
    let done = std::sync::atomic::AtomicUsize::new(0);
    let reshapes = std::thread::scope(|scope| {
        for producer in 0..4i64 {
            let (store, topic, done) = (&store, &topic, &done);
            scope.spawn(move || {
                for n in 0..BATCHES {
                    for index in 0..PARTITIONS {
                        let key = topic.partition(index).expect("one");
                        let tag = (producer * BATCHES + n) as u64;
                        let payload = batch(tag, 1, 5, Some((producer, n as i32)));
                        let first = store.append(key, &payload).expect("nobody is refused");
                        let again = store.append(key, &payload).expect("nobody is refused");
                        assert!(again.duplicate && again.base_offset == first.base_offset);
                    }
                }
                done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            });
        }
        let mut reshapes = 0;
        while done.load(std::sync::atomic::Ordering::Relaxed) < 4 {
            let shards = store.shards(&topic);
            match shards.len() {
                1 => store.reshape(&topic, &ids(&shards), &[3, 3, 2]),
                _ => store.reshape(&topic, &ids(&shards[..2]), &[shards[0].1 + shards[1].1]),
            };
            reshapes += 1;
            if reshapes % 50 == 0 {
                store.sync();
                store.flush();
            }
        }
        reshapes
    });
    store.sync();
    assert!(reshapes > 10);
    let image = store.opened.catalog.image();
    let layout = &image.topic_by_no(topic.no).expect("it is there").layout;
    for index in 0..PARTITIONS {
        let key = topic.partition(index).expect("one");
        let got = store.read_all(key);
        assert_eq!(got.len() as i64, 4 * BATCHES);
        let mut next = BTreeMap::new();
        for (n, (base, bytes)) in got.iter().enumerate() {
            assert_eq!(*base, n as i64);
            let info = BatchInfo::read(bytes).expect("a batch");
            let sequence = next.entry(info.producer_id).or_insert(0);
            assert_eq!(info.base_sequence, *sequence, "in the order they were sent");
            *sequence += 1;
        }
        let links = layout.links(index as u32);
        assert!(links.last().expect("one").start <= got.len() as i64);
    }
}

/// Growth and reshape in one group of the journal, in either order, and deletion behind both:
/// partitions are made when their growth is durable, in shards that may be gone by then.
#[test]
fn growth_reshape_and_deletion_may_all_be_pending() {
    let (store, topic) = Store::with_topic(2);
    let grow = |to: i32| {
        let catalog = &store.opened.catalog;
        catalog
            .propose(|image| image.add_partitions(topic.no, to, &[], None, 0))
            .expect("grown");
    };
    grow(4);
    store.reshape(&topic, &[1], &[1, 3]);
    grow(8);
    store.reshape(&topic, &[3], &[5, 1]);
    store.sync();
    let topic = store.topic("t").expect("there");
    assert_eq!(ids(&store.shards(&topic)), [2, 4, 5]);
    for index in 0..8 {
        let key = topic.partition(index).expect("one");
        store
            .append(key, &batch(index as u64, 1, 5, None))
            .expect("appended");
    }
    store.sync();
    let disk = store.disk.crash(5);
    let again = Store::open(disk);
    for index in 0..8 {
        assert_eq!(
            again.read_all(topic.partition(index).expect("one")).len(),
            1
        );
    }
    grow(16);
    store.reshape(&topic, &[2], &[1, 3]);
    store.delete_topic(&topic);
    let key = topic.partition(0).expect("one");
    let partition = store.opened.registry.get(key);
    store.sync();
    if let Some(partition) = partition {
        assert!(partition.is_deleted());
        assert!(partition.sequenced(|shard, _| shard.is_none()));
    }
    assert!(store.opened.registry.get(key).is_none());
}

/// A thousand epochs stay in memory, the others go to a file which later starts find.
#[test]
fn old_epochs_go_to_disk_and_with_their_topic() {
    let (mut store, topic) = Store::with_topic(2);
    let turn = |store: &Store, times: usize| {
        for _ in 0..times {
            let shards = store.shards(&topic);
            match shards.len() {
                1 => store.reshape(&topic, &ids(&shards), &[1, 1]),
                _ => store.reshape(&topic, &ids(&shards), &[2]),
            };
        }
        store.sync();
    };
    turn(&store, 1100);
    store.checkpoint();
    turn(&store, 200);
    let check = |store: &Store, epochs: u32| {
        let image = store.opened.catalog.image();
        let layout = &image.topic_by_no(topic.no).expect("it is there").layout;
        assert_eq!((layout.epoch(), layout.history().len()), (epochs, 1000));
        let registry = &store.opened.registry;
        assert_eq!(registry.lineage_flaws(topic.no), [] as [String; 0]);
        let old = registry
            .old_epochs(topic.no, u32::MAX, 10_000)
            .expect("read");
        assert!(old.iter().map(|e| e.record.epoch).eq(1..=epochs - 1000));
        assert!(old.iter().skip(1).all(|e| !e.sealed.is_empty()));
        let some = registry.old_epochs(topic.no, 50, 7).expect("read");
        assert!(some.iter().map(|e| e.record.epoch).eq(43..50));
        for epoch in [&old[1], &old[40], &old[old.len() - 1]] {
            let sealed: Vec<_> = epoch.sealed.iter().map(|shard| shard.id).collect();
            let found = registry.old_epochs_of(topic.no, u32::MAX, &sealed);
            assert_eq!(found.expect("read"), std::slice::from_ref(epoch));
        }
    };
    check(&store, 1301);
    for seed in 0..3 {
        let again = Store::open(store.disk.crash(seed));
        check(&again, 1301);
    }
    store.checkpoint();
    let mut store = Store::open(store.disk.crash(9));
    turn(&store, 100);
    check(&store, 1401);
    assert_eq!(store.disk.list("lineage").expect("a folder").len(), 1);
    let registry = &store.opened.registry;
    let open = Rule::new(Op::Open, "lineage/", Fault::Stall);
    store.faults.add(open.times(1));
    let report = std::thread::scope(|scope| {
        let check = scope.spawn(|| verify_live(registry, false));
        while store.faults.stalled() == 0 {
            assert!(!check.is_finished(), "the file was not read");
            std::thread::yield_now();
        }
        store.delete_topic(&topic);
        store.sync();
        registry.delete_left_lineage().expect("deleted");
        store.faults.release();
        check.join().expect("a report")
    });
    assert!(report.damage.is_empty(), "{:?}", report.damage);
    assert_eq!(store.disk.list("lineage").expect("a folder").len(), 0);
    store.checkpoint();
}

/// The locks of a reshape are short also where it concerns many partitions: nothing is moved under
/// them but a route.
#[test]
fn locks_are_short_with_a_thousand_partitions() {
    let (store, topic) = Store::with_topic(1000);
    for index in 0..1000 {
        let key = topic.partition(index).expect("one");
        store
            .append(key, &batch(1, 1, 5, Some((3, 0))))
            .expect("appended");
    }
    let mut took = Vec::new();
    for _ in 0..20 {
        let shards = store.shards(&topic);
        let started = std::time::Instant::now();
        match shards.len() {
            1 => store.reshape(&topic, &ids(&shards), &[300, 700]),
            _ => store.reshape(&topic, &ids(&shards), &[1000]),
        };
        took.push(started.elapsed());
    }
    took.sort();
    println!("1000 partitions: {:?} .. {:?}", took[0], took[19]);
    // Half of them, as the machine may be busy with something else.
    assert!(took[9] < std::time::Duration::from_millis(5), "{took:?}");
}

/// A list of all shards looks each one up.
#[test]
fn a_shard_is_found_without_looking_at_all_others() {
    const SHARDS: u32 = 10_000;
    let store = Store::open(MemoryDisk::new());
    store.create_topic_in_shards("t", SHARDS as i32, SHARDS);
    store.sync();
    let topic = store.topic("t").expect("created");
    let registry = &store.opened.registry;
    let begun = Instant::now();
    for other in 1..=5 {
        for span in topic.layout.shards() {
            let key = topic.partition(span.first_slot as i32).expect("its first");
            let shard = registry.shard(key, span.id).map(|shard| shard.id);
            assert_eq!(shard, Some(span.id));
            let not_here = registry.shard(key, ShardId(span.id.0 + other));
            assert!(not_here.is_none());
        }
    }
    // Without optimization it takes more than 10 s if each is looked for among all.
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}");
}
