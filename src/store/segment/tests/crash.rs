//! The process or the machine stops, or the disk fails, at every disk operation of a writer.

use super::*;
use crate::store::backend::faults::{Fault, FaultDisk, Rule};

/// Every operation from the `nth` on fails as `fault` says.
fn failing(memory: &MemoryDisk, nth: u64, times: u64, fault: Fault) -> Arc<dyn Disk> {
    let disk = FaultDisk::new(Arc::new(memory.clone()), nth);
    let prefix = String::new();
    disk.add(Rule {
        op: None,
        prefix,
        skip: nth,
        times,
        permille: 1000,
        fault,
    });
    Arc::new(disk)
}

/// A model of several write steps.
fn long_model() -> Model {
    let mut model = small_model();
    model.push((key(3, 0), batches(0, &[10; 5], 700_000)));
    model
}

#[test]
fn a_finished_file_survives_a_crash_at_any_operation_after_it() {
    let model = long_model();
    let mut nth = 0;
    loop {
        let memory = MemoryDisk::new();
        let outcome = write(
            &failing(&memory, nth, u64::MAX, Fault::Eio),
            FileId(1),
            &model,
        );
        for seed in 0..10 {
            let after: Arc<dyn Disk> = Arc::new(memory.crash(seed));
            let store = SegmentStore::new(Arc::clone(&after), MIB);
            let files = store.list_files().unwrap();
            if let Ok(meta) = &outcome {
                assert_eq!(files, [FileId(1)]);
                assert_eq!(&store.meta(FileId(1)).unwrap(), meta);
                assert!(store.verify(FileId(1)).unwrap().damage.is_empty());
                continue;
            }
            // What is left is named by nobody: it is removed, and its number is free again.
            for file in files {
                store.delete(file).unwrap();
            }
            write(&after, FileId(1), &model).unwrap();
            assert!(store.verify(FileId(1)).unwrap().damage.is_empty());
        }
        if outcome.is_ok() {
            break;
        }
        nth += 1;
    }
    assert!(nth >= 8, "{nth} operations");
}

#[test]
fn a_file_that_found_no_space_leaves_nothing_behind() {
    let model = long_model();
    let mut nth = 0;
    loop {
        let memory = MemoryDisk::new();
        let outcome = write(&failing(&memory, nth, 1, Fault::Enospc), FileId(1), &model);
        match outcome {
            Ok(_) => break,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::StorageFull),
        }
        assert!(memory.names().is_empty(), "operation {nth}");
        nth += 1;
    }
}

#[test]
fn a_deletion_cut_short_is_done_again() {
    let mut nth = 0;
    loop {
        let memory = MemoryDisk::new();
        let disk: Arc<dyn Disk> = Arc::new(memory.clone());
        write(&disk, FileId(1), &long_model()).unwrap();
        let failing = SegmentStore::new(failing(&memory, nth, u64::MAX, Fault::Eio), MIB);
        let outcome = failing.delete(FileId(1));
        for seed in 0..10 {
            let after = memory.crash(seed);
            let store = SegmentStore::new(Arc::new(after.clone()), MIB);
            for file in store.list_files().unwrap() {
                store.delete(file).unwrap();
            }
            assert!(after.names().is_empty());
        }
        if outcome.is_ok() {
            break;
        }
        nth += 1;
    }
}

#[test]
fn a_writer_that_failed_once_never_finishes() {
    let (memory, _) = memory();
    let disk = FaultDisk::new(Arc::new(memory.clone()), 0);
    let rule = Rule::new(
        crate::store::backend::faults::Op::Write,
        "segments",
        Fault::Torn,
    );
    disk.add(rule.times(1));
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let mut writer = SegmentWriter::create(&disk, FileId(1), &no_pace).unwrap();
    writer.begin_section(key(1, 0));
    assert!(writer.push(0, 0, 0, &vec![1; 2 << 20]).is_err());
    assert!(writer.push(1, 1, 0, b"more").is_err());
    assert!(writer.finish().is_err());
    assert!(memory.names().is_empty());
}
