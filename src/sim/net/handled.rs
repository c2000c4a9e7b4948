//! What the server made of a request, compared with the model in the moment it is handled.

use std::collections::BTreeMap;

use bytes::Bytes;
use kafka_protocol::messages::{
    FetchRequest, FetchResponse, InitProducerIdResponse, OffsetCommitRequest, OffsetCommitResponse,
    OffsetFetchRequest, OffsetFetchResponse, ProduceResponse,
};

use super::asked::{Asked, Part, Request, error_of};
use super::position;
use crate::clock::Clock;
use crate::handlers::Answer;
use crate::protocol::batch::Batches;
use crate::protocol::error::ErrorCode;
use crate::sim::check;
use crate::sim::model::{Change, CommitState, Verdict};
use crate::sim::seen::Branch;
use crate::sim::world::World;
use crate::store::journal::Journal;
use crate::store::journal::stepped::Noted;
use crate::types::Position;

/// How far ahead of the clock a topic takes timestamps.
const HOUR_MS: i64 = 3_600_000;

pub(super) fn compare(
    world: &mut World,
    request: &Request,
    answer: &Answer,
    before: Position,
    appended: &[Noted],
) {
    let after = position(answer);
    let frame = answer.frame.as_ref().expect("everything asked is answered");
    let frame = Bytes::from(frame.parts.concat());
    match &request.asked {
        Asked::ProducerId => {
            let response: InitProducerIdResponse = request.decode(&frame);
            producer_id(world, response.producer_id.0, after, before);
        }
        Asked::Produce(parts) => {
            produce(world, parts, &request.decode(&frame), after, appended);
        }
        Asked::Fetch(asked) => {
            if request.polls > 0 {
                world.seen.note(Branch::FetchWaited);
            }
            fetch(world, asked, &request.decode(&frame));
        }
        Asked::Commit(asked) => {
            commit(world, asked, &request.decode(&frame), after, appended);
        }
        Asked::Offsets(asked) => offsets(world, asked, &request.decode(&frame), after),
        Asked::Join(_) | Asked::Sync(_) | Asked::Heartbeat(_) | Asked::Leave(_) => {
            if let Some(last) = appended.last() {
                world.answer(after, Position(0));
                assert!(last.position > before);
            }
        }
    }
}

fn producer_id(world: &mut World, id: i64, after: Position, before: Position) {
    let store = world.store();
    let next = store.catalog.sequenced().next_producer_id();
    let appended = store.journal.appended();
    if appended > before {
        world.model.sequence(appended, Change::ProducerIds { next });
        assert_eq!(after, appended);
    }
    assert!(id < world.model.sequenced.next_producer_id);
    let known = world.clients.ids.contains(&id);
    assert!(
        !known && world.net.ids.insert(id),
        "{id} was given out twice"
    );
    world.answer(after, after);
}

