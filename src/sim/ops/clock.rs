//! Time passes, and now and then somebody sets the clock.

use std::time::Duration;

use crate::sim::seen::Branch;
use crate::sim::world::World;

const DAY_MS: i64 = 24 * 3_600_000;

pub(super) fn pass(world: &mut World) {
    let ms = world.random.below(400);
    world.clock.advance(Duration::from_millis(ms));
    world.store().groups.serve_due();
}

pub(super) fn jump(world: &mut World) {
    let days = 1 + world.random.below(3) as i64;
    let back = world.random.one_in(2);
    world.clock.jump(if back { -days } else { days } * DAY_MS);
    world.seen.note(Branch::ClockJump);
}
