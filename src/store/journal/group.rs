//! Groups as they are on disk: a header, the entries, padding to whole blocks. Pure.
//!
//! `docs/formats.md` draws the bytes. All numbers are little-endian.

use bytes::Bytes;
use uuid::Uuid;

use super::{Entry, EntryKind, EntryRef, Group};
use crate::types::{PartitionKey, Position, TopicNo};

/// Groups start on multiples of this and are padded to it, so that a torn write never shares a
/// page with acknowledged bytes and no write needs to read a page first.
pub(super) const BLOCK: u64 = 4096;
/// Bytes before a group's entries.
pub(super) const HEADER: usize = 96;
/// Bytes before an entry's payload.
pub(super) const ENTRY_HEADER: usize = 16;
/// The newest version of groups that this program reads. Version 2 has kinds of entries that
/// version 1 lacks; a group without any is written as version 1, which earlier programs read.
pub(super) const VERSION: u8 = 2;
const FIRST_VERSION: u8 = 1;

const MAGIC: [u8; 4] = *b"SGJL";
const CRC_AT: usize = 92;
/// A group below this size is copied out of its padded buffer when it becomes tail, so that a
/// few small records do not pin a whole block.
const COMPACT_BELOW: usize = 32 * 1024;

/// What a group's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// The store it belongs to.
    pub store: Uuid,
    /// Rises with each start of the journal.
    pub generation: u64,
    /// Counted from 1, never reset.
    pub number: u64,
    /// Every group up to this number was on stable storage when this one was written.
    pub synced_to: u64,
    /// Entries up to this position are not needed for recovery.
    pub trimmed: Position,
    /// Position of the first entry; of the next one if there is none.
    pub first: Position,
    /// Number of entries.
    pub entries: u32,
    /// Bytes of the entries, without padding.
    pub length: u32,
    /// Where in its file the group starts.
    pub place: u64,
    /// The header checksum of the group before it.
    pub previous_crc: u32,
    /// Checksum of the entries.
    pub body_crc: u32,
    /// Checksum of the header. Filled in by [`Header::encode`].
    pub crc: u32,
}

/// Why bytes are not a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoHeader {
    /// They are something else, or damaged.
    Invalid,
    /// They are one of a version to come.
    Newer(u8),
}

impl Header {
    /// Position of the last entry; for an empty group that of the entry before it.
    pub(super) fn last(&self) -> Position {
        Position(self.first.0 + u64::from(self.entries) - 1)
    }

    /// Bytes on disk, padding included.
    pub(super) fn padded(&self) -> u64 {
        padded(self.length as usize)
    }

    fn encode(&mut self, version: u8, out: &mut [u8]) {
        out[0..4].copy_from_slice(&MAGIC);
        out[4] = version;
        out[5] = 0;
        out[6..8].copy_from_slice(&(HEADER as u16).to_le_bytes());
        out[8..24].copy_from_slice(self.store.as_bytes());
        out[24..32].copy_from_slice(&self.generation.to_le_bytes());
        out[32..40].copy_from_slice(&self.number.to_le_bytes());
        out[40..48].copy_from_slice(&self.synced_to.to_le_bytes());
        out[48..56].copy_from_slice(&self.trimmed.0.to_le_bytes());
        out[56..64].copy_from_slice(&self.first.0.to_le_bytes());
        out[64..68].copy_from_slice(&self.entries.to_le_bytes());
        out[68..72].copy_from_slice(&self.length.to_le_bytes());
        out[72..80].copy_from_slice(&self.place.to_le_bytes());
        out[80..84].copy_from_slice(&self.previous_crc.to_le_bytes());
        out[84..88].copy_from_slice(&self.body_crc.to_le_bytes());
        out[88..92].fill(0);
        self.crc = crc32c::crc32c(&out[..CRC_AT]);
        out[CRC_AT..HEADER].copy_from_slice(&self.crc.to_le_bytes());
    }

    /// Reads a header from the front of some bytes.
    pub(super) fn decode(bytes: &[u8]) -> Result<Header, NoHeader> {
        let bytes = bytes.get(..HEADER).ok_or(NoHeader::Invalid)?;
        let crc = u32_at(bytes, CRC_AT);
        if bytes[..4] != MAGIC || crc != crc32c::crc32c(&bytes[..CRC_AT]) {
            return Err(NoHeader::Invalid);
        }
        if !(FIRST_VERSION..=VERSION).contains(&bytes[4]) {
            return Err(NoHeader::Newer(bytes[4]));
        }
        let mut store = [0; 16];
        store.copy_from_slice(&bytes[8..24]);
        let header = Header {
            store: Uuid::from_bytes(store),
            generation: u64_at(bytes, 24),
            number: u64_at(bytes, 32),
            synced_to: u64_at(bytes, 40),
            trimmed: Position(u64_at(bytes, 48)),
            first: Position(u64_at(bytes, 56)),
            entries: u32_at(bytes, 64),
            length: u32_at(bytes, 68),
            place: u64_at(bytes, 72),
            previous_crc: u32_at(bytes, 80),
            body_crc: u32_at(bytes, 84),
            crc,
        };
        let plausible = header.number > header.synced_to
            && header.trimmed < header.first
            && (1..u64::MAX / 2).contains(&header.first.0)
            && u64::from(header.entries) * ENTRY_HEADER as u64 <= u64::from(header.length);
        if plausible {
            Ok(header)
        } else {
            Err(NoHeader::Invalid)
        }
    }
}

