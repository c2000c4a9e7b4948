//! FindCoordinator: on one node every group's coordinator is this node, at the address of the
//! listener that was asked.

use kafka_protocol::messages::find_coordinator_response::Coordinator;
use kafka_protocol::messages::{BrokerId, FindCoordinatorRequest, FindCoordinatorResponse};
use kafka_protocol::protocol::StrBytes;

use super::text::text;
use super::{Connection, Reply};
use crate::protocol::error::{ErrorCode, ToCode};

const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;

/// First version that asks for several keys.
const MANY: i16 = 4;

const UNKNOWN_TYPE: &str = "This server coordinates groups (key type 0) and transactional ids \
                            (key type 1) only.";

/// Answers FindCoordinator.
pub async fn handle(
    cx: &Connection,
    request: FindCoordinatorRequest,
    version: i16,
) -> Reply<FindCoordinatorResponse> {
    let known = matches!(request.key_type, GROUP | TRANSACTION);
    let response = FindCoordinatorResponse::default();
    if version >= MANY {
        let one = |key: StrBytes| {
            let coordinator = Coordinator::default().with_key(key);
            if known { here(cx, coordinator) } else { nowhere(coordinator) }
        };
        let all = request.coordinator_keys.into_iter().map(one).collect();
        return response.with_coordinators(all).into();
    }
    let one = Coordinator::default();
    let one = if known { here(cx, one) } else { nowhere(one) };
    let message = if known { Some(StrBytes::from_static_str("NONE")) } else { one.error_message };
    response
        .with_error_code(one.error_code)
        .with_error_message(message)
        .with_node_id(one.node_id)
        .with_host(one.host)
        .with_port(one.port)
        .into()
}

fn here(cx: &Connection, coordinator: Coordinator) -> Coordinator {
    let address = &cx.listener.advertised;
    coordinator
        .with_node_id(BrokerId(cx.broker.node_id))
        .with_host(text(&address.host))
        .with_port(address.port.into())
        .with_error_message(Some(StrBytes::default()))
}

fn nowhere(coordinator: Coordinator) -> Coordinator {
    coordinator
        .with_node_id(BrokerId(-1))
        .with_port(-1)
        .with_error_code(ErrorCode::InvalidRequest.to_code())
        .with_error_message(Some(StrBytes::from_static_str(UNKNOWN_TYPE)))
}
