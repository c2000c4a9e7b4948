//! The disk fills up for a while.

use crate::sim::seen::Branch;
use crate::sim::world::World;
use crate::store::backend::Disk;

pub(super) fn run(world: &mut World) {
    if world.full_for.is_some() {
        return;
    }
    let space = world.disk.memory.space().expect("a figure");
    let used = space.total - space.free;
    // Around the reserve, so that the gate closes at once, soon, or not at all.
    let reserve = world.options.reserve_bytes;
    let room = match world.random.one_in(3) {
        true => world.random.below(24 << 10),
        false => reserve / 2 + world.random.below(reserve),
    };
    world.disk.memory.set_capacity(Some(used + room));
    world.full_for = Some(40 + world.random.below(160));
    world.refused_while_full = false;
}

/// A step passed; the disk may have room again.
pub(super) fn tick(world: &mut World) {
    if world.disk.segments_full() > 0 {
        world.seen.note(Branch::FlushWithoutSpace);
    }
    match world.full_for {
        Some(0) if !world.disk.is_on() => {}
        Some(0) => {
            world.disk.memory.set_capacity(None);
            world.full_for = None;
        }
        Some(left) => world.full_for = Some(left - 1),
        None if world.refused_while_full && world.store().registry.is_writable() => {
            world.refused_while_full = false;
            world.seen.note(Branch::DiskFullAndBack);
        }
        None => {}
    }
}
