//! A turn of the maintenance thread: whatever is due.

use crate::sim::check;
use crate::sim::jobs::Sim;
use crate::sim::seen::Branch;

pub(super) fn run(sim: &Sim) {
    let before = {
        let mut world = sim.world.borrow_mut();
        world.follow();
        check::files(&world);
        let shared = check::shared_files(&world);
        world.shared_files.extend(shared);
        check::files_on_disk(&world)
    };
    let directory = sim.world.borrow_mut().any_directory();
    sim.background_in(directory, |worker| worker.turn(false));
    let mut world = sim.world.borrow_mut();
    let after = check::files_on_disk(&world);
    for file in before.iter().filter(|file| !after.contains(file)) {
        world.seen.note(Branch::FileDeleted);
        if world.shared_files.contains(file) {
            world.seen.note(Branch::SharedFileDeleted);
        }
    }
}
