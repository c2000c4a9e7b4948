//! Layout epochs that no longer fit in memory, on their way to disk and back.
//!
//! The image forgets its oldest epochs by itself. Here they wait until the background thread has
//! put them into the topic's lineage file, which is always before a checkpoint without them lets
//! the journal forget them too. A file may be ahead of what a crash leaves of the journal: what the
//! image still has counts, and a later block of a file counts before an earlier one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::catalog::codec::{DecodeError, Reader, Writer};
use crate::catalog::{Image, Topic, decode_epoch, encode_epoch};
use crate::partition::registry::Registry;
use crate::shard::{Forgotten, ShardSpan};
use crate::store::lineage::{Block, LineageStore, path};
use crate::types::{ShardId, TopicNo};

/// Bytes of one topic's waiting epochs that are worth a write.
const TOPIC_BYTES: usize = 16 << 10;
/// Bytes of all waiting epochs at which every one of them is written.
const ALL_BYTES: usize = 1 << 20;
/// Bytes of all waiting epochs at which no shard is reshaped any more.
const MOST_BYTES: usize = 4 << 20;
/// Most bytes of a block, unless one epoch has more.
const BLOCK_BYTES: usize = 256 << 10;

/// The lineage files, and what has to go there.
pub(super) struct Archive {
    store: LineageStore,
    waiting: Mutex<Waiting>,
    /// Held by whoever writes: the background thread, or recovery.
    writing: Mutex<()>,
}

#[derive(Default)]
struct Waiting {
    epochs: BTreeMap<TopicNo, VecDeque<Forgotten>>,
    bytes: usize,
}

fn bytes_of(epoch: &Forgotten) -> usize {
    let starts: usize = epoch.sealed.iter().map(|s| s.starts.len()).sum();
    200 + starts * 8
}

impl Archive {
    pub(super) fn new(store: LineageStore) -> Self {
        Self {
            store,
            waiting: Mutex::default(),
            writing: Mutex::default(),
        }
    }

    /// Takes in what the image has just forgotten of a topic.
    fn add(&self, no: TopicNo, forgotten: Vec<Forgotten>) {
        let mut waiting = self.waiting.lock();
        waiting.bytes += forgotten.iter().map(bytes_of).sum::<usize>();
        waiting.epochs.entry(no).or_default().extend(forgotten);
    }

    fn is_full(&self) -> bool {
        self.waiting.lock().bytes >= ALL_BYTES
    }

    /// Whether the disk has not taken epochs for so long that no more should be made.
    pub(super) fn is_behind(&self) -> bool {
        self.waiting.lock().bytes >= MOST_BYTES
    }

    fn of(&self, no: TopicNo) -> Vec<Forgotten> {
        let waiting = self.waiting.lock();
        let epochs = waiting.epochs.get(&no).into_iter().flatten();
        epochs.cloned().collect()
    }

    /// Writes what waits: all of it, or what is worth a write.
    fn write(&self, image: &Image, all: bool) -> io::Result<()> {
        let _alone = self.writing.lock();
        let topics: Vec<TopicNo> = {
            let waiting = self.waiting.lock();
            let all = all || waiting.bytes >= ALL_BYTES;
            let due = |epochs: &VecDeque<Forgotten>| {
                all || epochs.iter().map(bytes_of).sum::<usize>() >= TOPIC_BYTES
            };
            let due = waiting.epochs.iter().filter(|(_, epochs)| due(epochs));
            due.map(|(no, _)| *no).collect()
        };
        for no in topics {
            let epochs = self.of(no);
            if let Some(topic) = image.topic_by_no(no) {
                self.write_topic(topic, &epochs)?;
            }
            let mut waiting = self.waiting.lock();
            // Others may have come meanwhile, behind these.
            let written: usize = epochs.iter().map(bytes_of).sum();
            waiting.bytes = waiting.bytes.saturating_sub(written);
            if let Some(queue) = waiting.epochs.get_mut(&no) {
                queue.drain(..epochs.len().min(queue.len()));
                if queue.is_empty() {
                    waiting.epochs.remove(&no);
                }
            }
        }
        Ok(())
    }

