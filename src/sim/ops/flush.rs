//! A flush, or a checkpoint, at any moment.

use std::io;

use crate::partition::maintenance::Worker;
use crate::sim::jobs::Sim;
use crate::sim::seen::Branch;

pub(super) fn run(sim: &Sim) {
    background(sim, Worker::flush);
}

pub(super) fn checkpoint(sim: &Sim) {
    background(sim, Worker::checkpoint);
    let mut world = sim.world.borrow_mut();
    if world.went_back && world.is_up() {
        world.went_back = false;
        world.seen.note(Branch::WentOnFromOlderRoot);
    }
}

fn background(sim: &Sim, job: fn(&mut Worker) -> io::Result<()>) {
    let directory = sim.world.borrow_mut().any_directory();
    sim.background_in(directory, |worker| match job(worker) {
        Err(error) if error.kind() == io::ErrorKind::StorageFull => Ok(()),
        done => done.map_err(|error| error.to_string()),
    });
}
