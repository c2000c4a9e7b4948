//! `shardgate config`: every key with its value, where that comes from and what it does here.

use std::fmt::Write;

use clap::ValueEnum;

use crate::config::keys::{self, Key};
use crate::config::{KeyReport, Loaded};

/// How the configuration is printed.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Shape {
    /// As a server.properties file
    Properties,
    /// As JSON
    Json,
    /// As a table of all keys, for documentation
    Markdown,
}

/// Prints it to stdout.
pub fn print(loaded: &Loaded, shape: Shape) {
    let text = match shape {
        Shape::Properties => properties(loaded),
        Shape::Json => json(loaded),
        Shape::Markdown => markdown(),
    };
    print!("{text}");
}

/// Keys that were set, then those that keep their default.
fn properties(loaded: &Loaded) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(out, "# {}", loaded.summary());
    for warning in &loaded.warnings {
        let _ = writeln!(out, "# warning: {warning}");
    }
    for KeyReport {
        key,
        value,
        origin,
        effect,
        note,
    } in &loaded.report
    {
        let _ = writeln!(out, "\n# {effect} (from {origin}): {note}");
        let _ = writeln!(out, "{key}={}", escape(value));
    }
    let _ = writeln!(out, "\n# Not set, with what holds:");
    for key in unset(loaded) {
        let (value, origin) = held(loaded, key);
        let set_by = match origin == DEFAULT {
            true => String::new(),
            false => format!(" ({origin})"),
        };
        let _ = writeln!(out, "\n# {}{set_by}: {}", key.effect.word(), key.doc);
        let _ = writeln!(out, "# {}={}", key.name, escape(value));
    }
    out
}

/// Where the value of a key comes from that nothing sets.
const DEFAULT: &str = "default";

/// What holds for a key that is not set, and where it comes from: its default, or the key that sets
/// the same thing.
fn held<'a>(loaded: &'a Loaded, key: &'static Key) -> (&'a str, String) {
    let other = keys::SAME.iter().find_map(|(older, newer)| match key.name {
        name if name == *older => Some(*newer),
        name if name == *newer => Some(*older),
        _ => None,
    });
    let set = loaded.report.iter().find(|r| Some(r.key.as_str()) == other);
    // -1 says that the other key keeps its default.
    match set.filter(|set| set.value != "-1") {
        Some(set) => (&set.value, format!("by {}", set.key)),
        None => (key.default, DEFAULT.to_owned()),
    }
}

fn unset(loaded: &Loaded) -> impl Iterator<Item = &'static Key> {
    keys::groups().filter(|key| !loaded.report.iter().any(|r| r.key == key.name))
}

/// A backslash or a line feed in a value would not survive being read again.
fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('\n', "\\n")
        .replace('\r', "\\r")
}

fn json(loaded: &Loaded) -> String {
    let defaults: Vec<KeyReport> = unset(loaded)
        .map(|key| {
            let (value, origin) = held(loaded, key);
            KeyReport {
                key: key.name.to_owned(),
                value: value.to_owned(),
                origin,
                effect: key.effect.word(),
                note: key.doc.to_owned(),
            }
        })
        .collect();
    let keys: Vec<&KeyReport> = loaded.report.iter().chain(&defaults).collect();
    let all = serde_json::json!({ "warnings": loaded.warnings, "keys": keys });
    format!("{all:#}\n")
}

/// The table in docs/operations.md.
pub fn markdown() -> String {
    let mut out = String::from("| Key | Default | |\n|---|---|---|\n");
    for Key {
        name,
        default,
        doc,
        effect,
        ..
    } in keys::groups()
    {
        let default = match *default {
            "" => "",
            text if text.starts_with("as ") => text,
            text => &format!("`{text}`"),
        };
        let mapped = if *effect == keys::Effect::Mapped {
            " *(mapped)*"
        } else {
            ""
        };
        let _ = writeln!(out, "| `{name}` | {default} | {doc}{mapped} |");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Source, load, properties};

    fn loaded(set: &[&str]) -> Loaded {
        let set = set.iter().map(|s| (*s).to_owned()).collect();
        load(&Source {
            set,
            ..Source::default()
        })
        .unwrap()
    }

    #[test]
    fn what_is_printed_can_be_read_again() {
        let loaded = loaded(&[
            "log.dirs=C:\\data",
            "num.partitions=3",
            "ssl.key.password=x",
        ]);
        let text = super::properties(&loaded);
        let again = properties::parse(&text).unwrap();
        let pairs: Vec<_> = again
            .iter()
            .map(|p| (p.key.as_str(), p.value.as_str()))
            .collect();
        assert_eq!(
            pairs,
            [
                ("log.dirs", "C:\\data"),
                ("num.partitions", "3"),
                ("ssl.key.password", "[hidden]")
            ]
        );
        assert!(
            text.contains("# meaningless here (from --set): nothing is encrypted"),
            "{text}"
        );
        assert!(
            text.contains("# socket.request.max.bytes=104857600"),
            "{text}"
        );
    }

    #[test]
    fn what_another_name_sets_is_shown() {
        for (set, name, value) in [
            ("broker.id=7", "node.id", "7"),
            ("node.id=8", "broker.id", "8"),
            ("log.dir=/d", "log.dirs", "/d"),
            ("log.dirs=/a,/b", "log.dir", "/a,/b"),
            (
                "queued.max.request.bytes=33554432",
                "budget.requests.bytes",
                "33554432",
            ),
            (
                "queued.max.request.bytes=-1",
                "budget.requests.bytes",
                "16777216",
            ),
        ] {
            let loaded = loaded(&[set]);
            let text = super::properties(&loaded);
            assert!(
                text.contains(&format!("\n# {name}={value}\n")),
                "{set}: {text}"
            );
            let all: serde_json::Value = serde_json::from_str(&json(&loaded)).unwrap();
            let keys = all["keys"].as_array().unwrap();
            let shown = keys.iter().find(|key| key["key"] == name).unwrap();
            assert_eq!(shown["value"], value, "{set}");
            let set_by = format!("by {}", set.split_once('=').unwrap().0);
            let is_other = shown["origin"] == set_by.as_str();
            assert_eq!(is_other, !set.ends_with("-1"), "{shown}");
        }
    }

    #[test]
    fn json_has_each_key_once() {
        let text = json(&loaded(&["num.partitions=3"]));
        let all: serde_json::Value = serde_json::from_str(&text).unwrap();
        let keys = all["keys"].as_array().unwrap();
        assert_eq!(keys.len(), keys::groups().count());
        assert_eq!(keys[0]["value"], "3");
    }

    /// Guards against a table that tells something else than the program.
    #[test]
    fn the_table_in_the_documentation_is_the_one_printed() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md");
        let mut text = std::fs::read_to_string(path).unwrap();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            let start = text.find("| Key | Default | |").unwrap();
            let end = start + text[start..].find("\n\n").unwrap() + 1;
            text.replace_range(start..end, &markdown());
            std::fs::write(path, &text).unwrap();
        }
        assert!(
            text.contains(&markdown()),
            "docs/operations.md: the table of keys is behind the program: run UPDATE_DOCS=1 cargo \
             test --lib show_config"
        );
    }
}
