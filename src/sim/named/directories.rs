//! Several data directories: journals that lose different things when the power fails.

use std::time::Duration;

use super::Scene;
use crate::sim::check;
use crate::sim::ops;
use crate::sim::power::End;
use crate::sim::store::{Options, Store};
use crate::store::backend::memory::MemoryDisk;
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
        sync: SyncPolicy::Interval(Duration::from_secs(3600)),
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

/// What lives where: one partition in each directory.
const KEYS: [i32; 2] = [0, 3];

impl Scene {
    fn append_to_both(&self) {
        for index in KEYS {
            self.append(self.key(index), 100);
        }
        self.settle();
    }

    /// Time passes, and every maintenance thread has a turn after it.
    fn rest(&self) {
        self.world(|world| world.clock.advance(Duration::from_secs(15)));
        self.sim.turn_everywhere(false);
        self.settle();
    }

    fn copies(&self) -> Vec<MemoryDisk> {
        self.world(|world| world.disks.killed())
    }

    fn open(&self, copies: &[MemoryDisk], accept_loss: bool) -> Result<Store, String> {
        self.world(|world| {
            let options = Options {
                accept_loss,
                ..world.options.clone()
            };
            check::open_copy(copies.to_vec(), &world.clock, &options)
        })
    }
}

/// One directory as it was, beside the other as it is.
fn mixed(old: &[MemoryDisk], new: &[MemoryDisk], stale: usize) -> Vec<MemoryDisk> {
    let all = old.iter().zip(new).enumerate();
    all.map(|(at, (old, new))| if at == stale { old.kill() } else { new.kill() })
        .collect()
}

fn is_refused(scene: &Scene, copies: &[MemoryDisk], stale: usize) {
    let reason = scene.open(copies, false).err();
    let reason = reason.expect("entries are missing");
    let (name, other) = (format!("data{stale}"), format!("data{}", 1 - stale));
    assert!(
        reason.contains(&format!("{name} is an older copy than {other}")),
        "{reason}"
    );
    let affected = ["consumer groups", "records of a"][stale];
    assert!(reason.contains(affected), "{reason}");
}

#[test]
fn an_older_copy_of_one_directory_is_refused_whichever_it_is() {
    for sync in [SyncPolicy::Always, with_an_interval().sync] {
        let scene = in_two(Options {
            sync,
            ..Options::default()
        });
        scene.append_to_both();
        scene.rest();
        let old = scene.copies();
        assert!(scene.open(&old, false).is_ok(), "both of one moment");
        scene.append_to_both();
        scene.sim.turn_everywhere(true);
        scene.settle();
        scene.rest();
        let new = scene.copies();
        assert!(scene.open(&new, false).is_ok(), "both of another moment");
        for stale in [0, 1] {
            is_refused(&scene, &mixed(&old, &new, stale), stale);
        }
    }
}

/// What stood in the journal when it was noted goes with the journal's files.
#[test]
fn checkpoints_do_not_take_away_what_is_known_of_another_directory() {
    let scene = in_two(Options::default());
    let old = scene.copies();
    scene.append(scene.key(3), 100);
    scene.settle();
    scene.rest();
    for _ in 0..5 {
        for _ in 0..12 {
            scene.append(scene.key(0), 4000);
            scene.settle();
        }
        scene.checkpoint();
    }
    let new = scene.copies();
    is_refused(&scene, &mixed(&old, &new, 1), 1);
}

#[test]
fn a_first_directory_from_before_a_topic_that_another_one_has_records_of_is_an_older_copy() {
    let scene = in_two(Options::default());
    let old = scene.copies();
    scene.world(|world| ops::topic_create::create(world, "b", 4, Some(("shard.count", "2"))));
    scene.settle();
    let key = scene.world(|world| {
        let state = &world.model.durable;
        state.partition(state.topics["b"].id, 3).expect("created")
    });
    scene.append(key, 100);
    scene.settle();
    let copies = mixed(&old, &scene.copies(), 0);
    let reason = scene.open(&copies, false).err();
    let reason = reason.expect("a topic is missing");
    assert!(reason.contains("never created in data0"), "{reason}");
    assert!(reason.contains("is an older copy"), "{reason}");
}

#[test]
fn a_loss_that_is_accepted_is_accepted_once() {
    let scene = in_two(Options::default());
    let old = scene.copies();
    scene.append_to_both();
    scene.rest();
    let copies = mixed(&old, &scene.copies(), 1);
    is_refused(&scene, &copies, 1);
    let mut store = scene.open(&copies, true).expect("the loss is accepted");
    let (kept, lost) = (scene.key(0), scene.key(3));
    assert_eq!(store.partition(kept).bounds().high_watermark, 1);
    assert_eq!(store.partition(lost).bounds().high_watermark, 0);
    for home in &mut store.homes {
        let worker = home.worker.as_mut().expect("nobody has it");
        worker.turn(false).expect("a turn");
    }
    store.settle();
    drop(store);
    let again: Vec<_> = copies.iter().map(MemoryDisk::kill).collect();
    assert!(scene.open(&again, false).is_ok(), "nothing is missing now");
}

#[test]
fn directories_at_rest_note_nothing() {
    let scene = in_two(Options::default());
    scene.append_to_both();
    for _ in 0..3 {
        scene.rest();
    }
    let before = scene.world(|world| world.store().appended());
    for _ in 0..5 {
        scene.rest();
    }
    assert_eq!(scene.world(|world| world.store().appended()), before);
}
