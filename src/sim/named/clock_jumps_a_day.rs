//! Somebody sets the clock forward by a day, and back.

use super::Scene;
use crate::sim::power::End;

const DAY_MS: i64 = 24 * 3_600_000;

#[test]
fn a_clock_that_jumps_a_day_takes_no_producer_and_no_record_away() {
    let scene = Scene::new(1);
    let (key, id) = (scene.key(0), scene.producer_id());
    for (round, jump) in [2 * DAY_MS, -5 * DAY_MS, 3 * DAY_MS]
        .into_iter()
        .enumerate()
    {
        let sent = scene.batch(100, Some((id, round as i32)));
        scene.send(key, &sent);
        scene.settle();
        scene.world(|world| world.clock.jump(jump));
        scene.checkpoint();
        scene.world(|world| world.clock.advance(std::time::Duration::from_secs(5)));
        scene.turn();
        // The model knows it as a duplicate.
        scene.send(key, &sent);
        scene.world(|world| world.clock.jump(jump));
        scene.restart(End::PowerLoss);
        scene.checkpoint();
        scene.send(key, &sent);
        scene.settle();
        let bounds = scene.world(|world| world.store().partition(key).bounds());
        assert_eq!(
            (bounds.log_start, bounds.high_watermark),
            (0, round as i64 + 1)
        );
    }
}
