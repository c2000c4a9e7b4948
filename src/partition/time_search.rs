//! Finding offsets by time: the exact record, also inside a compressed batch.

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;

use crate::partition::log::{Bounds, Partition};
use crate::partition::read::ReadFailure;
use crate::partition::registry::Registry;
use crate::partition::shard::SegmentFile;
use crate::protocol::batch::{BatchError, BatchView, walk};
use crate::store::segment::ReadError;
use crate::types::{FileId, Offset, PartitionKey};

/// Bytes read from a segment file at a time.
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
        let (bounds, wanted, candidates) = candidates(partition, target);
        for candidate in candidates {
            let found = match candidate {
                Candidate::Batch(batch) => {
                    in_batch(&batch, wanted, bounds.log_start, limit, FileId(0))?
                }
                Candidate::Section(file) => {
                    self.in_section(&file, partition.key, wanted, bounds.log_start, limit)?
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
        let Some(section) = self.segments.section(id, key)? else {
            return Ok(None);
        };
        let (mut position, end) = (section.seek_time(wanted), section.end_position());
        let mut step = STEP;
        while position < end {
            let bytes = self
                .segments
                .read(id, position..(position + step).min(end))?;
            let mut used = 0;
            while used < bytes.len() {
                let view = match BatchView::first(&bytes[used..]) {
                    Ok(view) => view,
                    Err(BatchError::Incomplete { .. }) if position + step < end => break,
                    Err(error) => return Err(damaged(id, &error)),
                };
                let batch = &bytes[used..used + view.bytes.len()];
                if view.info.max_timestamp >= wanted
                    && let Some(found) = in_batch(batch, wanted, log_start, limit, id)?
                {
                    return Ok(Some(found));
                }
                used += view.bytes.len();
            }
            // A batch larger than the step is read with a longer one.
            step = if used == 0 { step * 4 } else { STEP };
            position += used as u64;
        }
        Ok(None)
    }
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
    batch: &[u8],
    wanted: i64,
    log_start: Offset,
    limit: u64,
    file: FileId,
) -> Result<Option<Found>, ReadError> {
    let view = BatchView::first(batch).map_err(|e| damaged(file, &e))?;
    view.check_crc().map_err(|e| damaged(file, &e))?;
    let mut found = None;
    walk(&view, limit, &mut |record| {
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

fn damaged(file: FileId, error: &BatchError) -> ReadError {
    ReadError::Damaged {
        file,
        what: error.to_string(),
    }
}
