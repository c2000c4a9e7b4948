//! What DescribeConfigs says of every config of a topic, a broker and a group, before and after
//! changes at run time, held against a recording of Apache Kafka.
//!
//! The recording is made anew by the same steps, from a broker with the settings of [`STATIC`]:
//! `PROTOCOL_TESTS_BOOTSTRAP=host:port RECORD_CONFIGS=1 cargo test -p protocol-tests --test protocol
//! configs::`.

use std::collections::BTreeMap;
use std::fmt::Write;

use kafka_protocol::messages::alter_configs_request as replace;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::DescribeConfigsResourceResult;
use kafka_protocol::messages::incremental_alter_configs_request as incremental;
use kafka_protocol::messages::{
    AlterConfigsRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest, MetadataRequest,
};
use protocol_tests::calls::*;
use protocol_tests::wire::Wire;
use protocol_tests::{Server, foreign, unique, wait_for};

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const GROUP: i8 = 32;

/// Set in the files of both brokers, beside addresses and directories.
const STATIC: &[&str] = &[
    "process.roles=broker,controller",
    "node.id=1",
    "controller.quorum.voters=1@127.0.0.1:1",
    "controller.listener.names=CONTROLLER",
    "advertised.listeners=PLAINTEXT://127.0.0.1:1",
    "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,\
     SASL_PLAINTEXT:SASL_PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL",
    "inter.broker.listener.name=PLAINTEXT",
    "sasl.mechanism.inter.broker.protocol=PLAIN",
    "sasl.mechanism.controller.protocol=PLAIN",
    "num.partitions=4",
    "auto.create.topics.enable=true",
    "delete.topic.enable=true",
    "default.replication.factor=1",
    "offsets.topic.replication.factor=1",
    "transaction.state.log.replication.factor=1",
    "transaction.state.log.min.isr=1",
    "share.coordinator.state.topic.replication.factor=1",
    "share.coordinator.state.topic.min.isr=1",
    "offsets.topic.num.partitions=10",
    "transaction.state.log.num.partitions=10",
    "group.initial.rebalance.delay.ms=3000",
    "log.retention.hours=48",
    "log.roll.hours=24",
    "message.max.bytes=2000000",
    "compression.type=lz4",
    "ssl.key.password=hush",
    "group.consumer.session.timeout.ms=46000",
];

/// A change: resource type, whose (`T` topic, `1` broker, `` all brokers, `G` group), operation
/// (0 set, 1 delete, 2 append, 3 subtract), config, value.
type Step = (i8, &'static str, i8, &'static str, &'static str);

const STEPS: &[Step] = &[
    (TOPIC, "T", 0, "retention.ms", "1000000"),
    (TOPIC, "T", 2, "cleanup.policy", "compact"),
    (TOPIC, "T", 3, "cleanup.policy", "delete"),
    (BROKER, "", 0, "log.retention.ms", "5000000"),
    (BROKER, "1", 0, "log.retention.ms", "6000000"),
    (TOPIC, "T", 1, "retention.ms", ""),
    (BROKER, "1", 1, "log.retention.ms", ""),
    (BROKER, "", 0, "log.cleaner.threads", "2"),
    (BROKER, "1", 0, "log.cleaner.threads", "3"),
    (BROKER, "1", 0, "message.max.bytes", "3000000"),
    (BROKER, "", 0, "compression.type", "zstd"),
    (BROKER, "1", 0, "compression.type", "gzip"),
    (BROKER, "", 0, "min.insync.replicas", "2"),
    (BROKER, "", 0, "log.flush.interval.ms", "77"),
    (TOPIC, "T", 0, "segment.ms", "70000000"),
    (
        BROKER,
        "",
        0,
        "group.consumer.assignment.interval.ms",
        "1500",
    ),
    (GROUP, "G", 0, "consumer.heartbeat.interval.ms", "5500"),
    (GROUP, "G", 0, "consumer.assignment.interval.ms", "1700"),
    (GROUP, "G", 1, "consumer.heartbeat.interval.ms", ""),
    (BROKER, "", 1, "log.retention.ms", ""),
    (BROKER, "1", 1, "compression.type", ""),
];

/// The whole story as lines: which resource, config, type, value, source, flags, synonyms.
struct Story<'a> {
    wire: &'a mut Wire,
    topic: String,
    group: String,
    lines: String,
}

