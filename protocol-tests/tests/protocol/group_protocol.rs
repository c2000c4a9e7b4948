//! The classic group protocol in depth: kinds of groups, the vote, static members, time-outs, and
//! deleting commits.

use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka_protocol::messages::describe_groups_response::DescribedGroup;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    DescribeGroupsRequest, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest,
    OffsetDeleteRequest, SyncGroupRequest, SyncGroupResponse,
};
use protocol_tests::calls::*;
use protocol_tests::groups::*;
use protocol_tests::wire::{Pending, Wire};
use protocol_tests::{unique, wait_for};

const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const INCONSISTENT_GROUP_PROTOCOL: i16 = 23;
const UNKNOWN_MEMBER_ID: i16 = 25;
const REBALANCE_IN_PROGRESS: i16 = 27;
const NON_EMPTY_GROUP: i16 = 68;
const GROUP_ID_NOT_FOUND: i16 = 69;
const FENCED_INSTANCE_ID: i16 = 82;
const GROUP_SUBSCRIBED_TO_TOPIC: i16 = 86;

/// One client and what it last heard.
struct Client {
    wire: Wire,
    request: JoinGroupRequest,
    joined: JoinGroupResponse,
}

impl Client {
    fn new(request: JoinGroupRequest) -> Client {
        let (wire, joined) = (Wire::open(), JoinGroupResponse::default());
        Client {
            wire,
            request,
            joined,
        }
    }

    fn consumer(group: &str) -> Client {
        Client::new(join_request(group, "", None))
    }

    fn fixed(group: &str, instance: &str) -> Client {
        Client::new(join_request(group, "", Some(instance)))
    }

    /// Sends a JoinGroup with the id it has, or one that the coordinator gives it first.
    fn send_join(&mut self) -> Pending<JoinGroupRequest> {
        if self.request.member_id.is_empty() && self.request.group_instance_id.is_none() {
            let given = wait_for("the coordinator serves", || {
                let answer = self.wire.call(9, &self.request);
                (!(14..=16).contains(&answer.error_code)).then_some(answer)
            });
            assert_eq!(given.error_code, MEMBER_ID_REQUIRED);
            self.request.member_id = given.member_id;
        }
        self.wire.send(9, &self.request)
    }

    fn receive_join(&mut self, pending: Pending<JoinGroupRequest>) -> i16 {
        let answer = self.wire.receive(pending);
        if answer.error_code == 0 {
            self.request.member_id = answer.member_id.clone();
            self.joined = answer;
            return 0;
        }
        answer.error_code
    }

    fn join(&mut self) -> i16 {
        with_coordinator(|| {
            let pending = self.send_join();
            self.receive_join(pending)
        })
    }

    /// Its SyncGroup; a leader gives every member `share`.
    fn sync_request(&self, share: &str) -> SyncGroupRequest {
        let give = |member: &kafka_protocol::protocol::StrBytes| {
            SyncGroupRequestAssignment::default()
                .with_member_id(member.clone())
                .with_assignment(Bytes::copy_from_slice(share.as_bytes()))
        };
        let members = self.joined.members.iter().map(|m| give(&m.member_id));
        SyncGroupRequest::default()
            .with_group_id(self.request.group_id.clone())
            .with_generation_id(self.joined.generation_id)
            .with_member_id(self.request.member_id.clone())
            .with_group_instance_id(self.request.group_instance_id.clone())
            .with_protocol_type(self.joined.protocol_type.clone())
            .with_protocol_name(self.joined.protocol_name.clone())
            .with_assignments(members.collect())
    }

    fn sync(&mut self) -> SyncGroupResponse {
        let request = self.sync_request("share");
        self.wire.call(5, &request)
    }

    /// Joins a group in which nobody else is, and settles there.
    fn settle(mut self) -> Client {
        assert_eq!(self.join(), 0);
        assert_eq!(self.sync().error_code, 0);
        self
    }

