//! Produce: a batch to a partition, plain or from an idempotent producer.

use std::sync::Arc;

use crate::clock::Clock;
use crate::partition::registry::ENTRY_OVERHEAD;
use crate::partition::shard::{Stamping, claim_of};
use crate::partition::{Prepared, Refused};
use crate::protocol::batch::{BatchBuilder, BatchInfo};
use crate::protocol::compression::Codec;
use crate::sim::check;
use crate::sim::model::{Change, Sent, Verdict};
use crate::sim::ops::any_partition;
use crate::sim::seen::Branch;
use crate::sim::store::at_once;
use crate::sim::world::World;
use crate::store::journal::Journal;
use crate::types::{PartitionKey, Place};

/// Batches that a client keeps for retries.
const KEPT: usize = 8;

pub(in crate::sim) fn run(world: &mut World) {
    let Some(key) = any_partition(world) else {
        return;
    };
    let records = 1 + world.random.below(4) as i32;
    let id = match world.random.one_in(3) {
        true => None,
        false => {
            let known = world.model.durable.next_producer_id;
            let id = world.random.pick(&world.clients.ids).copied();
            // Its client has not heard of it before that.
            id.filter(|id| *id < known)
        }
    };
    let producer = id.map(|id| (id, next_sequence(world, id, key)));
    let bytes = match world.random.below(20) {
        0 => 4000 + world.random.below(9000),
        1..6 => world.random.below(2500),
        _ => world.random.below(200),
    };
    let codec = codec(world);
    let sent = compressed(world, records, bytes as usize, producer, codec);
    submit(world, key, &sent);
}

/// What a client compresses with: nothing, more often than not.
pub(in crate::sim) fn codec(world: &mut World) -> Codec {
    const CODECS: [Codec; 4] = [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];
    match world.random.below(10) {
        n @ 0..4 => {
            world.seen.note(Branch::Compressed);
            CODECS[n as usize]
        }
        _ => Codec::None,
    }
}

/// The sequence that follows what is sequenced; now and then a wrong one.
fn next_sequence(world: &mut World, id: i64, key: PartitionKey) -> i32 {
    let log = world.model.sequenced.logs.get(&key);
    let window = log.and_then(|log| log.producers.get(&id));
    let next = window
        .and_then(|w| w.back())
        .map_or(0, |last| last.last + 1);
    next + i32::from(world.random.one_in(30))
}

/// A batch whose bytes tell it from all others.
pub(in crate::sim) fn batch(
    world: &mut World,
    records: i32,
    bytes: usize,
    producer: Option<(i64, i32)>,
) -> Sent {
    compressed(world, records, bytes, producer, Codec::None)
}

pub(in crate::sim) fn compressed(
    world: &mut World,
    records: i32,
    bytes: usize,
    producer: Option<(i64, i32)>,
    codec: Codec,
) -> Sent {
    world.clients.tag += 1;
    let tag = world.clients.tag;
    let timestamp = world.clock.wall_ms();
    let mut builder = BatchBuilder::new().codec(codec, None);
    if let Some((id, sequence)) = producer {
        builder = builder.producer(id, 0, sequence);
    }
    for n in 0..records {
        let mut value = format!("{tag}-{n}-").into_bytes();
        let filler = b'a' + (tag % 26) as u8;
        value.resize(value.len() + bytes / records as usize, filler);
        builder.push(timestamp, Some(&tag.to_be_bytes()), Some(&value));
    }
    Sent {
        payload: builder.build().expect("a batch"),
        records,
        producer,
        stamp: None,
    }
}

/// Sends a batch as a Produce request does, and compares the outcome with the model's.
pub(in crate::sim) fn submit(world: &mut World, key: PartitionKey, sent: &Sent) {
    let registry = Arc::clone(&world.store().registry);
    let Some(partition) = registry.get(key) else {
        return;
    };
    if at_once(partition.settled()).is_none() {
        assert!(world.in_move, "{key}: nobody moves its shard");
        world.seen.note(Branch::WaitedForMove);
        return;
    }
    let Some(home) = partition.shard().map(|shard| Arc::clone(&shard.home)) else {
        return;
    };
    if !home.is_writable() {
        world.refused_while_full |= world.full.is_some();
        return;
    }
    let room = at_once(home.room(sent.payload.len() + ENTRY_OVERHEAD));
    let Some(Some(mut room)) = room else {
        world.seen.note(Branch::TailFull);
        return;
    };
    keep_for_retries(world, key, sent);
    let info = BatchInfo::read(&sent.payload).expect("a batch");
    let prepared = Prepared {
        payload: sent.payload.clone(),
        last_offset_delta: info.last_offset_delta,
        max_timestamp: info.max_timestamp,
        claim: claim_of(&info),
        stamping: match stamps(world, key) {
            true => Stamping::LogAppendTime,
            false => Stamping::Keep,
        },
        charge: 0,
    };
    let expected = world.model.sequenced.logs.get(&key);
    let expected = expected.map(|log| (log.judge(sent), log.next));
    let outcome = registry.append(&partition, prepared, Some(&mut room));
    match (expected, outcome) {
        (None, Err(Refused::Sealed)) => world.seen.note(Branch::Sealed),
        (Some((Verdict::OutOfOrder, _)), Err(Refused::OutOfOrderSequence)) => {
            world.seen.note(Branch::OutOfOrder);
        }
        (Some((Verdict::Append, next)), Ok(appended)) => {
            assert_eq!(appended.base_offset, next, "{key}: offsets are dense");
            assert!(!appended.duplicate, "{key}: appended, not a duplicate");
            let place = appended.place;
            let journal = &world.store().home(home.no).journal;
            assert_eq!(
                (place.directory, place.position),
                (home.no, journal.appended())
            );
            if !world.store().is_writable() {
                world.seen.note(Branch::OneDirectoryFull);
            }
            let mut sent = sent.clone();
            if stamps(world, key) {
                assert!(appended.log_append_time_ms >= 0, "{key}: a time is told");
                sent.stamp = Some(appended.log_append_time_ms);
                world.seen.note(Branch::Stamped);
            }
            world.model.sequence(place, Change::Append { key, sent });
            world.answer(place, place);
            check::routed(world, key);
        }
        (Some((Verdict::Duplicate(original), _)), Ok(appended)) => {
            assert!(appended.duplicate, "{key}: a duplicate");
            assert_eq!(appended.base_offset, original.base, "the original's offset");
            world.seen.note(Branch::Duplicate);
            let original = Place {
                directory: home.no,
                position: original.position,
            };
            if !world.store().durable().covers(&original.into()) {
                world.seen.note(Branch::DuplicateOfPending);
            }
            world.answer(appended.place, original);
        }
        (expected, outcome) => {
            panic!("{key}: the model says {expected:?}, the store {outcome:?}")
        }
    }
}

/// Whether the partition's topic asks for the time of the append.
fn stamps(world: &World, key: PartitionKey) -> bool {
    let topics = &world.model.durable.topics;
    topics.values().any(|t| t.no == key.topic && t.stamps)
}

fn keep_for_retries(world: &mut World, key: PartitionKey, sent: &Sent) {
    let Some((id, _)) = sent.producer else {
        return;
    };
    let kept = world.clients.sent.entry((id, key)).or_default();
    if !kept.contains(sent) {
        kept.push(sent.clone());
    }
    if kept.len() > KEPT {
        kept.remove(0);
    }
}
