//! Damage at rest against torn tails, and directories that are not ours.

use proptest::prelude::*;

use super::super::group::{HEADER, Header, VERSION};
use super::world::{Random, World};
use super::*;

/// A store that wrote a few files, trimmed some, and went idle.
fn idle(seed: u64) -> World {
    let mut random = Random(seed);
    let mut world = World::new(options());
    for round in 0..30 {
        world.append(&mut random);
        while world.step().unwrap() {}
        if round % 10 == 9 && seed % 2 == 1 {
            world.trim(Position(world.acked.0 - 5));
        }
    }
    world.settle();
    world
}

/// Headers of all groups on a disk, with their files, in order of their numbers.
fn headers(disk: &MemoryDisk) -> Vec<(String, Header)> {
    let mut found = Vec::new();
    for name in disk.names() {
        let bytes = disk.contents(&name).unwrap();
        for block in bytes.chunks(4096) {
            if let Ok(header) = Header::decode(block) {
                found.push((name.clone(), header));
            }
        }
    }
    found.sort_by_key(|(_, header)| header.number);
    found
}

fn open_and_replay(world: &World, disk: &MemoryDisk) -> Result<Vec<Bytes>, JournalError> {
    let mut opened = FileJournal::open(Arc::new(disk.clone()), world.options.clone())?;
    replay(&mut opened, world.trimmed)
}

#[test]
fn a_flipped_bit_in_any_acknowledged_group_of_an_idle_store_is_corruption() {
    let mut world = idle(2);
    world.append_len(31, 700);
    world.settle();
    let groups = headers(&world.disk);
    let (_, mark) = groups.last().unwrap();
    assert_eq!((mark.entries, mark.synced_to), (0, mark.number - 1));
    for (name, header) in groups.iter().filter(|(_, header)| header.entries > 0) {
        let used = HEADER as u64 + u64::from(header.length);
        for at in [0, 33, 95, 96, used / 2, used - 1] {
            let damaged = world.disk.kill();
            assert!(damaged.flip(name, header.place + at, 4));
            let error = open_and_replay(&world, &damaged).unwrap_err();
            let JournalError::Corrupt {
                file, offset, from, ..
            } = &error
            else {
                panic!("{error}");
            };
            assert_eq!(*from, header.first.0);
            if at >= HEADER as u64 {
                assert_eq!((file, *offset), (name, header.place));
            }
            assert!(error.to_string().contains("nothing was cut"), "{error}");
            // Neither did the attempt change anything.
            assert!(damaged.flip(name, header.place + at, 4));
            assert_eq!(open_and_replay(&world, &damaged).unwrap(), world.appended);
        }
    }
}

#[test]
fn the_same_flip_in_a_group_nobody_knows_as_synced_is_a_torn_tail() {
    let mut world = World::new(options());
    for number in 1..=3 {
        world.append_len(number, 600);
        while world.step().unwrap() {}
    }
    let (name, last) = headers(&world.disk).pop().unwrap();
    assert_eq!(last.number, 3);
    let torn = world.disk.kill();
    torn.flip(&name, last.place + 300, 1);
    assert_eq!(open_and_replay(&world, &torn).unwrap(), world.appended[..2]);
    let mut opened = FileJournal::open(Arc::new(torn), options()).unwrap();
    let summary = opened
        .replay(Position(0), &mut |_| Ok(()), &|_, _| ())
        .unwrap();
    assert_eq!(summary.last, Position(2));
    // The first attempt wiped the torn group, so there is nothing to cut any more.
    assert_eq!(summary.cut, None);
}

