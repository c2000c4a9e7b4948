//! What the store must hold, kept by the simplest code that can: a state, and the changes that
//! have a place in the journal and are not durable yet.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::ends::Ends;
use super::lineage::Lineage;
use crate::protocol::batch::BatchInfo;
use crate::types::{DirectoryNo, Offset, PartitionKey, Place, Position, ShardId, TopicId, TopicNo};

/// Batches that a producer's retries are answered from.
const WINDOW: usize = 5;

/// A topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TopicState {
    pub(super) no: TopicNo,
    pub(super) id: TopicId,
    pub(super) partitions: u32,
    /// Its records carry the time of their append.
    pub(super) stamps: bool,
    pub(super) lineage: Lineage,
}

/// A batch as its producer sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) payload: Bytes,
    pub(super) records: i32,
    /// Producer and first sequence, if it is idempotent.
    pub(super) producer: Option<(i64, i32)>,
    /// The time of the append, if the topic asks for it.
    pub(super) stamp: Option<i64>,
}

/// Bytes of a batch that are always the server's: base offset, length and leader epoch.
const SERVERS: usize = 16;
const AT_CRC: usize = 17;
const AT_ATTRIBUTES: usize = 21;
const AT_MAX_TIMESTAMP: usize = 35;
const LOG_APPEND_TIME: u8 = 8;

impl Sent {
    /// Whether these bytes are what the store must make of the batch: its own but for offset and
    /// leader epoch, and with the time of the append where the topic asks for that.
    pub(super) fn is(&self, stored: &[u8]) -> bool {
        let Some(stamp) = self.stamp else {
            return self.payload.get(SERVERS..) == stored.get(SERVERS..);
        };
        let mut expected = self.payload.to_vec();
        expected[AT_ATTRIBUTES + 1] |= LOG_APPEND_TIME;
        expected[AT_MAX_TIMESTAMP..AT_MAX_TIMESTAMP + 8].copy_from_slice(&stamp.to_be_bytes());
        let crc = crc32c::crc32c(&expected[AT_ATTRIBUTES..]);
        expected[AT_CRC..AT_ATTRIBUTES].copy_from_slice(&crc.to_be_bytes());
        expected.get(SERVERS..) == stored.get(SERVERS..)
    }

    /// The time that its last record is found by.
    pub(super) fn time(&self) -> i64 {
        let info = BatchInfo::read(&self.payload).expect("a batch");
        self.stamp.unwrap_or(info.max_timestamp)
    }
}

/// A remembered batch of a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Remembered {
    pub(super) first: i32,
    pub(super) last: i32,
    pub(super) base: Offset,
    pub(super) position: Position,
}

/// What becomes of a batch with a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Append,
    Duplicate(Remembered),
    OutOfOrder,
}

/// A partition's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Log {
    pub(super) batches: BTreeMap<Offset, Sent>,
    pub(super) log_start: Offset,
    pub(super) next: Offset,
    pub(super) producers: BTreeMap<i64, VecDeque<Remembered>>,
}

impl Log {
    pub(super) fn judge(&self, sent: &Sent) -> Verdict {
        let Some((id, first)) = sent.producer else {
            return Verdict::Append;
        };
        let last = first + sent.records - 1;
        let Some(window) = self.producers.get(&id) else {
            return Verdict::Append;
        };
        if let Some(found) = window.iter().find(|r| (r.first, r.last) == (first, last)) {
            return Verdict::Duplicate(*found);
        }
        match window.back() {
            Some(newest) if newest.last + 1 == first => Verdict::Append,
            _ => Verdict::OutOfOrder,
        }
    }

    fn append(&mut self, position: Position, sent: &Sent) {
        let base = self.next;
        self.next += i64::from(sent.records);
        self.batches.insert(base, sent.clone());
        if let Some((id, first)) = sent.producer {
            let window = self.producers.entry(id).or_default();
            if window.len() == WINDOW {
                window.pop_front();
            }
            window.push_back(Remembered {
                first,
                last: first + sent.records - 1,
                base,
                position,
            });
        }
    }

    /// The batch that holds an offset, and the ones behind it.
    pub(super) fn from(&self, offset: Offset) -> impl Iterator<Item = (Offset, &Sent)> {
        let first = self.batches.range(..=offset).next_back();
        let from = first.map_or(offset, |(base, _)| *base);
        self.batches.range(from..).map(|(base, sent)| (*base, sent))
    }
}

/// A group's commit of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CommitState {
    pub(super) offset: Offset,
    pub(super) metadata: String,
    pub(super) topic_id: TopicId,
}

/// Group, topic, partition.
pub(super) type CommitKey = (String, String, i32);

