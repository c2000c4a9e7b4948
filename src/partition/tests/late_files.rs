//! Records that are deleted while a flush writes them.

use super::*;

/// Flushes with something else in the middle of it, and sweeps: files that are left.
fn flush_around(delete: impl FnOnce(&Store, &Topic, PartitionKey)) -> usize {
    let store = Store::open(MemoryDisk::new());
    store.create_topic("t", 1);
    store.sync();
    let topic = store.topic("t").expect("created");
    let key = topic.partition(0).expect("a partition");
    store
        .append(key, &batch(1, 2, 100, None))
        .expect("appended");
    store.sync();
    let first = store.opened.registry.first();
    // What was to be swept before is swept.
    let sweep = || store.opened.registry.drop_dead_files(first).expect("swept");
    sweep();
    store.stall("segments");
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| store.flush());
        store.await_stall();
        delete(&store, &topic, key);
        store.sync();
        sweep();
        store.go_on();
        flush.join().expect("flushed");
    });
    sweep();
    let left = first.files().len();
    store.close();
    left
}

#[test]
fn a_file_that_came_too_late_for_its_topic_goes() {
    let left = flush_around(|store, topic, _| {
        store.delete_topic(topic);
    });
    assert_eq!(left, 0, "no list names it");
}

#[test]
fn a_file_that_came_too_late_for_its_records_goes() {
    let left = flush_around(|store, _, key| {
        let partition = store.partition(key);
        let moved = store.opened.registry.move_log_start(&partition, 2);
        assert_eq!(moved.expect("moved").0, 2);
    });
    assert_eq!(left, 0, "its records are deleted");
}

#[test]
fn a_file_whose_records_are_there_stays() {
    assert_eq!(flush_around(|_, _, _| {}), 1);
}
