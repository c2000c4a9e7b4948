//! The bytes of checkpoint files.
//!
//! In every version a file ends with the CRC-32C of all that precedes it, and its version is the
//! byte behind the magic; so damage and a later version are told apart.

use std::io;

use bytes::Bytes;

use crate::types::Position;

const VERSION: u8 = 1;
const SECTION_MAGIC: &[u8; 8] = b"SGCHKSEC";
const ROOT_MAGIC: &[u8; 8] = b"SGCHKROT";
const CRC_BYTES: usize = 4;
const SECTION_HEAD: usize = 32;
const ROOT_HEAD: usize = 40;
const ROW_BYTES: usize = 20;

/// Why bytes are no checkpoint file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BadFile {
    Newer(u8),
    Damaged(&'static str),
}

/// A section file as a root names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SectionRef {
    pub slot: u32,
    /// Number of the publication that wrote it.
    pub number: u64,
    /// Length of its payload.
    pub length: u32,
    /// Checksum of its payload.
    pub crc: u32,
}

impl SectionRef {
    pub(super) fn to(slot: u32, number: u64, payload: &[u8]) -> io::Result<Self> {
        let length = u32::try_from(payload.len()).map_err(|_| {
            let what = format!("checkpoint slot {slot} has {} bytes", payload.len());
            io::Error::new(io::ErrorKind::InvalidInput, what)
        })?;
        Ok(Self {
            slot,
            number,
            length,
            crc: crc32c::crc32c(payload),
        })
    }
}

/// A root as it lies on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RootFile {
    pub number: u64,
    pub captured: Position,
    /// Ascending by slot.
    pub sections: Vec<SectionRef>,
    pub payload: Bytes,
}

/// What precedes a section's payload. The payload and [`end_of`] both follow.
pub(super) fn section_head(section: &SectionRef) -> [u8; SECTION_HEAD] {
    let mut out = [0; SECTION_HEAD];
    out[..8].copy_from_slice(SECTION_MAGIC);
    out[8] = VERSION;
    out[12..16].copy_from_slice(&section.slot.to_le_bytes());
    out[16..24].copy_from_slice(&section.number.to_le_bytes());
    out[24..28].copy_from_slice(&section.length.to_le_bytes());
    out
}

/// The checksum that ends a file made of `parts`.
pub(super) fn end_of(parts: &[&[u8]]) -> [u8; CRC_BYTES] {
    parts
        .iter()
        .fold(0, |crc, part| crc32c::crc32c_append(crc, part))
        .to_le_bytes()
}

/// The payload of a section file that a root named.
pub(super) fn parse_section(bytes: Bytes, section: &SectionRef) -> Result<Bytes, BadFile> {
    let body = check(&bytes, SECTION_MAGIC, SECTION_HEAD)?;
    let mut at = body.get(12..).unwrap_or_default();
    let named = (take_u32(&mut at), take_u64(&mut at), take_u32(&mut at));
    if named
        != (
            Some(section.slot),
            Some(section.number),
            Some(section.length),
        )
    {
        return Err(BadFile::Damaged(
            "it is not the section that the root names",
        ));
    }
    let payload = bytes.slice(SECTION_HEAD..body.len());
    if payload.len() != section.length as usize || crc32c::crc32c(&payload) != section.crc {
        return Err(BadFile::Damaged(
            "its payload is not the one that the root names",
        ));
    }
    Ok(payload)
}

impl RootFile {
    pub(super) fn encode(&self) -> Vec<u8> {
        let length = ROOT_HEAD + self.sections.len() * ROW_BYTES + self.payload.len() + CRC_BYTES;
        let mut out = Vec::with_capacity(length);
        out.extend_from_slice(ROOT_MAGIC);
        out.extend_from_slice(&[VERSION, 0, 0, 0]);
        out.extend_from_slice(&(self.sections.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.captured.0.to_le_bytes());
        out.extend_from_slice(&(self.payload.len() as u64).to_le_bytes());
        for section in &self.sections {
            out.extend_from_slice(&section.slot.to_le_bytes());
            out.extend_from_slice(&section.number.to_le_bytes());
            out.extend_from_slice(&section.length.to_le_bytes());
            out.extend_from_slice(&section.crc.to_le_bytes());
        }
        out.extend_from_slice(&self.payload);
        let end = end_of(&[&out]);
        out.extend_from_slice(&end);
        out
    }

    pub(super) fn parse(bytes: Bytes, number: u64) -> Result<Self, BadFile> {
        let body = check(&bytes, ROOT_MAGIC, ROOT_HEAD)?;
        Self::fields(body, &bytes)
            .filter(|root| root.number == number)
            .ok_or(BadFile::Damaged("its fields contradict one another"))
    }

    fn fields(body: &[u8], bytes: &Bytes) -> Option<Self> {
        let mut at = body.get(12..)?;
        let count = take_u32(&mut at)? as usize;
        let (number, captured) = (take_u64(&mut at)?, Position(take_u64(&mut at)?));
        let payload_bytes = usize::try_from(take_u64(&mut at)?).ok()?;
        let rows = at.len().checked_sub(payload_bytes)?;
        if rows != count.checked_mul(ROW_BYTES)? {
            return None;
        }
        let mut sections: Vec<SectionRef> = Vec::with_capacity(count);
        for _ in 0..count {
            let (slot, number) = (take_u32(&mut at)?, take_u64(&mut at)?);
            let (length, crc) = (take_u32(&mut at)?, take_u32(&mut at)?);
            if sections.last().is_some_and(|before| before.slot >= slot) {
                return None;
            }
            sections.push(SectionRef {
                slot,
                number,
                length,
                crc,
            });
        }
        let payload = bytes.slice(ROOT_HEAD + rows..body.len());
        Some(Self {
            number,
            captured,
            sections,
            payload,
        })
    }
}

/// Checks checksum, magic and version; returns the bytes without the checksum.
fn check<'a>(bytes: &'a [u8], magic: &[u8; 8], head: usize) -> Result<&'a [u8], BadFile> {
    let Some((body, crc)) = bytes.split_last_chunk::<CRC_BYTES>() else {
        return Err(BadFile::Damaged("it is too short"));
    };
    if u32::from_le_bytes(*crc) != crc32c::crc32c(body) {
        return Err(BadFile::Damaged("its checksum does not match"));
    }
    if body.len() < head || !body.starts_with(magic) {
        return Err(BadFile::Damaged("it is a file of another kind"));
    }
    match body[8] {
        VERSION => Ok(body),
        0 => Err(BadFile::Damaged("it has version 0")),
        newer => Err(BadFile::Newer(newer)),
    }
}

fn take_u32(at: &mut &[u8]) -> Option<u32> {
    let (field, rest) = at.split_first_chunk()?;
    *at = rest;
    Some(u32::from_le_bytes(*field))
}

fn take_u64(at: &mut &[u8]) -> Option<u64> {
    let (field, rest) = at.split_first_chunk()?;
    *at = rest;
    Some(u64::from_le_bytes(*field))
}
