//! Tests of segments: a model of what was written, and files of many shapes.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::store::backend::Disk;
use crate::store::backend::disk::DiskDir;
use crate::store::backend::memory::MemoryDisk;
use crate::types::{Offset, PartitionKey, TopicNo};

mod crash;
mod damage;
mod lookup;
mod merging;

const MIB: u64 = 1 << 20;

/// One batch as the caller pushes it.
#[derive(Clone, Debug)]
struct Batch {
    base: Offset,
    last: Offset,
    max_timestamp: i64,
    bytes: Vec<u8>,
}

/// Sections in the order in which they are written.
type Model = Vec<(PartitionKey, Vec<Batch>)>;

fn key(topic: u32, index: u32) -> PartitionKey {
    PartitionKey {
        topic: TopicNo(topic),
        index,
    }
}

fn no_pace(_: u64) {}

fn memory() -> (MemoryDisk, Arc<dyn Disk>) {
    let disk = MemoryDisk::new();
    (disk.clone(), Arc::new(disk))
}

fn write(disk: &Arc<dyn Disk>, file: FileId, model: &Model) -> io::Result<SegmentMeta> {
    let mut writer = SegmentWriter::create(disk, file, &no_pace)?;
    for (key, batches) in model {
        writer.begin_section(*key);
        for batch in batches {
            writer.push(batch.base, batch.last, batch.max_timestamp, &batch.bytes)?;
        }
    }
    writer.finish()
}

/// Batches of `records` records each, one after the other from `base` on.
fn batches(base: Offset, records: &[i64], length: usize) -> Vec<Batch> {
    let mut next = base;
    let one = |(n, count): (usize, &i64)| {
        let batch = Batch {
            base: next,
            last: next + count - 1,
            max_timestamp: 1_000 + n as i64,
            bytes: (0..length).map(|at| (at as i64 + next) as u8).collect(),
        };
        next += count;
        batch
    };
    records.iter().enumerate().map(one).collect()
}

/// A file of four partitions, the second with several index entries.
fn small_model() -> Model {
    vec![
        (key(1, 4), batches(0, &[1, 2, 3], 100)),
        (key(1, 0), batches(70, &[5; 20], 9_000)),
        (key(2, 7), batches(3, &[1], 61)),
        (key(1, 2), batches(9, &[2, 2], 40_000)),
    ]
}

/// Several partitions with batches of any size, gaps between offsets, timestamps in any order.
fn any_model() -> impl Strategy<Value = Model> {
    let batch = (
        0i64..4,
        1i64..5,
        -1i64..60,
        prop_oneof![9 => 1usize..3_000, 1 => 1usize..90_000],
    );
    let section = (0i64..100, prop::collection::vec(batch, 1..40));
    prop::collection::btree_map((0u32..3, 0u32..40), section, 1..6).prop_map(|sections| {
        let mut model: Model = sections
            .into_iter()
            .map(|((topic, index), (base, shapes))| {
                let mut next = base;
                let one = |(gap, records, max_timestamp, length): (i64, i64, i64, usize)| {
                    let base = next + gap;
                    next = base + records;
                    let bytes = (0..length).map(|at| (at as i64 * 7 + base) as u8).collect();
                    Batch {
                        base,
                        last: next - 1,
                        max_timestamp,
                        bytes,
                    }
                };
                (key(topic, index), shapes.into_iter().map(one).collect())
            })
            .collect();
        // Writers need not go by key.
        model.reverse();
        model
    })
}

/// Where each batch of a section lies.
fn positions(section: &Section, batches: &[Batch]) -> Vec<u64> {
    let mut at = section.meta().position;
    let each = batches.iter().map(|batch| {
        let position = at;
        at += batch.bytes.len() as u64;
        position
    });
    each.collect()
}

fn joined(batches: &[Batch]) -> Vec<u8> {
    batches
        .iter()
        .flat_map(|b| b.bytes.iter().copied())
        .collect()
}

fn footer_start(disk: &MemoryDisk, file: FileId) -> usize {
    let bytes = disk.contents(&file_path(file)).unwrap();
    u64::from_le_bytes(bytes[bytes.len() - 16..bytes.len() - 8].try_into().unwrap()) as usize
}

