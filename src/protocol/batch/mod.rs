//! Record batches (message format 2), as bytes: read, checked and changed in place, never decoded
//! and encoded again.
//!
//! ```text
//!  0 base offset i64     8 length i32 (from 12)  12 leader epoch i32  16 magic i8   17 crc u32
//! 21 attributes i16     23 last offset delta i32 27 base timestamp    35 max timestamp
//! 43 producer id i64    51 producer epoch i16    53 base sequence i32 57 record count i32
//! 61 records
//! ```
//! The checksum (CRC-32C) covers everything from the attributes on, so base offset and leader
//! epoch can be set without touching it.

mod builder;
mod open;
mod patch;
mod records;

pub use builder::BatchBuilder;
pub use open::{Flaw, FlawKind, MAX_FLAWS, Opened, RecordMeta, Rules, open, walk};
pub use patch::{Patch, Stamp, patch, recompress};
pub use records::{Headers, Record, Records};

use super::compression::{Codec, CompressionError};
use super::error::ErrorCode;

/// Bytes before a batch's records.
pub const HEADER_BYTES: usize = 61;
/// Bytes that the batch's length does not count: base offset and the length itself.
pub const LENGTH_OVERHEAD: usize = 12;
/// The only magic that is served.
pub const MAGIC: i8 = 2;
/// "No timestamp" in records, "no producer" in batch headers.
pub const NONE: i64 = -1;

/// The length of the smallest message of any format.
const SMALLEST_LENGTH: i32 = 14;

const AT_LENGTH: usize = 8;
const AT_LEADER_EPOCH: usize = 12;
const AT_MAGIC: usize = 16;
const AT_CRC: usize = 17;
const AT_ATTRIBUTES: usize = 21;
const AT_MAX_TIMESTAMP: usize = 35;

const CODEC_MASK: i16 = 0x07;
const LOG_APPEND_TIME: i16 = 0x08;
const TRANSACTIONAL: i16 = 0x10;
const CONTROL: i16 = 0x20;

/// Who gave a batch its timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimestampType {
    /// The producer.
    CreateTime,
    /// The server, on append.
    LogAppendTime,
}

/// Why bytes are not a batch that is taken.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// Nothing, or less than the batch says it is.
    #[error("{have} bytes are there, the batch needs {need}")]
    Incomplete {
        /// Bytes given.
        have: usize,
        /// Bytes needed.
        need: usize,
    },
    /// The length field is smaller than any batch.
    #[error("a batch length of {0} is too small")]
    Length(i32),
    /// An older message format.
    #[error("message format {0} is not taken, only record batches of format 2")]
    OldFormat(i8),
    /// Not a message format at all.
    #[error("message format {0} does not exist")]
    Magic(i8),
    /// The checksum does not match.
    #[error("the checksum is {computed:#010x}, the batch says {stored:#010x}")]
    Crc {
        /// In the batch.
        stored: u32,
        /// Of the bytes.
        computed: u32,
    },
    /// More than one batch where one is taken.
    #[error("{0} bytes follow the batch, and exactly one batch is taken per partition")]
    Trailing(usize),
    /// A header field that makes no sense; the text says which.
    #[error("{0}")]
    Header(&'static str),
    /// No such codec.
    #[error("compression type {0} does not exist")]
    Codec(u8),
    /// A record that makes no sense.
    #[error("record {index}: {reason}")]
    Record {
        /// Its place in the batch, from 0.
        index: u32,
        /// What is wrong.
        reason: &'static str,
    },
    /// The records do not decompress.
    #[error(transparent)]
    Compression(#[from] CompressionError),
}

impl BatchError {
    /// The code that a producer gets.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Length(_) | Self::Magic(_) | Self::Crc { .. } => ErrorCode::CorruptMessage,
            Self::Codec(_) => ErrorCode::UnsupportedCompressionType,
            Self::Compression(CompressionError::TooLarge(_)) => ErrorCode::MessageTooLarge,
            Self::Incomplete { .. }
            | Self::OldFormat(_)
            | Self::Trailing(_)
            | Self::Header(_)
            | Self::Record { .. }
            | Self::Compression(CompressionError::Invalid { .. }) => ErrorCode::InvalidRecord,
        }
    }

    /// Whether Kafka finds the fault only while it appends. Its answer then names the partition's
    /// log start offset, which is -1 in the answers to all other faults.
    pub fn names_log_start(&self) -> bool {
        match self {
            Self::Compression(CompressionError::TooLarge(_)) => false,
            Self::Header(_) | Self::Codec(_) | Self::Record { .. } | Self::Compression(_) => true,
            Self::Incomplete { .. }
            | Self::Length(_)
            | Self::OldFormat(_)
            | Self::Magic(_)
            | Self::Crc { .. }
            | Self::Trailing(_) => false,
        }
    }
}

