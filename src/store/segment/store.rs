//! Reading, deleting and checking segment files.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;

use super::footer::{
    BadFooter, Footer, HEADER_BYTES, Section, TRAILER_BYTES, Trailer, check_header,
};
use super::lru::Lru;
use super::meta::SegmentMeta;
use super::writer::SegmentWriter;
use super::{FOLDER, STEP, file_number, file_path};
use crate::store::backend::{Disk, DiskFile};
use crate::types::{FileId, Offset, PartitionKey};

/// Files kept open at most, unless told otherwise.
const OPEN_FILES: usize = 256;

/// Read from the end of a file in one go when its footer is wanted; most footers fit.
const TAIL_BYTES: u64 = 16 << 10;

/// Bytes cut off a file at a time when it is deleted.
const CUT_BYTES: u64 = 4 << 20;

/// Locks that keep readers from loading one footer several times at once.
const LOADERS: usize = 16;

/// Why a read gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Only from the `_cached` calls: the bytes are not in memory. Ask again on a thread that may
    /// wait.
    #[error("not in memory")]
    WouldBlock,
    /// The file does not hold what it should.
    #[error(
        "segment file {} is damaged: {what}; its records cannot be served, other files are not \
         affected; run `shardgate verify --live --deep` and put the file back from a copy", file.0
    )]
    Damaged {
        /// The file.
        file: FileId,
        /// What is wrong.
        what: String,
    },
    /// The file is of a later format.
    #[error(
        "segment file {} has format version {version}: use the release that wrote it or a newer \
         one", file.0
    )]
    Newer {
        /// The file.
        file: FileId,
        /// Its version.
        version: u8,
    },
    /// The device or the file system said no.
    #[error("segment file {} cannot be read: {source}", file.0)]
    Io {
        /// The file.
        file: FileId,
        /// What it said.
        source: io::Error,
    },
}

impl ReadError {
    fn bad(file: FileId, bad: BadFooter) -> Self {
        match bad {
            BadFooter::Newer(version) => Self::Newer { file, version },
            BadFooter::Damaged(what) => Self::Damaged { file, what },
        }
    }

    fn io(file: FileId, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::WouldBlock => Self::WouldBlock,
            io::ErrorKind::UnexpectedEof => Self::Damaged {
                file,
                what: "it ends too early".into(),
            },
            io::ErrorKind::NotFound => Self::Damaged {
                file,
                what: "it is missing".into(),
            },
            _ => Self::Io { file, source },
        }
    }
}

impl From<ReadError> for io::Error {
    fn from(error: ReadError) -> Self {
        let kind = match &error {
            ReadError::WouldBlock => io::ErrorKind::WouldBlock,
            ReadError::Damaged { .. } => io::ErrorKind::InvalidData,
            ReadError::Newer { .. } => io::ErrorKind::Unsupported,
            ReadError::Io { source, .. } => source.kind(),
        };
        io::Error::new(kind, error)
    }
}

/// What a check of a file found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Sections looked at.
    pub sections: usize,
    /// Bytes looked at.
    pub bytes: u64,
    /// What is wrong; empty for a good file.
    pub damage: Vec<Damage>,
}

/// Offsets that a damaged file may have lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "offsets {start} to {} of partition {key} are damaged in segment file {}: \
     {what}", end - 1, file.0
)]
pub struct Damage {
    /// The file.
    pub file: FileId,
    /// The partition.
    pub key: PartitionKey,
    /// The first offset in doubt.
    pub start: Offset,
    /// The offset after the last one in doubt.
    pub end: Offset,
    /// What is wrong.
    pub what: String,
}

/// Sizes of the caches now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Footers in memory.
    pub footers: usize,
    /// Bytes they take.
    pub footer_bytes: u64,
    /// Bytes that they may have.
    pub footer_limit: u64,
    /// Footers that had to make room for others.
    pub footers_evicted: u64,
    /// Files open.
    pub open_files: usize,
}

/// The segment files of one data directory.
pub struct SegmentStore {
    disk: Arc<dyn Disk>,
    footers: Mutex<Lru<Arc<Footer>>>,
    handles: Mutex<Lru<Arc<dyn DiskFile>>>,
    loaders: [Mutex<()>; LOADERS],
}

impl SegmentStore {
    /// Keeps footers of up to `footer_budget` bytes in memory.
    pub fn new(disk: Arc<dyn Disk>, footer_budget: u64) -> Self {
        Self {
            disk,
            footers: Mutex::new(Lru::new(footer_budget)),
            handles: Mutex::new(Lru::new(OPEN_FILES as u64)),
            loaders: Default::default(),
        }
    }

