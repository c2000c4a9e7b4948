//! A turn of the maintenance thread: whatever is due.

use crate::sim::check::{self, segment_files};
use crate::sim::seen::Branch;
use crate::sim::world::Sim;

pub(super) fn run(sim: &Sim) {
    let before = {
        let mut world = sim.world.borrow_mut();
        world.follow();
        check::files(&world);
        let shared = check::shared_files(&world);
        world.shared_files.extend(shared);
        segment_files(&world.disk.memory)
    };
    sim.background(|worker| worker.turn(false));
    let mut world = sim.world.borrow_mut();
    let after = segment_files(&world.disk.memory);
    for file in before.iter().filter(|file| !after.contains(file)) {
        world.seen.note(Branch::FileDeleted);
        if world.shared_files.contains(file) {
            world.seen.note(Branch::SharedFileDeleted);
        }
    }
}