/// One change, as the journal has it.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Created {
        name: String,
        topic: TopicState,
    },
    Deleted {
        name: String,
    },
    Grown {
        name: String,
        to: u32,
    },
    Stamps {
        no: TopicNo,
        stamps: bool,
    },
    Reshaped {
        no: TopicNo,
        sealed: Vec<ShardId>,
        opened: Vec<(ShardId, u32)>,
        /// The first offset of each partition in its new shard.
        starts: BTreeMap<u32, Offset>,
    },
    Moved {
        no: TopicNo,
        sealed: ShardId,
        opened: (ShardId, u32),
        home: DirectoryNo,
        /// The next offset of each partition of the topic.
        starts: BTreeMap<u32, Offset>,
        /// Where each partition was handed over.
        at: BTreeMap<u32, Position>,
    },
    Append {
        key: PartitionKey,
        sent: Sent,
    },
    LogStart {
        key: PartitionKey,
        offset: Offset,
    },
    Commit {
        key: CommitKey,
        commit: CommitState,
    },
    GroupDeleted {
        group: String,
    },
    ProducerIds {
        next: i64,
    },
}

impl Change {
    /// Whether it is one of the catalog.
    fn is_catalogs(&self) -> bool {
        match self {
            Self::Created { .. } | Self::Deleted { .. } | Self::Grown { .. } => true,
            Self::Stamps { .. } | Self::Reshaped { .. } | Self::Moved { .. } => true,
            Self::ProducerIds { .. } => true,
            Self::Append { .. } | Self::LogStart { .. } => false,
            Self::Commit { .. } | Self::GroupDeleted { .. } => false,
        }
    }
}

/// The whole store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    pub(super) topics: BTreeMap<String, TopicState>,
    pub(super) logs: BTreeMap<PartitionKey, Log>,
    pub(super) commits: BTreeMap<CommitKey, CommitState>,
    pub(super) next_producer_id: i64,
}

impl State {
    fn apply(&mut self, position: Position, change: &Change) {
        match change {
            Change::Created { name, topic } => {
                self.add_logs(topic.no, 0..topic.partitions);
                self.topics.insert(name.clone(), topic.clone());
            }
            Change::Deleted { name } => {
                if let Some(topic) = self.topics.remove(name) {
                    self.logs.retain(|key, _| key.topic != topic.no);
                }
            }
            Change::Grown { name, to } => {
                if let Some(topic) = self.topics.get_mut(name) {
                    let (no, from) = (topic.no, topic.partitions);
                    topic.partitions = *to;
                    topic.lineage.grow(*to);
                    self.add_logs(no, from..*to);
                }
            }
            Change::Stamps { no, stamps } => {
                let topic = self.topics.values_mut().find(|topic| topic.no == *no);
                if let Some(topic) = topic {
                    topic.stamps = *stamps;
                }
            }
            Change::Reshaped {
                no,
                sealed,
                opened,
                starts,
            } => {
                let topic = self.topics.values_mut().find(|topic| topic.no == *no);
                if let Some(topic) = topic {
                    topic.lineage.reshape(sealed, opened, starts, None);
                }
            }
            Change::Moved {
                no,
                sealed,
                opened,
                home,
                starts,
                at,
            } => self.move_shard(*no, (*sealed, *opened, *home), starts, at),
            Change::Append { key, sent } => {
                if let Some(log) = self.logs.get_mut(key) {
                    log.append(position, sent);
                }
            }
            Change::LogStart { key, offset } => {
                if let Some(log) = self.logs.get_mut(key) {
                    log.log_start = log.log_start.max(*offset);
                    let start = log.log_start;
                    log.batches
                        .retain(|base, sent| base + i64::from(sent.records) > start);
                }
            }
            Change::Commit { key, commit } => {
                self.commits.insert(key.clone(), commit.clone());
            }
            Change::GroupDeleted { group } => {
                self.commits.retain(|(of, _, _), _| of != group);
            }
            Change::ProducerIds { next } => self.next_producer_id = *next,
        }
    }

    /// A shard goes on in another directory. Its partitions' batches stand where they were handed
    /// over from here on.
    fn move_shard(
        &mut self,
        no: TopicNo,
        (sealed, opened, home): (ShardId, (ShardId, u32), DirectoryNo),
        starts: &BTreeMap<u32, Offset>,
        at: &BTreeMap<u32, Position>,
    ) {
        let Some(topic) = self.topics.values_mut().find(|topic| topic.no == no) else {
            return;
        };
        let lineage = &mut topic.lineage;
        lineage.reshape(&[sealed], &[opened], starts, Some(home));
        for (key, log) in self.logs.iter_mut().filter(|(key, _)| key.topic == no) {
            if lineage.shard_of(key.index) != opened.0 {
                continue;
            }
            for batch in log.producers.values_mut().flatten() {
                batch.position = at[&key.index];
            }
        }
    }

