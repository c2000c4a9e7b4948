//! Numbers and strings of stored changes and snapshots.
//!
//! Integers are LEB128 (signed ones zigzag first), strings and lists carry their length in front.
//! A reader never takes a length for granted: it reserves no more than the bytes that remain.

use std::collections::BTreeMap;

use bytes::Bytes;
use thiserror::Error;
use uuid::Uuid;

/// Explicit configs: name to value.
pub type Configs = BTreeMap<String, String>;

/// Why stored bytes are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// Written by a newer version of this program.
    #[error(
        "{what} is of version {found}, this program reads up to {known}: start the newer program"
    )]
    Newer {
        /// What was read.
        what: &'static str,
        /// Its version.
        found: u8,
        /// The newest version known here.
        known: u8,
    },
    /// The bytes end early, say something impossible or go on behind the end.
    #[error("damaged: {0}")]
    Damaged(&'static str),
}

/// Appends values to a buffer.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The bytes.
    pub fn finish(self) -> Bytes {
        Bytes::from(self.bytes)
    }

    /// One byte.
    pub fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    /// An unsigned number.
    pub fn uint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    /// A signed number.
    pub fn int(&mut self, value: i64) {
        self.uint(((value << 1) ^ (value >> 63)) as u64);
    }

    /// Bytes with their length.
    pub fn blob(&mut self, value: &[u8]) {
        self.uint(value.len() as u64);
        self.bytes.extend_from_slice(value);
    }

    /// Bytes as they are.
    pub fn raw(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
    }

    /// A string with its length.
    pub fn str(&mut self, value: &str) {
        self.blob(value.as_bytes());
    }

    /// An id.
    pub fn uuid(&mut self, value: Uuid) {
        self.bytes.extend_from_slice(value.as_bytes());
    }

    /// Configs.
    pub fn configs(&mut self, configs: &Configs) {
        self.uint(configs.len() as u64);
        for (name, value) in configs {
            self.str(name);
            self.str(value);
        }
    }

    /// A list.
    pub fn list<T>(&mut self, items: &[T], mut each: impl FnMut(&mut Self, &T)) {
        self.uint(items.len() as u64);
        for item in items {
            each(self, item);
        }
    }
}

/// Takes values from a buffer.
#[derive(Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Refuses bytes behind the last value.
    pub fn end(&self) -> Result<(), DecodeError> {
        if self.is_empty() {
            Ok(())
        } else {
            Err(DecodeError::Damaged("bytes behind the end"))
        }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (head, tail) = self
            .bytes
            .split_at_checked(count)
            .ok_or(DecodeError::Damaged("it ends early"))?;
        self.bytes = tail;
        Ok(head)
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        self.take(1)?
            .first()
            .copied()
            .ok_or(DecodeError::Damaged("it ends early"))
    }

    /// A version byte of at most `known`.
    pub fn version(&mut self, what: &'static str, known: u8) -> Result<u8, DecodeError> {
        match self.u8()? {
            0 => Err(DecodeError::Damaged("version 0")),
            found if found > known => Err(DecodeError::Newer { what, found, known }),
            found => Ok(found),
        }
    }

    /// An unsigned number.
    pub fn uint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                break;
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError::Damaged("a number is too long"))
    }

    /// An unsigned number of 32 bits.
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        u32::try_from(self.uint()?).map_err(|_| DecodeError::Damaged("a number is too large"))
    }

    /// A signed number.
    pub fn int(&mut self) -> Result<i64, DecodeError> {
        let raw = self.uint()?;
        Ok((raw >> 1) as i64 ^ -((raw & 1) as i64))
    }

    /// A signed number of 32 bits.
    pub fn i32(&mut self) -> Result<i32, DecodeError> {
        i32::try_from(self.int()?).map_err(|_| DecodeError::Damaged("a number is too large"))
    }

    /// Bytes with their length.
    pub fn blob(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = usize::try_from(self.uint()?).unwrap_or(usize::MAX);
        self.take(len)
    }

    /// A string with its length.
    pub fn str(&mut self) -> Result<&'a str, DecodeError> {
        std::str::from_utf8(self.blob()?).map_err(|_| DecodeError::Damaged("a string is not UTF-8"))
    }

    /// An id.
    pub fn uuid(&mut self) -> Result<Uuid, DecodeError> {
        let bytes = self.take(16)?;
        Uuid::from_slice(bytes).map_err(|_| DecodeError::Damaged("it ends early"))
    }

    /// Configs.
    pub fn configs(&mut self) -> Result<Configs, DecodeError> {
        let pairs = self.list(|r| Ok((r.str()?.to_owned(), r.str()?.to_owned())))?;
        Ok(pairs.into_iter().collect())
    }

    /// A list. Each item takes at least one byte, so a length beyond the rest is refused.
    pub fn list<T>(
        &mut self,
        mut each: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let count = usize::try_from(self.uint()?).unwrap_or(usize::MAX);
        if count > self.bytes.len() {
            return Err(DecodeError::Damaged("a list is longer than its bytes"));
        }
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(each(self)?);
        }
        Ok(items)
    }
}
