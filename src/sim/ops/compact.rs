//! The coordinator writes a group log anew, or lets commits of deleted topics go.

use std::sync::Arc;

use crate::sim::net;
use crate::sim::seen::Branch;
use crate::sim::world::World;

pub(super) fn run(world: &mut World) {
    let groups = Arc::clone(&world.store().groups);
    if world.random.one_in(3) {
        groups.clean_up();
        // A group of which nothing was left starts from its first generation again.
        for group in net::GROUPS {
            if matches!(groups.describe(group), Ok(held) if held.value.is_none()) {
                world.net.forget_group(group);
            }
        }
        return;
    }
    let index = world.random.below(2) as i32;
    if groups.compact(index).is_ok() {
        world.seen.note(Branch::GroupLogCompacted);
    }
}
