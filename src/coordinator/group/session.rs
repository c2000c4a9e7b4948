//! The part of a group that a restart may forget: who waits, who was heard of when, and what the
//! next generation looks like so far.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use kafka_protocol::error::ResponseError;

use super::command::{JoinedMember, Name, Now, Tick, Token};
use super::offsets::subscription_topics;
use super::record::{GroupMetadata, StoredMember};

/// A group's state. A group that does not exist is called `Dead` in answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// No members; it may hold commits.
    #[default]
    Empty,
    /// Members are joining.
    PreparingRebalance,
    /// All have joined; the leader's assignment is awaited.
    CompletingRebalance,
    /// Every member knows its assignment, or can ask for it.
    Stable,
}

impl State {
    /// Its name in answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::PreparingRebalance => "PreparingRebalance",
            Self::CompletingRebalance => "CompletingRebalance",
            Self::Stable => "Stable",
        }
    }
}

/// A member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub id: Name,
    /// Its instance id, if it is static.
    pub instance_id: Option<Name>,
    /// The client's name of itself.
    pub client_id: Name,
    /// Where it connects from.
    pub client_host: Name,
    /// How long it may take to join again.
    pub rebalance_timeout_ms: i32,
    /// Silence after which it is taken for dead.
    pub session_timeout_ms: i32,
    /// Strategies in order of preference, with the member's metadata.
    pub protocols: Vec<(Name, Bytes)>,
    /// What the leader gave it.
    pub assignment: Bytes,
    /// Its JoinGroup that waits for an answer.
    pub joining: Option<Token>,
    /// Its SyncGroup that waits for an answer.
    pub syncing: Option<Token>,
    /// It has not had an answer to its first JoinGroup.
    pub is_new: bool,
    /// When it is taken for dead if nothing is heard of it.
    pub expires: Tick,
}

impl Member {
    /// Its metadata for a protocol.
    pub fn metadata(&self, protocol: Option<&Name>) -> Bytes {
        let found = protocol.and_then(|p| self.protocols.iter().find(|(name, _)| name == p));
        found
            .map(|(_, metadata)| metadata.clone())
            .unwrap_or_default()
    }

    fn supports(&self, protocol: &str) -> bool {
        self.protocols.iter().any(|(name, _)| &**name == protocol)
    }

    /// The time at which its silence counts. A member that waits for us can't send heartbeats,
    /// unless it is new: then its JoinGroup itself may be of a client that is gone.
    pub fn deadline(&self) -> Option<Tick> {
        let excused = !self.is_new && (self.joining.is_some() || self.syncing.is_some());
        (!excused).then_some(self.expires)
    }
}

/// When the joining ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinTimer {
    /// The time.
    pub at: Tick,
    /// For the first members of an empty group: the delay now running and how much more the group
    /// may be held up for others to come.
    pub initial: Option<(u64, u64)>,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// The state.
    pub state: State,
    /// The joining under way started from an empty group.
    pub from_empty: bool,
    /// Kind of the group, once a member joined.
    pub protocol_type: Option<Name>,
    /// Counts completed rebalances.
    pub generation: i32,
    /// The strategy of this generation.
    pub protocol: Option<Name>,
    /// The leader.
    pub leader: Option<Name>,
    /// What the members of this generation read, if they are consumers and can be understood.
    pub subscribed: Option<Arc<BTreeSet<Name>>>,
    /// Wall time of the last change of state, −1 if unknown.
    pub state_ms: i64,
    /// Members by id.
    pub members: BTreeMap<Name, Arc<Member>>,
    /// Member ids of static members by instance id.
    pub instances: BTreeMap<Name, Name>,
    /// Ids that were given out and not used yet, with the time they lapse.
    pub pending_joins: BTreeMap<Name, Tick>,
    /// Members whose SyncGroup of this generation has not come yet.
    pub pending_syncs: BTreeSet<Name>,
    /// A member came while the initial delay ran.
    pub member_added: bool,
    /// End of the joining.
    pub join_timer: Option<JoinTimer>,
    /// When those in `pending_syncs` are removed.
    pub sync_timer: Option<Tick>,
}

impl Session {
    /// The session of a group that was read back.
    pub fn restore(stored: &GroupMetadata, now: Now) -> Self {
        let mut s = Self {
            state: if stored.members.is_empty() {
                State::Empty
            } else {
                State::Stable
            },
            protocol_type: (!stored.protocol_type.is_empty()).then(|| stored.protocol_type.clone()),
            generation: stored.generation,
            protocol: stored.protocol.clone(),
            leader: stored.leader.clone(),
            state_ms: stored.state_ms,
            ..Self::default()
        };
        for m in &stored.members {
            let protocols = match &stored.protocol {
                Some(name) => vec![(name.clone(), m.subscription.clone())],
                None => Vec::new(),
            };
            if let Some(instance) = &m.instance_id {
                s.instances.insert(instance.clone(), m.id.clone());
            }
            let member = Member {
                id: m.id.clone(),
                instance_id: m.instance_id.clone(),
                client_id: m.client_id.clone(),
                client_host: m.client_host.clone(),
                rebalance_timeout_ms: m.rebalance_timeout_ms,
                session_timeout_ms: m.session_timeout_ms,
                protocols,
                assignment: m.assignment.clone(),
                joining: None,
                syncing: None,
                is_new: false,
                expires: after(now.tick, m.session_timeout_ms),
            };
            s.members.insert(m.id.clone(), Arc::new(member));
        }
        s.subscribed = s.subscriptions();
        s
    }

