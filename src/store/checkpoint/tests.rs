//! Tests of the checkpoint: crashes at every disk operation, damage of every byte, a model.

mod damage;

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::store::backend::disk::DiskDir;
use crate::store::backend::faults::{Fault, FaultDisk, Op, Rule};
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

/// Publishes the state after all of `steps`.
fn publish(store: &mut CheckpointStore, steps: &[Step]) -> io::Result<()> {
    let state = expected(steps).expect("a step");
    store.publish(state.captured, state.root, &state.sections)
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
    for n in 0..steps.len() {
        publish(&mut store, &steps[..=n]).unwrap();
    }
    (disk, store)
}

/// The folder holds what the kept roots name and nothing else, and no file belongs to two of them.
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
fn a_section_is_written_twice_and_then_kept() {
    let big = Bytes::from(vec![3; 3 << 20]);
    let disk = MemoryDisk::new();
    let (mut store, _) = open(&disk).unwrap();
    let mut written = Vec::new();
    for n in 1..=6 {
        let before = store.written_bytes();
        let slots = [(0, big.clone()), (1, payload(1, n))];
        store.publish(Position(n), Bytes::new(), &slots).unwrap();
        written.push(store.written_bytes() - before > 1000);
        check_files(&disk, &store);
        if n == 4 {
            store = open(&disk).unwrap().0;
        }
    }
    assert_eq!(written, [true, true, false, false, false, false]);
}

/// A store of a release whose roots shared the files of unchanged sections.
fn sharing(steps: &[Step]) -> MemoryDisk {
    let (disk, store) = holding(steps);
    let [older, newer] = &store.roots[..] else {
        panic!("two roots")
    };
    let mut file = store.read_root(newer.number).unwrap();
    for (slot, section) in &mut file.0.sections {
        let old = older.sections.get(slot);
        if let Some(old) = old.filter(|old| old.crc == section.crc) {
            disk.delete(&path(&section_name(section))).unwrap();
            *section = *old;
        }
    }
    let name = path(&root_name(newer.number));
    disk.delete(&name).unwrap();
    let root = RootFile {
        number: newer.number,
        captured: newer.captured,
        sections: file.0.sections.into_values().collect(),
        payload: file.1,
    };
    let handle = disk.create(&name).unwrap();
    handle.write_at(&root.encode(), 0).unwrap();
    handle.sync_data().unwrap();
    disk.sync_dir(FOLDER).unwrap();
    disk
}

#[test]
fn the_first_publication_over_shared_files_gives_each_root_its_own() {
    let steps = history();
    let disk = sharing(&steps[..3]);
    let (mut store, loaded) = open(&disk).unwrap();
    assert_eq!(loaded, expected(&steps[..3]));
    assert_eq!(store.roots[0].sections[&0], store.roots[1].sections[&0]);
    publish(&mut store, &steps).unwrap();
    check_files(&disk, &store);
    assert_eq!(open(&disk).unwrap().1, expected(&steps));
}

/// What makes one damaged file harmless, whenever the power fails: also while the roots of an
/// earlier release share files, in the publication that ends it, as long as that is complete.
#[test]
fn a_crash_at_any_operation_and_any_one_file_damaged() {
    let steps = history();
    let mut judged = 0;
    for n in 1..steps.len() {
        let mut nth = 0;
        loop {
            let (disk, before) = holding(&steps[..n]);
            let (faulty, mut store) = open_faulty(&disk);
            faulty.add(Rule {
                skip: nth,
                ..all_fail()
            });
            let done = publish(&mut store, &steps[..=n]).is_ok();
            let trimmed = before.trim_through().max(store.trim_through());
            for seed in 0..4 {
                let crashed = disk.crash(seed);
                for name in crashed.names() {
                    let after = crashed.kill();
                    match seed % 2 {
                        0 => after.delete(&name).unwrap(),
                        // A file that was never synced may be empty.
                        _ => _ = after.flip(&name, 21, 1),
                    }
                    check_damaged(&after, &steps, trimmed, &format!("{n} {nth} {name}"));
                    judged += 1;
                }
            }
            if done {
                break;
            }
            nth += 1;
        }
    }
    assert!(judged > 500, "{judged}");
}

/// A start finds a state that the trimmed journal completes, and from there everything goes on.
fn check_damaged(disk: &MemoryDisk, steps: &[Step], trimmed: Position, case: &str) {
    let (mut store, loaded) = open(disk).unwrap();
    let captured = loaded.as_ref().map_or(Position(0), |state| state.captured);
    assert!(captured >= trimmed, "{case}: the journal begins later");
    let known = steps.iter().filter(|step| step.captured <= captured.0);
    let mut known: Vec<_> = known.cloned().collect();
    assert_eq!(loaded, expected(&known), "{case}");
    for captured in [90, 91] {
        known.push(step(captured, &[1], &[]));
        publish(&mut store, &known).unwrap();
    }
    check_files(disk, &store);
    assert_eq!(open(disk).unwrap().1, expected(&known), "{case}");
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
            let done = publish(&mut store, &steps[..=n]).is_ok();
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

                let mut all = steps[..if new { n + 1 } else { n }].to_vec();
                all.push(step(99, &[1, 42], &[0]));
                publish(&mut store_after, &all).unwrap();
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
        let done = publish(&mut store, &steps).is_ok();
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
        let first = publish(&mut store, &steps);
        if let Err(error) = &first {
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
            publish(&mut store, &steps).unwrap();
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
fn a_real_directory_serves_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(DiskDir::open_locked(folder.path()).unwrap());
    let (mut store, _) = CheckpointStore::open(Arc::clone(&disk)).unwrap();
    for n in 1..=4 {
        publish(&mut store, &history()[..n]).unwrap();
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
            publish(&mut store, &steps).unwrap();
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
