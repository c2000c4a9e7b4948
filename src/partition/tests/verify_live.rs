//! The check of a running store.

use super::*;
use crate::partition::verify_live::verify_live;
use crate::store::backend::faults::{Fault, Op, Rule};

#[test]
fn a_file_whose_records_are_deleted_while_it_is_read_is_no_damage() {
    let store = Store::open(MemoryDisk::new());
    store.create_topic("t", 1);
    store.sync();
    let key = store
        .topic("t")
        .and_then(|topic| topic.partition(0))
        .expect("created");
    store
        .append(key, &batch(1, 3, 200, None))
        .expect("appended");
    store.sync();
    store.flush();
    let registry = &store.opened.registry;
    let delete = || {
        registry.drop_dead_files(registry.first()).expect("dropped");
        registry
            .delete_left_files(registry.first())
            .expect("deleted");
    };
    // Header and footer are read before the records.
    let records = Rule::new(Op::Read, "segments/", Fault::Stall).after(2);
    store.faults.add(records.times(1));
    let report = std::thread::scope(|scope| {
        let check = scope.spawn(|| verify_live(registry, true));
        while store.faults.stalled() == 0 {
            assert!(!check.is_finished(), "the records were not read");
            std::thread::yield_now();
        }
        registry
            .move_log_start(&store.partition(key), 3)
            .expect("moved");
        store.sync();
        delete();
        store.faults.release();
        check.join().expect("a report")
    });
    assert_eq!(report.segment_files, 1);
    assert!(report.damage.is_empty(), "{:?}", report.damage);
    delete();
    let left = store.disk.list("segments").expect("a folder");
    assert_eq!(left, Vec::<String>::new(), "it goes once it was read");
}
