//! Several data directories: journals that lose different things when the power fails.

use super::Scene;
use crate::sim::ops;
use crate::sim::power::End;
use crate::sim::store::Options;
use crate::store::journal::SyncPolicy;
use crate::types::DirectoryNo;

/// A topic of two shards with two partitions in each of two directories.
fn in_two(options: Options) -> Scene {
    let options = Options {
        directories: 2,
        ..options
    };
    let scene = Scene::with(options, 4, Some(("shard.count", "2")));
    for (index, home) in [(0, 0), (1, 0), (2, 1), (3, 1)] {
        let lives_in = scene.world(|world| {
            let state = &world.model.durable;
            state.home_of(state.partition(state.topics["a"].id, index)?)
        });
        assert_eq!(lives_in, Some(DirectoryNo(home)), "partition {index}");
    }
    scene
}

fn with_an_interval() -> Options {
    Options {
        sync: SyncPolicy::Interval(std::time::Duration::from_secs(3600)),
        ..Options::default()
    }
}

/// The reshape's entry is in the first directory's journal and on stable storage; the records that
/// were there before it are in the other one.
#[test]
fn no_link_starts_behind_what_a_power_loss_leaves_in_another_directory() {
    let scene = in_two(with_an_interval());
    for slots in [&[1, 1][..], &[2], &[1, 1], &[2]] {
        for _ in 0..3 {
            scene.append(scene.key(3), 100);
        }
        scene.settle();
        scene.append(scene.key(3), 100);
        scene.world(|world| {
            let open = &world.model.sequenced.topics["a"].lineage.open;
            let shards: Vec<_> = open.iter().skip(1).map(|(id, _)| *id).collect();
            ops::reshape::reshape(world, "a", &shards, slots);
        });
        scene.append(scene.key(3), 100);
        scene.settle();
        // Links and ends are compared after each start.
        scene.restart(End::PowerLoss);
    }
}

/// Moves the first shard to the second directory and back, with appends in between, until the end
/// comes at this operation. False if it does not.
fn end_in_a_move(operation: u64, end: End, options: Options) -> bool {
    let scene = in_two(options);
    // Clients work in the middle of a move.
    scene.world(|world| world.alone = false);
    let id = scene.producer_id();
    let mut sequence = 0;
    let mut send_everywhere = || {
        for index in 0..4 {
            if scene.world(|world| world.is_up()) {
                let sent = scene.batch(200, Some((id, sequence)));
                scene.send(scene.key(index), &sent);
            }
        }
        sequence += 1;
    };
    send_everywhere();
    scene.settle();
    scene.checkpoint();
    send_everywhere();
    scene.world(|world| world.disks.end_after(operation, end));
    for to in [1, 0] {
        if !scene.world(|world| world.is_up()) {
            break;
        }
        let (no, shard) = scene.world(|world| {
            let topic = &world.model.sequenced.topics["a"];
            (topic.no, topic.lineage.open[0].0)
        });
        ops::move_shard::move_shard(&scene.sim, no, shard, DirectoryNo(to));
        send_everywhere();
    }
    let ended = !scene.world(|world| world.is_up());
    // Homes, records, windows, lineage and files are compared after each start.
    let mut world = scene.sim.world.borrow_mut();
    world.restart();
    drop(world);
    for index in 0..4 {
        scene.append(scene.key(index), 10);
    }
    scene.settle();
    scene.restart(End::PowerLoss);
    for index in 0..4 {
        scene.append(scene.key(index), 10);
    }
    scene.settle();
    scene.check();
    ended
}

#[test]
fn a_move_may_end_at_any_step_with_clients_at_work() {
    for (end, options) in [
        (End::Kill, Options::default()),
        (End::PowerLoss, Options::default()),
        (End::PowerLoss, with_an_interval()),
    ] {
        let steps = (0..600).take_while(|at| end_in_a_move(*at, end, options.clone()));
        let steps = steps.count();
        assert!((20..600).contains(&steps), "{steps} steps");
    }
}
