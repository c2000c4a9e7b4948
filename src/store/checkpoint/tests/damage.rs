//! Damaged files, files of later versions, and read errors.

use super::*;

#[test]
fn any_flipped_byte_of_any_file_leaves_a_root_that_is_whole() {
    let steps = history();
    let (disk, store) = holding(&steps);
    let newer = &store.roots[1];
    let mut of_newer: BTreeSet<_> = newer.sections.values().map(section_name).collect();
    of_newer.insert(root_name(newer.number));
    for name in disk.names() {
        let is_newer = of_newer.iter().any(|file| path(file) == name);
        let found = &steps[..if is_newer { 3 } else { 4 }];
        for at in 0..disk.contents(&name).unwrap().len() as u64 {
            for mask in [1, 0x80, 0xff] {
                assert!(disk.flip(&name, at, mask));
                let (damaged, loaded) = open(&disk).unwrap();
                assert_eq!(loaded, expected(found), "byte {at} of {name}");
                assert_eq!(damaged.damaged_files() > 0, damaged.roots.len() < 2);
                assert!(disk.flip(&name, at, mask));
            }
        }
        let copy = disk.kill();
        copy.delete(&name).unwrap();
        assert_eq!(open(&copy).unwrap().1, expected(found), "without {name}");
    }
    assert_eq!(open(&disk).unwrap().1, expected(&steps));
}

/// A section of the root that goes may have been damaged at rest long after it was written.
#[test]
fn a_damaged_file_is_not_named_again() {
    let steps = history();
    let (disk, mut store) = holding(&steps[..3]);
    let old = store.roots[0].sections[&0];
    assert!(disk.flip(&path(&section_name(&old)), 35, 1));
    let next = [&steps[..3], &[step(35, &[9], &[])]].concat();
    publish(&mut store, &next).unwrap();
    assert_eq!(store.damaged_files(), 1);
    check_files(&disk, &store);
    assert_eq!(open(&disk).unwrap().1, expected(&next));
}

#[test]
fn after_falling_back_publications_go_on() {
    let steps = history();
    let (disk, _) = holding(&steps[..3]);
    assert!(disk.flip(&newest_root(&disk), 30, 1));
    let (mut store, loaded) = open(&disk).unwrap();
    assert_eq!(loaded, expected(&steps[..2]));
    let all = [&steps[..2], &steps[3..]].concat();
    publish(&mut store, &all).unwrap();
    check_files(&disk, &store);
    let (again, loaded) = open(&disk).unwrap();
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
fn two_damaged_roots_are_told_and_nothing_is_changed() {
    let (disk, store) = holding(&history());
    for root in &store.roots {
        assert!(disk.flip(&path(&root_name(root.number)), 35, 1));
    }
    let before = disk.names();
    let (store, loaded) = open(&disk).unwrap();
    assert_eq!((loaded, store.damage().len()), (None, 2));
    assert_eq!(store.trim_through(), Position(0));
    assert_eq!(disk.names(), before);
}

#[test]
fn the_first_root_damaged_leaves_the_whole_journal() {
    let (disk, _) = holding(&history()[..1]);
    assert!(disk.flip(&newest_root(&disk), 12, 1));
    let (mut store, loaded) = open(&disk).unwrap();
    assert_eq!(loaded, None);
    let next = [step(50, &[3], &[])];
    publish(&mut store, &next).unwrap();
    assert_eq!(open(&disk).unwrap().1, expected(&next));
}

#[test]
fn verify_names_every_damaged_file_and_changes_nothing() {
    let (disk, store) = holding(&history());
    let verify = |disk: &MemoryDisk| CheckpointStore::verify(Arc::new(disk.clone())).unwrap();
    let names = disk.names();
    let good = verify(&disk);
    assert_eq!((good.roots, good.roots + good.sections), (2, names.len()));
    assert!(good.damage.is_empty());
    let older = path(&section_name(&store.roots[0].sections[&1]));
    assert!(disk.flip(&older, 3, 1));
    disk.delete(&path(&section_name(&store.roots[1].sections[&9])))
        .unwrap();
    let found = verify(&disk).damage;
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("section-0000000001-") && found[0].contains("checksum"));
    assert!(found[1].contains("section-0000000009-") && found[1].contains("missing"));
    assert_eq!(verify(&MemoryDisk::new()), Verified::default());
}

/// Its release has been at work on the whole directory, whichever root it is.
#[test]
fn a_later_version_is_refused_and_not_taken_for_damage() {
    let (disk, store) = holding(&history());
    for root in &store.roots {
        let disk = disk.kill();
        let name = path(&root_name(root.number));
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
}

#[test]
fn a_read_error_is_not_taken_for_damage_where_the_file_is_needed() {
    let (disk, store) = holding(&history());
    let newer = &store.roots[1];
    let sections = newer.sections.values().map(section_name);
    for name in sections.chain([root_name(newer.number)]) {
        let faulty = FaultDisk::new(Arc::new(disk.kill()), 0);
        faulty.add(Rule::new(Op::Read, &path(&name), Fault::Eio));
        let error = CheckpointStore::open(Arc::new(faulty)).err().unwrap();
        assert!(matches!(error, CheckpointError::Io { .. }), "{error}");
    }
}

#[test]
fn a_read_error_of_the_older_root_is_told_and_the_newer_one_used() {
    let steps = history();
    let (disk, store) = holding(&steps);
    let older = path(&root_name(store.roots[0].number));
    let faulty = FaultDisk::new(Arc::new(disk.clone()), 0);
    faulty.add(Rule::new(Op::Read, &older, Fault::Eio));
    let (mut store, loaded) = CheckpointStore::open(Arc::new(faulty)).unwrap();
    assert_eq!(loaded, expected(&steps));
    assert_eq!((store.damaged_files(), store.damage().len()), (1, 1));
    assert!(store.damage()[0].contains("cannot be read"));
    assert_eq!(store.trim_through(), Position(0));
    let next = [&steps[..], &[step(50, &[3], &[])]].concat();
    publish(&mut store, &next).unwrap();
    assert!(disk.contents(&older).is_none(), "it made room for the next");
    assert_eq!(open(&disk).unwrap().1, expected(&next));
}
