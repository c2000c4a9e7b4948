//! "Sometimes" counters: a run in which a rare branch never happened proves little, so it fails.

use std::collections::BTreeMap;

/// Every branch that some run of a set of seeds must have taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Branch {
    /// A start cut a torn tail off the journal.
    TornTail,
    /// The process ended between a segment file and its `segments` entry.
    SegmentWithoutEntry,
    /// A retry was answered out of the producer window.
    Duplicate,
    /// A duplicate's original was not durable when the retry came.
    DuplicateOfPending,
    /// A sequence that does not follow was refused.
    OutOfOrder,
    /// The disk was full, client writes were refused, and later taken again.
    DiskFullAndBack,
    /// A flush found no space.
    FlushWithoutSpace,
    /// A start fell back to the older checkpoint root.
    OlderRoot,
    /// A start replayed a journal whose files had been used before.
    RecycledFiles,
    /// The process ended while it started.
    EndedInRecovery,
    /// Power loss after a kill whose un-synced bytes had been read.
    KillThenPowerLoss,
    /// The journal's device failed and the process ended.
    JournalFailed,
    /// Background work's device failed and the process ended.
    BackgroundFailed,
    /// A sequenced append was lost, which nobody had been told of.
    UnackedLost,
    /// Records were read from the tail.
    ReadTail,
    /// Records were read from a segment file.
    ReadFile,
    /// Retention or DeleteRecords moved a log start.
    LogStartMoved,
    /// A segment file was deleted.
    FileDeleted,
    /// A topic was deleted and made again under its name.
    TopicAgain,
    /// An append came to a topic whose deletion was sequenced.
    Sealed,
    /// A commit of a topic that is gone was not shown.
    CommitOfDeletedTopic,
    /// A start found a commit in the log.
    CommitRecovered,
    /// No room in the tail.
    TailFull,
    /// A client wrote while a flush or checkpoint was in the middle of its files.
    Interleaved,
    /// Damage in the journal kept the store from opening.
    JournalDamageRefused,
    /// Damage in a segment file cost its records, and nothing else.
    SegmentDamageReported,
    /// The wall clock jumped by a day or more.
    ClockJump,
    /// A group's log was compacted.
    GroupLogCompacted,
    /// The device failed while the store started.
    FailedStart,
    /// Segment files were merged or rewritten.
    Merged,
    /// Other background work ran in the middle of a merge.
    TurnInMerge,
    /// The process was stopped in good order.
    Stopped,
    /// A start on the older root went on to write checkpoints of its own.
    WentOnFromOlderRoot,
    /// A compressed batch was appended.
    Compressed,
    /// A batch got the time of its append.
    Stamped,
    /// Appends waited for a journal sync that was stuck, and went on after it.
    WentOnAfterStuckSync,
    /// The process ended while a sync of the journal was stuck.
    EndedWhileStuck,
    /// A sync of a file was stuck, and clients wrote meanwhile.
    WorkedBesideStuckSync,
    /// An answer waited in its connection's queue for its position.
    AnswerHeld,
    /// A connection was lost with requests that the server had not looked at.
    RequestLost,
    /// A connection was lost with answers on it.
    AnswerLost,
    /// A producer sent a batch again.
    SentAgain,
    /// A producer's retry through the handlers was answered with the original's offset.
    DuplicateOnNewConnection,
    /// A producer gave a batch up, and its sequence with it.
    ProducerStartedOver,
    /// A client took no answers, and they held a share of the budget.
    SlowReader,
    /// A Fetch waited for records.
    FetchWaited,
    /// A member joined its group.
    MemberJoined,
    /// A member left its group.
    MemberLeft,
    /// A member committed an offset of what it owns.
    MemberCommitted,
    /// A commit of an older generation, or of a member that was taken for dead, was refused.
    CommitFenced,
    /// A member fell silent, and its group went on without it.
    SilentMemberLost,
    /// A static member came back without its id.
    StaticMemberReplaced,
    /// A member went on in its generation after the process had started again.
    WentOnInGenerationAfterStart,
    /// A shard was split.
    Split,
    /// Neighbouring shards were merged.
    ShardsMerged,
    /// A reshape was sequenced before the one in front of it was durable.
    ReshapedAhead,
    /// A reshape was asked for once more and answered as before.
    ReshapeRepeated,
    /// The process ended between a reshape's place in the journal and its being durable.
    ReshapeLost,
    /// A topic was deleted while its newest shards were not durable.
    ReshapedThenDeleted,
    /// A file that both sides of a split had was deleted.
    SharedFileDeleted,
    /// Files were merged into one that belongs to several shards of a topic.
    MergedAcrossShards,
    /// An answer waited for places in two journals, neither of which was durable.
    AnswerOfTwoJournals,
    /// A start found an entry in one journal, and not an earlier one that stood in another.
    OneJournalAhead,
    /// A disk was full while another one took writes.
    OneDirectoryFull,
    /// A merge of shards of different directories was refused.
    HomesDiffer,
    /// A shard went to another directory.
    Moved,
    /// A move came to nothing, and the shard went on where it was.
    MoveGivenUp,
    /// A start carried out a move that the end of the process had cut off.
    MoveResumed,
    /// A client waited for a shard on its way.
    WaitedForMove,
    /// The process ended in the middle of a move.
    EndedInMove,
}

