//! The group coordinator as a pure state machine: no clock, no randomness, no IO.
//!
//! [`Machine::decide`] looks at a command and says what is to be stored, what changes beside it
//! and who is to be answered; nothing has changed yet. Once the records have a place in the log,
//! [`Machine::accept`] takes the decision in. After a restart the same records, applied in order,
//! give the same groups, but for the sessions: who was waiting, who was heard of when.
//!
//! | file | concern |
//! |---|---|
//! | `command` | what is asked and answered |
//! | `record` | what is stored, in Kafka's formats |
//! | `session` | members, votes, who waits |
//! | `draft` | the moves of the rebalance protocol |
//! | `join`, `sync` | JoinGroup; SyncGroup, LeaveGroup, timers |
//! | `offsets` | commits and their end |
//! | `view` | questions that change nothing |
//! | `weight` | what groups take in memory |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kafka_protocol::error::ResponseError;

use crate::types::Position;

pub mod command;
mod draft;
mod join;
pub mod offsets;
pub mod record;
pub mod session;
mod sync;
#[cfg(test)]
mod tests;
pub mod view;
pub mod weight;

use command::{
    Change, Command, Decision, HeartbeatRequest, Name, Now, Reply, Settings, Tick, Token,
};
use draft::Draft;
use offsets::Offsets;
use record::{GroupMetadata, Record};
use session::{Session, State, after};

/// One group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// The last stored state of its members.
    pub stored: Option<Arc<GroupMetadata>>,
    /// Its commits.
    pub offsets: Offsets,
    /// What is not stored.
    pub session: Session,
    /// Where its last change is in the journal.
    pub changed: Position,
    /// The time at which its timers are looked at.
    scheduled: Option<Tick>,
    /// What its commits take in memory.
    offset_bytes: u64,
    /// What its members take.
    member_bytes: u64,
    /// What the machine's sum holds for it.
    counted: u64,
}

/// All groups of one partition of the log.
#[derive(Debug, Default)]
pub struct Machine {
    settings: Settings,
    groups: BTreeMap<Name, Group>,
    timers: BTreeSet<(Tick, Name)>,
    /// What all groups take in memory.
    bytes: u64,
    /// By how much they may grow with the next command.
    pub room: weight::Room,
}

