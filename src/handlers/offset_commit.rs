//! OffsetCommit: topics and partitions must exist; the group decides the rest.

use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_protocol::messages::{OffsetCommitRequest, OffsetCommitResponse};

use super::answers::within;
use super::text::{name, some_name};
use super::{Connection, Reply};
use crate::catalog::Image;
use crate::coordinator::group::command::{
    CommitErrors, CommitPartition, CommitRequest, CommitTopic,
};
use crate::protocol::error::{ErrorCode, ToCode};

/// Answers OffsetCommit.
pub async fn handle(
    cx: &Connection,
    request: OffsetCommitRequest,
    version: i16,
) -> Reply<OffsetCommitResponse> {
    let image = cx.broker.catalog.image();
    let topics: Vec<CommitTopic> =
        request.topics.iter().filter_map(|topic| known(&image, topic)).collect();
    let nothing_known = topics.is_empty();
    let commit = CommitRequest {
        group: name(&request.group_id.0),
        generation: request.generation_id_or_member_epoch,
        member_id: name(&request.member_id),
        instance_id: some_name(&request.group_instance_id),
        retention_ms: (request.retention_time_ms >= 0).then_some(request.retention_time_ms),
        knows_group_id_not_found: version >= 9,
        topics,
    };
    if nothing_known {
        return answer(&image, request, CommitErrors::new()).into();
    }
    let held = cx.broker.groups.commit(commit);
    Reply::after(answer(&image, request, held.value), held.after)
}

/// The part of a topic's commits that is about partitions that exist.
fn known(image: &Image, asked: &OffsetCommitRequestTopic) -> Option<CommitTopic> {
    let topic = image.topic(asked.name.0.as_str())?;
    let commit = |p: &OffsetCommitRequestPartition| CommitPartition {
        partition: p.partition_index,
        offset: p.committed_offset,
        leader_epoch: p.committed_leader_epoch,
        metadata: p.committed_metadata.as_ref().map(name).unwrap_or_default(),
    };
    let exists = |p: &&OffsetCommitRequestPartition| within(p.partition_index, topic.partitions);
    let partitions: Vec<_> = asked.partitions.iter().filter(exists).map(commit).collect();
    (!partitions.is_empty()).then(|| CommitTopic {
        name: topic.name.clone(),
        id: topic.id,
        partitions,
    })
}

/// Puts the group's results, which are about what exists, back among the rest.
fn answer(
    image: &Image,
    request: OffsetCommitRequest,
    errors: CommitErrors,
) -> OffsetCommitResponse {
    let mut errors = errors.into_iter();
    let asked = request.topics.into_iter().filter(|topic| !topic.partitions.is_empty());
    let topics = asked.map(|topic| {
        let count = image.topic(topic.name.0.as_str()).map_or(0, |t| t.partitions);
        let any = topic.partitions.iter().any(|p| within(p.partition_index, count));
        let mut of_topic = if any { errors.next() } else { None }.unwrap_or_default().into_iter();
        let partitions = topic.partitions.iter().map(|p| {
            let error = match within(p.partition_index, count) {
                true => of_topic.next().unwrap_or(Some(ErrorCode::NotCoordinator)),
                false => Some(ErrorCode::UnknownTopicOrPartition),
            };
            OffsetCommitResponsePartition::default()
                .with_partition_index(p.partition_index)
                .with_error_code(error.to_code())
        });
        let partitions = partitions.collect();
        OffsetCommitResponseTopic::default().with_name(topic.name).with_partitions(partitions)
    });
    OffsetCommitResponse::default().with_topics(topics.collect())
}
