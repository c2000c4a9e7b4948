//! Brings the sources together: file, then environment, then `--set`; the last one counts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::keys::{self, Effect};
use super::listener::{self, ListenerKeys};
use super::value::{ConfigError, Raw};
use super::{Config, meaningless, properties};

/// Environment variables start with this; the rest is the key in capitals, `_` for `.`.
pub const ENV_PREFIX: &str = "SHARDGATE_";

/// Environment variables with a meaning of their own, not keys.
const ENV_RESERVED: [&str; 3] = ["SHARDGATE_CONFIG", "SHARDGATE_LOG", "SHARDGATE_LOG_FORMAT"];

/// Where settings come from.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// A `server.properties` file.
    pub file: Option<PathBuf>,
    /// The environment.
    pub environment: Vec<(String, String)>,
    /// `--set key=value`, in order.
    pub set: Vec<String>,
}

/// What became of one key that was set.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct KeyReport {
    /// The key.
    pub key: String,
    /// The value as written; hidden where it is a secret.
    pub value: String,
    /// Where it was set.
    pub origin: String,
    /// `honoured`, `mapped`, `meaningless here` or `unknown`.
    pub effect: &'static str,
    /// What it sets, or why it does nothing.
    pub note: String,
}

/// The configuration and what is to be said about it.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Checked.
    pub config: Config,
    /// One entry for each key that was set, by name.
    pub report: Vec<KeyReport>,
    /// What a user should know before it matters.
    pub warnings: Vec<String>,
}

impl Loaded {
    /// How many keys have each effect, as one line for the log.
    pub fn summary(&self) -> String {
        let count = |word: &str| self.report.iter().filter(|r| r.effect == word).count();
        format!(
            "{} keys set: {} honoured, {} mapped, {} meaningless here, {} unknown \
             (`shardgate config` shows each)",
            self.report.len(),
            count(Effect::Honoured.word()),
            count(Effect::Mapped.word()),
            count(Effect::Meaningless.word()),
            count(UNKNOWN),
        )
    }
}

const UNKNOWN: &str = "unknown";

/// Keys with their last value and where that came from.
type Settings = BTreeMap<String, (String, String)>;

/// Reads and checks everything. The first thing that is wrong ends it.
pub fn load(source: &Source) -> Result<Loaded, ConfigError> {
    let mut settings = collect(source)?;
    fill_preset(&mut settings);
    let mut config = Config::defaults();
    let mut warnings = Vec::new();
    apply_in_order(&mut config, &settings)?;
    resolve_ids(&settings)?;
    resolve_listeners(&mut config, &settings, &mut warnings)?;
    check_together(&settings, &config)?;
    warn(&settings, &config, &mut warnings);
    config.properties = properties_of(&settings);
    let report = settings
        .iter()
        .map(|(key, (value, origin))| report(key, value, origin))
        .collect();
    Ok(Loaded {
        config,
        report,
        warnings,
    })
}

/// What DescribeConfigs shows as set at the start. An id counts under both of its names.
fn properties_of(settings: &Settings) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, String> = settings
        .iter()
        .map(|(key, (value, _))| (key.clone(), value.clone()))
        .collect();
    for (name, other) in [("node.id", "broker.id"), ("broker.id", "node.id")] {
        if let (Some(id), None) = (all.get(name).cloned(), all.get(other)) {
            all.insert(other.to_owned(), id);
        }
    }
    all
}

