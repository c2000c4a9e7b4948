//! DeleteRecords: moves a log start up to any offset that is durable.

use crate::partition::Refused;
use crate::sim::ops::any_partition;
use crate::sim::world::World;
use crate::types::{Offset, PartitionKey};

pub(super) fn run(world: &mut World) {
    let Some(key) = any_partition(world) else {
        return;
    };
    let partition = world.store().partition(key);
    let bounds = partition.bounds();
    let span = (bounds.high_watermark - bounds.log_start) as u64;
    let offset = bounds.log_start + world.random.below(span + 1) as i64;
    up_to(world, key, offset);
}

/// Deletes what lies below an offset.
pub(in crate::sim) fn up_to(world: &mut World, key: PartitionKey, offset: Offset) {
    let partition = world.store().partition(key);
    let log = world.model.sequenced.logs.get(&key);
    let before = log.map(|log| log.log_start);
    let moved = world.store().registry.move_log_start(&partition, offset);
    match (before, moved) {
        (Some(before), Ok((start, after))) => {
            assert_eq!(start, before.max(offset), "{key}: the log start");
            world.follow();
            world.answer(after, after);
        }
        (None, Err(Refused::Sealed)) => {}
        (_, Err(Refused::Moving)) => assert!(world.in_move, "nobody moves its shard"),
        (before, moved) => panic!("{key}: from {before:?} to {offset}: {moved:?}"),
    }
}
