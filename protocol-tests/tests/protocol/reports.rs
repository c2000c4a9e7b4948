//! Faults that were reported of other servers, where no other module has them; docs/testing.md
//! lists which test holds which report.

use std::time::Duration;

use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use kafka_protocol::messages::{
    CreateTopicsRequest, DescribeClusterRequest, MetadataRequest, OffsetFetchRequest,
};
use protocol_tests::batch::{Batch, headers};
use protocol_tests::calls::*;
use protocol_tests::groups::*;
use protocol_tests::wire::Wire;
use protocol_tests::{Server, bootstrap, client, foreign, unique, wait_for};

const OFFSET_OUT_OF_RANGE: i16 = 1;
const FENCED_INSTANCE_ID: i16 = 82;
const ZSTD: i16 = 4;

#[test]
fn every_node_that_metadata_names_is_among_its_brokers() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 3, &[]);
    for version in [1, 4, 9, 12, 13] {
        let all = wire.call(version, &MetadataRequest::default().with_topics(None));
        let known = |id| all.brokers.iter().any(|broker| broker.node_id == id);
        assert!(known(all.controller_id), "v{version}: the controller");
        if version >= 2 {
            assert!(
                all.cluster_id.as_ref().is_some_and(|id| !id.is_empty()),
                "v{version}"
            );
        }
        let ours = all
            .topics
            .iter()
            .find(|t| t.name.as_deref().is_some_and(|n| **n == *topic));
        assert_eq!(ours.expect("the topic").partitions.len(), 3);
        for partition in all.topics.iter().flat_map(|topic| &topic.partitions) {
            let named = partition.replica_nodes.iter().chain(&partition.isr_nodes);
            assert!(
                named.chain([&partition.leader_id]).all(|id| known(*id)),
                "v{version}"
            );
        }
        assert!(
            all.brokers
                .iter()
                .all(|broker| format!("{}:{}", &*broker.host, broker.port) == bootstrap())
        );
    }
    let metadata = wire.call(9, &MetadataRequest::default().with_topics(Some(vec![])));
    for version in 0..=2 {
        let cluster = wire.call(version, &DescribeClusterRequest::default());
        assert_eq!(Some(cluster.cluster_id), metadata.cluster_id, "v{version}");
        assert!(
            cluster
                .brokers
                .iter()
                .any(|broker| broker.broker_id == cluster.controller_id)
        );
    }
}

#[test]
fn every_version_of_create_topics_takes_minus_one_for_the_defaults() {
    let mut wire = Wire::open();
    for version in 4..=7 {
        let topic = CreatableTopic::default()
            .with_name(topic_name(&unique("defaults")))
            .with_num_partitions(-1)
            .with_replication_factor(-1);
        let request = CreateTopicsRequest::default()
            .with_topics(vec![topic])
            .with_timeout_ms(30_000);
        let made = wire.call(version, &request).topics.remove(0);
        assert_eq!(made.error_code, 0, "v{version}");
        if version >= 5 {
            assert!(
                made.num_partitions >= 1 && made.replication_factor >= 1,
                "v{version}"
            );
            let configs = made.configs.expect("configs");
            let policy = configs
                .iter()
                .find(|config| &*config.name == "cleanup.policy");
            let policy = policy.expect("cleanup.policy");
            assert_eq!(
                (policy.value.as_deref(), policy.config_source),
                (Some("delete"), 5)
            );
        }
    }
}

#[test]
fn an_empty_partition_does_not_keep_the_first_batch_from_coming() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 3, &[]);
    let large = Batch::of(&[&"x".repeat(500_000)]);
    for partition in [1, 2] {
        assert_eq!(produce(&mut wire, &topic, partition, &large).error_code, 0);
    }
    let wanted = Wanted {
        max_bytes: 1,
        partition_max_bytes: 1,
        ..Wanted::from(0)
    };
    for version in [4, 11] {
        let answer = wire.call(version, &wanted.request(&topic, &[0, 1, 2]));
        let batches = answer.responses[0]
            .partitions
            .iter()
            .map(|partition| headers(partition.records.as_deref().unwrap_or_default()).len());
        assert_eq!(batches.collect::<Vec<_>>(), [0, 1, 0], "v{version}");
    }
}

#[test]
fn a_client_too_old_for_zstd_gets_what_is_stored() {
    let mut wire = Wire::open();
    let bootstrap = bootstrap();
    let producer = client::producer(&bootstrap, &[("compression.codec", "zstd")]);
    for configs in [&[("compression.type", "zstd")][..], &[]] {
        let topic = new_topic(&mut wire, 1, configs);
        let sent = client::produce_values(&producer, &topic, 0, &[vec![b'z'; 10_000]]);
        assert_eq!(sent, [Ok((0, 0))]);
        for version in [4, 9, 10] {
            let answer = wire.call(version, &Wanted::from(0).request(&topic, &[0]));
            let partition = &answer.responses[0].partitions[0];
            let batches = headers(partition.records.as_deref().unwrap_or_default());
            assert_eq!(
                (partition.error_code, batches.len()),
                (0, 1),
                "v{version} {configs:?}"
            );
            assert_eq!(batches[0].attributes & 7, ZSTD, "v{version} {configs:?}");
        }
    }
}

