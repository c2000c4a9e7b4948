//! A member of a consumer group, as a client library is one: it joins, the leader assigns, it
//! commits what it owns, it falls silent, it leaves, it comes back.
//!
//! What members were told is compared here: no two of one generation own a partition, a generation
//! that anybody works in is one group of members for ever, and an offset that was acknowledged is
//! never shown as an older one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    GroupId, HeartbeatRequest, HeartbeatResponse, JoinGroupRequest, JoinGroupResponse,
    LeaveGroupRequest, OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest,
    OffsetFetchResponse, SyncGroupRequest, SyncGroupResponse, TopicName,
};
use kafka_protocol::protocol::StrBytes;

use super::asked::{Asked, Request, error_of};
use super::{LinkId, Told, Who, open, send};
use crate::clock::Clock;
use crate::protocol::error::ErrorCode;
use crate::sim::seen::Branch;
use crate::sim::world::World;

/// Groups with members.
pub(in crate::sim) const GROUPS: [&str; 2] = ["m0", "m1"];
const SESSION_MS: i32 = 2_500;
const REBALANCE_MS: i32 = 1_500;

/// A partition as members name it.
type Place = (String, i32);

/// What a member is about to do.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Want {
    Join,
    /// With the members that it assigns to, if it leads.
    Sync(Option<Vec<(String, String)>>),
    Work,
}

/// A member.
pub(in crate::sim) struct Member {
    group: &'static str,
    /// What others know it by: its own alone, or that of its instance.
    name: String,
    instance: Option<String>,
    link: Option<LinkId>,
    waits: bool,
    id: String,
    generation: i32,
    want: Want,
    /// What it owns, and the offset that it commits next; `None` before it has asked.
    owned: BTreeMap<Place, Option<i64>>,
    silent_until: Duration,
    /// Starts of the process when it got its generation.
    since: u64,
}

impl Member {
    pub(in crate::sim) fn new(number: usize) -> Self {
        let is_static = number % 3 == 2;
        let name = format!("n{number}");
        Self {
            group: GROUPS[number % GROUPS.len()],
            instance: is_static.then(|| name.clone()),
            name,
            link: None,
            waits: false,
            id: String::new(),
            generation: -1,
            want: Want::Join,
            owned: BTreeMap::new(),
            silent_until: Duration::ZERO,
            since: 0,
        }
    }

    pub(super) fn cut(&mut self) {
        (self.link, self.waits) = (None, false);
    }

    /// Whether it has this connection.
    pub(super) fn is_on(&self, link: LinkId) -> bool {
        self.link == Some(link)
    }

    fn join_again(&mut self, keeps_id: bool) {
        self.want = Want::Join;
        self.owned.clear();
        self.generation = -1;
        if !keeps_id {
            self.id.clear();
        }
    }
}

/// Each member may have a turn.
pub(in crate::sim) fn run(world: &mut World) {
    for i in 0..world.net.members.len() {
        if world.random.one_in(2) {
            turn(world, i);
        }
    }
}

fn turn(world: &mut World, i: usize) {
    let now = world.clock.monotonic();
    let member = &mut world.net.members[i];
    if member.waits || member.silent_until > now {
        return;
    }
    let working = member.want == Want::Work;
    match world.random.below(80) {
        0 if working => {
            // It hangs, and may come back as if nothing had been.
            let ms = world.random.below(6_000);
            world.net.members[i].silent_until = now + Duration::from_millis(ms);
        }
        1 => start_over(world, i),
        _ => go_on(world, i),
    }
}

/// Another process takes the member's place, with a new name unless the member is static.
fn start_over(world: &mut World, i: usize) {
    world.clients.tag += 1;
    let tag = world.clients.tag;
    let member = &mut world.net.members[i];
    member.join_again(false);
    member.cut();
    match &member.instance {
        Some(_) => world.seen.note(Branch::StaticMemberReplaced),
        None => member.name = format!("n{i}-{tag}"),
    }
}