    fn heartbeat(&mut self) -> i16 {
        let group = self.request.group_id.0.to_string();
        let instance = self.request.group_instance_id.clone();
        heartbeat(
            &mut self.wire,
            &group,
            self.joined.generation_id,
            &self.request.member_id.clone(),
            instance.as_deref(),
        )
    }

    fn leave_as(&mut self, member: &str, instance: Option<&str>) -> i16 {
        let identity = MemberIdentity::default()
            .with_member_id(text(member))
            .with_group_instance_id(instance.map(text));
        let request = LeaveGroupRequest::default()
            .with_group_id(self.request.group_id.clone())
            .with_members(vec![identity]);
        let answer = self.wire.call(5, &request);
        assert_eq!(answer.error_code, 0);
        assert_eq!(answer.members[0].member_id.as_str(), member);
        answer.members[0].error_code
    }

    fn await_rebalance(&mut self) {
        wait_for("the member hears of a rebalance", || {
            (self.heartbeat() == REBALANCE_IN_PROGRESS).then_some(())
        });
    }
}

fn speaks(names: &[&str]) -> Vec<JoinGroupRequestProtocol> {
    let protocol = |name: &&str| {
        JoinGroupRequestProtocol::default()
            .with_name(text(name))
            .with_metadata(Bytes::copy_from_slice(format!("of {name}").as_bytes()))
    };
    names.iter().map(protocol).collect()
}

fn describe(wire: &mut Wire, group: &str) -> DescribedGroup {
    let request = DescribeGroupsRequest::default().with_groups(vec![group_id(group)]);
    wire.call(5, &request).groups.remove(0)
}

/// Error of the whole request, then those of the partitions.
fn delete_offsets(
    wire: &mut Wire,
    group: &str,
    topic: &str,
    partitions: &[i32],
) -> (i16, Vec<i16>) {
    let partition =
        |index: &i32| OffsetDeleteRequestPartition::default().with_partition_index(*index);
    let topic = OffsetDeleteRequestTopic::default()
        .with_name(topic_name(topic))
        .with_partitions(partitions.iter().map(partition).collect());
    let request = OffsetDeleteRequest::default()
        .with_group_id(group_id(group))
        .with_topics(vec![topic]);
    let mut answer = wire.call(0, &request);
    with_coordinator(|| {
        answer = wire.call(0, &request);
        answer.error_code
    });
    let partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
    let mut errors: Vec<_> = partitions
        .map(|p| (p.partition_index, p.error_code))
        .collect();
    errors.sort_unstable();
    let errors = errors.into_iter().map(|(_, error)| error);
    (answer.error_code, errors.collect())
}

#[test]
fn commits_of_an_empty_group_can_be_deleted() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 2, &[]);
    let group = unique("group");
    let missing = (GROUP_ID_NOT_FOUND, vec![]);
    assert_eq!(delete_offsets(&mut wire, &group, &topic, &[0]), missing);
    assert_eq!(
        delete_offsets(&mut wire, &group, &unique("no"), &[0]),
        missing
    );
    assert_eq!(delete_offsets(&mut wire, "", &topic, &[0]).0, 24);
    assert_eq!(commit(&mut wire, &group, (-1, ""), &topic, 5), 0);
    assert_eq!(
        delete_offsets(&mut wire, &group, &topic, &[0, 1, 7]),
        (0, vec![0, 0, UNKNOWN_TOPIC_OR_PARTITION])
    );
    assert_eq!(committed(&mut wire, &group, &topic).1, -1);
    assert_eq!(
        delete_offsets(&mut wire, &group, &unique("no"), &[0]),
        (0, vec![UNKNOWN_TOPIC_OR_PARTITION]),
        "the group is still there"
    );
    assert_eq!(delete_group(&mut wire, &group), 0);
}

