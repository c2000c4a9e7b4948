//! AlterConfigs 0–2: replaces all configs of a resource.
//!
//! KIP-133 (the API). Configs that the request does not name go back to what they inherit; clients
//! that only want to change some use IncrementalAlterConfigs. Resources, gaps and the moment of the
//! answer are the same as there.

use std::sync::Arc;

use kafka_protocol::messages::alter_configs_request::AlterConfigsResource;
use kafka_protocol::messages::alter_configs_response::AlterConfigsResourceResponse;
use kafka_protocol::messages::{AlterConfigsRequest, AlterConfigsResponse};

use super::alterations::{Edit, Edits, alter_each};
use super::{Connection, Reply};
use crate::catalog::AlterOp;

/// Replaces each resource's configs; one resource's error does not touch the others.
pub async fn handle(
    cx: &Arc<Connection>,
    request: AlterConfigsRequest,
    _version: i16,
) -> Reply<AlterConfigsResponse> {
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
    Reply::after(AlterConfigsResponse::default().with_responses(responses.collect()), after)
}

fn edits(resource: &AlterConfigsResource) -> Edits<'_> {
    let edits = resource.configs.iter().map(|config| Edit {
        name: &config.name,
        operation: AlterOp::Set as i8,
        value: config.value.as_deref(),
    });
    Edits {
        kind: resource.resource_type,
        name: &resource.resource_name,
        edits: edits.collect(),
        replace: true,
    }
}
