//! The footer: a table of sections, a sparse index and the aborted transactions.
//!
//! It is kept in memory exactly as it lies on disk and searched there, so ten thousand sections
//! cost 60 bytes each and no parsing. [`Footer::parse`] checks every field once, so that nothing
//! behind it can run out of bounds.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::codec::{i64_at, u32_at, u64_at};
use super::meta::SectionMeta;
use crate::types::{FileId, Offset, PartitionKey, TopicNo};

/// Version of the file format.
pub(super) const VERSION: u8 = 1;

/// Length of what precedes the first section.
pub(super) const HEADER_BYTES: usize = 32;
/// Length of what ends a file.
pub(super) const TRAILER_BYTES: usize = 48;

const HEADER_MAGIC: &[u8; 8] = b"SGSEGMNT";
const TRAILER_MAGIC: &[u8; 8] = b"SGSEGEND";
const ROW_BYTES: usize = 60;
const INDEX_BYTES: usize = 28;
const ABORTED_BYTES: usize = 32;

/// Why bytes are no footer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BadFooter {
    Newer(u8),
    Damaged(String),
}

/// A transaction that was aborted: readers of committed records skip what it wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortedTransaction {
    /// The producer that wrote it.
    pub producer_id: i64,
    /// Its first offset.
    pub first: Offset,
    /// The offset of its marker.
    pub last: Offset,
    /// The last stable offset once the marker was there.
    pub stable_after: Offset,
}

/// One step of a section's sparse index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IndexEntry {
    /// Base offset of the batch it points at.
    pub offset: Offset,
    /// No record of the section before it has a greater timestamp.
    pub max_timestamp: i64,
    /// Where that batch lies in the file.
    pub position: u64,
    /// Checksum of the bytes from the entry before it (or the section's start) up to it.
    pub crc: u32,
}

/// A section as the writer gathers it.
#[derive(Clone, Debug, Default)]
pub(super) struct Draft {
    pub meta: SectionMeta,
    pub index: Vec<IndexEntry>,
    pub aborted: Vec<AbortedTransaction>,
    /// Checksum of the bytes behind the last index entry.
    pub crc: u32,
}

/// A run of whole batches between two index entries of a section, with a checksum of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Base offset of its first batch.
    pub start: Offset,
    /// No offset in it is this or greater.
    pub end: Offset,
    /// Its bytes in the file.
    pub range: Range<u64>,
    /// No record of the section up to its end has a greater timestamp.
    pub max_timestamp: i64,
    /// CRC-32C of its bytes.
    pub crc: u32,
}