#[test]
fn commits_of_what_a_group_reads_can_not_be_deleted() {
    let mut wire = Wire::open();
    let [read, left] = [0, 1].map(|_| new_topic(&mut wire, 1, &[]));
    let group = unique("group");
    let mut client = Client::consumer(&group);
    client.request.protocols[0].metadata = subscription(&read);
    let mut client = client.settle();
    let who = (1, client.request.member_id.to_string());
    for topic in [&read, &left] {
        assert_eq!(commit(&mut wire, &group, (who.0, &who.1), topic, 5), 0);
    }
    assert_eq!(
        delete_offsets(&mut wire, &group, &read, &[0]),
        (0, vec![GROUP_SUBSCRIBED_TO_TOPIC])
    );
    assert_eq!(delete_offsets(&mut wire, &group, &left, &[0]), (0, vec![0]));
    assert_eq!(committed(&mut wire, &group, &read).1, 5);
    assert_eq!(committed(&mut wire, &group, &left).1, -1);
    assert_eq!(client.leave_as(&who.1, None), 0);
    assert_eq!(delete_offsets(&mut wire, &group, &read, &[0]), (0, vec![0]));
    assert_eq!(committed(&mut wire, &group, &read).1, -1);
}

#[test]
fn groups_of_any_kind_are_served() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    for (kind, protocol) in [("connect", "sessioned"), ("sr", "v0")] {
        let group = unique(kind);
        let mut client = Client::consumer(&group);
        client.request.protocol_type = text(kind);
        client.request.protocols = speaks(&[protocol]);
        let mut client = client.settle();
        assert_eq!(client.joined.protocol_type.as_deref(), Some(kind));
        assert_eq!(client.joined.protocol_name.as_deref(), Some(protocol));
        let described = describe(&mut wire, &group);
        assert_eq!(described.protocol_type.as_str(), kind);
        assert_eq!(described.protocol_data.as_str(), protocol);
        let member = &described.members[0];
        assert_eq!(member.member_metadata, format!("of {protocol}").as_bytes());
        assert_eq!(member.member_assignment, &b"share"[..]);
        let me = client.request.member_id.to_string();
        assert_eq!(commit(&mut wire, &group, (1, &me), &topic, 5), 0);
        assert_eq!(
            delete_offsets(&mut wire, &group, &topic, &[0]),
            (NON_EMPTY_GROUP, vec![]),
            "what such a group reads is not known"
        );
        let mut other = Client::consumer(&group);
        other.request.member_id = text("");
        let refused = other.wire.call(9, &other.request);
        assert_eq!(refused.error_code, INCONSISTENT_GROUP_PROTOCOL);
        assert_eq!(client.leave_as(&me, None), 0);
        assert_eq!(describe(&mut wire, &group).protocol_type.as_str(), kind);
        let other = other.settle();
        assert_eq!(other.joined.protocol_type.as_deref(), Some("consumer"));
    }
}

/// Lets clients join one group together and gives back the protocol they got.
fn vote(preferences: &[&[&str]]) -> String {
    let group = unique("vote");
    let mut clients: Vec<_> = preferences
        .iter()
        .map(|_| Client::consumer(&group))
        .collect();
    let mut waiting = Vec::new();
    for (client, names) in clients.iter_mut().zip(preferences) {
        client.request.protocols = speaks(names);
        waiting.push(client.send_join());
    }
    let mut chosen = Vec::new();
    for (client, pending) in clients.iter_mut().zip(waiting) {
        assert_eq!(client.receive_join(pending), 0);
        assert_eq!(client.joined.generation_id, 1, "all in one generation");
        chosen.push(
            client
                .joined
                .protocol_name
                .clone()
                .expect("a protocol")
                .to_string(),
        );
    }
    chosen.dedup();
    assert_eq!(chosen.len(), 1, "everybody hears the same: {chosen:?}");
    let leader = clients
        .iter()
        .find(|c| !c.joined.members.is_empty())
        .expect("a leader");
    assert_eq!(leader.joined.members.len(), preferences.len());
    let metadata = format!("of {}", chosen[0]);
    assert!(
        leader
            .joined
            .members
            .iter()
            .all(|m| m.metadata == metadata.as_bytes())
    );
    chosen.remove(0)
}

