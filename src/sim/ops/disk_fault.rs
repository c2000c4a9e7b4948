//! The device fails an operation: EIO, or a write of which only a part arrives.

use crate::sim::disk::SimDisk;
use crate::sim::random::Random;
use crate::sim::world::World;
use crate::store::backend::faults::{Fault, Op, Rule};

const OPS: [Op; 7] = [
    Op::Write,
    Op::Sync,
    Op::SyncDir,
    Op::Create,
    Op::Rename,
    Op::Delete,
    Op::Read,
];
const FOLDERS: [&str; 3] = ["journal", "segments", "checkpoint"];

pub(super) fn run(world: &mut World) {
    let directory = world.any_directory();
    let disk = world.disks.of(directory).clone();
    add(&mut world.random, &disk);
}

/// Lets one of the next operations of some kind fail.
pub(in crate::sim) fn add(random: &mut Random, disk: &SimDisk) {
    let op = OPS[random.below(OPS.len() as u64) as usize];
    let folder = FOLDERS[random.below(3) as usize];
    let fault = match op == Op::Write && random.one_in(2) {
        true => Fault::Torn,
        false => Fault::Eio,
    };
    let after = random.below(6);
    let rule = Rule::new(op, folder, fault).after(after).times(1);
    disk.faults.add(rule);
}