/// The first bytes of a file.
pub(super) fn header(file: FileId) -> [u8; HEADER_BYTES] {
    let mut out = [0; HEADER_BYTES];
    out[..8].copy_from_slice(HEADER_MAGIC);
    out[8] = VERSION;
    out[12..20].copy_from_slice(&file.0.to_le_bytes());
    let crc = crc32c::crc32c(&out[..28]);
    out[28..].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Checks the first bytes of a file.
pub(super) fn check_header(bytes: &[u8; HEADER_BYTES], file: FileId) -> Result<(), BadFooter> {
    if crc32c::crc32c(&bytes[..28]) != u32_at(bytes, 28) || &bytes[..8] != HEADER_MAGIC {
        return damaged("its header's checksum does not match");
    }
    check_version(bytes[8])?;
    if u64_at(bytes, 12) != file.0 {
        return damaged(format!("its header belongs to file {}", u64_at(bytes, 12)));
    }
    Ok(())
}

fn check_version(version: u8) -> Result<(), BadFooter> {
    match version {
        VERSION => Ok(()),
        0 => damaged("version 0"),
        newer => Err(BadFooter::Newer(newer)),
    }
}

fn damaged<T>(what: impl Into<String>) -> Result<T, BadFooter> {
    Err(BadFooter::Damaged(what.into()))
}

/// Footer and trailer of a file whose sections (ascending by key) end at `position`.
pub(super) fn encode(file: FileId, position: u64, drafts: &[Draft]) -> Vec<u8> {
    let entries: usize = drafts.iter().map(|d| d.index.len()).sum();
    let aborted: usize = drafts.iter().map(|d| d.aborted.len()).sum();
    let length = drafts.len() * ROW_BYTES + entries * INDEX_BYTES + aborted * ABORTED_BYTES;
    let mut out = Vec::with_capacity(length + TRAILER_BYTES);
    let (mut first_entry, mut first_aborted) = (0u32, 0u32);
    for Draft {
        meta,
        index,
        aborted,
        crc,
    } in drafts
    {
        out.extend_from_slice(&meta.key.topic.0.to_le_bytes());
        out.extend_from_slice(&meta.key.index.to_le_bytes());
        out.extend_from_slice(&meta.start.to_le_bytes());
        out.extend_from_slice(&meta.end.to_le_bytes());
        out.extend_from_slice(&meta.position.to_le_bytes());
        out.extend_from_slice(&meta.bytes.to_le_bytes());
        out.extend_from_slice(&meta.max_timestamp.to_le_bytes());
        out.extend_from_slice(&first_entry.to_le_bytes());
        out.extend_from_slice(&first_aborted.to_le_bytes());
        out.extend_from_slice(&crc.to_le_bytes());
        first_entry += index.len() as u32;
        first_aborted += aborted.len() as u32;
    }
    for entry in drafts.iter().flat_map(|d| &d.index) {
        out.extend_from_slice(&entry.offset.to_le_bytes());
        out.extend_from_slice(&entry.max_timestamp.to_le_bytes());
        out.extend_from_slice(&entry.position.to_le_bytes());
        out.extend_from_slice(&entry.crc.to_le_bytes());
    }
    for txn in drafts.iter().flat_map(|d| &d.aborted) {
        for field in [txn.producer_id, txn.first, txn.last, txn.stable_after] {
            out.extend_from_slice(&field.to_le_bytes());
        }
    }
    let counts = [drafts.len() as u32, entries as u32, aborted as u32];
    let crc = crc32c::crc32c(&out);
    out.extend_from_slice(&trailer(file, position, counts, crc));
    out
}

fn trailer(file: FileId, position: u64, counts: [u32; 3], crc: u32) -> [u8; TRAILER_BYTES] {
    let mut out = [0; TRAILER_BYTES];
    out[..8].copy_from_slice(TRAILER_MAGIC);
    out[8] = VERSION;
    for (n, count) in counts.iter().enumerate() {
        out[12 + 4 * n..16 + 4 * n].copy_from_slice(&count.to_le_bytes());
    }
    out[24..32].copy_from_slice(&file.0.to_le_bytes());
    out[32..40].copy_from_slice(&position.to_le_bytes());
    out[40..44].copy_from_slice(&crc.to_le_bytes());
    let own = crc32c::crc32c(&out[..44]);
    out[44..].copy_from_slice(&own.to_le_bytes());
    out
}

/// Where a file's footer lies and how it is cut, as the trailer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trailer {
    file: FileId,
    pub position: u64,
    sections: usize,
    entries: usize,
    aborted: usize,
    crc: u32,
}

impl Trailer {
    /// Reads the last bytes of a file of `file_bytes`.
    pub(super) fn parse(
        bytes: &[u8; TRAILER_BYTES],
        file: FileId,
        file_bytes: u64,
    ) -> Result<Self, BadFooter> {
        if crc32c::crc32c(&bytes[..44]) != u32_at(bytes, 44) || &bytes[..8] != TRAILER_MAGIC {
            return damaged("its trailer's checksum does not match");
        }
        check_version(bytes[8])?;
        let trailer = Self {
            file: FileId(u64_at(bytes, 24)),
            position: u64_at(bytes, 32),
            sections: u32_at(bytes, 12) as usize,
            entries: u32_at(bytes, 16) as usize,
            aborted: u32_at(bytes, 20) as usize,
            crc: u32_at(bytes, 40),
        };
        if trailer.file != file {
            return damaged(format!("its trailer belongs to file {}", trailer.file.0));
        }
        let end = trailer
            .position
            .checked_add((trailer.footer_bytes() + TRAILER_BYTES) as u64);
        if end != Some(file_bytes) || trailer.position < HEADER_BYTES as u64 {
            return damaged("its length does not match its trailer");
        }
        Ok(trailer)
    }

    /// Length of the footer without the trailer.
    pub(super) fn footer_bytes(&self) -> usize {
        self.sections * ROW_BYTES + self.entries * INDEX_BYTES + self.aborted * ABORTED_BYTES
    }
}

/// A checked footer.
#[derive(Debug)]
pub(super) struct Footer {
    file_bytes: u64,
    trailer: Trailer,
    bytes: Bytes,
}

impl Footer {
    /// Checks the footer that `trailer` describes.
    pub(super) fn parse(trailer: Trailer, bytes: Bytes) -> Result<Self, BadFooter> {
        if bytes.len() != trailer.footer_bytes() || crc32c::crc32c(&bytes) != trailer.crc {
            return damaged("its footer's checksum does not match");
        }
        let file_bytes = trailer.position + (trailer.footer_bytes() + TRAILER_BYTES) as u64;
        let footer = Self {
            file_bytes,
            trailer,
            bytes,
        };
        for row in 0..footer.trailer.sections {
            if !footer.row_is_sound(row) {
                return damaged(format!("row {row} of its footer contradicts itself"));
            }
        }
        Ok(footer)
    }

