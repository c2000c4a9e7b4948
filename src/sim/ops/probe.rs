//! A look at what a power loss right now would leave; the store goes on.

use crate::sim::check;
use crate::sim::world::World;
use crate::store::journal::SyncPolicy;

pub(super) fn run(world: &mut World) {
    if world.options.sync == SyncPolicy::Always {
        check::probe_power_loss(world);
    }
}
