//! A flush, or a checkpoint, at any moment.

use std::io;

use crate::partition::maintenance::Worker;
use crate::sim::world::Sim;

pub(super) fn run(sim: &Sim) {
    background(sim, Worker::flush);
}

pub(super) fn checkpoint(sim: &Sim) {
    background(sim, Worker::checkpoint);
}

fn background(sim: &Sim, job: fn(&mut Worker) -> io::Result<()>) {
    sim.background(|worker| match job(worker) {
        Err(error) if error.kind() == io::ErrorKind::StorageFull => Ok(()),
        done => done.map_err(|error| error.to_string()),
    });
}
