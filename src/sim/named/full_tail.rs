//! The tail is full, and what would empty it stands in the same queue as those who wait for room.

use super::Scene;
use crate::sim::ops;
use crate::sim::seen::Branch;

#[test]
fn a_flush_needs_no_room_in_the_tail_for_its_own_entry() {
    let scene = Scene::new(1);
    let key = scene.key(0);
    let is_full = || scene.world(|world| world.seen.count(Branch::TailFull) > 0);
    while !is_full() {
        scene.append(key, 5000);
    }
    // Log starts, commits and catalog changes pass as well.
    scene.world(|world| {
        ops::commit::commit(world, "g0", "a", 0, 1);
        ops::topic_create::create(world, "b", 1, None);
        world.store().settle();
    });
    scene.turn();
    scene.world(|world| {
        let free = world.store().registry.first().free_tail_bytes();
        assert!(
            free >= world.options.tail_bytes / 2,
            "{free} bytes are free"
        );
        world.seen = crate::sim::seen::Seen::default();
    });
    scene.append(key, 5000);
    assert!(!is_full());
    scene.settle();
    scene.check();
}