    /// The directory that a partition lives in.
    pub(super) fn home_of(&self, key: PartitionKey) -> Option<DirectoryNo> {
        let topic = self.topics.values().find(|topic| topic.no == key.topic)?;
        Some(topic.lineage.home_of(key.index))
    }

    /// Where a partition's last link starts.
    pub(super) fn last_link(&self, key: PartitionKey) -> Option<Offset> {
        let topic = self.topics.values().find(|topic| topic.no == key.topic)?;
        topic.lineage.last_link(key.index)
    }

    /// The partition of a topic that was not deleted.
    pub(super) fn partition(&self, topic: TopicId, index: u32) -> Option<PartitionKey> {
        let found = self.topics.values().find(|t| t.id == topic)?;
        (index < found.partitions).then_some(PartitionKey {
            topic: found.no,
            index,
        })
    }

    fn add_logs(&mut self, topic: TopicNo, indexes: std::ops::Range<u32>) {
        for index in indexes {
            self.logs
                .insert(PartitionKey { topic, index }, Log::default());
        }
    }

    /// The commits that are shown: those whose topic is still the one they were made for.
    pub(super) fn shown_commits(
        &self,
        topics: &BTreeMap<String, TopicState>,
    ) -> BTreeMap<CommitKey, CommitState> {
        let shown = |key: &CommitKey, commit: &CommitState| {
            topics.get(&key.1).is_some_and(|t| t.id == commit.topic_id)
        };
        let all = self.commits.iter();
        all.filter(|(key, commit)| shown(key, commit))
            .map(|(key, commit)| (key.clone(), commit.clone()))
            .collect()
    }
}

/// A journal entry's changes.
#[derive(Clone, Debug, Default)]
struct Queued {
    /// When it got its place, counted over all journals.
    order: u64,
    changes: Vec<Change>,
}

/// What a start did not find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lost {
    /// Entries that are gone.
    pub(super) entries: usize,
    /// One of them was sequenced before an entry of another journal that is there.
    pub(super) before_a_kept_one: bool,
}

/// The state three times: as a power loss leaves it at least, as it is durable (the same, unless
/// the journal syncs at intervals), and with everything that has a place in a journal.
///
/// Each journal is applied in its order, and what is new in several in the order in which it was
/// sequenced. What stands in different ones is about different things, or is only sequenced once what
/// it needs is durable.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    safe: State,
    durable_at: Ends,
    pub(super) durable: State,
    pub(super) sequenced: State,
    queue: BTreeMap<(DirectoryNo, Position), Queued>,
    /// Entries that were sequenced so far, and the newest safe one of each journal.
    order: u64,
    safe_order: BTreeMap<DirectoryNo, u64>,
    /// The last change of each commit, for the position that an answer must wait for.
    pub(super) commit_changed: BTreeMap<CommitKey, Position>,
}

impl Model {
    /// A change got its place.
    pub(super) fn sequence(&mut self, place: Place, change: Change) {
        self.sequenced.apply(place.position, &change);
        match &change {
            Change::Commit { key, .. } => {
                self.commit_changed.insert(key.clone(), place.position);
            }
            Change::GroupDeleted { group } => {
                for (key, at) in &mut self.commit_changed {
                    if key.0 == *group {
                        *at = place.position;
                    }
                }
            }
            _ => {}
        }
        self.order += 1;
        let queued = self.queue.entry((place.directory, place.position));
        let queued = queued.or_default();
        queued.order = self.order;
        queued.changes.push(change);
    }

    /// The first offset that a reshape gives each partition of a topic in its new shard. What is in
    /// another journal than the reshape's may be lost after it: there it is what is durable.
    pub(super) fn starts(&self, no: TopicNo) -> BTreeMap<u32, Offset> {
        let of_topic = |key: &&PartitionKey| key.topic == no;
        let keys = self.sequenced.logs.keys().filter(of_topic);
        let start = |key: &PartitionKey| {
            let state = match self.sequenced.home_of(*key) {
                Some(DirectoryNo(0)) | None => &self.sequenced,
                Some(_) => &self.durable,
            };
            state.logs.get(key).map_or(0, |log| log.next)
        };
        keys.map(|key| (key.index, start(key))).collect()
    }

    /// Whether a topic's newest shards are not durable yet.
    pub(super) fn durable_is_behind(&self, name: &str) -> bool {
        let epoch = |state: &State| state.topics.get(name).map(|topic| topic.lineage.epoch);
        epoch(&self.durable) != epoch(&self.sequenced)
    }

