//! Tests of the machine: a small world with one machine, its log and a clock.

use std::collections::BTreeMap;

use bytes::Bytes;
use kafka_protocol::error::ResponseError;

use super::Machine;
use super::command::*;
use super::record::Record;
use super::session::State;
use crate::coordinator::log::LogRecord;
use crate::types::{Position, TopicId};

mod join;
mod members;
mod offsets;
mod property;
mod records;
mod room;

pub(super) const TOPIC: TopicId = TopicId::from_u128(7);

/// One machine and all that it was told.
pub(super) struct World {
    pub machine: Machine,
    pub now: Now,
    pub log: Vec<LogRecord>,
    pub answers: BTreeMap<Token, Reply>,
    pub tokens: Token,
    /// Counts commands.
    pub position: u64,
}

impl World {
    pub fn new(settings: Settings) -> Self {
        Self {
            machine: Machine::new(settings),
            now: Now {
                wall_ms: 1_000_000,
                tick: 1_000,
            },
            log: Vec::new(),
            answers: BTreeMap::new(),
            tokens: 0,
            position: 0,
        }
    }

    /// Decides, stores, accepts.
    pub fn take(&mut self, decision: Decision) {
        self.position += 1;
        self.log.extend(decision.records.iter().map(Record::encode));
        let stored = !decision.records.is_empty();
        let position = stored.then_some(Position(self.position));
        for (token, reply) in self.machine.accept(decision, position) {
            assert!(
                self.answers.insert(token, reply).is_none(),
                "{token} was answered twice"
            );
        }
    }

    pub fn run(&mut self, command: impl FnOnce(Token) -> Command) -> Token {
        self.tokens += 1;
        let decision = self.machine.decide(self.now, &command(self.tokens));
        self.take(decision);
        self.serve_timers();
        self.tokens
    }

    pub fn serve_timers(&mut self) {
        for round in 0.. {
            assert!(round < 1_000, "timers never come to rest");
            let Some(group) = self.machine.next_due(self.now.tick) else {
                return;
            };
            let decision = self.machine.decide(self.now, &Command::Timer { group });
            self.take(decision);
        }
    }

    /// Lets time pass, stopping at every deadline.
    pub fn wait(&mut self, ms: u64) {
        let until = self.now.tick + ms;
        while let Some(at) = self.machine.deadline().filter(|at| *at <= until) {
            self.set(at.max(self.now.tick));
            self.serve_timers();
        }
        self.set(until);
    }

    fn set(&mut self, tick: Tick) {
        self.now.wall_ms += (tick - self.now.tick) as i64;
        self.now.tick = tick;
    }

    pub fn join(&mut self, request: JoinRequest) -> Token {
        let fresh_id = format!("m{}", self.tokens + 1).into();
        self.run(|token| Command::Join {
            token,
            request,
            fresh_id,
        })
    }

    pub fn joined(&self, token: Token) -> JoinReply {
        match self.answers.get(&token) {
            Some(Reply::Join(reply)) => reply.clone(),
            other => panic!("no JoinGroup answer: {other:?}"),
        }
    }

    pub fn join_now(&mut self, request: JoinRequest) -> JoinReply {
        let token = self.join(request);
        self.joined(token)
    }

    pub fn sync(&mut self, member: &Name, generation: i32, given: &[(&Name, &str)]) -> Token {
        let request = sync_request(member, generation, given);
        self.run(|token| Command::Sync { token, request })
    }

    pub fn synced(&self, token: Token) -> SyncReply {
        match self.answers.get(&token) {
            Some(Reply::Sync(reply)) => reply.clone(),
            other => panic!("no SyncGroup answer: {other:?}"),
        }
    }

    pub fn sync_now(
        &mut self,
        member: &Name,
        generation: i32,
        given: &[(&Name, &str)],
    ) -> SyncReply {
        let token = self.sync(member, generation, given);
        self.synced(token)
    }

    pub fn done(&self, token: Token) -> Result<(), ResponseError> {
        match self.answers.get(&token) {
            Some(Reply::Done(result)) => *result,
            other => panic!("no answer: {other:?}"),
        }
    }

    pub fn heartbeat(&mut self, member: &Name, generation: i32) -> Result<(), ResponseError> {
        self.heartbeat_of(member, generation, None)
    }

    pub fn heartbeat_of(
        &mut self,
        member: &Name,
        generation: i32,
        instance: Option<&str>,
    ) -> Result<(), ResponseError> {
        let request = HeartbeatRequest {
            group: "g".into(),
            generation,
            member_id: member.clone(),
            instance_id: instance.map(Name::from),
        };
        let token = self.run(|token| Command::Heartbeat { token, request });
        self.done(token)
    }

