//! Journal entries about segment files and log starts, as bytes.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::store::segment::SegmentMeta;
use crate::types::{FileId, Offset, Position};

const VERSION: u8 = 1;

/// A change of the segment lists: one flush, merge or clean-up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SegmentsEntry {
    /// The tail up to here is in segment files, counting the added ones.
    pub flushed: Position,
    /// New files.
    pub added: Vec<SegmentMeta>,
    /// Files that leave all lists.
    pub removed: Vec<FileId>,
}

impl SegmentsEntry {
    /// The journal payload: version u8, flushed u64, removed count u32 and ids u64, added count
    /// u32 and the files' metas.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        out.put_u8(VERSION);
        out.put_u64(self.flushed.0);
        out.put_u32(self.removed.len() as u32);
        for file in &self.removed {
            out.put_u64(file.0);
        }
        out.put_u32(self.added.len() as u32);
        for meta in &self.added {
            meta.encode(&mut out);
        }
        out.into()
    }

    /// Reads what [`SegmentsEntry::encode`] wrote.
    pub fn decode(mut payload: &[u8]) -> Result<Self, String> {
        let short = |_| "segments entry is cut short".to_string();
        let version = payload.try_get_u8().map_err(short)?;
        if version != VERSION {
            return Err(format!(
                "segments entry has version {version}, this build reads {VERSION}"
            ));
        }
        let mut entry = Self {
            flushed: Position(payload.try_get_u64().map_err(short)?),
            ..Self::default()
        };
        for _ in 0..payload.try_get_u32().map_err(short)? {
            entry
                .removed
                .push(FileId(payload.try_get_u64().map_err(short)?));
        }
        for _ in 0..payload.try_get_u32().map_err(short)? {
            entry
                .added
                .push(SegmentMeta::decode(&mut payload).map_err(|e| e.to_string())?);
        }
        Ok(entry)
    }
}

/// The payload of a log-start entry: version u8, offset i64.
pub fn encode_log_start(offset: Offset) -> Bytes {
    let mut out = BytesMut::with_capacity(9);
    out.put_u8(VERSION);
    out.put_i64(offset);
    out.freeze()
}

/// Reads what [`encode_log_start`] wrote.
pub fn decode_log_start(mut payload: &[u8]) -> Result<Offset, String> {
    match (payload.try_get_u8(), payload.try_get_i64()) {
        (Ok(VERSION), Ok(offset)) => Ok(offset),
        (Ok(version), Ok(_)) => Err(format!(
            "log-start entry has version {version}, this build reads {VERSION}"
        )),
        _ => Err("log-start entry is cut short".to_string()),
    }
}
