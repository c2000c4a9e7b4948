//! Searches by time.

use super::*;
use crate::partition::time_search::Target;

#[tokio::test]
async fn the_largest_timestamp_is_that_of_a_record_that_can_be_read() {
    let store = Store::open(MemoryDisk::new());
    store.create_topic("t", 1);
    store.sync();
    let key = store
        .topic("t")
        .and_then(|topic| topic.partition(0))
        .expect("created");
    let timed = |timestamps: &[i64]| {
        let mut builder = BatchBuilder::new();
        timestamps
            .iter()
            .for_each(|at| builder.push(*at, None, Some(b"x")));
        builder.build().expect("a batch")
    };
    for timestamps in [&[90, 70, 80][..], &[60, 75]] {
        store.append(key, &timed(timestamps)).expect("appended");
    }
    store.sync();
    let partition = store.partition(key);
    for (log_start, flush, wanted) in [
        (0, false, Some((0, 90))),
        (1, false, Some((2, 80))),
        (2, true, Some((2, 80))),
        (3, false, Some((4, 75))),
        (5, true, None),
    ] {
        store
            .opened
            .registry
            .move_log_start(&partition, log_start)
            .expect("moved");
        store.sync();
        if flush {
            store.flush();
        }
        let found = store
            .opened
            .registry
            .find_by_time(&partition, Target::Max, 1 << 20)
            .await;
        let found = found
            .expect("searched")
            .map(|found| (found.offset, found.timestamp));
        assert_eq!(found, wanted, "from {log_start}");
    }
}

#[test]
fn short_runs_are_merged_into_long_ones_and_read_the_same() {
    let mut store = Store::open(MemoryDisk::new());
    store.create_topic("t", 20);
    store.sync();
    let topic = store.topic("t").expect("created");
    let mut sent: BTreeMap<PartitionKey, Vec<Bytes>> = BTreeMap::new();
    for round in 0..40u64 {
        for index in 0..20 {
            let key = topic.partition(index).expect("a partition");
            let payload = batch(round * 100 + index as u64, 2, 50, None);
            store.append(key, &payload).expect("appended");
            sent.entry(key).or_default().push(payload);
        }
        store.sync();
        store.flush();
    }
    let start = topic.partition(3).expect("a partition");
    let moved = store
        .opened
        .registry
        .move_log_start(&store.partition(start), 9);
    moved.expect("moved");
    store.sync();
    let files = |store: &Store| store.disk.list("segments").expect("a folder").len();
    assert_eq!(files(&store), 40);
    let registry = &store.opened.registry;
    while registry
        .merge_once(registry.first(), &|_| ())
        .expect("merged")
    {}
    registry
        .delete_left_files(registry.first())
        .expect("deleted");
    assert_eq!(
        files(&store),
        10,
        "two merges of sixteen, and eight that wait for more"
    );
    let check = |store: &Store| {
        for (key, batches) in &sent {
            let first = if *key == start { 9 } else { 0 };
            let got = store.read_all(*key);
            let wanted = batches.iter().zip(0..).filter(|(_, n)| n * 2 + 1 >= first);
            assert_eq!(got.len(), wanted.clone().count());
            for ((sent, n), (base, got)) in wanted.zip(&got) {
                assert_eq!((*base, body(got)), (n * 2, body(sent)));
            }
        }
    };
    check(&store);
    store.checkpoint();
    let disk = store.disk.crash(5);
    store.close();
    check(&Store::open(disk));
}

/// What a rewrite cannot cut off, because it lies in one block with records that stay, is no reason
/// for another one.
#[test]
fn a_file_is_not_rewritten_again_and_again_for_what_stays_in_it() {
    let store = Store::open(MemoryDisk::new());
    store.create_topic("t", 1);
    store.sync();
    let key = store.topic("t").expect("created").partition(0);
    let key = key.expect("a partition");
    store
        .append(key, &batch(1, 10, 500, None))
        .expect("appended");
    store.sync();
    store.flush();
    let registry = &store.opened.registry;
    let partition = store.partition(key);
    for offset in 8..10 {
        registry.move_log_start(&partition, offset).expect("moved");
        store.sync();
        let merges = (0..10).filter(|_| {
            let merged = registry.merge_once(registry.first(), &|_| ());
            merged.expect("merged")
        });
        assert!(merges.count() < 2, "at offset {offset}");
    }
    assert_eq!(store.read_all(key).len(), 1);
    store.close();
}
