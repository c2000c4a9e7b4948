//! Move: a shard handed over to another data directory of the node, while clients run.
//!
//! The old home's tail is flushed while appends go on. Then the shard's appenders wait: what is
//! left is flushed, the new home's journal gets what is known of each partition, and the reshape
//! in the first directory's journal makes the new home the shard's home. Up to that entry the shard
//! is in its old home whatever else was written, and any failure opens it there again. Segment
//! files stay where they are; merges of the new home copy what they hold of the shard.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use prometheus_client::metrics::histogram::Histogram;

use crate::catalog::{Decision, Plan, ReshapeError};
use crate::partition::directory::Directory;
use crate::partition::log::Partition;
use crate::partition::maintenance::is_out_of_space;
use crate::partition::move_entries::{MoveEntry, encode_hand_over};
use crate::partition::registry::Registry;
use crate::partition::reshape::Reshaped;
use crate::partition::shard::{PartitionSequence, Shard, Standing};
use crate::store::journal::{Entry, EntryKind};
use crate::types::{DirectoryId, DirectoryNo, PartitionKey, Position, ShardId, TopicNo};

/// Speed of a flush that appenders wait for.
const UNPACED: u64 = u64::MAX / 2;

/// Moves of this node.
pub(super) struct Moves {
    /// One move at a time.
    alone: Mutex<()>,
    /// The process is about to end.
    ended: AtomicBool,
    /// Moves that a start found sealed and not done, with where the shard was to go.
    planned: Mutex<BTreeMap<(TopicNo, ShardId), DirectoryId>>,
    /// Moves that came to nothing after the shard was sealed.
    given_up: AtomicU64,
    /// Seconds for which appenders had to wait.
    pub(super) wait_seconds: Histogram,
}

impl Default for Moves {
    fn default() -> Self {
        const BUCKETS: [f64; 8] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 10.0];
        Self {
            alone: Mutex::default(),
            ended: AtomicBool::new(false),
            planned: Mutex::default(),
            given_up: AtomicU64::new(0),
            wait_seconds: Histogram::new(BUCKETS),
        }
    }
}

impl Moves {
    /// How many came to nothing after the shard was sealed.
    pub(super) fn given_up(&self) -> u64 {
        self.given_up.load(Ordering::Relaxed)
    }

    /// Takes in what a start reads of a move in its old home's journal.
    pub(super) fn note_plan(&self, topic: TopicNo, shard: ShardId, to: Option<DirectoryId>) {
        let mut planned = self.planned.lock();
        match to {
            Some(to) => planned.insert((topic, shard), to),
            None => planned.remove(&(topic, shard)),
        };
    }
}

/// A shard whose appenders wait. Unless it was moved, it goes on in its old home when this is
/// dropped.
struct Stopped<'a> {
    registry: &'a Registry,
    topic: TopicNo,
    shard: Arc<Shard>,
    since: Instant,
    moved: bool,
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        let moves = &self.registry.moves;
        if !self.moved {
            let mut standing = self.shard.lock();
            if matches!(*standing, Standing::Waiting(_)) {
                standing.set(Standing::Open);
            }
            drop(standing);
            let entry = MoveEntry::GivenUp {
                shard: self.shard.id,
            };
            append(&self.shard.home, self.topic, &entry);
            moves.given_up.fetch_add(1, Ordering::Relaxed);
        }
        moves
            .wait_seconds
            .observe(self.since.elapsed().as_secs_f64());
    }
}

/// A partition whose state the new home's journal has.
struct HandedOver {
    partition: Arc<Partition>,
    /// Its last entry in the old home.
    before: Position,
    /// The last entry of the hand-over.
    after: Position,
}

impl HandedOver {
    /// Says of the partition's state where it stands. Nobody appends meanwhile.
    fn stand_at(&self, position: Position) {
        self.partition
            .sequenced(|_, sequence| sequence.stand_at(position));
    }
}

impl PartitionSequence {
    /// Says that all of it stands at one place of a journal.
    pub(super) fn stand_at(&mut self, position: Position) {
        self.last_position = position;
        if let Some(producers) = &mut self.producers {
            producers.stand_at(position);
        }
    }
}

