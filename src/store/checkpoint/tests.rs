//! Tests of the checkpoint: crashes at every disk operation, damage of every byte, a model.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::store::backend::disk::DiskDir;
use crate::store::backend::faults::{Fault, FaultDisk, Rule};
use crate::store::backend::memory::MemoryDisk;

/// What one publication brings.
#[derive(Clone, Debug)]
struct Step {
    captured: u64,
    changed: Vec<(u32, Bytes)>,
    removed: Vec<u32>,
}

fn payload(slot: u32, captured: u64) -> Bytes {
    Bytes::from(format!("slot {slot} as of {captured}").into_bytes())
}

fn step(captured: u64, changed: &[u32], removed: &[u32]) -> Step {
    let changed = changed
        .iter()
        .map(|slot| (*slot, payload(*slot, captured)))
        .collect();
    Step {
        captured,
        changed,
        removed: removed.to_vec(),
    }
}

fn root_payload(captured: u64) -> Bytes {
    Bytes::from(format!("root as of {captured}").into_bytes())
}

fn publish(store: &mut CheckpointStore, step: &Step) -> io::Result<()> {
    let root = root_payload(step.captured);
    store.publish(
        Position(step.captured),
        root,
        step.changed.clone(),
        &step.removed,
    )
}

/// The state after all of `steps`; `None` after none.
fn expected(steps: &[Step]) -> Option<Loaded> {
    let last = steps.last()?;
    let mut sections = BTreeMap::new();
    for step in steps {
        for slot in &step.removed {
            sections.remove(slot);
        }
        sections.extend(step.changed.iter().cloned());
    }
    Some(Loaded {
        captured: Position(last.captured),
        root: root_payload(last.captured),
        sections: sections.into_iter().collect(),
    })
}

fn history() -> Vec<Step> {
    vec![
        step(10, &[0, 1, 2, 5], &[]),
        step(20, &[1], &[5]),
        step(30, &[2, 7], &[]),
        step(40, &[0, 9], &[7]),
    ]
}

fn open(disk: &MemoryDisk) -> Result<(CheckpointStore, Option<Loaded>), CheckpointError> {
    CheckpointStore::open(Arc::new(disk.clone()))
}

/// A disk that holds the given publications.
fn holding(steps: &[Step]) -> (MemoryDisk, CheckpointStore) {
    let disk = MemoryDisk::new();
    let (mut store, none) = open(&disk).unwrap();
    assert_eq!(none, None);
    for step in steps {
        publish(&mut store, step).unwrap();
    }
    (disk, store)
}

/// Names of files that neither of the roots kept in memory names, or that are missing.
fn check_files(disk: &MemoryDisk, store: &CheckpointStore) {
    let mut wanted: Vec<String> = Vec::new();
    for root in &store.roots {
        wanted.push(path(&root_name(root.number)));
        wanted.extend(
            root.sections
                .values()
                .map(|section| path(&section_name(section))),
        );
    }
    wanted.sort();
    wanted.dedup();
    assert_eq!(disk.names(), wanted);
}

/// A store on a disk to which faults can be added.
fn open_faulty(disk: &MemoryDisk) -> (FaultDisk, CheckpointStore) {
    let faulty = FaultDisk::new(Arc::new(disk.clone()), 1);
    let (store, _) = CheckpointStore::open(Arc::new(faulty.clone())).unwrap();
    (faulty, store)
}

#[test]
fn each_publication_is_found_again() {
    let steps = history();
    for n in 0..=steps.len() {
        let (disk, store) = holding(&steps[..n]);
        let oldest = if n >= 2 { steps[n - 2].captured } else { 0 };
        assert_eq!(store.trim_through(), Position(oldest));
        let (again, loaded) = open(&disk).unwrap();
        assert_eq!(loaded, expected(&steps[..n]));
        assert_eq!(again.trim_through(), Position(oldest));
        check_files(&disk, &again);
    }
}

#[test]
fn only_changed_sections_are_written() {
    let big = Bytes::from(vec![3; 3 << 20]);
    let disk = MemoryDisk::new();
    let (mut store, _) = open(&disk).unwrap();
    store
        .publish(Position(1), Bytes::new(), vec![(0, big.clone())], &[])
        .unwrap();
    let before = store.written_bytes();
    assert!(before > 3 << 20);
    store
        .publish(
            Position(2),
            Bytes::new(),
            vec![(1, Bytes::from_static(b"x"))],
            &[],
        )
        .unwrap();
    assert!(store.written_bytes() - before < 200);
    let (_, loaded) = open(&disk).unwrap();
    assert_eq!(
        loaded.unwrap().sections,
        [(0, big), (1, Bytes::from_static(b"x"))]
    );
}

