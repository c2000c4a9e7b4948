//! Opening a batch: every record is walked, none is kept. Uncompressed records are walked where
//! they lie; compressed ones stream through a small buffer, so a batch that grows a thousandfold
//! costs time up to its limit, and no memory.

use std::io::{self, Read};
use std::ops::{ControlFlow, RangeInclusive};

use super::super::compression::{Codec, Decompressor};
use super::super::error::ErrorCode;
use super::super::wire::{Reader, WireError};
use super::{BatchError, BatchView, NONE, TimestampType};

/// Records of one batch that are named to its producer at most: a few compressed bytes may stand
/// for millions.
pub const MAX_FLAWS: usize = 10_000;

/// What is asked of a producer's records.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Compacted topics refuse records without a key.
    pub keys_required: bool,
    /// The topic's timestamp type.
    pub timestamp_type: TimestampType,
    /// Timestamps that a CreateTime topic takes.
    pub timestamps: RangeInclusive<i64>,
    /// Bytes that may come out of a compressed batch.
    pub decompressed_limit: u64,
    /// Bytes that a record of a compressed batch may have.
    pub record_limit: u64,
}

/// What a walk found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Largest record timestamp, or -1. The batch header should say the same.
    pub max_timestamp: i64,
    /// Offset, from the base, of the first record that has it.
    pub max_timestamp_delta: i32,
    /// Bytes of the records, decompressed.
    pub records_bytes: u64,
    /// Records that break a rule, in order, at most [`MAX_FLAWS`]. One is enough to refuse the
    /// batch.
    pub flaws: Vec<Flaw>,
}

/// A record that breaks a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// Its place in the batch, from 0: Kafka's `batch_index`.
    pub index: i32,
    /// The rule.
    pub kind: FlawKind,
}

/// The rules for single records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlawKind {
    /// A compacted topic's record has no key: INVALID_RECORD.
    NullKey,
    /// The timestamp is outside what the topic takes: INVALID_TIMESTAMP.
    Timestamp(i64),
    /// The producer claims log append time: INVALID_TIMESTAMP.
    LogAppendTime,
}

impl FlawKind {
    /// The code that the record's batch is refused with.
    pub fn code(self) -> ErrorCode {
        match self {
            Self::NullKey => ErrorCode::InvalidRecord,
            Self::Timestamp(_) | Self::LogAppendTime => ErrorCode::InvalidTimestamp,
        }
    }
}

impl Opened {
    /// The code that the batch is refused with; bad timestamps go before all else, as in Kafka.
    pub fn refusal(&self) -> Option<ErrorCode> {
        let mut codes = self.flaws.iter().map(|flaw| flaw.kind.code());
        let first = codes.next()?;
        Some(
            codes
                .find(|&code| code == ErrorCode::InvalidTimestamp)
                .unwrap_or(first),
        )
    }
}

/// One record's place, without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordMeta {
    /// Its place in the batch, from 0.
    pub index: i32,
    /// Offset from the batch's base.
    pub offset_delta: i32,
    /// The record's timestamp; in a LogAppendTime batch the batch's.
    pub timestamp: i64,
    /// Its length.
    pub bytes: u64,
    /// Whether the key is null.
    pub null_key: bool,
}