impl Machine {
    /// No groups yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            ..Self::default()
        }
    }

    /// Says what a command comes to. Nothing changes until [`Machine::accept`].
    pub fn decide(&self, now: Now, command: &Command) -> Decision {
        if let (Some(token), true) = (command.token(), command.group().is_empty()) {
            // Commits of the group without a name are taken, as ever; it can't have members.
            if !matches!(command, Command::Commit { .. } | Command::Delete { .. }) {
                return answer(command, token, ResponseError::InvalidGroupId);
            }
        }
        match command {
            Command::Heartbeat { token, request } => self.heartbeat(now, *token, request),
            Command::Commit { token, request } => self.commit(now, *token, request),
            Command::Delete { token, group } => self.delete(*token, group),
            Command::DeleteOffsets {
                token,
                group,
                topics,
            } => self.delete_offsets(*token, group, topics),
            Command::ForgetTopics { group, ids } => self.forget_topics(group, ids),
            Command::Join {
                token,
                request,
                fresh_id,
            } => {
                if let Err(error) = self.check_join(request) {
                    return answer(command, *token, error);
                }
                let known = self.groups.get(&request.group);
                let mut draft = self.draft(now, &request.group);
                draft.join(*token, request, fresh_id, known.is_none());
                self.if_room(command, *token, draft.finish())
            }
            Command::Sync { token, request } => {
                if !self.groups.contains_key(&request.group) {
                    return answer(command, *token, ResponseError::UnknownMemberId);
                }
                let mut draft = self.draft(now, &request.group);
                draft.sync(*token, request);
                self.if_room(command, *token, draft.finish())
            }
            Command::Leave {
                token,
                group,
                members,
            } => {
                let mut draft = self.draft(now, group);
                draft.leave(*token, members);
                draft.finish()
            }
            Command::Timer { group } => {
                let mut draft = self.draft(now, group);
                draft.timers();
                draft.finish()
            }
        }
    }

    fn draft(&self, now: Now, group: &Name) -> Draft<'_> {
        let session = self
            .groups
            .get(group)
            .map(|g| g.session.clone())
            .unwrap_or_default();
        Draft::new(now, &self.settings, group.clone(), session)
    }

    fn check_join(&self, request: &command::JoinRequest) -> Result<(), ResponseError> {
        let range = self.settings.min_session_timeout_ms..=self.settings.max_session_timeout_ms;
        if !range.contains(&request.session_timeout_ms) {
            return Err(ResponseError::InvalidSessionTimeout);
        }
        if !request.member_id.is_empty() && !self.groups.contains_key(&request.group) {
            return Err(ResponseError::UnknownMemberId);
        }
        Ok(())
    }

    fn heartbeat(&self, now: Now, token: Token, request: &HeartbeatRequest) -> Decision {
        let instance = request.instance_id.as_ref();
        let mut decision = Decision {
            group: request.group.clone(),
            ..Decision::default()
        };
        let session = self.groups.get(&request.group).map(|g| &g.session);
        let checked = session.ok_or(ResponseError::UnknownMemberId).and_then(|s| {
            s.validate_generation(&request.member_id, instance, request.generation)?;
            let member = s.members.get(&request.member_id);
            Ok((s, member.ok_or(ResponseError::UnknownMemberId)?))
        });
        let result = match checked {
            Ok((session, member)) => {
                let expires = after(now.tick, member.session_timeout_ms);
                decision.change = Change::Touch {
                    member: member.id.clone(),
                    expires,
                };
                match session.state {
                    State::PreparingRebalance => Err(ResponseError::RebalanceInProgress),
                    _ => Ok(()),
                }
            }
            Err(error) => Err(error),
        };
        decision.effects.push((token, Reply::Done(result)));
        decision
    }

    fn delete(&self, token: Token, group: &Name) -> Decision {
        let mut decision = Decision {
            group: group.clone(),
            ..Decision::default()
        };
        let result = match self.groups.get(group) {
            None => Err(ResponseError::GroupIdNotFound),
            Some(g) if g.session.state != State::Empty => Err(ResponseError::NonEmptyGroup),
            Some(g) => {
                for (topic, partitions) in &g.offsets {
                    decision
                        .records
                        .extend(partitions.keys().map(|p| Record::Offset {
                            group: group.clone(),
                            topic: topic.clone(),
                            partition: *p,
                            value: None,
                        }));
                }
                if g.stored.is_some() {
                    decision.records.push(Record::Group {
                        group: group.clone(),
                        value: None,
                    });
                }
                decision.change = Change::End;
                Ok(())
            }
        };
        decision.effects.push((token, Reply::Done(result)));
        decision
    }

    /// Takes a decision in: its records are in the log at `position`. Gives back the answers.
    pub fn accept(
        &mut self,
        decision: Decision,
        position: Option<Position>,
    ) -> Vec<(Token, Reply)> {
        let look_again = matches!(decision.change, Change::Session(_));
        decision
            .records
            .iter()
            .for_each(|record| self.apply(record));
        let name = decision.group;
        match decision.change {
            Change::None => {}
            // A heartbeat only moves a deadline back: the timer that is set finds out by itself.
            Change::Touch { member, expires } => {
                let group = self.groups.get_mut(&name);
                if let Some(member) = group.and_then(|g| g.session.member_mut(&member)) {
                    member.expires = expires;
                }
            }
            Change::Session(session) => {
                let exists = self.groups.contains_key(&name);
                if exists || !session.is_vacant() {
                    let group = self.groups.entry(name.clone()).or_default();
                    group.session = *session;
                    group.weigh_members();
                    self.recount(&name);
                }
            }
            Change::End => self.remove_if_gone(&name),
        }
        if let Some(group) = self.groups.get_mut(&name)
            && let Some(position) = position
        {
            group.changed = position;
        }
        if look_again {
            self.set_timer(&name);
        }
        decision.effects
    }

    /// Applies one record, live or read back.
    pub fn apply(&mut self, record: &Record) {
        let group = self.groups.entry(record.group().clone()).or_default();
        match record {
            Record::Group { value, .. } => {
                group.stored = value.clone();
                group.weigh_members();
            }
            Record::Offset {
                topic,
                partition,
                value: Some(commit),
                ..
            } => {
                let partitions = group.offsets.entry(topic.clone()).or_default();
                if partitions.is_empty() {
                    group.offset_bytes += weight::topic(topic);
                }
                group.offset_bytes += weight::commit(commit);
                if let Some(before) = partitions.insert(*partition, commit.clone()) {
                    group.offset_bytes -= weight::commit(&before);
                }
            }
            Record::Offset {
                topic,
                partition,
                value: None,
                ..
            } => {
                if let Some(partitions) = group.offsets.get_mut(topic) {
                    if let Some(before) = partitions.remove(partition) {
                        group.offset_bytes -= weight::commit(&before);
                    }
                    if partitions.is_empty() {
                        group.offsets.remove(topic);
                        group.offset_bytes -= weight::topic(topic);
                    }
                }
            }
        }
        self.recount(record.group());
    }

    /// After all records were read back: gives every group a session and starts its timers.
    pub fn loaded(&mut self, now: Now) {
        let names: Vec<Name> = self.groups.keys().cloned().collect();
        for name in names {
            if let Some(group) = self.groups.get_mut(&name)
                && let Some(stored) = &group.stored
            {
                group.session = Session::restore(stored, now);
                group.weigh_members();
            }
            self.shrink(now, &name);
            self.recount(&name);
            self.set_timer(&name);
            self.remove_if_gone(&name);
        }
    }

    /// A group that is larger than `group.max.size`, which was lowered while it was away, starts
    /// with a rebalance: its late members find no room.
    fn shrink(&mut self, now: Now, name: &Name) {
        let members = self.groups.get(name).map_or(0, |g| g.session.members.len());
        if members > self.settings.max_size {
            let mut draft = self.draft(now, name);
            draft.prepare_rebalance();
            let decision = draft.finish();
            if let (Change::Session(session), Some(group)) =
                (decision.change, self.groups.get_mut(name))
            {
                group.session = *session;
                group.weigh_members();
            }
        }
    }

    /// Drops a group of which nothing is left. As with Kafka, one that lost its last commit is
    /// there until the next clean-up.
    fn remove_if_gone(&mut self, name: &Name) {
        if let Some(group) = self.groups.get(name)
            && group.stored.is_none()
            && group.offsets.is_empty()
            && group.session.is_vacant()
        {
            if let Some(at) = group.scheduled {
                self.timers.remove(&(at, name.clone()));
            }
            self.bytes -= group.counted;
            self.groups.remove(name);
        }
    }

    fn set_timer(&mut self, name: &Name) {
        let Some(group) = self.groups.get_mut(name) else {
            return;
        };
        let deadline = group.session.deadline();
        let keep = match (group.scheduled, deadline) {
            // One that rings too early is looked at and set anew.
            (Some(at), Some(deadline)) => at <= deadline,
            (scheduled, deadline) => scheduled == deadline,
        };
        if !keep {
            if let Some(at) = group.scheduled {
                self.timers.remove(&(at, name.clone()));
            }
            if let Some(at) = deadline {
                self.timers.insert((at, name.clone()));
            }
            group.scheduled = deadline;
        }
    }

    /// When the next timer of any group may run out.
    pub fn deadline(&self) -> Option<Tick> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// A group with something due. Sets timers anew that rang too early.
    pub fn next_due(&mut self, tick: Tick) -> Option<Name> {
        loop {
            let (at, name) = self.timers.first().filter(|(at, _)| *at <= tick)?.clone();
            let deadline = self.groups.get(&name).and_then(|g| g.session.deadline());
            if deadline.is_some_and(|deadline| deadline <= tick) {
                return Some(name);
            }
            self.timers.remove(&(at, name.clone()));
            if let Some(group) = self.groups.get_mut(&name) {
                group.scheduled = None;
            }
            self.set_timer(&name);
        }
    }

    /// Looks at a group's timers again only later: what was due could not be stored.
    pub fn put_off(&mut self, name: &Name, until: Tick) {
        let Some(group) = self.groups.get_mut(name) else {
            return;
        };
        if let Some(at) = group.scheduled.replace(until) {
            self.timers.remove(&(at, name.clone()));
        }
        self.timers.insert((until, name.clone()));
    }
}

fn answer(command: &Command, token: Token, error: ResponseError) -> Decision {
    let effects = vec![(token, command.refuse(error))];
    Decision {
        group: command.group().clone(),
        effects,
        ..Decision::default()
    }
}
