//! The four codecs of record batches. Reading always goes through a limit, and through small
//! windows: only raw snappy, which has no framing, is held whole.

mod snappy;

use std::cell::Cell;
use std::io::{self, Read, Write};

/// How the records of a batch are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Codec {
    /// Not at all.
    #[default]
    None,
    /// gzip members.
    Gzip,
    /// snappy, in xerial's framing or raw.
    Snappy,
    /// An LZ4 frame.
    Lz4,
    /// zstd frames.
    Zstd,
}

impl Codec {
    /// Every codec, by number.
    pub const ALL: [Self; 5] = [Self::None, Self::Gzip, Self::Snappy, Self::Lz4, Self::Zstd];

    /// The codec with this number in a batch's attributes.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.get(usize::from(id)).copied()
    }

    /// Its number in a batch's attributes.
    pub fn id(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Gzip => 1,
            Self::Snappy => 2,
            Self::Lz4 => 3,
            Self::Zstd => 4,
        }
    }

    /// Its name in Kafka's configs; `uncompressed` there is [`Codec::None`].
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

/// Why bytes could not be decompressed or compressed.
#[derive(Debug, thiserror::Error)]
pub enum CompressionError {
    /// More comes out than the caller takes.
    #[error("more than {0} bytes come out")]
    TooLarge(u64),
    /// The bytes are not what the codec writes.
    #[error("not valid {codec} data: {reason}")]
    Invalid {
        /// The codec's name.
        codec: &'static str,
        /// What its library said.
        reason: String,
    },
}

/// The largest zstd window accepted: what zstd's own decoder accepts unless told otherwise.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

/// A stream of decompressed bytes that ends with an error once it is longer than its limit.
pub struct Decompressor<'a> {
    inner: Inner<'a>,
    codec: Codec,
    limit: u64,
    left: u64,
    over: bool,
}

enum Inner<'a> {
    Plain(&'a [u8]),
    Gzip(Box<flate2::bufread::MultiGzDecoder<&'a [u8]>>),
    Snappy(snappy::Reader<'a>),
    Lz4(lz4::Decoder<&'a [u8]>),
    Zstd(Box<zstd::Decoder<'static, &'a [u8]>>),
}

impl<'a> Decompressor<'a> {
    /// Reads `bytes`; at most `limit` bytes come out.
    pub fn new(codec: Codec, bytes: &'a [u8], limit: u64) -> Result<Self, CompressionError> {
        let invalid = |e: io::Error| invalid(codec, &e);
        let inner = match codec {
            Codec::None => Inner::Plain(bytes),
            Codec::Gzip => Inner::Gzip(Box::new(flate2::bufread::MultiGzDecoder::new(bytes))),
            Codec::Snappy => Inner::Snappy(snappy::Reader::new(bytes, limit)?),
            Codec::Lz4 => Inner::Lz4(lz4::Decoder::new(bytes).map_err(invalid)?),
            Codec::Zstd => {
                let mut decoder = zstd::Decoder::with_buffer(bytes).map_err(invalid)?;
                decoder
                    .window_log_max(ZSTD_WINDOW_LOG_MAX)
                    .map_err(invalid)?;
                Inner::Zstd(Box::new(decoder))
            }
        };
        Ok(Self {
            inner,
            codec,
            limit,
            left: limit,
            over: false,
        })
    }

    /// Turns an error of [`Read`] into the reason behind it.
    pub fn explain(&self, error: &io::Error) -> CompressionError {
        if self.over {
            CompressionError::TooLarge(self.limit)
        } else {
            invalid(self.codec, error)
        }
    }
}

impl Read for Decompressor<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = match &mut self.inner {
            Inner::Plain(reader) => reader.read(out),
            Inner::Gzip(reader) => reader.read(out),
            Inner::Snappy(reader) => reader.read(out),
            Inner::Lz4(reader) => reader.read(out),
            Inner::Zstd(reader) => reader.read(out),
        }?;
        match self.left.checked_sub(n as u64) {
            Some(left) => self.left = left,
            None => {
                self.over = true;
                return Err(io::Error::other("the limit is reached"));
            }
        }
        Ok(n)
    }
}

/// Decompresses everything, if it fits `limit`.
pub fn decompress(codec: Codec, bytes: &[u8], limit: u64) -> Result<Vec<u8>, CompressionError> {
    let mut reader = Decompressor::new(codec, bytes, limit)?;
    let mut out = Vec::new();
    match reader.read_to_end(&mut out) {
        Ok(_) => Ok(out),
        Err(error) => Err(reader.explain(&error)),
    }
}

/// Compresses `bytes`. `level` is the codec's own scale; `None` is Kafka's default for it.
pub fn compress(
    codec: Codec,
    level: Option<i32>,
    bytes: &[u8],
) -> Result<Vec<u8>, CompressionError> {
    let mut source = bytes;
    transcode(codec, level, &mut source, u64::MAX).map_err(|failure| match failure {
        Transcode::Source(error) | Transcode::Codec(error) => invalid(codec, &error),
        Transcode::TooLarge => CompressionError::TooLarge(u64::MAX),
    })
}

/// What went wrong while bytes were compressed as they came.
#[derive(Debug)]
pub enum Transcode {
    /// They could not be read.
    Source(io::Error),
    /// They could not be compressed.
    Codec(io::Error),
    /// More would come out than the caller takes.
    TooLarge,
}

/// Compresses what `source` gives, step by step, as long as at most `most` bytes come out.
pub fn transcode(
    codec: Codec,
    level: Option<i32>,
    source: &mut impl Read,
    most: u64,
) -> Result<Vec<u8>, Transcode> {
    let mut source = Watched {
        source,
        failed: None,
    };
    let over = Cell::new(false);
    let out = Bounded {
        bytes: Vec::new(),
        most,
        over: &over,
    };
    let result = match codec {
        Codec::None => plain(&mut source, out),
        Codec::Gzip => gzip(level, &mut source, out),
        Codec::Snappy => snappy::compress(&mut source, out),
        Codec::Lz4 => lz4_frame(level, &mut source, out),
        Codec::Zstd => zstd_frame(level, &mut source, out),
    };
    match (result, source.failed) {
        (_, Some(error)) => Err(Transcode::Source(error)),
        (Ok(bytes), None) => Ok(bytes),
        (Err(_), None) if over.get() => Err(Transcode::TooLarge),
        (Err(error), None) => Err(Transcode::Codec(error)),
    }
}

/// Keeps the error of a source, so that it is told from those of the codec.
struct Watched<'a, R> {
    source: &'a mut R,
    failed: Option<io::Error>,
}

