//! ListOffsets: the first record at or after a time.

use std::sync::Arc;

use crate::partition::read::ReadFailure;
use crate::partition::time_search::Target;
use crate::sim::ops::any_partition;
use crate::sim::world::World;

/// No batch of the simulation unfolds to more.
const LIMIT: u64 = 1 << 20;

pub(super) fn run(world: &mut World) {
    let Some(key) = any_partition(world) else {
        return;
    };
    let log = &world.model.durable.logs[&key];
    // Every record of a batch has the batch's time.
    let stamped: Vec<(i64, i64)> = log
        .batches
        .iter()
        .map(|(base, sent)| (sent.time(), (*base).max(log.log_start)))
        .collect();
    let around = world.random.pick(&stamped).map_or(0, |(time, _)| *time);
    let wanted = around + world.random.below(3) as i64 - 1;
    let expected = stamped.iter().find(|(time, _)| *time >= wanted);
    let expected = expected.map(|(time, offset)| (*offset, *time));
    let registry = Arc::clone(&world.store().registry);
    let partition = world.store().partition(key);
    let target = Target::AtOrAfter(wanted);
    let found = world
        .runtime
        .block_on(registry.find_by_time(&partition, target, LIMIT));
    if !world.is_up() {
        return;
    }
    match found {
        Ok(found) => {
            let found = found.map(|found| (found.offset, found.timestamp));
            assert_eq!(found, expected, "{key} at time {wanted}");
        }
        Err(ReadFailure::Storage(reason)) => panic!("{key} at time {wanted}: {reason}"),
        Err(_) => panic!("{key} was not there"),
    }
}
