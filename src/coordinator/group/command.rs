//! What is asked of the machine, and what it answers.

use std::sync::Arc;

use bytes::Bytes;
use kafka_protocol::error::ResponseError;

use super::record::Record;
use super::session::Session;
use crate::types::{Offset, TopicId};

/// A name or id that is kept in many places.
pub type Name = Arc<str>;

/// Milliseconds on the monotonic clock.
pub type Tick = u64;

/// Stands for a caller that waits for an answer.
pub type Token = u64;

/// The two clocks, read once per command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Wall time in milliseconds, for what is stored.
    pub wall_ms: i64,
    /// Monotonic milliseconds, for timers.
    pub tick: Tick,
}

/// Limits and times, named as in `server.properties`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `group.initial.rebalance.delay.ms`
    pub initial_rebalance_delay_ms: u64,
    /// `group.min.session.timeout.ms`
    pub min_session_timeout_ms: i32,
    /// `group.max.session.timeout.ms`
    pub max_session_timeout_ms: i32,
    /// `group.max.size`
    pub max_size: usize,
    /// `offset.metadata.max.bytes`
    pub offset_metadata_max_bytes: usize,
    /// `offsets.retention.minutes`, in milliseconds
    pub offsets_retention_ms: i64,
    /// `offsets.retention.check.interval.ms`
    pub offsets_retention_check_ms: u64,
    /// How long a member that never heard its id may wait for its first JoinGroup answer.
    pub new_member_join_timeout_ms: u64,
    /// `budget.groups.bytes`
    pub memory_bytes: u64,
}

impl From<&crate::config::GroupConfig> for Settings {
    fn from(c: &crate::config::GroupConfig) -> Self {
        Self {
            initial_rebalance_delay_ms: u64::try_from(c.initial_rebalance_delay_ms).unwrap_or(0),
            min_session_timeout_ms: c.min_session_timeout_ms,
            max_session_timeout_ms: c.max_session_timeout_ms,
            max_size: usize::try_from(c.max_size).unwrap_or(1),
            offset_metadata_max_bytes: usize::try_from(c.offset_metadata_max_bytes).unwrap_or(0),
            offsets_retention_ms: c.offsets_retention_ms,
            offsets_retention_check_ms: u64::try_from(c.offsets_retention_check_interval_ms)
                .unwrap_or(1),
            ..Self::default()
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            initial_rebalance_delay_ms: 3_000,
            min_session_timeout_ms: 6_000,
            max_session_timeout_ms: 1_800_000,
            max_size: i32::MAX as usize,
            offset_metadata_max_bytes: 4_096,
            offsets_retention_ms: 10_080 * 60_000,
            offsets_retention_check_ms: 600_000,
            new_member_join_timeout_ms: 300_000,
            memory_bytes: 64 << 20,
        }
    }
}

/// A JoinGroup request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinRequest {
    /// The group.
    pub group: Name,
    /// Empty for a member that has no id yet.
    pub member_id: Name,
    /// `group.instance.id` of a static member.
    pub instance_id: Option<Name>,
    /// The client's name of itself.
    pub client_id: Name,
    /// Where it connects from, as Kafka writes it: `/127.0.0.1`.
    pub client_host: Name,
    /// Silence after which the member is taken for dead.
    pub session_timeout_ms: i32,
    /// How long the member may take to join again.
    pub rebalance_timeout_ms: i32,
    /// What kind of group it is: `consumer`, `connect`, …
    pub protocol_type: Name,
    /// Assignment strategies in order of preference, with the member's metadata for each.
    pub protocols: Vec<(Name, Bytes)>,
    /// A dynamic member must come back with the id it is given (from version 4).
    pub require_member_id: bool,
    /// The client understands `skip_assignment` (from version 9).
    pub can_skip_assignment: bool,
}

/// The answer to a JoinGroup request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JoinReply {
    /// What went wrong, if anything.
    pub error: Option<ResponseError>,
    /// −1 with an error.
    pub generation: i32,
    /// The group's kind.
    pub protocol_type: Option<Name>,
    /// The strategy that was voted for.
    pub protocol: Option<Name>,
    /// The member that computes the assignment.
    pub leader: Name,
    /// The leader must not compute an assignment: the group kept the one it has.
    pub skip_assignment: bool,
    /// The member's id.
    pub member_id: Name,
    /// All members with their metadata, for the leader only.
    pub members: Vec<JoinedMember>,
}

