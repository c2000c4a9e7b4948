//! Crashes at every write, over many seeds.

use super::world::{Random, World};
use super::*;
use crate::store::backend::faults::{Fault, FaultDisk, Op, Rule};

/// How often each rare thing happened; a run in which one never did proves little.
#[derive(Debug, Default)]
struct Seen {
    torn: u64,
    recycled: u64,
    killed_then_lost: u64,
    recovery_stopped: u64,
    oversized: u64,
    empty_tail: u64,
    lost_unacked: u64,
}

fn run(seed: u64, sync: SyncPolicy, seen: &mut Seen) {
    let mut random = Random(seed);
    let options = JournalOptions { sync, ..options() };
    let always = sync == SyncPolicy::Always;
    let mut world = World::new(options.clone());
    for _ in 0..60 {
        for _ in 0..random.below(6) {
            world.append(&mut random);
        }
        if random.one_in(12) && world.acked > Position(0) {
            // A checkpoint was published: only behind what a power cut leaves.
            let safe = world.writer.core.synced_last();
            world.trim(Position(random.below(safe.0 + 1)));
        }
        for _ in 0..random.below(5) {
            world.step().unwrap();
            check_crash(&world, &mut random, always, seen);
        }
        if random.one_in(10) {
            world
                .clock
                .advance(Duration::from_millis(random.below(120)));
        }
        if random.one_in(15) {
            world = go_on_after_stop(world, &mut random, seen);
        }
    }
    let before = world.disk.names().len();
    world.settle();
    seen.recycled += u64::from(world.trimmed > Position(0) && before > 2);
    world.check(&world.disk.crash(seed), world.acked);
}

fn least(world: &World, always: bool) -> Position {
    if always {
        world.acked
    } else {
        world.writer.core.synced_last()
    }
}

fn check_crash(world: &World, random: &mut Random, always: bool, seen: &mut Seen) {
    let least = least(world, always);
    let image = world.disk.crash(random.next());
    let kept = world.check(&image, least);
    seen.lost_unacked += u64::from(kept < world.appended.len());
    // What was served after recovery stays, whatever happens next.
    let again = world.check(&image.crash(random.next()), Position(kept as u64));
    assert_eq!(kept, again);
    if random.one_in(4) {
        // Killed: the next process serves un-synced bytes out of the page cache; then power loss.
        let image = world.disk.kill();
        let kept = world.check(&image, world.acked.max(least));
        let lost = image.crash(random.next());
        assert_eq!(kept, world.check(&lost, Position(kept as u64)));
        seen.killed_then_lost += 1;
    }
    if random.one_in(4) {
        // Recovery itself is stopped by an error, then the power fails.
        let image = world.disk.crash(random.next());
        let faults = FaultDisk::new(Arc::new(image.clone()), random.next());
        let op = [Op::Write, Op::Sync, Op::SyncDir, Op::Create][random.below(4) as usize];
        let fault = if op == Op::Write {
            Fault::Torn
        } else {
            Fault::Eio
        };
        faults.add(Rule::new(op, "", fault).after(random.below(3)).times(1));
        if FileJournal::open(Arc::new(faults.clone()), world.options.clone()).is_err() {
            seen.recovery_stopped += 1;
        }
        world.check(&image.crash(random.next()), least);
    }
}

fn go_on_after_stop(world: World, random: &mut Random, seen: &mut Seen) -> World {
    let image = match random.below(3) {
        0 => world.disk.kill(),
        _ => world.disk.crash(random.next()),
    };
    let torn = {
        let options = world.options.clone();
        let mut opened = FileJournal::open(Arc::new(image.kill()), options).unwrap();
        let nothing = &mut |_| Ok(());
        opened
            .replay(world.trimmed, nothing, &|_, _| ())
            .unwrap()
            .cut
            .is_some()
    };
    seen.torn += u64::from(torn);
    seen.oversized += u64::from(world.appended.iter().any(|p| p.len() > 64 * 1024));
    let (appended, trimmed) = (world.appended, world.trimmed);
    let next = World::on(image, world.options, appended, trimmed);
    seen.empty_tail += u64::from(next.appended.len() as u64 == trimmed.0);
    next
}

fn run_seeds(count: u64, sync: SyncPolicy) {
    // More on request: JOURNAL_SEEDS=100000 cargo test --release crash.
    let wanted = std::env::var("JOURNAL_SEEDS")
        .ok()
        .and_then(|n| n.parse().ok());
    let mut seen = Seen::default();
    let first = std::env::var("JOURNAL_SEED")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(0);
    for seed in first..first + wanted.unwrap_or(count) {
        let run = std::panic::AssertUnwindSafe(|| run(seed, sync, &mut seen));
        if let Err(panic) = std::panic::catch_unwind(run) {
            eprintln!("failed with seed {seed}, {sync:?}");
            std::panic::resume_unwind(panic);
        }
    }
    let rare = [
        seen.torn,
        seen.recycled,
        seen.killed_then_lost,
        seen.recovery_stopped,
        seen.oversized,
        seen.lost_unacked,
    ];
    assert!(
        rare.iter().all(|n| *n > 0),
        "something rare never happened: {seen:?}"
    );
}

#[test]
fn acknowledged_entries_survive_a_crash_at_every_step() {
    run_seeds(16, SyncPolicy::Always);
}

#[test]
fn with_an_interval_synced_entries_survive_a_crash_at_every_step() {
    run_seeds(16, SyncPolicy::Interval(Duration::from_millis(40)));
}

#[test]
fn the_same_seed_gives_the_same_disk() {
    let images: Vec<_> = (0..2)
        .map(|_| {
            let mut random = Random(11);
            let mut world = World::new(options());
            for _ in 0..40 {
                world.append(&mut random);
                world.step().unwrap();
            }
            world.settle();
            let names = world.disk.names();
            names
                .into_iter()
                .map(|n| world.disk.contents(&n))
                .collect::<Vec<_>>()
        })
        .collect();
    assert!(images[0] == images[1]);
}

#[test]
fn a_write_torn_by_the_device_acknowledges_nothing() {
    for seed in 0..50 {
        let disk = MemoryDisk::new();
        let faults = FaultDisk::new(Arc::new(disk.clone()), seed);
        let opened = FileJournal::open(Arc::new(faults.clone()), options()).unwrap();
        let clock = Arc::new(super::world::ManualClock::default());
        let mut writer = opened.into_writer(clock, 0);
        faults.add(Rule::new(Op::Write, "", Fault::Torn).after(1));
        let (mut acked, mut error) = (0, None);
        for number in 1..4 {
            writer.inbox.push(entry(number, 5000));
            let mut event = writer.look();
            loop {
                use super::super::writer::Outcome;
                match writer.step(event) {
                    Ok(Outcome::Next(next)) => event = next,
                    Ok(Outcome::Committed(group)) => {
                        acked = group.last.0;
                        break;
                    }
                    Ok(_) => break,
                    Err(message) => {
                        error = Some(message);
                        break;
                    }
                }
            }
            if error.is_some() {
                break;
            }
        }
        assert_eq!(acked, 1);
        assert!(error.unwrap().contains("cannot write to"));
        let mut opened = FileJournal::open(Arc::new(disk.crash(seed)), options()).unwrap();
        let kept = replay(&mut opened, Position(0)).unwrap();
        // The torn group was never acknowledged; it may be there only as a whole.
        assert!((1..=2).contains(&kept.len()));
    }
}