#[test]
fn most_members_choose_among_the_protocols_that_all_know() {
    assert_eq!(vote(&[&["a", "b"], &["b", "a"], &["b", "a"]]), "b");
    assert_eq!(vote(&[&["c", "a"], &["c", "b", "a"], &["a"]]), "a");
    assert_eq!(vote(&[&["a", "b"], &["b", "a"]]).len(), 1);
}

#[test]
fn members_that_start_together_meet_in_one_generation() {
    let group = unique("group");
    let (mut first, mut second) = (Client::consumer(&group), Client::consumer(&group));
    let start = Instant::now();
    let one = first.send_join();
    std::thread::sleep(Duration::from_millis(1_500));
    let two = second.send_join();
    assert_eq!((first.receive_join(one), second.receive_join(two)), (0, 0));
    assert!(
        start.elapsed() >= Duration::from_millis(3_000),
        "group.initial.rebalance.delay.ms"
    );
    assert_eq!(
        (first.joined.generation_id, second.joined.generation_id),
        (1, 1)
    );
    assert_eq!(first.joined.leader, second.joined.leader);
}

#[test]
fn a_member_that_does_not_join_again_in_time_is_left_behind() {
    let group = unique("group");
    let mut slow = Client::consumer(&group);
    slow.request.rebalance_timeout_ms = 2_000;
    let mut slow = slow.settle();
    let mut quick = Client::consumer(&group);
    quick.request.rebalance_timeout_ms = 2_000;
    let pending = quick.send_join();
    slow.await_rebalance();
    let start = Instant::now();
    assert_eq!(quick.receive_join(pending), 0);
    assert!(start.elapsed() > Duration::from_millis(1_000));
    assert_eq!(
        (quick.joined.generation_id, quick.joined.members.len()),
        (2, 1)
    );
    assert_eq!(slow.heartbeat(), UNKNOWN_MEMBER_ID);
    assert_eq!(slow.join(), UNKNOWN_MEMBER_ID);
}

#[test]
fn a_static_member_that_does_not_join_again_keeps_its_place() {
    let group = unique("group");
    let mut slow = Client::fixed(&group, "slow");
    slow.request.rebalance_timeout_ms = 2_000;
    let mut slow = slow.settle();
    let mut quick = Client::consumer(&group);
    quick.request.rebalance_timeout_ms = 2_000;
    let pending = quick.send_join();
    slow.await_rebalance();
    assert_eq!(quick.receive_join(pending), 0);
    assert_eq!(
        (quick.joined.generation_id, quick.joined.members.len()),
        (2, 2)
    );
    assert_eq!(
        quick.joined.leader, quick.request.member_id,
        "a leader that is there"
    );
}

#[test]
fn a_leader_that_does_not_sync_is_removed() {
    let group = unique("group");
    let mut clients = [0, 1].map(|_| Client::consumer(&group));
    let waiting = clients.each_mut().map(|client| {
        client.request.rebalance_timeout_ms = 2_000;
        client.send_join()
    });
    for (client, pending) in clients.iter_mut().zip(waiting) {
        assert_eq!(client.receive_join(pending), 0);
    }
    let [mut leader, mut follower] = clients;
    if leader.joined.members.is_empty() {
        std::mem::swap(&mut leader, &mut follower);
    }
    let start = Instant::now();
    assert_eq!(follower.sync().error_code, REBALANCE_IN_PROGRESS);
    assert!(start.elapsed() > Duration::from_millis(1_000));
    assert_eq!(leader.heartbeat(), UNKNOWN_MEMBER_ID);
    assert_eq!(follower.join(), 0);
    assert_eq!(
        (follower.joined.generation_id, follower.joined.members.len()),
        (2, 1)
    );
}