fn go_on(world: &mut World, i: usize) {
    let link = match world.net.members[i].link {
        Some(link) => link,
        None => open(world, Who::Member(i)),
    };
    let asked = match world.net.members[i].want.clone() {
        Want::Join => Some(Asked::Join(join(&world.net.members[i]))),
        Want::Sync(roster) => Some(Asked::Sync(sync(world, i, roster))),
        Want::Work => work(world, i),
    };
    let member = &mut world.net.members[i];
    member.link = Some(link);
    if let Some(asked) = asked {
        member.waits = true;
        send(world, link, asked);
    }
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn group(member: &Member) -> GroupId {
    GroupId(text(member.group))
}

fn instance(member: &Member) -> Option<StrBytes> {
    member.instance.as_deref().map(text)
}

fn join(member: &Member) -> JoinGroupRequest {
    let protocol = JoinGroupRequestProtocol::default()
        .with_name(text("range"))
        .with_metadata(Bytes::from(member.name.clone().into_bytes()));
    JoinGroupRequest::default()
        .with_group_id(group(member))
        .with_session_timeout_ms(SESSION_MS)
        .with_rebalance_timeout_ms(REBALANCE_MS)
        .with_member_id(text(&member.id))
        .with_group_instance_id(instance(member))
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol])
}

/// The leader shares all partitions out that it knows of.
fn sync(world: &World, i: usize, roster: Option<Vec<(String, String)>>) -> SyncGroupRequest {
    let member = &world.net.members[i];
    let mut roster = roster.unwrap_or_default();
    roster.sort_by(|one, two| one.1.cmp(&two.1));
    let mut shares = vec![Vec::new(); roster.len()];
    let topics = &world.model.durable.topics;
    let all = topics.iter().flat_map(|(name, topic)| {
        (0..topic.partitions).map(move |index| format!("{name}/{index}"))
    });
    for (n, place) in all.enumerate() {
        if let Some(share) = shares.get_mut(n % roster.len().max(1)) {
            share.push(place);
        }
    }
    let assignments = roster.iter().zip(shares).map(|((id, _), share)| {
        SyncGroupRequestAssignment::default()
            .with_member_id(text(id))
            .with_assignment(Bytes::from(share.join(",").into_bytes()))
    });
    SyncGroupRequest::default()
        .with_group_id(group(member))
        .with_generation_id(member.generation)
        .with_member_id(text(&member.id))
        .with_group_instance_id(instance(member))
        .with_protocol_type(Some(text("consumer")))
        .with_protocol_name(Some(text("range")))
        .with_assignments(assignments.collect())
}

/// Heartbeats, commits, questions for commits; rarely it leaves.
fn work(world: &mut World, i: usize) -> Option<Asked> {
    let choice = world.random.below(60);
    let member = &world.net.members[i];
    if choice < 3 {
        let identity = MemberIdentity::default()
            .with_member_id(text(&member.id))
            .with_group_instance_id(instance(member));
        let request = LeaveGroupRequest::default()
            .with_group_id(group(member))
            .with_members(vec![identity]);
        return Some(Asked::Leave(request));
    }
    if member.owned.values().any(Option::is_none) && choice < 40 {
        let one = OffsetFetchRequestGroup::default()
            .with_group_id(group(member))
            .with_topics(None)
            .with_member_epoch(-1);
        let request = OffsetFetchRequest::default().with_groups(vec![one]);
        return Some(Asked::Offsets(request));
    }
    let known: Vec<_> = member
        .owned
        .iter()
        .filter_map(|(place, offset)| offset.map(|offset| (place.clone(), offset)))
        .collect();
    if choice < 40
        && let Some((place, offset)) = world.random.pick(&known).cloned()
    {
        return Some(Asked::Commit(commit(world, i, &place, offset)));
    }
    let member = &world.net.members[i];
    let request = HeartbeatRequest::default()
        .with_group_id(group(member))
        .with_generation_id(member.generation)
        .with_member_id(text(&member.id))
        .with_group_instance_id(instance(member));
    Some(Asked::Heartbeat(request))
}