    /// Keeps at most `files` files open.
    #[must_use]
    pub fn with_open_files(mut self, files: usize) -> Self {
        self.handles = Mutex::new(Lru::new(files as u64));
        self
    }

    /// Starts a new file.
    pub fn create<'a>(&self, file: FileId, pace: &'a dyn Fn(u64)) -> io::Result<SegmentWriter<'a>> {
        SegmentWriter::create(&self.disk, file, pace)
    }

    /// The section of a partition in a file; `None` when the file has none. May wait for the disk.
    pub fn section(&self, file: FileId, key: PartitionKey) -> Result<Option<Section>, ReadError> {
        Ok(find(self.footer(file)?, key))
    }

    /// As [`SegmentStore::section`], but `WouldBlock` when the file's footer is not in memory.
    pub fn section_cached(
        &self,
        file: FileId,
        key: PartitionKey,
    ) -> Result<Option<Section>, ReadError> {
        let footer = self.footers.lock().get(file).ok_or(ReadError::WouldBlock)?;
        Ok(find(footer, key))
    }

    /// All sections of a file, ascending by key.
    pub fn sections(&self, file: FileId) -> Result<Vec<Section>, ReadError> {
        let footer = self.footer(file)?;
        Ok((0..footer.sections())
            .map(|row| Section::new(Arc::clone(&footer), row))
            .collect())
    }

    /// What the `segments` entry of the journal said about a file, from the file itself.
    pub fn meta(&self, file: FileId) -> Result<SegmentMeta, ReadError> {
        let footer = self.footer(file)?;
        let sections = (0..footer.sections()).map(|row| footer.meta(row)).collect();
        Ok(SegmentMeta {
            file,
            bytes: footer.file_bytes(),
            sections,
        })
    }

    /// Reads a range of a file. May wait for the disk. Checksums of batches are the caller's.
    pub fn read(&self, file: FileId, range: Range<u64>) -> Result<Bytes, ReadError> {
        let handle = self.handle(file)?;
        let mut bytes = room_for(file, &range)?;
        handle
            .read_at(&mut bytes, range.start)
            .map_err(|e| ReadError::io(file, e))?;
        Ok(bytes.freeze())
    }

    /// As [`SegmentStore::read`], but `WouldBlock` unless the file is open and the bytes are in
    /// the page cache.
    pub fn try_read_cached(&self, file: FileId, range: Range<u64>) -> Result<Bytes, ReadError> {
        let handle = self.handles.lock().get(file).ok_or(ReadError::WouldBlock)?;
        let mut bytes = room_for(file, &range)?;
        handle
            .read_cached_at(&mut bytes, range.start)
            .map_err(|e| ReadError::io(file, e))?;
        Ok(bytes.freeze())
    }

    /// The segment files there are, ascending. Names of other shapes are left out.
    pub fn list_files(&self) -> io::Result<Vec<FileId>> {
        let mut files: Vec<_> = self
            .disk
            .list(FOLDER)?
            .iter()
            .filter_map(|name| file_number(name))
            .collect();
        files.sort();
        Ok(files)
    }

    /// Removes a file; fine if it is gone already.
    ///
    /// Call it when neither a durable segment list nor a reader needs the file any more. Space is
    /// given back a few MiB at a time, because freeing a large file at once holds up the journal.
    pub fn delete(&self, file: FileId) -> io::Result<()> {
        self.delete_paced(file, &|_| ())
    }

    /// As [`SegmentStore::delete`], calling `pace` with the bytes given back after each step.
    pub fn delete_paced(&self, file: FileId, pace: &dyn Fn(u64)) -> io::Result<()> {
        self.forget(file);
        let name = file_path(file);
        let handle = match self.disk.open(&name) {
            Ok(handle) => handle,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut length = handle.len()?;
        while length > 0 {
            let cut = length.min(CUT_BYTES);
            length -= cut;
            handle.set_len(length)?;
            pace(cut);
        }
        drop(handle);
        self.disk.delete(&name)
    }

    /// Reads a whole file and checks every checksum in it. Damage of single blocks is in the
    /// answer; a file that cannot be made sense of at all is an error.
    pub fn verify(&self, file: FileId) -> Result<Verified, ReadError> {
        self.forget(file);
        let handle = self.handle(file)?;
        let mut header = [0; HEADER_BYTES];
        handle
            .read_at(&mut header, 0)
            .map_err(|e| ReadError::io(file, e))?;
        check_header(&header, file).map_err(|bad| ReadError::bad(file, bad))?;
        let footer = self.footer(file)?;
        let mut found = Verified {
            sections: footer.sections(),
            bytes: footer.file_bytes(),
            damage: Vec::new(),
        };
        let mut buffer = vec![0; STEP];
        for row in 0..footer.sections() {
            let section = Section::new(Arc::clone(&footer), row);
            for block in section.blocks() {
                let what = match block_crc(&*handle, block.range.clone(), &mut buffer) {
                    Ok(crc) if crc == block.crc => continue,
                    Ok(_) => "their checksum does not match".to_owned(),
                    Err(error) => format!("they cannot be read ({error})"),
                };
                let (key, start, end) = (section.meta().key, block.start, block.end);
                found.damage.push(Damage {
                    file,
                    key,
                    start,
                    end,
                    what,
                });
            }
        }
        Ok(found)
    }

    /// Sizes of the caches, for metrics.
    pub fn cache_stats(&self) -> CacheStats {
        let footers = self.footers.lock();
        CacheStats {
            footers: footers.len(),
            footer_bytes: footers.weight(),
            footer_limit: footers.limit(),
            footers_evicted: footers.evicted(),
            open_files: self.handles.lock().len(),
        }
    }

    fn forget(&self, file: FileId) {
        self.footers.lock().remove(file);
        self.handles.lock().remove(file);
    }

    fn handle(&self, file: FileId) -> Result<Arc<dyn DiskFile>, ReadError> {
        if let Some(handle) = self.handles.lock().get(file) {
            return Ok(handle);
        }
        let handle = self
            .disk
            .open(&file_path(file))
            .map_err(|e| ReadError::io(file, e))?;
        self.handles.lock().insert(file, Arc::clone(&handle), 1);
        Ok(handle)
    }

    fn footer(&self, file: FileId) -> Result<Arc<Footer>, ReadError> {
        if let Some(footer) = self.footers.lock().get(file) {
            return Ok(footer);
        }
        let _loading = self.loaders[file.0 as usize % LOADERS].lock();
        if let Some(footer) = self.footers.lock().get(file) {
            return Ok(footer);
        }
        let handle = self.handle(file)?;
        let footer = Arc::new(load(&*handle, file)?);
        self.footers
            .lock()
            .insert(file, Arc::clone(&footer), footer.weight());
        Ok(footer)
    }
}