impl Registry {
    /// Moves a shard of a topic to another data directory; blocks until that is durable. One that
    /// is there already, or was moved there before, is answered as moved.
    pub fn move_shard(
        &self,
        topic: TopicNo,
        shard: ShardId,
        to: DirectoryNo,
    ) -> Result<Reshaped, ReshapeError> {
        let to = self.directories.get(to);
        let _alone = self.moves.alone.lock();
        let image = self.catalog.sequenced();
        if let Decision::Done { epoch, opened } = image.move_shard(topic, shard, to.id)? {
            return Ok(Reshaped {
                epoch,
                opened,
                position: image.position(),
                repeated: true,
            });
        }
        let name = image.topic_by_no(topic).map(|topic| topic.name.to_string());
        let failed = |why| ReshapeError::NotMoved {
            topic: name.clone().unwrap_or_default(),
            shard,
            why,
        };
        // Where client writes are refused because the old home is nearly full, moving shards out of
        // it is what helps, and takes next to nothing.
        let first = self.first().journal();
        if first.is_none_or(|journal| journal.short_of_space()) || self.archive.is_behind() {
            return Err(ReshapeError::NoSpace);
        }
        if !to.is_writable() {
            let why = format!(
                "data directory {} is nearly full: free space there or choose another",
                to.name
            );
            return Err(failed(why));
        }
        let old = self
            .routed(topic, shard)
            .ok_or(ReshapeError::UnknownTopic)?;
        let from = Arc::clone(&old.home);
        // Appends go on. What comes during the first is little, and the second has it.
        self.flush_to_move(&from, from.tail_bytes())
            .map_err(&failed)?;
        self.flush_to_move(&from, UNPACED).map_err(&failed)?;
        let _captures = lock_in_order(&from, to);
        let mut stopped = self.stop(topic, old, to).map_err(&failed)?;
        let handed = self.hand_over(topic, &stopped.shard, to).map_err(&failed)?;
        handed.iter().for_each(|each| each.stand_at(each.after));
        let (plan, position) = match self.commit_move(topic, shard, to) {
            Ok(done) => done,
            Err(error) => {
                handed.iter().for_each(|each| each.stand_at(each.before));
                return Err(error);
            }
        };
        stopped.moved = true;
        if !self.first().wait_durable(position) {
            return Err(ReshapeError::JournalEnded);
        }
        drop(stopped);
        to.has_foreign.store(true, Ordering::Release);
        to.merge_wake.raise();
        Ok(Reshaped {
            epoch: plan.epoch,
            opened: plan.opened.iter().map(|(id, _)| *id).collect(),
            position,
            repeated: false,
        })
    }

    /// The shard of that id that appends go to.
    fn routed(&self, topic: TopicNo, id: ShardId) -> Option<Arc<Shard>> {
        let routes = self.topic_shards(topic)?.routes();
        routes.open().iter().find(|shard| shard.id == id).cloned()
    }

    /// Flushes a directory's tail, as far as it is durable.
    fn flush_to_move(&self, from: &Directory, ingest: u64) -> Result<(), String> {
        if self.moves.ended.load(Ordering::Acquire) {
            return Err("the gateway is about to stop: repeat this when it runs again".to_owned());
        }
        self.flush(from, ingest).map(|_| ()).map_err(|error| {
            if !is_out_of_space(&error) {
                (self.fatal)(format!("flushing before a move failed: {error}"));
            }
            format!(
                "its records in {} could not be flushed ({error}): free space there, then repeat \
                 this",
                from.name
            )
        })
    }

