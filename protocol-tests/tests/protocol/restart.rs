//! What outlives the process: everything anyone was told.

use std::process::{Command, Stdio};

use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::{
    DescribeConfigsRequest, InitProducerIdRequest, MetadataRequest, ProducerId,
};
use protocol_tests::batch::{Batch, headers};
use protocol_tests::calls::*;
use protocol_tests::server::{Server, binary};
use protocol_tests::wire::Wire;
use protocol_tests::{client, foreign};
use rdkafka::consumer::{CommitMode, Consumer};

/// Ends a server and starts it again on its data.
type Restart = fn(&mut Server);

fn killed(server: &mut Server) {
    server.kill();
    server.start_again();
}

fn terminated(server: &mut Server) {
    assert!(
        server.terminate(),
        "SIGTERM ends it well:\n{}",
        server.log()
    );
    server.start_again();
}

fn for_each_end(test: impl Fn(&mut Server, Restart)) {
    if foreign().is_some() {
        return;
    }
    for restart in [killed as Restart, terminated] {
        test(&mut Server::start(), restart);
    }
}

fn cluster_id(wire: &mut Wire) -> String {
    let metadata = wire.call(9, &MetadataRequest::default().with_topics(Some(vec![])));
    metadata.cluster_id.expect("a cluster id").to_string()
}

#[test]
fn records_are_there_at_their_offsets() {
    for_each_end(|server, restart| {
        let mut wire = Wire::connect(&server.address());
        let topic = new_topic(&mut wire, 2, &[]);
        let batches: Vec<Batch> = (0..20)
            .map(|i| Batch::of(&[&format!("a{i}"), &"b".repeat(i * 1000)]))
            .collect();
        for batch in &batches {
            assert_eq!(produce(&mut wire, &topic, 1, batch).error_code, 0);
        }
        let before = fetch(&mut wire, &topic, 1, Wanted::from(0)).records;
        for _ in 0..2 {
            restart(server);
            let mut wire = Wire::connect(&server.address());
            let after = fetch(&mut wire, &topic, 1, Wanted::from(0));
            assert_eq!((after.error_code, after.high_watermark), (0, 40));
            assert!(after.records == before, "the same bytes");
            assert!(
                headers(&after.records.expect("records"))
                    .iter()
                    .all(|batch| batch.intact)
            );
            assert_eq!(list_offsets(&mut wire, &topic, 0, -1).offset, 0);
        }
        let mut wire = Wire::connect(&server.address());
        assert_eq!(
            produce(&mut wire, &topic, 1, &Batch::of(&["next"])).base_offset,
            40
        );
    });
}

#[test]
fn topics_configs_and_ids_are_what_they_were() {
    for_each_end(|server, restart| {
        let mut wire = Wire::connect(&server.address());
        let kept = new_topic(&mut wire, 2, &[("retention.ms", "123456789")]);
        let deleted = new_topic(&mut wire, 1, &[]);
        assert_eq!(grow_topic(&mut wire, &kept, 6), 0);
        assert_eq!(delete_topic(&mut wire, &deleted), 0);
        let id = describe_topic(&mut wire, &kept).topic_id;
        let cluster = cluster_id(&mut wire);
        restart(server);
        let mut wire = Wire::connect(&server.address());
        let shown = describe_topic(&mut wire, &kept);
        assert_eq!(
            (shown.error_code, shown.topic_id, shown.partitions.len()),
            (0, id, 6)
        );
        assert_ne!(
            describe_topic(&mut wire, &deleted).error_code,
            0,
            "deleted stays deleted"
        );
        assert_eq!(cluster_id(&mut wire), cluster);
        let resource = DescribeConfigsResource::default()
            .with_resource_type(2)
            .with_resource_name(text(&kept))
            .with_configuration_keys(Some(vec![text("retention.ms")]));
        let request = DescribeConfigsRequest::default().with_resources(vec![resource]);
        let described = wire.call(1, &request);
        assert_eq!(
            described.results[0].configs[0].value.as_deref(),
            Some("123456789")
        );
    });
}

#[test]
fn the_log_start_does_not_go_back() {
    for_each_end(|server, restart| {
        let mut wire = Wire::connect(&server.address());
        let topic = new_topic(&mut wire, 1, &[]);
        for _ in 0..10 {
            produce(&mut wire, &topic, 0, &Batch::of(&["x"]));
        }
        assert_eq!(delete_records(&mut wire, &topic, 0, 6).0, 0);
        restart(server);
        let mut wire = Wire::connect(&server.address());
        assert_eq!(list_offsets(&mut wire, &topic, 0, -2).offset, 6);
        assert_eq!(list_offsets(&mut wire, &topic, 0, -1).offset, 10);
    });
}

