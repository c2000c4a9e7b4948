//! OffsetFetch and Metadata are asked for what a crash would take back.

use super::Scene;
use crate::sim::ops;
use crate::sim::power::End;
use crate::store::journal::Journal;

#[test]
fn an_offset_fetch_leaves_no_sooner_than_the_commit_it_shows() {
    let scene = Scene::new(2);
    scene.world(|world| ops::commit::commit(world, "g0", "a", 0, 5));
    scene.settle();
    for offset in 6..12 {
        scene.world(|world| ops::commit::commit(world, "g0", "a", 0, offset));
        scene.world(|world| {
            let store = world.store();
            let held = store.groups.all_commits("g0").expect("loaded");
            let shown = held.value[0].1[0].1.as_ref().map(|commit| commit.offset);
            assert_eq!(shown, Some(offset), "what is sequenced is shown");
            assert!(
                held.after > store.journal().durable(),
                "and held until it is durable"
            );
        });
        if offset % 2 == 0 {
            scene.write_only();
        }
        scene.restart(End::PowerLoss);
    }
}

#[test]
fn metadata_shows_no_topic_that_a_crash_takes_back() {
    let scene = Scene::new(1);
    scene.world(|world| ops::topic_create::create(world, "b", 3, None));
    scene.write_only();
    scene.world(|world| {
        let store = world.store();
        assert!(store.catalog.sequenced().topic("b").is_some());
        assert!(
            store.catalog.image().topic("b").is_none(),
            "not durable, not shown"
        );
    });
    scene.restart(End::PowerLoss);
    scene.world(|world| {
        if !world.model.durable.topics.contains_key("b") {
            ops::topic_create::create(world, "b", 3, None);
        }
    });
    scene.settle();
    scene.world(|world| ops::topic_delete::delete(world, "b"));
    scene.world(|world| {
        assert!(
            world.store().catalog.image().topic("b").is_some(),
            "not gone before it is"
        );
    });
    scene.restart(End::PowerLoss);
    scene.check();
}
