//! A disk fills up for a while.

use crate::sim::seen::Branch;
use crate::sim::world::World;
use crate::store::backend::Disk;
use crate::types::DirectoryNo;

/// A disk without room.
#[derive(Clone, Copy, Debug)]
pub(in crate::sim) struct Full {
    /// Whose.
    pub(in crate::sim) directory: DirectoryNo,
    /// Steps until it has room again.
    pub(in crate::sim) steps: u64,
}

pub(super) fn run(world: &mut World) {
    if world.full.is_some() {
        return;
    }
    let directory = world.any_directory();
    let disk = world.disks.of(directory).memory.clone();
    let space = disk.space().expect("a figure");
    let used = space.total - space.free;
    // Around the reserve, so that the gate closes at once, soon, or not at all.
    let reserve = world.options.reserve_bytes;
    let room = match world.random.one_in(3) {
        true => world.random.below(24 << 10),
        false => reserve / 2 + world.random.below(reserve),
    };
    disk.set_capacity(Some(used + room));
    world.full = Some(Full {
        directory,
        steps: 40 + world.random.below(160),
    });
    world.refused_while_full = false;
}

/// A step passed; the disk may have room again.
pub(super) fn tick(world: &mut World) {
    if world.disks.iter().any(|disk| disk.segments_full() > 0) {
        world.seen.note(Branch::FlushWithoutSpace);
    }
    match world.full {
        Some(Full { steps: 0, .. }) if !world.disks.is_on() => {}
        Some(Full {
            steps: 0,
            directory,
        }) => {
            world.disks.of(directory).memory.set_capacity(None);
            world.full = None;
        }
        Some(full) => {
            let steps = full.steps - 1;
            world.full = Some(Full { steps, ..full });
        }
        None if world.refused_while_full && world.store().is_writable() => {
            world.refused_while_full = false;
            world.seen.note(Branch::DiskFullAndBack);
        }
        None => {}
    }
}
