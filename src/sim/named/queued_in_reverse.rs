//! Two batches of one shard get their offsets in one order and their places in the journal in the
//! other.

use std::sync::Arc;

use super::Scene;
use crate::partition::Prepared;
use crate::partition::shard::{Stamping, claim_of};
use crate::protocol::batch::BatchInfo;

/// Real threads, as one thread cannot get between an offset and its place.
#[test]
fn offsets_and_places_in_the_journal_have_one_order() {
    let scene = Scene::new(1);
    let (key, sent) = (scene.key(0), scene.batch(10, None));
    let (registry, partition) = scene.world(|world| {
        let store = world.store();
        (Arc::clone(&store.registry), store.partition(key))
    });
    let append = || {
        let info = BatchInfo::read(&sent.payload).expect("a batch");
        let batch = Prepared {
            payload: sent.payload.clone(),
            last_offset_delta: info.last_offset_delta,
            max_timestamp: info.max_timestamp,
            claim: claim_of(&info),
            stamping: Stamping::Keep,
            charge: 0,
        };
        let appended = registry.append(&partition, batch, None).expect("appended");
        (appended.place.position, appended.base_offset)
    };
    let mut all = Vec::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| (0..500).map(|_| append()).collect::<Vec<_>>()))
            .collect();
        for thread in threads {
            all.extend(thread.join().expect("no panic"));
        }
    });
    all.sort_unstable();
    let offsets: Vec<_> = all.iter().map(|(_, offset)| *offset).collect();
    assert_eq!(offsets, (0..2000).collect::<Vec<_>>());
    registry.first().journal().expect("attached").sync();
    assert_eq!(partition.bounds().high_watermark, 2000);
}
