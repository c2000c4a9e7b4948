//! Shards give way to others while everything else goes on, and the process ends at each step.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Scene;
use crate::catalog::ReshapeError;
use crate::partition::log::FOLLOWED;
use crate::partition::shard::{Stamping, claim_of};
use crate::partition::{Partition, Prepared, Registry};
use crate::protocol::batch::{BatchBuilder, BatchInfo};
use crate::sim::check;
use crate::sim::ops::{self, delete_records};
use crate::sim::power::End;
use crate::sim::seen::Branch;
use crate::store::journal::Journal;
use crate::types::{Offset, ShardId, TopicNo};

/// Far more operations than a history has.
const MOST: u64 = 600;
const PARTITIONS: i32 = 4;

impl Scene {
    fn is_up(&self) -> bool {
        self.world(|world| world.is_up())
    }

    /// The open shards of topic `a`, as sequenced.
    fn shards(&self) -> Vec<ShardId> {
        self.world(|world| {
            let open = &world.model.sequenced.topics["a"].lineage.open;
            open.iter().map(|(id, _)| *id).collect()
        })
    }

    /// Replaces all shards.
    fn reshape(&self, slots: &[u32]) {
        let all = self.shards();
        self.world(|world| ops::reshape::reshape(world, "a", &all, slots));
    }

    fn make_durable(&self) {
        self.world(|world| world.store().settle());
    }

    /// The records of each link that ended, by partition and first offset.
    fn sealed(&self) -> BTreeMap<(i32, Offset), Vec<u8>> {
        let mut all = BTreeMap::new();
        for index in 0..PARTITIONS {
            let key = self.key(index);
            self.world(|world| {
                let layout = Arc::clone(&world.store().topics()["a"].layout);
                let links = layout.links(index as u32);
                for pair in links.windows(2) {
                    let (mut at, end) = (pair[0].start, pair[1].start);
                    let mut bytes = Vec::new();
                    while at < end {
                        let read = check::read(world.store(), key, at, 1).expect("readable");
                        let (base, batch) = read.first().expect("a batch");
                        at = base
                            + i64::from(BatchInfo::read(batch).expect("one").last_offset_delta)
                            + 1;
                        bytes.extend_from_slice(batch);
                    }
                    all.insert((index, pair[0].start), bytes);
                }
            });
        }
        all
    }
}

/// Appends, splits and merges with the journal at every stage, until the end comes. Gives the
/// sequence that follows.
fn history(scene: &Scene, id: i64) -> i32 {
    let mut sequence = 0;
    for (round, slots) in [&[1, 3][..], &[2, 1, 1], &[4], &[3, 1]].iter().enumerate() {
        for index in 0..PARTITIONS {
            if scene.is_up() {
                let sent = scene.batch(200, Some((id, sequence)));
                scene.send(scene.key(index), &sent);
            }
        }
        sequence += 1;
        if scene.is_up() && round % 2 == 0 {
            scene.world(|world| {
                world.store().journal().step();
            });
        }
        if scene.is_up() {
            scene.reshape(slots);
        }
        if scene.is_up() && round == 1 {
            scene.make_durable();
        }
        if scene.is_up() && round > 0 {
            scene.flush();
        }
        if scene.is_up() && round == 2 {
            scene.checkpoint();
        }
    }
    sequence
}

/// Whether the process ended at this operation of the history.
fn end_at(operation: u64, end: End) -> bool {
    let scene = Scene::new(PARTITIONS);
    let id = scene.producer_id();
    scene.reshape(&[2, 2]);
    for index in 0..PARTITIONS {
        scene.append(scene.key(index), 100);
    }
    scene.settle();
    scene.reshape(&[4]);
    scene.settle();
    let sealed = scene.sealed();
    assert_eq!(sealed.len(), PARTITIONS as usize);
    scene.world(|world| world.disks.end_after(operation, end));
    history(&scene, id);
    let ended = !scene.is_up();
    // Borders, records, windows, lineage, lists and files are compared after each start.
    let mut world = scene.sim.world.borrow_mut();
    world.restart();
    drop(world);
    scene.restart(End::PowerLoss);
    let after = scene.sealed();
    for (link, bytes) in &sealed {
        assert_eq!(after.get(link), Some(bytes), "the sealed link {link:?}");
    }
    scene.append(scene.key(0), 10);
    scene.reshape(&[1, 1, 2]);
    scene.append(scene.key(0), 10);
    scene.settle();
    scene.check();
    ended
}

#[test]
fn i4_what_is_sealed_keeps_its_bytes_when_the_power_fails_at_any_step() {
    let steps = (0..MOST).take_while(|at| end_at(*at, End::PowerLoss));
    let steps = steps.count() as u64;
    assert!((20..MOST).contains(&steps), "{steps} steps");
}

#[test]
fn i4_what_is_sealed_keeps_its_bytes_when_the_process_is_killed_at_any_step() {
    let steps = (0..MOST).take_while(|at| end_at(*at, End::Kill)).count() as u64;
    assert!((20..MOST).contains(&steps), "{steps} steps");
}

#[test]
fn i5_a_reshape_that_nobody_was_told_of_takes_no_record_with_it() {
    for end in [End::PowerLoss, End::Kill] {
        let scene = Scene::new(PARTITIONS);
        scene.append(scene.key(1), 300);
        scene.settle();
        let before = scene.shards();
        scene.append(scene.key(1), 300);
        scene.reshape(&[1, 3]);
        // Into the new shard, and as little durable as that is.
        scene.append(scene.key(1), 300);
        scene.world(|world| {
            let layout = Arc::clone(&world.store().topics()["a"].layout);
            assert_eq!(layout.epoch(), 1, "shown before it is durable");
        });
        scene.restart(end);
        assert_eq!(
            scene.shards(),
            before,
            "the reshape is gone as if it had never been"
        );
        scene.reshape(&[2, 2]);
        scene.append(scene.key(1), 300);
        scene.settle();
        scene.check();
    }
}

