//! Commits: which are taken, and when they go.

use std::collections::{BTreeMap, BTreeSet};

use kafka_protocol::error::ResponseError;

use super::command::{
    Change, CommitErrors, CommitPartition, CommitRequest, Decision, Name, Now, Reply, Settings,
    Token,
};
use super::record::{Commit, Reader, Record, RecordError};
use super::session::{Session, State, after};
use super::weight::{self, Room};
use super::{Group, Machine};
use crate::types::TopicId;

/// The commits of a group by topic name and partition.
pub type Offsets = BTreeMap<Name, BTreeMap<i32, Commit>>;

/// Looks a topic's present id up by its name.
pub type TopicIdOf<'a> = &'a dyn Fn(&str) -> Option<TopicId>;

impl Commit {
    /// Whether the commit is of the topic that has this id now.
    pub fn is_of(&self, id: Option<TopicId>) -> bool {
        id.is_some_and(|id| self.topic_id.is_nil() || self.topic_id == id)
    }
}

impl Session {
    /// Whether this client may commit for the group now.
    fn validate_commit(&self, r: &CommitRequest) -> Result<(), ResponseError> {
        if r.generation < 0 && self.state == State::Empty {
            return Ok(());
        }
        if r.generation < 0 && r.member_id.is_empty() && r.instance_id.is_none() {
            return Err(ResponseError::UnknownMemberId);
        }
        self.validate_generation(&r.member_id, r.instance_id.as_ref(), r.generation)?;
        match self.state {
            State::CompletingRebalance => Err(ResponseError::RebalanceInProgress),
            _ => Ok(()),
        }
    }
}

impl Machine {
    pub(super) fn commit(&self, now: Now, token: Token, request: &CommitRequest) -> Decision {
        let group = self.groups.get(&request.group);
        let checked = match group {
            Some(group) => group.session.validate_commit(request),
            None if request.generation < 0 => Ok(()),
            None if request.knows_group_id_not_found => Err(ResponseError::GroupIdNotFound),
            None => Err(ResponseError::IllegalGeneration),
        };
        let mut decision = Decision {
            group: request.group.clone(),
            ..Decision::default()
        };
        let mut errors = CommitErrors::new();
        let mut growth = Growth::new(self, group, &request.group);
        for topic in &request.topics {
            let mut of_topic = Vec::with_capacity(topic.partitions.len());
            for p in &topic.partitions {
                let commit = Commit {
                    offset: p.offset,
                    leader_epoch: p.leader_epoch,
                    metadata: p.metadata.clone(),
                    commit_ms: now.wall_ms,
                    expire_ms: request
                        .retention_ms
                        .map(|ms| now.wall_ms.saturating_add(ms)),
                    topic_id: topic.id,
                };
                let mut error = checked.err().or(too_large(p, &self.settings));
                if error.is_none() && !growth.takes(&topic.name, p.partition, &commit) {
                    decision.turned_away += 1;
                    error = Some(ResponseError::PolicyViolation);
                }
                of_topic.push(error);
                if error.is_none() {
                    let value = Some(commit);
                    decision.records.push(Record::Offset {
                        group: request.group.clone(),
                        topic: topic.name.clone(),
                        partition: p.partition,
                        value,
                    });
                }
            }
            errors.push(of_topic);
        }
        let member = group.and_then(|g| g.session.members.get(&request.member_id));
        if let Some(member) = member.filter(|_| checked.is_ok()) {
            let expires = after(now.tick, member.session_timeout_ms);
            decision.change = Change::Touch {
                member: member.id.clone(),
                expires,
            };
        }
        decision.effects.push((token, Reply::Commit(errors)));
        decision
    }

    /// OffsetDelete (KIP-496): the commits of topics that the group does not read. While it has
    /// members only a consumer group says what it reads, so no other kind may lose commits then.
    pub(super) fn delete_offsets(
        &self,
        token: Token,
        group: &Name,
        topics: &[(Name, Vec<i32>)],
    ) -> Decision {
        let mut decision = Decision {
            group: group.clone(),
            ..Decision::default()
        };
        let found = self.groups.get(group).ok_or(ResponseError::GroupIdNotFound);
        let result = found.and_then(|g| {
            if g.session.state != State::Empty && !g.session.is_consumer() {
                return Err(ResponseError::NonEmptyGroup);
            }
            let delete = |(topic, partitions): &(Name, Vec<i32>)| {
                if g.session.reads(topic) {
                    return Some(ResponseError::GroupSubscribedToTopic);
                }
                let commits = g.offsets.get(topic);
                let wanted: BTreeSet<i32> = partitions.iter().copied().collect();
                let kept = wanted
                    .into_iter()
                    .filter(|p| commits.is_some_and(|c| c.contains_key(p)));
                decision
                    .records
                    .extend(kept.map(|partition| Record::Offset {
                        group: group.clone(),
                        topic: topic.clone(),
                        partition,
                        value: None,
                    }));
                None
            };
            Ok(topics.iter().map(delete).collect())
        });
        decision.effects.push((token, Reply::DeleteOffsets(result)));
        decision
    }

