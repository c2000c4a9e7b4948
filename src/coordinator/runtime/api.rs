//! What handlers call.

use std::sync::atomic::Ordering;

use kafka_protocol::error::ResponseError;

use super::{Groups, Held, Submitted};
use crate::coordinator::group::command::{
    Command, CommitErrors, CommitRequest, HeartbeatRequest, JoinReply, JoinRequest, Leaver, Name,
    Reply, SyncReply, SyncRequest,
};
use crate::coordinator::group::view::{Description, Listed, TopicCommits};
use crate::types::{Position, TopicId};

/// Longest client or instance id that becomes part of a member id.
const LONGEST_NAME: usize = 1_024;

/// Outcome of a question that is not put to a partition whose log is being read.
pub type Asked<T> = Result<Held<T>, ResponseError>;

impl Groups {
    /// JoinGroup: waits for the other members.
    pub async fn join(&self, request: JoinRequest) -> Held<JoinReply> {
        let named = request.instance_id.as_ref().unwrap_or(&request.client_id);
        let fresh_id = fresh_id(named, (self.ids)());
        let (group, member) = (request.group.clone(), request.member_id.clone());
        let submitted = self.submit(&group, |token| Command::Join {
            token,
            request,
            fresh_id,
        });
        let reply = self.wait(submitted).await;
        reply.map(|reply| match reply {
            Some(Reply::Join(reply)) => reply,
            _ => JoinReply::failed(ResponseError::NotCoordinator, member),
        })
    }

    /// SyncGroup: waits for the leader's assignment.
    pub async fn sync(&self, request: SyncRequest) -> Held<SyncReply> {
        let group = request.group.clone();
        let submitted = self.submit(&group, |token| Command::Sync { token, request });
        self.wait(submitted).await.map(|reply| match reply {
            Some(Reply::Sync(reply)) => reply,
            _ => SyncReply::failed(ResponseError::NotCoordinator),
        })
    }

    /// Heartbeat.
    pub fn heartbeat(&self, request: HeartbeatRequest) -> Held<Result<(), ResponseError>> {
        let group = request.group.clone();
        self.done(&group, |token| Command::Heartbeat { token, request })
    }

    /// LeaveGroup: an error for the whole request, or a result per member.
    pub fn leave(
        &self,
        group: Name,
        members: Vec<Leaver>,
    ) -> Held<Result<Vec<Option<ResponseError>>, ResponseError>> {
        let name = group.clone();
        let submitted = self.submit(&name, |token| Command::Leave {
            token,
            group,
            members,
        });
        answered(submitted).map(|reply| match reply {
            Some(Reply::Leave(reply)) => reply,
            _ => Err(ResponseError::NotCoordinator),
        })
    }

    /// OffsetCommit: an error or none per topic and partition, in the order of the request.
    pub fn commit(&self, request: CommitRequest) -> Held<CommitErrors> {
        let group = request.group.clone();
        let submitted = self.submit(&group, |token| Command::Commit { token, request });
        answered(submitted).map(|reply| match reply {
            Some(Reply::Commit(errors)) => errors,
            _ => CommitErrors::new(),
        })
    }

    /// DeleteGroups, one group of it.
    pub fn delete(&self, group: Name) -> Held<Result<(), ResponseError>> {
        let name = group.clone();
        self.done(&name, |token| Command::Delete { token, group })
    }

    /// OffsetDelete: an error for the whole request, or one or none per topic.
    pub fn delete_offsets(
        &self,
        group: Name,
        topics: Vec<(Name, Vec<i32>)>,
    ) -> Held<Result<Vec<Option<ResponseError>>, ResponseError>> {
        let name = group.clone();
        let submitted = self.submit(&name, |token| Command::DeleteOffsets {
            token,
            group,
            topics,
        });
        answered(submitted).map(|reply| match reply {
            Some(Reply::DeleteOffsets(reply)) => reply,
            _ => Err(ResponseError::NotCoordinator),
        })
    }