/// The fields of a batch's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchInfo {
    /// Offset of the first record.
    pub base_offset: i64,
    /// Bytes of the whole batch, header included.
    pub bytes: usize,
    /// Leader epoch at append.
    pub leader_epoch: i32,
    /// The stored checksum.
    pub crc: u32,
    /// All attribute bits.
    pub attributes: i16,
    /// Offset of the last record, from the base.
    pub last_offset_delta: i32,
    /// Timestamp that the records' deltas count from.
    pub base_timestamp: i64,
    /// Largest timestamp, or the append time.
    pub max_timestamp: i64,
    /// Producer id, or -1.
    pub producer_id: i64,
    /// Producer epoch, or -1.
    pub producer_epoch: i16,
    /// Sequence number of the first record, or -1.
    pub base_sequence: i32,
    /// Number of records.
    pub record_count: i32,
}

impl BatchInfo {
    /// Reads a header. Says nothing about the checksum or the records.
    pub fn read(bytes: &[u8]) -> Result<Self, BatchError> {
        let incomplete = |need| BatchError::Incomplete {
            have: bytes.len(),
            need,
        };
        if bytes.len() < LENGTH_OVERHEAD {
            return Err(incomplete(HEADER_BYTES));
        }
        let length = i32::from_be_bytes(field(bytes, AT_LENGTH));
        if length < SMALLEST_LENGTH {
            return Err(BatchError::Length(length));
        }
        if bytes.len() <= AT_MAGIC {
            return Err(incomplete(HEADER_BYTES));
        }
        match i8::from_be_bytes(field(bytes, AT_MAGIC)) {
            MAGIC => {}
            old @ (0 | 1) => return Err(BatchError::OldFormat(old)),
            other => return Err(BatchError::Magic(other)),
        }
        let total = usize::try_from(length)
            .unwrap_or(0)
            .saturating_add(LENGTH_OVERHEAD);
        if total < HEADER_BYTES {
            return Err(BatchError::Length(length));
        }
        let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(incomplete(total));
        };
        Ok(Self {
            base_offset: i64::from_be_bytes(field(header, 0)),
            bytes: total,
            leader_epoch: i32::from_be_bytes(field(header, AT_LEADER_EPOCH)),
            crc: u32::from_be_bytes(field(header, AT_CRC)),
            attributes: i16::from_be_bytes(field(header, AT_ATTRIBUTES)),
            last_offset_delta: i32::from_be_bytes(field(header, 23)),
            base_timestamp: i64::from_be_bytes(field(header, 27)),
            max_timestamp: i64::from_be_bytes(field(header, AT_MAX_TIMESTAMP)),
            producer_id: i64::from_be_bytes(field(header, 43)),
            producer_epoch: i16::from_be_bytes(field(header, 51)),
            base_sequence: i32::from_be_bytes(field(header, 53)),
            record_count: i32::from_be_bytes(field(header, 57)),
        })
    }

    /// Offset of the last record.
    pub fn last_offset(&self) -> i64 {
        self.base_offset
            .saturating_add(i64::from(self.last_offset_delta))
    }

    /// The codec's number, which may be one that does not exist.
    pub fn codec_id(&self) -> u8 {
        (self.attributes & CODEC_MASK) as u8
    }

    /// How the records are compressed.
    pub fn codec(&self) -> Result<Codec, BatchError> {
        Codec::from_id(self.codec_id()).ok_or(BatchError::Codec(self.codec_id()))
    }

    /// Who gave the timestamps.
    pub fn timestamp_type(&self) -> TimestampType {
        match self.attributes & LOG_APPEND_TIME {
            0 => TimestampType::CreateTime,
            _ => TimestampType::LogAppendTime,
        }
    }

    /// Whether the batch belongs to a transaction.
    pub fn is_transactional(&self) -> bool {
        self.attributes & TRANSACTIONAL != 0
    }

    /// Whether the batch is a transaction marker.
    pub fn is_control(&self) -> bool {
        self.attributes & CONTROL != 0
    }

    /// Whether the batch comes from a producer with an id.
    pub fn has_producer_id(&self) -> bool {
        self.producer_id > NONE
    }

    /// Sequence number of the last record, which wraps at the end of the 31-bit range.
    pub fn last_sequence(&self) -> i32 {
        if self.base_sequence < 0 {
            return self.base_sequence;
        }
        self.base_sequence.wrapping_add(self.last_offset_delta) & i32::MAX
    }
}

