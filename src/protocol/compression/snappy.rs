//! snappy in the framing that Java clients write (a header, then blocks with a length each), and
//! raw, as some other clients send it.

use std::io::{self, Read, Write};

use super::{Bounded, CompressionError};

const MAGIC: [u8; 8] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0];
/// Magic, version, lowest compatible version.
const HEADER_BYTES: usize = 16;
/// Input bytes per block when writing, as Java's writer.
const BLOCK_BYTES: usize = 32 << 10;
/// No snappy block grows by more: two bytes of a copy stand for at most 64 of output.
const MAX_RATIO: usize = 32;

/// Decompressed bytes, one block at a time.
pub(super) struct Reader<'a> {
    framed: bool,
    input: &'a [u8],
    block: Vec<u8>,
    at: usize,
    limit: u64,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8], limit: u64) -> Result<Self, CompressionError> {
        let (framed, input) = blocks(bytes);
        if !framed && declared(input) > limit {
            return Err(CompressionError::TooLarge(limit));
        }
        Ok(Self {
            framed,
            input,
            block: Vec::new(),
            at: 0,
            limit,
        })
    }

    fn next_block(&mut self) -> io::Result<bool> {
        if self.input.is_empty() {
            return Ok(false);
        }
        let source = if self.framed {
            let (block, rest) = split_block(self.input).ok_or_else(cut)?;
            self.input = rest;
            block
        } else {
            std::mem::take(&mut self.input)
        };
        let size = declared(source);
        if size > (source.len() * MAX_RATIO) as u64 || size > self.limit.saturating_add(1) {
            return Err(io::Error::other(
                "a block claims to be larger than it can be",
            ));
        }
        self.block.resize(size as usize, 0);
        self.at = 0;
        let n = snap::raw::Decoder::new()
            .decompress(source, &mut self.block)
            .map_err(|e| io::Error::other(e.to_string()))?;
        self.block.truncate(n);
        Ok(true)
    }
}

impl Read for Reader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.at >= self.block.len() {
            if !self.next_block()? {
                return Ok(0);
            }
        }
        let n = self.block.get(self.at..).unwrap_or_default().read(out)?;
        self.at += n;
        Ok(n)
    }
}

fn cut() -> io::Error {
    io::Error::other("a block is cut off")
}

/// Whether the bytes are framed, and where their blocks start.
fn blocks(bytes: &[u8]) -> (bool, &[u8]) {
    match bytes.strip_prefix(&MAGIC) {
        Some(_) => (true, bytes.get(HEADER_BYTES..).unwrap_or_default()),
        None => (false, bytes),
    }
}

fn split_block(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = input.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_be_bytes(*length) as usize)
}

/// The size a raw block says it has; 0 if it says nothing readable.
fn declared(block: &[u8]) -> u64 {
    snap::raw::decompress_len(block).unwrap_or(0) as u64
}

/// The largest block that reading these bytes will hold.
pub(super) fn largest_block(bytes: &[u8]) -> u64 {
    let (framed, mut input) = blocks(bytes);
    let bound = |block: &[u8]| declared(block).min((block.len() * MAX_RATIO) as u64);
    if !framed {
        return bound(input);
    }
    let mut largest = 0;
    while let Some((block, rest)) = split_block(input) {
        largest = largest.max(bound(block));
        input = rest;
    }
    largest
}

pub(super) fn compress(source: &mut impl Read, mut out: Bounded<'_>) -> io::Result<Vec<u8>> {
    out.write_all(&MAGIC)?;
    out.write_all(&[0, 0, 0, 1, 0, 0, 0, 1])?;
    let mut encoder = snap::raw::Encoder::new();
    let mut block = Vec::with_capacity(BLOCK_BYTES);
    loop {
        block.clear();
        source.take(BLOCK_BYTES as u64).read_to_end(&mut block)?;
        if block.is_empty() {
            return Ok(out.bytes);
        }
        let packed = encoder
            .compress_vec(&block)
            .map_err(|e| io::Error::other(e.to_string()))?;
        out.write_all(&(packed.len() as u32).to_be_bytes())?;
        out.write_all(&packed)?;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Codec, compress, decompress};
    use super::*;

    #[test]
    fn raw_blocks_are_read_too() {
        let raw = snap::raw::Encoder::new()
            .compress_vec(&[7; 100_000])
            .unwrap();
        assert_eq!(
            decompress(Codec::Snappy, &raw, 100_000).unwrap(),
            [7; 100_000]
        );
        assert!(decompress(Codec::Snappy, &raw, 99_999).is_err());
    }

    #[test]
    fn a_block_that_lies_about_its_size_reserves_nothing() {
        let huge = [0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0];
        assert!(decompress(Codec::Snappy, &huge, u64::MAX).is_err());
        let mut framed = compress(Codec::Snappy, None, b"hello").unwrap();
        framed[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(decompress(Codec::Snappy, &framed, u64::MAX).is_err());
        assert_eq!(largest_block(&framed), 0);
    }
}
