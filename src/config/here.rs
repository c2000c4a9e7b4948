//! What each config that clients can see or set does here, from the same tables that the code
//! reads: the rows of topics and groups say it themselves, those of brokers are configuration keys.

use std::fmt::Write;

use super::keys::{self, Effect};
use super::meaningless;
use crate::catalog::configs::{ConfigDef, Scope, table};

/// Defaults that are not Apache Kafka's, with the one that is.
pub const OTHER_DEFAULTS: [(&str, &str); 7] = [
    ("max.connections", "2147483647"),
    ("max.connections.per.ip", "2147483647"),
    ("num.partitions", "1"),
    ("offsets.topic.replication.factor", "3"),
    ("socket.listen.backlog.size", "50"),
    ("socket.receive.buffer.bytes", "102400"),
    ("socket.send.buffer.bytes", "102400"),
];

/// Effect and meaning of a config; `None` only for a name that no table has.
pub fn here(def: &ConfigDef) -> Option<(Effect, &'static str)> {
    let key = || keys::find(def.name).map(|key| (key.effect, key.doc));
    let nothing = || meaningless::reason(def.name).map(|reason| (Effect::Meaningless, reason));
    def.here.or_else(key).or_else(nothing)
}

/// The tables of docs/compatibility.md.
pub fn markdown() -> String {
    let mut out = String::new();
    for (title, scope) in [
        ("Topic configs", Scope::Topic),
        ("Group configs", Scope::Group),
        ("Broker configs", Scope::Broker),
        ("Client metrics subscriptions", Scope::ClientMetrics),
    ] {
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "\n### {title}\n\n| config | default | what it does here |"
        );
        let _ = writeln!(out, "|---|---|---|");
        for def in table(scope).iter() {
            let (effect, text) = here(def).map_or(("", ""), |(effect, text)| (effect.word(), text));
            let (name, default) = (def.name, default_of(def));
            let _ = writeln!(out, "| `{name}` | {default} | {effect}: {text} |");
        }
    }
    out
}

fn default_of(def: &ConfigDef) -> String {
    let own = match def.default {
        None => "none".to_owned(),
        Some("") => "empty".to_owned(),
        Some(value) => format!("`{value}`"),
    };
    match OTHER_DEFAULTS.iter().find(|(name, _)| *name == def.name) {
        Some((_, kafkas)) => format!("{own}, in Apache Kafka `{kafkas}`"),
        None => own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Source, load};

    const SCOPES: [Scope; 4] = [
        Scope::Topic,
        Scope::Group,
        Scope::Broker,
        Scope::ClientMetrics,
    ];

    #[test]
    fn every_config_says_what_it_does_here() {
        for def in SCOPES.into_iter().flat_map(|scope| table(scope).iter()) {
            let text = here(def).map_or("", |(_, text)| text);
            assert!(text.len() >= 10, "{}: {text:?}", def.name);
            assert!(!text.contains('|'), "{}: would break its row", def.name);
        }
    }

    /// Guards against a broker config that is called meaningless while topics inherit it.
    #[test]
    fn what_topics_inherit_is_honoured_where_it_is_set() {
        for def in table(Scope::Topic).iter() {
            let Some((Effect::Honoured, _)) = def.here else {
                continue;
            };
            for synonym in &def.synonyms {
                let effect = table(Scope::Broker).get(synonym.name).and_then(here);
                let effect = effect.map(|(effect, _)| effect);
                assert_eq!(
                    effect,
                    Some(Effect::Honoured),
                    "{} of {}",
                    synonym.name,
                    def.name
                );
            }
        }
    }

    /// Guards against DescribeConfigs showing a default that is not the one in force.
    #[test]
    fn shown_defaults_are_those_in_force() {
        // Addresses, ids and directories are shown as they are in use.
        let in_use = [
            "advertised.listeners",
            "broker.id",
            "listener.security.protocol.map",
            "listeners",
            "log.dir",
            "log.dirs",
            "node.id",
            "process.roles",
        ];
        for key in keys::groups().filter(|key| !in_use.contains(&key.name)) {
            if let Some(def) = table(Scope::Broker).get(key.name) {
                assert_eq!(def.default.unwrap_or(""), key.default, "{}", key.name);
            }
        }
        for (name, _) in OTHER_DEFAULTS {
            assert!(table(Scope::Broker).get(name).is_some(), "{name}");
        }
    }

    /// Guards against a config that clients see and a configuration file may not hold.
    #[test]
    fn no_broker_config_is_unknown_in_a_file() {
        for def in table(Scope::Broker)
            .iter()
            .filter(|def| keys::find(def.name).is_none())
        {
            let set = vec![format!("{}={}", def.name, def.default.unwrap_or(""))];
            let loaded = load(&Source {
                set,
                ..Source::default()
            })
            .unwrap();
            assert!(
                loaded.report.iter().all(|r| r.effect != "unknown"),
                "{}",
                def.name
            );
        }
    }
}