#[test]
fn a_crash_at_any_operation_leaves_the_old_state_or_the_new() {
    let steps = history();
    let (mut found_old, mut found_new) = (0, 0);
    for n in 0..steps.len() {
        let mut nth = 0;
        loop {
            let (disk, before) = holding(&steps[..n]);
            let (faulty, mut store) = open_faulty(&disk);
            faulty.add(Rule {
                skip: nth,
                ..all_fail()
            });
            let done = publish(&mut store, &steps[n]).is_ok();
            for seed in 0..12 {
                let after = disk.crash(seed);
                let (mut store_after, loaded) = open(&after).unwrap();
                let new = loaded == expected(&steps[..=n]);
                assert!(
                    new || loaded == expected(&steps[..n]),
                    "step {n}, operation {nth}"
                );
                assert!(new || !done, "step {n}: a finished publication was lost");
                found_new += u32::from(new && !done);
                found_old += u32::from(!new);
                // The journal may have been trimmed as the store before the crash allowed.
                let captured = loaded.map_or(Position(0), |state| state.captured);
                assert!(captured >= before.trim_through().max(store.trim_through()));

                let next = step(99, &[1, 42], &[0]);
                let mut all = steps[..if new { n + 1 } else { n }].to_vec();
                all.push(next.clone());
                publish(&mut store_after, &next).unwrap();
                check_files(&after, &store_after);
                assert_eq!(open(&after).unwrap().1, expected(&all));
            }
            if done {
                break;
            }
            nth += 1;
        }
        assert!(nth > 5);
    }
    assert!(found_old > 0 && found_new > 0);
}

#[test]
fn the_fallback_holds_at_every_crash_too() {
    // Whatever was trimmed from the journal, the older root alone must be enough.
    let steps = history();
    let mut nth = 0;
    loop {
        let (disk, _) = holding(&steps[..3]);
        let (faulty, mut store) = open_faulty(&disk);
        faulty.add(Rule {
            skip: nth,
            ..all_fail()
        });
        let done = publish(&mut store, &steps[3]).is_ok();
        for seed in 0..12 {
            let after = disk.crash(seed);
            let newest = roots(&after).pop().unwrap();
            assert!(after.flip(&newest, 20, 1));
            let (_, loaded) = open(&after).unwrap();
            let captured = loaded.unwrap().captured;
            assert!(captured >= store.trim_through(), "operation {nth}");
            // A third root that comes back must not be believed once the journal is trimmed.
            if let [.., second, _] = &roots(&after)[..] {
                assert!(after.flip(second, 20, 1));
                let captured = open(&after)
                    .ok()
                    .and_then(|(_, loaded)| Some(loaded?.captured));
                let trimmed = store.trim_through();
                assert!(
                    captured.is_none_or(|captured| captured >= trimmed),
                    "operation {nth}"
                );
            }
        }
        if done {
            break;
        }
        nth += 1;
    }
}

fn all_fail() -> Rule {
    let prefix = String::new();
    Rule {
        op: None,
        prefix,
        skip: 0,
        times: u64::MAX,
        permille: 1000,
        fault: Fault::Eio,
    }
}

/// Root files, ascending.
fn roots(disk: &MemoryDisk) -> Vec<String> {
    let prefix = path("root-");
    disk.names()
        .into_iter()
        .filter(|name| name.starts_with(&prefix))
        .collect()
}

fn newest_root(disk: &MemoryDisk) -> String {
    roots(disk).pop().unwrap()
}

#[test]
fn no_space_at_any_operation_then_the_same_changes_again() {
    let steps = history();
    let mut nth = 0;
    loop {
        let (disk, _) = holding(&steps[..3]);
        let (faulty, mut store) = open_faulty(&disk);
        faulty.add(Rule {
            skip: nth,
            times: 1,
            fault: Fault::Enospc,
            ..all_fail()
        });
        let first = publish(&mut store, &steps[3]);
        if let Err(error) = &first {
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
            publish(&mut store, &steps[3]).unwrap();
        }
        check_files(&disk, &store);
        for seed in 0..5 {
            assert_eq!(open(&disk.crash(seed)).unwrap().1, expected(&steps));
        }
        if first.is_ok() && faulty.hits() == 0 {
            break;
        }
        nth += 1;
    }
    assert!(nth > 5);
}

