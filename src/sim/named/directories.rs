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
