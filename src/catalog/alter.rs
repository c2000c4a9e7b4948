//! Changes of configs as clients ask for them, and what they are shown.

use std::collections::BTreeSet;

use super::change::Change;
use super::codec::Configs;
use super::configs::{
    ConfigDef, ConfigEntry, ConfigSource, ConfigType, Layers, Scope, append, describe, effective,
    subtract, table, validate, validate_group,
};
use super::error::CatalogError;
use super::image::Image;
use super::topic::Topic;

const PROTOCOL_MAP: &str = "listener.security.protocol.map";

/// What an incremental change does with a config. The numbers are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i8)]
pub enum AlterOp {
    /// Sets the value.
    Set = 0,
    /// Goes back to the default.
    Delete = 1,
    /// Adds items to a list.
    Append = 2,
    /// Takes items out of a list.
    Subtract = 3,
}

impl AlterOp {
    /// The operation of that number.
    pub fn from_wire(number: i8) -> Option<Self> {
        [Self::Set, Self::Delete, Self::Append, Self::Subtract]
            .into_iter()
            .find(|op| *op as i8 == number)
    }
}

/// One incremental change.
#[derive(Clone, Debug)]
pub struct Alteration {
    /// Name of the config.
    pub name: String,
    /// What to do with it.
    pub op: AlterOp,
    /// The value for it.
    pub value: Option<String>,
}

/// The configs after incremental changes. Lists are changed from the value in force.
fn altered(
    scope: Scope,
    current: &Configs,
    layers: &Layers,
    changes: &[Alteration],
) -> Result<Configs, CatalogError> {
    let mut seen = BTreeSet::new();
    if !changes
        .iter()
        .all(|change| seen.insert(change.name.as_str()))
    {
        let text = "Error due to duplicate config keys";
        return Err(CatalogError::InvalidRequest(text.to_owned()));
    }
    let nulls: Vec<&str> = changes
        .iter()
        .filter(|change| change.op != AlterOp::Delete && change.value.is_none())
        .map(|change| change.name.as_str())
        .collect();
    if !nulls.is_empty() {
        let text = format!("Null value not supported for : {}", nulls.join(","));
        return Err(CatalogError::InvalidRequest(text));
    }
    let mut configs = current.clone();
    for change in changes {
        let name = &change.name;
        let value = change.value.as_deref().unwrap_or_default();
        let list = || list_in_force(scope, layers, change);
        match change.op {
            AlterOp::Set => configs.insert(name.clone(), value.to_owned()),
            AlterOp::Delete => configs.remove(name),
            AlterOp::Append => configs.insert(name.clone(), append(&list()?, value)),
            AlterOp::Subtract => configs.insert(name.clone(), subtract(&list()?, value)),
        };
    }
    Ok(configs)
}

fn list_in_force(
    scope: Scope,
    layers: &Layers,
    change: &Alteration,
) -> Result<String, CatalogError> {
    let def = table(scope).get(&change.name);
    match def.filter(|def| def.kind == ConfigType::List) {
        Some(def) => Ok(effective(def, layers).unwrap_or_default().into_owned()),
        None => Err(CatalogError::InvalidConfig(format!(
            "Can't {} key {} because its type is not LIST.",
            if change.op == AlterOp::Append {
                "APPEND to"
            } else {
                "SUBTRACT from"
            },
            change.name,
        ))),
    }
}

impl Image {
    /// A topic's configs change bit by bit.
    pub fn alter_topic_configs(
        &self,
        topic: &Topic,
        changes: &[Alteration],
    ) -> Result<Change, CatalogError> {
        let topic = self.known(topic.no)?;
        let layers = self.layers(Some((&topic.configs, ConfigSource::Topic)));
        let configs = altered(Scope::Topic, &topic.configs, &layers, changes)?;
        self.set_topic_configs(topic.no, configs)
    }

    /// The configs of a broker, or of all, change bit by bit.
    pub fn alter_broker_configs(
        &self,
        broker: Option<i32>,
        changes: &[Alteration],
    ) -> Result<Change, CatalogError> {
        let current = self.broker_configs(broker);
        let configs = altered(Scope::Broker, current, &self.broker_layers(broker), changes)?;
        self.set_broker_configs(broker, configs)
    }

    /// The configs of a group change bit by bit.
    pub fn alter_group_configs(
        &self,
        group: &str,
        changes: &[Alteration],
    ) -> Result<Change, CatalogError> {
        let none = Configs::new();
        let current = self.group_configs(group).map_or(&none, AsRef::as_ref);
        let layers = self.layers(Some((current, ConfigSource::Group)));
        let configs = altered(Scope::Group, current, &layers, changes)?;
        self.set_group_configs(group, configs)
    }