#[test]
fn any_flipped_byte_of_the_newest_files_leads_to_the_older_root() {
    let steps = history();
    let (disk, store) = holding(&steps);
    let [older, newer] = &store.roots[..] else {
        panic!("{} roots", store.roots.len())
    };
    let mut only_new = vec![root_name(newer.number)];
    let named_by_older: Vec<_> = older.sections.values().collect();
    let fresh = newer
        .sections
        .values()
        .filter(|section| !named_by_older.contains(section));
    only_new.extend(fresh.map(section_name));
    assert_eq!(only_new.len(), 3);
    for name in only_new.iter().map(|name| path(name)) {
        for at in 0..disk.contents(&name).unwrap().len() as u64 {
            for mask in [1, 0x80, 0xff] {
                assert!(disk.flip(&name, at, mask));
                let (damaged, loaded) = open(&disk).unwrap();
                assert_eq!(loaded, expected(&steps[..3]), "byte {at} of {name}");
                assert_eq!(damaged.trim_through(), Position(0));
                assert!(disk.flip(&name, at, mask));
            }
        }
        let copy = disk.kill();
        copy.delete(&name).unwrap();
        assert_eq!(
            open(&copy).unwrap().1,
            expected(&steps[..3]),
            "without {name}"
        );
    }
    assert_eq!(open(&disk).unwrap().1, expected(&steps));
}

#[test]
fn after_falling_back_publications_go_on() {
    let steps = history();
    let (disk, _) = holding(&steps[..3]);
    assert!(disk.flip(&newest_root(&disk), 30, 1));
    let (mut store, loaded) = open(&disk).unwrap();
    assert_eq!(loaded, expected(&steps[..2]));
    publish(&mut store, &steps[3]).unwrap();
    check_files(&disk, &store);
    let (again, loaded) = open(&disk).unwrap();
    let all = [&steps[..2], &steps[3..]].concat();
    assert_eq!(loaded, expected(&all));
    assert_eq!(again.trim_through(), Position(20));
}

#[test]
fn a_damaged_older_root_stops_trimming_only() {
    let steps = history();
    let (disk, store) = holding(&steps);
    let older = path(&root_name(store.roots[0].number));
    assert!(disk.flip(&older, 40, 1));
    let (damaged, loaded) = open(&disk).unwrap();
    assert_eq!(loaded, expected(&steps));
    assert_eq!(damaged.trim_through(), Position(0));
}

#[test]
fn damage_of_what_both_roots_need_is_told_and_changes_nothing() {
    let steps = history();
    let (disk, store) = holding(&steps);
    let shared = store.roots[1].sections[&1];
    assert_eq!(store.roots[0].sections[&1], shared);
    assert!(disk.flip(&path(&section_name(&shared)), 35, 1));
    let before = disk.names();
    let error = open(&disk).err().unwrap();
    let words = error.to_string();
    assert!(
        words.contains(&section_name(&shared)) && words.contains("from a copy"),
        "{words}"
    );
    assert_eq!(disk.names(), before);
}

#[test]
fn the_first_root_damaged_leaves_the_whole_journal() {
    let (disk, _) = holding(&history()[..1]);
    assert!(disk.flip(&newest_root(&disk), 12, 1));
    let (mut store, loaded) = open(&disk).unwrap();
    assert_eq!(loaded, None);
    let next = step(50, &[3], &[]);
    publish(&mut store, &next).unwrap();
    assert_eq!(open(&disk).unwrap().1, expected(&[next]));
}

#[test]
fn verify_names_every_damaged_file_and_changes_nothing() {
    let (disk, store) = holding(&history());
    let verify = |disk: &MemoryDisk| CheckpointStore::verify(Arc::new(disk.clone())).unwrap();
    let names = disk.names();
    let good = verify(&disk);
    assert_eq!((good.roots, good.roots + good.sections), (2, names.len()));
    assert!(good.damage.is_empty());
    let shared = path(&section_name(&store.roots[0].sections[&1]));
    assert!(disk.flip(&shared, 3, 1));
    disk.delete(&path(&section_name(&store.roots[1].sections[&9])))
        .unwrap();
    let found = verify(&disk).damage;
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("section-0000000001-") && found[0].contains("checksum"));
    assert!(found[1].contains("section-0000000009-") && found[1].contains("missing"));
    assert_eq!(verify(&MemoryDisk::new()), Verified::default());
}

