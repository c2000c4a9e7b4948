//! A group's session while a command works on it: the moves of the rebalance protocol.
//!
//! ```text
//!            a member joins              all joined, or time is up         the leader synced
//!   Empty ─────────────────► Preparing ─────────────────────► Completing ─────────────────► Stable
//!     ▲                      Rebalance ◄──────────────────── Rebalance                        │
//!     └── nobody is left ────────┘  ▲     joins, leaves, silence, missing syncs               │
//!                                   └─────────────────────────────────────────────────────────┘
//! ```

use std::sync::Arc;

use bytes::Bytes;
use kafka_protocol::error::ResponseError;

use super::command::{
    Change, Decision, JoinReply, JoinRequest, Name, Now, Reply, Settings, SyncReply, Token,
};
use super::record::Record;
use super::session::{JoinTimer, Member, Session, State, after};

/// The least time between two tries to end a joining that no member took part in.
const RETRY_JOIN_MS: i32 = 1_000;

/// See the module.
pub(super) struct Draft<'a> {
    pub now: Now,
    pub settings: &'a Settings,
    pub group: Name,
    pub s: Session,
    pub records: Vec<Record>,
    pub effects: Vec<(Token, Reply)>,
    rebalanced: bool,
}

impl<'a> Draft<'a> {
    pub fn new(now: Now, settings: &'a Settings, group: Name, s: Session) -> Self {
        Self {
            now,
            settings,
            group,
            s,
            records: vec![],
            effects: vec![],
            rebalanced: false,
        }
    }

    pub fn finish(self) -> Decision {
        Decision {
            group: self.group,
            records: self.records,
            change: Change::Session(Box::new(self.s)),
            effects: self.effects,
            rebalanced: self.rebalanced,
            turned_away: 0,
        }
    }

    pub fn reply(&mut self, token: Token, reply: Reply) {
        self.effects.push((token, reply));
    }

    /// Stores the group as the session has it.
    pub fn store(&mut self) {
        let value = Some(Arc::new(self.s.stored()));
        self.records.push(Record::Group {
            group: self.group.clone(),
            value,
        });
    }

    fn enter(&mut self, state: State) {
        self.s.state = state;
        self.s.state_ms = self.now.wall_ms;
    }

    /// Starts a member's session timeout anew.
    pub fn heard_of(&mut self, id: &str) {
        let tick = self.now.tick;
        if let Some(member) = self.s.member_mut(id) {
            member.expires = after(tick, member.session_timeout_ms);
        }
    }

    /// Takes in a member that was not there.
    pub fn add_member(&mut self, id: Name, request: &JoinRequest, token: Token) {
        if self.s.state == State::PreparingRebalance && self.s.from_empty {
            self.s.member_added = true;
        }
        if self.s.members.is_empty() {
            self.s.protocol_type = Some(request.protocol_type.clone());
        }
        if self.s.leader.is_none() {
            self.s.leader = Some(id.clone());
        }
        if let Some(instance) = &request.instance_id {
            self.s.instances.insert(instance.clone(), id.clone());
        }
        self.s.pending_joins.remove(&id);
        let member = Member {
            id: id.clone(),
            instance_id: request.instance_id.clone(),
            client_id: request.client_id.clone(),
            client_host: request.client_host.clone(),
            rebalance_timeout_ms: request.rebalance_timeout_ms,
            session_timeout_ms: request.session_timeout_ms,
            protocols: request.protocols.clone(),
            assignment: Bytes::new(),
            joining: Some(token),
            syncing: None,
            is_new: true,
            expires: self
                .now
                .tick
                .saturating_add(self.settings.new_member_join_timeout_ms),
        };
        self.s.members.insert(id, Arc::new(member));
    }

    /// Lets a member join again, with what it says of itself now.
    pub fn update_member(&mut self, id: &str, request: &JoinRequest, token: Token) {
        let Some(member) = self.s.member_mut(id) else {
            return;
        };
        member.protocols = request.protocols.clone();
        member.rebalance_timeout_ms = request.rebalance_timeout_ms;
        member.session_timeout_ms = request.session_timeout_ms;
        let (old_join, id) = (member.joining.replace(token), member.id.clone());
        if let Some(old) = old_join {
            // The same member asked again over another connection: nobody reads the first answer.
            let reply = JoinReply::failed(ResponseError::RebalanceInProgress, id);
            self.reply(old, Reply::Join(reply));
        }
    }