#[test]
fn what_was_never_committed_has_no_offset_and_no_error() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 2, &[]);
    let (known, unknown) = (unique("group"), unique("group"));
    assert_eq!(commit(&mut wire, &known, (-1, ""), &topic, 5), 0);
    for (group, partition) in [(&known, 1), (&unknown, 0)] {
        for version in 8..=9 {
            let wanted = OffsetFetchRequestTopics::default()
                .with_name(topic_name(&topic))
                .with_partition_indexes(vec![partition]);
            let asked = OffsetFetchRequestGroup::default()
                .with_group_id(group_id(group))
                .with_member_epoch(-1)
                .with_topics(Some(vec![wanted]));
            let request = OffsetFetchRequest::default()
                .with_groups(vec![asked])
                .with_require_stable(true);
            let answer = wait_for("the coordinator serves", || {
                let answer = wire.call(version, &request).groups.remove(0);
                (!(14..=16).contains(&answer.error_code)).then_some(answer)
            });
            let found = &answer.topics[0].partitions[0];
            let seen = (
                found.error_code,
                found.committed_offset,
                found.committed_leader_epoch,
            );
            assert_eq!((answer.error_code, seen), (0, (0, -1, -1)), "v{version}");
            assert_eq!(found.metadata.as_deref(), Some(""), "v{version}");
        }
    }
}

#[test]
fn a_static_member_that_waits_for_its_share_is_fenced_by_its_successor() {
    let group = unique("group");
    let mut leader = Wire::open();
    let joined = settle(&mut leader, &group, Some("leader"));
    let me = joined.member_id.to_string();
    let mut follower = Wire::open();
    let pending = follower.send(5, &join_request(&group, "", Some("follower")));
    wait_for("the leader hears of the rebalance", || {
        let code = heartbeat(
            &mut leader,
            &group,
            joined.generation_id,
            &me,
            Some("leader"),
        );
        (code == 27).then_some(())
    });
    let again = join(&mut leader, &group, &me, Some("leader"));
    assert_eq!((again.error_code, again.members.len()), (0, 2));
    let followed = follower.receive(pending);
    assert_eq!(followed.error_code, 0);
    let mut waits = sync_request(&group, &followed, &[]);
    waits.group_instance_id = Some(text("follower"));
    let pending = follower.send(3, &waits);
    let mut successor = Wire::open();
    let newer = successor.send(5, &join_request(&group, "", Some("follower")));
    assert_eq!(follower.receive(pending).error_code, FENCED_INSTANCE_ID);
    let code = heartbeat(
        &mut leader,
        &group,
        again.generation_id,
        &me,
        Some("leader"),
    );
    assert_eq!(code, 27, "a new rebalance");
    let last = join(&mut leader, &group, &me, Some("leader"));
    assert_eq!((last.error_code, last.members.len()), (0, 2));
    let newer = successor.receive(newer);
    assert_eq!(
        (newer.error_code, newer.generation_id),
        (0, last.generation_id)
    );
    assert_ne!(newer.member_id, followed.member_id);
}

#[test]
fn a_reader_sees_records_or_out_of_range_while_retention_takes_them() {
    if foreign().is_some() {
        return; // Kafka looks every five minutes only.
    }
    let server = Server::with_settings(&["log.retention.check.interval.ms=20"]);
    let address = server.address();
    let mut wire = Wire::connect(&address);
    let topic = new_topic(&mut wire, 1, &[("retention.bytes", "3000")]);
    let writer = std::thread::spawn({
        let (topic, address) = (topic.clone(), address.clone());
        move || {
            let mut wire = Wire::connect(&address);
            for number in 0..300 {
                let value = format!("{number:04}{}", "v".repeat(300));
                let batch = Batch::of(&[&value]);
                assert_eq!(produce(&mut wire, &topic, 0, &batch).error_code, 0);
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    });
    let (mut position, mut out_of_range) = (0, 0);
    while !writer.is_finished() {
        let one = Wanted {
            partition_max_bytes: 1,
            ..Wanted::from(position)
        };
        let fetched = fetch(&mut wire, &topic, 0, one);
        match fetched.error_code {
            0 => {
                for batch in headers(fetched.records.as_deref().unwrap_or_default()) {
                    assert!(batch.intact && batch.last_offset == position);
                    // Stay at the log's start, where records go.
                    position = list_offsets(&mut wire, &topic, 0, -2).offset.max(position);
                }
            }
            OFFSET_OUT_OF_RANGE => {
                let start = list_offsets(&mut wire, &topic, 0, -2).offset;
                assert!(
                    start > position,
                    "out of range at {position}, the start is {start}"
                );
                (position, out_of_range) = (start, out_of_range + 1);
            }
            code => panic!("error {code} at {position}"),
        }
    }
    writer.join().expect("the writer");
    wait_for("retention has come as far as it goes", || {
        let start = list_offsets(&mut wire, &topic, 0, -2).offset;
        (start > 280).then_some(())
    });
    let start = list_offsets(&mut wire, &topic, 0, -2).offset;
    let first = fetch(&mut wire, &topic, 0, Wanted::from(start));
    assert_eq!(
        headers(&first.records.expect("records"))[0].base_offset,
        start
    );
    println!("out of range {out_of_range} times");
}
