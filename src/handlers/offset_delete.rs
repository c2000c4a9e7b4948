//! OffsetDelete (KIP-496): commits of topics that the group no longer reads. Partitions must
//! exist; the group decides the rest.

use kafka_protocol::messages::offset_delete_request::OffsetDeleteRequestTopic;
use kafka_protocol::messages::offset_delete_response::{
    OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use kafka_protocol::messages::{OffsetDeleteRequest, OffsetDeleteResponse};

use super::answers::within;
use super::text::name;
use super::{Connection, Reply};
use crate::coordinator::group::command::Name;
use crate::protocol::error::{ErrorCode, ToCode};

/// Answers OffsetDelete.
pub async fn handle(
    cx: &Connection,
    request: OffsetDeleteRequest,
    _version: i16,
) -> Reply<OffsetDeleteResponse> {
    let image = cx.broker.catalog.image();
    let partitions = |topic: &OffsetDeleteRequestTopic| {
        image.topic(topic.name.0.as_str()).map_or(0, |topic| topic.partitions)
    };
    let wanted = |topic: &OffsetDeleteRequestTopic| -> (Name, Vec<i32>) {
        let count = partitions(topic);
        let asked = topic.partitions.iter().map(|p| p.partition_index);
        (name(&topic.name.0), asked.filter(|index| within(*index, count)).collect())
    };
    let group = name(&request.group_id.0);
    let held = cx.broker.groups.delete_offsets(group, request.topics.iter().map(wanted).collect());
    let response = OffsetDeleteResponse::default();
    let response = match held.value {
        Err(error) => response.with_error_code(error.to_code()),
        Ok(errors) => {
            let outcome = |(topic, error): (&OffsetDeleteRequestTopic, Option<ErrorCode>)| {
                answer(topic, partitions(topic), error)
            };
            response.with_topics(request.topics.iter().zip(errors).map(outcome).collect())
        }
    };
    Reply::after(response, held.after)
}

fn answer(
    topic: &OffsetDeleteRequestTopic,
    count: u32,
    error: Option<ErrorCode>,
) -> OffsetDeleteResponseTopic {
    let partitions = topic.partitions.iter().map(|p| {
        let error = match within(p.partition_index, count) {
            true => error,
            false => Some(ErrorCode::UnknownTopicOrPartition),
        };
        OffsetDeleteResponsePartition::default()
            .with_partition_index(p.partition_index)
            .with_error_code(error.to_code())
    });
    let partitions = partitions.collect();
    OffsetDeleteResponseTopic::default().with_name(topic.name.clone()).with_partitions(partitions)
}