#[test]
fn producers_are_remembered() {
    for_each_end(|server, restart| {
        let mut wire = Wire::connect(&server.address());
        let topic = new_topic(&mut wire, 1, &[]);
        let request = InitProducerIdRequest::default()
            .with_transactional_id(None)
            .with_transaction_timeout_ms(60_000)
            .with_producer_id(ProducerId(-1))
            .with_producer_epoch(-1);
        let id = wire.call(4, &request).producer_id.0;
        let batch = |sequence| Batch::of(&["x"]).from_producer(id, 0, sequence);
        for sequence in 0..7 {
            assert_eq!(
                produce(&mut wire, &topic, 0, &batch(sequence)).error_code,
                0
            );
        }
        restart(server);
        let mut wire = Wire::connect(&server.address());
        for sequence in [6, 2] {
            let again = produce(&mut wire, &topic, 0, &batch(sequence));
            assert_eq!(
                (again.error_code, again.base_offset),
                (0, i64::from(sequence))
            );
        }
        assert_eq!(
            list_offsets(&mut wire, &topic, 0, -1).offset,
            7,
            "nothing stored twice"
        );
        assert_ne!(
            produce(&mut wire, &topic, 0, &batch(9)).error_code,
            0,
            "a gap is a gap"
        );
        assert_eq!(produce(&mut wire, &topic, 0, &batch(7)).base_offset, 7);
        let next = wire.call(4, &request).producer_id.0;
        assert_ne!(next, id, "an id is given once");
    });
}

#[test]
fn commits_and_members_go_on() {
    for_each_end(|server, restart| {
        let address = server.address();
        let topic = new_topic(&mut Wire::connect(&address), 1, &[]);
        let producer = client::producer(&address, &[]);
        let values: Vec<_> = (0..100).map(|i| format!("{i}").into_bytes()).collect();
        client::produce_values(&producer, &topic, 0, &values);
        let properties = [("enable.auto.offset.store", "false")];
        let member = client::member(&address, "survivors", &topic, &properties);
        let mut seen = Vec::new();
        client::poll_until(&member, &mut seen, |seen| seen.len() >= 30);
        member.store_offset(&topic, 0, 29).expect("store");
        member
            .commit_consumer_state(CommitMode::Sync)
            .expect("commit");
        restart(server);
        client::produce_values(&producer, &topic, 0, &values);
        client::poll_until(&member, &mut seen, |seen| {
            seen.iter().any(|record| record.offset == 199)
        });
        drop(member);
        let heir = client::member(&address, "survivors", &topic, &properties);
        let mut inherited = Vec::new();
        client::poll_until(&heir, &mut inherited, |seen| !seen.is_empty());
        assert_eq!(inherited[0].offset, 30, "the commit was kept");
    });
}

#[test]
fn a_data_directory_serves_one_process() {
    if foreign().is_some() {
        return;
    }
    let server = Server::start();
    let second = Command::new(binary())
        .args([
            "--set",
            "listeners=PLAINTEXT://127.0.0.1:0",
            "--set",
            "admin.port=0",
            "--set",
        ])
        .arg(format!("log.dirs={}", server.data().display()))
        .stdin(Stdio::null())
        .output()
        .expect("start a second server");
    assert!(!second.status.success());
    let said = [second.stdout, second.stderr].concat();
    let said = String::from_utf8_lossy(&said).to_lowercase();
    assert!(
        said.contains("process") || said.contains("lock"),
        "it says why: {said}"
    );
    let mut wire = Wire::connect(&server.address());
    assert!(!cluster_id(&mut wire).is_empty(), "the first one serves on");
}

#[test]
fn a_directory_with_foreign_files_is_left_alone() {
    if foreign().is_some() {
        return;
    }
    let home = tempfile::tempdir().expect("temp dir");
    std::fs::write(home.path().join("meta.properties"), "version=1\n").expect("write");
    let refused = Command::new(binary())
        .args([
            "--set",
            "listeners=PLAINTEXT://127.0.0.1:0",
            "--set",
            "admin.port=0",
            "--set",
        ])
        .arg(format!("log.dirs={}", home.path().display()))
        .stdin(Stdio::null())
        .output()
        .expect("start the server");
    assert!(!refused.status.success());
    let said = [refused.stdout, refused.stderr].concat();
    assert!(
        String::from_utf8_lossy(&said).contains("meta.properties"),
        "it names the file"
    );
    let files = std::fs::read_dir(home.path()).expect("read").count();
    assert_eq!(files, 1, "nothing was written");
}