    /// Gives a static member's place to a new id; whoever waits under the old one is fenced.
    pub fn replace_static(&mut self, instance: &Name, old: &Name, new: &Name) {
        let Some(mut member) = self.s.members.remove(old) else {
            return;
        };
        let fenced = ResponseError::FencedInstanceId;
        if let Some(token) = member.joining {
            self.reply(token, Reply::Join(JoinReply::failed(fenced, old.clone())));
        }
        if let Some(token) = member.syncing {
            self.reply(token, Reply::Sync(SyncReply::failed(fenced)));
        }
        let changed = Arc::make_mut(&mut member);
        (changed.id, changed.joining, changed.syncing) = (new.clone(), None, None);
        changed.is_new = false;
        self.s.members.insert(new.clone(), member);
        self.s.instances.insert(instance.clone(), new.clone());
        if self.s.is_leader(old) {
            self.s.leader = Some(new.clone());
        }
        if self.s.pending_syncs.remove(old) {
            self.s.pending_syncs.insert(new.clone());
        }
        self.heard_of(new);
    }

    /// Takes a member out, or an id that was given out; whoever waits under it must start afresh.
    pub fn remove_member(&mut self, id: &str) {
        let unknown = ResponseError::UnknownMemberId;
        self.s.pending_joins.remove(id);
        self.s.pending_syncs.remove(id);
        if let Some(member) = self.s.members.remove(id) {
            if let Some(token) = member.joining {
                let reply = JoinReply::failed(unknown, Name::default());
                self.reply(token, Reply::Join(reply));
            }
            if let Some(token) = member.syncing {
                self.reply(token, Reply::Sync(SyncReply::failed(unknown)));
            }
            if let Some(instance) = &member.instance_id
                && self.s.instances.get(instance).is_some_and(|m| **m == *id)
            {
                self.s.instances.remove(instance);
            }
        }
        if self.s.is_leader(id) {
            self.s.leader = self.s.members.keys().next().cloned();
        }
    }

    /// After a member came, went or changed: begins a rebalance, or ends one if nobody is missing.
    pub fn rebalance(&mut self) {
        match self.s.state {
            State::PreparingRebalance => self.maybe_complete_join(),
            _ => self.prepare_rebalance(),
        }
    }

    /// Asks all members to join again.
    pub fn prepare_rebalance(&mut self) {
        if self.s.state == State::CompletingRebalance {
            self.fail_syncs(ResponseError::RebalanceInProgress);
        }
        self.s.sync_timer = None;
        self.s.pending_syncs.clear();
        self.s.from_empty = self.s.state == State::Empty;
        self.enter(State::PreparingRebalance);
        if self.s.from_empty {
            let delay = self.settings.initial_rebalance_delay_ms;
            let longest = u64::try_from(self.s.rebalance_timeout_ms()).unwrap_or(0);
            let at = self.now.tick.saturating_add(delay);
            let initial = Some((delay, longest.saturating_sub(delay)));
            self.s.join_timer = Some(JoinTimer { at, initial });
        } else if self.s.all_joined() {
            self.complete_join();
        } else {
            self.arm_join_timer(0);
        }
    }

    fn arm_join_timer(&mut self, at_least_ms: i32) {
        let at = after(
            self.now.tick,
            self.s.rebalance_timeout_ms().max(at_least_ms),
        );
        self.s.join_timer = Some(JoinTimer { at, initial: None });
    }

    /// Ends the joining if nobody is missing. A group's first joining lasts as long as its delay,
    /// so that members that start together meet in one generation.
    pub fn maybe_complete_join(&mut self) {
        let joining = self.s.state == State::PreparingRebalance && !self.s.from_empty;
        if joining && self.s.all_joined() {
            self.complete_join();
        }
    }

    /// The joining's time is up.
    pub fn join_timer_ran_out(&mut self, timer: JoinTimer) {
        match timer.initial {
            Some((delay, left)) if self.s.member_added && left > 0 => {
                self.s.member_added = false;
                let next = self.settings.initial_rebalance_delay_ms.min(left);
                let at = self.now.tick.saturating_add(next);
                let initial = Some((next, left.saturating_sub(delay)));
                self.s.join_timer = Some(JoinTimer { at, initial });
            }
            _ => self.complete_join(),
        }
    }

