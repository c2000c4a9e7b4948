//! A bit flips in a group that was acknowledged, and the group looks like a torn tail.

use super::Scene;
use crate::sim::check;

/// Bytes of the header, the entry and its payload of each group.
fn flip_each(scene: &Scene, groups: u64) {
    for place in 0..groups {
        for at in (0..140).step_by(10) {
            scene.world(|world| {
                let copy = world.disk().memory.kill();
                assert!(copy.flip("journal/00000001.log", place * 4096 + at, 0x40));
                let opened = check::open_copy(vec![copy], &world.clock, &world.options);
                let reason = opened.err();
                let reason = reason.unwrap_or_else(|| panic!("group {place} was cut at byte {at}"));
                assert!(reason.contains("is damaged at byte"), "{reason}");
                assert!(reason.contains("nothing was cut"), "{reason}");
            });
        }
    }
}

#[test]
fn a_flipped_bit_in_an_acknowledged_group_is_damage_also_in_the_last_one_of_an_idle_store() {
    let scene = Scene::new(1);
    let key = scene.key(0);
    for _ in 0..3 {
        scene.append(key, 300);
        scene.settle();
    }
    scene.go_idle();
    // The topic's creation and three batches.
    flip_each(&scene, 4);
}