fn commit(world: &mut World, i: usize, place: &Place, offset: i64) -> OffsetCommitRequest {
    world.clients.tag += 1;
    let metadata = format!("{}#{}", world.net.members[i].name, world.clients.tag);
    let member = &mut world.net.members[i];
    member.owned.insert(place.clone(), Some(offset + 1));
    let partition = OffsetCommitRequestPartition::default()
        .with_partition_index(place.1)
        .with_committed_offset(offset)
        .with_committed_metadata(Some(text(&metadata)));
    let topic = OffsetCommitRequestTopic::default()
        .with_name(TopicName(text(&place.0)))
        .with_partitions(vec![partition]);
    OffsetCommitRequest::default()
        .with_group_id(group(member))
        .with_generation_id_or_member_epoch(member.generation)
        .with_member_id(text(&member.id))
        .with_group_instance_id(instance(member))
        .with_topics(vec![topic])
}

pub(super) fn answered(world: &mut World, i: usize, request: &Request, frame: &Bytes) {
    world.net.members[i].waits = false;
    if request.era != world.net.era && matches!(request.asked, Asked::Join(_) | Asked::Sync(_)) {
        // It may speak of a group that is gone, and of generations that are counted anew.
        world.net.members[i].join_again(true);
        return;
    }
    match &request.asked {
        Asked::Join(_) => joined(world, i, &request.decode(frame)),
        Asked::Sync(asked) => synced(world, i, asked.generation_id, &request.decode(frame)),
        Asked::Heartbeat(_) => {
            let response: HeartbeatResponse = request.decode(frame);
            if heard(world, i, response.error_code).is_none() {
                let member = &mut world.net.members[i];
                if member.since < world.starts {
                    world.seen.note(Branch::WentOnInGenerationAfterStart);
                }
            }
        }
        Asked::Leave(_) => {
            let member = &mut world.net.members[i];
            member.join_again(false);
            world.seen.note(Branch::MemberLeft);
        }
        Asked::Commit(asked) => committed(world, i, asked, &request.decode(frame)),
        Asked::Offsets(_) => offsets(world, i, &request.decode(frame)),
        other => panic!("a member does not ask {other:?}"),
    }
}

/// What an error means to a member, as in Kafka's own client.
fn heard(world: &mut World, i: usize, code: i16) -> Option<ErrorCode> {
    let error = error_of(code);
    let member = &mut world.net.members[i];
    use ErrorCode as E;
    match error {
        None => {}
        Some(E::NotCoordinator | E::CoordinatorNotAvailable) => {}
        Some(E::CoordinatorLoadInProgress) => {}
        Some(E::RebalanceInProgress | E::IllegalGeneration) => member.join_again(true),
        Some(E::UnknownMemberId | E::FencedInstanceId | E::GroupIdNotFound) => {
            if member.want == Want::Work {
                world.seen.note(Branch::SilentMemberLost);
            }
            member.join_again(false);
        }
        Some(error) => panic!("member {} of {}: {error:?}", member.name, member.group),
    }
    error
}

fn joined(world: &mut World, i: usize, response: &JoinGroupResponse) {
    if error_of(response.error_code) == Some(ErrorCode::MemberIdRequired) {
        world.net.members[i].id = response.member_id.to_string();
        return;
    }
    if heard(world, i, response.error_code).is_some() {
        return;
    }
    let starts = world.starts;
    let member = &mut world.net.members[i];
    member.id = response.member_id.to_string();
    member.generation = response.generation_id;
    member.since = starts;
    let name = |metadata: &Bytes| String::from_utf8(metadata.to_vec()).expect("a name");
    let roster: Vec<(String, String)> = response
        .members
        .iter()
        .map(|m| (m.member_id.to_string(), name(&m.metadata)))
        .collect();
    let leads = !roster.is_empty();
    let names: BTreeSet<String> = roster.iter().map(|(_, name)| name.clone()).collect();
    assert_eq!(names.len(), roster.len(), "each member once");
    member.want = Want::Sync((leads && !response.skip_assignment).then_some(roster));
    let key = (member.group.to_owned(), member.generation);
    let name = member.name.clone();
    let told = world.net.told.entry(key.clone()).or_default();
    // A group that nothing is stored of is gone with its last member, and starts again: then the
    // same generation has another leader.
    let leader = response.leader.to_string();
    if !told.synced && told.leader != leader {
        *told = Told::default();
    }
    told.leader = leader;
    told.joined.insert(name);
    if leads {
        let before = told.roster.get_or_insert_with(|| names.clone());
        assert_eq!(*before, names, "generation {key:?} is told of twice");
    }
    if let Some(roster) = &told.roster {
        assert!(told.joined.is_subset(roster), "{key:?}: {told:?}");
    }
    world.seen.note(Branch::MemberJoined);
}