    /// The entries of a journal behind a position.
    fn behind(
        &self,
        directory: DirectoryNo,
        last: Position,
    ) -> impl Iterator<Item = (Position, &Queued)> {
        let (from, to) = (Position(last.0 + 1), Position(u64::MAX));
        let range = self.queue.range((directory, from)..=(directory, to));
        range.map(|((_, position), queued)| (*position, queued))
    }

    /// Whether a reshape has a place in the journal behind this one.
    pub(super) fn reshapes_behind(&self, last: Position) -> bool {
        let behind = self.behind(DirectoryNo(0), last);
        let mut changes = behind.flat_map(|(_, queued)| &queued.changes);
        changes.any(|change| matches!(change, Change::Reshaped { .. } | Change::Moved { .. }))
    }

    /// Where the reshape stands that made this epoch, if it is not durable yet.
    pub(super) fn reshaped_at(&self, no: TopicNo, epoch: u32) -> Position {
        let durable = self.durable.topics.values().find(|topic| topic.no == no);
        if durable.is_some_and(|topic| topic.lineage.epoch >= epoch) {
            return Position(0);
        }
        let first = DirectoryNo(0);
        let mut at = durable.map_or(0, |topic| topic.lineage.epoch);
        for (position, queued) in self.behind(first, self.durable_at.of(first)) {
            for change in &queued.changes {
                let name = match change {
                    Change::Reshaped { no: of, .. } | Change::Moved { no: of, .. } => *of == no,
                    Change::Grown { name, .. } => {
                        self.sequenced.topics.get(name).is_some_and(|t| t.no == no)
                    }
                    _ => false,
                };
                at += u32::from(name);
                if name && at == epoch {
                    return position;
                }
            }
        }
        panic!("epoch {epoch} is nowhere")
    }

    /// The journals are durable, and their sinks have taken in everything, up to `durable`; up to
    /// `synced` they are on stable storage.
    pub(super) fn advance(&mut self, durable: &Ends, synced: &Ends) {
        let mut keys = BTreeMap::new();
        for place in durable.iter() {
            let (directory, from) = (place.directory, self.durable_at.of(place.directory));
            if place.position <= from {
                continue;
            }
            let range = (directory, Position(from.0 + 1))..=(directory, place.position);
            for (key, queued) in self.queue.range(range) {
                // Whatever the sync policy: records elsewhere stand on it, and an id that was told
                // must not be given out again.
                let is_safe = key.1 <= synced.of(directory);
                let mut changes = queued.changes.iter();
                let early = changes.find(|change| change.is_catalogs() && !is_safe);
                assert!(early.is_none(), "told too early: {early:?}");
                keys.insert(queued.order, *key);
            }
            self.durable_at.raise(place);
        }
        // A move is in one journal and about what is in others: what was sequenced first counts
        // first.
        for key in keys.values() {
            let queued = &self.queue[key];
            let apply = |change: &Change| self.durable.apply(key.1, change);
            queued.changes.iter().for_each(apply);
        }
        let mut safe = BTreeMap::new();
        for place in durable.least(synced).iter() {
            let directory = place.directory;
            let all = (directory, Position(0))..=(directory, place.position);
            let range = self.queue.range(all);
            safe.extend(range.map(|(key, queued)| (queued.order, *key)));
        }
        for key in safe.into_values() {
            if let Some(queued) = self.queue.remove(&key) {
                self.make_safe(key, &queued);
            }
        }
    }

    fn make_safe(&mut self, (directory, position): (DirectoryNo, Position), queued: &Queued) {
        for change in &queued.changes {
            self.safe.apply(position, change);
        }
        let newest = self.safe_order.entry(directory).or_default();
        *newest = (*newest).max(queued.order);
    }

    /// The store was started again and its journals end here.
    pub(super) fn restart(&mut self, last: &Ends) -> Lost {
        let mut lost = BTreeMap::new();
        let mut entries = 0;
        let queue = std::mem::take(&mut self.queue).into_iter();
        let in_order: BTreeMap<u64, _> = queue.map(|(key, q)| (q.order, (key, q))).collect();
        for (key, queued) in in_order.into_values() {
            if key.1 <= last.of(key.0) {
                self.make_safe(key, &queued);
                continue;
            }
            entries += 1;
            let first = lost.entry(key.0).or_insert(queued.order);
            *first = queued.order.min(*first);
        }
        let before_a_kept_one = lost.iter().any(|(of, lost)| {
            let mut kept = self.safe_order.iter();
            kept.any(|(other, kept)| other != of && kept > lost)
        });
        self.durable = self.safe.clone();
        self.durable_at = last.clone();
        self.sequenced = self.safe.clone();
        let changed = self.commit_changed.values_mut();
        let end = last.of(DirectoryNo(0));
        changed.for_each(|at| *at = (*at).min(end));
        Lost {
            entries,
            before_a_kept_one,
        }
    }
}
