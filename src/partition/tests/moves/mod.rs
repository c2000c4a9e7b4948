//! Moves of shards between data directories.

use std::future::Future;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::thread;

use super::*;
use crate::catalog::ReshapeError;
use crate::partition::Reshaped;
use crate::partition::verify_live::verify_live;
use crate::types::{DirectoryNo, ShardId};

mod power_loss;

const FIRST: DirectoryNo = DirectoryNo(0);
const SECOND: DirectoryNo = DirectoryNo(1);

impl Store {
    fn move_shard(
        &self,
        topic: &Topic,
        shard: u64,
        to: DirectoryNo,
    ) -> Result<Reshaped, ReshapeError> {
        let registry = &self.opened.registry;
        registry.move_shard(topic.no, ShardId(shard), to)
    }

    /// Brings home what shards have in other directories, and lets go what nothing names.
    fn settle_files(&self) {
        let registry = &self.opened.registry;
        let directories = || registry.directories().iter();
        while directories().any(|d| registry.merge_once(d, &|_| ()).expect("merged")) {}
        for directory in directories() {
            registry.drop_dead_files(directory).expect("dropped");
            registry.delete_left_files(directory).expect("deleted");
        }
    }

    fn files_in(&self, directory: DirectoryNo) -> usize {
        let directories = self.opened.registry.directories();
        directories.get(directory).applied.lock().files.len()
    }

    fn assert_sound(&self) {
        assert_eq!(verify_live(&self.opened.registry, true).damage, []);
    }

    /// The partitions that live in a directory, and those that do not.
    fn here_and_away(&self, topic: &Topic, home: DirectoryNo) -> (Vec<usize>, Vec<usize>) {
        (0..4).partition(|index| {
            let shard = self.partition(key(topic, *index)).shard();
            shard.expect("open").home.no == home
        })
    }
}

fn key(topic: &Topic, index: usize) -> PartitionKey {
    topic.partition(index as i32).expect("a partition")
}

/// The n-th batch of a partition, from its idempotent producer.
fn nth(index: usize, n: usize) -> Bytes {
    let tag = (index * 1000 + n) as u64;
    batch(tag, 1, 200, Some((index as i64, n as i32)))
}

/// Sends the batches from `from` to `to` to each of these partitions.
fn send(store: &Store, topic: &Topic, indexes: &[usize], from: usize, to: usize) {
    for n in from..to {
        for &index in indexes {
            let appended = store
                .append(key(topic, index), &nth(index, n))
                .expect("appended");
            let got = (appended.base_offset, appended.duplicate);
            assert_eq!(got, (n as i64, false));
        }
    }
}

const ALL: [usize; 4] = [0, 1, 2, 3];

/// Each partition has exactly the first `count` batches, and knows its producer's last five.
fn check(store: &Store, topic: &Topic, count: usize) {
    for index in ALL {
        let got = store.read_all(key(topic, index));
        assert_eq!(got.len(), count, "partition {index}");
        for (n, (base, bytes)) in got.iter().enumerate() {
            assert_eq!(*base, n as i64);
            assert_eq!(body(bytes), body(&nth(index, n)));
        }
        for n in count.saturating_sub(5)..count {
            let again = store
                .append(key(topic, index), &nth(index, n))
                .expect("answered");
            assert_eq!((again.base_offset, again.duplicate), (n as i64, true));
            let directories = store.opened.registry.directories();
            let directory = directories.get(again.place.directory);
            let journal = directory.journal().expect("attached");
            // Nobody waits for ever.
            assert!(again.place.position <= journal.appended());
        }
    }
}

#[test]
fn a_shard_goes_on_in_its_new_home_and_its_records_follow() {
    let (mut store, topic) = in_two();
    send(&store, &topic, &ALL, 0, 20);
    store.sync();
    store.flush();
    send(&store, &topic, &ALL, 20, 30);
    let moved = store.move_shard(&topic, 1, SECOND).expect("moved");
    assert_eq!(
        (moved.epoch, moved.opened.len(), moved.repeated),
        (2, 1, false)
    );
    assert_eq!(store.here_and_away(&topic, SECOND).0, ALL);
    send(&store, &topic, &ALL, 30, 41);
    store.sync();
    check(&store, &topic, 41);
    let (disk, other) = (store.disk.crash(1), store.others[0].crash(2));
    store.close();
    store = Store::open_on(disk, vec![other]);
    check(&store, &topic, 41);
    store.assert_sound();
    store.checkpoint();
    assert!(store.files_in(FIRST) > 0);
    store.settle_files();
    assert_eq!(store.files_in(FIRST), 0, "all of it was copied");
    let left = store.disk.list("segments").expect("a folder");
    assert_eq!(left, Vec::<String>::new());
    check(&store, &topic, 41);
    store.assert_sound();
    let again = store.move_shard(&topic, 1, SECOND).expect("done before");
    assert_eq!((again.epoch, again.repeated), (2, true));
    assert_eq!(again.opened, moved.opened);
    let there = store.move_shard(&topic, moved.opened[0].0, SECOND);
    assert!(there.expect("it is there").repeated);
    let back = store.move_shard(&topic, 1, FIRST);
    assert!(matches!(back, Err(ReshapeError::Sealed { .. })), "{back:?}");
    store.close();
}