impl Story<'_> {
    fn resources(&self) -> Vec<(i8, &'static str, String)> {
        vec![
            (TOPIC, "T", self.topic.clone()),
            (BROKER, "1", "1".to_owned()),
            (BROKER, "", String::new()),
            (GROUP, "G", self.group.clone()),
        ]
    }

    fn look(&mut self) -> BTreeMap<String, String> {
        let mut seen = BTreeMap::new();
        for (kind, word, name) in self.resources() {
            for entry in describe(self.wire, 4, kind, &name) {
                let key = format!("{kind}\t{word}\t{}", &*entry.name);
                seen.insert(key, line(&entry));
            }
        }
        seen
    }

    /// Tells everything that is not as it was.
    fn tell(&mut self, title: &str, before: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let mut last = BTreeMap::new();
        // A broker may learn of a change some time after its controller.
        let now = wait_for(title, || {
            let now = self.look();
            let settled = now == last && now != *before;
            last.clone_from(&now);
            settled.then_some(now)
        });
        writeln!(self.lines, "# {title}").expect("a line");
        for (key, value) in &now {
            if before.get(key) != Some(value) {
                writeln!(self.lines, "{key}\t{value}").expect("a line");
            }
        }
        for key in before.keys().filter(|key| !now.contains_key(*key)) {
            writeln!(self.lines, "{key}\tgone").expect("a line");
        }
        now
    }

    fn run(&mut self) {
        let mut seen = self.tell("unchanged", &BTreeMap::new());
        for step in STEPS {
            let &(kind, whose, operation, key, value) = step;
            let name = self.name_of(whose);
            assert_eq!(
                change(self.wire, (kind, &name), operation, key, value),
                0,
                "{step:?}"
            );
            let word = ["set", "delete", "append", "subtract"][operation as usize];
            seen = self.tell(&format!("{kind} '{whose}' {word} {key} {value}"), &seen);
        }
        let name = self.topic.clone();
        assert_eq!(put(self.wire, TOPIC, &name, &[("flush.ms", "9")]), 0);
        self.tell("2 'T' replaced by flush.ms 9", &seen);
    }

    fn name_of(&self, whose: &str) -> String {
        match whose {
            "T" => self.topic.clone(),
            "G" => self.group.clone(),
            broker => broker.to_owned(),
        }
    }
}

fn describe(
    wire: &mut Wire,
    version: i16,
    kind: i8,
    name: &str,
) -> Vec<DescribeConfigsResourceResult> {
    let resource = DescribeConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(name))
        .with_configuration_keys(None);
    let request = DescribeConfigsRequest::default()
        .with_resources(vec![resource])
        .with_include_synonyms(true)
        .with_include_documentation(version >= 3);
    let result = wire.call(version, &request).results.remove(0);
    assert_eq!(result.error_code, 0, "{kind} {name}");
    let mut configs = result.configs;
    configs.sort_by(|a, b| a.name.as_str().cmp(b.name.as_str()));
    configs
}

/// Values that are of the machine.
fn of_the_machine(name: &str) -> bool {
    let names = ["listeners", "advertised.listeners", "log.dir", "log.dirs"];
    names.contains(&name) || name == "controller.quorum.voters"
}

fn line(entry: &DescribeConfigsResourceResult) -> String {
    let shown = |name: &str, value: Option<&str>| match value {
        None => "\\N".to_owned(),
        Some(_) if of_the_machine(name) => "(of the machine)".to_owned(),
        Some(value) => value.to_owned(),
    };
    let mut out = String::new();
    let value = shown(&entry.name, entry.value.as_deref());
    write!(
        out,
        "{}\t{value}\t{}\t",
        entry.config_type, entry.config_source
    )
    .expect("a line");
    for (flag, set) in [('r', entry.read_only), ('s', entry.is_sensitive)] {
        if set {
            out.push(flag);
        }
    }
    let documented = entry
        .documentation
        .as_deref()
        .is_some_and(|text| !text.is_empty());
    out.push_str(if documented { "d\t" } else { "\t" });
    let synonyms = entry.synonyms.iter().map(|s| {
        format!(
            "{}={}@{}",
            &*s.name,
            shown(&entry.name, s.value.as_deref()),
            s.source
        )
    });
    out.push_str(&synonyms.collect::<Vec<_>>().join(" "));
    out
}

/// One step of an incremental change.
pub fn change(wire: &mut Wire, to: (i8, &str), operation: i8, key: &str, value: &str) -> i16 {
    let config = incremental::AlterableConfig::default()
        .with_name(text(key))
        .with_config_operation(operation)
        .with_value((operation != 1).then(|| text(value)));
    let resource = incremental::AlterConfigsResource::default()
        .with_resource_type(to.0)
        .with_resource_name(text(to.1))
        .with_configs(vec![config]);
    let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
    wire.call(1, &request).responses[0].error_code
}

/// Replaces all configs of a resource.
fn put(wire: &mut Wire, kind: i8, name: &str, configs: &[(&str, &str)]) -> i16 {
    let config = |(key, value): &(&str, &str)| {
        replace::AlterableConfig::default()
            .with_name(text(key))
            .with_value(Some(text(value)))
    };
    let resource = replace::AlterConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(name))
        .with_configs(configs.iter().map(config).collect());
    let request = AlterConfigsRequest::default().with_resources(vec![resource]);
    wire.call(2, &request).responses[0].error_code
}

fn recording() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings/configs.tsv")
}

