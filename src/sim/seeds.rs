//! Random histories, many of them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::check;
use super::jobs::Sim;
use super::net;
use super::ops;
use super::random::Random;
use super::seen::Seen;
use super::store::Options;
use super::world::World;
use crate::store::journal::SyncPolicy;

/// Seeds without a word in the environment.
const SEEDS: u64 = 240;
const STEPS: u64 = 500;

fn options(seed: u64) -> Options {
    let mut random = Random::new(seed ^ 0x0b71);
    Options {
        sync: match random.below(5) {
            0 => SyncPolicy::Interval(Duration::from_millis(30)),
            _ => SyncPolicy::Always,
        },
        tail_bytes: [24 << 10, 64 << 10, 128 << 10][random.below(3) as usize],
        checkpoint_bytes: [16 << 10, 64 << 10][random.below(2) as usize],
        // With the smallest, a batch may be larger than a whole file.
        journal_file_bytes: [64 << 10, 8 << 10, 32 << 10][random.below(3) as usize],
        directories: 1 + random.below(2) as u16,
        ..Options::default()
    }
}

/// Runs a history to its end: faults, then calm, then a last start.
fn run(seed: u64) -> (Seen, Vec<String>) {
    let sim = Sim::new(seed, options(seed));
    for number in 0..from_environment("SHARDGATE_SIM_STEPS", STEPS) {
        ops::step(&sim, number);
    }
    settle(&sim);
    let mut world = sim.world.borrow_mut();
    world.restart();
    check::visible(&world);
    (world.seen.clone(), std::mem::take(&mut world.trace))
}

/// Nothing goes wrong any more: whatever was asked for is done after a while.
fn settle(sim: &Sim) {
    {
        let mut world = sim.world.borrow_mut();
        world.calm = true;
        world.restart();
    }
    for _ in 0..4 {
        sim.turn_everywhere(false);
        sim.world.borrow().clock.advance(Duration::from_secs(2));
    }
    {
        let mut world = sim.world.borrow_mut();
        assert!(world.is_up(), "the store gave up without a fault");
        assert!(world.store().is_writable(), "no client may write");
        net::settle(&mut world);
    }
    // Answers that were not read have let go of their files, and so have fetches that waited. What
    // a turn's last flush writes of deleted records goes in a later one.
    for _ in 0..12 {
        sim.turn_everywhere(false);
        let mut world = sim.world.borrow_mut();
        world.clock.advance(Duration::from_secs(2));
        net::settle(&mut world);
        if check::is_no_file_left(&world) {
            break;
        }
    }
    let mut world = sim.world.borrow_mut();
    world.follow();
    check::no_file_is_left(&world);
    append_everywhere(&mut world);
    world.store().settle();
    world.follow();
    assert_eq!(world.store().durable(), world.store().appended());
    assert!(world.answers.is_empty(), "an answer never left");
    assert_eq!(world.model.durable, world.model.sequenced);
    check::visible(&world);
}

fn append_everywhere(world: &mut World) {
    let keys: Vec<_> = world.model.durable.logs.keys().copied().collect();
    for key in keys {
        let sent = ops::append::batch(world, 1, 10, None);
        ops::append::submit(world, key, &sent);
    }
}

fn from_environment(name: &str, otherwise: u64) -> u64 {
    let value = std::env::var(name).ok();
    value.and_then(|v| v.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn every_seed_keeps_its_promises_and_all_together_see_every_rare_branch() {
    let count = from_environment("SHARDGATE_SIM_SEEDS", SEEDS);
    let first = from_environment("SHARDGATE_SIM_FROM", 1);
    let next = AtomicU64::new(first);
    let failed = AtomicBool::new(false);
    let work = || {
        let mut seen = Seen::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + count || failed.load(Ordering::Relaxed) {
                return seen;
            }
            let done = seed - first;
            if done > 0 && done.is_multiple_of(500) {
                println!("{done} of {count} seeds");
            }
            if std::env::var_os("SHARDGATE_SIM_TRACE").is_some() {
                println!("seed {seed}");
            }
            let ran = std::panic::catch_unwind(|| run(seed));
            match ran {
                Ok((one, _)) => seen.add(&one),
                Err(panic) => {
                    failed.store(true, Ordering::Relaxed);
                    eprintln!(
                        "seed {seed} failed: SHARDGATE_SIM_FROM={seed} SHARDGATE_SIM_SEEDS=1"
                    );
                    std::panic::resume_unwind(panic);
                }
            }
        }
    };
    let mut seen = Seen::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            match thread.join() {
                Ok(one) => seen.add(&one),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    println!("{seen:?}");
    if count >= SEEDS {
        assert_eq!(seen.missing(), [], "branches that no seed took");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [3, 8, 21] {
        let (seen, trace) = run(seed);
        let (again_seen, again) = run(seed);
        for (step, (one, two)) in trace.iter().zip(&again).enumerate() {
            assert_eq!(one, two, "seed {seed}, line {step}");
        }
        assert_eq!(trace.len(), again.len());
        assert_eq!(seen, again_seen);
    }
}
