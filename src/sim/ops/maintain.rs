//! A turn of the maintenance thread: whatever is due.

use crate::sim::check::segment_files;
use crate::sim::seen::Branch;
use crate::sim::world::Sim;

pub(super) fn run(sim: &Sim) {
    let before = segment_files(&sim.world.borrow().disk.memory);
    sim.background(|worker| worker.turn(false));
    let mut world = sim.world.borrow_mut();
    let after = segment_files(&world.disk.memory);
    if before.iter().any(|file| !after.contains(file)) {
        world.seen.note(Branch::FileDeleted);
    }
}
