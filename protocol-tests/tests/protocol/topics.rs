//! Topics and their configs: create, describe, alter, grow, delete and make again.

use std::time::{Duration, Instant};

use kafka_protocol::messages::alter_configs_request as alter;
use kafka_protocol::messages::create_topics_request::{CreatableReplicaAssignment, CreatableTopic};
use kafka_protocol::messages::create_topics_response::CreatableTopicResult;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::DescribeConfigsResourceResult;
use kafka_protocol::messages::incremental_alter_configs_request as incremental;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{
    AlterConfigsRequest, BrokerId, CreateTopicsRequest, DescribeClusterRequest,
    DescribeConfigsRequest, DescribeTopicPartitionsRequest, IncrementalAlterConfigsRequest,
    MetadataRequest, describe_topic_partitions_request,
};
use protocol_tests::batch::{Batch, headers};
use protocol_tests::calls::*;
use protocol_tests::wire::Wire;
use protocol_tests::{Server, foreign, unique, wait_for};

const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const INVALID_TOPIC_EXCEPTION: i16 = 17;
const TOPIC_ALREADY_EXISTS: i16 = 36;
const INVALID_PARTITIONS: i16 = 37;
const INVALID_CONFIG: i16 = 40;
const TOPIC_RESOURCE: i8 = 2;
const BROKER_RESOURCE: i8 = 4;

fn metadata_error(wire: &mut Wire, name: &str, create: bool) -> i16 {
    let topic = MetadataRequestTopic::default().with_name(Some(topic_name(name)));
    let request = MetadataRequest::default()
        .with_topics(Some(vec![topic]))
        .with_allow_auto_topic_creation(create);
    wire.call(9, &request).topics[0].error_code
}

fn topic_exists(wire: &mut Wire, name: &str) -> bool {
    let all = wire.call(9, &MetadataRequest::default().with_topics(None));
    all.topics
        .iter()
        .any(|topic| topic.name.as_ref().is_some_and(|known| *known.0 == *name))
}

fn create(wire: &mut Wire, topic: CreatableTopic, validate_only: bool) -> CreatableTopicResult {
    let request = CreateTopicsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(30_000)
        .with_validate_only(validate_only);
    wire.call(7, &request).topics.remove(0)
}

fn plain(name: &str, partitions: i32, replication: i16) -> CreatableTopic {
    CreatableTopic::default()
        .with_name(topic_name(name))
        .with_num_partitions(partitions)
        .with_replication_factor(replication)
}

fn configs(
    wire: &mut Wire,
    version: i16,
    resource: (i8, &str),
    keys: Option<&[&str]>,
) -> Vec<DescribeConfigsResourceResult> {
    let resource = DescribeConfigsResource::default()
        .with_resource_type(resource.0)
        .with_resource_name(text(resource.1))
        .with_configuration_keys(keys.map(|keys| keys.iter().map(|key| text(key)).collect()));
    let request = DescribeConfigsRequest::default()
        .with_resources(vec![resource])
        .with_include_synonyms(true);
    let result = wire.call(version, &request).results.remove(0);
    assert_eq!(result.error_code, 0);
    result.configs
}

/// A config of a topic: its value and whether it was set on the topic itself.
fn config(wire: &mut Wire, topic: &str, key: &str) -> (String, bool) {
    const SET_ON_TOPIC: i8 = 1;
    let entry = configs(wire, 3, (TOPIC_RESOURCE, topic), Some(&[key])).remove(0);
    (
        entry.value.unwrap_or_default().to_string(),
        entry.config_source == SET_ON_TOPIC,
    )
}

/// Waits until a config shows `expected`; brokers may be a moment behind their controller.
fn await_config(wire: &mut Wire, topic: &str, key: &str, expected: (&str, bool)) {
    let what = format!("{key} is {expected:?}");
    wait_for(&what, || {
        let (value, set) = config(wire, topic, key);
        ((value.as_str(), set) == expected).then_some(())
    });
}