    /// OffsetFetch for some partitions. Commits of topics that were deleted since count as none.
    pub fn commits(&self, group: &str, topics: &[(Name, Vec<i32>)]) -> Asked<Vec<TopicCommits>> {
        let part = self.part(group);
        refuse(part.phase.refusal())?;
        let value = part
            .machine
            .commits(group, topics, &|name| self.topics.topic_id(name));
        let after = part.machine.changed(group).unwrap_or(part.last);
        Ok(Held { value, after })
    }

    /// OffsetFetch for all partitions that have a commit.
    pub fn all_commits(&self, group: &str) -> Asked<Vec<TopicCommits>> {
        let part = self.part(group);
        refuse(part.phase.refusal())?;
        let value = part
            .machine
            .all_commits(group, &|name| self.topics.topic_id(name));
        let after = part.machine.changed(group).unwrap_or(part.last);
        Ok(Held { value, after })
    }

    /// DescribeGroups, one group of it; `None` if there is no such group.
    pub fn describe(&self, group: &str) -> Asked<Option<Description>> {
        let part = self.part(group);
        refuse(part.phase.refusal())?;
        Ok(match part.machine.describe(group) {
            Some((description, after)) => Held {
                value: Some(description),
                after,
            },
            None => Held {
                value: None,
                after: part.last,
            },
        })
    }

    /// ListGroups, unfiltered.
    pub fn list(&self) -> Asked<Vec<Listed>> {
        let mut all = Held {
            value: Vec::new(),
            after: Position(0),
        };
        for part in &self.parts {
            let part = part.lock();
            refuse(part.phase.refusal())?;
            all.value.extend(part.machine.list());
            all.after = all.after.max(part.last);
        }
        Ok(all)
    }

    /// Writes tombstones for the commits of topics that were deleted. Nobody sees those commits
    /// any more, so nothing waits for this.
    pub fn forget_topics(&self, ids: &[TopicId]) {
        for part in &self.parts {
            let mut part = part.lock();
            if part.phase.refusal().is_some() {
                continue;
            }
            let now = self.now();
            for group in part.machine.names() {
                let command = Command::ForgetTopics {
                    group,
                    ids: ids.to_vec(),
                };
                let decision = part.machine.decide(now, &command);
                if !decision.records.is_empty()
                    && self
                        .store(&mut part, now, decision, &mut Default::default())
                        .is_err()
                {
                    // The regular clean-up finds what is left.
                    return;
                }
            }
        }
    }

    /// Whether some groups can't be asked yet.
    pub fn is_loading(&self) -> bool {
        self.counters.loaded.load(Ordering::Relaxed) < self.parts.len() as u64
    }

    fn done(
        &self,
        group: &str,
        command: impl FnOnce(u64) -> Command,
    ) -> Held<Result<(), ResponseError>> {
        answered(self.submit(group, command)).map(|reply| match reply {
            Some(Reply::Done(result)) => result,
            _ => Err(ResponseError::NotCoordinator),
        })
    }

    async fn wait(&self, submitted: Submitted) -> Held<Option<Reply>> {
        match submitted {
            Submitted::Answered(answer) => answer.map(Some),
            Submitted::Parked(receiver) => match receiver.await {
                Ok(answer) => answer.map(Some),
                Err(_) => Held {
                    value: None,
                    after: Position(0),
                },
            },
        }
    }
}

/// An id that no member had before. It tells people whose it is, and leaves a long name out
/// rather than grow beyond what a string on the wire can hold.
fn fresh_id(named: &str, id: uuid::Uuid) -> Name {
    let named = if named.len() > LONGEST_NAME {
        "member"
    } else {
        named
    };
    format!("{named}-{id}").into()
}

fn answered(submitted: Submitted) -> Held<Option<Reply>> {
    match submitted {
        Submitted::Answered(answer) => answer.map(Some),
        Submitted::Parked(_) => Held {
            value: None,
            after: Position(0),
        },
    }
}

fn refuse(error: Option<ResponseError>) -> Result<(), ResponseError> {
    error.map_or(Ok(()), Err)
}
