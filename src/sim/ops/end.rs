//! The process ends: now, or at a disk operation soon.

use crate::sim::power::End;
use crate::sim::seen::Branch;
use crate::sim::world::World;

fn kind(world: &mut World) -> End {
    match world.random.one_in(3) {
        true => End::Kill,
        false => End::PowerLoss,
    }
}

pub(super) fn now(world: &mut World) {
    let end = kind(world);
    world.end(end);
}

pub(super) fn soon(world: &mut World) {
    let end = kind(world);
    let after = world.random.below(60);
    world.disks.end_after(after, end);
}

/// Notes why a process that runs no more ended.
pub(super) fn note(world: &mut World) {
    if world.disks.is_on() && world.store().journal_failure().is_some() {
        world.seen.note(Branch::JournalFailed);
    }
}