fn collect(source: &Source) -> Result<Settings, ConfigError> {
    let mut settings = Settings::new();
    if let Some(path) = &source.file {
        read_file(path, &mut settings)?;
    }
    for (name, value) in &source.environment {
        let Some(key) = name.strip_prefix(ENV_PREFIX) else {
            continue;
        };
        if !key.is_empty() && !ENV_RESERVED.contains(&name.as_str()) {
            let key = key.to_ascii_lowercase().replace('_', ".");
            settings.insert(key, (value.clone(), format!("environment {name}")));
        }
    }
    for text in &source.set {
        let pair = text.split_once('=').map(|(k, v)| (k.trim(), v.trim()));
        let Some((key, value)) = pair.filter(|(key, _)| !key.is_empty()) else {
            return Err(ConfigError::Source(format!(
                "--set {text}: key=value is allowed, for example --set num.partitions=16"
            )));
        };
        settings.insert(key.to_owned(), (value.to_owned(), "--set".to_owned()));
    }
    Ok(settings)
}

/// `shard.limits.preset=sls` stands for the limits of a shard of Alibaba Cloud's SLS: 5 MB/s in and
/// 10 MB/s out. A limit that is set itself counts before it.
fn fill_preset(settings: &mut Settings) {
    const PRESET: &str = "shard.limits.preset";
    if settings
        .get(PRESET)
        .is_some_and(|(value, _)| value == "sls")
    {
        for (key, value) in [
            ("shard.write.bytes.per.second", "5242880"),
            ("shard.read.bytes.per.second", "10485760"),
        ] {
            let preset = || (value.to_owned(), format!("{PRESET}=sls"));
            settings.entry(key.to_owned()).or_insert_with(preset);
        }
    }
}

fn read_file(path: &Path, settings: &mut Settings) -> Result<(), ConfigError> {
    let shown = path.display();
    let bytes = std::fs::read(path)
        .map_err(|e| ConfigError::Source(format!("cannot read configuration file {shown}: {e}")))?;
    let text = String::from_utf8(bytes).map_err(|_| {
        ConfigError::Source(format!(
            "configuration file {shown} is not UTF-8; save it as UTF-8"
        ))
    })?;
    let parsed = properties::parse(&text)
        .map_err(|e| ConfigError::Source(format!("configuration file {shown}, {e}")))?;
    for property in parsed {
        // Kafka trims values too, where Java's format keeps blanks at their end.
        let value = property.value.trim().to_owned();
        settings.insert(
            property.key,
            (value, format!("{shown} line {}", property.line)),
        );
    }
    Ok(())
}

fn raw<'a>(settings: &'a Settings, key: &'a str) -> Option<Raw<'a>> {
    settings
        .get(key)
        .map(|(value, origin)| Raw { key, value, origin })
}

/// Keys are applied in the order of the table, so that an older name of a key comes after, and
/// loses to, none: both are only applied if they are alone or agree.
fn apply_in_order(config: &mut Config, settings: &Settings) -> Result<(), ConfigError> {
    // Bounds of other keys come first.
    let first = ["max.partitions.per.topic"];
    let rest = keys::groups()
        .map(|key| key.name)
        .filter(|name| !first.contains(name));
    let superseded = |name: &str| {
        let mut pairs = keys::SAME.iter();
        pairs.any(|(older, newer)| *older == name && settings.contains_key(*newer))
    };
    for name in first
        .into_iter()
        .chain(rest)
        .filter(|name| !superseded(name))
    {
        if let (Some(raw), Some(key)) = (raw(settings, name), keys::find(name)) {
            (key.apply)(config, raw)?;
        }
    }
    Ok(())
}

fn resolve_ids(settings: &Settings) -> Result<(), ConfigError> {
    match (raw(settings, "node.id"), raw(settings, "broker.id")) {
        (Some(node), Some(broker)) if node.value != broker.value => Err(broker.error(format!(
            "node.id={} says otherwise; set only one of them",
            node.value
        ))),
        _ => Ok(()),
    }
}