    fn write_topic(&self, topic: &Topic, epochs: &[Forgotten]) -> io::Result<()> {
        // A replay forgets again what is in the file. A file that reaches beyond what the image
        // has forgotten is ahead of a journal that was cut: then it is written again.
        let through = self.store.through(topic.no);
        let known = match through < oldest(topic) {
            true => through,
            false => 0,
        };
        let mut block = Writer::new();
        let mut run: Option<(u32, u32)> = None;
        for epoch in epochs.iter().filter(|e| e.record.epoch > known) {
            let sealed: Vec<&ShardSpan> = epoch.sealed.iter().map(AsRef::as_ref).collect();
            block.uint(u64::from(epoch.partitions));
            encode_epoch(&mut block, &epoch.record, &sealed);
            let first = run.map_or(epoch.record.epoch, |run| run.0);
            run = Some((first, epoch.record.epoch));
            if block.len() >= BLOCK_BYTES {
                let payload = std::mem::take(&mut block).finish();
                self.store
                    .append(topic.no, first..=epoch.record.epoch, &payload)?;
                run = None;
            }
        }
        if let Some((first, last)) = run {
            self.store.append(topic.no, first..=last, &block.finish())?;
        }
        Ok(())
    }

    fn read(&self, no: TopicNo, block: &Block) -> io::Result<Result<Vec<Forgotten>, String>> {
        let damaged = |what: &str| {
            let (first, last) = block.epochs.clone().into_inner();
            format!(
                "epochs {first} to {last} in {} are damaged: {what}",
                path(no)
            )
        };
        Ok(match self.store.payload(no, block)? {
            None => Err(damaged("the checksum does not match")),
            Some(bytes) => decode(&bytes).map_err(|error| damaged(&error.to_string())),
        })
    }
}

fn decode(bytes: &[u8]) -> Result<Vec<Forgotten>, DecodeError> {
    let mut r = Reader::new(bytes);
    let mut epochs = Vec::new();
    while !r.is_empty() {
        let partitions = r.u32()?;
        let (record, sealed) = decode_epoch(&mut r)?;
        epochs.push(Forgotten {
            record: Arc::new(record),
            sealed: sealed.into_iter().map(Arc::new).collect(),
            partitions,
        });
    }
    Ok(epochs)
}

/// The oldest epoch that a topic has in memory.
fn oldest(topic: &Topic) -> u32 {
    topic.layout.history().first().map_or(0, |r| r.epoch)
}

impl Registry {
    /// Keeps what a change made the image forget of a topic's layout.
    pub(super) fn keep_forgotten(&self, before: &Image, after: &Image, no: TopicNo) {
        let (Some(before), Some(after)) = (before.topic_by_no(no), after.topic_by_no(no)) else {
            return;
        };
        let forgotten = before.layout.forgotten(&after.layout);
        if !forgotten.is_empty() {
            self.archive.add(no, forgotten);
            if self.archive.is_full() {
                self.first().wake.raise();
            }
        }
    }

    /// Writes epochs that the image has forgotten to disk: what is worth it, or all of them.
    pub(super) fn archive_epochs(&self, all: bool) -> io::Result<()> {
        self.archive.write(&self.catalog.image(), all)
    }

    /// Writes them while recovery runs, when they would take too much memory.
    pub(super) fn archive_in_replay(&self) -> Result<(), String> {
        match self.archive.is_full() {
            true => self.archive_epochs(true).map_err(|e| e.to_string()),
            false => Ok(()),
        }
    }

    /// Deletes the lineage files of topics that are gone.
    pub(super) fn delete_left_lineage(&self) -> io::Result<()> {
        let image = self.catalog.image();
        let gone = |no: &TopicNo| image.topic_by_no(*no).is_none();
        let gone: Vec<TopicNo> = self
            .archive
            .store
            .topics()
            .into_iter()
            .filter(gone)
            .collect();
        if !gone.is_empty() {
            // A start that did not find the deletion would look for the file.
            self.first().sync_journal()?;
        }
        for no in gone {
            self.archive.store.delete(no)?;
        }
        Ok(())
    }

