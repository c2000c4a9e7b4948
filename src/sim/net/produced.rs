//! What the server made of a Produce. Its batches get their places when their directories have room,
//! which may be at different looks, and are known from then on, whether it is ever answered or not.

use kafka_protocol::messages::ProduceResponse;
use kafka_protocol::messages::produce_response::PartitionProduceResponse;

use super::asked::{Expected, Landed, Part, Request, error_of};
use crate::clock::Clock;
use crate::protocol::error::ErrorCode;
use crate::sim::check;
use crate::sim::model::{Change, Verdict};
use crate::sim::seen::Branch;
use crate::sim::world::{Placed, World};
use crate::types::{Place, Places};

/// How far ahead of the clock a topic takes timestamps.
const HOUR_MS: i64 = 3_600_000;

/// Notes what the model says of each batch that gets its turn now. Where there is one directory,
/// all of them get it at the last look.
pub(super) fn expect(world: &World, parts: &mut [Part]) {
    for part in parts {
        let Some(key) = part.key else { continue };
        let state = &world.model.sequenced;
        let log = state.logs.get(&key);
        if world.options.directories == 1 {
            part.expected.clear();
        }
        part.expected.push(Expected {
            judged: log.map(|log| (log.judge(&part.sent), log.next)),
            home: state.home_of(key).unwrap_or_default(),
            writable: match world.store().registry.get(key) {
                Some(_) => world.store().takes(key),
                None => world.store().is_writable(),
            },
        });
    }
}

/// Takes in the batches that got their places at this look.
pub(super) fn landed(world: &mut World, parts: &mut [Part], appended: &[Placed]) {
    for placed in appended {
        let mut waiting = parts.iter_mut().filter(|part| part.landed.is_none());
        let part = waiting.find(|part| part.key == Some(placed.key));
        land(world, part.expect("nothing else is appended"), placed);
    }
}

fn land(world: &mut World, part: &mut Part, placed: &Placed) {
    let key = placed.key;
    let mut sent = part.sent.clone();
    assert_eq!(placed.payload, sent.payload, "{key}: kept as sent");
    let log = &world.model.sequenced.logs[&key];
    let twice = log
        .batches
        .values()
        .any(|other| other.payload == sent.payload);
    assert!(
        !twice,
        "{key}: a batch of an idempotent producer is there twice"
    );
    assert_eq!(log.judge(&sent), Verdict::Append, "{key}");
    let mut append_time = -1;
    if part.stamps {
        append_time = world.clock.wall_ms();
        sent.stamp = Some(append_time);
        world.seen.note(Branch::Stamped);
    }
    part.landed = Some(Landed {
        base: log.next,
        place: placed.place,
        append_time,
    });
    let change = Change::Append { key, sent };
    world.model.sequence(placed.place, change);
    check::routed(world, key);
    if !world.store().is_writable() {
        world.seen.note(Branch::OneDirectoryFull);
    }
}

/// Compares the answer with what the model says of each batch.
pub(super) fn compare(
    world: &mut World,
    request: &Request,
    parts: &[Part],
    response: &ProduceResponse,
    after: &Places,
) {
    let results: Vec<_> = response
        .responses
        .iter()
        .flat_map(|topic| {
            let results = topic.partition_responses.iter();
            results.map(move |result| (topic.topic_id, result))
        })
        .collect();
    assert_eq!(results.len(), parts.len(), "an answer for each partition");
    for (part, (topic, result)) in parts.iter().zip(results) {
        assert_eq!((topic, result.index), (part.topic, part.index as i32));
        let code = error_of(result.error_code);
        let Some(key) = part.key else {
            assert_eq!(code, Some(not_there(world, part)));
            continue;
        };
        if let Some(landed) = part.landed {
            assert_eq!(code, None, "{key} at {landed:?}");
            assert_eq!(result.base_offset, landed.base, "{key}: offsets are dense");
            assert_eq!(
                result.log_append_time_ms, landed.append_time,
                "{key}: a time is told if it is set"
            );
            world.answer(after.clone(), landed.place);
        } else if code == Some(ErrorCode::InvalidTimestamp) {
            let latest = request.noticed_ms.unwrap_or_default() + HOUR_MS;
            assert!(part.sent.time() > latest && !part.stamps, "{key}: refused");
        } else {
            let mut expected = part.expected.iter();
            let fits = expected.any(|expected| fits(world, expected, result, after));
            assert!(
                fits,
                "{key}: the model says {:?}, the store {code:?}",
                part.expected
            );
        }
    }
}

/// Whether a batch that was not appended was answered as the model says.
fn fits(
    world: &mut World,
    expected: &Expected,
    result: &PartitionProduceResponse,
    after: &Places,
) -> bool {
    match (expected.judged, error_of(result.error_code)) {
        (_, Some(ErrorCode::KafkaStorageError)) => {
            world.refused_while_full |= world.full.is_some();
            !expected.writable
        }
        // Its topic was deleted before the request was looked at, or in the middle of it.
        (None, Some(ErrorCode::UnknownTopicOrPartition)) => {
            world.seen.note(Branch::Sealed);
            true
        }
        (Some((Verdict::OutOfOrder, _)), Some(ErrorCode::OutOfOrderSequenceNumber)) => {
            world.seen.note(Branch::OutOfOrder);
            true
        }
        (Some((Verdict::Duplicate(original), _)), None) => {
            if result.base_offset != original.base {
                return false;
            }
            world.seen.note(Branch::DuplicateOnNewConnection);
            let original = Place {
                directory: expected.home,
                position: original.position,
            };
            world.answer(after.clone(), original);
            true
        }
        _ => false,
    }
}

/// What a producer is told of a partition that does not exist: a crash may have made its topic
/// smaller again.
fn not_there(world: &World, part: &Part) -> ErrorCode {
    let mut topics = world.model.durable.topics.values();
    match topics.any(|topic| topic.id == part.topic) {
        true => ErrorCode::UnknownTopicOrPartition,
        false => ErrorCode::UnknownTopicId,
    }
}
