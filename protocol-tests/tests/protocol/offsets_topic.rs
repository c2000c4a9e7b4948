//! Groups as `__consumer_offsets` keeps them: in Kafka's formats, and back after a restart.

use kafka_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use kafka_protocol::messages::{
    DescribeGroupsRequest, JoinGroupResponse, OffsetCommitRequest, OffsetDeleteRequest,
};
use protocol_tests::calls::*;
use protocol_tests::groups::*;
use protocol_tests::offsets_topic::{Fact, facts};
use protocol_tests::wire::Wire;
use protocol_tests::{Server, foreign, unique, wait_for};

/// A static member, settled alone.
fn settle(wire: &mut Wire, group: &str) -> JoinGroupResponse {
    let joined = join(wire, group, "", Some("instance"));
    assert_eq!(joined.error_code, 0);
    let me = joined.member_id.to_string();
    let sync = sync_request(group, &joined, &[(&me, "everything")]);
    let sync = sync.with_group_instance_id(Some(text("instance")));
    assert_eq!(wire.call(3, &sync).error_code, 0);
    joined
}

fn last_group(facts: &[Fact]) -> protocol_tests::offsets_topic::Group {
    let groups = facts.iter().rev().find_map(|fact| match fact {
        Fact::Group(Some(group)) => Some(group.clone()),
        _ => None,
    });
    groups.expect("a record of the group")
}

#[test]
fn a_monitor_that_reads_the_topic_of_offsets_sees_members_and_commits() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    let id = describe_topic(&mut wire, &topic).topic_id;
    let group = unique("group");
    let joined = settle(&mut wire, &group);
    let me = joined.member_id.to_string();
    let commit = commit_request(&group, (1, &me), &topic, 5);
    let commit: OffsetCommitRequest = commit.with_group_instance_id(Some(text("instance")));
    assert_eq!(wire.call(8, &commit).topics[0].partitions[0].error_code, 0);
    let seen = facts(&mut wire, &group);
    let last = last_group(&seen);
    assert_eq!(
        (last.protocol_type.as_str(), last.generation),
        ("consumer", 1)
    );
    assert_eq!(last.protocol.as_deref(), Some("range"));
    assert_eq!(last.leader.as_ref(), Some(&me));
    assert!(last.state_ms > 1_700_000_000_000);
    let [member] = &last.members[..] else {
        panic!("one member: {last:?}");
    };
    assert_eq!(
        (&member.id, member.instance_id.as_deref()),
        (&me, Some("instance"))
    );
    assert_eq!(member.client_id, "protocol-tests");
    assert_eq!(member.client_host, "/127.0.0.1");
    assert_eq!(
        (member.session_timeout_ms, member.rebalance_timeout_ms),
        (10_000, 10_000)
    );
    assert_eq!(member.subscription, subscription("topic"));
    assert_eq!(member.assignment, b"everything");
    let Some(Fact::Commit(of, 0, Some(commit))) = seen.last() else {
        panic!("the commit came last: {seen:?}");
    };
    assert_eq!((of, commit.offset, commit.leader_epoch), (&topic, 5, -1));
    assert_eq!(commit.metadata, "note");
    assert!(commit.commit_ms > 1_700_000_000_000);
    assert_eq!(commit.topic_id, Some(id));

    assert_eq!(leave(&mut wire, &group, &me), 0);
    let left = last_group(&facts(&mut wire, &group));
    assert_eq!(
        (left.protocol_type.as_str(), left.generation),
        ("consumer", 2)
    );
    assert_eq!(
        (left.protocol, left.leader, left.members),
        (None, None, vec![])
    );
    let partition = OffsetDeleteRequestPartition::default();
    let offsets = OffsetDeleteRequestTopic::default()
        .with_name(topic_name(&topic))
        .with_partitions(vec![partition]);
    let request = OffsetDeleteRequest::default()
        .with_group_id(group_id(&group))
        .with_topics(vec![offsets]);
    assert_eq!(wire.call(0, &request).topics[0].partitions[0].error_code, 0);
    let seen = facts(&mut wire, &group);
    assert_eq!(
        seen.last(),
        Some(&Fact::Commit(topic, 0, None)),
        "a tombstone"
    );
    assert_eq!(delete_group(&mut wire, &group), 0);
    assert_eq!(facts(&mut wire, &group).last(), Some(&Fact::Group(None)));
}

#[test]
fn a_group_is_back_after_a_restart() {
    if foreign().is_some() {
        return;
    }
    let mut server = Server::start();
    let mut wire = Wire::connect(&server.address());
    let topic = new_topic(&mut wire, 1, &[]);
    let group = unique("group");
    let joined = settle(&mut wire, &group);
    let me = joined.member_id.to_string();
    let commit = commit_request(&group, (1, &me), &topic, 5);
    let commit = commit.with_group_instance_id(Some(text("instance")));
    assert_eq!(wire.call(8, &commit).topics[0].partitions[0].error_code, 0);
    let simple = unique("simple");
    let kept = commit_request(&simple, (-1, ""), &topic, 7);
    assert_eq!(wire.call(8, &kept).topics[0].partitions[0].error_code, 0);
    let describe = DescribeGroupsRequest::default().with_groups(vec![group_id(&group)]);
    let before = wire.call(5, &describe).groups.remove(0);
    assert_eq!(before.group_state.as_str(), "Stable");
    server.kill();
    server.start_again();
    let mut wire = Wire::connect(&server.address());
    let after = wait_for("the coordinator serves", || {
        let group = wire.call(5, &describe).groups.remove(0);
        (group.error_code == 0).then_some(group)
    });
    assert_eq!(after, before, "members, their metadata and assignments");
    let beat = heartbeat(&mut wire, &group, 1, &me, Some("instance"));
    assert_eq!(beat, 0, "the member goes on in its generation");
    assert_eq!(committed(&mut wire, &group, &topic).1, 5);
    assert_eq!(committed(&mut wire, &simple, &topic).1, 7);
    let back = join(&mut wire, &group, "", Some("instance"));
    assert_eq!(
        (back.error_code, back.generation_id),
        (0, 1),
        "no rebalance"
    );
}

#[test]
fn commits_run_out_when_their_client_said_so() {
    if foreign().is_some() {
        return;
    }
    let server = Server::with_settings(&["offsets.retention.check.interval.ms=200"]);
    let mut wire = Wire::connect(&server.address());
    let topic = new_topic(&mut wire, 1, &[]);
    let [short, long] = ["short", "long"].map(unique);
    for (group, retention_ms) in [(&short, 1_000), (&long, 3_600_000)] {
        let request = commit_request(group, (-1, ""), &topic, 5);
        let request = request.with_retention_time_ms(retention_ms);
        let code = with_coordinator(|| wire.call(2, &request).topics[0].partitions[0].error_code);
        assert_eq!(code, 0);
    }
    wait_for("the short one runs out, and its group with it", || {
        (state(&mut wire, &short) == "Dead").then_some(())
    });
    assert_eq!(committed(&mut wire, &short, &topic).1, -1);
    assert_eq!(committed(&mut wire, &long, &topic).1, 5);
}
