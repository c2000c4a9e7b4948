//! DescribeGroups.

use kafka_protocol::messages::describe_groups_response::{DescribedGroup, DescribedGroupMember};
use kafka_protocol::messages::{DescribeGroupsRequest, DescribeGroupsResponse, GroupId};
use kafka_protocol::protocol::StrBytes;

use super::text::{some_text, text};
use super::{Connection, Reply};
use crate::coordinator::group::view::{DescribedMember, Description};
use crate::protocol::error::{ErrorCode, ToCode};
use crate::types::Position;

/// First version in which a group that does not exist is an error.
const NOT_FOUND: i16 = 6;
/// What a client may do with a group: read, delete, describe, describe and alter its configs.
const ALL_OPERATIONS: i32 = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11;

/// Answers DescribeGroups.
pub async fn handle(
    cx: &Connection,
    request: DescribeGroupsRequest,
    version: i16,
) -> Reply<DescribeGroupsResponse> {
    let mut after = Position(0);
    let with_operations = request.include_authorized_operations;
    let groups = request.groups.into_iter().map(|id| match cx.broker.groups.describe(&id.0) {
        Err(error) => DescribedGroup::default().with_group_id(id).with_error_code(error.to_code()),
        Ok(held) => {
            after = after.max(held.after);
            let group = match held.value {
                Some(description) => found(id, description),
                None => absent(id, version),
            };
            match with_operations {
                true => group.with_authorized_operations(ALL_OPERATIONS),
                false => group,
            }
        }
    });
    let groups = groups.collect();
    Reply::after(DescribeGroupsResponse::default().with_groups(groups), after)
}

fn found(id: GroupId, group: Description) -> DescribedGroup {
    DescribedGroup::default()
        .with_group_id(id)
        .with_group_state(StrBytes::from_static_str(group.state.name()))
        .with_protocol_type(text(&group.protocol_type))
        .with_protocol_data(text(&group.protocol))
        .with_members(group.members.into_iter().map(member).collect())
}

fn member(member: DescribedMember) -> DescribedGroupMember {
    DescribedGroupMember::default()
        .with_member_id(text(&member.id))
        .with_group_instance_id(some_text(&member.instance_id))
        .with_client_id(text(&member.client_id))
        .with_client_host(text(&member.client_host))
        .with_member_metadata(member.metadata)
        .with_member_assignment(member.assignment)
}

fn absent(id: GroupId, version: i16) -> DescribedGroup {
    let message = format!("Group {} not found.", id.0.as_str());
    let group = DescribedGroup::default()
        .with_group_id(id)
        .with_group_state(StrBytes::from_static_str("Dead"));
    if version < NOT_FOUND {
        return group;
    }
    group
        .with_error_code(ErrorCode::GroupIdNotFound.to_code())
        .with_error_message(Some(StrBytes::from_string(message)))
}
