//! Heartbeat.

use kafka_protocol::messages::{HeartbeatRequest, HeartbeatResponse};

use super::text::{name, some_name};
use super::{Connection, Reply};
use crate::coordinator::group::command;
use crate::protocol::error::ToCode;

/// Answers Heartbeat.
pub async fn handle(
    cx: &Connection,
    request: HeartbeatRequest,
    _version: i16,
) -> Reply<HeartbeatResponse> {
    let held = cx.broker.groups.heartbeat(command::HeartbeatRequest {
        group: name(&request.group_id.0),
        generation: request.generation_id,
        member_id: name(&request.member_id),
        instance_id: some_name(&request.group_instance_id),
    });
    let response = HeartbeatResponse::default().with_error_code(held.value.to_code());
    Reply::after(response, held.after)
}
