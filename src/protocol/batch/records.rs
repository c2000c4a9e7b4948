//! Records of an uncompressed payload, as slices of it.

use super::super::wire::{Reader, WireError};
use super::{BatchError, BatchInfo, TimestampType};

/// One record. Nothing in it is copied.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Its offset in the log.
    pub offset: i64,
    /// Its timestamp; in a LogAppendTime batch the batch's.
    pub timestamp: i64,
    /// Its key.
    pub key: Option<&'a [u8]>,
    /// Its value; `None` is a tombstone.
    pub value: Option<&'a [u8]>,
    /// Its headers.
    pub headers: Headers<'a>,
}

/// A record's headers, duplicates and order kept.
#[derive(Clone, Copy, Debug)]
pub struct Headers<'a> {
    count: u32,
    rest: Reader<'a>,
}

impl<'a> Iterator for Headers<'a> {
    type Item = (&'a [u8], Option<&'a [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        self.count = self.count.checked_sub(1)?;
        // The record was checked to the end when it was read, so none of these fails.
        let key = nullable(&mut self.rest).ok()??;
        let value = nullable(&mut self.rest).ok()?;
        Some((key, value))
    }
}

/// Iterates over the records of a batch whose payload is not compressed (any more). A broken
/// record is an error and the end.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    info: BatchInfo,
    next: i32,
    rest: Reader<'a>,
}

impl<'a> Records<'a> {
    /// `payload` is what follows the header, decompressed.
    pub fn new(info: &BatchInfo, payload: &'a [u8]) -> Self {
        Self {
            info: *info,
            next: 0,
            rest: Reader::new(payload),
        }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next >= self.info.record_count {
            return None;
        }
        let index = self.next.cast_unsigned();
        self.next += 1;
        let record = read(&self.info, &mut self.rest).map_err(|_| {
            self.next = i32::MAX;
            BatchError::Record {
                index,
                reason: "its lengths and its bytes disagree",
            }
        });
        Some(record)
    }
}

fn read<'a>(info: &BatchInfo, rest: &mut Reader<'a>) -> Result<Record<'a>, WireError> {
    let size = usize::try_from(rest.varint()?).map_err(|_| WireError::Truncated)?;
    let mut body = Reader::new(rest.take(size)?);
    body.take(1)?;
    let timestamp_delta = body.varlong()?;
    let offset_delta = body.varint()?;
    let key = nullable(&mut body)?;
    let value = nullable(&mut body)?;
    let count = u32::try_from(body.varint()?).map_err(|_| WireError::Truncated)?;
    let headers = Headers { count, rest: body };
    for _ in 0..count {
        nullable(&mut body)?.ok_or(WireError::Truncated)?;
        nullable(&mut body)?;
    }
    if body.remaining() != 0 {
        return Err(WireError::Truncated);
    }
    Ok(Record {
        offset: info.base_offset.wrapping_add(i64::from(offset_delta)),
        timestamp: match info.timestamp_type() {
            TimestampType::CreateTime => info.base_timestamp.wrapping_add(timestamp_delta),
            TimestampType::LogAppendTime => info.max_timestamp,
        },
        key,
        value,
        headers,
    })
}

fn nullable<'a>(reader: &mut Reader<'a>) -> Result<Option<&'a [u8]>, WireError> {
    match usize::try_from(reader.varint()?) {
        Ok(length) => reader.take(length).map(Some),
        Err(_) => Ok(None),
    }
}
