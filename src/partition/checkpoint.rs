//! What a checkpoint keeps of the partitions, so that recovery need not read the whole journal.
//!
//! Catalog and segment lists are captured together at one position. Each partition's state carries
//! a position of its own, which may be newer: replay applies an entry to a partition only if it
//! lies behind that.

use std::collections::BTreeMap;
use std::io;

use bytes::{Buf, BufMut, Bytes};

use crate::partition::directory::Directory;
use crate::partition::figures::Figures;
use crate::partition::producer_state::{Producer, Producers, WindowBatch};
use crate::partition::registry::Registry;
use crate::partition::shard::PartitionSequence;
use crate::store::checkpoint::CheckpointStore;
use crate::types::{FileId, PartitionKey, Position, TopicNo};

const VERSION: u8 = 1;
/// Partitions that share a section file.
const PARTITIONS_PER_SECTION: usize = 1024;
/// Sections from this number on hold the catalog, the ones below hold partitions.
const FIRST_CATALOG_SLOT: u32 = 1 << 31;

/// The root's payload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Root {
    /// The tail up to here was in segment files.
    pub flushed: Position,
    /// The number that the next segment file gets.
    pub next_file: u64,
    /// Files in segment lists, in list order.
    pub files: Vec<FileId>,
}

impl Root {
    /// version u8, flushed u64, next file u64, count u32, file numbers u64.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(21 + self.files.len() * 8);
        out.put_u8(VERSION);
        out.put_u64(self.flushed.0);
        out.put_u64(self.next_file);
        out.put_u32(self.files.len() as u32);
        for file in &self.files {
            out.put_u64(file.0);
        }
        out.into()
    }

    /// Reads what [`Root::encode`] wrote.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, String> {
        let short = |_| "the checkpoint root is cut short".to_string();
        check_version(bytes.try_get_u8().map_err(short)?)?;
        let mut root = Self {
            flushed: Position(bytes.try_get_u64().map_err(short)?),
            next_file: bytes.try_get_u64().map_err(short)?,
            files: Vec::new(),
        };
        for _ in 0..bytes.try_get_u32().map_err(short)? {
            root.files.push(FileId(bytes.try_get_u64().map_err(short)?));
        }
        Ok(root)
    }
}

fn check_version(version: u8) -> Result<(), String> {
    if version == VERSION {
        return Ok(());
    }
    Err(format!(
        "a checkpoint section has version {version}, this build reads {VERSION}"
    ))
}

/// Writes one partition: topic u32, index u32, then its sequence.
fn put_partition(out: &mut Vec<u8>, key: PartitionKey, sequence: &PartitionSequence) {
    out.put_u32(key.topic.0);
    out.put_u32(key.index);
    out.put_i64(sequence.next_offset);
    out.put_i64(sequence.log_start);
    out.put_i32(sequence.leader_epoch);
    out.put_u64(sequence.last_position.0);
    put_producers(out, &producers_of(sequence));
}

/// All producers that a partition knows.
pub(super) fn producers_of(sequence: &PartitionSequence) -> Vec<(i64, &Producer)> {
    let producers = sequence.producers.as_deref();
    producers.into_iter().flat_map(Producers::iter).collect()
}

/// Writes producers: count u32, then each with its window.
pub(super) fn put_producers(out: &mut Vec<u8>, producers: &[(i64, &Producer)]) {
    out.put_u32(producers.len() as u32);
    for (id, producer) in producers {
        out.put_i64(*id);
        out.put_i16(producer.epoch);
        out.put_i64(producer.last_used_ms);
        out.put_u8(producer.window.len() as u8);
        for batch in &producer.window {
            out.put_i32(batch.first_sequence);
            out.put_i32(batch.last_sequence);
            out.put_i64(batch.base_offset);
            out.put_i64(batch.timestamp);
            out.put_u64(batch.position.0);
        }
    }
}

fn get_partition(
    bytes: &mut &[u8],
) -> Result<(PartitionKey, PartitionSequence), bytes::TryGetError> {
    let topic = TopicNo(bytes.try_get_u32()?);
    let key = PartitionKey {
        topic,
        index: bytes.try_get_u32()?,
    };
    let mut sequence = PartitionSequence {
        next_offset: bytes.try_get_i64()?,
        log_start: bytes.try_get_i64()?,
        leader_epoch: bytes.try_get_i32()?,
        last_position: Position(bytes.try_get_u64()?),
        producers: None,
    };
    get_producers(bytes, &mut sequence)?;
    Ok((key, sequence))
}

/// Reads what [`put_producers`] wrote into a partition's state.
pub(super) fn get_producers(
    bytes: &mut &[u8],
    sequence: &mut PartitionSequence,
) -> Result<(), bytes::TryGetError> {
    for _ in 0..bytes.try_get_u32()? {
        let id = bytes.try_get_i64()?;
        let mut producer = Producer {
            epoch: bytes.try_get_i16()?,
            last_used_ms: bytes.try_get_i64()?,
            window: Vec::new(),
        };
        let batches = bytes.try_get_u8()?;
        producer.window.reserve_exact(usize::from(batches));
        for _ in 0..batches {
            producer.window.push(WindowBatch {
                first_sequence: bytes.try_get_i32()?,
                last_sequence: bytes.try_get_i32()?,
                base_offset: bytes.try_get_i64()?,
                timestamp: bytes.try_get_i64()?,
                position: Position(bytes.try_get_u64()?),
            });
        }
        sequence
            .producers
            .get_or_insert_default()
            .restore(id, producer);
    }
    Ok(())
}