#[test]
fn a_static_member_leaves_by_its_instance_id() {
    let group = unique("group");
    let mut client = Client::fixed(&group, "instance").settle();
    let me = client.request.member_id.to_string();
    assert_eq!(client.leave_as("", Some("nobody")), UNKNOWN_MEMBER_ID);
    assert_eq!(
        client.leave_as("stranger", Some("instance")),
        FENCED_INSTANCE_ID
    );
    assert_eq!(client.leave_as("stranger", None), UNKNOWN_MEMBER_ID);
    assert_eq!(client.leave_as(&me, Some("other")), UNKNOWN_MEMBER_ID);
    assert_eq!(client.leave_as("", Some("instance")), 0);
    assert_eq!(client.heartbeat(), UNKNOWN_MEMBER_ID);
    assert_eq!(
        describe(&mut client.wire, &group).group_state.as_str(),
        "Empty"
    );
}

#[test]
fn whoever_acts_as_a_static_member_that_was_replaced_is_fenced() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    let group = unique("group");
    let mut old = Client::fixed(&group, "instance").settle();
    let mut new = Client::fixed(&group, "instance");
    assert_eq!(new.join(), 0);
    assert_eq!(
        new.joined.generation_id, old.joined.generation_id,
        "no rebalance"
    );
    assert!(
        new.joined.skip_assignment,
        "the leader is back, its assignment stands"
    );
    assert_eq!(new.joined.members.len(), 1);
    assert_eq!(
        new.sync().assignment,
        &b"share"[..],
        "what its former self had"
    );
    assert_eq!(old.heartbeat(), FENCED_INSTANCE_ID);
    assert_eq!(old.sync().error_code, FENCED_INSTANCE_ID);
    let pending = old.send_join();
    assert_eq!(old.receive_join(pending), FENCED_INSTANCE_ID);
    let id = old.request.member_id.to_string();
    assert_eq!(old.leave_as(&id, Some("instance")), FENCED_INSTANCE_ID);
    let stale =
        commit_request(&group, (1, &id), &topic, 5).with_group_instance_id(Some(text("instance")));
    let answer = wire.call(8, &stale);
    assert_eq!(
        answer.topics[0].partitions[0].error_code,
        FENCED_INSTANCE_ID
    );
    assert_eq!(new.heartbeat(), 0);
}

#[test]
fn a_static_member_that_waits_is_fenced_by_its_successor() {
    let group = unique("group");
    let mut old = Client::fixed(&group, "instance");
    let pending = old.send_join();
    let mut new = Client::fixed(&group, "instance");
    wait_for("the first is known", || {
        let state = state(&mut new.wire, &group);
        (state == "PreparingRebalance").then_some(())
    });
    let newer = new.send_join();
    assert_eq!(old.receive_join(pending), FENCED_INSTANCE_ID);
    assert_eq!(new.receive_join(newer), 0);
    assert_eq!((new.joined.generation_id, new.joined.members.len()), (1, 1));
}

#[test]
fn a_static_member_that_returns_with_other_protocols_starts_a_rebalance() {
    let group = unique("group");
    let mut old = Client::fixed(&group, "instance");
    old.request.protocols = speaks(&["range", "sticky"]);
    let old = old.settle();
    let mut new = Client::fixed(&group, "instance");
    new.request.protocols = speaks(&["range", "sticky"]);
    new.request.protocols[0].metadata = subscription("another topic");
    assert_eq!(new.join(), 0);
    assert_eq!(
        new.joined.generation_id, old.joined.generation_id,
        "the vote comes to the same"
    );
    let mut newer = Client::fixed(&group, "instance");
    newer.request.protocols = speaks(&["sticky"]);
    assert_eq!(newer.join(), 0);
    assert_eq!(newer.joined.generation_id, old.joined.generation_id + 1);
    assert_eq!(newer.joined.protocol_name.as_deref(), Some("sticky"));
}
