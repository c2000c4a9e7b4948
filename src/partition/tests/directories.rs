//! A store in several data directories.

use super::*;
use crate::types::DirectoryNo;

fn key(topic: &Topic, index: i32) -> PartitionKey {
    topic.partition(index).expect("a partition")
}

#[test]
fn each_shard_has_its_own_journal_files_and_checkpoint() {
    let (mut store, topic) = in_two();
    for round in 0..20u64 {
        for index in 0..4 {
            let payload = batch(round * 10 + index as u64, 2, 500, None);
            let appended = store
                .append(key(&topic, index), &payload)
                .expect("appended");
            assert_eq!(appended.place.directory, DirectoryNo(index as u16 / 2));
        }
        match round {
            // What is not durable yet is not flushed.
            8 => {
                store.sync();
                store.flush();
            }
            12 => store.checkpoint(),
            _ => {}
        }
    }
    store.sync();
    for directory in store.opened.registry.directories().iter() {
        let files = directory.applied.lock();
        assert!(!files.files.is_empty());
        let here = |key: PartitionKey| u16::try_from(key.index / 2) == Ok(directory.no.0);
        let mut sections = files.files.values().flat_map(|file| &file.meta.sections);
        assert!(sections.all(|section| here(section.key)));
    }
    let check = |store: &Store| {
        for index in 0..4 {
            let got = store.read_all(key(&topic, index));
            assert_eq!(got.len(), 20);
            for (round, (base, got)) in (0u64..).zip(got) {
                assert_eq!(base, round as i64 * 2);
                let sent = batch(round * 10 + index as u64, 2, 500, None);
                assert_eq!(body(&sent), body(&got));
            }
        }
    };
    check(&store);
    let (disk, other) = (store.disk.crash(5), store.others[0].crash(6));
    store.close();
    check(&Store::open_on(disk, vec![other]));
}

#[test]
fn a_start_without_a_directory_that_holds_shards_is_refused_and_names_the_topics() {
    let (store, topic) = in_two();
    let sent = batch(1, 1, 10, None);
    store.append(key(&topic, 3), &sent).expect("appended");
    store.sync();
    let (disk, other) = (store.disk.kill(), store.others[0].kill());
    store.close();
    let Err(error) = Store::try_open_on(disk.kill(), Vec::new()) else {
        panic!("it is missing");
    };
    let id = Uuid::from_u128(1).to_string();
    assert!(
        error.contains(&id) && error.contains("1 topics: t"),
        "{error}"
    );
    let store = Store::open_on(disk, vec![other]);
    assert_eq!(store.read_all(key(&topic, 3)).len(), 1);
    store.delete_topic(&topic);
    store.sync();
    let disk = store.disk.kill();
    store.close();
    let store = Store::open_on(disk, Vec::new());
    assert!(store.topic("t").is_none(), "nothing lives there any more");
}

#[test]
fn a_directory_that_is_added_takes_new_topics() {
    let store = Store::open(MemoryDisk::new());
    store.create_topic("old", 3);
    store.sync();
    let disk = store.disk.kill();
    store.close();
    let store = Store::open_on(disk, vec![MemoryDisk::new()]);
    for (name, home) in [("a", 1), ("b", 1), ("c", 0), ("d", 1)] {
        store.create_topic(name, 2);
        store.sync();
        let topic = store.topic(name).expect("created");
        let sent = batch(1, 1, 10, None);
        let appended = store.append(key(&topic, 0), &sent).expect("appended");
        assert_eq!(appended.place.directory, DirectoryNo(home), "{name}");
    }
    store.close();
}

/// Records of a deleted topic that are still in another journal are passed over; records of one
/// that never was are damage.
#[test]
fn records_of_deleted_topics_in_other_journals_are_passed_over() {
    let (store, topic) = in_two();
    store
        .append(key(&topic, 2), &batch(1, 1, 10, None))
        .expect("appended");
    store.sync();
    store.delete_topic(&topic);
    store.sync();
    store.create_topic_in_shards("t", 4, 2);
    store.sync();
    let (disk, other) = (store.disk.kill(), store.others[0].kill());
    store.close();
    let again = Store::open_on(disk, vec![other.kill()]);
    let topic = again.topic("t").expect("the second one");
    assert!(again.read_all(key(&topic, 2)).is_empty());
    again.close();
    let Err(error) = Store::try_open_on(MemoryDisk::new(), vec![other]) else {
        panic!("the first directory is another one");
    };
    assert!(error.contains("never created"), "{error}");
}