fn synced(world: &mut World, i: usize, generation: i32, response: &SyncGroupResponse) {
    if heard(world, i, response.error_code).is_some() {
        return;
    }
    let member = &mut world.net.members[i];
    if member.generation != generation {
        return;
    }
    member.want = Want::Work;
    let share = std::str::from_utf8(&response.assignment).expect("a text");
    let places = share.split_terminator(',').map(|place| {
        let (topic, index) = place.split_once('/').expect("topic/index");
        (topic.to_owned(), index.parse().expect("an index"))
    });
    member.owned = places.map(|place: Place| (place, None)).collect();
    let key = (member.group.to_owned(), generation);
    let (name, owned) = (member.name.clone(), member.owned.clone());
    let told = world.net.told.entry(key.clone()).or_default();
    told.synced = true;
    for place in owned.into_keys() {
        let owner = told
            .owners
            .entry(place.clone())
            .or_insert_with(|| name.clone());
        assert_eq!(
            *owner, name,
            "{place:?} has two owners in generation {key:?}"
        );
    }
}

fn committed(
    world: &mut World,
    i: usize,
    asked: &OffsetCommitRequest,
    response: &OffsetCommitResponse,
) {
    let (topic, partition) = (&asked.topics[0], &asked.topics[0].partitions[0]);
    let place = (topic.name.to_string(), partition.partition_index);
    let code = response.topics[0].partitions[0].error_code;
    if error_of(code) == Some(ErrorCode::UnknownTopicOrPartition) {
        world.net.members[i].owned.remove(&place);
        return;
    }
    let was_working = world.net.members[i].want == Want::Work;
    match heard(world, i, code) {
        None => {
            let topics = &world.model.durable.topics;
            let Some(id) = topics.get(&place.0).map(|topic| topic.id) else {
                return;
            };
            // The topic may be another one of that name by now.
            let key = (world.net.members[i].group.to_owned(), place.0, place.1);
            let commit = world.model.durable.commits.get(&key);
            let Some(commit) = commit.filter(|commit| commit.topic_id == id) else {
                return;
            };
            assert!(
                commit.offset >= partition.committed_offset,
                "{key:?} was acknowledged"
            );
            let key = (key.0, id, place.1);
            let newest = world.net.acknowledged.entry(key).or_default();
            *newest = (*newest).max(partition.committed_offset);
        }
        _ if was_working => world.seen.note(Branch::CommitFenced),
        _ => {}
    }
}

fn offsets(world: &mut World, i: usize, response: &OffsetFetchResponse) {
    let found = &response.groups[0];
    if heard(world, i, found.error_code).is_some() {
        return;
    }
    let member = &mut world.net.members[i];
    let shown: BTreeMap<Place, i64> = found
        .topics
        .iter()
        .flat_map(|topic| {
            let of = |p: i32| (topic.name.to_string(), p);
            let partitions = topic.partitions.iter();
            partitions.map(move |p| (of(p.partition_index), p.committed_offset))
        })
        .collect();
    for (place, offset) in &mut member.owned {
        let newest = shown.get(place).copied().unwrap_or(0);
        if offset.is_none() {
            *offset = Some(newest + 1);
        }
    }
}