    /// Tombstones for the commits of topics that are gone.
    pub(super) fn forget_topics(&self, group: &Name, ids: &[TopicId]) -> Decision {
        let doomed = |_: &str, c: &Commit| !c.topic_id.is_nil() && ids.contains(&c.topic_id);
        self.drop_commits(group, doomed)
    }

    /// Tombstones for the commits that have expired or whose topic is gone, and for the group if
    /// nothing is left of it.
    pub fn clean_up(&self, now: Now, group: &Name, topic_id: TopicIdOf) -> Decision {
        let Some(g) = self.groups.get(group) else {
            return Decision::default();
        };
        let retention = self.settings.offsets_retention_ms;
        let mut decision = self.drop_commits(group, |topic, commit| {
            !commit.is_of(topic_id(topic)) || has_expired(g, topic, commit, now.wall_ms, retention)
        });
        let left = g.offsets.values().map(BTreeMap::len).sum::<usize>() - decision.records.len();
        if left == 0 && g.session.is_vacant() {
            decision.change = Change::End;
            if g.stored.is_some() {
                decision.records.push(Record::Group {
                    group: group.clone(),
                    value: None,
                });
            }
        }
        decision
    }

    fn drop_commits(&self, group: &Name, doomed: impl Fn(&str, &Commit) -> bool) -> Decision {
        let mut decision = Decision {
            group: group.clone(),
            ..Decision::default()
        };
        let Some(g) = self.groups.get(group) else {
            return decision;
        };
        for (topic, partitions) in &g.offsets {
            for (partition, _) in partitions.iter().filter(|(_, c)| doomed(topic, c)) {
                decision.records.push(Record::Offset {
                    group: group.clone(),
                    topic: topic.clone(),
                    partition: *partition,
                    value: None,
                });
            }
        }
        decision
    }
}

/// What a request's commits add to what groups take in memory, held against the room that there is.
struct Growth<'a> {
    room: Room,
    kept: Option<&'a Offsets>,
    /// A topic that comes with this request.
    topic: Option<&'a str>,
    /// What the group itself adds, if it is new.
    group: u64,
    bytes: u64,
}

impl<'a> Growth<'a> {
    fn new(machine: &'a Machine, group: Option<&'a Group>, name: &str) -> Self {
        Self {
            room: machine.room,
            kept: group.map(|g| &g.offsets),
            topic: None,
            group: match group {
                Some(_) => 0,
                None => weight::group(name),
            },
            bytes: 0,
        }
    }

    /// Whether there is room for this commit beside those before it; counts it if there is.
    fn takes(&mut self, topic: &'a str, partition: i32, commit: &Commit) -> bool {
        let partitions = self.kept.and_then(|kept| kept.get(topic));
        let before = partitions.and_then(|p| p.get(&partition));
        let after = weight::commit(commit);
        let (added, room) = match before {
            Some(before) => (after.saturating_sub(weight::commit(before)), self.room.more),
            None if partitions.is_some() || self.topic == Some(topic) => (after, self.room.new),
            None => (after + weight::topic(topic) + self.group, self.room.new),
        };
        if added > 0 && self.bytes + added > room {
            return false;
        }
        if before.is_none() && partitions.is_none() {
            self.topic = Some(topic);
            self.group = 0;
        }
        self.bytes += added;
        true
    }
}

fn too_large(p: &CommitPartition, settings: &Settings) -> Option<ResponseError> {
    let too_large = p.metadata.len() > settings.offset_metadata_max_bytes;
    too_large.then_some(ResponseError::OffsetMetadataTooLarge)
}

/// Commits of a group without members run out some time after it became empty, those of a client
/// that manages its partitions itself some time after they were made. While a consumer group is
/// stable they run out only for topics that it no longer reads.
fn has_expired(
    group: &Group,
    topic: &str,
    commit: &Commit,
    now_ms: i64,
    retention_ms: i64,
) -> bool {
    let session = &group.session;
    let since = match (&session.protocol_type, session.state) {
        (None, State::Empty) => commit.commit_ms,
        (Some(_), State::Empty) if session.state_ms >= 0 => session.state_ms,
        (Some(_), State::Empty) => commit.commit_ms,
        (Some(_), State::Stable) if session.is_consumer() && !session.reads(topic) => {
            commit.commit_ms
        }
        _ => return false,
    };
    match commit.expire_ms {
        Some(at) => now_ms >= at,
        None => now_ms.saturating_sub(since) >= retention_ms,
    }
}

/// The topic names in a consumer's subscription: a version, then an array of strings.
pub fn subscription_topics(metadata: &[u8]) -> Result<Vec<Name>, RecordError> {
    let mut r = Reader(metadata);
    r.i16()?;
    let mut topics = Vec::new();
    for _ in 0..r.i32()? {
        topics.push(r.string()?);
    }
    Ok(topics)
}