#[test]
fn a_file_is_read_back_as_it_was_written() {
    let (_, disk) = memory();
    let model = small_model();
    let meta = write(&disk, FileId(3), &model).unwrap();
    let store = SegmentStore::new(disk, MIB);
    assert_eq!(store.list_files().unwrap(), [FileId(3)]);
    assert_eq!(store.meta(FileId(3)).unwrap(), meta);
    assert_eq!(meta.sections.len(), 4);
    assert!(
        meta.sections
            .windows(2)
            .all(|pair| pair[0].key < pair[1].key)
    );
    for (key, batches) in &model {
        let section = store.section(FileId(3), *key).unwrap().unwrap();
        assert_eq!(meta.section(*key), Some(section.meta()));
        assert_eq!(section.meta().start, batches[0].base);
        assert_eq!(section.meta().end, batches[batches.len() - 1].last + 1);
        let range = section.meta().position..section.end_position();
        assert_eq!(store.read(FileId(3), range).unwrap(), joined(batches));
    }
    assert!(store.section(FileId(3), key(1, 3)).unwrap().is_none());
    let verified = store.verify(FileId(3)).unwrap();
    assert_eq!((verified.sections, verified.bytes), (4, meta.bytes));
    assert!(verified.damage.is_empty());
}

#[test]
fn bytes_leave_in_steps_of_one_mebibyte_each_paced() {
    let (_, disk) = memory();
    let steps = RefCell::new(Vec::new());
    let pace = |bytes| steps.borrow_mut().push(bytes);
    let mut writer = SegmentWriter::create(&disk, FileId(1), &pace).unwrap();
    writer.begin_section(key(1, 0));
    writer.push(0, 9, 5, &vec![1; 5 << 20]).unwrap();
    for n in 10..300 {
        writer.push(n, n, 5, &vec![2; 10_000]).unwrap();
    }
    let meta = writer.finish().unwrap();
    let steps = steps.into_inner();
    assert_eq!(steps.iter().sum::<u64>(), meta.bytes);
    assert!(steps.iter().all(|step| *step <= MIB));
    assert!(steps.len() as u64 <= meta.bytes / MIB + 2);
    let store = SegmentStore::new(disk, MIB);
    assert!(store.verify(FileId(1)).unwrap().damage.is_empty());
}

#[test]
fn a_caller_that_breaks_the_order_is_refused() {
    let (memory, disk) = memory();
    let mut writer = SegmentWriter::create(&disk, FileId(1), &no_pace).unwrap();
    assert!(writer.push(0, 0, 0, b"x").is_err());
    writer.begin_section(key(1, 0));
    writer.push(5, 7, 0, b"x").unwrap();
    assert!(writer.push(7, 9, 0, b"x").is_err());
    assert!(writer.push(9, 8, 0, b"x").is_err());
    assert!(writer.push(8, 8, 0, b"").is_err());
    writer.begin_section(key(1, 1));
    writer.begin_section(key(1, 0));
    writer.push(8, 8, 0, b"x").unwrap();
    let error = writer.finish().unwrap_err();
    assert!(
        error.to_string().contains("1/0 has two sections"),
        "{error}"
    );
    assert!(memory.names().is_empty());
    assert!(SegmentWriter::create(&disk, FileId(1), &no_pace).is_ok());
}

#[test]
fn ten_thousand_sections_take_64_bytes_each() {
    let (_, disk) = memory();
    let mut writer = SegmentWriter::create(&disk, FileId(1), &no_pace).unwrap();
    for index in 0..10_000 {
        writer.begin_section(key(5, index * 2));
        writer.push(7, 7, 1, &[index as u8; 70]).unwrap();
    }
    let meta = writer.finish().unwrap();
    let mut encoded = Vec::new();
    meta.encode(&mut encoded);
    assert!(
        encoded.len() < 10_000 * 16,
        "{} bytes in the journal",
        encoded.len()
    );
    let store = SegmentStore::new(disk, 8 * MIB);
    for index in 0..10_000 {
        let found = store
            .section(FileId(1), key(5, index * 2))
            .unwrap()
            .unwrap();
        assert_eq!(found.meta(), &meta.sections[index as usize]);
        assert!(
            store
                .section(FileId(1), key(5, index * 2 + 1))
                .unwrap()
                .is_none()
        );
    }
    let stats = store.cache_stats();
    assert!(stats.footer_bytes <= 64 * 10_000, "{stats:?}");
}

#[test]
fn caches_hold_no_more_than_their_budgets() {
    let (_, disk) = memory();
    for file in 1..=20 {
        write(&disk, FileId(file), &small_model()).unwrap();
    }
    let mut big = SegmentWriter::create(&disk, FileId(99), &no_pace).unwrap();
    for index in 0..100 {
        big.begin_section(key(1, index));
        big.push(0, 0, 0, b"x").unwrap();
    }
    big.finish().unwrap();
    let store = SegmentStore::new(disk, 2_000).with_open_files(3);
    for round in 0..3 {
        for file in 1..=20 {
            assert!(store.section(FileId(file), key(1, 4)).unwrap().is_some());
            let stats = store.cache_stats();
            assert!(
                stats.footer_bytes <= 2_000 && stats.open_files <= 3,
                "{round}: {stats:?}"
            );
        }
    }
    assert!(store.cache_stats().footers > 1);
    assert!(store.section(FileId(99), key(1, 4)).unwrap().is_some());
    let alone = store.cache_stats();
    assert_eq!(alone.footers, 1);
    assert!(alone.footer_bytes > 2_000);
}

