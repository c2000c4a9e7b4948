//! Views of an image with one topic, `t`, and some dynamic configs.

use super::*;
use kafka_protocol::messages::ApiKey;

use crate::catalog::codec::Configs;
use crate::catalog::{Change, Environment, NewTopic};
use crate::protocol::response::encode_response;
use crate::types::Position;

fn image() -> Image {
    let map = |name: &str, value: &str| Configs::from([(name.to_owned(), value.to_owned())]);
    let image = Image::empty(Environment {
        fixed: map("num.partitions", "4"),
        node_id: 1,
        ..Environment::default()
    });
    let new = NewTopic {
        name: "t".into(),
        id: uuid::Uuid::from_u128(1),
        partitions: 1,
        replication_factor: 1,
        configs: map("segment.bytes", "2000000"),
        ..NewTopic::default()
    };
    let changes = [
        image.create_topic(&new).unwrap(),
        Change::BrokerConfigsSet { broker: Some(1), configs: map("log.retention.ms", "123456") },
        Change::BrokerConfigsSet { broker: None, configs: map("log.flush.interval.ms", "11") },
        Change::GroupConfigsSet {
            group: "g".into(),
            configs: map("consumer.heartbeat.interval.ms", "5500"),
        },
    ];
    (1..).zip(&changes).fold(image, |image, (at, change)| {
        image.apply(change, Position(at)).unwrap()
    })
}

fn view<R>(kind: i8, name: &'static str, keys: &[&'static str], f: impl Fn(Vec<Shown>) -> R) -> R {
    f(try_view(kind, name, keys).unwrap())
}

fn try_view(kind: i8, name: &'static str, keys: &[&'static str]) -> Result<Vec<Shown>, i16> {
    let config = Config::defaults();
    let image = image();
    let view =
        View { image: &image, config: &config, node: 1, synonyms: true, documentation: true };
    let asked = DescribeConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(StrBytes::from_static_str(name))
        .with_configuration_keys(Some(
            keys.iter().copied().map(StrBytes::from_static_str).collect(),
        ));
    let shown = view.resource(&asked).map_err(|refusal| refusal.code.code())?;
    for version in 1..=4 {
        let view = View { documentation: version >= 3, ..view };
        let configs = shown.iter().map(|shown| view.wire(shown)).collect();
        let result = DescribeConfigsResult::default().with_configs(configs);
        let answer = DescribeConfigsResponse::default().with_results(vec![result]);
        assert!(encode_response(1, ApiKey::DescribeConfigs, version, &answer).is_ok());
    }
    Ok(shown)
}

fn values(shown: Vec<Shown>) -> Vec<(String, Option<String>, i8)> {
    shown.into_iter().map(|s| (s.name, s.value, s.source as i8)).collect()
}

fn value(name: &str, value: &str, source: i8) -> (String, Option<String>, i8) {
    (name.to_owned(), Some(value.to_owned()), source)
}

#[test]
fn topics_show_their_own_values_and_those_they_inherit() {
    let keys = ["segment.bytes", "retention.ms", "flush.ms", "no.such.config"];
    let got = view(resource::TOPIC, "t", &keys, values);
    let wanted = [
        value("flush.ms", "11", 3),
        value("retention.ms", "123456", 2),
        value("segment.bytes", "2000000", 1),
    ];
    assert_eq!(got, wanted);
    assert_eq!(view(resource::TOPIC, "t", &[], |shown| shown.len()), 37);
}

#[test]
fn brokers_show_static_and_dynamic_values_and_what_is_in_use() {
    let keys = ["num.partitions", "log.retention.ms", "node.id", "listeners", "journal.sync"];
    let got = view(resource::BROKER, "1", &keys, values);
    let wanted = [
        value("listeners", "PLAINTEXT://127.0.0.1:9092", 5),
        value("log.retention.ms", "123456", 2),
        value("node.id", "1", 5),
        value("num.partitions", "4", 4),
        value("journal.sync", "always", 5),
    ];
    assert_eq!(got, wanted);
}

#[test]
fn all_brokers_show_only_what_is_set_for_them() {
    let got = view(resource::BROKER, "", &[], values);
    let wanted = [value("log.flush.interval.ms", "11", 3), value("min.insync.replicas", "1", 3)];
    assert_eq!(got, wanted);
    assert_eq!(view(resource::BROKER, "", &["num.partitions"], values), []);
}

#[test]
fn groups_need_not_exist() {
    let key = ["consumer.heartbeat.interval.ms"];
    assert_eq!(view(resource::GROUP, "g", &key, values), [value(key[0], "5500", 8)]);
    assert_eq!(view(resource::GROUP, "h", &key, values), [value(key[0], "5000", 5)]);
    assert_eq!(view(resource::CLIENT_METRICS, "m", &[], |shown| shown.len()), 3);
}

#[test]
fn refusals_have_kafkas_codes() {
    let code = |kind, name| try_view(kind, name, &[]).unwrap_err();
    assert_eq!(code(resource::TOPIC, "unknown"), 3);
    assert_eq!(code(resource::TOPIC, "bad name"), 17);
    assert_eq!(code(resource::TOPIC, ""), 17);
    assert_eq!(code(resource::BROKER, "77"), 42);
    assert_eq!(code(resource::BROKER, "abc"), 42);
    assert_eq!(code(resource::BROKER_LOGGER, ""), 42);
    assert_eq!(code(resource::GROUP, ""), 42);
    assert_eq!(code(99, "x"), 42);
}
