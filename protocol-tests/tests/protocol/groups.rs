//! Consumer groups: the classic protocol, static members, commits, and what tools see of them.

use std::time::{Duration, Instant};

use kafka_protocol::messages::ListGroupsRequest;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use protocol_tests::calls::*;
use protocol_tests::client::{self, Seen};
use protocol_tests::groups::*;
use protocol_tests::wire::Wire;
use protocol_tests::{bootstrap, unique, wait_for};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};

const ILLEGAL_GENERATION: i16 = 22;
const INCONSISTENT_GROUP_PROTOCOL: i16 = 23;
const UNKNOWN_MEMBER_ID: i16 = 25;
const INVALID_SESSION_TIMEOUT: i16 = 26;
const REBALANCE_IN_PROGRESS: i16 = 27;
const NON_EMPTY_GROUP: i16 = 68;
const GROUP_ID_NOT_FOUND: i16 = 69;
const FENCED_INSTANCE_ID: i16 = 82;

#[test]
fn a_member_without_an_id_is_given_one_and_joins_with_it() {
    let mut wire = Wire::open();
    let group = unique("group");
    let request = join_request(&group, "", None);
    let first = wait_for("the coordinator serves", || {
        let answer = wire.call(5, &request);
        (!(14..=16).contains(&answer.error_code)).then_some(answer)
    });
    assert_eq!(first.error_code, MEMBER_ID_REQUIRED);
    assert!(!first.member_id.is_empty());
    let joined = join(&mut wire, &group, &first.member_id, None);
    assert_eq!((joined.error_code, joined.generation_id), (0, 1));
    assert_eq!(joined.member_id, first.member_id);
    assert_eq!(joined.leader, joined.member_id, "the only member leads");
    assert_eq!(joined.members.len(), 1);
    assert_eq!(joined.members[0].metadata, subscription("topic"));
}

#[test]
fn a_second_member_makes_the_first_rejoin_and_both_get_what_the_leader_says() {
    let group = unique("group");
    let mut first_wire = Wire::open();
    let first = settle(&mut first_wire, &group, None);
    let first_id = first.member_id.to_string();
    let newcomer = std::thread::spawn({
        let group = group.clone();
        move || {
            let mut wire = Wire::open();
            let joined = join(&mut wire, &group, "", None);
            let synced = wire.call(3, &sync_request(&group, &joined, &[]));
            (joined, synced)
        }
    });
    wait_for("the first member hears of the rebalance", || {
        let code = heartbeat(
            &mut first_wire,
            &group,
            first.generation_id,
            &first_id,
            None,
        );
        (code == REBALANCE_IN_PROGRESS).then_some(())
    });
    let again = join(&mut first_wire, &group, &first_id, None);
    assert_eq!(
        (again.error_code, again.generation_id),
        (0, first.generation_id + 1)
    );
    assert_eq!(again.members.len(), 2, "the leader sees both");
    let other = again
        .members
        .iter()
        .find(|member| *member.member_id != first_id);
    let other = other.expect("the newcomer").member_id.to_string();
    let share = [(first_id.as_str(), "left"), (other.as_str(), "right")];
    let synced = first_wire.call(3, &sync_request(&group, &again, &share));
    assert_eq!(
        (synced.error_code, synced.assignment.as_ref()),
        (0, &b"left"[..])
    );
    let (joined, synced) = newcomer.join().expect("the newcomer's thread");
    assert_eq!(joined.generation_id, again.generation_id);
    assert!(
        joined.members.is_empty(),
        "only the leader sees the members"
    );
    assert_eq!(
        (synced.error_code, synced.assignment.as_ref()),
        (0, &b"right"[..])
    );
    let stale = heartbeat(
        &mut first_wire,
        &group,
        first.generation_id,
        &first_id,
        None,
    );
    assert_eq!(stale, ILLEGAL_GENERATION);
}