/// What a journal has of a shard's earlier stay does not count when the shard comes back, whichever
/// checkpoint a start takes.
#[test]
fn a_shard_that_comes_back_is_not_taken_for_what_it_was() {
    for checkpoints in 0..4 {
        let (mut store, topic) = in_two();
        let mut shard = ShardId(1);
        let mut count = 0;
        for (round, to) in [SECOND, FIRST, SECOND, FIRST].into_iter().enumerate() {
            send(&store, &topic, &ALL, count, count + 7);
            count += 7;
            store.sync();
            if round == 1 {
                store.flush();
            }
            if round < checkpoints {
                store.checkpoint();
            }
            let moved = store.move_shard(&topic, shard.0, to).expect("moved");
            shard = moved.opened[0];
            store.settle_files();
        }
        store.sync();
        check(&store, &topic, count);
        for damage in [false, true] {
            let disks = std::iter::once(&store.disk).chain(&store.others);
            let disks: Vec<_> = disks.map(|disk| disk.crash(9)).collect();
            for disk in disks.iter().filter(|_| damage && checkpoints > 1) {
                let names = disk.names();
                let newest = names.iter().filter(|name| name.contains("root-")).max();
                // The older one has to do.
                assert!(disk.flip(newest.expect("written"), 50, 1));
            }
            let again = Store::open_on(disks[0].clone(), vec![disks[1].clone()]);
            check(&again, &topic, count);
            again.assert_sound();
            again.close();
        }
        store.close();
    }
}

/// While a shard is on its way nobody is refused and nobody holds anything.
#[test]
fn appenders_wait_and_find_the_new_home() {
    let (store, topic) = in_two();
    send(&store, &topic, &ALL, 0, 3);
    store.sync();
    let index = store.here_and_away(&topic, SECOND).0[0];
    // The hand-over is on its way to the first directory's journal.
    store.stall("journal");
    thread::scope(|scope| {
        let mover = scope.spawn(|| store.move_shard(&topic, 2, FIRST));
        store.await_stall();
        let partition = store.partition(key(&topic, index));
        let refused = store.append(key(&topic, index), &nth(index, 3));
        assert_eq!(refused, Err(Refused::Moving));
        let moved = store.opened.registry.move_log_start(&partition, 2);
        assert_eq!(moved, Err(Refused::Moving));
        let split = store.try_reshape(&topic, &[2], &[1, 1]);
        assert!(
            matches!(split, Err(ReshapeError::Moving { .. })),
            "{split:?}"
        );
        let mut settled = std::pin::pin!(partition.settled());
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(settled.as_mut().poll(&mut context), Poll::Pending);
        store.go_on();
        mover.join().expect("no panic").expect("moved");
        while settled.as_mut().poll(&mut context).is_pending() {
            thread::yield_now();
        }
        let appended = store
            .append(key(&topic, index), &nth(index, 3))
            .expect("appended");
        let got = (appended.base_offset, appended.place.directory);
        assert_eq!(got, (3, FIRST));
    });
    store.close();
}

#[test]
fn a_move_whose_new_home_does_not_answer_is_given_up_and_the_shard_goes_on() {
    let (store, topic) = in_two();
    send(&store, &topic, &ALL, 0, 3);
    store.sync();
    store.stall("journal");
    let error = store.move_shard(&topic, 2, FIRST).expect_err("it hangs");
    assert!(error.to_string().contains("did not answer"), "{error}");
    let (here, away) = store.here_and_away(&topic, SECOND);
    assert_eq!((here.len(), away.len()), (2, 2));
    send(&store, &topic, &here, 3, 6);
    store.go_on();
    store.sync();
    // The first attempt's hand-over is in the journal and must not be taken for this one's.
    store.move_shard(&topic, 2, FIRST).expect("moved");
    send(&store, &topic, &away, 3, 6);
    store.sync();
    let (disk, other) = (store.disk.crash(3), store.others[0].crash(4));
    store.close();
    let again = Store::open_on(disk, vec![other]);
    check(&again, &topic, 6);
    again.close();
}

#[test]
fn internal_topics_and_unknown_shards_do_not_move() {
    let (store, topic) = in_two();
    store.create_topic("__consumer_offsets", 2);
    store.sync();
    let internal = store.topic("__consumer_offsets").expect("created");
    let id = internal.layout.shards()[0].id;
    let refused = store.move_shard(&internal, id.0, SECOND);
    assert!(matches!(refused, Err(ReshapeError::Internal { .. })));
    let refused = store.move_shard(&topic, 99, SECOND);
    assert!(matches!(refused, Err(ReshapeError::UnknownShard { .. })));
    store.close();
}

