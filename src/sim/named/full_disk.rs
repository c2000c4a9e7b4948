//! No space in the middle of a flush, and again after each restart.

use super::Scene;
use crate::sim::disk::End;
use crate::sim::ops;
use crate::store::backend::Disk;

fn fill_disk(scene: &Scene, room: u64) {
    scene.world(|world| {
        let space = world.disk.memory.space().expect("a figure");
        let used = space.total - space.free;
        world.disk.memory.set_capacity(Some(used + room));
        // A restart that keeps the disk as full as it is.
        world.full_for = Some(u64::MAX);
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
    scene.world(|world| while world.store().journal.files_step() {});
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
            world.disk.memory.set_capacity(None);
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
    scene.world(|world| while world.store().journal.files_step() {});
    fill_disk(&scene, 1000);
    scene.turn();
    assert!(!scene.world(|world| world.store().registry.is_writable()));
    let files = scene.world(|world| crate::sim::check::segment_files(&world.disk.memory).len());
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
    let free = scene.world(|world| world.disk.memory.space().expect("a figure").free);
    assert!(free > 60_000, "retention gave back {free} bytes");
    scene.check();
}