/// Walks all records of a batch that passed [`super::validate`] and holds them against the rules.
pub fn open(view: &BatchView<'_>, rules: &Rules) -> Result<Opened, BatchError> {
    let mut opened = Opened {
        max_timestamp: NONE,
        max_timestamp_delta: 0,
        records_bytes: 0,
        flaws: Vec::new(),
    };
    let claims_append_time = view.info.timestamp_type() == TimestampType::LogAppendTime;
    // Kafka lets uncompressed records come in any order of their offsets.
    let any_order = view.info.codec_id() == Codec::None.id();
    let offsets = 0..=view.info.last_offset_delta;
    let mut in_place = true;
    let mut oversized = None;
    opened.records_bytes = walk(view, rules.decompressed_limit, &mut |record| {
        in_place &= match any_order {
            true => offsets.contains(&record.offset_delta),
            false => record.offset_delta == record.index,
        };
        if !any_order && record.bytes > rules.record_limit {
            oversized = Some(record.index);
            return ControlFlow::Break(());
        }
        if record.timestamp > opened.max_timestamp {
            opened.max_timestamp = record.timestamp;
            opened.max_timestamp_delta = record.offset_delta;
        }
        let index = record.index;
        if rules.keys_required && record.null_key {
            opened.flaws.push(Flaw {
                index,
                kind: FlawKind::NullKey,
            });
        } else if rules.timestamp_type == TimestampType::CreateTime && record.timestamp != NONE {
            if !rules.timestamps.contains(&record.timestamp) {
                let kind = FlawKind::Timestamp(record.timestamp);
                opened.flaws.push(Flaw { index, kind });
            }
        } else if claims_append_time {
            opened.flaws.push(Flaw {
                index,
                kind: FlawKind::LogAppendTime,
            });
        }
        match opened.flaws.len() < MAX_FLAWS {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    })?;
    if let Some(index) = oversized {
        return Err(BatchError::Record {
            index: index.cast_unsigned(),
            reason: "it is longer than max.decompressed.message.bytes",
        });
    }
    if !in_place {
        return Err(BatchError::Header(
            "offset deltas do not count up by one within the batch",
        ));
    }
    Ok(opened)
}

/// Calls `visit` for each record until it breaks; returns the bytes that were walked. All lengths
/// are checked on the way, and after the last record nothing may be left.
pub fn walk(
    view: &BatchView<'_>,
    decompressed_limit: u64,
    visit: &mut dyn FnMut(RecordMeta) -> ControlFlow<()>,
) -> Result<u64, BatchError> {
    match view.info.codec()? {
        Codec::None => {
            let payload = view.payload();
            let mut source = Slice(Reader::new(payload));
            walk_source(view, &mut source, visit)?;
            Ok((payload.len() - source.0.remaining()) as u64)
        }
        codec => {
            let reader = Decompressor::new(codec, view.payload(), decompressed_limit)?;
            let mut source = Stream::new(reader);
            let done = walk_source(view, &mut source, visit);
            // A failed read shows as bytes that end too early; the reason behind it says more.
            match source.error.take() {
                Some(error) => Err(source.reader.explain(&error).into()),
                None => done.map(|()| source.consumed),
            }
        }
    }
}

/// Where the bytes of the records come from.
trait Source {
    fn varint(&mut self) -> Result<i32, WireError>;
    fn varlong(&mut self) -> Result<i64, WireError>;
    fn skip(&mut self, n: usize) -> Result<(), WireError>;
    /// Bytes taken so far.
    fn position(&self) -> u64;
    fn at_end(&mut self) -> bool;
}

fn walk_source<S: Source>(
    view: &BatchView<'_>,
    source: &mut S,
    visit: &mut dyn FnMut(RecordMeta) -> ControlFlow<()>,
) -> Result<(), BatchError> {
    let info = &view.info;
    let append_time = info.timestamp_type() == TimestampType::LogAppendTime;
    for index in 0..info.record_count {
        let mut record = read_record(source).map_err(|reason| BatchError::Record {
            index: index.cast_unsigned(),
            reason,
        })?;
        record.index = index;
        record.timestamp = if append_time {
            info.max_timestamp
        } else {
            info.base_timestamp.wrapping_add(record.timestamp)
        };
        if visit(record).is_break() {
            return Ok(());
        }
    }
    if !source.at_end() {
        return Err(BatchError::Header("bytes are left behind the last record"));
    }
    Ok(())
}

/// Reads one record; its `timestamp` is still a delta.
fn read_record<S: Source>(source: &mut S) -> Result<RecordMeta, &'static str> {
    const CUT: &str = "its bytes end too early";
    let size = source.varint().map_err(|_| CUT)?;
    let size = u64::try_from(size).map_err(|_| "its size is negative")?;
    let end = source.position() + size;
    source.skip(1).map_err(|_| CUT)?;
    let timestamp = source.varlong().map_err(|_| CUT)?;
    let offset_delta = source.varint().map_err(|_| CUT)?;
    let key = source.varint().map_err(|_| CUT)?;
    skip_in(source, end, key, "its key is longer than it")?;
    let value = source.varint().map_err(|_| CUT)?;
    skip_in(source, end, value, "its value is longer than it")?;
    let headers = source.varint().map_err(|_| CUT)?;
    if headers < 0 || i64::from(headers) > end.saturating_sub(source.position()) as i64 {
        return Err("its number of headers makes no sense");
    }
    for _ in 0..headers {
        let name = source.varint().map_err(|_| CUT)?;
        if name < 0 {
            return Err("a header has no key");
        }
        skip_in(source, end, name, "a header key is longer than the record")?;
        let value = source.varint().map_err(|_| CUT)?;
        skip_in(
            source,
            end,
            value,
            "a header value is longer than the record",
        )?;
    }
    if source.position() != end {
        return Err("its size and its contents disagree");
    }
    Ok(RecordMeta {
        index: 0,
        offset_delta,
        timestamp,
        bytes: size,
        null_key: key < 0,
    })
}

