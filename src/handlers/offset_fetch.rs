//! OffsetFetch: one group up to version 7, several from version 8 on.

use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_protocol::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use kafka_protocol::messages::{OffsetFetchRequest, OffsetFetchResponse, TopicName};

use super::text::{name, text};
use super::{Connection, Reply};
use crate::coordinator::Held;
use crate::coordinator::group::command::Name;
use crate::coordinator::group::record::Commit;
use crate::coordinator::group::view::TopicCommits;
use crate::protocol::error::{ErrorCode, ToCode};
use crate::types::Position;

/// First version with several groups.
const MANY: i16 = 8;
/// First version with an error for the whole group.
const GROUP_ERROR: i16 = 2;

/// Answers OffsetFetch.
pub async fn handle(
    cx: &Connection,
    request: OffsetFetchRequest,
    version: i16,
) -> Reply<OffsetFetchResponse> {
    if version >= MANY {
        let mut after = Position(0);
        let groups = request.groups.into_iter().map(|group| {
            let (response, position) = of_group(cx, group);
            after = after.max(position);
            response
        });
        let groups = groups.collect();
        return Reply::after(OffsetFetchResponse::default().with_groups(groups), after);
    }
    let asked: Option<Vec<_>> = request.topics.map(|topics| {
        topics.into_iter().map(|t| (name(&t.name.0), t.partition_indexes)).collect()
    });
    match look_up(cx, request.group_id.0.as_str(), asked.as_deref()) {
        Ok(held) => {
            let topics = held.value.into_iter().map(of_topic).collect();
            Reply::after(OffsetFetchResponse::default().with_topics(topics), held.after)
        }
        Err(error) if version >= GROUP_ERROR => {
            OffsetFetchResponse::default().with_error_code(error.to_code()).into()
        }
        Err(error) => {
            let refused = |(topic, partitions): (Name, Vec<i32>)| {
                let one = |p: i32| partition((p, None)).with_error_code(error.to_code());
                OffsetFetchResponseTopic::default()
                    .with_name(TopicName(text(&topic)))
                    .with_partitions(partitions.into_iter().map(one).collect())
            };
            let topics = asked.unwrap_or_default().into_iter().map(refused).collect();
            OffsetFetchResponse::default().with_topics(topics).into()
        }
    }
}

fn look_up(
    cx: &Connection,
    group: &str,
    topics: Option<&[(Name, Vec<i32>)]>,
) -> Result<Held<Vec<TopicCommits>>, ErrorCode> {
    match topics {
        Some(topics) => cx.broker.groups.commits(group, topics),
        None => cx.broker.groups.all_commits(group),
    }
}

fn of_group(
    cx: &Connection,
    asked: OffsetFetchRequestGroup,
) -> (OffsetFetchResponseGroup, Position) {
    let topics: Option<Vec<_>> = asked.topics.map(|topics| {
        topics.into_iter().map(|t| (name(&t.name.0), t.partition_indexes)).collect()
    });
    let found = look_up(cx, asked.group_id.0.as_str(), topics.as_deref());
    let response = OffsetFetchResponseGroup::default().with_group_id(asked.group_id);
    match found {
        Err(error) => (response.with_error_code(error.to_code()), Position(0)),
        Ok(held) => {
            let topics = held.value.into_iter().map(|(topic, commits)| {
                OffsetFetchResponseTopics::default()
                    .with_name(TopicName(text(&topic)))
                    .with_partitions(commits.into_iter().map(partitions).collect())
            });
            (response.with_topics(topics.collect()), held.after)
        }
    }
}

fn of_topic((topic, commits): TopicCommits) -> OffsetFetchResponseTopic {
    OffsetFetchResponseTopic::default()
        .with_name(TopicName(text(&topic)))
        .with_partitions(commits.into_iter().map(partition).collect())
}

fn partition((index, commit): (i32, Option<Commit>)) -> OffsetFetchResponsePartition {
    let (offset, epoch, metadata) = shown(&commit);
    OffsetFetchResponsePartition::default()
        .with_partition_index(index)
        .with_committed_offset(offset)
        .with_committed_leader_epoch(epoch)
        .with_metadata(Some(text(metadata)))
}

fn partitions((index, commit): (i32, Option<Commit>)) -> OffsetFetchResponsePartitions {
    let (offset, epoch, metadata) = shown(&commit);
    OffsetFetchResponsePartitions::default()
        .with_partition_index(index)
        .with_committed_offset(offset)
        .with_committed_leader_epoch(epoch)
        .with_metadata(Some(text(metadata)))
}

fn shown(commit: &Option<Commit>) -> (i64, i32, &str) {
    match commit {
        Some(c) => (c.offset, c.leader_epoch, &c.metadata),
        None => (-1, -1, ""),
    }
}