/// Bytes on disk of a group whose entries take `length` bytes.
pub(super) fn padded(length: usize) -> u64 {
    (HEADER as u64 + length as u64).next_multiple_of(BLOCK)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..at + 4)
        .and_then(|b| b.try_into().ok())
        .map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes
        .get(at..at + 8)
        .and_then(|b| b.try_into().ok())
        .map_or(0, u64::from_le_bytes)
}

/// Bytes that an entry takes in a group.
pub(super) fn entry_bytes(entry: &Entry) -> usize {
    ENTRY_HEADER + entry.payload.len()
}

/// A group ready to be written.
pub(super) struct Built {
    /// Its header, checksums included.
    pub header: Header,
    /// Header, entries and padding.
    pub bytes: Bytes,
    entries: Vec<EntryRef>,
    charge: u64,
}

impl Built {
    /// Whether an entry of this kind is in it.
    pub(super) fn holds(&self, kind: EntryKind) -> bool {
        self.entries.iter().any(|entry| entry.kind == kind)
    }
}

/// Copies entries into a buffer, each one released as soon as it was copied; then the checksums.
pub(super) fn build(
    mut header: Header,
    entries: impl Iterator<Item = Entry>,
    length: usize,
) -> Built {
    let padded = padded(length) as usize;
    // Starts on a block, so that the disk can take it without a copy.
    let mut buffer: Vec<u8> = Vec::with_capacity(padded + BLOCK as usize);
    let front = buffer
        .as_ptr()
        .align_offset(BLOCK as usize)
        .min(BLOCK as usize);
    buffer.resize(front + HEADER, 0);
    let mut refs = Vec::with_capacity(entries.size_hint().0);
    let mut charge = 0;
    let mut position = header.first;
    for entry in entries {
        buffer.extend_from_slice(&[entry.kind as u8, 0, 0, 0]);
        buffer.extend_from_slice(&entry.key.topic.0.to_le_bytes());
        buffer.extend_from_slice(&entry.key.index.to_le_bytes());
        buffer.extend_from_slice(&(entry.payload.len() as u32).to_le_bytes());
        let start = buffer.len();
        buffer.extend_from_slice(&entry.payload);
        if let Some(fill) = entry.fill {
            (fill.apply)(&mut buffer[start..], fill.args);
        }
        let range = (start - front) as u32..(buffer.len() - front) as u32;
        refs.push(EntryRef {
            position,
            kind: entry.kind,
            key: entry.key,
            range,
        });
        charge += u64::from(entry.charge);
        position.0 += 1;
    }
    header.entries = refs.len() as u32;
    header.length = (buffer.len() - front - HEADER) as u32;
    header.body_crc = crc32c::crc32c(&buffer[front + HEADER..]);
    let is_new = |entry: &EntryRef| matches!(entry.kind, EntryKind::Move | EntryKind::Witness);
    let version = match refs.iter().any(is_new) {
        true => VERSION,
        false => FIRST_VERSION,
    };
    header.encode(version, &mut buffer[front..front + HEADER]);
    buffer.resize(front + padded, 0);
    Built {
        header,
        bytes: Bytes::from(buffer).slice(front..),
        entries: refs,
        charge,
    }
}

impl Built {
    /// The group as its readers see it.
    pub(super) fn into_group(self) -> Group {
        let used = HEADER + self.header.length as usize;
        let buffer = if used < COMPACT_BELOW {
            Bytes::copy_from_slice(&self.bytes[..used])
        } else {
            self.bytes.slice(..used)
        };
        let last = self.header.last();
        Group {
            buffer,
            entries: self.entries,
            charge: self.charge,
            last,
        }
    }
}