    fn row_is_sound(&self, row: usize) -> bool {
        let meta = self.meta(row);
        let (entries, aborted) = (self.entries_of(row), self.aborted_of(row));
        let Some(end) = meta.position.checked_add(meta.bytes) else {
            return false;
        };
        let ranges = entries.start <= entries.end
            && entries.end <= self.trailer.entries
            && aborted.start <= aborted.end
            && aborted.end <= self.trailer.aborted
            && (row > 0 || (entries.start == 0 && aborted.start == 0));
        let ordered = row == 0 || self.meta(row - 1).key < meta.key;
        let fields = 0 <= meta.start
            && meta.start < meta.end
            && meta.position >= HEADER_BYTES as u64
            && end <= self.trailer.position;
        if !(ranges && ordered && fields) {
            return false;
        }
        let (mut offset, mut position, mut timestamp) = (meta.start, meta.position, i64::MIN);
        for entry in entries.map(|n| self.entry(n)) {
            if entry.offset <= offset
                || entry.position <= position
                || entry.max_timestamp < timestamp
            {
                return false;
            }
            (offset, position, timestamp) = (entry.offset, entry.position, entry.max_timestamp);
        }
        offset < meta.end && position < end && timestamp <= meta.max_timestamp
    }

    /// Bytes of memory it holds.
    pub(super) fn weight(&self) -> u64 {
        (self.bytes.len() + size_of::<Self>()) as u64
    }

    /// Length of the whole file.
    pub(super) fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Number of sections.
    pub(super) fn sections(&self) -> usize {
        self.trailer.sections
    }

    fn key(&self, row: usize) -> PartitionKey {
        let at = row * ROW_BYTES;
        let topic = TopicNo(u32_at(&self.bytes, at));
        PartitionKey {
            topic,
            index: u32_at(&self.bytes, at + 4),
        }
    }

    /// One row of the section table.
    pub(super) fn meta(&self, row: usize) -> SectionMeta {
        let at = row * ROW_BYTES;
        SectionMeta {
            key: self.key(row),
            start: i64_at(&self.bytes, at + 8),
            end: i64_at(&self.bytes, at + 16),
            position: u64_at(&self.bytes, at + 24),
            bytes: u64_at(&self.bytes, at + 32),
            max_timestamp: i64_at(&self.bytes, at + 40),
        }
    }

    /// The row of a partition.
    pub(super) fn find(&self, key: PartitionKey) -> Option<usize> {
        let row = partition_point(0..self.trailer.sections, |row| self.key(row) < key);
        (row < self.trailer.sections && self.key(row) == key).then_some(row)
    }

    fn entries_of(&self, row: usize) -> Range<usize> {
        self.span(row, 48, self.trailer.entries)
    }

    fn aborted_of(&self, row: usize) -> Range<usize> {
        self.span(row, 52, self.trailer.aborted)
    }

    /// From the number in a row's field to that in the next row.
    fn span(&self, row: usize, field: usize, total: usize) -> Range<usize> {
        let start = u32_at(&self.bytes, row * ROW_BYTES + field) as usize;
        let next = row + 1;
        let end = if next < self.trailer.sections {
            u32_at(&self.bytes, next * ROW_BYTES + field) as usize
        } else {
            total
        };
        start..end
    }

    fn last_crc(&self, row: usize) -> u32 {
        u32_at(&self.bytes, row * ROW_BYTES + 56)
    }

    fn entry(&self, n: usize) -> IndexEntry {
        let at = self.trailer.sections * ROW_BYTES + n * INDEX_BYTES;
        IndexEntry {
            offset: i64_at(&self.bytes, at),
            max_timestamp: i64_at(&self.bytes, at + 8),
            position: u64_at(&self.bytes, at + 16),
            crc: u32_at(&self.bytes, at + 24),
        }
    }

    fn aborted(&self, n: usize) -> AbortedTransaction {
        let at = self.trailer.sections * ROW_BYTES
            + self.trailer.entries * INDEX_BYTES
            + n * ABORTED_BYTES;
        AbortedTransaction {
            producer_id: i64_at(&self.bytes, at),
            first: i64_at(&self.bytes, at + 8),
            last: i64_at(&self.bytes, at + 16),
            stable_after: i64_at(&self.bytes, at + 24),
        }
    }
}