fn tell_story(wire: &mut Wire) -> String {
    let topic = new_topic(wire, 1, &[]);
    let mut story = Story {
        wire,
        topic,
        group: unique("group"),
        lines: String::new(),
    };
    story.run();
    story.lines
}

/// This server's own keys, which brokers list behind Kafka's as read-only texts.
fn is_ours(line: &str, kafkas: &str) -> bool {
    let mut columns = line.split('\t');
    let (whose, name) = (
        (columns.next(), columns.next()),
        columns.next().unwrap_or_default(),
    );
    let (kind, flags) = (columns.next(), columns.nth(2).unwrap_or_default());
    whose == (Some("4"), Some("1"))
        && (kind, flags) == (Some("2"), "rd")
        && !kafkas.contains(&format!("\t{name}\t"))
}

/// Deliberate differences: limits, and the partitions of a topic created without a count.
const OTHER_DEFAULTS: &[(&str, &str, &str)] = &[
    ("max.connections", "2147483647", "10000"),
    ("max.connections.per.ip", "2147483647", "10000"),
    ("num.partitions", "1", "16"),
    ("offsets.topic.replication.factor", "3", "1"),
    ("socket.listen.backlog.size", "50", "1024"),
    ("socket.receive.buffer.bytes", "102400", "-1"),
    ("socket.send.buffer.bytes", "102400", "-1"),
];

/// What the recording would hold if Kafka had our defaults.
fn with_our_defaults(line: &str) -> String {
    let name = line.split('\t').nth(2).unwrap_or_default();
    match OTHER_DEFAULTS.iter().find(|(config, ..)| *config == name) {
        Some((_, theirs, ours)) => line
            .replace(&format!("={theirs}@5"), &format!("={ours}@5"))
            .replace(&format!("\t{theirs}\t5"), &format!("\t{ours}\t5")),
        None => line.to_owned(),
    }
}

/// Kafka shows the built-in value of this one while milliseconds are set at run time.
fn is_odd(line: &str) -> bool {
    let of_the_broker = line.starts_with("4\t1\tlog.retention.hours\t3\t");
    of_the_broker && (line.contains("\t168\t4") || line.contains("\t48\t4"))
}

#[test]
fn every_config_is_described_as_kafka_does() {
    if let Some(address) = foreign() {
        if std::env::var_os("RECORD_CONFIGS").is_some() {
            let lines = tell_story(&mut Wire::connect(&address));
            std::fs::write(recording(), lines).expect("write the recording");
        }
        return;
    }
    let server = Server::with_settings(STATIC);
    let ours = tell_story(&mut Wire::connect(&server.address()));
    let kafkas = std::fs::read_to_string(recording()).expect("the recording");
    let ours = ours
        .lines()
        .filter(|line| !is_ours(line, &kafkas) && !is_odd(line));
    let ours: Vec<String> = ours.map(str::to_owned).collect();
    let kafkas = kafkas.lines().filter(|line| !is_odd(line));
    let kafkas: Vec<String> = kafkas.map(with_our_defaults).collect();
    let mut differences = String::new();
    for (sign, these, those) in [('-', &kafkas, &ours), ('+', &ours, &kafkas)] {
        let known: std::collections::HashSet<_> = those.iter().collect();
        for line in these.iter().filter(|line| !known.contains(line)) {
            writeln!(differences, "{sign} {line}").expect("a line");
        }
    }
    assert!(
        differences.is_empty(),
        "Kafka's (-) and ours (+):\n{differences}"
    );
    assert_eq!(ours, kafkas, "the same lines in another order");
}

#[test]
fn every_version_says_the_same_of_a_config() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[("retention.ms", "5000")]);
    let nodes = MetadataRequest::default().with_topics(Some(vec![]));
    let node = wire.call(9, &nodes).brokers[0].node_id.0.to_string();
    for (kind, name) in [
        (TOPIC, topic.as_str()),
        (BROKER, &node),
        (BROKER, ""),
        (GROUP, "g"),
    ] {
        let newest = describe(&mut wire, 4, kind, name);
        for version in 1..=3 {
            let mut expected = newest.clone();
            for entry in expected.iter_mut().filter(|_| version < 3) {
                (entry.config_type, entry.documentation) = (0, Some(text("")));
            }
            assert_eq!(
                describe(&mut wire, version, kind, name),
                expected,
                "v{version} of {name}"
            );
        }
    }
    let plain = DescribeConfigsResource::default()
        .with_resource_type(TOPIC)
        .with_resource_name(text(&topic))
        .with_configuration_keys(Some(vec![text("retention.ms"), text("no.such.config")]));
    let request = DescribeConfigsRequest::default().with_resources(vec![plain]);
    let found = wire.call(4, &request).results.remove(0).configs;
    assert_eq!(found.len(), 1, "what does not exist is left out");
    assert_eq!(
        (&*found[0].name, found[0].value.as_deref()),
        ("retention.ms", Some("5000"))
    );
    assert!(
        found[0].synonyms.is_empty() && found[0].documentation.is_none(),
        "not asked for"
    );
}