fn produce(
    world: &mut World,
    parts: &[Part],
    response: &ProduceResponse,
    after: Position,
    appended: &[Noted],
) {
    let results: Vec<_> = response
        .responses
        .iter()
        .flat_map(|topic| {
            topic
                .partition_responses
                .iter()
                .map(move |r| (topic.topic_id, r))
        })
        .collect();
    assert_eq!(results.len(), parts.len(), "an answer for each partition");
    let mut appended = appended.iter();
    for (part, (topic, result)) in parts.iter().zip(results) {
        assert_eq!((topic, result.index), (part.topic, part.index as i32));
        let Some(key) = part.key else {
            let expected = not_there(world, part);
            assert_eq!(error_of(result.error_code), Some(expected));
            continue;
        };
        let log = world.model.sequenced.logs.get(&key);
        let expected = log.map(|log| (log.judge(&part.sent), log.next));
        match (expected, error_of(result.error_code)) {
            (_, Some(ErrorCode::KafkaStorageError)) => {
                assert!(
                    !world.store().registry.is_writable(),
                    "{key}: there is room"
                );
                world.refused_while_full |= world.full_for.is_some();
            }
            // Its topic was deleted before the request was looked at, or in the middle of it.
            (None, Some(ErrorCode::UnknownTopicOrPartition)) => world.seen.note(Branch::Sealed),
            (_, Some(ErrorCode::InvalidTimestamp)) => {
                let latest = world.clock.wall_ms() + HOUR_MS;
                assert!(part.sent.time() > latest && !part.stamps, "{key}: refused");
            }
            (Some((Verdict::OutOfOrder, _)), Some(ErrorCode::OutOfOrderSequenceNumber)) => {
                world.seen.note(Branch::OutOfOrder);
            }
            (Some((Verdict::Append, next)), None) => {
                let noted = appended.next().expect("an append");
                assert_eq!(noted.key, key);
                assert_eq!(result.base_offset, next, "{key}: offsets are dense");
                landed(world, part, noted, result.log_append_time_ms);
                world.answer(after, noted.position);
            }
            (Some((Verdict::Duplicate(original), _)), None) => {
                assert_eq!(result.base_offset, original.base, "the original's offset");
                world.seen.note(Branch::DuplicateOnNewConnection);
                world.answer(after, original.position);
            }
            (expected, code) => panic!("{key}: the model says {expected:?}, the store {code:?}"),
        }
    }
    assert!(appended.next().is_none(), "nothing else is appended");
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

/// A batch has its place.
fn landed(world: &mut World, part: &Part, noted: &Noted, append_time: i64) {
    let key = noted.key;
    let mut sent = part.sent.clone();
    assert_eq!(noted.payload, sent.payload, "{key}: kept as sent");
    let log = &world.model.sequenced.logs[&key];
    let twice = log
        .batches
        .values()
        .any(|other| other.payload == sent.payload);
    assert!(
        !twice,
        "{key}: a batch of an idempotent producer is there twice"
    );
    assert_eq!(
        append_time >= 0,
        part.stamps,
        "{key}: a time is told if it is set"
    );
    if part.stamps {
        sent.stamp = Some(append_time);
        world.seen.note(Branch::Stamped);
    }
    world
        .model
        .sequence(noted.position, Change::Append { key, sent });
    check::routed(world, key);
}

/// A Fetch shows durable records, and borders that belong to them.
fn fetch(world: &World, asked: &FetchRequest, response: &FetchResponse) {
    assert_eq!(error_of(response.error_code), None);
    let durable = &world.model.durable;
    for topic in &asked.topics {
        let found = response
            .responses
            .iter()
            .find(|r| r.topic_id == topic.topic_id);
        let found = found.expect("each topic is answered");
        for partition in &topic.partitions {
            let index = partition.partition;
            let result = found.partitions.iter().find(|r| r.partition_index == index);
            let result = result.expect("each partition is answered");
            let key = durable.partition(topic.topic_id, index as u32);
            let Some(log) = key.and_then(|key| durable.logs.get(&key)) else {
                assert_eq!(error_of(result.error_code), Some(ErrorCode::UnknownTopicId));
                continue;
            };
            let offset = partition.fetch_offset;
            if !(log.log_start..=log.next).contains(&offset) {
                assert_eq!(
                    error_of(result.error_code),
                    Some(ErrorCode::OffsetOutOfRange),
                    "at {offset}"
                );
                continue;
            }
            assert_eq!(error_of(result.error_code), None, "at {offset}");
            assert_eq!(result.high_watermark, log.next, "one cut");
            assert_eq!(result.log_start_offset, log.log_start, "one cut");
            let records = result.records.clone().unwrap_or_default();
            let mut expected = log.from(offset);
            for batch in Batches::new(&records) {
                let batch = batch.expect("a whole batch");
                batch.check_crc().expect("an undamaged batch");
                let (base, sent) = expected.next().expect("no more than was sent");
                assert_eq!(batch.info.base_offset, base, "offsets are dense");
                assert!(sent.is(batch.bytes), "wrong bytes at {base}");
            }
        }
    }
}

fn commit(
    world: &mut World,
    asked: &OffsetCommitRequest,
    response: &OffsetCommitResponse,
    after: Position,
    appended: &[Noted],
) {
    let (topic, partition) = (&asked.topics[0], &asked.topics[0].partitions[0]);
    if error_of(response.topics[0].partitions[0].error_code).is_some() {
        return;
    }
    let position = appended.first().expect("a commit's record").position;
    let name = topic.name.to_string();
    let id = world.model.durable.topics[&name].id;
    let group = asked.group_id.to_string();
    let generation = asked.generation_id_or_member_epoch;
    let place = (name.clone(), partition.partition_index);
    let metadata = partition.committed_metadata.as_deref().unwrap_or_default();
    let (owner, _) = metadata.split_once('#').expect("owner#number");
    let mut told = world.net.told.range((group.clone(), i32::MIN)..);
    let newer = told.find(|((of, told_generation), told)| {
        *of == group && *told_generation > generation && told.synced
    });
    assert!(
        newer.is_none(),
        "a commit of {group} in generation {generation}: {newer:?}"
    );
    let told = world.net.told.get(&(group.clone(), generation));
    let told = told.and_then(|told| told.owners.get(&place));
    assert!(
        told.is_none_or(|told| told == owner),
        "{place:?} of {group} is {told:?}'s"
    );
    let key = (group, name, partition.partition_index);
    let offset = partition.committed_offset;
    let earlier = world.model.sequenced.commits.get(&key);
    if let Some(earlier) = earlier.filter(|earlier| earlier.topic_id == id) {
        assert!(earlier.offset < offset, "{key:?} goes back to {offset}");
    }
    let commit = CommitState {
        offset,
        metadata: metadata.to_owned(),
        topic_id: id,
    };
    world.seen.note(Branch::MemberCommitted);
    world
        .model
        .sequence(position, Change::Commit { key, commit });
    world.answer(after, position);
}

fn offsets(
    world: &mut World,
    asked: &OffsetFetchRequest,
    response: &OffsetFetchResponse,
    after: Position,
) {
    let found = &response.groups[0];
    if error_of(found.error_code).is_some() {
        return;
    }
    let group = asked.groups[0].group_id.as_str();
    let mut expected = world
        .model
        .sequenced
        .shown_commits(&world.model.durable.topics);
    expected.retain(|key, _| key.0 == group);
    let mut shown = BTreeMap::new();
    for topic in &found.topics {
        let name = topic.name.to_string();
        let topic_id = world.model.durable.topics[&name].id;
        for partition in &topic.partitions {
            let commit = CommitState {
                offset: partition.committed_offset,
                metadata: partition.metadata.as_deref().unwrap_or_default().to_owned(),
                topic_id,
            };
            let key = (group.to_owned(), name.clone(), partition.partition_index);
            shown.insert(key, commit);
        }
    }
    assert_eq!(shown, expected, "commits of {group}");
    for ((of, topic, partition), newest) in &world.net.acknowledged {
        let commit = shown
            .iter()
            .find(|((_, _, p), commit)| p == partition && commit.topic_id == *topic);
        let shown = commit.is_none_or(|(_, commit)| commit.offset >= *newest);
        assert!(
            of != group || shown,
            "{commit:?} of {of} was acknowledged as {newest}"
        );
    }
    let changed = world.model.commit_changed.iter();
    let truth = changed.filter(|(key, _)| key.0 == group).map(|(_, at)| *at);
    if let Some(truth) = truth.max() {
        world.answer(after, truth);
    }
}
