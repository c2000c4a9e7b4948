//! JoinGroup: parks until the group's joining ends.

use bytes::Bytes;
use kafka_protocol::messages::join_group_response::JoinGroupResponseMember;
use kafka_protocol::messages::{JoinGroupRequest, JoinGroupResponse};

use super::text::{name, some_name, some_text, text};
use super::{Connection, Reply};
use crate::coordinator::group::command::{JoinReply, JoinRequest};
use crate::protocol::error::ToCode;

/// Answers JoinGroup.
pub async fn handle(
    cx: &Connection,
    request: JoinGroupRequest,
    version: i16,
) -> Reply<JoinGroupResponse> {
    let request = asked(cx, &request, version);
    let held = cx.broker.groups.join(request).await;
    Reply::after(answer(held.value, version), held.after)
}

fn asked(cx: &Connection, r: &JoinGroupRequest, version: i16) -> JoinRequest {
    let client_id = cx.client.lock().client_id.clone().unwrap_or_default();
    let copied = |metadata: &Bytes| Bytes::copy_from_slice(metadata);
    JoinRequest {
        group: name(&r.group_id.0),
        member_id: name(&r.member_id),
        instance_id: some_name(&r.group_instance_id),
        client_id: client_id.into(),
        client_host: format!("/{}", cx.peer.ip().to_canonical()).into(),
        session_timeout_ms: r.session_timeout_ms,
        // Version 0 has one timeout for both.
        rebalance_timeout_ms: match version {
            0 => r.session_timeout_ms,
            _ => r.rebalance_timeout_ms,
        },
        protocol_type: name(&r.protocol_type),
        protocols: r.protocols.iter().map(|p| (name(&p.name), copied(&p.metadata))).collect(),
        require_member_id: version >= 4,
        can_skip_assignment: version >= 9,
    }
}

fn answer(reply: JoinReply, version: i16) -> JoinGroupResponse {
    let members = reply.members.into_iter().map(|m| {
        JoinGroupResponseMember::default()
            .with_member_id(text(&m.id))
            .with_group_instance_id(some_text(&m.instance_id))
            .with_metadata(m.metadata)
    });
    // Null is a protocol name from version 7 on.
    let protocol = match version {
        7.. => some_text(&reply.protocol),
        _ => Some(some_text(&reply.protocol).unwrap_or_default()),
    };
    JoinGroupResponse::default()
        .with_error_code(reply.error.to_code())
        .with_generation_id(reply.generation)
        .with_protocol_type(some_text(&reply.protocol_type))
        .with_protocol_name(protocol)
        .with_leader(text(&reply.leader))
        .with_skip_assignment(reply.skip_assignment)
        .with_member_id(text(&reply.member_id))
        .with_members(members.collect())
}
