//! Finding offsets by time: the exact record, also inside a compressed batch.

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;

use crate::partition::log::{Bounds, Partition};
use crate::partition::read::ReadFailure;
use crate::partition::registry::Registry;
use crate::partition::shard::SegmentFile;
use crate::protocol::batch::{BatchError, BatchView, walk};
use crate::store::segment::{Block, ReadError, SegmentStore};
use crate::types::{FileId, Offset, PartitionKey};

/// Share of the read budget that a search holds, for one block at a time.
const STEP: u64 = 256 << 10;

/// What is searched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The first record with this timestamp or a later one.
    AtOrAfter(i64),
    /// The first record with the largest timestamp of the partition.
    Max,
}

/// A record found by its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its offset.
    pub offset: Offset,
    /// Its timestamp.
    pub timestamp: i64,
    /// Leader epoch of its batch.
    pub leader_epoch: i32,
}

/// A place that may hold the record, in offset order.
enum Candidate {
    Section(Arc<SegmentFile>),
    Batch(Bytes),
}

impl Registry {
    /// Searches a partition from its log start on. `decompressed_limit` bounds what a compressed
    /// batch may unfold to.
    pub async fn find_by_time(
        self: &Arc<Self>,
        partition: &Arc<Partition>,
        target: Target,
        decompressed_limit: u64,
    ) -> Result<Option<Found>, ReadFailure> {
        if partition.is_deleted() {
            return Err(ReadFailure::Deleted);
        }
        let (key, registry, partition) = (partition.key, Arc::clone(self), Arc::clone(partition));
        let home = partition.shard().map(|shard| Arc::clone(&shard.home));
        let home = home.unwrap_or_else(|| Arc::clone(self.first()));
        let _share = home.reads.acquire(STEP).await;
        let task = tokio::task::spawn_blocking(move || {
            registry.find_by_time_blocking(&partition, target, decompressed_limit)
        });
        match task.await {
            Ok(result) => self.storage(result, key),
            Err(error) => Err(ReadFailure::Storage(format!(
                "the search was cut off: {error}"
            ))),
        }
    }

    fn find_by_time_blocking(
        &self,
        partition: &Partition,
        target: Target,
        limit: u64,
    ) -> Result<Option<Found>, ReadError> {
        let (bounds, wanted, places) = candidates(partition, target);
        let found = self.first_at_or_after(partition.key, bounds, wanted, places, limit)?;
        if found.is_some() || target != Target::Max {
            return Ok(found);
        }
        // The largest timestamp was that of a record below the log start, which may lie in the
        // batch or the section that the log start cuts: look at what is left record by record.
        let (bounds, _, places) = candidates(partition, Target::AtOrAfter(i64::MIN));
        let Some(largest) = self.largest(partition.key, bounds, &places, limit)? else {
            return Ok(None);
        };
        self.first_at_or_after(partition.key, bounds, largest, places, limit)
    }

