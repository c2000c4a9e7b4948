//! LeaveGroup: one member up to version 2, several from version 3 on.

use kafka_protocol::messages::leave_group_response::MemberResponse;
use kafka_protocol::messages::{LeaveGroupRequest, LeaveGroupResponse};

use super::text::{name, some_name};
use super::{Connection, Reply};
use crate::coordinator::group::command::Leaver;
use crate::protocol::error::ToCode;

/// First version with several members.
const MANY: i16 = 3;

/// Answers LeaveGroup.
pub async fn handle(
    cx: &Connection,
    request: LeaveGroupRequest,
    version: i16,
) -> Reply<LeaveGroupResponse> {
    let group = name(&request.group_id.0);
    let response = LeaveGroupResponse::default();
    if version < MANY {
        let only = Leaver { member_id: name(&request.member_id), instance_id: None };
        let held = cx.broker.groups.leave(group, vec![only]);
        let error = match held.value {
            Ok(results) => results.first().copied().flatten(),
            Err(error) => Some(error),
        };
        return Reply::after(response.with_error_code(error.to_code()), held.after);
    }
    let leavers = request.members.iter().map(|m| Leaver {
        member_id: name(&m.member_id),
        instance_id: some_name(&m.group_instance_id),
    });
    let held = cx.broker.groups.leave(group, leavers.collect());
    let response = match held.value {
        Err(error) => response.with_error_code(error.to_code()),
        Ok(results) => {
            let member = |(asked, error): (_, Option<_>)| {
                let asked: kafka_protocol::messages::leave_group_request::MemberIdentity = asked;
                MemberResponse::default()
                    .with_member_id(asked.member_id)
                    .with_group_instance_id(asked.group_instance_id)
                    .with_error_code(error.to_code())
            };
            let members = request.members.into_iter().zip(results).map(member);
            response.with_members(members.collect())
        }
    };
    Reply::after(response, held.after)
}