#[test]
fn a_later_version_is_refused_and_not_taken_for_damage() {
    let (disk, _) = holding(&history());
    let name = newest_root(&disk);
    let mut bytes = disk.contents(&name).unwrap();
    bytes[8] = 2;
    let end = bytes.len() - 4;
    let crc = files::end_of(&[&bytes[..end]]);
    bytes[end..].copy_from_slice(&crc);
    disk.open(&name).unwrap().write_at(&bytes, 0).unwrap();
    let error = open(&disk).err().unwrap();
    assert!(
        matches!(error, CheckpointError::Newer { version: 2, .. }),
        "{error}"
    );
}

#[test]
fn a_read_error_is_not_taken_for_damage() {
    let (disk, _) = holding(&history());
    let faulty = FaultDisk::new(Arc::new(disk), 0);
    faulty.add(Rule::new(
        crate::store::backend::faults::Op::Read,
        "checkpoint",
        Fault::Eio,
    ));
    let error = CheckpointStore::open(Arc::new(faulty)).err().unwrap();
    assert!(matches!(error, CheckpointError::Io { .. }), "{error}");
}

#[test]
fn a_real_directory_serves_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(DiskDir::open_locked(folder.path()).unwrap());
    let (mut store, _) = CheckpointStore::open(Arc::clone(&disk)).unwrap();
    for step in history() {
        publish(&mut store, &step).unwrap();
    }
    let (again, loaded) = CheckpointStore::open(disk).unwrap();
    assert_eq!(loaded, expected(&history()));
    assert_eq!(again.trim_through(), Position(30));
}

/// The layout that `docs/formats.md` draws. It changes only together with the version.
#[test]
fn files_have_the_bytes_of_version_1() {
    let (disk, store) = holding(&[step(10, &[3], &[])]);
    let section = path(&section_name(&store.roots[0].sections[&3]));
    let hex = |name: &str| -> String {
        disk.contents(name)
            .unwrap()
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect()
    };
    assert_eq!(
        hex(&section),
        [
            "534743484b534543010000000300000001000000000000000f00000000000000",
            "736c6f742033206173206f66203130",
            "0229c29f",
        ]
        .concat()
    );
    assert_eq!(
        hex(&newest_root(&disk)),
        [
            "534743484b524f54010000000100000001000000000000000a000000000000000d00000000000000",
            "0300000001000000000000000f00000079c7ca1e",
            "726f6f74206173206f66203130",
            "88cc27ab",
        ]
        .concat()
    );
}

fn any_changes() -> impl Strategy<Value = BTreeMap<u32, Vec<u8>>> {
    let payload = prop::collection::vec(any::<u8>(), 0..300);
    prop::collection::btree_map(0u32..8, payload, 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_history_is_found_again(
        shapes in prop::collection::vec(
            (
                any_changes(),
                prop::collection::vec(0u32..8, 0..4),
                any::<bool>(),
            ),
            1..10,
        ),
    ) {
        let disk = MemoryDisk::new();
        let mut store = open(&disk).unwrap().0;
        let mut steps = Vec::new();
        for (n, (changed, removed, reopen)) in (1..).zip(shapes) {
            let changed = changed.into_iter().map(|(slot, bytes)| (slot, bytes.into())).collect();
            steps.push(Step { captured: n, changed, removed });
            publish(&mut store, steps.last().unwrap()).unwrap();
            check_files(&disk, &store);
            if reopen {
                let (again, loaded) = open(&disk).unwrap();
                prop_assert_eq!(loaded, expected(&steps));
                prop_assert_eq!(again.trim_through(), store.trim_through());
                store = again;
            }
        }
        prop_assert_eq!(open(&disk.crash(1)).unwrap().1, expected(&steps));
    }

    #[test]
    fn any_bytes_are_a_root_or_an_error(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        right in any::<bool>(),
    ) {
        let mut bytes = bytes;
        if right {
            let mut whole = b"SGCHKROT\x01\0\0\0".to_vec();
            whole.append(&mut bytes);
            let crc = files::end_of(&[&whole]);
            whole.extend_from_slice(&crc);
            bytes = whole;
        }
        if let Ok(root) = RootFile::parse(Bytes::from(bytes.clone()), 7) {
            prop_assert_eq!(root.encode(), bytes);
        }
    }
}