/// A field of fixed width; zeros beyond the end, which callers exclude by a length check.
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes
        .get(at..)
        .and_then(<[u8]>::first_chunk)
        .copied()
        .unwrap_or([0; N])
}

/// The checksum that the batch should carry.
pub fn compute_crc(batch: &[u8]) -> u32 {
    crc32c::crc32c(batch.get(AT_ATTRIBUTES..).unwrap_or_default())
}

/// One whole batch, its header read.
#[derive(Clone, Copy, Debug)]
pub struct BatchView<'a> {
    /// The header's fields.
    pub info: BatchInfo,
    /// Header and records, exactly.
    pub bytes: &'a [u8],
}

impl<'a> BatchView<'a> {
    /// The batch at the start of `bytes`.
    pub fn first(bytes: &'a [u8]) -> Result<Self, BatchError> {
        let info = BatchInfo::read(bytes)?;
        let whole = bytes.get(..info.bytes).ok_or(BatchError::Incomplete {
            have: bytes.len(),
            need: info.bytes,
        })?;
        Ok(Self { info, bytes: whole })
    }

    /// The records as stored, perhaps compressed.
    pub fn payload(&self) -> &'a [u8] {
        self.bytes.get(HEADER_BYTES..).unwrap_or_default()
    }

    /// Compares the checksum.
    pub fn check_crc(&self) -> Result<(), BatchError> {
        match compute_crc(self.bytes) {
            computed if computed == self.info.crc => Ok(()),
            computed => Err(BatchError::Crc {
                stored: self.info.crc,
                computed,
            }),
        }
    }
}

/// Batches that lie one behind the other. An incomplete or broken one is an error and the end.
#[derive(Clone, Debug)]
pub struct Batches<'a> {
    rest: &'a [u8],
}

impl<'a> Batches<'a> {
    /// Iterates over `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What has not been looked at.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Batches<'a> {
    type Item = Result<BatchView<'a>, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let next = BatchView::first(self.rest);
        self.rest = match &next {
            Ok(view) => self.rest.get(view.bytes.len()..).unwrap_or_default(),
            Err(_) => &[],
        };
        Some(next)
    }
}

/// Checks what a client sent for one partition, without opening the records: exactly one batch of
/// format 2, its checksum, and the header rules that Kafka has for producers. Bytes behind it that
/// are no whole batch do not belong to it: [`BatchInfo::bytes`] says where it ends.
pub fn validate(bytes: &[u8]) -> Result<BatchInfo, BatchError> {
    let view = BatchView::first(bytes)?;
    let info = view.info;
    refuse_another(bytes.get(info.bytes..).unwrap_or_default())?;
    view.check_crc()?;
    let refuse = |text| Err(BatchError::Header(text));
    if info.base_offset != 0 {
        return refuse("a producer's batch must have base offset 0");
    }
    if info.record_count <= 0 || info.last_offset_delta < 0 {
        return refuse("the batch holds no records");
    }
    if i64::from(info.last_offset_delta) + 1 != i64::from(info.record_count) {
        return refuse("record count and last offset delta disagree");
    }
    if info.is_control() {
        return refuse("clients are not allowed to write control records");
    }
    if info.has_producer_id() && info.base_sequence < 0 {
        return refuse("a batch with a producer id needs a sequence number");
    }
    info.codec()?;
    Ok(info)
}

/// Looks at what follows a batch as Kafka does: a whole batch of any format is one too many, a
/// beginning that cannot be one is corrupt, and anything cut off is nothing.
fn refuse_another(rest: &[u8]) -> Result<(), BatchError> {
    match BatchInfo::read(rest) {
        Err(error @ (BatchError::Length(_) | BatchError::Magic(_))) => Err(error),
        Err(BatchError::Incomplete { .. }) => Ok(()),
        _ => {
            let length = i32::from_be_bytes(field(rest, AT_LENGTH));
            let total = usize::try_from(length)
                .unwrap_or(0)
                .saturating_add(LENGTH_OVERHEAD);
            if rest.len() < total {
                Ok(())
            } else {
                Err(BatchError::Trailing(rest.len()))
            }
        }
    }
}

#[cfg(test)]
mod tests;