/// Skips a key or value of `length` bytes, negative meaning null.
fn skip_in<S: Source>(
    source: &mut S,
    end: u64,
    length: i32,
    too_long: &'static str,
) -> Result<(), &'static str> {
    let Ok(length) = usize::try_from(length) else {
        return Ok(());
    };
    if length as u64 > end.saturating_sub(source.position()) {
        return Err(too_long);
    }
    source.skip(length).map_err(|_| "its bytes end too early")
}

/// Uncompressed records. Positions count down from the end, which is all `read_record` needs.
struct Slice<'a>(Reader<'a>);

impl Source for Slice<'_> {
    fn varint(&mut self) -> Result<i32, WireError> {
        self.0.varint()
    }

    fn varlong(&mut self) -> Result<i64, WireError> {
        self.0.varlong()
    }

    fn skip(&mut self, n: usize) -> Result<(), WireError> {
        self.0.take(n).map(|_| ())
    }

    fn position(&self) -> u64 {
        // Any origin does; this one cannot underflow because a slice is shorter than 2^62.
        (1 << 62) - self.0.remaining() as u64
    }

    fn at_end(&mut self) -> bool {
        self.0.remaining() == 0
    }
}

/// The buffer that decompressed records pass through.
const STREAM_BUFFER: usize = 16 << 10;

struct Stream<'a> {
    reader: Decompressor<'a>,
    buffer: Box<[u8]>,
    at: usize,
    end: usize,
    consumed: u64,
    error: Option<io::Error>,
}

impl<'a> Stream<'a> {
    fn new(reader: Decompressor<'a>) -> Self {
        let buffer = vec![0; STREAM_BUFFER].into_boxed_slice();
        Self {
            reader,
            buffer,
            at: 0,
            end: 0,
            consumed: 0,
            error: None,
        }
    }

    /// Makes at least one byte available, or says that there is none.
    fn fill(&mut self) -> bool {
        if self.at < self.end {
            return true;
        }
        if self.error.is_some() {
            return false;
        }
        loop {
            match self.reader.read(&mut self.buffer) {
                Ok(n) => {
                    (self.at, self.end) = (0, n);
                    return n > 0;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    self.error = Some(e);
                    return false;
                }
            }
        }
    }

    fn number(&mut self, max_bytes: usize) -> Result<u64, WireError> {
        let mut value = 0u64;
        for i in 0..max_bytes {
            if !self.fill() {
                return Err(WireError::Truncated);
            }
            let byte = self
                .buffer
                .get(self.at)
                .copied()
                .ok_or(WireError::Truncated)?;
            self.at += 1;
            self.consumed += 1;
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(WireError::Varint)
    }
}

impl Source for Stream<'_> {
    fn varint(&mut self) -> Result<i32, WireError> {
        let raw = u32::try_from(self.number(5)?).map_err(|_| WireError::Varint)?;
        Ok((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed())
    }

    fn varlong(&mut self) -> Result<i64, WireError> {
        let raw = self.number(10)?;
        Ok((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed())
    }

    fn skip(&mut self, n: usize) -> Result<(), WireError> {
        let mut left = n;
        while left > 0 {
            if !self.fill() {
                return Err(WireError::Truncated);
            }
            let step = left.min(self.end - self.at);
            self.at += step;
            self.consumed += step as u64;
            left -= step;
        }
        Ok(())
    }

    fn position(&self) -> u64 {
        self.consumed
    }

    fn at_end(&mut self) -> bool {
        !self.fill()
    }
}
