//! Merging: nothing wanted is lost, nothing damaged is copied.

use super::*;

fn all(_: PartitionKey) -> Option<Offset> {
    Some(0)
}

/// Cuts each section of a model at a batch, giving two models to merge again.
fn halves(model: &Model) -> [Model; 2] {
    let mut halves = [Vec::new(), Vec::new()];
    for (key, batches) in model {
        let (one, two) = batches.split_at(batches.len() / 2);
        for (half, part) in halves.iter_mut().zip([one, two]) {
            if !part.is_empty() {
                half.push((*key, part.to_vec()));
            }
        }
    }
    halves
}

#[test]
fn sections_of_one_partition_are_joined() {
    let (_, disk) = memory();
    let model = small_model();
    let [one, two] = halves(&model);
    write(&disk, FileId(1), &one).unwrap();
    write(&disk, FileId(2), &two).unwrap();
    let store = SegmentStore::new(disk, MIB);
    let sources = [2, 1].map(|file| Source {
        store: &store,
        file: FileId(file),
        keep: &all,
    });
    let meta = merge(&store, &sources, FileId(3), &no_pace)
        .unwrap()
        .unwrap();
    assert_eq!(store.meta(FileId(3)).unwrap(), meta);
    assert_eq!(meta.sections.len(), model.len());
    for (key, batches) in &model {
        let section = store.section(FileId(3), *key).unwrap().unwrap();
        assert_eq!(section.meta().start, batches[0].base);
        assert_eq!(section.meta().end, batches[batches.len() - 1].last + 1);
        assert_eq!(
            section.meta().max_timestamp,
            batches.iter().map(|b| b.max_timestamp).max().unwrap()
        );
        let range = section.meta().position..section.end_position();
        assert_eq!(store.read(FileId(3), range).unwrap(), joined(batches));
    }
    assert!(store.verify(FileId(3)).unwrap().damage.is_empty());
}

#[test]
fn clips_and_floors_leave_out_what_is_not_wanted() {
    let (_, disk) = memory();
    write(&disk, FileId(1), &small_model()).unwrap();
    let store = SegmentStore::new(disk, MIB);
    let whole = store.section(FileId(1), key(1, 0)).unwrap().unwrap();
    let floor = 120;
    let keep = |k: PartitionKey| match k {
        k if k == key(1, 0) => Some(floor),
        // Wholly below its floor.
        k if k == key(2, 7) => Some(4),
        _ => None,
    };
    let sources = [Source {
        store: &store,
        file: FileId(1),
        keep: &keep,
    }];
    let meta = merge(&store, &sources, FileId(2), &no_pace)
        .unwrap()
        .unwrap();
    let [section] = &meta.sections[..] else {
        panic!("{meta:?}")
    };
    let cut = whole.blocks().find(|block| block.end > floor).unwrap();
    assert!(cut.start > whole.meta().start);
    assert_eq!((section.start, section.end), (cut.start, whole.meta().end));
    let kept = store
        .read(FileId(1), cut.range.start..whole.end_position())
        .unwrap();
    let range = section.position..section.position + section.bytes;
    assert_eq!(store.read(FileId(2), range).unwrap(), kept);
}

#[test]
fn nothing_kept_makes_no_file() {
    let (_, disk) = memory();
    write(&disk, FileId(1), &small_model()).unwrap();
    let store = SegmentStore::new(disk, MIB);
    let sources = [Source {
        store: &store,
        file: FileId(1),
        keep: &|_| None,
    }];
    assert_eq!(merge(&store, &sources, FileId(2), &no_pace).unwrap(), None);
    assert_eq!(store.list_files().unwrap(), [FileId(1)]);
}

#[test]
fn a_gap_or_an_overlap_is_refused() {
    for second in [4, 2] {
        let (_, disk) = memory();
        write(&disk, FileId(1), &vec![(key(1, 0), batches(0, &[3], 10))]).unwrap();
        write(
            &disk,
            FileId(2),
            &vec![(key(1, 0), batches(second, &[3], 10))],
        )
        .unwrap();
        let store = SegmentStore::new(disk, MIB);
        let sources = [1, 2].map(|file| Source {
            store: &store,
            file: FileId(file),
            keep: &all,
        });
        let error = merge(&store, &sources, FileId(3), &no_pace).unwrap_err();
        assert!(
            error.to_string().contains("sections of 1/0 do not join"),
            "{error}"
        );
        assert_eq!(store.list_files().unwrap(), [FileId(1), FileId(2)]);
    }
}

#[test]
fn damage_is_never_copied() {
    let (memory, disk) = memory();
    let model = small_model();
    write(&disk, FileId(1), &model).unwrap();
    let store = SegmentStore::new(disk, MIB);
    let sources = [Source {
        store: &store,
        file: FileId(1),
        keep: &all,
    }];
    for (key, batches) in &model {
        let section = store.section(FileId(1), *key).unwrap().unwrap();
        for position in positions(&section, batches) {
            assert!(memory.flip(&file_path(FileId(1)), position, 1));
            let error = merge(&store, &sources, FileId(2), &no_pace).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
            assert_eq!(store.list_files().unwrap(), [FileId(1)]);
            assert!(memory.flip(&file_path(FileId(1)), position, 1));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_merge_of_halves_reads_as_the_whole(mut model in any_model()) {
        // A log before compaction has no gaps.
        for (_, batches) in &mut model {
            let mut next = batches[0].base;
            for batch in batches {
                let records = batch.last - batch.base;
                (batch.base, batch.last) = (next, next + records);
                next += records + 1;
            }
        }
        let (_, disk) = memory();
        for (file, half) in (1..).zip(halves(&model)) {
            write(&disk, FileId(file), &half).unwrap();
        }
        let store = SegmentStore::new(disk, MIB);
        let sources = [1, 2].map(|file| Source { store: &store, file: FileId(file), keep: &all });
        merge(&store, &sources, FileId(3), &no_pace).unwrap().unwrap();
        for (key, batches) in &model {
            let section = store.section(FileId(3), *key).unwrap().unwrap();
            let range = section.meta().position..section.end_position();
            prop_assert_eq!(store.read(FileId(3), range).unwrap(), joined(batches));
            let positions = positions(&section, batches);
            for batch in batches {
                let found = section.seek(batch.base);
                let at = positions.iter().position(|p| *p == found).unwrap();
                prop_assert!(batches[at].base <= batch.base);
            }
            for timestamp in -1..60 {
                let found = section.seek_time(timestamp);
                let before = batches.iter().zip(&positions).filter(|(_, p)| **p < found);
                prop_assert!(before.into_iter().all(|(b, _)| b.max_timestamp < timestamp));
            }
        }
    }
}