impl JoinReply {
    /// An error, with the member id that goes with it.
    pub fn failed(error: ResponseError, member_id: Name) -> Self {
        Self {
            error: Some(error),
            generation: -1,
            member_id,
            ..Self::default()
        }
    }
}

/// A member as the leader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinedMember {
    /// Its id.
    pub id: Name,
    /// Its instance id, if it is static.
    pub instance_id: Option<Name>,
    /// Its metadata for the chosen protocol.
    pub metadata: Bytes,
}

/// A SyncGroup request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncRequest {
    /// The group.
    pub group: Name,
    /// The generation that the member joined.
    pub generation: i32,
    /// The member.
    pub member_id: Name,
    /// Its instance id, if it is static.
    pub instance_id: Option<Name>,
    /// The group's kind as the member knows it (from version 5).
    pub protocol_type: Option<Name>,
    /// The strategy as the member knows it (from version 5).
    pub protocol: Option<Name>,
    /// The leader's work: member id and assignment.
    pub assignments: Vec<(Name, Bytes)>,
}

/// The answer to a SyncGroup request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncReply {
    /// What went wrong, if anything.
    pub error: Option<ResponseError>,
    /// The group's kind.
    pub protocol_type: Option<Name>,
    /// The strategy that was voted for.
    pub protocol: Option<Name>,
    /// What the leader gave this member.
    pub assignment: Bytes,
}

impl SyncReply {
    /// An error.
    pub fn failed(error: ResponseError) -> Self {
        Self {
            error: Some(error),
            ..Self::default()
        }
    }
}

/// A Heartbeat request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeartbeatRequest {
    /// The group.
    pub group: Name,
    /// The generation that the member knows.
    pub generation: i32,
    /// The member.
    pub member_id: Name,
    /// Its instance id, if it is static.
    pub instance_id: Option<Name>,
}

/// One member of a LeaveGroup request: by id, by instance id (with an empty id), or by both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaver {
    /// The member's id, empty to name it by its instance.
    pub member_id: Name,
    /// Its instance id.
    pub instance_id: Option<Name>,
}

/// A commit of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitPartition {
    /// The partition.
    pub partition: i32,
    /// The next offset to read.
    pub offset: Offset,
    /// The leader epoch of the last record read, −1 if unknown.
    pub leader_epoch: i32,
    /// The client's own text.
    pub metadata: Name,
}

/// A commit of one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitTopic {
    /// The topic's name.
    pub name: Name,
    /// Its id: the commit dies with it.
    pub id: TopicId,
    /// Partitions, all of which exist.
    pub partitions: Vec<CommitPartition>,
}

/// An OffsetCommit request: topics and partitions were checked by the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitRequest {
    /// The group.
    pub group: Name,
    /// The generation, −1 from a client that manages its partitions itself.
    pub generation: i32,
    /// The member, empty from such a client.
    pub member_id: Name,
    /// Its instance id, if it is static.
    pub instance_id: Option<Name>,
    /// How long to keep the commits (versions 2 to 4), or as the broker says.
    pub retention_ms: Option<i64>,
    /// The client may be told GROUP_ID_NOT_FOUND (from version 9).
    pub knows_group_id_not_found: bool,
    /// What to commit.
    pub topics: Vec<CommitTopic>,
}

/// Per topic and partition, in the order of the request: what went wrong, if anything.
pub type CommitErrors = Vec<Vec<Option<ResponseError>>>;

