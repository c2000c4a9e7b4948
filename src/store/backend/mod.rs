//! The disk as the engine sees it: a flat set of folders below one directory.
//!
//! Implementations: [`disk`] (real files), [`memory`] (keeps synced and un-synced bytes apart, so
//! that a crash can be played), [`faults`] (wraps any other and injects errors) and [`overlay`]
//! (wraps any other and keeps changes to itself).

use std::io;
use std::sync::Arc;

pub mod disk;
pub mod faults;
pub mod memory;
pub mod overlay;

/// One data directory. Names are relative, with `/` between folder and file.
///
/// What survives a crash: bytes of a file up to the last `sync_data` on it, and a file's name once
/// `sync_dir` of its folder returned after the name was made, renamed or deleted.
pub trait Disk: Send + Sync {
    /// Creates a file that must not exist yet, open for reading and writing.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens a file that exists, for reading and writing.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// File names in a folder, without the folder, sorted. An absent folder is empty.
    fn list(&self, folder: &str) -> io::Result<Vec<String>>;
    /// Folder names in a folder, sorted.
    fn folders(&self, folder: &str) -> io::Result<Vec<String>> {
        let _ = folder;
        Ok(Vec::new())
    }
    /// Removes a name. An absent one is `NotFound`.
    fn delete(&self, name: &str) -> io::Result<()>;
    /// Renames, replacing what is there.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Makes a folder (and its parents); fine if it is there.
    fn create_dir(&self, folder: &str) -> io::Result<()>;
    /// Makes the names in a folder durable. `""` is the directory itself.
    fn sync_dir(&self, folder: &str) -> io::Result<()>;
    /// Bytes free for us on the device, and its size.
    fn space(&self) -> io::Result<Space>;
}

/// Room on the device that holds a data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes that may still be written.
    pub free: u64,
    /// Size of the device in bytes.
    pub total: u64,
}

/// One open file.
pub trait DiskFile: Send + Sync {
    /// Writes all of `bytes` at `offset`, growing the file if need be.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Fills `bytes` from `offset`; `UnexpectedEof` when the file is shorter.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
    /// As [`DiskFile::read_at`], but fails with `WouldBlock` rather than wait for the device.
    fn read_cached_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
    /// Makes the file's bytes and length durable (fdatasync).
    fn sync_data(&self) -> io::Result<()>;
    /// Starts writing back a range without waiting for it to be durable (a hint; may do nothing).
    fn start_writeback(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Cuts or extends (with zeros) the file.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Whether the file holds no byte.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}