/// Everything that the sections of a loaded checkpoint hold.
#[derive(Default)]
pub struct LoadedSections {
    /// Encoded catalog, in slot order.
    pub catalog: Vec<Bytes>,
    /// Partition states.
    pub partitions: BTreeMap<PartitionKey, PartitionSequence>,
}

/// Which partition is in which section file.
#[derive(Default)]
pub struct Checkpointer {
    slot_of: BTreeMap<PartitionKey, u32>,
    used: BTreeMap<u32, usize>,
    /// How far the newest checkpoint's segment files reach.
    flushed: Position,
}

impl Checkpointer {
    /// Reads the sections of a loaded checkpoint, and goes on from them.
    pub fn load(
        root: &Root,
        sections: Vec<(u32, Bytes)>,
    ) -> Result<(Self, LoadedSections), String> {
        let mut checkpointer = Self {
            flushed: root.flushed,
            ..Self::default()
        };
        let mut loaded = LoadedSections::default();
        for (slot, bytes) in sections {
            if slot >= FIRST_CATALOG_SLOT {
                loaded.catalog.push(bytes);
                continue;
            }
            let mut rest: &[u8] = &bytes;
            check_version(rest.try_get_u8().map_err(|e| e.to_string())?)?;
            while !rest.is_empty() {
                let (key, sequence) = get_partition(&mut rest)
                    .map_err(|_| format!("checkpoint section {slot} is cut short"))?;
                checkpointer.assign(key, slot);
                loaded.partitions.insert(key, sequence);
            }
        }
        Ok((checkpointer, loaded))
    }

    fn assign(&mut self, key: PartitionKey, slot: u32) {
        self.slot_of.insert(key, slot);
        *self.used.entry(slot).or_default() += 1;
    }

    /// A section file with room for one more partition.
    fn open_slot(&self) -> u32 {
        let with_room = self.used.iter().find(|(_, n)| **n < PARTITIONS_PER_SECTION);
        match with_room {
            Some((slot, _)) => *slot,
            None => (0..)
                .find(|slot| !self.used.contains_key(slot))
                .unwrap_or(0),
        }
    }

    /// Encodes all sections, ascending by slot; `catalog` is encoded already.
    fn sections(
        &mut self,
        catalog: Vec<Bytes>,
        partitions: &BTreeMap<PartitionKey, PartitionSequence>,
    ) -> Vec<(u32, Bytes)> {
        let gone: Vec<_> = self
            .slot_of
            .keys()
            .filter(|key| !partitions.contains_key(key))
            .copied()
            .collect();
        for key in gone {
            if let Some(slot) = self.slot_of.remove(&key)
                && let Some(used) = self.used.get_mut(&slot)
            {
                *used -= 1;
            }
        }
        let mut by_slot: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        for (key, sequence) in partitions {
            let slot = match self.slot_of.get(key) {
                Some(slot) => *slot,
                None => {
                    let slot = self.open_slot();
                    self.assign(*key, slot);
                    slot
                }
            };
            let out = by_slot.entry(slot).or_insert_with(|| vec![VERSION]);
            put_partition(out, *key, sequence);
        }
        self.used.retain(|_, used| *used > 0);
        let partitions = by_slot
            .into_iter()
            .map(|(slot, bytes)| (slot, Bytes::from(bytes)));
        partitions
            .chain((FIRST_CATALOG_SLOT..).zip(catalog))
            .collect()
    }
}

impl Registry {
    /// Writes a checkpoint and trims the journal below what recovery still needs. Writes none while
    /// a shard is handed over from or to the directory, and says so by `false`.
    pub(crate) fn checkpoint(
        &self,
        directory: &Directory,
        store: &mut CheckpointStore,
        checkpointer: &mut Checkpointer,
    ) -> io::Result<bool> {
        let Some(capturing) = directory.capturing.try_lock() else {
            tracing::debug!("a shard is being moved: the checkpoint waits for the next round");
            return Ok(false);
        };
        let (captured, root, image) = {
            let applied = directory.applied.lock();
            let root = Root {
                // With nothing in the tail, all batches up to here are in segment files.
                flushed: match applied.groups.is_empty() {
                    true => applied.position.max(applied.flushed),
                    false => applied.flushed,
                },
                next_file: directory
                    .next_file
                    .load(std::sync::atomic::Ordering::Relaxed),
                files: applied.files.keys().copied().collect(),
            };
            (applied.position, root, self.catalog.image())
        };
        let (partitions, newest) = self.capture_partitions(directory);
        drop(capturing);
        // A start from this checkpoint reads none of the notes up to its position.
        self.witness(directory, true);
        // The copies run ahead of the journal, and a crash must not leave it behind them.
        if !directory.wait_durable(newest) {
            return Err(io::Error::other("the journal has ended"));
        }
        directory.sync_journal()?;
        // The image has forgotten them, and the journal will.
        if directory.no == self.first().no {
            self.archive_epochs(true)?;
        }
        // The catalog's changes are in the first directory's journal.
        let catalog = match directory.no == self.first().no {
            true => image.encode(),
            false => Vec::new(),
        };
        let sections = checkpointer.sections(catalog, &partitions);
        let flushed = root.flushed;
        let published = store.publish(captured, root.encode(), &sections);
        directory.figures.note_checkpoints(store);
        published?;
        Figures::add(&directory.figures.checkpoints, 1);
        // Recovery may have to fall back to the older root, and then needs all that its files lack.
        let older_flushed = std::mem::replace(&mut checkpointer.flushed, flushed);
        if let Some(journal) = directory.journal() {
            journal.trim(older_flushed.min(store.trim_through()));
        }
        Ok(true)
    }

