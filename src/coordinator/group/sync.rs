//! SyncGroup, Heartbeat, LeaveGroup and the group's timers.

use kafka_protocol::error::ResponseError;

use super::command::{Leaver, Name, Reply, SyncReply, SyncRequest, Token};
use super::draft::Draft;
use super::session::{Session, State};

impl Session {
    /// Checks a member's word on where the group stands.
    pub(super) fn validate_generation(
        &self,
        id: &str,
        instance: Option<&Name>,
        generation: i32,
    ) -> Result<(), ResponseError> {
        self.validate(id, instance)?;
        match generation == self.generation {
            true => Ok(()),
            false => Err(ResponseError::IllegalGeneration),
        }
    }

    fn validate_sync(&self, r: &SyncRequest) -> Result<(), ResponseError> {
        self.validate_generation(&r.member_id, r.instance_id.as_ref(), r.generation)?;
        let differs = |asked: &Option<Name>, ours: &Option<Name>| asked.is_some() && asked != ours;
        if differs(&r.protocol_type, &self.protocol_type) || differs(&r.protocol, &self.protocol) {
            return Err(ResponseError::InconsistentGroupProtocol);
        }
        match self.state {
            State::Empty => Err(ResponseError::UnknownMemberId),
            State::PreparingRebalance => Err(ResponseError::RebalanceInProgress),
            State::CompletingRebalance | State::Stable => Ok(()),
        }
    }
}

impl Draft<'_> {
    /// Answers a SyncGroup, or parks it until the leader's has come.
    pub fn sync(&mut self, token: Token, request: &SyncRequest) {
        if let Err(error) = self.s.validate_sync(request) {
            return self.reply(token, Reply::Sync(SyncReply::failed(error)));
        }
        let id = &request.member_id;
        self.s.pending_syncs.remove(id);
        if self.s.pending_syncs.is_empty() {
            self.s.sync_timer = None;
        }
        if self.s.state == State::Stable {
            let reply = self.synced(id);
            self.heard_of(id);
            return self.reply(token, Reply::Sync(reply));
        }
        let Some(member) = self.s.member_mut(id) else {
            return;
        };
        if let Some(old) = member.syncing.replace(token) {
            // The same member asked again over another connection: nobody reads the first answer.
            let reply = SyncReply::failed(ResponseError::RebalanceInProgress);
            self.reply(old, Reply::Sync(reply));
        }
        if self.s.is_leader(id) {
            self.assign(&request.assignments);
        }
    }

    /// Takes members out; the rest rebalance once.
    pub fn leave(&mut self, token: Token, members: &[Leaver]) {
        let results: Vec<_> = members.iter().map(|m| self.leave_one(m).err()).collect();
        let someone_left = results.iter().any(Option::is_none);
        self.reply(token, Reply::Leave(Ok(results)));
        if someone_left {
            self.after_removal();
        }
    }

    fn leave_one(&mut self, leaver: &Leaver) -> Result<(), ResponseError> {
        let id = if leaver.member_id.is_empty() {
            let instance = leaver.instance_id.as_ref();
            let current = instance.and_then(|i| self.s.instances.get(i));
            current.cloned().ok_or(ResponseError::UnknownMemberId)?
        } else {
            leaver.member_id.clone()
        };
        if !self.s.pending_joins.contains_key(&id) {
            self.s.validate(&id, leaver.instance_id.as_ref())?;
        }
        self.remove_member(&id);
        Ok(())
    }

    fn after_removal(&mut self) {
        match self.s.state {
            State::Empty => {}
            State::PreparingRebalance => self.maybe_complete_join(),
            State::CompletingRebalance | State::Stable => self.prepare_rebalance(),
        }
    }

    /// Does what is due: ids that lapsed, members that fell silent, the end of the joining, syncs
    /// that did not come.
    pub fn timers(&mut self) {
        let tick = self.now.tick;
        let lapsed = self.s.pending_joins.iter().filter(|(_, at)| **at <= tick);
        let lapsed: Vec<Name> = lapsed.map(|(id, _)| id.clone()).collect();
        for id in &lapsed {
            self.remove_member(id);
        }
        if !lapsed.is_empty() {
            self.maybe_complete_join();
        }
        let silent = self
            .s
            .members
            .values()
            .filter(|m| m.deadline().is_some_and(|at| at <= tick));
        let silent: Vec<Name> = silent.map(|m| m.id.clone()).collect();
        for id in &silent {
            self.remove_member(id);
        }
        if !silent.is_empty() {
            self.after_removal();
        }
        if let Some(timer) = self.s.join_timer.filter(|t| t.at <= tick) {
            self.join_timer_ran_out(timer);
        }
        if self.s.sync_timer.is_some_and(|at| at <= tick) {
            self.s.sync_timer = None;
            let missing: Vec<Name> = std::mem::take(&mut self.s.pending_syncs)
                .into_iter()
                .collect();
            for id in &missing {
                self.remove_member(id);
            }
            if !missing.is_empty() {
                self.after_removal();
            }
        }
    }
}
