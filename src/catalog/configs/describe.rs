//! Values in force, and where each comes from.

use std::borrow::Cow;

use super::ConfigSource;
use super::table::{ConfigDef, Scope, SynonymDef, Table, table};
use crate::catalog::codec::Configs;

/// Always shown as set for all brokers, as Kafka does from its first start on.
const ALWAYS_DYNAMIC: &str = "min.insync.replicas";

/// The sets of values that decide, strongest first.
#[derive(Clone, Copy, Debug)]
pub struct Layers<'a> {
    /// Set on the topic or group itself.
    pub own: Option<(&'a Configs, ConfigSource)>,
    /// Set at run time on this broker.
    pub broker: &'a Configs,
    /// Set at run time for all brokers.
    pub cluster: &'a Configs,
    /// Set in the configuration that the process started with.
    pub fixed: &'a Configs,
}

/// One place that gives a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synonym {
    /// Name of the config there.
    pub name: &'static str,
    /// Its value there, hidden where sensitive.
    pub value: Option<String>,
    /// Which place.
    pub source: ConfigSource,
}

/// A config with the value in force.
#[derive(Clone, Debug)]
pub struct ConfigEntry {
    /// Its definition.
    pub def: &'static ConfigDef,
    /// The value in force, hidden where sensitive.
    pub value: Option<String>,
    /// Where that value comes from.
    pub source: ConfigSource,
    /// Everything that gives a value, strongest first.
    pub synonyms: Vec<Synonym>,
}

/// One place that gives a value, with the factor to the config's own unit.
struct Given<'a> {
    synonym: SynonymDef,
    value: &'a str,
    source: ConfigSource,
}

/// Everything that gives the config a value, strongest first.
fn given<'a>(def: &ConfigDef, layers: &Layers<'a>) -> Vec<Given<'a>> {
    let mut all = Vec::new();
    if let Some((own, source)) = layers.own
        && let Some(value) = own.get(def.name)
    {
        all.push(Given {
            synonym: SynonymDef {
                name: def.name,
                factor: 1,
            },
            value,
            source,
        });
    }
    take(&mut all, def, layers.broker, ConfigSource::DynamicBroker);
    take(
        &mut all,
        def,
        layers.cluster,
        ConfigSource::DynamicDefaultBroker,
    );
    if def.name == ALWAYS_DYNAMIC && !layers.cluster.contains_key(ALWAYS_DYNAMIC) {
        let value = layers
            .fixed
            .get(ALWAYS_DYNAMIC)
            .map(String::as_str)
            .or(def.default);
        let synonym = SynonymDef {
            name: ALWAYS_DYNAMIC,
            factor: 1,
        };
        let source = ConfigSource::DynamicDefaultBroker;
        all.extend(value.map(|value| Given {
            synonym,
            value,
            source,
        }));
    }
    take(&mut all, def, layers.fixed, ConfigSource::StaticBroker);
    // Defaults under weaker names are shown behind a value under the strongest one only.
    let strongest = def.synonyms.first().map(|synonym| synonym.name);
    for (at, &synonym) in def.synonyms.iter().enumerate() {
        let shown = all
            .iter()
            .any(|given| Some(given.synonym.name) == strongest);
        let known = table(Scope::Broker).get(synonym.name);
        let default = match known {
            Some(broker) => broker.default,
            None => def.default.filter(|_| at == 0),
        };
        let source = ConfigSource::Default;
        all.extend(default.filter(|_| at == 0 || shown).map(|value| Given {
            synonym,
            value,
            source,
        }));
    }
    all
}

/// What one layer gives under any of the config's names.
fn take<'a>(all: &mut Vec<Given<'a>>, def: &ConfigDef, layer: &'a Configs, source: ConfigSource) {
    for &synonym in &def.synonyms {
        if let Some(value) = layer.get(synonym.name) {
            all.push(Given {
                synonym,
                value,
                source,
            });
        }
    }
}

/// A value in the config's own unit; negative ones mean "no limit" in every unit.
fn scaled<'a>(given: &Given<'a>) -> Cow<'a, str> {
    if given.synonym.factor == 1 {
        return Cow::Borrowed(given.value);
    }
    match given.value.trim().parse::<i64>() {
        Ok(n) if n < 0 => Cow::Borrowed("-1"),
        Ok(n) => Cow::Owned(n.saturating_mul(given.synonym.factor).to_string()),
        Err(_) => Cow::Borrowed(given.value),
    }
}

/// The value in force, sensitive ones too.
pub fn effective<'a>(def: &ConfigDef, layers: &Layers<'a>) -> Option<Cow<'a, str>> {
    match given(def, layers).first() {
        Some(strongest) => Some(scaled(strongest)),
        None => def.default.map(Cow::Borrowed),
    }
}

/// The configs of a table with the values in force, by name. `names` picks some of them.
pub fn describe(
    table: &'static Table,
    layers: &Layers,
    names: Option<&[&str]>,
) -> Vec<ConfigEntry> {
    let picked = |def: &ConfigDef| match names {
        Some(names) => names.contains(&def.name),
        None => {
            !def.hidden
                || given(def, layers)
                    .iter()
                    .any(|g| g.source != ConfigSource::Default)
        }
    };
    table
        .iter()
        .filter(|def| picked(def))
        .map(|def| entry(def, layers))
        .collect()
}

fn entry(def: &'static ConfigDef, layers: &Layers) -> ConfigEntry {
    let all = given(def, layers);
    // As from Kafka: weaker names count for topics, and are shown behind the strongest one only.
    let strongest = def.synonyms.first().map(|synonym| synonym.name);
    let named = |name| all.iter().any(|given| given.synonym.name == name);
    let weaker: &[SynonymDef] = match strongest.is_none_or(named) {
        true => &[],
        false => def.synonyms.get(1..).unwrap_or_default(),
    };
    let shown: Vec<&Given> = all
        .iter()
        .filter(|given| !weaker.iter().any(|name| name.name == given.synonym.name))
        .collect();
    let (value, source) = match (shown.first(), all.first()) {
        (Some(strongest), _) => (Some(scaled(strongest)), strongest.source),
        (None, Some(hidden)) if strongest != Some(def.name) => {
            (Some(scaled(hidden)), ConfigSource::Default)
        }
        _ => (def.default.map(Cow::Borrowed), ConfigSource::Default),
    };
    let synonyms = shown.iter().map(|given| Synonym {
        name: given.synonym.name,
        value: Some(given.value.to_owned()).filter(|_| !def.sensitive),
        source: given.source,
    });
    ConfigEntry {
        def,
        value: value.map(Cow::into_owned).filter(|_| !def.sensitive),
        source,
        synonyms: synonyms.collect(),
    }
}