/// Checks a group's entries against its header and finds them; `buffer` starts with the header.
pub(super) fn parse(header: &Header, buffer: Bytes) -> Result<Group, &'static str> {
    let used = HEADER + header.length as usize;
    let body = buffer.get(HEADER..used).ok_or("the group is cut short")?;
    if crc32c::crc32c(body) != header.body_crc {
        return Err("the checksum of the group's entries does not match");
    }
    let mut entries = Vec::with_capacity(header.entries as usize);
    let mut at = HEADER;
    for index in 0..header.entries {
        let head = buffer
            .get(at..at + ENTRY_HEADER)
            .ok_or("an entry runs over its group")?;
        let kind = kind(head[0]).ok_or("an entry is of an unknown kind")?;
        let key = PartitionKey {
            topic: TopicNo(u32_at(head, 4)),
            index: u32_at(head, 8),
        };
        let start = at + ENTRY_HEADER;
        let end = start + u32_at(head, 12) as usize;
        if end > used {
            return Err("an entry runs over its group");
        }
        let position = Position(header.first.0 + u64::from(index));
        entries.push(EntryRef {
            position,
            kind,
            key,
            range: start as u32..end as u32,
        });
        at = end;
    }
    if at != used {
        return Err("the group holds more than its entries");
    }
    Ok(Group {
        buffer,
        entries,
        charge: 0,
        last: header.last(),
    })
}

fn kind(byte: u8) -> Option<EntryKind> {
    [
        EntryKind::Batch,
        EntryKind::Catalog,
        EntryKind::Segments,
        EntryKind::LogStart,
        EntryKind::Move,
        EntryKind::Witness,
    ]
    .into_iter()
    .find(|kind| *kind as u8 == byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(first: u64) -> Header {
        Header {
            store: Uuid::from_u128(7),
            generation: 3,
            number: 12,
            synced_to: 11,
            trimmed: Position(first - 1),
            first: Position(first),
            entries: 0,
            length: 0,
            place: 8192,
            previous_crc: 99,
            body_crc: 0,
            crc: 0,
        }
    }

    fn entry(kind: EntryKind, topic: u32, payload: Vec<u8>) -> Entry {
        let key = PartitionKey {
            topic: TopicNo(topic),
            index: topic / 2,
        };
        Entry {
            kind,
            key,
            payload: Bytes::from(payload),
            fill: None,
            charge: 5,
        }
    }

    proptest! {
        #[test]
        fn what_is_built_is_parsed(
            first in 1u64..1 << 40,
            items in prop::collection::vec(
                (1u8..6, any::<u32>(), prop::collection::vec(any::<u8>(), 0..5000)),
                0..20,
            ),
        ) {
            let entries = || items.iter().map(|(k, topic, payload)| {
                entry(kind(*k).unwrap(), *topic, payload.clone())
            });
            let length = entries().map(|e| entry_bytes(&e)).sum();
            let built = build(header(first), entries(), length);
            prop_assert_eq!(built.bytes.len() as u64, padded(length));
            let read = Header::decode(&built.bytes).unwrap();
            prop_assert_eq!(read, built.header);
            let parsed = parse(&read, built.bytes.clone()).unwrap();
            let group = built.into_group();
            prop_assert_eq!(group.charge, 5 * items.len() as u64);
            prop_assert_eq!(parsed.last, group.last);
            prop_assert_eq!(parsed.entries.len(), items.len());
            for ((a, b), item) in parsed.entries.iter().zip(&group.entries).zip(&items) {
                prop_assert_eq!((a.position, a.kind, a.key), (b.position, b.kind, b.key));
                prop_assert_eq!(parsed.payload(a), &item.2[..]);
                prop_assert_eq!(group.payload(b), &item.2[..]);
            }
        }

        #[test]
        fn a_flipped_bit_is_always_seen(
            payload in prop::collection::vec(any::<u8>(), 1..300),
            at in any::<prop::sample::Index>(),
            bit in 0u8..8,
        ) {
            let length = ENTRY_HEADER + payload.len();
            let entries = std::iter::once(entry(EntryKind::Batch, 1, payload));
            let built = build(header(1), entries, length);
            let mut bytes = built.bytes[..HEADER + length].to_vec();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            match Header::decode(&bytes) {
                Err(_) => prop_assert!(at < HEADER),
                Ok(header) => {
                    prop_assert!(at >= HEADER);
                    prop_assert!(parse(&header, Bytes::from(bytes)).is_err());
                }
            }
        }

        #[test]
        fn arbitrary_bytes_are_never_a_group(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            prop_assert_eq!(Header::decode(&bytes), Err(NoHeader::Invalid));
        }
    }

    #[test]
    fn a_fill_patches_the_copy_only() {
        let payload = Bytes::from_static(b"abcdef");
        let fill = Fill {
            args: [1, 2, 3],
            apply: |bytes, args| bytes[0] = b'0' + args[2] as u8,
        };
        let mut entry = entry(EntryKind::Batch, 1, Vec::new());
        entry.payload = payload.clone();
        entry.fill = Some(fill);
        let group = build(header(1), std::iter::once(entry), 22).into_group();
        assert_eq!(group.payload(&group.entries[0]), &b"3bcdef"[..]);
        assert_eq!(payload, &b"abcdef"[..]);
    }

    use super::super::Fill;
}
