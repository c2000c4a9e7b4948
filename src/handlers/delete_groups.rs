//! DeleteGroups: only groups without members can be deleted; their commits go with them.

use kafka_protocol::messages::delete_groups_response::DeletableGroupResult;
use kafka_protocol::messages::{DeleteGroupsRequest, DeleteGroupsResponse};

use super::text::name;
use super::{Connection, Reply};
use crate::protocol::error::ToCode;
use crate::types::Position;

/// Answers DeleteGroups.
pub async fn handle(
    cx: &Connection,
    request: DeleteGroupsRequest,
    _version: i16,
) -> Reply<DeleteGroupsResponse> {
    let mut after = Position(0);
    let results = request.groups_names.into_iter().map(|id| {
        let held = cx.broker.groups.delete(name(&id.0));
        after = after.max(held.after);
        let result = DeletableGroupResult::default().with_group_id(id);
        result.with_error_code(held.value.to_code())
    });
    let results = results.collect();
    Reply::after(DeleteGroupsResponse::default().with_results(results), after)
}