/// One step of an incremental change: 0 set, 1 delete, 2 append, 3 subtract.
fn change(wire: &mut Wire, topic: &str, operation: i8, key: &str, value: &str) -> i16 {
    let value = (operation != 1).then(|| text(value));
    let config = incremental::AlterableConfig::default()
        .with_name(text(key))
        .with_config_operation(operation)
        .with_value(value);
    let resource = incremental::AlterConfigsResource::default()
        .with_resource_type(TOPIC_RESOURCE)
        .with_resource_name(text(topic))
        .with_configs(vec![config]);
    let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
    wire.call(1, &request).responses[0].error_code
}

#[test]
fn asking_for_a_missing_topic_does_not_make_it() {
    let mut wire = Wire::open();
    let name = unique("missing");
    assert_eq!(
        metadata_error(&mut wire, &name, false),
        UNKNOWN_TOPIC_OR_PARTITION
    );
    assert_eq!(
        metadata_error(&mut wire, "a/b", false),
        INVALID_TOPIC_EXCEPTION
    );
    assert_eq!(
        metadata_error(&mut wire, "a/b", true),
        INVALID_TOPIC_EXCEPTION
    );
    assert!(!topic_exists(&mut wire, &name));
}

#[test]
fn a_topic_is_made_when_a_client_asks_for_it() {
    let mut wire = Wire::open();
    let name = unique("automatic");
    wait_for("the topic is there", || {
        (metadata_error(&mut wire, &name, true) == 0).then_some(())
    });
    await_topic(&mut wire, &name, 1);
    assert_eq!(
        produce(&mut wire, &name, 0, &Batch::of(&["first"])).base_offset,
        0
    );
}

#[test]
fn validating_makes_nothing() {
    let mut wire = Wire::open();
    let existing = new_topic(&mut wire, 1, &[]);
    let answer = create(&mut wire, plain(&existing, 1, 1), true);
    assert_eq!(answer.error_code, TOPIC_ALREADY_EXISTS);
    let name = unique("validated");
    assert_eq!(create(&mut wire, plain(&name, 1, 1), true).error_code, 0);
    assert!(!topic_exists(&mut wire, &name));
}

#[test]
fn minus_one_means_the_brokers_defaults() {
    let mut wire = Wire::open();
    let name = unique("defaults");
    let made = create(&mut wire, plain(&name, -1, -1), false);
    assert_eq!(made.error_code, 0);
    assert!(made.num_partitions >= 1 && made.replication_factor >= 1);
    let configs = made.configs.expect("the configs of the new topic");
    assert!(
        configs
            .iter()
            .any(|config| &*config.name == "cleanup.policy")
    );
    assert!(!made.topic_id.is_nil());
    await_topic(&mut wire, &name, made.num_partitions);
    let shown = describe_topic(&mut wire, &name);
    assert_eq!(shown.partitions.len() as i32, made.num_partitions);
    assert_eq!(shown.topic_id, made.topic_id);
}

#[test]
fn replicas_can_be_assigned_by_hand() {
    let mut wire = Wire::open();
    let name = unique("manual");
    let broker = wire
        .call(9, &MetadataRequest::default().with_topics(Some(vec![])))
        .brokers[0]
        .node_id;
    let assignment = |partition| {
        CreatableReplicaAssignment::default()
            .with_partition_index(partition)
            .with_broker_ids(vec![broker])
    };
    let topic = plain(&name, -1, -1).with_assignments((0..3).map(assignment).collect());
    let made = create(&mut wire, topic, false);
    assert_eq!((made.error_code, made.num_partitions), (0, 3));
    let wrong = CreatableReplicaAssignment::default()
        .with_partition_index(0)
        .with_broker_ids(vec![BrokerId(broker.0 + 99)]);
    let topic = plain(&unique("manual"), -1, -1).with_assignments(vec![wrong]);
    assert_ne!(
        create(&mut wire, topic, false).error_code,
        0,
        "no such broker"
    );
}