    fn first_at_or_after(
        &self,
        key: PartitionKey,
        bounds: Bounds,
        wanted: i64,
        candidates: Vec<Candidate>,
        limit: u64,
    ) -> Result<Option<Found>, ReadError> {
        for candidate in candidates {
            let found = match candidate {
                Candidate::Batch(batch) => {
                    let view = BatchView::first(&batch).map_err(|e| damaged(FileId(0), &e))?;
                    in_batch(&view, wanted, bounds.log_start, limit, FileId(0))?
                }
                Candidate::Section(file) => {
                    self.in_section(&file, key, wanted, bounds.log_start, limit)?
                }
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn in_section(
        &self,
        file: &SegmentFile,
        key: PartitionKey,
        wanted: i64,
        log_start: Offset,
        limit: u64,
    ) -> Result<Option<Found>, ReadError> {
        let id = file.meta.file;
        let segments = &self.directories.get(file.directory).segments;
        let Some(section) = segments.section(id, key)? else {
            return Ok(None);
        };
        each_batch(
            segments,
            id,
            section.blocks_from_time(wanted),
            &mut |view| {
                if view.info.max_timestamp < wanted {
                    return Ok(None);
                }
                in_batch(view, wanted, log_start, limit, id)
            },
        )
    }

    /// The largest timestamp of a record that can still be read.
    fn largest(
        &self,
        key: PartitionKey,
        bounds: Bounds,
        candidates: &[Candidate],
        limit: u64,
    ) -> Result<Option<i64>, ReadError> {
        let mut largest = None;
        for candidate in candidates {
            match candidate {
                Candidate::Batch(batch) => {
                    let view = BatchView::first(batch).map_err(|e| damaged(FileId(0), &e))?;
                    let found = largest_in(&view, bounds.log_start, limit, FileId(0))?;
                    largest = largest.max(found);
                }
                Candidate::Section(file) => {
                    let id = file.meta.file;
                    let segments = &self.directories.get(file.directory).segments;
                    let Some(section) = segments.section(id, key)? else {
                        continue;
                    };
                    let blocks = section.blocks_from(bounds.log_start, u64::MAX).into_iter();
                    each_batch(segments, id, blocks, &mut |view| {
                        largest = largest.max(largest_in(view, bounds.log_start, limit, id)?);
                        Ok(None::<()>)
                    })?;
                }
            }
        }
        Ok(largest)
    }
}

/// Calls `visit` for the batches of some blocks until it finds something. A block whose
/// checksum does not match ends the search: an answer must not rest on it.
fn each_batch<T>(
    segments: &SegmentStore,
    id: FileId,
    blocks: impl Iterator<Item = Block>,
    visit: &mut dyn FnMut(&BatchView<'_>) -> Result<Option<T>, ReadError>,
) -> Result<Option<T>, ReadError> {
    for block in blocks {
        let bytes = segments.read(id, block.range.clone())?;
        if crc32c::crc32c(&bytes) != block.crc {
            let what = format!(
                "the checksum of offsets {} to {} does not match",
                block.start,
                block.end - 1
            );
            return Err(ReadError::Damaged { file: id, what });
        }
        let mut used = 0;
        while used < bytes.len() {
            let view = BatchView::first(&bytes[used..]).map_err(|e| damaged(id, &e))?;
            let found = visit(&view)?;
            if found.is_some() {
                return Ok(found);
            }
            used += view.bytes.len();
        }
    }
    Ok(None)
}

/// The places that may hold the record, and the timestamp that it must have at least.
fn candidates(partition: &Partition, target: Target) -> (Bounds, i64, Vec<Candidate>) {
    partition.search(|bounds, files, tail| {
        let mut sections: Vec<_> = files
            .iter()
            .filter_map(|file| {
                file.meta
                    .section(partition.key)
                    .map(|s| (*s, Arc::clone(file)))
            })
            .filter(|(section, _)| section.end > bounds.log_start)
            .collect();
        sections.sort_by_key(|(section, _)| section.start);
        let wanted = match target {
            Target::AtOrAfter(timestamp) => timestamp,
            Target::Max => sections
                .iter()
                .map(|(section, _)| section.max_timestamp)
                .chain(tail.iter().map(|batch| batch.max_timestamp))
                .max()
                .unwrap_or(i64::MAX),
        };
        let mut candidates: Vec<_> = sections
            .into_iter()
            .filter(|(section, _)| section.max_timestamp >= wanted)
            .map(|(_, file)| Candidate::Section(file))
            .collect();
        let batches = tail.iter().filter(|batch| batch.max_timestamp >= wanted);
        candidates.extend(batches.map(|batch| Candidate::Batch(batch.payload.clone())));
        (bounds, wanted, candidates)
    })
}

fn in_batch(
    view: &BatchView<'_>,
    wanted: i64,
    log_start: Offset,
    limit: u64,
    file: FileId,
) -> Result<Option<Found>, ReadError> {
    view.check_crc().map_err(|e| damaged(file, &e))?;
    let mut found = None;
    walk(view, limit, &mut |record| {
        let offset = view.info.base_offset + i64::from(record.offset_delta);
        if record.timestamp < wanted || offset < log_start {
            return ControlFlow::Continue(());
        }
        let (timestamp, leader_epoch) = (record.timestamp, view.info.leader_epoch);
        found = Some(Found {
            offset,
            timestamp,
            leader_epoch,
        });
        ControlFlow::Break(())
    })
    .map_err(|e| damaged(file, &e))?;
    Ok(found)
}

/// The largest timestamp among the records of a batch from the log start on. The header knows it
/// unless the log start lies within the batch.
fn largest_in(
    view: &BatchView<'_>,
    log_start: Offset,
    limit: u64,
    file: FileId,
) -> Result<Option<i64>, ReadError> {
    view.check_crc().map_err(|e| damaged(file, &e))?;
    if view.info.base_offset >= log_start {
        return Ok(Some(view.info.max_timestamp));
    }
    if view.info.last_offset() < log_start {
        return Ok(None);
    }
    let mut largest = None;
    walk(view, limit, &mut |record| {
        if view.info.base_offset + i64::from(record.offset_delta) >= log_start {
            largest = largest.max(Some(record.timestamp));
        }
        ControlFlow::Continue(())
    })
    .map_err(|e| damaged(file, &e))?;
    Ok(largest)
}

fn damaged(file: FileId, error: &BatchError) -> ReadError {
    ReadError::Damaged {
        file,
        what: error.to_string(),
    }
}