#[test]
fn damage_is_cut_only_with_the_explicit_option() {
    let world = idle(4);
    let groups = headers(&world.disk);
    let data: Vec<_> = groups
        .iter()
        .filter(|(_, header)| header.entries > 0)
        .collect();
    for at in [0, 200] {
        let (name, bad) = data[data.len() / 2];
        let damaged = world.disk.kill();
        damaged.flip(name, bad.place + at, 1);
        let options = JournalOptions {
            allow_truncate_corruption: true,
            ..options()
        };
        let mut opened = FileJournal::open(Arc::new(damaged.clone()), options).unwrap();
        let kept = bad.first.0 as usize - 1;
        assert_eq!(
            replay(&mut opened, Position(0)).unwrap(),
            world.appended[..kept]
        );
        let summary = opened
            .replay(Position(0), &mut |_| Ok(()), &|_, _| ())
            .unwrap();
        assert!(summary.cut.unwrap().contains("as asked"));
        // From here on it is a journal as any other, after crashes too.
        let mut next = World::on(
            damaged,
            world.options.clone(),
            world.appended.clone(),
            Position(0),
        );
        assert_eq!(next.appended.len(), kept);
        let mut random = Random(9);
        for seed in 0..20 {
            next.append(&mut random);
            while next.step().unwrap() {}
            next.check(&next.disk.crash(seed), next.acked);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn no_flip_anywhere_loses_an_entry_in_silence(
        seed in 0u64..6,
        file in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        bit in 0u8..8,
    ) {
        let world = idle(seed);
        let names = world.disk.names();
        let name = &names[file.index(names.len())];
        let len = world.disk.contents(name).unwrap().len();
        world.disk.flip(name, at.index(len) as u64, 1 << bit);
        match open_and_replay(&world, &world.disk) {
            Ok(kept) => prop_assert_eq!(&kept, &world.appended[world.trimmed.0 as usize..]),
            Err(JournalError::Corrupt { .. }) => {}
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    #[test]
    fn arbitrary_files_never_open_as_groups(
        bytes in prop::collection::vec(any::<u8>(), 0..20_000),
    ) {
        let disk = MemoryDisk::new();
        disk.create_dir("journal").unwrap();
        disk.create("journal/00000001.log").unwrap().write_at(&bytes, 0).unwrap();
        let mut opened = FileJournal::open(Arc::new(disk), options()).unwrap();
        prop_assert_eq!(replay(&mut opened, Position(0)).unwrap().len(), 0);
    }
}

#[test]
fn recycled_files_with_groups_of_old_generations_are_read_up_to_the_new_ones() {
    let mut random = Random(5);
    let mut world = World::new(options());
    let mut generations = 0;
    for round in 0..200 {
        world.append_len(world.appended.len() as u64 + 1, 3000 + (round * 977) % 9000);
        while world.step().unwrap() {}
        world.trim(Position(world.acked.0.saturating_sub(4)));
        if round % 23 == 0 {
            let image = world.disk.crash(random.next());
            world = World::on(image, world.options, world.appended, world.trimmed);
            generations += 1;
        }
        world.check(&world.disk.crash(random.next()), world.acked);
    }
    assert!(generations > 5);
    let groups = headers(&world.disk);
    let old = groups
        .iter()
        .filter(|(_, header)| header.last() <= world.trimmed)
        .count();
    assert!(old > 10, "stale groups lie around: {old}");
    assert!(
        world.disk.names().len() <= 7,
        "files are reused: {:?}",
        world.disk.names()
    );
    assert!(world.writer.ledger.lock().live() < 3 << 20);
}

#[test]
fn a_needed_file_that_is_gone_is_missed() {
    let world = idle(6);
    let groups = headers(&world.disk);
    let first = groups[0].0.clone();
    let disk = world.disk.kill();
    disk.delete(&first).unwrap();
    let error = open_and_replay(&world, &disk).unwrap_err();
    assert!(matches!(error, JournalError::Corrupt { .. }), "{error}");
    for name in disk.names() {
        disk.delete(&name).unwrap();
    }
    let mut opened = FileJournal::open(Arc::new(disk), options()).unwrap();
    let error = replay(&mut opened, Position(7)).unwrap_err();
    assert!(
        matches!(error, JournalError::Missing { from: 1, to: 7 }),
        "{error}"
    );
}

#[test]
fn files_of_another_store_or_a_newer_version_are_refused() {
    let world = idle(2);
    let other = JournalOptions {
        store_id: Uuid::from_u128(1),
        ..options()
    };
    let error = FileJournal::open(Arc::new(world.disk.kill()), other)
        .err()
        .unwrap();
    assert!(matches!(error, JournalError::Foreign { .. }), "{error}");
    let disk = world.disk.kill();
    let (name, header) = headers(&disk).remove(0);
    let mut block = disk.contents(&name).unwrap()[..HEADER].to_vec();
    block[4] = VERSION + 1;
    let crc = crc32c::crc32c(&block[..HEADER - 4]);
    block[HEADER - 4..].copy_from_slice(&crc.to_le_bytes());
    disk.open(&name)
        .unwrap()
        .write_at(&block, header.place)
        .unwrap();
    let error = FileJournal::open(Arc::new(disk), options()).err().unwrap();
    assert!(
        matches!(error, JournalError::Newer { found, .. } if found == VERSION + 1),
        "{error}"
    );
    let disk = MemoryDisk::new();
    disk.create_dir("journal").unwrap();
    disk.create("journal/notes.txt").unwrap();
    let error = FileJournal::open(Arc::new(disk), options()).err().unwrap();
    assert!(error.to_string().contains("notes.txt"), "{error}");
}

#[test]
fn a_receiver_that_refuses_stops_replay() {
    let world = idle(2);
    let mut opened = FileJournal::open(Arc::new(world.disk.kill()), options()).unwrap();
    let mut left = 3;
    let mut refuse = |_| {
        left -= 1;
        if left == 0 {
            Err("no room".to_owned())
        } else {
            Ok(())
        }
    };
    let error = opened
        .replay(Position(0), &mut refuse, &|_, _| ())
        .unwrap_err();
    assert!(error.to_string().contains("no room"), "{error}");
}
