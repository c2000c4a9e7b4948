//! Copying the sections of several files into one.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use bytes::Bytes;

use super::footer::Section;
use super::meta::SegmentMeta;
use super::store::{ReadError, SegmentStore};
use super::writer::SegmentWriter;
use crate::types::{FileId, Offset, PartitionKey};

/// Read at a time, so that many small sections cost few reads.
const WINDOW: u64 = 256 << 10;

/// A file to merge, and what of it.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// Where the file is.
    pub store: &'a SegmentStore,
    /// The file.
    pub file: FileId,
    /// Whether a partition's section is wanted, and from which offset on: index blocks that lie
    /// wholly below are left out.
    pub keep: &'a dyn Fn(PartitionKey) -> Option<Offset>,
}

/// Copies what `sources` keep into the new file `into` of `store`; sections of one partition are joined in
/// offset order. `None` when nothing is kept, and then no file is made.
///
/// Every block's checksum is checked on the way, so damage is reported and never copied. Sections
/// of one partition that leave a gap between them are refused: a third file must hold it, and a
/// reader of the joined section would skip that one.
pub fn merge(
    store: &SegmentStore,
    sources: &[Source<'_>],
    into: FileId,
    pace: &dyn Fn(u64),
) -> io::Result<Option<SegmentMeta>> {
    let mut parts: BTreeMap<PartitionKey, Vec<Part>> = BTreeMap::new();
    for (n, source) in sources.iter().enumerate() {
        for section in source.store.sections(source.file)? {
            let key = section.meta().key;
            if let Some(floor) = (source.keep)(key)
                && section.meta().end > floor
            {
                parts.entry(key).or_default().push(Part {
                    source: n,
                    floor,
                    section,
                });
            }
        }
    }
    if parts.is_empty() {
        return Ok(None);
    }
    let mut windows: Vec<_> = sources.iter().map(|s| Window::new(s.file)).collect();
    let mut writer = store.create(into, pace)?;
    for (key, mut parts) in parts {
        parts.sort_by_key(|part| part.section.meta().start);
        check_joined(key, &parts)?;
        writer.begin_section(key);
        for part in &parts {
            let from = sources[part.source].store;
            part.copy(from, &mut windows[part.source], &mut writer)?;
        }
    }
    writer.finish().map(Some)
}

struct Part {
    source: usize,
    floor: Offset,
    section: Section,
}

impl Part {
    fn copy(
        &self,
        store: &SegmentStore,
        window: &mut Window,
        writer: &mut SegmentWriter<'_>,
    ) -> io::Result<()> {
        for block in self.section.blocks().filter(|block| block.end > self.floor) {
            let bytes = window.read(store, block.range.clone(), self.section.data_end())?;
            if crc32c::crc32c(&bytes) != block.crc {
                let what = format!(
                    "the checksum of offsets {} to {} of partition {} does not match",
                    block.start,
                    block.end - 1,
                    self.section.meta().key
                );
                return Err(ReadError::Damaged {
                    file: window.file,
                    what,
                }
                .into());
            }
            writer.push(block.start, block.end - 1, block.max_timestamp, &bytes)?;
        }
        for transaction in self.section.aborted().filter(|t| t.last >= self.floor) {
            writer.push_aborted(transaction);
        }
        Ok(())
    }
}

fn check_joined(key: PartitionKey, parts: &[Part]) -> io::Result<()> {
    for [one, next] in parts.array_windows() {
        let (end, start) = (one.section.meta().end, next.section.meta().start);
        if end != start {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "sections of {key} do not join: one ends at {end}, the next starts at {start}"
                ),
            ));
        }
    }
    Ok(())
}

/// The part of a source that was read last.
struct Window {
    file: FileId,
    start: u64,
    bytes: Bytes,
}

impl Window {
    fn new(file: FileId) -> Self {
        Self {
            file,
            start: 0,
            bytes: Bytes::new(),
        }
    }

    /// A range of the file, whose sections end at `limit`.
    fn read(
        &mut self,
        store: &SegmentStore,
        range: Range<u64>,
        limit: u64,
    ) -> Result<Bytes, ReadError> {
        if let Some(bytes) = self.slice(&range) {
            return Ok(bytes);
        }
        let end = range.end.max((range.start + WINDOW).min(limit));
        self.bytes = store.read(self.file, range.start..end)?;
        self.start = range.start;
        Ok(self.bytes.slice(..(range.end - range.start) as usize))
    }

    fn slice(&self, range: &Range<u64>) -> Option<Bytes> {
        let from = usize::try_from(range.start.checked_sub(self.start)?).ok()?;
        let to = usize::try_from(range.end.checked_sub(self.start)?).ok()?;
        (from <= to && to <= self.bytes.len()).then(|| self.bytes.slice(from..to))
    }
}