#[test]
fn a_static_member_that_comes_back_keeps_the_generation_and_fences_its_old_self() {
    let mut wire = Wire::open();
    let group = unique("group");
    let first = settle(&mut wire, &group, Some("instance"));
    let old = first.member_id.to_string();
    assert_eq!(
        heartbeat(
            &mut wire,
            &group,
            first.generation_id,
            &old,
            Some("instance")
        ),
        0
    );
    let back = join(&mut wire, &group, "", Some("instance"));
    assert_eq!(back.error_code, 0);
    assert_eq!(back.generation_id, first.generation_id, "no rebalance");
    assert_ne!(back.member_id, first.member_id, "a new member id");
    let fenced = heartbeat(
        &mut wire,
        &group,
        first.generation_id,
        &old,
        Some("instance"),
    );
    assert_eq!(fenced, FENCED_INSTANCE_ID);
    let new = back.member_id.to_string();
    assert_eq!(
        heartbeat(
            &mut wire,
            &group,
            back.generation_id,
            &new,
            Some("instance")
        ),
        0
    );
}

#[test]
fn session_timeouts_have_bounds() {
    let mut wire = Wire::open();
    let group = unique("group");
    for timeout in [100, 5_999, 1_800_001, 3_600_000] {
        let request = join_request(&group, "", None).with_session_timeout_ms(timeout);
        let code = with_coordinator(|| wire.call(5, &request).error_code);
        assert_eq!(code, INVALID_SESSION_TIMEOUT, "{timeout} ms");
    }
    assert_eq!(state(&mut wire, &group), "Dead", "the group was never made");
}

#[test]
fn a_member_that_falls_silent_is_removed() {
    let mut wire = Wire::open();
    let group = unique("group");
    let mut request = join_request(&group, "", None).with_session_timeout_ms(6_000);
    let joined = wait_for("joined", || {
        let answer = wire.call(5, &request);
        request.member_id = answer.member_id.clone();
        (answer.error_code == 0).then_some(answer)
    });
    let me = joined.member_id.to_string();
    let synced = wire.call(3, &sync_request(&group, &joined, &[(&me, "all")]));
    assert_eq!(synced.error_code, 0);
    let start = Instant::now();
    assert_eq!(state(&mut wire, &group), "Stable");
    wait_for("the silent member is gone", || {
        (state(&mut wire, &group) == "Empty").then_some(())
    });
    assert!(
        start.elapsed() > Duration::from_secs(4),
        "not before its session is over"
    );
    let gone = heartbeat(&mut wire, &group, joined.generation_id, &me, None);
    assert_eq!(gone, UNKNOWN_MEMBER_ID);
}

#[test]
fn members_must_have_a_protocol_in_common() {
    let mut wire = Wire::open();
    let group = unique("group");
    settle(&mut wire, &group, None);
    let other = JoinGroupRequestProtocol::default().with_name(text("other"));
    let request = join_request(&group, "", None).with_protocols(vec![other]);
    assert_eq!(
        wire.call(5, &request).error_code,
        INCONSISTENT_GROUP_PROTOCOL
    );
}

#[test]
fn commits_without_a_member_make_a_simple_group() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    let group = unique("group");
    assert_eq!(
        committed(&mut wire, &group, &topic),
        (0, -1, String::new()),
        "unknown group"
    );
    assert_eq!(
        commit(&mut wire, &group, (-1, ""), &topic, 5),
        0,
        "unknown group"
    );
    assert_eq!(
        commit(&mut wire, &group, (-1, ""), &topic, 7),
        0,
        "empty group"
    );
    assert_eq!(
        committed(&mut wire, &group, &topic),
        (0, 7, "note".to_owned())
    );
    assert_eq!(state(&mut wire, &group), "Empty");
    let listed = wire.call(4, &ListGroupsRequest::default());
    assert!(
        listed
            .groups
            .iter()
            .any(|listed| *listed.group_id.0 == *group)
    );
    settle(&mut wire, &group, None);
    let alive = commit(&mut wire, &group, (-1, ""), &topic, 9);
    assert_eq!(alive, UNKNOWN_MEMBER_ID, "not beside a live member");
    assert_eq!(committed(&mut wire, &group, &topic).1, 7);
}

