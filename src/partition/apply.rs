//! Taking journal entries in: the same code after a commit and in recovery.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::catalog::{Change, TopicLookup};
use crate::partition::directory::{Applied, Directory};
use crate::partition::entries::{SegmentsEntry, decode_log_start};
use crate::partition::log::Partition;
use crate::partition::move_entries::MoveEntry;
use crate::partition::registry::Registry;
use crate::partition::routes::topics_of;
use crate::partition::shard::SegmentFile;
use crate::partition::tail::TailBatch;
use crate::partition::witness;
use crate::protocol::batch::BatchView;
use crate::store::journal::{EntryKind, EntryRef, Group, Sink};
use crate::types::{FileId, PartitionKey, Position};

/// Where recovery stands relative to the checkpoint it started from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replay {
    /// Catalog and segment lists hold everything up to here.
    pub(super) captured: Position,
}

/// Takes in what becomes durable in one directory's journal.
pub(super) struct DirectorySink {
    pub(super) registry: Arc<Registry>,
    pub(super) directory: Arc<Directory>,
}

impl Sink for DirectorySink {
    fn commit(&self, group: Group) {
        if let Err(reason) = self.registry.take_in(&self.directory, group, None) {
            tracing::error!(
                reason,
                "a committed journal entry cannot be read back; the process ends to protect the \
                 data: start it again, and if this repeats run `shardgate verify`"
            );
            std::process::abort();
        }
    }
}

impl Registry {
    /// Takes a durable group in.
    pub(crate) fn take_in(
        &self,
        directory: &Directory,
        group: Group,
        replay: Option<Replay>,
    ) -> Result<(), String> {
        let mut applied = directory.applied.lock();
        let mut group = group;
        let mut holds_batches = false;
        for entry in &group.entries {
            match entry.kind {
                EntryKind::Batch => {
                    holds_batches |= self.take_batch(directory, &group, entry, &applied, replay)?;
                }
                EntryKind::Catalog if directory.no != self.first().no => {
                    return Err(format!(
                        "journal entry {} changes the catalog, which only those of the first \
                         directory do",
                        entry.position.0
                    ));
                }
                EntryKind::Catalog => self.take_change(&group, entry, replay)?,
                EntryKind::Segments => {
                    let payload = group.payload(entry);
                    self.take_segments(directory, &payload, entry, &mut applied, replay)?;
                }
                EntryKind::LogStart => self.take_log_start(directory, &group, entry, replay)?,
                // While the process runs, those who append them know what they say.
                EntryKind::Move if replay.is_none() => {}
                EntryKind::Move => self.replay_move(directory, &group, entry)?,
                EntryKind::Witness => applied.witness = witness::decode(&group.payload(entry))?,
            }
            applied.position = entry.position;
        }
        if holds_batches {
            let bytes = group.buffer.len() as u64;
            if replay.is_some() {
                // What a start finds un-flushed takes its room as it did before; else each start
                // on a full disk would take in another tail's worth.
                group.charge = directory.take_room(bytes);
            }
            let held = directory.tail_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
            applied.groups.push_back(Arc::new(group));
            if held >= (directory.tail_limit / 2) as u64 {
                directory.wake.raise();
            }
        } else {
            directory.give_back(group.charge);
        }
        Ok(())
    }

    fn take_batch(
        &self,
        directory: &Directory,
        group: &Group,
        entry: &EntryRef,
        applied: &Applied,
        replay: Option<Replay>,
    ) -> Result<bool, String> {
        let Some(partition) = self.get(entry.key) else {
            self.check_deleted(directory, entry)?;
            return Ok(false);
        };
        if replay.is_some() && !partition.lives_in(directory) {
            return Ok(false);
        }
        let payload = group.payload(entry);
        let view = BatchView::first(&payload).map_err(|e| {
            format!(
                "the batch of entry {} cannot be read: {e}",
                entry.position.0
            )
        })?;
        if replay.is_some() {
            self.replay_batch(&partition, &view, entry.position);
        }
        let batch = TailBatch {
            base: view.info.base_offset,
            last: view.info.last_offset(),
            max_timestamp: view.info.max_timestamp,
            position: entry.position,
            payload: payload.clone(),
        };
        let below_start = replay.is_some() && batch.last < partition.bounds().log_start;
        let in_tail = entry.position > applied.flushed && !below_start;
        partition.publish(batch, view.info.leader_epoch, in_tail);
        Ok(in_tail)
    }