/// One thing to decide. Each names one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// JoinGroup, with an id for the case that the member gets one.
    Join {
        /// The caller.
        token: Token,
        /// What it asks.
        request: JoinRequest,
        /// An id that was never used.
        fresh_id: Name,
    },
    /// SyncGroup.
    Sync {
        /// The caller.
        token: Token,
        /// What it asks.
        request: SyncRequest,
    },
    /// Heartbeat.
    Heartbeat {
        /// The caller.
        token: Token,
        /// What it asks.
        request: HeartbeatRequest,
    },
    /// LeaveGroup.
    Leave {
        /// The caller.
        token: Token,
        /// The group.
        group: Name,
        /// Who leaves.
        members: Vec<Leaver>,
    },
    /// OffsetCommit.
    Commit {
        /// The caller.
        token: Token,
        /// What it asks.
        request: CommitRequest,
    },
    /// DeleteGroups, one group of it.
    Delete {
        /// The caller.
        token: Token,
        /// The group.
        group: Name,
    },
    /// OffsetDelete: partitions that exist were chosen by the caller.
    DeleteOffsets {
        /// The caller.
        token: Token,
        /// The group.
        group: Name,
        /// Topics with the partitions whose commits go.
        topics: Vec<(Name, Vec<i32>)>,
    },
    /// A timer of the group ran out.
    Timer {
        /// The group.
        group: Name,
    },
    /// Topics were deleted: their commits go.
    ForgetTopics {
        /// The group.
        group: Name,
        /// Ids of the topics.
        ids: Vec<TopicId>,
    },
}

impl Command {
    /// The group it is about.
    pub fn group(&self) -> &Name {
        match self {
            Self::Join { request, .. } => &request.group,
            Self::Sync { request, .. } => &request.group,
            Self::Heartbeat { request, .. } => &request.group,
            Self::Commit { request, .. } => &request.group,
            Self::Leave { group, .. }
            | Self::Delete { group, .. }
            | Self::DeleteOffsets { group, .. }
            | Self::Timer { group }
            | Self::ForgetTopics { group, .. } => group,
        }
    }

    /// Who waits for its answer, if anyone.
    pub fn token(&self) -> Option<Token> {
        match self {
            Self::Join { token, .. }
            | Self::Sync { token, .. }
            | Self::Heartbeat { token, .. }
            | Self::Leave { token, .. }
            | Self::Commit { token, .. }
            | Self::Delete { token, .. }
            | Self::DeleteOffsets { token, .. } => Some(*token),
            Self::Timer { .. } | Self::ForgetTopics { .. } => None,
        }
    }

    /// The answer when the command can't be carried out at all.
    pub fn refuse(&self, error: ResponseError) -> Reply {
        match self {
            Self::Join { request, .. } => {
                Reply::Join(JoinReply::failed(error, request.member_id.clone()))
            }
            Self::Sync { .. } => Reply::Sync(SyncReply::failed(error)),
            Self::Commit { request, .. } => {
                let all = |t: &CommitTopic| vec![Some(error); t.partitions.len()];
                Reply::Commit(request.topics.iter().map(all).collect())
            }
            Self::Leave { .. } => Reply::Leave(Err(error)),
            Self::DeleteOffsets { .. } => Reply::DeleteOffsets(Err(error)),
            Self::Heartbeat { .. }
            | Self::Delete { .. }
            | Self::Timer { .. }
            | Self::ForgetTopics { .. } => Reply::Done(Err(error)),
        }
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To a JoinGroup.
    Join(JoinReply),
    /// To a SyncGroup.
    Sync(SyncReply),
    /// To a LeaveGroup: an error for all, or one result per member.
    Leave(Result<Vec<Option<ResponseError>>, ResponseError>),
    /// To an OffsetCommit.
    Commit(CommitErrors),
    /// To an OffsetDelete: an error for all, or one per topic.
    DeleteOffsets(Result<Vec<Option<ResponseError>>, ResponseError>),
    /// To a Heartbeat or a DeleteGroups.
    Done(Result<(), ResponseError>),
}

/// What happens to the part of a group that is not stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    #[default]
    None,
    /// A member was heard of.
    Touch {
        /// The member.
        member: Name,
        /// When it is taken for dead.
        expires: Tick,
    },
    /// The group's session as it is from now on.
    Session(Box<Session>),
    /// The group ends, once its records say so.
    End,
}

/// The outcome of a command: nothing has changed until the machine takes it in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The group.
    pub group: Name,
    /// What is to be stored, in order.
    pub records: Vec<Record>,
    /// What changes beside it.
    pub change: Change,
    /// Answers that may leave once the records are durable.
    pub effects: Vec<(Token, Reply)>,
    /// A rebalance of the group was completed.
    pub rebalanced: bool,
    /// Things that were refused because groups may not take more memory.
    pub turned_away: u64,
}
