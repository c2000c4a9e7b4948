//! DescribeConfigs 1–4: configs of topics, brokers, all brokers, groups and client metrics, with
//! the value in force, where it comes from and what else would give one.
//!
//! KIP-133 (the API), KIP-226 (synonyms), KIP-569 (types and documentation, from version 3),
//! KIP-1032 (group configs). No key, or an empty list of keys, asks for all configs. Values of
//! sensitive configs are never sent. Only durable changes are shown.
//!
//! Besides Kafka's configs a broker lists this server's own, as read-only strings. Where nothing is
//! configured, addresses, ids and directories show what is in use.
//!
//! Deliberate gap: a broker has no loggers to list, because log levels can't change at run time.

use std::sync::Arc;

use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym,
};
use kafka_protocol::messages::{DescribeConfigsRequest, DescribeConfigsResponse};
use kafka_protocol::protocol::StrBytes;

use super::alterations::{check_broker, resource};
use super::answers::{Refusal, text};
use super::{Connection, Reply};
use crate::catalog::configs::{ConfigEntry, ConfigSource, ConfigType, Scope, describe, table};
use crate::catalog::{Image, names};
use crate::config::here::here;
use crate::config::{Config, keys};
use crate::protocol::error::ErrorCode;

/// Answers for each resource; one resource's error does not touch the others.
pub async fn handle(
    cx: &Arc<Connection>,
    request: DescribeConfigsRequest,
    version: i16,
) -> Reply<DescribeConfigsResponse> {
    let image = cx.broker.catalog.image();
    let view = View {
        image: &image,
        config: &cx.broker.config,
        node: cx.broker.node_id,
        synonyms: request.include_synonyms,
        documentation: request.include_documentation && version >= 3,
    };
    let results = request.resources.iter().map(|resource| {
        let result = DescribeConfigsResult::default()
            .with_resource_type(resource.resource_type)
            .with_resource_name(resource.resource_name.clone());
        match view.resource(resource) {
            Ok(configs) => result
                .with_error_message(Some(StrBytes::from_static_str("")))
                .with_configs(configs.iter().map(|shown| view.wire(shown)).collect()),
            Err(refusal) => result
                .with_error_code(refusal.code.code())
                .with_error_message(refusal.text()),
        }
    });
    DescribeConfigsResponse::default().with_results(results.collect()).into()
}

/// One config as it is shown.
#[derive(Clone, Debug, PartialEq)]
struct Shown {
    name: String,
    kind: ConfigType,
    value: Option<String>,
    source: ConfigSource,
    read_only: bool,
    sensitive: bool,
    synonyms: Vec<(String, Option<String>, ConfigSource)>,
    doc: Option<&'static str>,
}

impl From<ConfigEntry> for Shown {
    fn from(entry: ConfigEntry) -> Self {
        let synonyms = entry.synonyms.into_iter().map(|s| (s.name.to_owned(), s.value, s.source));
        Self {
            name: entry.def.name.to_owned(),
            kind: entry.def.kind,
            value: entry.value,
            source: entry.source,
            read_only: entry.def.read_only,
            sensitive: entry.def.sensitive,
            synonyms: synonyms.collect(),
            doc: here(entry.def).map(|(_, text)| text),
        }
    }
}

/// What one request looks at, and how.
struct View<'a> {
    image: &'a Image,
    config: &'a Config,
    node: i32,
    synonyms: bool,
    documentation: bool,
}

