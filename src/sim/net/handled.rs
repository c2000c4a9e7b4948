//! What the server made of a request, compared with the model in the moment it is handled.

use std::collections::BTreeMap;

use bytes::Bytes;
use kafka_protocol::messages::{
    FetchRequest, FetchResponse, InitProducerIdResponse, OffsetCommitRequest, OffsetCommitResponse,
    OffsetFetchRequest, OffsetFetchResponse,
};

use super::asked::{Asked, Request, error_of};
use super::produced;
use crate::handlers::Answer;
use crate::protocol::batch::Batches;
use crate::protocol::error::ErrorCode;
use crate::sim::ends::in_first;
use crate::sim::model::{Change, CommitState};
use crate::sim::seen::Branch;
use crate::sim::world::{Placed, World};
use crate::store::journal::Journal;
use crate::types::{Places, Position};

pub(super) fn compare(
    world: &mut World,
    request: &Request,
    answer: &Answer,
    before: Position,
    appended: &[Placed],
) {
    let after = &answer.after;
    let frame = answer.frame.as_ref().expect("everything asked is answered");
    let frame = Bytes::from(frame.parts.concat());
    match &request.asked {
        Asked::ProducerId => {
            let response: InitProducerIdResponse = request.decode(&frame);
            producer_id(world, response.producer_id.0, after, before);
        }
        Asked::Produce(parts) => {
            produced::compare(world, request, parts, &request.decode(&frame), after);
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
                world.answer(after.clone(), Position(0));
                assert!(last.place.position > before);
            }
        }
    }
}

fn producer_id(world: &mut World, id: i64, after: &Places, before: Position) {
    let store = world.store();
    let next = store.catalog.sequenced().next_producer_id();
    let appended = store.journal().appended();
    if appended > before {
        let change = Change::ProducerIds { next };
        world.model.sequence(in_first(appended), change);
        assert_eq!(*after, appended.into());
    }
    assert!(id < world.model.sequenced.next_producer_id);
    let known = world.clients.ids.contains(&id);
    assert!(
        !known && world.net.ids.insert(id),
        "{id} was given out twice"
    );
    world.answer(after.clone(), after.clone());
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
    after: &Places,
    appended: &[Placed],
) {
    let (topic, partition) = (&asked.topics[0], &asked.topics[0].partitions[0]);
    if error_of(response.topics[0].partitions[0].error_code).is_some() {
        return;
    }
    let landed = appended.first().expect("a commit's record").place;
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
    world.model.sequence(landed, Change::Commit { key, commit });
    world.answer(after.clone(), landed);
}

fn offsets(
    world: &mut World,
    asked: &OffsetFetchRequest,
    response: &OffsetFetchResponse,
    after: &Places,
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
        world.answer(after.clone(), truth);
    }
}
