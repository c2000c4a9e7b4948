//! Requests of group members, as a client would send them.

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    DeleteGroupsRequest, DescribeGroupsRequest, HeartbeatRequest, JoinGroupRequest,
    JoinGroupResponse, LeaveGroupRequest, OffsetCommitRequest, OffsetFetchRequest,
    SyncGroupRequest,
};

use crate::calls::*;
use crate::wait_for;
use crate::wire::Wire;

/// A member without an id is to join with the one in the answer.
pub const MEMBER_ID_REQUIRED: i16 = 79;

/// A consumer's subscription to one topic, as the embedded consumer protocol writes it.
pub fn subscription(topic: &str) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_i16(0);
    bytes.put_i32(1);
    bytes.put_i16(topic.len() as i16);
    bytes.put_slice(topic.as_bytes());
    bytes.put_i32(-1);
    bytes.freeze()
}

/// A JoinGroup of a consumer that reads `topic`.
pub fn join_request(group: &str, member: &str, instance: Option<&str>) -> JoinGroupRequest {
    let protocol = JoinGroupRequestProtocol::default()
        .with_name(text("range"))
        .with_metadata(subscription("topic"));
    JoinGroupRequest::default()
        .with_group_id(group_id(group))
        .with_session_timeout_ms(10_000)
        .with_rebalance_timeout_ms(10_000)
        .with_member_id(text(member))
        .with_group_instance_id(instance.map(text))
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol])
}

/// Joins as a client does: with the member id that the coordinator demands, if it does.
pub fn join(
    wire: &mut Wire,
    group: &str,
    member: &str,
    instance: Option<&str>,
) -> JoinGroupResponse {
    let mut request = join_request(group, member, instance);
    wait_for("the coordinator serves", || {
        let answer = wire.call(5, &request);
        match answer.error_code {
            14..=16 => None,
            MEMBER_ID_REQUIRED => {
                request.member_id = answer.member_id;
                None
            }
            _ => Some(answer),
        }
    })
}

/// A SyncGroup with the leader's shares.
pub fn sync_request(
    group: &str,
    joined: &JoinGroupResponse,
    share: &[(&str, &str)],
) -> SyncGroupRequest {
    let assignment = |(member, bytes): &(&str, &str)| {
        SyncGroupRequestAssignment::default()
            .with_member_id(text(member))
            .with_assignment(Bytes::copy_from_slice(bytes.as_bytes()))
    };
    SyncGroupRequest::default()
        .with_group_id(group_id(group))
        .with_generation_id(joined.generation_id)
        .with_member_id(joined.member_id.clone())
        .with_assignments(share.iter().map(assignment).collect())
}

/// Joins alone and syncs: the group is stable with this one member.
pub fn settle(wire: &mut Wire, group: &str, instance: Option<&str>) -> JoinGroupResponse {
    let joined = join(wire, group, "", instance);
    assert_eq!(joined.error_code, 0);
    let me = joined.member_id.to_string();
    let mut request = sync_request(group, &joined, &[(&me, "everything")]);
    request.group_instance_id = instance.map(text);
    let synced = wire.call(3, &request);
    assert_eq!(
        (synced.error_code, synced.assignment.as_ref()),
        (0, &b"everything"[..])
    );
    joined
}

/// The error of a Heartbeat.
pub fn heartbeat(
    wire: &mut Wire,
    group: &str,
    generation: i32,
    member: &str,
    instance: Option<&str>,
) -> i16 {
    let request = HeartbeatRequest::default()
        .with_group_id(group_id(group))
        .with_generation_id(generation)
        .with_member_id(text(member))
        .with_group_instance_id(instance.map(text));
    wire.call(3, &request).error_code
}

/// The error of a LeaveGroup of one member.
pub fn leave(wire: &mut Wire, group: &str, member: &str) -> i16 {
    let identity = MemberIdentity::default().with_member_id(text(member));
    let request = LeaveGroupRequest::default()
        .with_group_id(group_id(group))
        .with_members(vec![identity]);
    let answer = wire.call(3, &request);
    if answer.error_code != 0 {
        answer.error_code
    } else {
        answer.members[0].error_code
    }
}

/// An OffsetCommit for partition 0, by `(generation, member)`.
pub fn commit_request(
    group: &str,
    who: (i32, &str),
    topic: &str,
    offset: i64,
) -> OffsetCommitRequest {
    let partition = OffsetCommitRequestPartition::default()
        .with_committed_offset(offset)
        .with_committed_leader_epoch(-1)
        .with_committed_metadata(Some(text("note")));
    let topic = OffsetCommitRequestTopic::default()
        .with_name(topic_name(topic))
        .with_partitions(vec![partition]);
    OffsetCommitRequest::default()
        .with_group_id(group_id(group))
        .with_generation_id_or_member_epoch(who.0)
        .with_member_id(text(who.1))
        .with_topics(vec![topic])
}

/// Its error.
pub fn commit(wire: &mut Wire, group: &str, who: (i32, &str), topic: &str, offset: i64) -> i16 {
    let request = commit_request(group, who, topic, offset);
    with_coordinator(|| wire.call(8, &request).topics[0].partitions[0].error_code)
}

/// (error, offset, metadata) of partition 0.
pub fn committed(wire: &mut Wire, group: &str, topic: &str) -> (i16, i64, String) {
    let topic = OffsetFetchRequestTopic::default()
        .with_name(topic_name(topic))
        .with_partition_indexes(vec![0]);
    let request = OffsetFetchRequest::default()
        .with_group_id(group_id(group))
        .with_topics(Some(vec![topic]));
    wait_for("the coordinator serves", || {
        let mut answer = wire.call(7, &request);
        if (14..=16).contains(&answer.error_code) {
            return None;
        }
        assert_eq!(answer.error_code, 0);
        let partition = answer.topics.remove(0).partitions.remove(0);
        let metadata = partition.metadata.unwrap_or_default().to_string();
        Some((partition.error_code, partition.committed_offset, metadata))
    })
}

/// A group's state as DescribeGroups tells it.
pub fn state(wire: &mut Wire, group: &str) -> String {
    let request = DescribeGroupsRequest::default().with_groups(vec![group_id(group)]);
    wait_for("the coordinator serves", || {
        let group = wire.call(4, &request).groups.remove(0);
        (!(14..=16).contains(&group.error_code)).then(|| group.group_state.to_string())
    })
}

/// The error of a DeleteGroups.
pub fn delete_group(wire: &mut Wire, group: &str) -> i16 {
    let request = DeleteGroupsRequest::default().with_groups_names(vec![group_id(group)]);
    with_coordinator(|| wire.call(1, &request).results[0].error_code)
}