    /// Ends the joining with those who are there.
    fn complete_join(&mut self) {
        self.s.join_timer = None;
        let absent = |m: &&Arc<Member>| m.joining.is_none() && m.instance_id.is_none();
        let absent: Vec<Name> = self
            .s
            .members
            .values()
            .filter(absent)
            .map(|m| m.id.clone())
            .collect();
        for id in absent {
            self.remove_member(&id);
        }
        if !self.s.members.is_empty() && !self.elect_leader() {
            // Only static members are left and none of them joined: their session timeouts decide.
            self.arm_join_timer(RETRY_JOIN_MS);
            return;
        }
        self.s.member_added = false;
        self.s.from_empty = false;
        self.s.generation = self.s.generation.wrapping_add(1).max(0);
        self.s.pending_syncs.clear();
        self.s.protocol = self.s.vote();
        self.s.subscribed = self.s.subscriptions();
        self.rebalanced = true;
        if self.s.members.is_empty() {
            self.s.leader = None;
            self.enter(State::Empty);
            self.store();
        } else {
            self.enter(State::CompletingRebalance);
            self.answer_joins();
            self.s.sync_timer = Some(after(self.now.tick, self.s.rebalance_timeout_ms()));
        }
    }

    /// Makes sure that the leader is one who joined.
    fn elect_leader(&mut self) -> bool {
        let leader = self.s.leader.as_ref().and_then(|id| self.s.members.get(id));
        if leader.is_some_and(|m| m.joining.is_some()) {
            return true;
        }
        let joined = self.s.members.values().find(|m| m.joining.is_some());
        match joined.map(|m| m.id.clone()) {
            Some(id) => {
                self.s.leader = Some(id);
                true
            }
            None => false,
        }
    }

    fn answer_joins(&mut self) {
        let ids: Vec<Name> = self.s.members.keys().cloned().collect();
        for id in ids {
            self.heard_of(&id);
            let Some(member) = self.s.member_mut(&id) else {
                continue;
            };
            member.is_new = false;
            if let Some(token) = member.joining.take() {
                let reply = self.joined(&id);
                self.reply(token, Reply::Join(reply));
            }
            self.s.pending_syncs.insert(id);
        }
    }

    /// The answer that tells a member of the current generation.
    pub fn joined(&self, id: &Name) -> JoinReply {
        JoinReply {
            error: None,
            generation: self.s.generation,
            protocol_type: self.s.protocol_type.clone(),
            protocol: self.s.protocol.clone(),
            leader: self.s.leader.clone().unwrap_or_default(),
            skip_assignment: false,
            member_id: id.clone(),
            members: if self.s.is_leader(id) {
                self.s.joined_members()
            } else {
                Vec::new()
            },
        }
    }

    /// Tells those who wait for an assignment that there will be none.
    fn fail_syncs(&mut self, error: ResponseError) {
        let ids: Vec<Name> = self.s.members.keys().cloned().collect();
        for id in ids {
            self.heard_of(&id);
            let Some(member) = self.s.member_mut(&id) else {
                continue;
            };
            member.assignment = Bytes::new();
            if let Some(token) = member.syncing.take() {
                self.reply(token, Reply::Sync(SyncReply::failed(error)));
            }
        }
    }

    /// Takes the leader's assignment: the group is stable from here on.
    pub fn assign(&mut self, assignments: &[(Name, Bytes)]) {
        let mut given = std::collections::BTreeMap::new();
        for (id, assignment) in assignments {
            given.insert(id, assignment);
        }
        let ids: Vec<Name> = self.s.members.keys().cloned().collect();
        self.enter(State::Stable);
        for id in ids {
            self.heard_of(&id);
            let Some(member) = self.s.member_mut(&id) else {
                continue;
            };
            member.assignment = given.get(&id).map(|a| (*a).clone()).unwrap_or_default();
            if let Some(token) = member.syncing.take() {
                let reply = self.synced(&id);
                self.reply(token, Reply::Sync(reply));
            }
        }
        self.store();
    }

    /// The answer that tells a member its assignment.
    pub fn synced(&self, id: &str) -> SyncReply {
        SyncReply {
            error: None,
            protocol_type: self.s.protocol_type.clone(),
            protocol: self.s.protocol.clone(),
            assignment: self
                .s
                .members
                .get(id)
                .map(|m| m.assignment.clone())
                .unwrap_or_default(),
        }
    }
}