    /// The newest `most` epochs of a topic that lie below `before` and are not in memory any more,
    /// oldest first, with the shards that each of them sealed. Reads the disk. What is damaged
    /// there is missing.
    pub fn old_epochs(&self, no: TopicNo, before: u32, most: usize) -> io::Result<Vec<Forgotten>> {
        let mut found = Vec::new();
        self.visit_old_epochs(no, before, &mut |epoch| {
            found.extend((found.len() < most).then_some(epoch));
            found.len() < most
        })?;
        found.reverse();
        Ok(found)
    }

    /// Of those epochs the ones that sealed one of these shards.
    pub fn old_epochs_of(
        &self,
        no: TopicNo,
        before: u32,
        shards: &[ShardId],
    ) -> io::Result<Vec<Forgotten>> {
        let mut wanted: BTreeSet<ShardId> = shards.iter().copied().collect();
        let mut found = Vec::new();
        self.visit_old_epochs(no, before, &mut |epoch| {
            let sealed = epoch.sealed.iter().map(|shard| wanted.remove(&shard.id));
            if sealed.fold(false, |any, this| any | this) {
                found.push(epoch);
            }
            !wanted.is_empty()
        })?;
        found.reverse();
        Ok(found)
    }

    /// Shows epochs of a topic below `before` that are not in memory any more, the newest first,
    /// until `visit` has seen enough.
    fn visit_old_epochs(
        &self,
        no: TopicNo,
        before: u32,
        visit: &mut dyn FnMut(Forgotten) -> bool,
    ) -> io::Result<()> {
        let waiting = self.archive.of(no);
        let image = self.catalog.image();
        let oldest = image.topic_by_no(no).map_or(0, |topic| oldest(topic));
        // Newest blocks first: what a later one says of an epoch counts.
        let mut below = oldest.min(before);
        let mut show = |epochs: Vec<Forgotten>| {
            for epoch in epochs.into_iter().rev() {
                if epoch.record.epoch < below {
                    below = epoch.record.epoch;
                    if !visit(epoch) {
                        return false;
                    }
                }
            }
            true
        };
        if !show(waiting) {
            return Ok(());
        }
        let scan = self.archive.store.scan(no)?;
        for block in scan.blocks.iter().rev() {
            if let Ok(epochs) = self.archive.read(no, block)?
                && !show(epochs)
            {
                break;
            }
        }
        Ok(())
    }

    /// What is wrong with a topic's lineage file, if anything: each epoch that the image has
    /// forgotten must be there. Reads the whole file.
    pub(super) fn lineage_flaws(&self, no: TopicNo) -> Vec<String> {
        let image = {
            // What the image has forgotten then is in a file, or waits for it.
            let _between_groups = self.first().applied.lock();
            self.catalog.image()
        };
        let Some(topic) = image.topic_by_no(no) else {
            return Vec::new();
        };
        let waiting = self.archive.of(no);
        let scan = match self.archive.store.scan(no) {
            Ok(scan) => scan,
            Err(error) => return vec![format!("{} cannot be read: {error}", path(no))],
        };
        let mut flaws = scan.flaws.clone();
        let mut missing: Vec<bool> = vec![true; oldest(topic) as usize];
        let mut note = |epochs: &[Forgotten]| {
            for epoch in epochs {
                if let Some(missing) = missing.get_mut(epoch.record.epoch as usize) {
                    *missing = false;
                }
            }
        };
        note(&waiting);
        for block in &scan.blocks {
            match self.archive.read(no, block) {
                Ok(Ok(epochs)) => note(&epochs),
                Ok(Err(flaw)) => flaws.push(flaw),
                Err(error) => flaws.push(format!("{} cannot be read: {error}", path(no))),
            }
        }
        let lost = missing.iter().skip(1).filter(|missing| **missing).count();
        if lost > 0 {
            flaws.push(format!("{lost} layout epochs are nowhere"));
        }
        flaws
    }
}
