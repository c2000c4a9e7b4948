//! Record batches (magic 2) as bytes, with every field open to be wrong.

use bytes::{BufMut, Bytes, BytesMut};

/// A batch to be: records with their timestamps, and the header fields that tests turn.
#[derive(Clone, Debug)]
pub struct Batch {
    /// (timestamp, key, value) of each record.
    pub records: Vec<(i64, Option<Vec<u8>>, Vec<u8>)>,
    /// -1 when the producer is not idempotent.
    pub producer_id: i64,
    /// -1 when the producer is not idempotent.
    pub producer_epoch: i16,
    /// Sequence of the first record; -1 when the producer is not idempotent.
    pub base_sequence: i32,
    /// Codec, timestamp type, transactional and control bits.
    pub attributes: i16,
    /// The magic byte.
    pub magic: i8,
}

impl Batch {
    /// A batch of records without keys at the present time.
    pub fn of(values: &[&str]) -> Batch {
        let now = now_ms();
        Batch::at(&values.iter().map(|value| (now, *value)).collect::<Vec<_>>())
    }

    /// A batch of records without keys, each with its timestamp.
    pub fn at(records: &[(i64, &str)]) -> Batch {
        let record = |(time, value): &(i64, &str)| (*time, None, value.as_bytes().to_vec());
        Batch {
            records: records.iter().map(record).collect(),
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            attributes: 0,
            magic: 2,
        }
    }

    /// The same batch from an idempotent producer.
    pub fn from_producer(mut self, id: i64, epoch: i16, base_sequence: i32) -> Batch {
        (self.producer_id, self.producer_epoch, self.base_sequence) = (id, epoch, base_sequence);
        self
    }

    /// The batch as it goes over the wire.
    pub fn bytes(&self) -> Bytes {
        self.packed(<[u8]>::to_vec)
    }

    /// The batch with its records put through `pack`; `attributes` has to name the codec.
    pub fn packed(&self, pack: impl Fn(&[u8]) -> Vec<u8>) -> Bytes {
        let first = self.records.first().map_or(-1, |record| record.0);
        let max = self
            .records
            .iter()
            .map(|record| record.0)
            .max()
            .unwrap_or(-1);
        let count = self.records.len() as i32;
        let mut body = BytesMut::new();
        body.put_i16(self.attributes);
        body.put_i32(count - 1);
        body.put_i64(first);
        body.put_i64(max);
        body.put_i64(self.producer_id);
        body.put_i16(self.producer_epoch);
        body.put_i32(self.base_sequence);
        body.put_i32(count);
        let mut records = BytesMut::new();
        for (delta, (time, key, value)) in self.records.iter().enumerate() {
            put_record(
                &mut records,
                time - first,
                delta as i64,
                key.as_deref(),
                value,
            );
        }
        body.put_slice(&pack(&records));
        let mut batch = BytesMut::new();
        batch.put_i64(0);
        batch.put_i32(body.len() as i32 + 9);
        batch.put_i32(-1);
        batch.put_i8(self.magic);
        batch.put_u32(crc32c::crc32c(&body));
        batch.put_slice(&body);
        batch.freeze()
    }
}

fn put_record(out: &mut BytesMut, time: i64, offset: i64, key: Option<&[u8]>, value: &[u8]) {
    let mut record = BytesMut::new();
    record.put_i8(0);
    put_varint(&mut record, time);
    put_varint(&mut record, offset);
    match key {
        Some(key) => {
            put_varint(&mut record, key.len() as i64);
            record.put_slice(key);
        }
        None => put_varint(&mut record, -1),
    }
    put_varint(&mut record, value.len() as i64);
    record.put_slice(value);
    put_varint(&mut record, 0);
    put_varint(out, record.len() as i64);
    out.put_slice(&record);
}

fn put_varint(out: &mut BytesMut, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    while rest >= 0x80 {
        out.put_u8(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.put_u8(rest as u8);
}

/// What a fetched batch says in its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Offset of the first record.
    pub base_offset: i64,
    /// Offset of the last record.
    pub last_offset: i64,
    /// Codec, timestamp type, transactional and control bits.
    pub attributes: i16,
    /// The largest timestamp.
    pub max_timestamp: i64,
    /// How many records it holds.
    pub count: i32,
    /// Bytes of the whole batch.
    pub length: usize,
    /// Whether the checksum holds.
    pub intact: bool,
}

/// The headers of the whole batches in `records`; a cut batch at the end is left out.
pub fn headers(records: &[u8]) -> Vec<Header> {
    let mut found = Vec::new();
    let mut rest = records;
    while rest.len() >= 61 {
        let length = 12 + i32_at(rest, 8) as usize;
        if rest.len() < length {
            break;
        }
        let (batch, behind) = rest.split_at(length);
        let base_offset = i64_at(batch, 0);
        found.push(Header {
            base_offset,
            last_offset: base_offset + i64::from(i32_at(batch, 23)),
            attributes: (i32_at(batch, 21) >> 16) as i16,
            max_timestamp: i64_at(batch, 35),
            count: i32_at(batch, 57),
            length,
            intact: i32_at(batch, 17) as u32 == crc32c::crc32c(&batch[21..]),
        });
        rest = behind;
    }
    found
}

fn i32_at(bytes: &[u8], at: usize) -> i32 {
    i32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn i64_at(bytes: &[u8], at: usize) -> i64 {
    i64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Milliseconds since 1970.
pub fn now_ms() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.expect("a clock after 1970").as_millis() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_reads_back_as_it_was_built() {
        let batch = Batch::at(&[(100, "a"), (300, "b"), (200, "c")]).bytes();
        let two = [batch.as_ref(), batch.as_ref(), &batch[..30]].concat();
        let expected = Header {
            base_offset: 0,
            last_offset: 2,
            attributes: 0,
            max_timestamp: 300,
            count: 3,
            length: batch.len(),
            intact: true,
        };
        assert_eq!(headers(&two), [expected, expected]);
    }
}
