//! IncrementalAlterConfigs 0–1: sets, deletes, appends to and subtracts from single configs.
//!
//! KIP-339 (the API), KIP-1032 (group configs). Topics, brokers, all brokers (the empty name) and
//! groups. The answer leaves once the changes are durable.
//!
//! Deliberate gaps: client metrics subscriptions (KIP-714) and log levels (KIP-412) are refused.
//! Broker configs are kept and shown; those that topics inherit take effect at once. A broker
//! config that Kafka does not have is refused, because no plugin is there to read it.

use std::sync::Arc;

use kafka_protocol::messages::incremental_alter_configs_request::AlterConfigsResource;
use kafka_protocol::messages::incremental_alter_configs_response::AlterConfigsResourceResponse;
use kafka_protocol::messages::{IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse};

use super::alterations::{Edit, Edits, alter_each};
use super::{Connection, Reply};

/// Changes each resource; one resource's error does not touch the others.
pub async fn handle(
    cx: &Arc<Connection>,
    request: IncrementalAlterConfigsRequest,
    _version: i16,
) -> Reply<IncrementalAlterConfigsResponse> {
    let edits: Vec<Edits<'_>> = request.resources.iter().map(edits).collect();
    let (outcomes, after) = alter_each(cx, &edits, request.validate_only);
    let responses = request.resources.iter().zip(outcomes).map(|(resource, refusal)| {
        let response = AlterConfigsResourceResponse::default()
            .with_resource_type(resource.resource_type)
            .with_resource_name(resource.resource_name.clone());
        match refusal {
            None => response.with_error_message(None),
            Some(refusal) => response
                .with_error_code(refusal.code.code())
                .with_error_message(refusal.text()),
        }
    });
    Reply::after(IncrementalAlterConfigsResponse::default().with_responses(responses.collect()), after)
}

fn edits(resource: &AlterConfigsResource) -> Edits<'_> {
    let edits = resource.configs.iter().map(|config| Edit {
        name: &config.name,
        operation: config.config_operation,
        value: config.value.as_deref(),
    });
    Edits {
        kind: resource.resource_type,
        name: &resource.resource_name,
        edits: edits.collect(),
        replace: false,
    }
}