#[test]
fn i6_a_producers_window_spans_reshapes_and_crashes() {
    let scene = Scene::new(PARTITIONS);
    let (id, key) = (scene.producer_id(), scene.key(2));
    let all: Vec<_> = (0..6)
        .map(|sequence| scene.batch(100, Some((id, sequence))))
        .collect();
    for (sent, slots) in all
        .iter()
        .zip([&[1, 3][..], &[4], &[2, 2], &[1, 1, 2], &[4], &[3, 1]])
    {
        scene.send(key, sent);
        scene.reshape(slots);
    }
    let again = || {
        let before = scene.world(|world| world.seen.count(Branch::Duplicate));
        all.iter().for_each(|sent| scene.send(key, sent));
        let after = scene.world(|world| world.seen.count(Branch::Duplicate));
        assert_eq!(after - before, 5, "the last five are known");
    };
    again();
    scene.settle();
    for end in [End::Kill, End::PowerLoss] {
        scene.restart(end);
        again();
        scene.checkpoint();
        scene.reshape(&[2, 2]);
        scene.reshape(&[4]);
        again();
        scene.settle();
    }
    scene.check();
}

#[test]
fn i15_a_file_that_both_sides_of_a_split_have_goes_with_the_second_one() {
    let scene = Scene::new(PARTITIONS);
    for index in 0..PARTITIONS {
        scene.append(scene.key(index), 500);
    }
    scene.settle();
    scene.flush();
    let files = || scene.world(|world| check::segment_files(&world.disk().memory));
    assert_eq!(files().len(), 1);
    scene.reshape(&[2, 2]);
    scene.settle();
    scene.world(|world| assert_eq!(check::shared_files(world).len(), 1));
    let delete = |index| {
        let key = scene.key(index);
        scene.world(|world| delete_records::up_to(world, key, 1));
        scene.settle();
    };
    let clean_up = || {
        for _ in 0..3 {
            scene.world(|world| world.clock.advance(std::time::Duration::from_secs(5)));
            scene.turn();
        }
    };
    delete(0);
    delete(1);
    scene.restart(End::Kill);
    clean_up();
    // What is left of it may have been rewritten, but it is there.
    assert_eq!(files().len(), 1, "the other side still has it");
    scene.check();
    delete(2);
    delete(3);
    clean_up();
    assert_eq!(files(), [], "nobody has it");
    scene.world(|world| check::no_file_is_left(world));
    scene.check();
}

fn prepared(id: i64, sequence: i32) -> Prepared {
    let mut builder = BatchBuilder::new().producer(id, 0, sequence);
    builder.push(1, None, Some(b"value"));
    let payload = builder.build().expect("a batch");
    let info = BatchInfo::read(&payload).expect("a batch");
    Prepared {
        last_offset_delta: info.last_offset_delta,
        max_timestamp: info.max_timestamp,
        claim: claim_of(&info),
        stamping: Stamping::Keep,
        charge: 0,
        payload,
    }
}

/// One producer: each batch once, and once more.
fn produce(registry: &Registry, partition: &Partition, id: i64, done: &AtomicBool) -> i64 {
    let mut sequence = 0;
    while !done.load(Ordering::Relaxed) {
        for again in [false, true] {
            let appended = registry.append(partition, prepared(id, sequence), None);
            let appended = appended.expect("nothing is refused");
            assert_eq!(
                appended.base_offset,
                i64::from(sequence),
                "dense, and in order"
            );
            assert_eq!(appended.duplicate, again);
        }
        sequence += 1;
    }
    i64::from(sequence)
}

fn split_and_merge(registry: &Registry, no: TopicNo, first: ShardId) -> Result<(), ReshapeError> {
    let mut open = vec![first];
    for slots in [&[1, 1][..], &[2]].iter().cycle() {
        open = registry.reshape(no, &open, slots)?.opened;
        if FOLLOWED.load(Ordering::Relaxed) >= 3 {
            return Ok(());
        }
    }
    Ok(())
}

#[test]
fn i6_an_append_whose_shard_was_replaced_while_it_waited_goes_to_the_next_one() {
    let scene = Scene::new(2);
    let (registry, no, first) = scene.world(|world| {
        let store = world.store();
        let topic = Arc::clone(&store.topics()["a"]);
        (
            Arc::clone(&store.registry),
            topic.no,
            topic.layout.shards()[0].id,
        )
    });
    let partitions: Vec<_> = (0..2)
        .map(|index| registry.get(scene.key(index)).expect("a partition"))
        .collect();
    let done = AtomicBool::new(false);
    let counts: Vec<i64> = std::thread::scope(|scope| {
        let (registry, done) = (&registry, &done);
        let producers: Vec<_> = partitions
            .iter()
            .zip(1..)
            .map(|(partition, id)| scope.spawn(move || produce(registry, partition, id, done)))
            .collect();
        let reshaped = split_and_merge(registry, no, first);
        done.store(true, Ordering::Relaxed);
        reshaped.expect("nothing stands in the way");
        producers
            .into_iter()
            .map(|p| p.join().expect("no refusal"))
            .collect()
    });
    let journal = scene.sim.world.borrow().store().journal().clone();
    journal.wait(journal.appended());
    for (partition, count) in partitions.iter().zip(counts) {
        assert_eq!(partition.bounds().high_watermark, count);
    }
    scene.sim.world.borrow().store().journal().take_noted();
}
