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
    let _ = writeln!(out, "\n# Not set, with their defaults:");
    for key in unset(loaded) {
        let _ = writeln!(out, "\n# {}: {}", key.effect.word(), key.doc);
        let _ = writeln!(out, "# {}={}", key.name, key.default);
    }
    out
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
        .map(|key| KeyReport {
            key: key.name.to_owned(),
            value: key.default.to_owned(),
            origin: "default".to_owned(),
            effect: key.effect.word(),
            note: key.doc.to_owned(),
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
