//! A look at what a power loss right now would leave; the store goes on.

use crate::sim::check;
use crate::sim::world::World;
use crate::store::journal::SyncPolicy;

pub(super) fn run(world: &mut World) {
    let synced = world.store().synced();
    let least = match world.options.sync {
        SyncPolicy::Always => world.shown.clone(),
        SyncPolicy::Interval(_) => world.shown.least(&synced),
    };
    check::probe_power_loss(world, &least);
}
