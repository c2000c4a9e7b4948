//! ListGroups.

use kafka_protocol::messages::list_groups_response::ListedGroup;
use kafka_protocol::messages::{GroupId, ListGroupsRequest, ListGroupsResponse};
use kafka_protocol::protocol::StrBytes;

use super::text::text;
use super::{Connection, Reply};
use crate::protocol::error::ToCode;

/// The kind of every group that this coordinator runs.
const CLASSIC: &str = "classic";

/// Answers ListGroups. Filters are compared without regard to case; one that names no state or
/// type that exists lets no group through.
pub async fn handle(
    cx: &Connection,
    request: ListGroupsRequest,
    _version: i16,
) -> Reply<ListGroupsResponse> {
    let passes = |filter: &[StrBytes], word: &str| {
        filter.is_empty() || filter.iter().any(|f| f.eq_ignore_ascii_case(word))
    };
    let held = match cx.broker.groups.list() {
        Ok(held) => held,
        Err(error) => {
            return ListGroupsResponse::default().with_error_code(error.to_code()).into();
        }
    };
    let mut groups = Vec::new();
    if passes(&request.types_filter, CLASSIC) {
        for group in held.value {
            if passes(&request.states_filter, group.state.name()) {
                let listed = ListedGroup::default()
                    .with_group_id(GroupId(text(&group.group)))
                    .with_protocol_type(text(&group.protocol_type))
                    .with_group_state(StrBytes::from_static_str(group.state.name()))
                    .with_group_type(StrBytes::from_static_str(CLASSIC));
                groups.push(listed);
            }
        }
    }
    Reply::after(ListGroupsResponse::default().with_groups(groups), held.after)
}
