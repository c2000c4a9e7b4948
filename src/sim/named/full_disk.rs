//! No space in the middle of a flush, and again after each restart.

use super::Scene;
use crate::sim::ops::disk_full::Full;
use crate::sim::power::End;
use crate::sim::{check, ops};
use crate::store::backend::Disk;
use crate::types::DirectoryNo;

fn fill_disk(scene: &Scene, room: u64) {
    scene.world(|world| {
        let space = world.disk().memory.space().expect("a figure");
        let used = space.total - space.free;
        world.disk().memory.set_capacity(Some(used + room));
        // A restart that keeps the disk as full as it is.
        world.full = Some(Full {
            directory: DirectoryNo(0),
            steps: u64::MAX,
        });
        world.calm = true;
    });
}

/// What was not flushed before a restart takes its share of the tail's budget after it. If it did
/// not, each round would take in another tail's worth, and memory would grow with the restarts.
#[test]
fn a_tail_that_cannot_be_flushed_is_bounded_over_restarts() {
    let scene = Scene::new(1);
    let (key, limit) = (scene.key(0), scene.world(|world| world.options.tail_bytes));
    scene.append(key, 100);
    scene.settle();
    // Files for the journal are there; a segment file finds no room.
    scene.world(|world| while world.store().journal().files_step() {});
    for _ in 0..5 {
        for _ in 0..60 {
            scene.append(key, 4000);
        }
        scene.settle();
        let held = scene.world(|world| world.store().registry.first().tail_bytes());
        assert!(
            held as usize <= 2 * limit,
            "{held} bytes in a tail of {limit}"
        );
        fill_disk(&scene, 1000);
        scene.turn();
        scene.world(|world| {
            assert!(
                !world.store().registry.is_writable(),
                "client writes are refused"
            );
            // Room for the journal only.
            world.disk().memory.set_capacity(None);
        });
        scene.restart(End::Kill);
    }
    scene.turn();
    scene.turn();
    scene.append(key, 100);
    scene.settle();
    scene.check();
    let free = scene.world(|world| world.store().registry.first().free_tail_bytes());
    assert!(free >= limit / 2, "the room came back: {free} bytes");
}

/// Retention and deletion are what gives space back, so they must not wait for a flush.
#[test]
fn a_full_disk_gets_free_by_retention_alone() {
    let scene = Scene::with(
        crate::sim::store::Options::default(),
        1,
        Some(("retention.bytes", "1000")),
    );
    let key = scene.key(0);
    for _ in 0..3 {
        for _ in 0..8 {
            scene.append(key, 4000);
        }
        scene.settle();
        scene.flush();
    }
    for _ in 0..14 {
        scene.append(key, 4000);
    }
    scene.settle();
    scene.world(|world| while world.store().journal().files_step() {});
    fill_disk(&scene, 1000);
    scene.turn();
    assert!(!scene.world(|world| world.store().registry.is_writable()));
    let files = scene.world(|world| crate::sim::check::segment_files(&world.disk().memory).len());
    assert_eq!(files, 3);
    scene.world(|world| {
        world.clock.advance(std::time::Duration::from_secs(2));
        let sent = ops::append::batch(world, 1, 10, None);
        ops::append::submit(world, key, &sent);
        assert!(world.refused_while_full);
    });
    for _ in 0..4 {
        scene.turn();
        scene.settle();
        scene.world(|world| world.clock.advance(std::time::Duration::from_secs(2)));
    }
    let free = scene.world(|world| world.disk().memory.space().expect("a figure").free);
    assert!(free > 60_000, "retention gave back {free} bytes");
    scene.check();
}

/// Appends to a topic that keeps little until the gate closes: what takes the space is in the
/// journal, and nothing is left to delete.
fn journal_fills_the_disk(scene: &Scene) -> u64 {
    let key = scene.key(0);
    let capacity = scene.world(|world| {
        while world.store().journal().files_step() {}
        let space = world.disk().memory.space().expect("a figure");
        space.total - space.free + world.options.reserve_bytes + (700 << 10)
    });
    scene.world(|world| world.disk().memory.set_capacity(Some(capacity)));
    for round in 0..1000 {
        scene.append(key, 4000);
        scene.settle();
        scene.world(|world| {
            world.store().journal().files_step();
            world.clock.advance(std::time::Duration::from_millis(300));
        });
        let free = scene.world(|world| world.disk().memory.space().expect("a figure").free);
        if free < scene.world(|world| world.options.reserve_bytes) {
            break;
        }
        if round % 8 == 0 {
            scene.turn();
        }
    }
    scene.turn();
    scene.world(|world| {
        assert!(!world.store().registry.is_writable());
        let segments = check::segment_files(&world.disk().memory).len();
        assert!(segments <= 4, "{segments} files");
    });
    capacity
}

fn comes_back(scene: &Scene) {
    for _ in 0..12 {
        scene.turn();
        scene.world(|world| {
            let store = world.store();
            // Nobody appends: the journal alone has to let go.
            for _ in 0..30 {
                store.journal().step();
                store.journal().files_step();
                world.clock.advance(std::time::Duration::from_millis(20));
            }
        });
        scene.sim.merge();
        if scene.world(|world| world.store().registry.is_writable()) {
            scene.append(scene.key(0), 100);
            scene.settle();
            scene.check();
            return;
        }
    }
    let (free, names) = scene.world(|world| {
        let disk = &world.disk().memory;
        (disk.space().expect("a figure").free, disk.names())
    });
    panic!("still read-only with {free} bytes free: {names:?}");
}

#[test]
fn a_small_disk_full_of_journal_comes_back_by_itself() {
    let options = crate::sim::store::Options {
        checkpoint_bytes: 4 << 20,
        ..Default::default()
    };
    for restart in [false, true] {
        let scene = Scene::with(options.clone(), 1, Some(("retention.bytes", "1000")));
        let capacity = journal_fills_the_disk(&scene);
        if restart {
            scene.restart(End::Kill);
            scene.world(|world| world.disk().memory.set_capacity(Some(capacity)));
        }
        comes_back(&scene);
    }
}