impl<R: Read> Read for Watched<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.source.read(out).map_err(|error| {
            let kind = error.kind();
            self.failed = Some(error);
            kind.into()
        })
    }
}

/// Bytes up to a limit.
struct Bounded<'a> {
    bytes: Vec<u8>,
    most: u64,
    over: &'a Cell<bool>,
}

impl Write for Bounded<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.bytes.len() + bytes.len()) as u64 > self.most {
            self.over.set(true);
            return Err(io::Error::other("the limit is reached"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn plain(source: &mut impl Read, mut out: Bounded<'_>) -> io::Result<Vec<u8>> {
    io::copy(source, &mut out)?;
    Ok(out.bytes)
}

fn gzip(level: Option<i32>, source: &mut impl Read, out: Bounded<'_>) -> io::Result<Vec<u8>> {
    let level = level
        .and_then(|l| u32::try_from(l).ok())
        .map_or_else(flate2::Compression::default, |level| {
            flate2::Compression::new(level.min(9))
        });
    let mut encoder = flate2::write::GzEncoder::new(out, level);
    io::copy(source, &mut encoder)?;
    Ok(encoder.finish()?.bytes)
}

/// Independent blocks, because Kafka's Java reader knows no others.
fn lz4_frame(level: Option<i32>, source: &mut impl Read, out: Bounded<'_>) -> io::Result<Vec<u8>> {
    let mut encoder = lz4::EncoderBuilder::new()
        .block_size(lz4::BlockSize::Max64KB)
        .block_mode(lz4::BlockMode::Independent)
        .checksum(lz4::ContentChecksum::NoChecksum)
        .level(level.and_then(|l| u32::try_from(l).ok()).unwrap_or(9))
        .build(out)?;
    io::copy(source, &mut encoder)?;
    let (out, result) = encoder.finish();
    result.map(|()| out.bytes)
}

fn zstd_frame(level: Option<i32>, source: &mut impl Read, out: Bounded<'_>) -> io::Result<Vec<u8>> {
    let level = level.unwrap_or(zstd::DEFAULT_COMPRESSION_LEVEL);
    let mut encoder = zstd::Encoder::new(out, level)?;
    io::copy(source, &mut encoder)?;
    Ok(encoder.finish()?.bytes)
}

fn invalid(codec: Codec, error: &io::Error) -> CompressionError {
    CompressionError::Invalid {
        codec: codec.name(),
        reason: error.to_string(),
    }
}

/// Bytes of memory that decompressing `bytes` step by step takes: what a caller reserves first.
pub fn working_memory(codec: Codec, bytes: &[u8]) -> u64 {
    const STEP: u64 = 64 << 10;
    match codec {
        Codec::None => 0,
        Codec::Gzip => 2 * STEP,
        Codec::Snappy => STEP + snappy::largest_block(bytes),
        Codec::Lz4 => {
            // Two blocks of the size class in the frame's third descriptor byte.
            let class = bytes.get(5).map_or(4, |b| (b >> 4) & 7).clamp(4, 7);
            STEP + 2 * (1 << (8 + 2 * u64::from(class)))
        }
        Codec::Zstd => 4 * STEP + zstd_window(bytes),
    }
}

/// The window a zstd frame asks for, from its header.
fn zstd_window(bytes: &[u8]) -> u64 {
    let max = 1u64 << ZSTD_WINDOW_LOG_MAX;
    let Some((&descriptor, rest)) = bytes.get(4..).and_then(<[u8]>::split_first) else {
        return 0;
    };
    if descriptor & 0x20 == 0 {
        let byte = rest.first().copied().unwrap_or(0);
        let base = 1u64 << (10 + u32::from(byte >> 3)).min(40);
        return (base + base / 8 * u64::from(byte & 7)).min(max);
    }
    // A single segment: the window is the content, whose size follows the dictionary id.
    let at = [0usize, 1, 2, 4][usize::from(descriptor & 3)];
    let width = [1usize, 2, 4, 8][usize::from(descriptor >> 6)];
    let Some(field) = rest.get(at..at + width) else {
        return 0;
    };
    let size = field
        .iter()
        .rev()
        .fold(0u64, |sum, &b| (sum << 8) | u64::from(b));
    (if width == 2 { size + 256 } else { size }).min(max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Vec<u8> {
        (0..200_000u32)
            .flat_map(|i| (i / 7).to_le_bytes())
            .collect()
    }

    #[test]
    fn every_codec_round_trips_and_stops_at_its_limit() {
        let bytes = sample();
        let size = bytes.len() as u64;
        for codec in Codec::ALL {
            assert_eq!(Codec::from_id(codec.id()), Some(codec));
            let packed = compress(codec, None, &bytes).unwrap();
            assert_eq!(
                decompress(codec, &packed, size).unwrap(),
                bytes,
                "{codec:?}"
            );
            let refused = decompress(codec, &packed, size - 1);
            assert!(
                matches!(refused, Err(CompressionError::TooLarge(_))),
                "{codec:?}"
            );
        }
        assert_eq!(Codec::from_id(5), None);
    }

    #[test]
    fn transcoding_stops_at_its_limit_and_tells_whose_fault_it_was() {
        let bytes = sample();
        for from in Codec::ALL {
            let packed = compress(from, None, &bytes).unwrap();
            for to in Codec::ALL {
                let run = |limit: u64, most: u64| {
                    let mut source = Decompressor::new(from, &packed, limit).unwrap();
                    transcode(to, None, &mut source, most)
                };
                let size = bytes.len() as u64;
                let again = run(size, u64::MAX).unwrap();
                assert_eq!(
                    decompress(to, &again, size).unwrap(),
                    bytes,
                    "{from:?} {to:?}"
                );
                let exact = again.len() as u64;
                assert_eq!(run(size, exact).unwrap(), again, "{from:?} {to:?}");
                assert!(
                    matches!(run(size, exact - 1), Err(Transcode::TooLarge)),
                    "{to:?}"
                );
                assert!(
                    matches!(run(size - 1, exact), Err(Transcode::Source(_))),
                    "{to:?}"
                );
            }
        }
    }

    #[test]
    fn levels_change_the_output() {
        let bytes = sample();
        for codec in [Codec::Gzip, Codec::Zstd, Codec::Lz4] {
            let fast = compress(codec, Some(1), &bytes).unwrap();
            assert_eq!(decompress(codec, &fast, 1 << 20).unwrap(), bytes);
            assert_ne!(fast, compress(codec, Some(9), &bytes).unwrap(), "{codec:?}");
        }
    }

    #[test]
    fn working_memory_follows_what_the_headers_ask_for() {
        let bytes = sample();
        for codec in Codec::ALL {
            let packed = compress(codec, None, &bytes).unwrap();
            let need = working_memory(codec, &packed);
            assert!(need <= 4 << 20, "{codec:?} asks for {need}");
            for end in 0..packed.len().min(40) {
                working_memory(codec, &packed[..end]);
            }
        }
        let window = [0x28, 0xb5, 0x2f, 0xfd, 0, 17 << 3];
        assert_eq!(zstd_window(&window), 128 << 20);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(codec in 0u8..5, bytes: Vec<u8>) {
            let codec = Codec::from_id(codec).unwrap();
            let _ = decompress(codec, &bytes, 1 << 20);
            working_memory(codec, &bytes);
        }

        #[test]
        fn damaged_streams_never_panic(
            codec in 1u8..5, at in any::<prop::sample::Index>(), value: u8,
        ) {
            let codec = Codec::from_id(codec).unwrap();
            let mut packed = compress(codec, None, &sample()[..5000]).unwrap();
            let at = at.index(packed.len());
            packed[at] = value;
            let _ = decompress(codec, &packed, 1 << 20);
        }
    }
}
