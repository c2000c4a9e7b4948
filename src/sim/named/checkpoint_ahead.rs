//! A checkpoint is due while the journal holds entries that it never makes durable.

use super::Scene;
use crate::sim::store::Options;
use crate::store::backend::Disk;
use crate::store::backend::faults::{Fault, Op, Rule};
use crate::store::journal::{Journal, SyncPolicy};

fn roots(scene: &Scene) -> Vec<String> {
    let names = scene.world(|world| world.disk().memory.list("checkpoint"));
    let mut names = names.expect("a folder");
    names.retain(|name| name.starts_with("root-"));
    names
}

/// The journal's device fails between the capture of the partitions and the publication.
#[test]
fn no_checkpoint_is_published_of_what_the_journal_never_made_durable() {
    let scene = Scene::new(1);
    let (key, id) = (scene.key(0), scene.producer_id());
    scene.append(key, 100);
    scene.settle();
    scene.checkpoint();
    let before = roots(&scene);
    let sent = scene.batch(100, Some((id, 0)));
    scene.send(key, &sent);
    scene.world(|world| {
        let rule = Rule::new(Op::Sync, "journal", Fault::Eio);
        world.disk().faults.add(rule);
    });
    scene.sim.background(|worker| {
        let done = worker.checkpoint();
        assert!(done.is_err(), "there is nothing to stand on");
        done.map_err(|error| error.to_string())
    });
    assert_eq!(roots(&scene), before);
    // The power fails before anything else.
    let mut world = scene.sim.world.borrow_mut();
    world.end(crate::sim::power::End::PowerLoss);
    world.restart();
    drop(world);
    scene.send(key, &sent);
    scene.settle();
    scene.check();
}

/// With an interval as sync policy, entries count as durable before they are safe.
#[test]
fn with_an_interval_a_checkpoint_waits_for_the_device() {
    let options = Options {
        sync: SyncPolicy::Interval(std::time::Duration::from_secs(3600)),
        ..Options::default()
    };
    let scene = Scene::with(options, 1, None);
    for _ in 0..5 {
        scene.append(scene.key(0), 700);
        scene.settle();
        scene.world(|world| {
            let journal = world.store().journal();
            assert!(journal.synced() < journal.durable());
        });
        scene.checkpoint();
        scene.restart(crate::sim::power::End::PowerLoss);
    }
}
