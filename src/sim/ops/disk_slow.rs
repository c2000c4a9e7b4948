//! Syncs of a disk get slow, or quick again.

use crate::sim::world::World;

pub(super) fn run(world: &mut World) {
    let permille = match world.random.one_in(2) {
        true => 0,
        false => world.random.below(1000),
    };
    let directory = world.any_directory();
    world.disks.of(directory).slow_syncs(permille);
}
