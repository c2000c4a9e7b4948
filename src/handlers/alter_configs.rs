//! AlterConfigs 0–2: replaces all configs of a resource.
//!
//! KIP-133 (the API). Configs that the request does not name go back to what they inherit; clients
//! that only want to change some use IncrementalAlterConfigs. Resources, gaps and the moment of the
//! answer are the same as there.

use std::sync::Arc;

use kafka_protocol::messages::alter_configs_request::AlterConfigsResource;
use kafka_protocol::messages::alter_configs_response::AlterConfigsResourceResponse;
use kafka_protocol::messages::{AlterConfigsRequest, AlterConfigsResponse};

use super::alterations::{Edit, Edits, alter, named_twice, resource};
use super::answers::Refusal;
use super::{Connection, Reply};
use crate::catalog::AlterOp;
use crate::types::Position;

/// Replaces each resource's configs; one resource's error does not touch the others.
pub async fn handle(
    cx: &Arc<Connection>,
    request: AlterConfigsRequest,
    _version: i16,
) -> Reply<AlterConfigsResponse> {
    let keys = request.resources.iter().map(|r| (r.resource_type, r.resource_name.as_str()));
    let twice = named_twice(keys);
    let mut after = Position(0);
    let mut responses = Vec::with_capacity(request.resources.len());
    for resource in &request.resources {
        let key = (resource.resource_type, resource.resource_name.as_str());
        let altered = if twice.contains(&key) {
            Err(Refusal::invalid("the resource is named more than once in the request"))
        } else if key.0 == resource::BROKER_LOGGER {
            Err(Refusal::invalid("log levels can't be replaced as a whole"))
        } else {
            alter(cx, key.0, key.1, &edits(resource), request.validate_only)
        };
        // A refusal may rest on a change that is not durable yet.
        let shown = altered.as_ref().map_or_else(|_| cx.broker.journal.appended(), |at| *at);
        after = after.max(shown);
        let response = AlterConfigsResourceResponse::default()
            .with_resource_type(resource.resource_type)
            .with_resource_name(resource.resource_name.clone());
        responses.push(match altered {
            Ok(_) => response.with_error_message(None),
            Err(refusal) => response
                .with_error_code(refusal.code.code())
                .with_error_message(refusal.text()),
        });
    }
    Reply::after(AlterConfigsResponse::default().with_responses(responses), after)
}

fn edits(resource: &AlterConfigsResource) -> Edits<'_> {
    let edits = resource.configs.iter().map(|config| Edit {
        name: &config.name,
        operation: AlterOp::Set as i8,
        value: config.value.as_deref(),
    });
    Edits { edits: edits.collect(), replace: true }
}