#[test]
fn commits_of_members_need_their_generation() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    let group = unique("group");
    let joined = settle(&mut wire, &group, None);
    let me = joined.member_id.to_string();
    let generation = joined.generation_id;
    assert_eq!(commit(&mut wire, &group, (generation, &me), &topic, 3), 0);
    let stale = commit(&mut wire, &group, (generation + 1, &me), &topic, 4);
    assert_eq!(stale, ILLEGAL_GENERATION);
    let stranger = commit(&mut wire, &group, (generation, "stranger"), &topic, 5);
    assert_eq!(stranger, UNKNOWN_MEMBER_ID);
    assert_eq!(committed(&mut wire, &group, &topic).1, 3);
}

#[test]
fn a_group_is_deleted_only_when_empty() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    let group = unique("group");
    assert_eq!(delete_group(&mut wire, &group), GROUP_ID_NOT_FOUND);
    let joined = settle(&mut wire, &group, None);
    let me = joined.member_id.to_string();
    assert_eq!(
        commit(&mut wire, &group, (joined.generation_id, &me), &topic, 3),
        0
    );
    assert_eq!(delete_group(&mut wire, &group), NON_EMPTY_GROUP);
    assert_eq!(leave(&mut wire, &group, &me), 0);
    assert_eq!(leave(&mut wire, &group, &me), UNKNOWN_MEMBER_ID);
    assert_eq!(delete_group(&mut wire, &group), 0);
    assert_eq!(committed(&mut wire, &group, &topic).1, -1);
    assert_eq!(state(&mut wire, &group), "Dead");
}

#[test]
fn a_recreated_topic_has_no_commits() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    let group = unique("group");
    assert_eq!(commit(&mut wire, &group, (-1, ""), &topic, 5), 0);
    let old = describe_topic(&mut wire, &topic).topic_id;
    assert_eq!(delete_topic(&mut wire, &topic), 0);
    assert_eq!(create_topic(&mut wire, &topic, 1, &[]), 0);
    wait_for("the new topic is shown", || {
        let shown = describe_topic(&mut wire, &topic);
        (shown.error_code == 0 && shown.topic_id != old).then_some(())
    });
    wait_for("the old commit counts as none", || {
        (committed(&mut wire, &group, &topic).1 == -1).then_some(())
    });
}

/// Polls both members until `enough` holds for what they saw together.
fn poll_both(
    members: [&BaseConsumer; 2],
    seen: &mut [Vec<Seen>; 2],
    enough: impl Fn(usize) -> bool,
) {
    wait_for("the members see their records", || {
        for (member, seen) in members.into_iter().zip(seen.iter_mut()) {
            client::poll_once(member, seen);
        }
        enough(seen[0].len() + seen[1].len()).then_some(())
    });
}