    /// Makes the shard's appenders wait, and puts all that it has into segment files.
    fn stop(
        &self,
        topic: TopicNo,
        shard: Arc<Shard>,
        to: &Directory,
    ) -> Result<Stopped<'_>, String> {
        let from = Arc::clone(&shard.home);
        let sealed = {
            let mut standing = shard.lock();
            if !matches!(*standing, Standing::Open) {
                return Err("it was changed meanwhile: look at the topic again".to_owned());
            }
            *standing = Standing::waiting();
            let seal = MoveEntry::Seal {
                shard: shard.id,
                to: to.id,
            };
            append(&from, topic, &seal)
        };
        let stopped = Stopped {
            registry: self,
            topic,
            shard,
            since: Instant::now(),
            moved: false,
        };
        self.wait_for(&from, sealed)?;
        self.flush_to_move(&from, UNPACED)?;
        self.sync_for(&from)?;
        Ok(stopped)
    }

    /// Puts what is known of a stopped shard's partitions into the new home's journal, and waits
    /// until it is on stable storage.
    fn hand_over(
        &self,
        topic: TopicNo,
        shard: &Shard,
        to: &Directory,
    ) -> Result<Vec<HandedOver>, String> {
        let image = self.catalog.sequenced();
        let layout = image.topic_by_no(topic).map(|topic| &topic.layout);
        let span = layout.and_then(|layout| Some((layout, layout.shard(shard.id)?)));
        let partitions = span.map_or(&[][..], |(layout, span)| layout.partitions_of(span));
        let mut handed = Vec::with_capacity(partitions.len());
        let mut last = Position(0);
        for &index in partitions {
            let key = PartitionKey { topic, index };
            // One that is not made yet has nothing to hand over, and gets nothing meanwhile.
            let Some(partition) = self.get(key) else {
                continue;
            };
            let (before, entries) = partition
                .sequenced(|_, sequence| (sequence.last_position, encode_hand_over(sequence)));
            for payload in entries {
                last = append_bytes(to, key, payload);
            }
            handed.push(HandedOver {
                partition,
                before,
                after: last,
            });
        }
        self.wait_for(to, last)?;
        self.sync_for(to)?;
        Ok(handed)
    }

    /// Gives the move its place in the catalog's journal. Appends are led to the new home, where
    /// they wait until that entry is durable.
    fn commit_move(
        &self,
        topic: TopicNo,
        shard: ShardId,
        to: &Directory,
    ) -> Result<(Plan, Position), ReshapeError> {
        let shards = self.topic_shards(topic).ok_or(ReshapeError::UnknownTopic)?;
        let at_ms = self.clock.wall_ms();
        let mut catalog = self.catalog.lock();
        let locked = Instant::now();
        let Decision::Plan(plan) = catalog.image().move_shard(topic, shard, to.id)? else {
            // Nobody else moves a shard meanwhile.
            return Err(ReshapeError::UnknownTopic);
        };
        let moving = self.moving(&plan);
        // All that the partitions have is on stable storage, so links start at their next offsets.
        let position = self.sequence_reshape(&mut catalog, &shards, &plan, &moving, None, at_ms)?;
        drop(catalog);
        self.reshapes.note(&plan, locked.elapsed());
        Ok((plan, position))
    }

    /// Carries out the moves that the process was about to make when it ended. Before anything else
    /// changes the store, so that no checkpoint forgets them.
    pub fn resume_moves(&self) {
        let planned = std::mem::take(&mut *self.moves.planned.lock());
        for ((topic, shard), to) in planned {
            let image = self.catalog.image();
            let Some(found) = image.topic_by_no(topic) else {
                continue;
            };
            let mut open = found.layout.shards().iter();
            if !open.any(|span| span.id == shard && span.home != to) {
                continue;
            }
            let directory = self.directories.iter().find(|d| d.id == to);
            let moved = match directory {
                Some(to) => self
                    .move_shard(topic, shard, to.no)
                    .map_err(|e| e.to_string()),
                None => Err(format!(
                    "log.dirs lacks the data directory with store.id={}",
                    to.0
                )),
            };
            match moved {
                Ok(moved) => tracing::info!(
                    topic = &*found.name,
                    shard = shard.0,
                    epoch = moved.epoch,
                    "a move of a shard that the last end of the process cut off is done"
                ),
                Err(why) => {
                    tracing::warn!(
                        topic = &*found.name,
                        shard = shard.0,
                        why,
                        "a move of a shard that the last end of the process cut off is given up; \
                         the shard is whole in its old directory"
                    );
                    if let Some(shard) = self.routed(topic, shard) {
                        let entry = MoveEntry::GivenUp { shard: shard.id };
                        append(&shard.home, topic, &entry);
                    }
                }
            }
        }
    }

    /// Waits for a journal, but not for one that does not answer.
    fn wait_for(&self, directory: &Directory, position: Position) -> Result<(), String> {
        let patience = self.options.move_patience;
        let journal = directory.journal();
        match journal.map(|journal| journal.wait_at_most(position, patience)) {
            Some(Ok(true)) => Ok(()),
            Some(Ok(false)) => Err(self.no_answer(directory)),
            Some(Err(_)) | None => Err(journal_ended(directory)),
        }
    }

    /// The same for all that was appended, until it is on stable storage: appenders wait meanwhile.
    fn sync_for(&self, directory: &Directory) -> Result<(), String> {
        match directory.sync_journal_at_most(self.options.move_patience) {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.no_answer(directory)),
            Err(_) => Err(journal_ended(directory)),
        }
    }

    fn no_answer(&self, directory: &Directory) -> String {
        format!(
            "the journal of {} did not answer within {} s: look at its device, then repeat this",
            directory.name,
            self.options.move_patience.as_secs()
        )
    }

    /// Waits for the move under way and lets none begin: the journals are about to be closed.
    pub fn end_moves(&self) {
        self.moves.ended.store(true, Ordering::Release);
        drop(self.moves.alone.lock());
    }
}

/// Keeps checkpoints of both directories back.
fn lock_in_order<'a>(one: &'a Directory, other: &'a Directory) -> [MutexGuard<'a, ()>; 2] {
    let (low, high) = match one.no < other.no {
        true => (one, other),
        false => (other, one),
    };
    [low.capturing.lock(), high.capturing.lock()]
}

fn append(directory: &Directory, topic: TopicNo, entry: &MoveEntry) -> Position {
    let key = PartitionKey { topic, index: 0 };
    append_bytes(directory, key, entry.encode())
}

fn append_bytes(directory: &Directory, key: PartitionKey, payload: bytes::Bytes) -> Position {
    let journal = directory.journal();
    journal.map_or(Position(0), |journal| {
        journal.append(Entry {
            kind: EntryKind::Move,
            key,
            payload,
            fill: None,
            charge: 0,
        })
    })
}

fn journal_ended(directory: &Directory) -> String {
    format!(
        "the journal of {} has ended; look again after the next start",
        directory.name
    )
}
