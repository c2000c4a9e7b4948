//! Building a batch from records, for the internal topics and for tests.

use bytes::Bytes;

use super::super::compression::{self, Codec, CompressionError};
use super::super::wire::{put_varlong, varlong_len};
use super::{AT_ATTRIBUTES, AT_CRC, CONTROL, HEADER_BYTES, LENGTH_OVERHEAD, MAGIC, NONE};
use super::{TRANSACTIONAL, compute_crc};

/// Collects records into one batch with base offset 0. The offset and the leader epoch are set on
/// append, as for a client's batch.
#[derive(Clone, Debug)]
pub struct BatchBuilder {
    codec: Codec,
    level: Option<i32>,
    attributes: i16,
    producer: (i64, i16, i32),
    records: Vec<u8>,
    count: i32,
    base_timestamp: i64,
    max_timestamp: i64,
}

impl Default for BatchBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl BatchBuilder {
    /// An empty, uncompressed batch without a producer.
    pub fn new() -> Self {
        Self {
            codec: Codec::None,
            level: None,
            attributes: 0,
            producer: (NONE, -1, -1),
            records: Vec::new(),
            count: 0,
            base_timestamp: NONE,
            max_timestamp: NONE,
        }
    }

    /// Compresses the records.
    #[must_use]
    pub fn codec(mut self, codec: Codec, level: Option<i32>) -> Self {
        (self.codec, self.level) = (codec, level);
        self
    }

    /// Names the producer.
    #[must_use]
    pub fn producer(mut self, id: i64, epoch: i16, base_sequence: i32) -> Self {
        self.producer = (id, epoch, base_sequence);
        self
    }

    /// Marks the batch as part of a transaction.
    #[must_use]
    pub fn transactional(mut self) -> Self {
        self.attributes |= TRANSACTIONAL;
        self
    }

    /// Marks the batch as control records.
    #[must_use]
    pub fn control(mut self) -> Self {
        self.attributes |= CONTROL;
        self
    }

    /// Adds a record without headers.
    pub fn push(&mut self, timestamp: i64, key: Option<&[u8]>, value: Option<&[u8]>) {
        self.push_with_headers(timestamp, key, value, &[]);
    }

    /// Adds a record.
    pub fn push_with_headers(
        &mut self,
        timestamp: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&[u8], Option<&[u8]>)],
    ) {
        if self.count == 0 {
            self.base_timestamp = timestamp;
        }
        self.max_timestamp = self.max_timestamp.max(timestamp);
        let delta = timestamp.wrapping_sub(self.base_timestamp);
        let offset_delta = i64::from(self.count);
        let size = 1
            + varlong_len(delta)
            + varlong_len(offset_delta)
            + nullable_len(key)
            + nullable_len(value)
            + varlong_len(headers.len() as i64)
            + headers
                .iter()
                .map(|(k, v)| nullable_len(Some(k)) + nullable_len(*v))
                .sum::<usize>();
        let out = &mut self.records;
        out.reserve(size + 5);
        put_varlong(out, size as i64);
        out.push(0);
        put_varlong(out, delta);
        put_varlong(out, offset_delta);
        put_nullable(out, key);
        put_nullable(out, value);
        put_varlong(out, headers.len() as i64);
        for (name, value) in headers {
            put_nullable(out, Some(name));
            put_nullable(out, *value);
        }
        self.count = self.count.saturating_add(1);
    }

    /// Records so far.
    pub fn len(&self) -> usize {
        self.count.cast_unsigned() as usize
    }

    /// Whether there is no record yet.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes so far, before compression.
    pub fn bytes(&self) -> usize {
        HEADER_BYTES + self.records.len()
    }

    /// The batch.
    pub fn build(self) -> Result<Bytes, CompressionError> {
        let attributes = self.attributes | i16::from(self.codec.id());
        let payload = match self.codec {
            Codec::None => self.records,
            codec => compression::compress(codec, self.level, &self.records)?,
        };
        let (producer_id, producer_epoch, base_sequence) = self.producer;
        let total = HEADER_BYTES + payload.len();
        let mut out = Vec::with_capacity(total);
        out.extend_from_slice(&0i64.to_be_bytes());
        out.extend_from_slice(&((total - LENGTH_OVERHEAD) as i32).to_be_bytes());
        out.extend_from_slice(&(-1i32).to_be_bytes());
        out.push(MAGIC.cast_unsigned());
        out.extend_from_slice(&[0; AT_ATTRIBUTES - AT_CRC]);
        out.extend_from_slice(&attributes.to_be_bytes());
        out.extend_from_slice(&(self.count - 1).to_be_bytes());
        out.extend_from_slice(&self.base_timestamp.to_be_bytes());
        out.extend_from_slice(&self.max_timestamp.to_be_bytes());
        out.extend_from_slice(&producer_id.to_be_bytes());
        out.extend_from_slice(&producer_epoch.to_be_bytes());
        out.extend_from_slice(&base_sequence.to_be_bytes());
        out.extend_from_slice(&self.count.to_be_bytes());
        out.extend_from_slice(&payload);
        let crc = compute_crc(&out);
        if let Some(place) = out.get_mut(AT_CRC..).and_then(<[u8]>::first_chunk_mut) {
            *place = crc.to_be_bytes();
        }
        Ok(Bytes::from(out))
    }
}

fn nullable_len(bytes: Option<&[u8]>) -> usize {
    bytes.map_or(1, |b| varlong_len(b.len() as i64) + b.len())
}

fn put_nullable(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    match bytes {
        None => put_varlong(out, -1),
        Some(bytes) => {
            put_varlong(out, bytes.len() as i64);
            out.extend_from_slice(bytes);
        }
    }
}