#[test]
fn what_cannot_be_made_is_refused() {
    let mut wire = Wire::open();
    let name = unique("refused");
    let long = "x".repeat(250);
    for invalid in ["", ".", "..", "a/b", "a b", &long] {
        let code = create(&mut wire, plain(invalid, 1, 1), false).error_code;
        assert_eq!(code, INVALID_TOPIC_EXCEPTION, "{invalid:?}");
    }
    assert_eq!(
        create(&mut wire, plain(&name, 0, 1), false).error_code,
        INVALID_PARTITIONS
    );
    assert_eq!(
        create_topic(&mut wire, &name, 1, &[("no.such.config", "1")]),
        INVALID_CONFIG
    );
    assert_eq!(
        create_topic(&mut wire, &name, 1, &[("retention.ms", "soon")]),
        INVALID_CONFIG
    );
    assert!(!topic_exists(&mut wire, &name));
    let dotted = unique("a.b");
    assert_eq!(create(&mut wire, plain(&dotted, 1, 1), false).error_code, 0);
    let collides = dotted.replace('.', "_");
    let code = create(&mut wire, plain(&collides, 1, 1), false).error_code;
    assert_eq!(
        code, INVALID_TOPIC_EXCEPTION,
        "{collides} collides with {dotted} in metric names"
    );
}

#[test]
fn configs_tell_their_value_source_type_and_synonyms() {
    let mut wire = Wire::open();
    let topic = new_topic(
        &mut wire,
        1,
        &[("cleanup.policy", "compact"), ("retention.ms", "5000")],
    );
    for version in [1, 3] {
        let all = configs(&mut wire, version, (TOPIC_RESOURCE, &topic), None);
        assert!(all.len() > 20, "only {} configs", all.len());
        let entry = |name: &str| {
            all.iter()
                .find(|config| &*config.name == name)
                .expect("config")
        };
        let policy = entry("cleanup.policy");
        assert_eq!(policy.value.as_deref(), Some("compact"));
        assert_eq!((policy.config_source, policy.read_only), (1, false));
        let synonyms: Vec<&str> = policy
            .synonyms
            .iter()
            .map(|synonym| &*synonym.name)
            .collect();
        assert_eq!(synonyms, ["cleanup.policy", "log.cleanup.policy"]);
        assert_eq!(entry("retention.ms").value.as_deref(), Some("5000"));
        assert_eq!(entry("max.message.bytes").value.as_deref(), Some("1048588"));
        assert_eq!(entry("max.message.bytes").config_source, 5, "a default");
        assert!(version < 3 || all.iter().all(|config| config.config_type != 0));
    }
    let node = wire
        .call(9, &MetadataRequest::default().with_topics(Some(vec![])))
        .brokers[0]
        .node_id;
    let keys = [
        "num.partitions",
        "default.replication.factor",
        "auto.create.topics.enable",
    ];
    let broker = configs(
        &mut wire,
        3,
        (BROKER_RESOURCE, &node.0.to_string()),
        Some(&keys),
    );
    let mut names: Vec<&str> = broker.iter().map(|config| &*config.name).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "auto.create.topics.enable",
            "default.replication.factor",
            "num.partitions"
        ]
    );
}

#[test]
fn alter_configs_resets_the_rest_and_incremental_changes_leave_it() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    for (key, value) in [("retention.ms", "1000"), ("retention.bytes", "2000")] {
        assert_eq!(change(&mut wire, &topic, 0, key, value), 0);
    }
    await_config(&mut wire, &topic, "retention.bytes", ("2000", true));
    await_config(&mut wire, &topic, "retention.ms", ("1000", true));
    let config = alter::AlterableConfig::default()
        .with_name(text("retention.ms"))
        .with_value(Some(text("3000")));
    let resource = alter::AlterConfigsResource::default()
        .with_resource_type(TOPIC_RESOURCE)
        .with_resource_name(text(&topic))
        .with_configs(vec![config]);
    let request = AlterConfigsRequest::default().with_resources(vec![resource]);
    assert_eq!(wire.call(1, &request).responses[0].error_code, 0);
    await_config(&mut wire, &topic, "retention.ms", ("3000", true));
    await_config(&mut wire, &topic, "retention.bytes", ("-1", false));
    assert_eq!(change(&mut wire, &topic, 1, "retention.ms", ""), 0);
    await_config(&mut wire, &topic, "retention.ms", ("604800000", false));
}