#[test]
fn reads_that_may_not_wait_say_so() {
    let (_, disk) = memory();
    let meta = write(&disk, FileId(1), &small_model()).unwrap();
    let store = SegmentStore::new(disk, MIB);
    let wanted = meta.sections[0];
    let range = wanted.position..wanted.position + wanted.bytes;
    let blocked = store.section_cached(FileId(1), wanted.key);
    assert!(matches!(blocked, Err(ReadError::WouldBlock)));
    let blocked = store.try_read_cached(FileId(1), range.clone());
    assert!(matches!(blocked, Err(ReadError::WouldBlock)));
    store.section(FileId(1), wanted.key).unwrap();
    assert_eq!(
        *store
            .section_cached(FileId(1), wanted.key)
            .unwrap()
            .unwrap()
            .meta(),
        wanted
    );
    let bytes = store.try_read_cached(FileId(1), range.clone()).unwrap();
    assert_eq!(bytes, store.read(FileId(1), range).unwrap());
    let beyond = store.read(FileId(1), meta.bytes - 1..meta.bytes + 1);
    assert!(matches!(beyond, Err(ReadError::Damaged { .. })));
}

#[test]
fn a_deleted_file_gives_space_back_in_steps() {
    let (memory, disk) = memory();
    let model = vec![(key(1, 0), batches(0, &[1; 9], 1 << 20))];
    let meta = write(&disk, FileId(1), &model).unwrap();
    let store = SegmentStore::new(disk, MIB);
    store.section(FileId(1), key(1, 0)).unwrap();
    let steps = RefCell::new(Vec::new());
    store
        .delete_paced(FileId(1), &|bytes| steps.borrow_mut().push(bytes))
        .unwrap();
    let steps = steps.into_inner();
    assert_eq!(steps.iter().sum::<u64>(), meta.bytes);
    assert!(steps.len() == 3 && steps.iter().all(|step| *step <= 4 * MIB));
    assert!(memory.names().is_empty());
    let stats = store.cache_stats();
    assert_eq!(
        (stats.footers, stats.footer_bytes, stats.open_files),
        (0, 0, 0)
    );
    store.delete(FileId(1)).unwrap();
    let gone = store.section(FileId(1), key(1, 0)).unwrap_err();
    assert!(
        gone.to_string()
            .contains("segment file 1 is damaged: it is missing"),
        "{gone}"
    );
}

#[test]
fn aborted_transactions_stay_with_their_section() {
    let (_, disk) = memory();
    let aborted = |first| AbortedTransaction {
        producer_id: 9,
        first,
        last: 40,
        stable_after: 41,
    };
    let mut writer = SegmentWriter::create(&disk, FileId(1), &no_pace).unwrap();
    for index in [2, 0, 1] {
        writer.begin_section(key(1, index));
        writer.push(0, 50, 0, b"batch").unwrap();
        if index != 1 {
            writer.push_aborted(aborted(i64::from(index)));
            writer.push_aborted(aborted(10));
        }
    }
    writer.finish().unwrap();
    let store = SegmentStore::new(disk, MIB);
    let found = |index| -> Vec<_> {
        store
            .section(FileId(1), key(1, index))
            .unwrap()
            .unwrap()
            .aborted()
            .collect()
    };
    assert_eq!(found(0), [aborted(0), aborted(10)]);
    assert_eq!(found(1), []);
    assert_eq!(found(2), [aborted(2), aborted(10)]);
}

#[test]
fn foreign_names_are_no_segment_files() {
    for name in [
        "1.seg",
        "00000000000000000001.log",
        "+0000000000000000001.seg",
        "x",
    ] {
        assert_eq!(file_number(name), None);
    }
    let name = file_path(FileId(u64::MAX));
    assert_eq!(
        file_number(name.strip_prefix("segments/").unwrap()),
        Some(FileId(u64::MAX))
    );
}

#[test]
fn a_real_directory_serves_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(DiskDir::open_locked(folder.path()).unwrap());
    let meta = write(&disk, FileId(1), &small_model()).unwrap();
    write(&disk, FileId(2), &small_model()).unwrap();
    let store = SegmentStore::new(disk, MIB);
    assert!(store.verify(FileId(1)).unwrap().damage.is_empty());
    for section in &meta.sections {
        let range = section.position..section.position + section.bytes;
        let bytes = store.read(FileId(1), range.clone()).unwrap();
        match store.try_read_cached(FileId(1), range) {
            Ok(cached) => assert_eq!(cached, bytes),
            Err(error) => assert!(matches!(error, ReadError::WouldBlock), "{error}"),
        }
    }
    store.delete(FileId(1)).unwrap();
    assert_eq!(store.list_files().unwrap(), [FileId(2)]);
}