fn share_partitions(strategy: &str) {
    let bootstrap = bootstrap();
    let topic = new_topic(&mut Wire::open(), 6, &[]);
    let group = unique("group");
    let properties = [("partition.assignment.strategy", strategy)];
    let one = client::member(&bootstrap, &group, &topic, &properties);
    let two = client::member(&bootstrap, &group, &topic, &properties);
    let mut seen = [Vec::new(), Vec::new()];
    wait_for("both members have half of the partitions", || {
        client::poll_once(&one, &mut seen[0]);
        client::poll_once(&two, &mut seen[1]);
        let shares = [&one, &two].map(|m| m.assignment().map_or(0, |a| a.count()));
        (shares == [3, 3]).then_some(())
    });
    let producer = client::producer(&bootstrap, &[]);
    for partition in 0..6 {
        let values: Vec<_> = (0..50)
            .map(|i| format!("{partition}/{i}").into_bytes())
            .collect();
        client::produce_values(&producer, &topic, partition, &values);
    }
    poll_both([&one, &two], &mut seen, |count| count >= 300);
    assert!(
        seen.iter().all(|seen| seen.len() == 150),
        "each sees its half"
    );
    let mut all: Vec<_> = seen
        .concat()
        .into_iter()
        .map(|s| (s.partition, s.offset))
        .collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 300, "every record once");
    one.commit_consumer_state(CommitMode::Sync).expect("commit");
    two.commit_consumer_state(CommitMode::Sync).expect("commit");
    drop(one);
    wait_for("the member that stays has all partitions", || {
        client::poll_once(&two, &mut seen[1]);
        (two.assignment().map_or(0, |a| a.count()) == 6).then_some(())
    });
    client::produce_values(&producer, &topic, 0, &[b"late".to_vec()]);
    let before = seen[1].len();
    client::poll_until(&two, &mut seen[1], |seen| seen.len() > before);
    assert_eq!(
        seen[1][before].value, b"late",
        "it goes on where the other committed"
    );
}

#[test]
fn two_members_share_the_partitions_and_one_takes_over() {
    share_partitions("range");
}

#[test]
fn two_members_share_the_partitions_cooperatively() {
    share_partitions("cooperative-sticky");
}

#[test]
fn a_group_goes_on_where_it_committed() {
    let bootstrap = bootstrap();
    let topic = new_topic(&mut Wire::open(), 1, &[]);
    let group = unique("group");
    let values: Vec<_> = (0..100).map(|i| format!("{i}").into_bytes()).collect();
    client::produce_values(&client::producer(&bootstrap, &[]), &topic, 0, &values);
    let first = client::member(
        &bootstrap,
        &group,
        &topic,
        &[("enable.auto.offset.store", "false")],
    );
    let mut seen = Vec::new();
    client::poll_until(&first, &mut seen, |seen| seen.len() >= 40);
    first
        .store_offset(&topic, 0, seen[39].offset)
        .expect("store");
    first
        .commit_consumer_state(CommitMode::Sync)
        .expect("commit");
    drop(first);
    let second = client::member(&bootstrap, &group, &topic, &[]);
    let mut rest = Vec::new();
    client::poll_until(&second, &mut rest, |seen| seen.len() >= 60);
    assert_eq!((rest[0].offset, rest.len()), (40, 60));
}

#[test]
fn members_that_vanish_while_joining_do_not_hold_the_group_up() {
    let mut wire = Wire::open();
    let group = unique("group");
    let mut generation = settle(&mut wire, &group, None);
    let me = generation.member_id.to_string();
    for round in 0..3 {
        let mut ghost = Wire::open();
        let mut request = join_request(&group, "", None).with_session_timeout_ms(6_000);
        request.member_id = ghost.call(5, &request).member_id;
        ghost.send(5, &request);
        drop(ghost);
        wait_for("the rebalance is known", || {
            let code = heartbeat(&mut wire, &group, generation.generation_id, &me, None);
            (code == REBALANCE_IN_PROGRESS).then_some(())
        });
        generation = join(&mut wire, &group, &me, None);
        assert_eq!(generation.error_code, 0, "round {round}");
        let synced = wire.call(3, &sync_request(&group, &generation, &[(&me, "all")]));
        assert_eq!(synced.error_code, 0, "round {round}");
    }
    wait_for("only the living member is left", || {
        let code = heartbeat(&mut wire, &group, generation.generation_id, &me, None);
        if code == REBALANCE_IN_PROGRESS {
            generation = join(&mut wire, &group, &me, None);
            wire.call(3, &sync_request(&group, &generation, &[(&me, "all")]));
            return None;
        }
        (generation.members.len() == 1).then_some(())
    });
    assert_eq!(state(&mut wire, &group), "Stable");
}
