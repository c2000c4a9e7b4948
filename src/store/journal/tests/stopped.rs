//! Starts that were stopped half way, and went on with what the page cache showed.

use super::world::{Random, World};
use super::*;
use crate::store::backend::faults::{Fault, FaultDisk, Op, Rule};

/// Opens the disk with an error at the `skip`th write or sync. Pages that a failed sync had to
/// write count as clean afterwards, as with Linux, and are not on the device.
fn open_and_fail(disk: &MemoryDisk, options: &JournalOptions, op: Op, skip: u64) -> bool {
    let faults = FaultDisk::new(Arc::new(disk.clone()), skip);
    faults.add(Rule::new(op, "journal", Fault::Eio).after(skip).times(1));
    match FileJournal::open(Arc::new(faults), options.clone()) {
        Err(JournalError::Io { what, .. }) => {
            if let Some(name) = what.strip_prefix("sync ") {
                disk.fail_sync(name);
            }
            true
        }
        Err(other) => panic!("{other}"),
        Ok(_) => false,
    }
}

/// A life of short processes: each appends, some until all is acknowledged, and is killed or loses
/// its power; some of the starts after it fail half way once or twice.
fn live(seed: u64) -> (u64, u64) {
    let mut random = Random(seed);
    // Small files, so that most groups go into another one.
    let options = JournalOptions {
        file_bytes: 16 * 1024,
        first_zero_bytes: 8 * 1024,
        max_group: 8 * 1024,
        ..options()
    };
    let mut world = World::new(options);
    let (mut stopped, mut cut) = (0, 0);
    for _ in 0..12 {
        for _ in 0..random.below(4) {
            world.append(&mut random);
        }
        match random.one_in(2) {
            true => world.settle(),
            false => {
                for _ in 0..random.below(6) {
                    world.step().unwrap();
                }
            }
        }
        let image = match random.below(3) {
            0 => world.disk.kill(),
            _ => world.disk.crash(random.next()),
        };
        for _ in 0..random.below(3) {
            let op = [Op::Write, Op::Sync][random.below(2) as usize];
            let failed = open_and_fail(&image, &world.options, op, random.below(4));
            stopped += u64::from(failed);
        }
        let least = world.acked;
        let appended = world.appended.len();
        world = World::on(image, world.options, world.appended, Position(0));
        assert!(
            world.acked >= least,
            "seed {seed}: acknowledged entries are lost"
        );
        cut += u64::from(world.appended.len() < appended);
    }
    (stopped, cut)
}

#[test]
fn what_a_stopped_start_wiped_in_the_page_cache_only_never_comes_back() {
    // More on request: JOURNAL_SEEDS=100000 cargo test --release stopped.
    let wanted = std::env::var("JOURNAL_SEEDS").ok();
    let seeds = wanted.and_then(|n| n.parse().ok()).unwrap_or(400);
    let (mut stopped, mut cut) = (0, 0);
    for seed in 0..seeds {
        let seen =
            std::panic::catch_unwind(|| live(seed)).unwrap_or_else(|_| panic!("seed {seed}"));
        stopped += seen.0;
        cut += seen.1;
    }
    assert!(stopped > seeds / 4 && cut > seeds / 4, "{stopped}, {cut}");
}
