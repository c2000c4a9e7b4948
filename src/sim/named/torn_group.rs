//! A group that was torn by a power loss lies right behind an acknowledged one.

use super::Scene;
use crate::sim::check;

/// Small groups, far below a page: a store that packs them would tear the one before as well.
#[test]
fn a_torn_group_does_not_touch_the_acknowledged_one_before_it() {
    let scene = Scene::new(1);
    let key = scene.key(0);
    let mut torn = 0;
    for bytes in [10, 30, 3000, 9000] {
        scene.append(key, 20);
        scene.settle();
        scene.append(key, bytes);
        scene.write_only();
        for seed in 0..40 {
            torn += scene.world(|world| {
                let copy = world.disk().memory.crash(seed);
                let store = check::open_copy(vec![copy], &world.clock, &world.options);
                let store = store.expect("a torn tail is no damage");
                assert!(store.last().reaches(&world.shown));
                check::check_copy(world, &store, false);
                u32::from(store.tail_was_cut())
            });
        }
        scene.settle();
    }
    assert!(torn > 0, "no group was ever torn");
}
