//! Writing a segment file.

use std::io;
use std::sync::Arc;

use super::footer::{AbortedTransaction, Draft, HEADER_BYTES, IndexEntry, encode, header};
use super::meta::{SectionMeta, SegmentMeta};
use super::{FOLDER, INDEX_EVERY, STEP, file_path};
use crate::store::backend::{Disk, DiskFile};
use crate::types::{FileId, Offset, PartitionKey};

/// Writes one file from front to back. A file that is not finished is removed again.
///
/// Bytes leave in steps of 1 MiB; after each the kernel is told to start writing back and `pace`
/// is called with the step's length, so that the caller can sleep as long as the disk needs for
/// more urgent work.
pub struct SegmentWriter<'a> {
    disk: Arc<dyn Disk>,
    file: FileId,
    handle: Arc<dyn DiskFile>,
    pace: &'a dyn Fn(u64),
    buffer: Vec<u8>,
    /// Bytes handed to the file.
    written: u64,
    drafts: Vec<Draft>,
    /// An error left the file in an unknown state.
    failed: bool,
    finished: bool,
}

impl<'a> SegmentWriter<'a> {
    /// Makes the file, which must not exist yet.
    pub fn create(disk: &Arc<dyn Disk>, file: FileId, pace: &'a dyn Fn(u64)) -> io::Result<Self> {
        disk.create_dir(FOLDER)?;
        let handle = disk.create(&file_path(file))?;
        let mut buffer = Vec::with_capacity(STEP);
        buffer.extend_from_slice(&header(file));
        Ok(Self {
            disk: Arc::clone(disk),
            file,
            handle,
            pace,
            buffer,
            written: 0,
            drafts: Vec::new(),
            failed: false,
            finished: false,
        })
    }

    /// Bytes of the file so far.
    pub fn bytes(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Starts the section of a partition. Sections may come in any order, a partition only once;
    /// one that gets no batch is left out.
    pub fn begin_section(&mut self, key: PartitionKey) {
        if self.drafts.last().is_some_and(|d| d.meta.bytes == 0) {
            self.drafts.pop();
        }
        let meta = SectionMeta {
            key,
            position: self.bytes(),
            max_timestamp: i64::MIN,
            ..SectionMeta::default()
        };
        self.drafts.push(Draft {
            meta,
            ..Draft::default()
        });
    }

    /// Appends a batch (or several that belong together) with offsets `base..=last` to the
    /// section begun last. Offsets must rise.
    pub fn push(
        &mut self,
        base: Offset,
        last: Offset,
        max_timestamp: i64,
        batch: &[u8],
    ) -> io::Result<()> {
        self.check_usable()?;
        let position = self.bytes();
        let Some(draft) = self.drafts.last_mut() else {
            return Err(invalid("a batch came before any section"));
        };
        let meta = &mut draft.meta;
        if base < 0 || last < base || last == i64::MAX || (meta.bytes > 0 && base < meta.end) {
            let key = meta.key;
            return Err(invalid(format!(
                "offsets {base} to {last} of {key} do not follow {}",
                meta.end
            )));
        }
        if batch.is_empty() {
            return Err(invalid(format!(
                "an empty batch at offset {base} of {}",
                meta.key
            )));
        }
        let block = draft
            .index
            .last()
            .map_or(meta.position, |entry| entry.position);
        if meta.bytes == 0 {
            meta.start = base;
        } else if position - block >= INDEX_EVERY {
            draft.index.push(IndexEntry {
                offset: base,
                max_timestamp: meta.max_timestamp,
                position,
                crc: draft.crc,
            });
            draft.crc = 0;
        }
        draft.crc = crc32c::crc32c_append(draft.crc, batch);
        meta.end = last + 1;
        meta.bytes += batch.len() as u64;
        meta.max_timestamp = meta.max_timestamp.max(max_timestamp);
        self.put(batch)
    }

    /// Notes an aborted transaction of the section begun last, whose marker lies in it.
    pub fn push_aborted(&mut self, transaction: AbortedTransaction) {
        if let Some(draft) = self.drafts.last_mut() {
            draft.aborted.push(transaction);
        }
    }

    /// Writes the footer and returns when bytes and name are durable.
    pub fn finish(mut self) -> io::Result<SegmentMeta> {
        self.check_usable()?;
        if self.drafts.last().is_some_and(|d| d.meta.bytes == 0) {
            self.drafts.pop();
        }
        let mut drafts = std::mem::take(&mut self.drafts);
        drafts.sort_by_key(|d| d.meta.key);
        if let Some([twice, _]) = drafts
            .array_windows::<2>()
            .find(|[a, b]| a.meta.key == b.meta.key)
        {
            return Err(invalid(format!(
                "partition {} has two sections",
                twice.meta.key
            )));
        }
        let footer = encode(self.file, self.bytes(), &drafts);
        self.put(&footer)?;
        self.flush()?;
        self.handle.sync_data()?;
        self.disk.sync_dir(FOLDER)?;
        // The folder itself may be new.
        self.disk.sync_dir("")?;
        self.finished = true;
        let sections = drafts.iter().map(|d| d.meta).collect();
        Ok(SegmentMeta {
            file: self.file,
            bytes: self.written,
            sections,
        })
    }

    /// After an error it is not known which bytes the file holds.
    fn check_usable(&self) -> io::Result<()> {
        if self.failed {
            return Err(io::Error::other(
                "the segment file failed to be written before",
            ));
        }
        Ok(())
    }

    fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let room = STEP - self.buffer.len();
            if room == STEP && bytes.len() >= STEP {
                let (step, rest) = bytes.split_at(STEP);
                self.write(step)?;
                bytes = rest;
                continue;
            }
            let (part, rest) = bytes.split_at(room.min(bytes.len()));
            self.buffer.extend_from_slice(part);
            bytes = rest;
            if self.buffer.len() == STEP {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let result = if buffer.is_empty() {
            Ok(())
        } else {
            self.write(&buffer)
        };
        buffer.clear();
        self.buffer = buffer;
        result
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.failed {
            return Err(io::Error::other(
                "the segment file failed to be written before",
            ));
        }
        let length = bytes.len() as u64;
        self.failed = true;
        self.handle.write_at(bytes, self.written)?;
        self.handle.start_writeback(self.written, length)?;
        self.failed = false;
        self.written += length;
        (self.pace)(length);
        Ok(())
    }
}

impl Drop for SegmentWriter<'_> {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let name = file_path(self.file);
        if let Err(error) = self.disk.delete(&name) {
            tracing::warn!(
                file = name,
                %error,
                "an unfinished segment file could not be removed: it takes space until \
                 the next start"
            );
        }
    }
}

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.into())
}

const _: () = assert!(HEADER_BYTES < STEP);