impl View<'_> {
    fn resource(&self, asked: &DescribeConfigsResource) -> Result<Vec<Shown>, Refusal> {
        let keys: Option<Vec<&str>> = asked
            .configuration_keys
            .as_ref()
            .filter(|keys| !keys.is_empty())
            .map(|keys| keys.iter().map(StrBytes::as_str).collect());
        let keys = keys.as_deref();
        let name = asked.resource_name.as_str();
        match asked.resource_type {
            resource::TOPIC => self.topic(name, keys),
            resource::BROKER if name.is_empty() => Ok(self.all_brokers(keys)),
            resource::BROKER => check_broker(name, self.node).map(|()| self.broker(keys)),
            resource::BROKER_LOGGER => check_broker(name, self.node).map(|()| Vec::new()),
            resource::GROUP if name.is_empty() => Err(Refusal::invalid("name a group")),
            resource::GROUP => Ok(shown(self.image.describe_group(name, keys))),
            resource::CLIENT_METRICS if name.is_empty() => {
                Err(Refusal::invalid("name a client metrics subscription"))
            }
            resource::CLIENT_METRICS => {
                let layers = self.image.layers(None);
                Ok(shown(describe(table(Scope::ClientMetrics), &layers, keys)))
            }
            other => Err(Refusal::invalid(format!("resource type {other} does not exist"))),
        }
    }

    fn topic(&self, name: &str, keys: Option<&[&str]>) -> Result<Vec<Shown>, Refusal> {
        names::validate(name)?;
        let topic = self.image.topic(name).ok_or_else(|| {
            let text = format!("there is no topic {name} here");
            Refusal::new(ErrorCode::UnknownTopicOrPartition, text)
        })?;
        Ok(shown(self.image.describe_topic(topic, keys)))
    }

    /// What is set for all brokers, and nothing that is not.
    fn all_brokers(&self, keys: Option<&[&str]>) -> Vec<Shown> {
        let mut all = shown(self.image.describe_broker_default(keys));
        for config in &mut all {
            config.synonyms.retain(|(_, _, from)| *from == ConfigSource::DynamicDefaultBroker);
        }
        all
    }

    fn broker(&self, keys: Option<&[&str]>) -> Vec<Shown> {
        let mut all = shown(self.image.describe_broker(keys));
        for config in all.iter_mut().filter(|config| config.source == ConfigSource::Default) {
            if let Some(value) = in_use(self.config, self.node, &config.name) {
                config.value = Some(value);
            }
        }
        all.extend(own_keys(self.config, keys));
        all
    }

    fn wire(&self, shown: &Shown) -> DescribeConfigsResourceResult {
        let synonyms = shown.synonyms.iter().filter(|_| self.synonyms).map(|(name, value, from)| {
            DescribeConfigsSynonym::default()
                .with_name(text(name))
                .with_value(value.as_deref().map(text))
                .with_source(*from as i8)
        });
        let doc = self.documentation.then(|| StrBytes::from_static_str(shown.doc.unwrap_or("")));
        DescribeConfigsResourceResult::default()
            .with_name(text(&shown.name))
            .with_value(shown.value.as_deref().map(text))
            .with_read_only(shown.read_only)
            .with_config_source(shown.source as i8)
            .with_is_sensitive(shown.sensitive)
            .with_synonyms(synonyms.collect())
            .with_config_type(shown.kind as i8)
            .with_documentation(doc)
    }
}

fn shown(entries: Vec<ConfigEntry>) -> Vec<Shown> {
    entries.into_iter().map(Shown::from).collect()
}

/// This server's own keys, which Kafka does not have.
fn own_keys(config: &Config, keys: Option<&[&str]>) -> Vec<Shown> {
    let ours = keys::groups().filter(|key| table(Scope::Broker).get(key.name).is_none());
    let wanted = ours.filter(|key| keys.is_none_or(|keys| keys.contains(&key.name)));
    let shown = wanted.map(|key| {
        let set = config.property(key.name);
        let source = match set {
            Some(_) => ConfigSource::StaticBroker,
            None => ConfigSource::Default,
        };
        let value = Some(set.unwrap_or(key.default).to_owned());
        Shown {
            name: key.name.to_owned(),
            kind: ConfigType::String,
            synonyms: vec![(key.name.to_owned(), value.clone(), source)],
            value,
            source,
            read_only: true,
            sensitive: false,
            doc: Some(key.doc),
        }
    });
    shown.collect()
}

/// What is in use where nothing is configured and the built-in value is not the whole story.
fn in_use(config: &Config, node: i32, name: &str) -> Option<String> {
    let addresses = |pick: fn(&crate::config::Listener) -> &crate::config::Address| {
        let list = config.listeners.iter().map(|l| format!("{}://{}", l.name, pick(l)));
        Some(list.collect::<Vec<_>>().join(","))
    };
    match name {
        "node.id" | "broker.id" => Some(node.to_string()),
        "log.dirs" | "log.dir" => Some(config.directory_names()),
        "listeners" => addresses(|listener| &listener.bind),
        "advertised.listeners" => addresses(|listener| &listener.advertised),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
