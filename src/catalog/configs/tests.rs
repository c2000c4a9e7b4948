//! Tables, checks and layers of configs.

use super::table::lines;
use super::*;
use crate::catalog::codec::Configs;
use crate::catalog::settings::{Compression, TimestampType, TopicSettings};

fn configs(pairs: &[(&str, &str)]) -> Configs {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

fn refusal(pairs: &[(&str, &str)]) -> String {
    validate_all(Scope::Topic, &configs(pairs))
        .unwrap_err()
        .to_string()
}

#[test]
fn every_line_of_the_tables_is_read_and_every_default_passes_its_check() {
    for (scope, text) in [
        (Scope::Topic, include_str!("topic.tsv")),
        (Scope::Broker, include_str!("broker.tsv")),
        (Scope::Group, include_str!("group.tsv")),
        (Scope::ClientMetrics, include_str!("client-metrics.tsv")),
    ] {
        assert_eq!(
            table(scope).iter().count(),
            lines(text).count(),
            "{scope:?}"
        );
        for def in table(scope).iter() {
            assert_eq!(table(scope).get(def.name), Some(def));
            if let Some(default) = def.default {
                validate(def, default).unwrap_or_else(|e| panic!("{}: {e}", def.name));
            }
            for synonym in &def.synonyms {
                let broker = table(Scope::Broker).get(synonym.name);
                let same = def.name == synonym.name
                    || def.name.starts_with("share.")
                    || def.name.starts_with("errors.");
                assert!(
                    broker.is_some() || same,
                    "{} has no {}",
                    def.name,
                    synonym.name
                );
            }
        }
    }
}

#[test]
fn values_are_refused_in_kafkas_words() {
    let cases = [
        (
            ("no.such.config", "1"),
            "Unknown topic config name: no.such.config",
        ),
        (
            ("retention.ms", "abc"),
            "Invalid value abc for configuration retention.ms: Not a number of type LONG",
        ),
        (
            ("segment.bytes", "99999999999"),
            "Invalid value 99999999999 for configuration segment.bytes: Not a number of type INT",
        ),
        (
            ("segment.bytes", "1"),
            "Invalid value 1 for configuration segment.bytes: Value must be at least 1048576",
        ),
        (
            ("min.insync.replicas", " 0 "),
            "Invalid value 0 for configuration min.insync.replicas: Value must be at least 1",
        ),
        (
            ("min.cleanable.dirty.ratio", "1.5"),
            "Invalid value 1.5 for configuration min.cleanable.dirty.ratio: Value must be no more \
             than 1",
        ),
        (
            ("compression.type", "zip"),
            "Invalid value zip for configuration compression.type: String must be one of: \
             uncompressed, zstd, lz4, snappy, gzip, producer",
        ),
        (
            ("cleanup.policy", "delete, shred"),
            "Invalid value shred for configuration cleanup.policy: String must be one of: \
             compact, delete",
        ),
        (
            ("cleanup.policy", "delete,delete"),
            "Configuration 'cleanup.policy' values must not be duplicated.",
        ),
        (
            ("preallocate", "yes"),
            "Invalid value yes for configuration preallocate: Expected value to be either true or \
             false",
        ),
        (
            ("remote.storage.enable", "true"),
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured \
             with remote log storage.",
        ),
    ];
    for (pair, text) in cases {
        assert_eq!(refusal(&[pair]), text);
    }
    assert!(refusal(&[("min.cleanable.dirty.ratio", "NaN")]).contains("Value must be"));
    assert!(refusal(&[("leader.replication.throttled.replicas", "0-1")]).contains("literal '*'"));
    assert!(refusal(&[("compression.gzip.level", "0")]).contains("between 1 and 9"));
    let lags = [
        ("min.compaction.lag.ms", "10"),
        ("max.compaction.lag.ms", "5"),
    ];
    assert!(refusal(&lags).starts_with("conflict topic config setting min.compaction.lag.ms (10)"));
}

#[test]
fn good_values_pass() {
    let good = configs(&[
        ("cleanup.policy", "compact,delete"),
        ("compression.gzip.level", "-1"),
        ("compression.zstd.level", "-7"),
        ("follower.replication.throttled.replicas", "0:1,12:3"),
        ("leader.replication.throttled.replicas", "*"),
        ("max.message.bytes", " 100 "),
        ("message.timestamp.type", "LogAppendTime"),
        ("preallocate", "TRUE"),
        ("retention.ms", "-1"),
        ("segment.bytes", "1048576"),
        ("shard.count", "4"),
    ]);
    assert_eq!(validate_all(Scope::Topic, &good), Ok(()));
    assert_eq!(
        validate_all(Scope::Topic, &configs(&[("cleanup.policy", "")])),
        Ok(())
    );
}

#[test]
fn group_values_stay_in_the_brokers_ranges() {
    let broker = |name: &str| table(Scope::Broker).get(name)?.default?.parse().ok();
    let check = |name, value| validate_group(&configs(&[(name, value)]), &broker);
    assert_eq!(check("consumer.session.timeout.ms", "50000"), Ok(()));
    assert_eq!(
        check("consumer.session.timeout.ms", "1")
            .unwrap_err()
            .to_string(),
        "consumer.session.timeout.ms must be in the range 45000 to 60000 inclusive."
    );
    assert_eq!(
        check("nope", "1").unwrap_err().to_string(),
        "Unknown group config name: nope"
    );
    assert_eq!(check("share.auto.offset.reset", "by_duration:PT1H"), Ok(()));
    assert!(check("share.auto.offset.reset", "never").is_err());
}

#[test]
fn lists_take_and_lose_items() {
    assert_eq!(append("delete", "compact"), "delete,compact");
    assert_eq!(append("delete", "delete, compact"), "delete,compact");
    assert_eq!(append("", "compact"), "compact");
    assert_eq!(subtract("delete,compact", "delete"), "compact");
    assert_eq!(subtract("delete", "delete"), "");
}

#[test]
fn the_strongest_layer_wins_and_units_are_turned() {
    let own = configs(&[("retention.ms", "5")]);
    let broker = configs(&[("log.retention.ms", "7")]);
    let fixed = configs(&[("log.retention.minutes", "2"), ("log.retention.hours", "1")]);
    let none = Configs::new();
    let def = table(Scope::Topic).get("retention.ms").unwrap();
    let topic = Some((&own, ConfigSource::Topic));
    let mut layers = Layers {
        own: topic,
        broker: &broker,
        cluster: &none,
        fixed: &fixed,
    };
    let value = |layers: &Layers| effective(def, layers).unwrap().into_owned();
    assert_eq!(value(&layers), "5");
    let all = &describe(table(Scope::Topic), &layers, Some(&["retention.ms"]))[0];
    let places: Vec<_> = all.synonyms.iter().map(|s| (s.name, s.source)).collect();
    assert_eq!(
        places,
        [
            ("retention.ms", ConfigSource::Topic),
            ("log.retention.ms", ConfigSource::DynamicBroker),
            ("log.retention.minutes", ConfigSource::StaticBroker),
            ("log.retention.hours", ConfigSource::StaticBroker),
            ("log.retention.hours", ConfigSource::Default),
        ]
    );
    layers.own = None;
    assert_eq!(value(&layers), "7");
    layers.broker = &none;
    assert_eq!(value(&layers), "120000");
    let hours = configs(&[("log.retention.hours", "-1")]);
    layers.fixed = &hours;
    assert_eq!(value(&layers), "-1");
    layers.fixed = &none;
    assert_eq!(value(&layers), "604800000");
    let all = &describe(table(Scope::Topic), &layers, Some(&["retention.ms"]))[0];
    assert_eq!((all.source, all.synonyms.len()), (ConfigSource::Default, 0));
}

#[test]
fn secrets_and_our_own_rows_are_not_shown_unasked() {
    let none = Configs::new();
    let fixed = configs(&[("ssl.key.password", "hush"), ("min.insync.replicas", "2")]);
    let layers = Layers {
        own: None,
        broker: &none,
        cluster: &none,
        fixed: &fixed,
    };
    let all = describe(table(Scope::Broker), &layers, None);
    let entry = |name: &str| all.iter().find(|e| e.def.name == name);
    let password = entry("ssl.key.password").unwrap();
    assert_eq!(
        (&password.value, password.source),
        (&None, ConfigSource::StaticBroker)
    );
    assert!(password.synonyms.iter().all(|s| s.value.is_none()));
    assert!(entry("shard.count").is_none());
    let min_isr = entry("min.insync.replicas").unwrap();
    assert_eq!(min_isr.value.as_deref(), Some("2"));
    assert_eq!(min_isr.source, ConfigSource::DynamicDefaultBroker);
    let own = configs(&[("shard.count", "3")]);
    let layers = Layers {
        own: Some((&own, ConfigSource::Topic)),
        ..layers
    };
    let topic = describe(table(Scope::Topic), &layers, None);
    assert_eq!(
        topic.iter().filter(|e| e.def.name == "shard.count").count(),
        1
    );
    assert_eq!(topic.len(), 38);
}

#[test]
fn settings_follow_the_values_in_force() {
    let none = Configs::new();
    let own = configs(&[
        ("compression.type", "gzip"),
        ("compression.gzip.level", "3"),
        ("cleanup.policy", "compact, delete"),
        ("message.timestamp.type", "LogAppendTime"),
        ("min.cleanable.dirty.ratio", "0.25"),
        ("shard.count", "7"),
    ]);
    let damaged = configs(&[("log.retention.bytes", "many"), ("log.roll.hours", "1")]);
    let own = Some((&own, ConfigSource::Topic));
    let layers = Layers {
        own,
        broker: &none,
        cluster: &none,
        fixed: &damaged,
    };
    let settings = TopicSettings::resolve(&layers);
    let expected = TopicSettings {
        compression: Compression::Gzip(3),
        cleanup_compact: true,
        timestamp_type: TimestampType::LogAppendTime,
        min_cleanable_ratio: 0.25,
        shard_count: 7,
        ..TopicSettings::resolve(&Layers {
            own: None,
            fixed: &none,
            ..layers
        })
    };
    assert_eq!(settings, expected);
    assert_eq!(
        (expected.retention_ms, expected.retention_bytes),
        (604_800_000, -1)
    );
    assert_eq!(expected.max_message_bytes, 1_048_588);
    assert_eq!(expected.max_decompressed_bytes, i32::MAX as u32 - 8);
    assert_eq!(expected.timestamp_before_max_ms, i64::MAX);
    assert_eq!(expected.timestamp_after_max_ms, 3_600_000);
}