fn resolve_listeners(
    config: &mut Config,
    settings: &Settings,
    warnings: &mut Vec<String>,
) -> Result<(), ConfigError> {
    let allow_insecure = match raw(settings, "allow.insecure.listeners") {
        Some(raw) => raw.boolean()?,
        None => false,
    };
    let keys = ListenerKeys {
        listeners: raw(settings, "listeners"),
        advertised: raw(settings, "advertised.listeners"),
        protocols: raw(settings, "listener.security.protocol.map"),
        controllers: raw(settings, "controller.listener.names"),
        allow_insecure,
    };
    let (listeners, skipped) = listener::resolve(keys)?;
    for name in skipped {
        warnings.push(format!(
            "listener {name} is for controllers and is not opened"
        ));
    }
    for open in listeners.iter().filter(|l| !l.bind.is_loopback()) {
        warnings.push(format!(
            "listener {} on {} is plaintext: whoever reaches it can read and write everything",
            open.name, open.bind
        ));
    }
    config.listeners = listeners;
    Ok(())
}

fn check_together(settings: &Settings, config: &Config) -> Result<(), ConfigError> {
    let (least, most) = (
        "group.min.session.timeout.ms",
        "group.max.session.timeout.ms",
    );
    let (min, max) = (
        config.group.min_session_timeout_ms,
        config.group.max_session_timeout_ms,
    );
    if min > max {
        let (key, other, bound) = match raw(settings, least) {
            Some(_) => (least, most, max),
            None => (most, least, min),
        };
        let raw = raw(settings, key).unwrap_or(Raw {
            key,
            value: "",
            origin: "default",
        });
        let than = if key == least { "at most" } else { "at least" };
        return Err(raw.error(format!("{than} {other} ({bound}) is allowed")));
    }
    Ok(())
}

fn warn(settings: &Settings, config: &Config, warnings: &mut Vec<String>) {
    if let super::JournalSync::Interval(every) = config.journal_sync {
        warnings.push(format!(
            "journal.sync={}: acknowledged records of the last {} ms can be lost with the power; \
             journal.sync=always does not risk that",
            every.as_millis(),
            every.as_millis()
        ));
    }
    if let Some(authorizer) = raw(settings, "authorizer.class.name")
        && !authorizer.value.trim().is_empty()
    {
        warnings.push(
            "authorizer.class.name is set, but nothing is authorized in this version: every \
             client may do everything"
                .to_owned(),
        );
    }
    for (key, (_, origin)) in settings {
        if keys::find(key).is_none() && meaningless::reason(key).is_none() {
            let hint = nearest(key).map_or(String::new(), |near| format!("; did you mean {near}?"));
            warnings.push(format!(
                "unknown key {key} (from {origin}) has no effect{hint}"
            ));
        }
    }
}

fn report(key: &str, value: &str, origin: &str) -> KeyReport {
    let (effect, note) = match (keys::find(key), meaningless::reason(key)) {
        (Some(known), _) => (known.effect.word(), known.doc.to_owned()),
        (None, Some(reason)) => (Effect::Meaningless.word(), reason.to_owned()),
        (None, None) => (
            UNKNOWN,
            nearest(key).map_or_else(
                || "neither Kafka nor Shardgate has such a key".to_owned(),
                |near| format!("did you mean {near}?"),
            ),
        ),
    };
    let value = if is_secret(key) { "[hidden]" } else { value };
    KeyReport {
        key: key.to_owned(),
        value: value.to_owned(),
        origin: origin.to_owned(),
        effect,
        note,
    }
}

/// Keys whose value nobody should see in a log or on a terminal.
pub fn is_secret(key: &str) -> bool {
    ["password", "secret", "jaas", "passphrase", "keystore.key"]
        .iter()
        .any(|w| key.contains(w))
}

/// The key that a typing error may have been meant for.
fn nearest(key: &str) -> Option<&'static str> {
    let distance = |name: &str| edits(key.as_bytes(), name.as_bytes());
    let (best, name) = keys::groups()
        .map(|known| (distance(known.name), known.name))
        .min_by_key(|(d, _)| *d)?;
    (best <= 3 && key.len() > 4).then_some(name)
}