fn find(footer: Arc<Footer>, key: PartitionKey) -> Option<Section> {
    footer.find(key).map(|row| Section::new(footer, row))
}

fn load(handle: &dyn DiskFile, file: FileId) -> Result<Footer, ReadError> {
    let io = |error| ReadError::io(file, error);
    let bad = |bad| ReadError::bad(file, bad);
    let length = handle.len().map_err(io)?;
    let mut tail = vec![0; length.min(TAIL_BYTES) as usize];
    let tail_position = length - tail.len() as u64;
    handle.read_at(&mut tail, tail_position).map_err(io)?;
    let Some((before, last)) = tail.split_last_chunk::<TRAILER_BYTES>() else {
        return Err(bad(BadFooter::Damaged(
            "it is shorter than a trailer".into(),
        )));
    };
    let trailer = Trailer::parse(last, file, length).map_err(bad)?;
    let footer_bytes = trailer.footer_bytes();
    let bytes = match before.len().checked_sub(footer_bytes) {
        Some(at) => Bytes::copy_from_slice(&before[at..]),
        None => {
            let mut bytes = BytesMut::zeroed(footer_bytes);
            handle.read_at(&mut bytes, trailer.position).map_err(io)?;
            bytes.freeze()
        }
    };
    Footer::parse(trailer, bytes).map_err(bad)
}

fn room_for(file: FileId, range: &Range<u64>) -> Result<BytesMut, ReadError> {
    match range.end.checked_sub(range.start).map(usize::try_from) {
        Some(Ok(length)) => Ok(BytesMut::zeroed(length)),
        _ => Err(ReadError::io(
            file,
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("no such range: {range:?}"),
            ),
        )),
    }
}

fn block_crc(handle: &dyn DiskFile, range: Range<u64>, buffer: &mut [u8]) -> io::Result<u32> {
    let (mut position, mut crc) = (range.start, 0);
    while position < range.end {
        let length = (range.end - position).min(buffer.len() as u64) as usize;
        let part = &mut buffer[..length];
        handle.read_at(part, position)?;
        crc = crc32c::crc32c_append(crc, part);
        position += length as u64;
    }
    Ok(crc)
}
