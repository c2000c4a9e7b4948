//! The process ends at each disk operation of a flush, a checkpoint and a clean-up: between the
//! segment file and its folder, the folder and the `segments` entry, the entry and the list swap,
//! the swap and the trim, the entry that takes files out and their deletion.

use super::Scene;
use crate::sim::power::End;
use crate::sim::store::Options;

/// Far more operations than one round of background work has.
const MOST: u64 = 400;

fn end_at(operation: u64, end: End, damaged_starts: u64) -> bool {
    let options = Options {
        checkpoint_bytes: 1,
        ..Options::default()
    };
    let scene = Scene::with(options, 2, Some(("retention.bytes", "3000")));
    let id = scene.producer_id();
    for round in 0..3 {
        for sequence in 0..4 {
            let sent = scene.batch(900, Some((id, round * 4 + sequence)));
            scene.send(scene.key(0), &sent);
            scene.append(scene.key(1), 300);
            scene.settle();
        }
        if round < 2 {
            scene.checkpoint();
        }
    }
    scene.world(|world| {
        world.damaged_starts = damaged_starts;
        world.clock.advance(std::time::Duration::from_secs(5));
        world.disks.end_after(operation, end);
    });
    for job in [Scene::flush, Scene::turn, Scene::turn] {
        if scene.world(|world| world.is_up()) {
            job(&scene);
        }
    }
    let ended = !scene.world(|world| world.is_up());
    let mut world = scene.sim.world.borrow_mut();
    world.restart();
    drop(world);
    // And once more, right away.
    scene.restart(End::PowerLoss);
    scene.append(scene.key(0), 10);
    scene.checkpoint();
    scene.check();
    ended
}

#[test]
fn a_power_loss_at_each_step_of_background_work_takes_nothing_away() {
    let steps = (0..MOST).take_while(|at| end_at(*at, End::PowerLoss, 4));
    let steps = steps.count() as u64;
    assert!((20..MOST).contains(&steps), "{steps} steps");
}

#[test]
fn a_kill_at_each_step_of_background_work_takes_nothing_away() {
    let steps = (0..MOST).take_while(|at| end_at(*at, End::Kill, 4)).count() as u64;
    assert!((20..MOST).contains(&steps), "{steps} steps");
}

#[test]
fn a_power_loss_at_each_step_and_a_damaged_checkpoint_file_take_nothing_away() {
    let steps = (0..MOST).take_while(|at| end_at(*at, End::PowerLoss, 1));
    let steps = steps.count() as u64;
    assert!((20..MOST).contains(&steps), "{steps} steps");
}
