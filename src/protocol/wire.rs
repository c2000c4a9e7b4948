//! Reading primitive wire types out of a byte slice: every read is checked, nothing panics.

/// What was wrong with the bytes; callers add where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    #[error("bytes end too early")]
    Truncated,
    #[error("a variable-length number is too long")]
    Varint,
}

/// A position in a slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn take(&mut self, n: usize) -> Result<&'a [u8], WireError> {
        let (head, tail) = self.bytes.split_at_checked(n).ok_or(WireError::Truncated)?;
        self.bytes = tail;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (head, tail) = self.bytes.split_first_chunk().ok_or(WireError::Truncated)?;
        self.bytes = tail;
        Ok(*head)
    }

    pub(crate) fn i16(&mut self) -> Result<i16, WireError> {
        Ok(i16::from_be_bytes(self.array()?))
    }

    pub(crate) fn i32(&mut self) -> Result<i32, WireError> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    /// A variable-length number of one byte, as most are; anything else is left where it is.
    fn small(&mut self) -> Option<u8> {
        let (&byte, rest) = self.bytes.split_first()?;
        if byte >= 0x80 {
            return None;
        }
        self.bytes = rest;
        Some(byte)
    }

    /// An unsigned variable-length number of at most 32 bits.
    #[inline]
    pub(crate) fn uvarint(&mut self) -> Result<u32, WireError> {
        if let Some(byte) = self.small() {
            return Ok(u32::from(byte));
        }
        let mut value = 0u32;
        for (i, &byte) in self.bytes.iter().take(5).enumerate() {
            let part = u32::from(byte & 0x7f);
            if i == 4 && byte > 0x0f {
                return Err(WireError::Varint);
            }
            value |= part << (7 * i);
            if byte < 0x80 {
                self.bytes = self.bytes.get(i + 1..).unwrap_or_default();
                return Ok(value);
            }
        }
        Err(WireError::Truncated)
    }

    /// A signed (zigzag) variable-length number of at most 32 bits.
    pub(crate) fn varint(&mut self) -> Result<i32, WireError> {
        let raw = self.uvarint()?;
        Ok((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed())
    }

    /// A signed (zigzag) variable-length number of at most 64 bits.
    #[inline]
    pub(crate) fn varlong(&mut self) -> Result<i64, WireError> {
        if let Some(byte) = self.small() {
            return Ok(i64::from(byte >> 1) ^ -i64::from(byte & 1));
        }
        let mut value = 0u64;
        for (i, &byte) in self.bytes.iter().take(10).enumerate() {
            if i == 9 && byte > 1 {
                return Err(WireError::Varint);
            }
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte < 0x80 {
                self.bytes = self.bytes.get(i + 1..).unwrap_or_default();
                return Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed());
            }
        }
        Err(WireError::Truncated)
    }
}

/// Appends an unsigned variable-length number.
pub(crate) fn put_uvarint(out: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        out.push((value as u8) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a signed (zigzag) variable-length number.
pub(crate) fn put_varlong(out: &mut Vec<u8>, value: i64) {
    let mut raw = ((value << 1) ^ (value >> 63)).cast_unsigned();
    while raw >= 0x80 {
        out.push((raw as u8) | 0x80);
        raw >>= 7;
    }
    out.push(raw as u8);
}

/// Bytes that [`put_varlong`] appends.
pub(crate) fn varlong_len(value: i64) -> usize {
    let raw = ((value << 1) ^ (value >> 63)).cast_unsigned();
    (64 - (raw | 1).leading_zeros() as usize).div_ceil(7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_length_numbers_round_trip() {
        for value in [
            0,
            1,
            -1,
            63,
            64,
            -64,
            -65,
            8191,
            i64::from(i32::MAX),
            i64::MIN,
            i64::MAX,
        ] {
            let mut out = Vec::new();
            put_varlong(&mut out, value);
            assert_eq!(out.len(), varlong_len(value), "{value}");
            assert_eq!(Reader::new(&out).varlong(), Ok(value));
        }
        for value in [0, 127, 128, u32::MAX] {
            let mut out = Vec::new();
            put_uvarint(&mut out, value);
            assert_eq!(Reader::new(&out).uvarint(), Ok(value));
        }
        let mut out = Vec::new();
        put_varlong(&mut out, i64::from(i32::MIN));
        assert_eq!(Reader::new(&out).varint(), Ok(i32::MIN));
    }

    #[test]
    fn overlong_and_short_numbers_are_refused() {
        assert_eq!(Reader::new(&[0xff; 4]).uvarint(), Err(WireError::Truncated));
        assert_eq!(Reader::new(&[0xff; 5]).uvarint(), Err(WireError::Varint));
        assert_eq!(Reader::new(&[0xff; 10]).varlong(), Err(WireError::Varint));
        assert_eq!(Reader::new(&[]).varlong(), Err(WireError::Truncated));
        assert_eq!(Reader::new(&[1]).i32(), Err(WireError::Truncated));
    }
}