/// Insertions, deletions and replacements that turn one into the other.
fn edits(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        if let Some(first) = row.first_mut() {
            *first = left;
        }
        for (y, cell) in b.iter().zip(row.iter_mut().skip(1)) {
            let replaced = diagonal + usize::from(x != y);
            diagonal = *cell;
            left = replaced.min(diagonal + 1).min(left + 1);
            *cell = left;
        }
    }
    row.last().copied().unwrap_or(a.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::JournalSync;
    use std::io::Write;
    use std::time::Duration;

    fn set(pairs: &[&str]) -> Result<Loaded, ConfigError> {
        let set = pairs.iter().map(|p| (*p).to_owned()).collect();
        load(&Source {
            set,
            ..Source::default()
        })
    }

    fn refused(pairs: &[&str]) -> String {
        set(pairs).unwrap_err().to_string()
    }

    #[test]
    fn nothing_set_gives_the_defaults() {
        assert_eq!(set(&[]).unwrap().config, Config::defaults());
    }

    /// Guards against a default in the table that the code does not have.
    #[test]
    fn defaults_in_the_table_are_the_defaults_in_the_code() {
        for key in keys::groups() {
            let shown_only = ["", "as `listeners`", "PLAINTEXT:PLAINTEXT"];
            if shown_only.contains(&key.default) {
                continue;
            }
            let mut config = set(&[&format!("{}={}", key.name, key.default)])
                .unwrap()
                .config;
            config.properties.clear();
            config.admin.explicit = false;
            assert_eq!(config, Config::defaults(), "{}", key.name);
        }
    }

    #[test]
    fn set_goes_before_environment_goes_before_file() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "num.partitions=2\nshard.count=2\nnode.id=2").unwrap();
        let loaded = load(&Source {
            file: Some(file.path().to_owned()),
            environment: vec![
                ("SHARDGATE_SHARD_COUNT".into(), "3".into()),
                ("SHARDGATE_NODE_ID".into(), "3".into()),
                ("SHARDGATE_LOG".into(), "debug".into()),
                ("HOME".into(), "/".into()),
            ],
            set: vec!["node.id=4".into()],
        })
        .unwrap();
        let config = loaded.config;
        assert_eq!(
            (config.num_partitions, config.shard_count, config.node_id),
            (2, 3, 4)
        );
        assert_eq!(config.property("node.id"), Some("4"));
        assert_eq!(loaded.report.len(), 3);
        assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
        let origins: Vec<&str> = loaded.report.iter().map(|r| r.origin.as_str()).collect();
        assert_eq!(origins[0], "--set");
        assert!(origins[1].ends_with("line 1"), "{origins:?}");
        assert_eq!(origins[2], "environment SHARDGATE_SHARD_COUNT");
    }

    #[test]
    fn a_quickstart_file_of_apache_kafka_is_read_as_it_is() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(QUICKSTART.as_bytes()).unwrap();
        let source = |set: &[&str]| Source {
            file: Some(file.path().to_owned()),
            set: set.iter().map(|s| (*s).to_owned()).collect(),
            ..Source::default()
        };
        let closed = load(&source(&[])).unwrap_err().to_string();
        assert!(closed.contains("allow.insecure.listeners=true"), "{closed}");
        let loaded = load(&source(&["allow.insecure.listeners=true"])).unwrap();
        let config = &loaded.config;
        assert_eq!(config.listeners.len(), 1);
        assert_eq!(config.listeners[0].advertised.to_string(), "localhost:9092");
        assert_eq!(
            config.data_dirs,
            [PathBuf::from("/tmp/kraft-combined-logs")]
        );
        assert_eq!(config.group.initial_rebalance_delay_ms, 0);
        assert_eq!(config.net.send_buffer, Some(102_400));
        let unknown: Vec<_> = loaded
            .report
            .iter()
            .filter(|r| r.effect == UNKNOWN)
            .collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        assert!(loaded.report.iter().all(|r| !r.note.is_empty()));
    }

    #[test]
    fn errors_name_key_value_origin_and_what_is_allowed() {
        let text = refused(&["num.partitions=0"]);
        assert!(
            text.starts_with("num.partitions=0 (from --set): "),
            "{text}"
        );
        assert!(text.contains("from 1 to 100000"), "{text}");
        assert!(refused(&["journal.sync=sometimes"]).contains("always, or a number"));
        for pair in ["num.partitions", "=5", "  = 5", "=", ""] {
            assert!(refused(&[pair]).contains("key=value"), "{pair:?}");
        }
        assert!(refused(&["log.cleanup.policy=shred"]).contains("compact, delete"));
        assert!(refused(&["log.retention.ms=-2"]).contains("at least -1"));
        assert!(refused(&["process.roles=controller"]).contains("broker"));
        assert!(refused(&["node.id=1", "broker.id=2"]).contains("node.id=1"));
        assert!(refused(&["group.min.session.timeout.ms=9999999"]).contains("1800000"));
        assert!(refused(&["group.max.session.timeout.ms=1"]).contains("at least"));
        let missing = Source {
            file: Some("/nonexistent/x".into()),
            ..Source::default()
        };
        assert!(
            load(&missing)
                .unwrap_err()
                .to_string()
                .contains("/nonexistent/x")
        );
    }

    #[test]
    fn older_names_lose_to_newer_ones() {
        let config = set(&["broker.id=7"]).unwrap().config;
        assert_eq!(config.node_id, 7);
        let config = set(&["log.dir=a", "log.dirs=b,c"]).unwrap().config;
        assert_eq!(config.data_dirs, ["b", "c"].map(PathBuf::from));
        assert!(set(&["log.dirs=b,c,b"]).is_err());
        let config = set(&["queued.max.request.bytes=2097152"]).unwrap().config;
        assert_eq!(config.budgets.requests, 2_097_152);
        let config = set(&["journal.sync=20"]).unwrap().config;
        assert_eq!(
            config.journal_sync,
            JournalSync::Interval(Duration::from_millis(20))
        );
    }

    #[test]
    fn what_needs_saying_is_said() {
        let said = |pairs: &[&str], part: &str| {
            let warnings = set(pairs).unwrap().warnings;
            assert!(
                warnings.iter().any(|w| w.contains(part)),
                "{part}: {warnings:?}"
            );
        };
        said(&["num.partition=3"], "did you mean num.partitions?");
        said(&["frobnicate=3"], "unknown key frobnicate");
        said(&["journal.sync=20"], "20 ms can be lost");
        said(&["authorizer.class.name=x.Y"], "nothing is authorized");
    }

    #[test]
    fn secrets_are_not_shown() {
        let loaded = set(&["ssl.keystore.password=hunter2"]).unwrap();
        assert_eq!(loaded.report[0].value, "[hidden]");
        assert_eq!(loaded.report[0].effect, "meaningless here");
    }

    const QUICKSTART: &str = "\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
group.initial.rebalance.delay.ms=0
";

    #[test]
    fn a_preset_fills_in_the_limits_that_are_not_set() {
        let of = |set: &[&str]| {
            let set = set.iter().map(|s| (*s).to_owned()).collect();
            let loaded = load(&Source {
                set,
                ..Source::default()
            })
            .unwrap();
            let value = |key: &str| loaded.config.properties.get(key).cloned();
            (
                value("shard.write.bytes.per.second"),
                value("shard.read.bytes.per.second"),
            )
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(of(&[]), (None, None));
        assert_eq!(
            of(&["shard.limits.preset=sls"]),
            (some("5242880"), some("10485760"))
        );
        assert_eq!(
            of(&["shard.limits.preset=sls", "shard.read.bytes.per.second=7"]),
            (some("5242880"), some("7"))
        );
        let wrong = vec!["shard.limits.preset=fast".to_owned()];
        assert!(
            load(&Source {
                set: wrong,
                ..Source::default()
            })
            .is_err()
        );
    }
}