    /// The configs of a broker, or of all, become these and no others.
    pub fn set_broker_configs(
        &self,
        broker: Option<i32>,
        configs: Configs,
    ) -> Result<Change, CatalogError> {
        let current = self.broker_configs(broker);
        let names = |refused: &dyn Fn(&ConfigDef) -> bool| {
            let changed = configs
                .iter()
                .filter(|(name, value)| current.get(*name) != Some(*value));
            let defs = changed.filter_map(|(name, _)| table(Scope::Broker).get(name));
            defs.filter(|def| refused(def))
                .map(|def| def.name)
                .collect::<Vec<_>>()
                .join(", ")
        };
        let read_only = names(&|def| def.read_only);
        if !read_only.is_empty() {
            let text = format!("Cannot update these configs dynamically: [{read_only}]");
            return Err(CatalogError::InvalidRequest(text));
        }
        let at_start = names(&|def| def.name == "listeners" || def.name == PROTOCOL_MAP);
        if !at_start.is_empty() {
            return Err(CatalogError::InvalidRequest(format!(
                "listeners are opened at the start: change {at_start} in the configuration and \
                 restart"
            )));
        }
        let per_broker = names(&|def| def.per_broker && broker.is_none());
        if !per_broker.is_empty() {
            return Err(CatalogError::InvalidRequest(format!(
                "Cannot update these configs at default cluster level, broker id must be \
                 specified: [{per_broker}]"
            )));
        }
        for (name, value) in &configs {
            let def = table(Scope::Broker).get(name).ok_or_else(|| {
                CatalogError::InvalidConfig(format!("Unknown broker config name: {name}"))
            })?;
            validate(def, value)?;
        }
        Ok(Change::BrokerConfigsSet { broker, configs })
    }

    /// The configs of a group become these and no others.
    pub fn set_group_configs(&self, group: &str, configs: Configs) -> Result<Change, CatalogError> {
        validate_group(&configs, &|name| {
            self.broker_value(name)?.trim().parse().ok()
        })?;
        Ok(Change::GroupConfigsSet {
            group: group.to_owned(),
            configs,
        })
    }

    /// The value in force of a broker config, sensitive ones too.
    pub fn broker_value(&self, name: &str) -> Option<String> {
        let def = table(Scope::Broker).get(name)?;
        Some(effective(def, &self.layers(None))?.into_owned())
    }

    /// A number that was set at run time for a broker config, on this broker or on all.
    pub fn set_at_run_time<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        let layers = self.layers(None);
        let value = layers
            .broker
            .get(name)
            .or_else(|| layers.cluster.get(name))?;
        value.trim().parse().ok()
    }

    /// The value in force of a group config.
    pub fn group_value(&self, group: &str, name: &str) -> Option<String> {
        let def = table(Scope::Group).get(name)?;
        let own = self
            .group_configs(group)
            .map(|c| (c.as_ref(), ConfigSource::Group));
        Some(effective(def, &self.layers(own))?.into_owned())
    }

    /// The layers of values of this broker, or of the default for all.
    fn broker_layers(&self, broker: Option<i32>) -> Layers<'_> {
        static NONE: Configs = Configs::new();
        match broker {
            Some(_) => self.layers(None),
            None => Layers {
                broker: &NONE,
                ..self.layers(None)
            },
        }
    }

    /// A topic's configs as clients see them.
    pub fn describe_topic(&self, topic: &Topic, names: Option<&[&str]>) -> Vec<ConfigEntry> {
        let layers = self.layers(Some((&topic.configs, ConfigSource::Topic)));
        describe(table(Scope::Topic), &layers, names)
    }

    /// The configs of a topic to be, as clients see them.
    pub fn describe_new_topic(&self, configs: &Configs) -> Vec<ConfigEntry> {
        describe(
            table(Scope::Topic),
            &self.layers(Some((configs, ConfigSource::Topic))),
            None,
        )
    }

    /// This broker's configs as clients see them.
    pub fn describe_broker(&self, names: Option<&[&str]>) -> Vec<ConfigEntry> {
        describe(table(Scope::Broker), &self.layers(None), names)
    }

    /// What is set at run time for all brokers, as clients see it.
    pub fn describe_broker_default(&self, names: Option<&[&str]>) -> Vec<ConfigEntry> {
        let mut entries = describe(table(Scope::Broker), &self.broker_layers(None), names);
        entries.retain(|entry| entry.source == ConfigSource::DynamicDefaultBroker);
        entries
    }

    /// A group's configs as clients see them.
    pub fn describe_group(&self, group: &str, names: Option<&[&str]>) -> Vec<ConfigEntry> {
        let own = self
            .group_configs(group)
            .map(|c| (c.as_ref(), ConfigSource::Group));
        describe(table(Scope::Group), &self.layers(own), names)
    }
}

/// Configs out of a request that may hold nulls. Where a name stands twice, the last one counts.
pub fn from_request(
    given: impl IntoIterator<Item = (String, Option<String>)>,
) -> Result<Configs, CatalogError> {
    let mut nulls = Vec::new();
    let mut configs = Configs::new();
    for (name, value) in given {
        match value {
            Some(value) => {
                configs.insert(name, value);
            }
            None => nulls.push(name),
        }
    }
    if nulls.is_empty() {
        return Ok(configs);
    }
    let text = format!(
        "Null value not supported for topic configs: {}",
        nulls.join(",")
    );
    Err(CatalogError::InvalidConfig(text))
}
