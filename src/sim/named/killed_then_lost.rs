//! A process is killed with a group written and not synced. The next one reads it out of the page
//! cache and serves it; then the power fails.

use super::Scene;
use crate::sim::check;
use crate::sim::power::End;

#[test]
fn what_a_start_serves_survives_a_power_loss_right_after_it() {
    let scene = Scene::new(1);
    let key = scene.key(0);
    for _ in 0..10 {
        scene.append(key, 2000);
        scene.write_only();
        let next = scene.world(|world| world.model.sequenced.logs[&key].next);
        scene.restart(End::Kill);
        let served = scene.world(|world| world.store().partition(key).bounds().high_watermark);
        assert_eq!(served, next, "the page cache has it");
        for seed in 0..40 {
            scene.world(|world| {
                let copy = world.disk().memory.crash(seed);
                let store =
                    check::open_copy(vec![copy], &world.clock, &world.options).expect("opens");
                assert_eq!(
                    store.last(),
                    world.store().last(),
                    "what was served is gone"
                );
                check::check_copy(world, &store, false);
            });
        }
        scene.restart(End::PowerLoss);
    }
}
