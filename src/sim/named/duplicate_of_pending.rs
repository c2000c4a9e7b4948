//! A retry on a new connection meets its original, which is not durable yet; then the power fails.

use super::Scene;
use crate::sim::power::End;
use crate::sim::seen::Branch;

#[test]
fn a_duplicates_answer_waits_for_its_original() {
    let scene = Scene::new(1);
    let (key, id) = (scene.key(0), scene.producer_id());
    for round in 0..8 {
        let sent = scene.batch(100, Some((id, round)));
        scene.send(key, &sent);
        // The model checks that this answer leaves no sooner than the original's.
        scene.send(key, &sent);
        scene.world(|world| {
            assert_eq!(
                world.answers.len(),
                2,
                "an answer left before its entry was durable"
            );
        });
        if round % 2 == 0 {
            scene.write_only();
        }
        scene.restart(End::PowerLoss);
        // Heard of nothing, the client tries once more: written now, or answered as what it is.
        scene.send(key, &sent);
        scene.settle();
        scene.send(key, &sent);
        scene.settle();
        let next = scene.world(|world| world.store().partition(key).bounds().high_watermark);
        assert_eq!(next, i64::from(round) + 1, "once, whatever happened");
    }
    scene.check();
    assert!(scene.world(|world| world.seen.count(Branch::DuplicateOfPending)) >= 8);
}