/// All of them, in order.
const ALL: [Branch; 70] = [
    Branch::TornTail,
    Branch::SegmentWithoutEntry,
    Branch::Duplicate,
    Branch::DuplicateOfPending,
    Branch::OutOfOrder,
    Branch::DiskFullAndBack,
    Branch::FlushWithoutSpace,
    Branch::OlderRoot,
    Branch::RecycledFiles,
    Branch::EndedInRecovery,
    Branch::KillThenPowerLoss,
    Branch::JournalFailed,
    Branch::BackgroundFailed,
    Branch::UnackedLost,
    Branch::ReadTail,
    Branch::ReadFile,
    Branch::LogStartMoved,
    Branch::FileDeleted,
    Branch::TopicAgain,
    Branch::Sealed,
    Branch::CommitOfDeletedTopic,
    Branch::CommitRecovered,
    Branch::TailFull,
    Branch::Interleaved,
    Branch::JournalDamageRefused,
    Branch::SegmentDamageReported,
    Branch::ClockJump,
    Branch::GroupLogCompacted,
    Branch::FailedStart,
    Branch::Merged,
    Branch::TurnInMerge,
    Branch::Stopped,
    Branch::WentOnFromOlderRoot,
    Branch::Compressed,
    Branch::Stamped,
    Branch::WentOnAfterStuckSync,
    Branch::EndedWhileStuck,
    Branch::WorkedBesideStuckSync,
    Branch::AnswerHeld,
    Branch::RequestLost,
    Branch::AnswerLost,
    Branch::SentAgain,
    Branch::DuplicateOnNewConnection,
    Branch::ProducerStartedOver,
    Branch::SlowReader,
    Branch::FetchWaited,
    Branch::MemberJoined,
    Branch::MemberLeft,
    Branch::MemberCommitted,
    Branch::CommitFenced,
    Branch::SilentMemberLost,
    Branch::StaticMemberReplaced,
    Branch::WentOnInGenerationAfterStart,
    Branch::Split,
    Branch::ShardsMerged,
    Branch::ReshapedAhead,
    Branch::ReshapeRepeated,
    Branch::ReshapeLost,
    Branch::ReshapedThenDeleted,
    Branch::SharedFileDeleted,
    Branch::MergedAcrossShards,
    Branch::AnswerOfTwoJournals,
    Branch::OneJournalAhead,
    Branch::OneDirectoryFull,
    Branch::HomesDiffer,
    Branch::Moved,
    Branch::MoveGivenUp,
    Branch::MoveResumed,
    Branch::WaitedForMove,
    Branch::EndedInMove,
];

/// How often each branch was taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen(BTreeMap<Branch, u64>);

impl Seen {
    pub(super) fn note(&mut self, branch: Branch) {
        *self.0.entry(branch).or_default() += 1;
    }

    pub(super) fn count(&self, branch: Branch) -> u64 {
        self.0.get(&branch).copied().unwrap_or(0)
    }

    pub(super) fn add(&mut self, other: &Seen) {
        for (branch, count) in &other.0 {
            *self.0.entry(*branch).or_default() += count;
        }
    }

    /// Branches that were never taken.
    pub(super) fn missing(&self) -> Vec<Branch> {
        let missed = |branch: &Branch| self.count(*branch) == 0;
        ALL.into_iter().filter(missed).collect()
    }
}
