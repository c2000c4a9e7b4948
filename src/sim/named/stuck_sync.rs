//! A sync of the journal that does not come back: nothing of it is told, and all of it is kept or
//! lost together.

use std::sync::Arc;

use super::Scene;
use crate::sim::ops::{self, disk_stuck};
use crate::sim::power::End;
use crate::types::DirectoryNo;

/// A scene whose journal waits for a sync, with one durable batch before it and one behind it.
fn stuck() -> Scene {
    let scene = Scene::new(1);
    let key = scene.key(0);
    scene.append(key, 100);
    scene.settle();
    scene.world(|world| disk_stuck::stick(world, DirectoryNo(0), 50));
    scene.append(key, 200);
    let journal = scene.world(|world| Arc::clone(world.store().journal()));
    while !journal.awaits_sync() {
        journal.step();
    }
    scene.append(key, 300);
    for _ in 0..20 {
        journal.step();
        journal.commit_step();
        scene.world(disk_stuck::tick);
    }
    scene
}

#[test]
fn nothing_is_told_while_a_sync_is_stuck_and_all_of_it_after() {
    let scene = stuck();
    scene.world(|world| {
        assert!(world.disk().stays_stuck());
        assert_eq!(world.answers.len(), 2, "no answer left");
        // Whoever asks again is told of the same offset, and no sooner.
        ops::commit::commit(world, "g0", "a", 0, 1);
    });
    scene.settle();
    scene.world(|world| assert!(world.answers.is_empty(), "an answer never left"));
    scene.check();
}

#[test]
fn a_crash_while_a_sync_is_stuck_takes_back_only_what_nobody_was_told() {
    for end in [End::PowerLoss, End::Kill] {
        let scene = stuck();
        scene.restart(end);
        let key = scene.key(0);
        scene.append(key, 400);
        scene.settle();
        scene.check();
    }
}