/// The first of `range` for which `before` is false, when it is true only up to some point.
fn partition_point(range: Range<usize>, before: impl Fn(usize) -> bool) -> usize {
    let Range {
        start: mut low,
        end: mut high,
    } = range;
    while low < high {
        let middle = low + (high - low) / 2;
        if before(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// One partition's part of a file. Holds the file's footer in memory, not the file.
#[derive(Clone, Debug)]
pub struct Section {
    footer: Arc<Footer>,
    row: usize,
    meta: SectionMeta,
}

impl Section {
    pub(super) fn new(footer: Arc<Footer>, row: usize) -> Self {
        let meta = footer.meta(row);
        Self { footer, row, meta }
    }

    /// Offsets, place and greatest timestamp.
    pub fn meta(&self) -> &SectionMeta {
        &self.meta
    }

    /// The file position after its last byte.
    pub fn end_position(&self) -> u64 {
        self.meta.position + self.meta.bytes
    }

    /// The file position at which the file's sections end.
    pub(super) fn data_end(&self) -> u64 {
        self.footer.trailer.position
    }

    /// A file position, at the start of a batch, from which reading forward meets the batch that
    /// holds `offset` (or the first one behind it) within the index step.
    pub fn seek(&self, offset: Offset) -> u64 {
        let entries = self.footer.entries_of(self.row);
        let at = partition_point(entries.clone(), |n| self.footer.entry(n).offset <= offset);
        self.position_before(&entries, at)
    }

    /// A file position, at the start of a batch, before which every record of the section has a
    /// smaller timestamp.
    pub fn seek_time(&self, timestamp: i64) -> u64 {
        let entries = self.footer.entries_of(self.row);
        let at = partition_point(entries.clone(), |n| {
            self.footer.entry(n).max_timestamp < timestamp
        });
        self.position_before(&entries, at)
    }

    /// The block that holds `offset` (or the first one behind it), and those behind it that end
    /// within `bytes` of its start: what to read to get the batch that holds it.
    pub fn blocks_from(&self, offset: Offset, bytes: u64) -> Vec<Block> {
        let entries = self.footer.entries_of(self.row);
        let at = partition_point(entries, |n| self.footer.entry(n).offset <= offset);
        let mut blocks = self.blocks_behind(at);
        let Some(first) = blocks.next() else {
            return Vec::new();
        };
        let limit = first.range.start.saturating_add(bytes);
        let more = blocks.take_while(|block| block.range.end <= limit);
        std::iter::once(first).chain(more).collect()
    }

    /// Blocks that may hold a record of at least this timestamp: all before them hold none.
    pub fn blocks_from_time(&self, timestamp: i64) -> impl Iterator<Item = Block> + '_ {
        let entries = self.footer.entries_of(self.row);
        let before = |n| self.footer.entry(n).max_timestamp < timestamp;
        self.blocks_behind(partition_point(entries, before))
    }

    fn position_before(&self, entries: &Range<usize>, at: usize) -> u64 {
        if at > entries.start {
            self.footer.entry(at - 1).position
        } else {
            self.meta.position
        }
    }

    /// The section cut at its index entries; the last block ends with the section.
    pub fn blocks(&self) -> impl Iterator<Item = Block> + '_ {
        self.blocks_behind(self.footer.entries_of(self.row).start)
    }

    /// The block that ends at index entry `first` (or with the section), and those behind it.
    fn blocks_behind(&self, first: usize) -> impl Iterator<Item = Block> + '_ {
        let entries = self.footer.entries_of(self.row);
        let (mut start, mut position) = (self.meta.start, self.meta.position);
        if first > entries.start {
            let before = self.footer.entry(first - 1);
            (start, position) = (before.offset, before.position);
        }
        (first..entries.end + 1).map(move |n| {
            let next = if n < entries.end {
                self.footer.entry(n)
            } else {
                IndexEntry {
                    offset: self.meta.end,
                    max_timestamp: self.meta.max_timestamp,
                    position: self.end_position(),
                    crc: self.footer.last_crc(self.row),
                }
            };
            let block = Block {
                start,
                end: next.offset,
                range: position..next.position,
                max_timestamp: next.max_timestamp,
                crc: next.crc,
            };
            (start, position) = (next.offset, next.position);
            block
        })
    }

    /// Aborted transactions whose marker lies in this section, ascending by marker.
    pub fn aborted(&self) -> impl Iterator<Item = AbortedTransaction> + '_ {
        self.footer
            .aborted_of(self.row)
            .map(|n| self.footer.aborted(n))
    }
}