#[test]
fn list_configs_grow_and_shrink_from_their_default() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    assert_eq!(change(&mut wire, &topic, 2, "cleanup.policy", "compact"), 0);
    await_config(
        &mut wire,
        &topic,
        "cleanup.policy",
        ("delete,compact", true),
    );
    assert_eq!(change(&mut wire, &topic, 3, "cleanup.policy", "delete"), 0);
    await_config(&mut wire, &topic, "cleanup.policy", ("compact", true));
    assert_eq!(
        change(&mut wire, &topic, 0, "cleanup.policy", "shred"),
        INVALID_CONFIG
    );
    assert_eq!(
        change(&mut wire, &topic, 0, "retention.ms", "never"),
        INVALID_CONFIG
    );
    assert_eq!(
        change(&mut wire, &topic, 0, "no.such.config", "1"),
        INVALID_CONFIG
    );
    assert_eq!(
        config(&mut wire, &topic, "cleanup.policy"),
        ("compact".to_owned(), true)
    );
    let missing = unique("missing");
    let code = change(&mut wire, &missing, 0, "retention.ms", "1");
    assert_eq!(code, UNKNOWN_TOPIC_OR_PARTITION);
}

#[test]
fn partitions_are_added_and_never_taken_away() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 2, &[]);
    assert_eq!(
        produce(&mut wire, &topic, 1, &Batch::of(&["before"])).error_code,
        0
    );
    for count in [4, 5] {
        assert_eq!(grow_topic(&mut wire, &topic, count), 0);
        await_topic(&mut wire, &topic, count);
        assert_eq!(
            describe_topic(&mut wire, &topic).partitions.len() as i32,
            count
        );
        assert_eq!(
            produce(&mut wire, &topic, count - 1, &Batch::of(&["new"])).base_offset,
            0
        );
    }
    assert_eq!(
        fetch(&mut wire, &topic, 1, Wanted::from(0)).high_watermark,
        1
    );
    for count in [5, 3, 0, -1] {
        assert_eq!(
            grow_topic(&mut wire, &topic, count),
            INVALID_PARTITIONS,
            "to {count}"
        );
    }
    assert_eq!(
        grow_topic(&mut wire, &unique("missing"), 3),
        UNKNOWN_TOPIC_OR_PARTITION
    );
}

#[test]
fn a_deleted_topic_is_gone_and_its_name_free_at_once() {
    let mut wire = Wire::open();
    let name = new_topic(&mut wire, 2, &[]);
    for round in 0..5 {
        let old = describe_topic(&mut wire, &name).topic_id;
        for _ in 0..=round {
            assert_eq!(
                produce(&mut wire, &name, 0, &Batch::of(&["old"])).error_code,
                0
            );
        }
        assert_eq!(delete_topic(&mut wire, &name), 0);
        assert_eq!(create_topic(&mut wire, &name, 2, &[]), 0, "round {round}");
        wait_for("the new topic is shown", || {
            let shown = describe_topic(&mut wire, &name);
            (shown.error_code == 0 && shown.topic_id != old).then_some(())
        });
        await_topic(&mut wire, &name, 2);
        wait_for("it is empty", || {
            (list_offsets(&mut wire, &name, 0, -1).offset == 0).then_some(())
        });
    }
    assert_eq!(delete_topic(&mut wire, &name), 0);
    assert_eq!(delete_topic(&mut wire, &name), UNKNOWN_TOPIC_OR_PARTITION);
    wait_for("it is shown as gone", || {
        let shown = describe_topic(&mut wire, &name).error_code;
        (shown == UNKNOWN_TOPIC_OR_PARTITION).then_some(())
    });
}