    pub fn leave(&mut self, members: &[(&str, Option<&str>)]) -> Vec<Option<ResponseError>> {
        let members = members.iter().map(|(id, instance)| Leaver {
            member_id: (*id).into(),
            instance_id: instance.map(Name::from),
        });
        let members = members.collect();
        let token = self.run(|token| Command::Leave {
            token,
            group: "g".into(),
            members,
        });
        match self.answers.get(&token) {
            Some(Reply::Leave(Ok(results))) => results.clone(),
            other => panic!("no LeaveGroup answer: {other:?}"),
        }
    }

    pub fn commit(&mut self, member: &str, generation: i32, offset: i64) -> Option<ResponseError> {
        self.commit_as(commit_request(member, generation, offset))
            .first()
            .copied()
            .flatten()
    }

    pub fn commit_as(&mut self, request: CommitRequest) -> Vec<Option<ResponseError>> {
        let token = self.run(|token| Command::Commit { token, request });
        match self.answers.get(&token) {
            Some(Reply::Commit(errors)) => errors.concat(),
            other => panic!("no OffsetCommit answer: {other:?}"),
        }
    }

    pub fn delete(&mut self, group: &str) -> Result<(), ResponseError> {
        let token = self.run(|token| Command::Delete {
            token,
            group: group.into(),
        });
        self.done(token)
    }

    pub fn state(&self) -> Option<State> {
        self.machine.describe("g").map(|(group, _)| group.state)
    }

    /// A stable group with these dynamic members; the first leads.
    pub fn stable(&mut self, count: usize) -> (Vec<Name>, i32) {
        let first: Vec<Token> = (0..count).map(|_| self.join(old_join())).collect();
        self.wait(60_000.min(3_000 * count as u64 + 3_000));
        let replies: Vec<JoinReply> = first.iter().map(|token| self.joined(*token)).collect();
        let ids: Vec<Name> = replies.iter().map(|r| r.member_id.clone()).collect();
        let (leader, generation) = (replies[0].leader.clone(), replies[0].generation);
        let given: Vec<(&Name, &str)> = ids.iter().map(|id| (id, "work")).collect();
        for id in &ids {
            let given = if *id == leader { &given[..] } else { &[] };
            self.sync(id, generation, given);
        }
        assert_eq!(self.state(), Some(State::Stable));
        (ids, generation)
    }

    /// What the log says, read back.
    pub fn replayed(&self) -> Machine {
        let mut machine = Machine::new(Settings::default());
        for record in &self.log {
            let record = Record::decode(&record.key, record.value.as_deref()).unwrap();
            machine.apply(&record);
        }
        machine
    }
}

/// A JoinGroup of version 9 without an id.
pub(super) fn join_request() -> JoinRequest {
    JoinRequest {
        group: "g".into(),
        member_id: "".into(),
        instance_id: None,
        client_id: "client".into(),
        client_host: "/127.0.0.1".into(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 30_000,
        protocol_type: "consumer".into(),
        protocols: protocols(&["range"]),
        require_member_id: true,
        can_skip_assignment: true,
    }
}

/// A JoinGroup of a version that needs no id first.
pub(super) fn old_join() -> JoinRequest {
    JoinRequest {
        require_member_id: false,
        can_skip_assignment: false,
        ..join_request()
    }
}

pub(super) fn rejoin(member: &Name) -> JoinRequest {
    JoinRequest {
        member_id: member.clone(),
        ..join_request()
    }
}

pub(super) fn static_join(instance: &str) -> JoinRequest {
    JoinRequest {
        instance_id: Some(instance.into()),
        ..join_request()
    }
}

pub(super) fn protocols(names: &[&str]) -> Vec<(Name, Bytes)> {
    names
        .iter()
        .map(|n| (Name::from(*n), Bytes::from(format!("meta-{n}"))))
        .collect()
}

pub(super) fn sync_request(member: &Name, generation: i32, given: &[(&Name, &str)]) -> SyncRequest {
    let given = given
        .iter()
        .map(|(id, a)| ((*id).clone(), Bytes::from(a.to_string())));
    SyncRequest {
        group: "g".into(),
        generation,
        member_id: member.clone(),
        instance_id: None,
        protocol_type: Some("consumer".into()),
        protocol: None,
        assignments: given.collect(),
    }
}

pub(super) fn commit_request(member: &str, generation: i32, offset: i64) -> CommitRequest {
    let partition = CommitPartition {
        partition: 0,
        offset,
        leader_epoch: -1,
        metadata: "".into(),
    };
    CommitRequest {
        group: "g".into(),
        generation,
        member_id: member.into(),
        instance_id: None,
        retention_ms: None,
        knows_group_id_not_found: true,
        topics: vec![CommitTopic {
            name: "t".into(),
            id: TOPIC,
            partitions: vec![partition],
        }],
    }
}

pub(super) fn is_topic(name: &str) -> Option<TopicId> {
    (name == "t").then_some(TOPIC)
}
