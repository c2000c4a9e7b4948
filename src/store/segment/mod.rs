//! Segments: immutable files that hold the past of many partitions.
//!
//! A file is a run of **sections**, one per partition, and a footer that says where each lies. A
//! busy shard gets files of its own, quiet ones share a file, so the number of files follows the
//! bytes and never the number of partitions. `docs/formats.md` draws every byte.
//!
//! | module | what it holds |
//! |---|---|
//! | [`writer`] | writes a file in paced steps and makes it durable |
//! | [`meta`] | what a `segments` entry of the journal says about a file |
//! | [`footer`] | section table and sparse index, searched where they lie |
//! | [`store`] | reading, deleting and checking files; bounded caches |
//! | [`merge`] | copies sections of several files into one |

use crate::types::FileId;

mod codec;
pub mod footer;
mod lru;
pub mod merge;
pub mod meta;
pub mod store;
#[cfg(test)]
mod tests;
pub mod writer;

pub use footer::{AbortedTransaction, Block, Section};
pub use merge::{Source, merge};
pub use meta::{DecodeError, SectionMeta, SegmentMeta};
pub use store::{Damage, ReadError, SegmentStore, Verified};
pub use writer::SegmentWriter;

/// The folder of segment files.
pub const FOLDER: &str = "segments";

/// Bytes written, or handed to write-back, at a time: large enough for the device, small enough
/// that a journal write beside it hardly waits.
const STEP: usize = 1 << 20;

/// A section gets an index entry each time this many bytes lie behind the last one.
const INDEX_EVERY: u64 = 32 << 10;

/// The name of a file inside the data directory.
pub fn file_path(file: FileId) -> String {
    format!("{FOLDER}/{:020}.seg", file.0)
}

/// The number in a name inside [`FOLDER`], if it is one of ours.
fn file_number(name: &str) -> Option<FileId> {
    let digits = name.strip_suffix(".seg")?;
    if digits.len() != 20 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().map(FileId)
}