    /// Brings the sequencing side up, which runs ahead of the journal at all other times.
    fn replay_batch(&self, partition: &Partition, view: &BatchView<'_>, at: Position) {
        let now = self.now().steady_ms;
        partition.sequenced(|_, sequence| {
            if at > sequence.last_position {
                sequence.replay_batch(view, at, &self.producers, now);
            }
        });
    }

    fn take_change(
        &self,
        group: &Group,
        entry: &EntryRef,
        replay: Option<Replay>,
    ) -> Result<(), String> {
        if replay.is_some_and(|r| entry.position <= r.captured) {
            return Ok(());
        }
        let change = Change::decode(&group.payload(entry)).map_err(|e| e.to_string())?;
        let before = self.catalog.image();
        let publish = || {
            self.catalog
                .apply_durable(entry.position, &change)
                .map_err(|misfit| misfit.to_string())
        };
        let no = match &change {
            Change::TopicDeleted { no } => {
                publish()?;
                if let Some(topic) = before.topic_by_no(*no) {
                    self.drop_topic(topic);
                }
                return Ok(());
            }
            Change::Reshaped(reshaped) => {
                publish()?;
                self.keep_forgotten(&before, &self.catalog.image(), reshaped.no);
                self.follow_reshape(reshaped, replay.is_some());
                return match replay {
                    Some(_) => self.archive_in_replay(),
                    None => Ok(()),
                };
            }
            Change::TopicCreated(created) => created.no,
            Change::PartitionsAdded { no, .. } => *no,
            _ => return publish(),
        };
        // Partitions are there before anyone can learn of them from the image.
        let after = before
            .apply(&change, entry.position)
            .map_err(|misfit| misfit.to_string())?;
        if let Some(topic) = after.topic_by_no(no) {
            let there = before.topic_by_no(no).map_or(0, |topic| topic.partitions);
            self.create_partitions(topic, there);
        }
        self.keep_forgotten(&before, &after, no);
        publish()
    }

    fn take_segments(
        &self,
        directory: &Directory,
        payload: &[u8],
        entry: &EntryRef,
        applied: &mut Applied,
        replay: Option<Replay>,
    ) -> Result<(), String> {
        if replay.is_some_and(|r| entry.position <= r.captured) {
            return Ok(());
        }
        let segments = SegmentsEntry::decode(payload)?;
        for meta in segments.added {
            directory
                .next_file
                .fetch_max(meta.file.0 + 1, Ordering::Relaxed);
            let file = Arc::new(SegmentFile::new(directory.no, meta));
            if self.holds_deleted(&file) {
                // They were deleted while it was written, and may have been swept for already.
                directory.garbage.store(true, Ordering::Release);
            }
            self.list_file(applied, file);
        }
        for id in segments.removed {
            self.unlist_file(directory, applied, id);
        }
        self.free_tail(directory, applied, segments.flushed);
        Ok(())
    }

    /// Whether all that a file has of some partition is deleted.
    fn holds_deleted(&self, file: &SegmentFile) -> bool {
        let mut sections = file.meta.sections.iter();
        sections.any(|section| section.end <= self.log_start_of(section.key))
    }

    /// Puts a file into the lists of the shards that cover its sections now.
    pub(super) fn list_file(&self, applied: &mut Applied, file: Arc<SegmentFile>) {
        for no in topics_of(&file) {
            if let Some(shards) = self.topic_shards(no) {
                shards.list(&file);
            }
        }
        applied.files.insert(file.meta.file, file);
    }

    fn unlist_file(&self, directory: &Directory, applied: &mut Applied, id: FileId) {
        let Some(file) = applied.files.remove(&id) else {
            return;
        };
        for no in topics_of(&file) {
            if let Some(shards) = self.topic_shards(no) {
                shards.unlist(&file);
            }
        }
        applied.leaving.push(file);
        directory.wake.raise();
    }

