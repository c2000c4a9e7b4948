//! DescribeCluster 0–2: the brokers, the controller and the cluster's id.
//!
//! KIP-700 (the API), KIP-919 (endpoint types), KIP-1073 (fenced brokers; there are none here).
//!
//! Deliberate gap: there is no controller listener, so the endpoint type "controller" is refused as
//! a broker listener refuses it.

use std::sync::Arc;

use kafka_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use kafka_protocol::messages::{BrokerId, DescribeClusterRequest, DescribeClusterResponse};

use super::answers::{CLUSTER_OPERATIONS, Refusal, text};
use super::{Connection, Reply};
use crate::protocol::error::ErrorCode;

const BROKERS: i8 = 1;
const CONTROLLERS: i8 = 2;

/// Answers with this node as the only broker and as the controller.
pub async fn handle(
    cx: &Arc<Connection>,
    request: DescribeClusterRequest,
    version: i16,
) -> Reply<DescribeClusterResponse> {
    if let Err(refusal) = check_endpoint(if version >= 1 { request.endpoint_type } else { BROKERS })
    {
        return DescribeClusterResponse::default()
            .with_error_code(refusal.code.code())
            .with_error_message(refusal.text())
            .into();
    }
    let broker = &cx.broker;
    let address = &cx.listener.advertised;
    let node = BrokerId(broker.node_id);
    let mut response = DescribeClusterResponse::default()
        .with_cluster_id(text(&broker.cluster_id))
        .with_controller_id(node)
        .with_brokers(vec![
            DescribeClusterBroker::default()
                .with_broker_id(node)
                .with_host(text(&address.host))
                .with_port(i32::from(address.port))
                .with_rack(broker.config.rack.as_deref().map(text)),
        ]);
    if request.include_cluster_authorized_operations {
        response.cluster_authorized_operations = CLUSTER_OPERATIONS;
    }
    response.into()
}

fn check_endpoint(endpoint_type: i8) -> Result<(), Refusal> {
    match endpoint_type {
        BROKERS => Ok(()),
        CONTROLLERS => Err(Refusal::new(
            ErrorCode::MismatchedEndpointType,
            "this listener serves brokers; there is no controller listener to ask",
        )),
        other => Err(Refusal::new(
            ErrorCode::UnsupportedEndpointType,
            format!("endpoint type {other} does not exist; 1 is for brokers"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_brokers_can_be_described() {
        assert_eq!(check_endpoint(1), Ok(()));
        assert_eq!(check_endpoint(2).unwrap_err().code.code(), 114);
        assert_eq!(check_endpoint(9).unwrap_err().code.code(), 115);
    }
}