    /// Copies the sequence of each partition that lives in a directory, under its shard's lock; returns the newest position in
    /// the copies.
    fn capture_partitions(
        &self,
        directory: &Directory,
    ) -> (BTreeMap<PartitionKey, PartitionSequence>, Position) {
        let (now, started) = (self.now().steady_ms, self.started.0);
        let expiration = self
            .catalog
            .image()
            .set_at_run_time("producer.id.expiration.ms");
        let expiration = expiration.unwrap_or(self.options.producer_expiration_ms);
        let mut newest = Position(0);
        let mut captured = BTreeMap::new();
        let partitions: Vec<_> = self
            .partitions
            .iter()
            .map(|p| std::sync::Arc::clone(&p))
            .collect();
        for partition in partitions {
            if !partition.lives_in(directory) {
                continue;
            }
            let sequence = partition.sequenced(|_, sequence| {
                if let Some(producers) = &mut sequence.producers {
                    let before = producers.bytes();
                    producers.expire(now, started, expiration);
                    self.producers.account.change(before, producers.bytes());
                    if producers.is_empty() {
                        sequence.producers = None;
                    }
                }
                sequence.clone()
            });
            newest = newest.max(sequence.last_position);
            captured.insert(partition.key, sequence);
        }
        (captured, newest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Environment, Image};
    use crate::partition::producer_state::{Claim, Placed, Room};

    fn sequence(next_offset: i64, producers: i64) -> PartitionSequence {
        let mut sequence = PartitionSequence {
            next_offset,
            log_start: 3,
            leader_epoch: 1,
            last_position: Position(77),
            producers: None,
        };
        for id in 0..producers {
            let claim = Claim {
                producer_id: id,
                epoch: 2,
                first_sequence: 0,
                last_offset_delta: 4,
                is_younger: false,
            };
            let all = sequence.producers.get_or_insert_default();
            let placed = Placed {
                base_offset: id,
                timestamp: 5,
                position: Position(6),
                now_ms: 7,
            };
            let room = Room {
                cap: 100,
                durable: Position(6),
            };
            all.record(&claim, placed, room);
        }
        sequence
    }

    #[test]
    fn partitions_come_back_as_written_each_in_its_section() {
        let mut partitions = BTreeMap::new();
        for index in 0..2500 {
            let key = PartitionKey {
                topic: TopicNo(4),
                index,
            };
            partitions.insert(key, sequence(i64::from(index), i64::from(index % 3)));
        }
        let catalog = || Image::empty(Environment::default()).encode();
        let mut first = Checkpointer::default();
        let sections = first.sections(catalog(), &partitions);
        let of_partitions = |sections: &[(u32, Bytes)]| {
            let slots = sections.iter().map(|(slot, _)| *slot);
            slots.filter(|slot| *slot < FIRST_CATALOG_SLOT).count()
        };
        assert_eq!(of_partitions(&sections), 3, "2500 partitions fill three");
        let (mut again, loaded) = Checkpointer::load(&Root::default(), sections.clone()).unwrap();
        assert_eq!(loaded.partitions, partitions);

        let key = PartitionKey {
            topic: TopicNo(4),
            index: 2000,
        };
        partitions.insert(key, sequence(9999, 0));
        let changed = again.sections(catalog(), &partitions);
        let differ = sections.iter().zip(&changed).filter(|(a, b)| a != b);
        assert_eq!(differ.count(), 1, "a change stays within its section");

        partitions.clear();
        assert_eq!(of_partitions(&again.sections(catalog(), &partitions)), 0);
    }

    #[test]
    fn a_root_comes_back_as_written() {
        let root = Root {
            flushed: Position(9),
            next_file: 12,
            files: vec![FileId(3), FileId(11)],
        };
        assert_eq!(Root::decode(&root.encode()), Ok(root.clone()));
        let bytes = root.encode();
        for cut in 0..bytes.len() {
            assert!(Root::decode(&bytes[..cut]).is_err());
        }
    }
}