#[test]
fn a_fetch_that_waits_on_a_topic_is_answered_when_it_is_deleted() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    let wanted = Wanted {
        max_wait_ms: 15_000,
        min_bytes: 1,
        ..Wanted::from(0)
    };
    let pending = send_fetch(&mut wire, &topic, 0, wanted);
    std::thread::sleep(Duration::from_millis(200));
    let start = Instant::now();
    assert_eq!(delete_topic(&mut Wire::open(), &topic), 0);
    let answer = receive_fetch(&mut wire, pending);
    assert_ne!(answer.error_code, 0);
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "after {:?}",
        start.elapsed()
    );
}

#[test]
fn the_cluster_has_an_id_and_its_controller_is_a_broker() {
    let mut wire = Wire::open();
    let metadata = wire.call(9, &MetadataRequest::default().with_topics(Some(vec![])));
    let id = metadata.cluster_id.expect("a cluster id");
    assert!(
        metadata
            .brokers
            .iter()
            .any(|broker| broker.node_id == metadata.controller_id)
    );
    let cluster = wire.call(0, &DescribeClusterRequest::default());
    assert_eq!((cluster.error_code, &cluster.cluster_id), (0, &id));
    assert_eq!(cluster.brokers.len(), metadata.brokers.len());
}

#[test]
fn partitions_are_described_with_their_leaders() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 3, &[]);
    let wanted =
        describe_topic_partitions_request::TopicRequest::default().with_name(topic_name(&topic));
    let request = DescribeTopicPartitionsRequest::default()
        .with_topics(vec![wanted])
        .with_response_partition_limit(2000);
    let answer = wire.call(0, &request);
    let described = &answer.topics[0];
    assert_eq!((described.error_code, described.partitions.len()), (0, 3));
    assert!(
        described
            .partitions
            .iter()
            .all(|partition| partition.leader_id.0 >= 0)
    );
}

#[test]
fn a_replication_factor_of_three_is_taken_and_shown() {
    if foreign().is_some() {
        return;
    }
    let mut wire = Wire::open();
    let name = unique("replicated");
    let made = create(&mut wire, plain(&name, 2, 3), false);
    assert_eq!((made.error_code, made.replication_factor), (0, 3));
    assert_eq!(change(&mut wire, &name, 0, "min.insync.replicas", "2"), 0);
    await_config(&mut wire, &name, "min.insync.replicas", ("2", true));
    assert_eq!(
        produce(&mut wire, &name, 0, &Batch::of(&["safe"])).error_code,
        0
    );
    let strict = Server::with_settings(&["replication.factor.policy=strict"]);
    let mut wire = Wire::connect(&strict.address());
    assert_ne!(create(&mut wire, plain(&name, 2, 3), false).error_code, 0);
    assert_eq!(create(&mut wire, plain(&name, 2, 1), false).error_code, 0);
}

#[test]
fn retention_takes_old_records_away() {
    if foreign().is_some() {
        return; // Kafka looks every five minutes only.
    }
    let server = Server::with_settings(&["log.retention.check.interval.ms=200"]);
    let mut wire = Wire::connect(&server.address());
    let topic = new_topic(&mut wire, 1, &[("retention.ms", "1000")]);
    for value in ["a", "b", "c"] {
        assert_eq!(
            produce(&mut wire, &topic, 0, &Batch::of(&[value])).error_code,
            0
        );
    }
    wait_for("the records are too old", || {
        (list_offsets(&mut wire, &topic, 0, -2).offset == 3).then_some(())
    });
    let fetched = fetch(&mut wire, &topic, 0, Wanted::from(3));
    assert_eq!(
        (
            fetched.error_code,
            fetched.high_watermark,
            fetched.log_start_offset
        ),
        (0, 3, 3)
    );
    assert!(headers(&fetched.records.unwrap_or_default()).is_empty());
    assert_eq!(
        produce(&mut wire, &topic, 0, &Batch::of(&["d"])).base_offset,
        3
    );
}