    /// What is to be stored of it.
    pub fn stored(&self) -> GroupMetadata {
        let member = |m: &Arc<Member>| StoredMember {
            id: m.id.clone(),
            instance_id: m.instance_id.clone(),
            client_id: m.client_id.clone(),
            client_host: m.client_host.clone(),
            rebalance_timeout_ms: m.rebalance_timeout_ms,
            session_timeout_ms: m.session_timeout_ms,
            subscription: m.metadata(self.protocol.as_ref()),
            assignment: m.assignment.clone(),
        };
        GroupMetadata {
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            generation: self.generation,
            protocol: self.protocol.clone(),
            leader: self.leader.clone(),
            state_ms: self.state_ms,
            members: self.members.values().map(member).collect(),
        }
    }

    /// Whether its members are consumers, whose metadata says what they read.
    pub fn is_consumer(&self) -> bool {
        self.protocol_type.as_deref() == Some("consumer")
    }

    /// Whether a commit for the topic may be in use. It is if that can't be told.
    pub fn reads(&self, topic: &str) -> bool {
        let reads = |topics: &Arc<BTreeSet<Name>>| topics.contains(topic);
        self.is_consumer() && self.subscribed.as_ref().is_none_or(reads)
    }

    /// What the members read under the protocol that was voted for.
    pub fn subscriptions(&self) -> Option<Arc<BTreeSet<Name>>> {
        if !self.is_consumer() {
            return None;
        }
        let mut topics = BTreeSet::new();
        for member in self.members.values() {
            let metadata = member.metadata(self.protocol.as_ref());
            topics.extend(subscription_topics(&metadata).ok()?);
        }
        Some(Arc::new(topics))
    }

    /// Whether nothing would be lost with it.
    pub fn is_vacant(&self) -> bool {
        self.members.is_empty() && self.pending_joins.is_empty() && self.state == State::Empty
    }

    /// A member, to be changed.
    pub fn member_mut(&mut self, id: &str) -> Option<&mut Member> {
        self.members.get_mut(id).map(Arc::make_mut)
    }

    /// Whether it is the leader.
    pub fn is_leader(&self, id: &str) -> bool {
        self.leader.as_deref() == Some(id)
    }

    /// Checks that the member exists and, if it is static, that no newer one has its instance id.
    pub fn validate(&self, id: &str, instance: Option<&Name>) -> Result<(), ResponseError> {
        if let Some(instance) = instance {
            match self.instances.get(instance) {
                None => return Err(ResponseError::UnknownMemberId),
                Some(current) if **current != *id => return Err(ResponseError::FencedInstanceId),
                Some(_) => {}
            }
        }
        match self.members.contains_key(id) {
            true => Ok(()),
            false => Err(ResponseError::UnknownMemberId),
        }
    }

    /// Whether a member with these protocols has one in common with everybody.
    pub fn accepts(&self, protocol_type: &Name, protocols: &[(Name, Bytes)]) -> bool {
        if self.state == State::Empty {
            return !protocol_type.is_empty() && !protocols.is_empty();
        }
        self.protocol_type.as_ref() == Some(protocol_type)
            && protocols
                .iter()
                .any(|(p, _)| self.members.values().all(|m| m.supports(p)))
    }

    /// The strategy that most members prefer among those that all know; the leader's order
    /// decides a tie.
    pub fn vote(&self) -> Option<Name> {
        let leader = self.leader.as_ref().and_then(|id| self.members.get(id));
        let first = leader.or_else(|| self.members.values().next())?;
        let common = |p: &str| self.members.values().all(|m| m.supports(p));
        let candidates: Vec<&Name> = first
            .protocols
            .iter()
            .map(|(name, _)| name)
            .filter(|name| common(name))
            .collect();
        let mut votes = vec![0usize; candidates.len()];
        for member in self.members.values() {
            let choice = member
                .protocols
                .iter()
                .find_map(|(name, _)| candidates.iter().position(|c| *c == name));
            if let Some(vote) = choice.and_then(|i| votes.get_mut(i)) {
                *vote += 1;
            }
        }
        let most = votes.iter().max()?;
        let winner = votes.iter().position(|v| v == most)?;
        candidates.get(winner).map(|name| (*name).clone())
    }

    /// The longest time that a member may take to join again.
    pub fn rebalance_timeout_ms(&self) -> i32 {
        self.members
            .values()
            .map(|m| m.rebalance_timeout_ms)
            .max()
            .unwrap_or(0)
    }

    /// How many wait for the joining to end.
    pub fn joining_count(&self) -> usize {
        self.members
            .values()
            .filter(|m| m.joining.is_some())
            .count()
    }

    /// Whether nobody is missing.
    pub fn all_joined(&self) -> bool {
        self.pending_joins.is_empty() && self.members.values().all(|m| m.joining.is_some())
    }

    /// All members, for the leader.
    pub fn joined_members(&self) -> Vec<JoinedMember> {
        let view = |m: &Arc<Member>| JoinedMember {
            id: m.id.clone(),
            instance_id: m.instance_id.clone(),
            metadata: m.metadata(self.protocol.as_ref()),
        };
        self.members.values().map(view).collect()
    }

    /// When a timer of the group runs out next.
    pub fn deadline(&self) -> Option<Tick> {
        let members = self.members.values().filter_map(|m| m.deadline());
        let timers = self
            .join_timer
            .map(|t| t.at)
            .into_iter()
            .chain(self.sync_timer);
        members
            .chain(timers)
            .chain(self.pending_joins.values().copied())
            .min()
    }
}

/// A time some milliseconds later; a negative wait is none.
pub fn after(tick: Tick, ms: i32) -> Tick {
    tick.saturating_add(u64::try_from(ms).unwrap_or(0))
}
