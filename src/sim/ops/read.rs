//! Fetch: from any offset in or next to the log.

use std::sync::Arc;

use crate::partition::log::Source;
use crate::partition::read::ReadFailure;
use crate::protocol::batch::Batches;
use crate::sim::check;
use crate::sim::ops::any_partition;
use crate::sim::seen::Branch;
use crate::sim::world::World;
use crate::types::{Offset, PartitionKey};

pub(in crate::sim) fn run(world: &mut World) {
    let Some(key) = any_partition(world) else {
        return;
    };
    let (start, next) = {
        let log = &world.model.durable.logs[&key];
        (log.log_start, log.next)
    };
    let offset = start - 1 + world.random.below((next - start + 3) as u64) as i64;
    let max_bytes = 1 + world.random.below(8 << 10) as usize;
    let source = world.store().partition(key).cut(offset, 1, true).source;
    let outcome = match world.random.one_in(2) {
        true => check::read(world.store(), key, offset, max_bytes),
        false => fetch(world, key, offset, max_bytes),
    };
    if !world.is_up() {
        return;
    }
    let log = &world.model.durable.logs[&key];
    match outcome {
        Ok(batches) => {
            assert!((start..=next).contains(&offset), "{key}: {offset} was read");
            assert_eq!(batches.is_empty(), offset == next, "{key} at {offset}");
            let expected = log.from(offset);
            for ((base, bytes), (sent_base, sent)) in batches.iter().zip(expected) {
                assert_eq!(*base, sent_base, "{key}: read from {offset}");
                assert!(sent.is(bytes), "{key} at {base}");
            }
        }
        Err(ReadFailure::OutOfRange(_)) => {
            assert!(!(start..=next).contains(&offset), "{key}: {offset} refused");
        }
        Err(error) => panic!("{key} at {offset}: {error}"),
    }
    match source {
        Source::Tail(_) => world.seen.note(Branch::ReadTail),
        Source::Files(_) => world.seen.note(Branch::ReadFile),
        _ => {}
    }
}

/// As a Fetch reads: over several files, and the borders with the records.
fn fetch(
    world: &World,
    key: PartitionKey,
    offset: Offset,
    max_bytes: usize,
) -> Result<Vec<(Offset, Vec<u8>)>, ReadFailure> {
    let registry = Arc::clone(&world.store().registry);
    let partition = world.store().partition(key);
    let read = registry.read(&partition, offset, max_bytes, true);
    let read = world.runtime.block_on(read)?;
    let mut batches = Vec::new();
    for batch in read.slices.iter().flat_map(|slice| Batches::new(slice)) {
        let batch = batch.expect("a whole batch");
        assert!(
            batch.info.last_offset() < read.bounds.high_watermark,
            "one cut"
        );
        batches.push((batch.info.base_offset, batch.bytes.to_vec()));
    }
    Ok(batches)
}
