//! JoinGroup.

use std::sync::Arc;

use kafka_protocol::error::ResponseError;

use super::command::{JoinReply, JoinRequest, Name, Reply, Token};
use super::draft::Draft;
use super::record::{GroupMetadata, Record};
use super::session::{State, after};

/// Ids of one group that were given out and not used yet: bounds what a client that never comes
/// back can make us remember.
const MAX_PENDING_JOINS: usize = 10_000;

impl Draft<'_> {
    /// Answers a JoinGroup, or parks it until the joining ends.
    pub fn join(&mut self, token: Token, request: &JoinRequest, fresh_id: &Name, is_new: bool) {
        let before = self.records.len();
        if !self.has_room_for(&request.member_id) {
            if !request.member_id.is_empty() {
                self.remove_member(&request.member_id);
                self.maybe_complete_join();
            }
            self.refuse(token, ResponseError::GroupMaxSizeReached, Name::default());
        } else if !self.s.accepts(&request.protocol_type, &request.protocols) {
            let error = ResponseError::InconsistentGroupProtocol;
            self.refuse(token, error, request.member_id.clone());
        } else if !request.member_id.is_empty() {
            self.join_known(token, request);
        } else if let Some(instance) = &request.instance_id {
            match self.s.instances.get(instance).cloned() {
                Some(old) => self.join_replacing(token, request, &old, fresh_id),
                None => self.join_new(token, request, fresh_id.clone()),
            }
        } else if request.require_member_id && self.s.pending_joins.len() >= MAX_PENDING_JOINS {
            self.refuse(token, ResponseError::GroupMaxSizeReached, Name::default());
        } else if request.require_member_id {
            let lapses = after(self.now.tick, request.session_timeout_ms);
            self.s.pending_joins.insert(fresh_id.clone(), lapses);
            self.refuse(token, ResponseError::MemberIdRequired, fresh_id.clone());
        } else {
            self.join_new(token, request, fresh_id.clone());
        }
        if is_new && self.records.len() == before {
            let state_ms = self.now.wall_ms;
            let value = Some(Arc::new(GroupMetadata {
                state_ms,
                ..GroupMetadata::default()
            }));
            self.records.push(Record::Group {
                group: self.group.clone(),
                value,
            });
        }
    }

    fn refuse(&mut self, token: Token, error: ResponseError, member_id: Name) {
        self.reply(token, Reply::Join(JoinReply::failed(error, member_id)));
    }

    /// `group.max.size`. While members join, those who have joined count: when the limit was
    /// lowered it is the late ones that find no room.
    fn has_room_for(&self, id: &str) -> bool {
        let max = self.settings.max_size;
        let member = self.s.members.get(id);
        match self.s.state {
            State::Empty => true,
            State::PreparingRebalance => {
                member.is_some_and(|m| m.joining.is_some()) || self.s.joining_count() < max
            }
            State::CompletingRebalance | State::Stable => {
                member.is_some() || self.s.members.len() < max
            }
        }
    }

    fn join_new(&mut self, token: Token, request: &JoinRequest, id: Name) {
        self.add_member(id, request, token);
        self.rebalance();
    }

    /// A member that has an id: one that was told to come back with it, or one that joins again.
    fn join_known(&mut self, token: Token, request: &JoinRequest) {
        let id = &request.member_id;
        if self.s.pending_joins.contains_key(id) && request.instance_id.is_none() {
            return self.join_new(token, request, id.clone());
        }
        if let Err(error) = self.s.validate(id, request.instance_id.as_ref()) {
            return self.refuse(token, error, id.clone());
        }
        let unchanged = self
            .s
            .members
            .get(id)
            .is_some_and(|m| m.protocols == request.protocols);
        let as_before = match self.s.state {
            State::Empty => {
                return self.refuse(token, ResponseError::UnknownMemberId, id.clone());
            }
            State::PreparingRebalance => false,
            // It may not have had the answer to its first try.
            State::CompletingRebalance => unchanged,
            // The leader asks for a rebalance when something else has changed, such as a topic.
            State::Stable => unchanged && !self.s.is_leader(id),
        };
        if as_before {
            self.heard_of(id);
            let reply = self.joined(id);
            self.reply(token, Reply::Join(reply));
        } else {
            self.update_member(id, request, token);
            self.rebalance();
        }
    }

    /// A static member came back without its id: it takes the place of its former self. A stable
    /// group goes on as it is, provided that the vote on the protocol has the same outcome.
    fn join_replacing(&mut self, token: Token, request: &JoinRequest, old: &Name, new: &Name) {
        let Some(instance) = &request.instance_id else {
            return;
        };
        let leader_before = self.s.leader.clone().unwrap_or_default();
        self.replace_static(instance, old, new);
        self.update_member(new, request, token);
        match self.s.state {
            State::Stable if self.s.vote() == self.s.protocol => {
                self.heard_of(new);
                let Some(member) = self.s.member_mut(new) else {
                    return;
                };
                member.joining = None;
                let mut reply = self.joined(new);
                if request.can_skip_assignment {
                    reply.skip_assignment = self.s.is_leader(new);
                } else {
                    // With its former id as the leader's it does not take itself for the leader,
                    // so it computes no assignment that a stable group would never hand out.
                    reply.leader = leader_before;
                    reply.members = Vec::new();
                }
                self.store();
                self.reply(token, Reply::Join(reply));
            }
            _ => self.rebalance(),
        }
    }
}
