//! The journal is trimmed past a producer's batches; then the producer retries.

use super::Scene;
use crate::sim::power::End;
use crate::sim::seen::Branch;

#[test]
fn a_window_outlives_the_journal_that_it_came_from() {
    let scene = Scene::new(2);
    let (key, other, id) = (scene.key(0), scene.key(1), scene.producer_id());
    let sent: Vec<_> = (0..5)
        .map(|sequence| scene.batch(500, Some((id, sequence))))
        .collect();
    for batch in &sent {
        scene.send(key, batch);
    }
    scene.settle();
    for _ in 0..6 {
        for _ in 0..12 {
            scene.append(other, 4000);
            scene.settle();
        }
        scene.checkpoint();
    }
    for end in [End::PowerLoss, End::Kill] {
        scene.restart(end);
        assert!(
            scene.world(|world| world.seen.count(Branch::RecycledFiles)) > 0,
            "the files of the first batches were used again"
        );
        for batch in &sent {
            // The model answers each with its original's offset.
            scene.send(key, batch);
        }
        scene.settle();
        let next = scene.world(|world| world.store().partition(key).bounds().high_watermark);
        assert_eq!(next, 5);
        scene.checkpoint();
    }
}
