//! Changing a batch on its way into the log.

use super::super::compression::{Codec, CompressionError, Decompressor, Transcode, transcode};
use super::{
    AT_ATTRIBUTES, AT_CRC, AT_LEADER_EPOCH, AT_LENGTH, AT_MAX_TIMESTAMP, BatchError, BatchView,
    CODEC_MASK, HEADER_BYTES, LENGTH_OVERHEAD, LOG_APPEND_TIME, compute_crc, field,
};

/// What the server sets in a batch it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Offset of the first record.
    pub base_offset: i64,
    /// The partition's leader epoch.
    pub leader_epoch: i32,
    /// What becomes of the timestamps.
    pub stamp: Stamp,
}

/// What becomes of a batch's timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamp {
    /// The header is right as it is.
    Keep,
    /// CreateTime with this largest timestamp: the header said something else.
    CreateTime(i64),
    /// LogAppendTime, and this is the time.
    LogAppendTime(i64),
}

/// Sets the server's fields in one whole batch, in place.
///
/// A new checksum follows from the old one and from the bits that change, and is not computed over
/// the batch: damage that happened since the batch was checked stays visible. Bytes too short to be
/// a batch are left alone.
pub fn patch(batch: &mut [u8], patch: Patch) {
    let length = batch.len();
    let Some(header) = batch.first_chunk_mut::<HEADER_BYTES>() else {
        return;
    };
    put(header, 0, patch.base_offset.to_be_bytes());
    put(header, AT_LEADER_EPOCH, patch.leader_epoch.to_be_bytes());
    let attributes = i16::from_be_bytes(field(header, AT_ATTRIBUTES));
    let (attributes, max_timestamp) = match patch.stamp {
        Stamp::Keep => return,
        Stamp::CreateTime(max) => (attributes & !LOG_APPEND_TIME, max),
        Stamp::LogAppendTime(now) => (attributes | LOG_APPEND_TIME, now),
    };
    let old = *header;
    put(header, AT_ATTRIBUTES, attributes.to_be_bytes());
    put(header, AT_MAX_TIMESTAMP, max_timestamp.to_be_bytes());
    let crc = u32::from_be_bytes(field(header, AT_CRC));
    let crc = crc ^ crc_of_difference(&old, header, length - HEADER_BYTES);
    put(header, AT_CRC, crc.to_be_bytes());
}

/// CRC is linear: `crc(a) ^ crc(b)` for equal lengths is the bare CRC (no initial value, no final
/// inversion) of `a ^ b`. Leading zeros do not change that, and `tail` equal bytes behind the
/// header are zeros to shift it by.
fn crc_of_difference(old: &[u8; HEADER_BYTES], new: &[u8; HEADER_BYTES], tail: usize) -> u32 {
    let mut difference = [0u8; HEADER_BYTES];
    for (d, (a, b)) in difference.iter_mut().zip(old.iter().zip(new)) {
        *d = a ^ b;
    }
    let covered = difference.get(AT_ATTRIBUTES..).unwrap_or_default();
    let bare = !crc32c::crc32c_append(!0, covered);
    crc32c::crc32c_combine(bare, 0, tail)
}

fn put<const N: usize>(header: &mut [u8; HEADER_BYTES], at: usize, value: [u8; N]) {
    if let Some(place) = header.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *place = value;
    }
}

/// The same batch with its records in another codec, for topics whose `compression.type` is not
/// `producer`. At most `decompressed_limit` bytes may come out of it, and the new one may have at
/// most `most_bytes`; it is never held decompressed.
pub fn recompress(
    view: &BatchView<'_>,
    codec: Codec,
    level: Option<i32>,
    decompressed_limit: u64,
    most_bytes: u64,
) -> Result<Vec<u8>, BatchError> {
    // As long as such a batch is stored as it came its oddity is nobody's business; whoever writes
    // it anew answers for it, and Kafka does not.
    if view.info.has_producer_id() && view.info.producer_epoch == -1 {
        return Err(BatchError::Header(
            "the batch has a producer id without an epoch",
        ));
    }
    if view.info.base_timestamp < -1 {
        return Err(BatchError::Header("the batch has a negative timestamp"));
    }
    let most = most_bytes.saturating_sub(HEADER_BYTES as u64);
    let mut source = Decompressor::new(view.info.codec()?, view.payload(), decompressed_limit)?;
    let payload = transcode(codec, level, &mut source, most).map_err(|failure| match failure {
        Transcode::Source(error) => source.explain(&error),
        Transcode::TooLarge => CompressionError::TooLarge(most),
        Transcode::Codec(error) => CompressionError::Invalid {
            codec: codec.name(),
            reason: error.to_string(),
        },
    })?;
    let mut out = Vec::with_capacity(HEADER_BYTES + payload.len());
    out.extend_from_slice(view.bytes.get(..HEADER_BYTES).unwrap_or_default());
    out.extend_from_slice(&payload);
    let total = i32::try_from(out.len() - LENGTH_OVERHEAD)
        .map_err(|_| BatchError::Header("the batch grows beyond 2 GiB"))?;
    let attributes = (view.info.attributes & !CODEC_MASK) | i16::from(codec.id());
    if let Some(header) = out.first_chunk_mut() {
        put(header, AT_LENGTH, total.to_be_bytes());
        put(header, AT_ATTRIBUTES, attributes.to_be_bytes());
    }
    let crc = compute_crc(&out);
    if let Some(header) = out.first_chunk_mut() {
        put(header, AT_CRC, crc.to_be_bytes());
    }
    Ok(out)
}
