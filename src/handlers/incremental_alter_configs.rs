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

use super::alterations::{Edit, Edits, alter, named_twice};
use super::answers::Refusal;
use super::{Connection, Reply};
use crate::types::Position;

/// Changes each resource; one resource's error does not touch the others.
pub async fn handle(
    cx: &Arc<Connection>,
    request: IncrementalAlterConfigsRequest,
    _version: i16,
) -> Reply<IncrementalAlterConfigsResponse> {
    let kind = |resource: &AlterConfigsResource| resource.resource_type;
    let keys = request.resources.iter().map(|r| (kind(r), r.resource_name.as_str()));
    let twice = named_twice(keys);
    let mut after = Position(0);
    let mut responses = Vec::with_capacity(request.resources.len());
    for resource in &request.resources {
        let altered = if twice.contains(&(kind(resource), resource.resource_name.as_str())) {
            Err(Refusal::invalid("the resource is named more than once in the request"))
        } else {
            let name = resource.resource_name.as_str();
            alter(cx, kind(resource), name, &edits(resource), request.validate_only)
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
    Reply::after(IncrementalAlterConfigsResponse::default().with_responses(responses), after)
}

fn edits(resource: &AlterConfigsResource) -> Edits<'_> {
    let edits = resource.configs.iter().map(|config| Edit {
        name: &config.name,
        operation: config.config_operation,
        value: config.value.as_deref(),
    });
    Edits { edits: edits.collect(), replace: false }
}