    /// Frees the tail up to a flushed position: lists have its records by now.
    fn free_tail(&self, directory: &Directory, applied: &mut Applied, flushed: Position) {
        applied.flushed = applied.flushed.max(flushed);
        let mut keys = std::collections::BTreeSet::new();
        while let Some(group) = applied.groups.front()
            && group.last <= flushed
        {
            keys.extend(group.entries.iter().map(|e| e.key));
            directory
                .tail_bytes
                .fetch_sub(group.buffer.len() as u64, Ordering::Relaxed);
            directory.give_back(group.charge);
            applied.groups.pop_front();
        }
        for key in keys {
            if let Some(partition) = self.get(key).filter(|p| p.lives_in(directory)) {
                partition.free_tail(flushed);
            }
        }
    }

    fn take_log_start(
        &self,
        directory: &Directory,
        group: &Group,
        entry: &EntryRef,
        replay: Option<Replay>,
    ) -> Result<(), String> {
        let Some(partition) = self.get(entry.key) else {
            return self.check_deleted(directory, entry);
        };
        if replay.is_some() && !partition.lives_in(directory) {
            return Ok(());
        }
        let offset = decode_log_start(&group.payload(entry))?;
        if replay.is_some() {
            partition.sequenced(|_, sequence| {
                if entry.position > sequence.last_position {
                    sequence.log_start = sequence.log_start.max(offset);
                    sequence.last_position = entry.position;
                }
            });
        }
        partition.publish_log_start(offset);
        // Since a move its files may lie in any of them.
        for directory in self.directories.iter() {
            directory.garbage.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Takes in what a start reads of a move.
    fn replay_move(
        &self,
        directory: &Directory,
        group: &Group,
        entry: &EntryRef,
    ) -> Result<(), String> {
        let (handed, is_first) = match MoveEntry::decode(&group.payload(entry))? {
            MoveEntry::Seal { shard, to } => {
                self.moves.note_plan(entry.key.topic, shard, Some(to));
                return Ok(());
            }
            MoveEntry::GivenUp { shard } => {
                self.moves.note_plan(entry.key.topic, shard, None);
                return Ok(());
            }
            MoveEntry::HandOver(handed) => (handed, true),
            MoveEntry::MoreProducers(handed) => (handed, false),
        };
        let Some(partition) = self.get(entry.key) else {
            return self.check_deleted(directory, entry);
        };
        // The layout that makes it count may still follow in the first directory's journal. If none
        // does, the directory where the partition lives gives its state once more.
        if directory.no != self.first().no && !partition.lives_in(directory) {
            return Ok(());
        }
        let taken = partition.sequenced(|_, sequence| {
            if entry.position <= sequence.last_position {
                return None;
            }
            self.producers.take_over(sequence, *handed, is_first);
            sequence.stand_at(entry.position);
            let (start, next) = (sequence.log_start, sequence.next_offset);
            is_first.then_some((start, next, sequence.leader_epoch))
        });
        if let Some((log_start, next_offset, leader_epoch)) = taken {
            partition.publish_hand_over(log_start, next_offset, leader_epoch);
        }
        Ok(())
    }

    /// What is to be said of something in a directory that is for a topic which never was.
    pub(super) fn never_created(
        &self,
        directory: &Directory,
        what: &str,
        key: PartitionKey,
    ) -> String {
        let found = format!("{what} for partition {key}, whose topic was never created");
        // Elsewhere an entry is only sequenced once its topic's creation is on stable storage.
        match directory.no == self.first().no {
            true => found,
            false => format!(
                "{found} in {}: that directory is an older copy than this one. Put its newest copy \
                 back, or restore all data directories from copies of one moment",
                self.first().name
            ),
        }
    }

    /// An unknown topic below the allocation mark was deleted; above it the store is damaged.
    fn check_deleted(&self, directory: &Directory, entry: &EntryRef) -> Result<(), String> {
        if !matches!(
            self.catalog.image().lookup(entry.key.topic),
            TopicLookup::Never
        ) {
            return Ok(());
        }
        let what = format!("journal entry {} is", entry.position.0);
        Err(self.never_created(directory, &what, entry.key))
    }
}
