//! What the journal's `segments` entry says about a file: enough to build the segment lists
//! without opening any file.

use super::codec::{put_varint, put_zigzag, take_varint, take_zigzag};
use crate::types::{FileId, Offset, PartitionKey, TopicNo};

/// Version of the encoding below.
const VERSION: u8 = 1;

/// A section takes at least this many encoded bytes: one per field.
const LEAST_SECTION_BYTES: usize = 7;

/// One segment file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentMeta {
    /// Its number.
    pub file: FileId,
    /// Its length.
    pub bytes: u64,
    /// Its sections, ascending by key; each partition at most once.
    pub sections: Vec<SectionMeta>,
}

/// The records of one partition in one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SectionMeta {
    /// Whose records they are.
    pub key: PartitionKey,
    /// The first offset.
    pub start: Offset,
    /// The offset after the last.
    pub end: Offset,
    /// Where its first byte lies in the file.
    pub position: u64,
    /// Its length.
    pub bytes: u64,
    /// No record in it has a greater timestamp.
    pub max_timestamp: i64,
}

/// Bytes that are no [`SegmentMeta`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Written by a later release.
    #[error(
        "a segments entry has version {0}, this release reads up to {VERSION}: use a newer one"
    )]
    Newer(u8),
    /// Cut short, or fields that contradict one another.
    #[error("a segments entry is malformed: {0}")]
    Malformed(&'static str),
}

impl SegmentMeta {
    /// The section of a partition.
    pub fn section(&self, key: PartitionKey) -> Option<&SectionMeta> {
        let at = self.sections.binary_search_by_key(&key, |s| s.key).ok()?;
        self.sections.get(at)
    }

    /// Appends the encoding, which knows its own end: several may follow one another.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        put_varint(out, self.file.0);
        put_varint(out, self.bytes);
        put_varint(out, self.sections.len() as u64);
        let mut before = SectionMeta::default();
        for section in &self.sections {
            put_varint(
                out,
                u64::from(section.key.topic.0.wrapping_sub(before.key.topic.0)),
            );
            put_varint(out, u64::from(section.key.index));
            put_zigzag(out, section.start);
            put_varint(out, section.end.wrapping_sub(section.start) as u64);
            put_varint(out, section.position);
            put_varint(out, section.bytes);
            put_zigzag(
                out,
                section.max_timestamp.wrapping_sub(before.max_timestamp),
            );
            before = *section;
        }
    }

    /// Takes one encoding off the front of `input`.
    pub fn decode(input: &mut &[u8]) -> Result<Self, DecodeError> {
        let (&version, rest) = input
            .split_first()
            .ok_or(DecodeError::Malformed("no version"))?;
        if version > VERSION {
            return Err(DecodeError::Newer(version));
        }
        if version == 0 {
            return Err(DecodeError::Malformed("version 0"));
        }
        *input = rest;
        let mut next = || take_varint(input).ok_or(DecodeError::Malformed("cut short"));
        let (file, bytes, count) = (FileId(next()?), next()?, next()?);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count > input.len() / LEAST_SECTION_BYTES {
            return Err(DecodeError::Malformed("more sections than bytes"));
        }
        let mut sections = Vec::with_capacity(count);
        let mut before = SectionMeta::default();
        for n in 0..count {
            let section =
                decode_section(input, &before).ok_or(DecodeError::Malformed("bad section"))?;
            if n > 0 && section.key <= before.key {
                return Err(DecodeError::Malformed("sections out of order"));
            }
            sections.push(section);
            before = section;
        }
        Ok(Self {
            file,
            bytes,
            sections,
        })
    }
}

fn decode_section(input: &mut &[u8], before: &SectionMeta) -> Option<SectionMeta> {
    let topic_step = u32::try_from(take_varint(input)?).ok()?;
    let topic = TopicNo(before.key.topic.0.checked_add(topic_step)?);
    let index = u32::try_from(take_varint(input)?).ok()?;
    let start = take_zigzag(input)?;
    let end = start.checked_add(i64::try_from(take_varint(input)?).ok()?)?;
    let (position, bytes) = (take_varint(input)?, take_varint(input)?);
    position.checked_add(bytes)?;
    let max_timestamp = before.max_timestamp.wrapping_add(take_zigzag(input)?);
    if start < 0 || end <= start {
        return None;
    }
    let key = PartitionKey { topic, index };
    Some(SectionMeta {
        key,
        start,
        end,
        position,
        bytes,
        max_timestamp,
    })
}
