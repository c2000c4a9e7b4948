//! The process is stopped in good order: a last flush and checkpoint, then the journal's end.

use std::sync::Arc;

use crate::sim::jobs::Sim;
use crate::sim::seen::Branch;
use crate::store::journal::Journal;

pub(super) fn run(sim: &Sim) {
    sim.turn_everywhere(true);
    let mut world = sim.world.borrow_mut();
    if !world.is_up() {
        return;
    }
    let homes = world.store().homes.iter();
    let journals: Vec<_> = homes.map(|home| Arc::clone(&home.journal)).collect();
    for journal in journals {
        journal.close();
        if !world.is_up() {
            return;
        }
        world.follow();
        assert_eq!(
            journal.durable(),
            journal.appended(),
            "all of it is durable"
        );
        assert!(journal.is_marked(), "and known to be");
    }
    world.seen.note(Branch::Stopped);
    // Nobody is left; the machine may lose its power or not.
    world.restart();
}
