//! A look at what a power loss right now would leave; the store goes on.

use crate::sim::check;
use crate::sim::world::World;
use crate::store::journal::SyncPolicy;

pub(super) fn run(world: &mut World) {
    let synced = world.store().journal.synced();
    let least = match world.options.sync {
        SyncPolicy::Always => world.shown,
        SyncPolicy::Interval(_) => world.shown.min(synced),
    };
    check::probe_power_loss(world, least);
}