/// A topic may be deleted while one of its shards is on its way.
#[test]
fn whoever_waits_learns_that_the_topic_is_deleted() {
    let (store, topic) = in_two();
    send(&store, &topic, &ALL, 0, 3);
    store.sync();
    let index = store.here_and_away(&topic, SECOND).0[0];
    store.stall("journal");
    thread::scope(|scope| {
        let mover = scope.spawn(|| store.move_shard(&topic, 2, FIRST));
        store.await_stall();
        store.delete_topic(&topic);
        let refused = store.append(key(&topic, index), &nth(index, 3));
        assert_eq!(refused, Err(Refused::Sealed));
        store.go_on();
        let error = mover.join().expect("no panic").expect_err("it is gone");
        assert_eq!(error, ReshapeError::UnknownTopic);
    });
    store.sync();
    let (disk, other) = (store.disk.crash(3), store.others[0].crash(4));
    store.close();
    let again = Store::open_on(disk, vec![other]);
    assert!(again.topic("t").is_none());
    again.close();
}

/// What lives in a directory does not stop where the device of another one does.
#[test]
fn files_that_depend_on_another_journal_hold_nothing_up() {
    let (store, topic) = in_two();
    send(&store, &topic, &ALL, 0, 3);
    let index = store.here_and_away(&topic, SECOND).0[0];
    store.move_shard(&topic, 2, FIRST).expect("moved");
    let registry = &store.opened.registry;
    let [first, second] = [FIRST, SECOND].map(|no| registry.directories().get(no));
    while registry.merge_once(first, &|_| ()).expect("merged") {}
    store.sync();
    let before = store.files_in(SECOND);
    // The first directory has copies of all of it now, and its journal does not answer.
    store.stall("journal");
    send(&store, &topic, &[index], 3, 4);
    registry.drop_dead_files(second).expect("it goes on");
    assert_eq!(store.files_in(SECOND), before);
    store.go_on();
    store.sync();
    registry
        .drop_dead_files(second)
        .expect("it looks once more");
    assert!(store.files_in(SECOND) < before);
    store.close();
}

/// A directory may go when everything is copied, and not before.
#[test]
fn a_start_without_a_directory_that_still_holds_records_is_refused() {
    let (store, topic) = in_two();
    send(&store, &topic, &ALL, 0, 5);
    store.move_shard(&topic, 2, FIRST).expect("moved");
    store.sync();
    let alone = |disk: MemoryDisk| {
        let absent = vec![DirectoryId(Uuid::from_u128(1))];
        Store::open_disks(vec![Arc::new(disk)], 1 << 20, absent)
    };
    let Err(error) = alone(store.disk.kill()) else {
        panic!("records are missing");
    };
    let missing = "offsets 0 to 4 are in none of the others: shards";
    assert!(error.contains(missing), "{error}");
    store.settle_files();
    store.sync();
    let opened = alone(store.disk.kill()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(opened.registry.directories().iter().count(), 1);
    store.close();
}

/// Records that are deleted before they are copied free the old directory as well.
#[test]
fn files_of_the_old_home_go_with_the_records_in_them() {
    let (store, topic) = in_two();
    send(&store, &topic, &ALL, 0, 5);
    store.move_shard(&topic, 2, FIRST).expect("moved");
    let registry = &store.opened.registry;
    let second = registry.directories().get(SECOND);
    registry.drop_dead_files(second).expect("looked through");
    assert_eq!(store.files_in(SECOND), 1);
    for index in ALL {
        let partition = store.partition(key(&topic, index));
        registry.move_log_start(&partition, 5).expect("moved");
    }
    store.sync();
    registry.drop_dead_files(second).expect("dropped");
    assert_eq!(store.files_in(SECOND), 0);
    store.close();
}

/// A small shard is copied out of a file with large ones into a directory that has room for it
/// alone.
#[test]
fn a_copy_asks_for_room_for_what_it_copies_only() {
    let (store, topic) = in_two();
    store.create_topic_in_shards("large", 4, 2);
    store.sync();
    let large = store.topic("large").expect("created");
    let index = store.here_and_away(&large, FIRST).0[0];
    for n in 0..8 {
        let payload = batch(n, 1, 50_000, None);
        store.append(key(&large, index), &payload).expect("taken");
    }
    send(&store, &topic, &ALL, 0, 5);
    store.sync();
    store.flush();
    store.move_shard(&topic, 1, SECOND).expect("moved");
    let registry = &store.opened.registry;
    let second = registry.directories().get(SECOND);
    let left_free = |bytes| {
        store.others[0].set_capacity(None);
        let space = second.space().expect("told");
        let used = space.total - space.free;
        store.others[0].set_capacity(Some(used + bytes));
    };
    let copied = || registry.merge_once(second, &|_| ()).expect("no failure");
    let told = || second.copies_wait.load(Ordering::Acquire);
    assert!(!told());
    left_free(1_000);
    assert!(!copied() && told(), "no room");
    left_free(100_000);
    assert!(copied() && !told());
    let elsewhere = |index| store.partition(key(&topic, index)).bytes_elsewhere();
    assert!(ALL.into_iter().all(|index| elsewhere(index) == 0));
    check(&store, &topic, 5);
    store.close();
}
