//! SyncGroup: parks until the leader has sent the assignment.

use bytes::Bytes;
use kafka_protocol::messages::{SyncGroupRequest, SyncGroupResponse};

use super::text::{name, some_name, some_text};
use super::{Connection, Reply};
use crate::coordinator::group::command::{SyncReply, SyncRequest};
use crate::protocol::error::{ErrorCode, ToCode};

/// Answers SyncGroup.
pub async fn handle(
    cx: &Connection,
    r: SyncGroupRequest,
    version: i16,
) -> Reply<SyncGroupResponse> {
    if version >= 5 && (r.protocol_type.is_none() || r.protocol_name.is_none()) {
        return answer(SyncReply::failed(ErrorCode::InconsistentGroupProtocol)).into();
    }
    let given = r.assignments.iter();
    let request = SyncRequest {
        group: name(&r.group_id.0),
        generation: r.generation_id,
        member_id: name(&r.member_id),
        instance_id: some_name(&r.group_instance_id),
        protocol_type: some_name(&r.protocol_type),
        protocol: some_name(&r.protocol_name),
        assignments: given
            .map(|a| (name(&a.member_id), Bytes::copy_from_slice(&a.assignment)))
            .collect(),
    };
    let held = cx.broker.groups.sync(request).await;
    Reply::after(answer(held.value), held.after)
}

fn answer(reply: SyncReply) -> SyncGroupResponse {
    SyncGroupResponse::default()
        .with_error_code(reply.error.to_code())
        .with_protocol_type(some_text(&reply.protocol_type))
        .with_protocol_name(some_text(&reply.protocol))
        .with_assignment(reply.assignment)
}
