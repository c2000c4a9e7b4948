//! Real files below one directory.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, IoSliceMut};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Advice, OFlags, fadvise, statvfs};
use rustix::io::{ReadWriteFlags, preadv2};

use super::{Disk, DiskFile, Space};

/// Files below it are written past the page cache where that is possible.
const JOURNAL_FOLDER: &str = "journal/";
/// Address, length and place of such a write are multiples of this.
const DIRECT_UNIT: usize = 4096;

/// A directory of the machine.
#[derive(Debug)]
pub struct DiskDir {
    root: PathBuf,
    /// Whether files are opened for writing.
    writable: bool,
    // Holds the lock for as long as the value lives.
    _lock: Option<File>,
}

impl DiskDir {
    /// Opens a directory, making it if it is absent, and locks it against other processes.
    ///
    /// The lock is on the directory itself, so a directory that turns out to belong to somebody
    /// else stays exactly as it was.
    pub fn open_locked(path: impl AsRef<Path>) -> io::Result<Self> {
        let root = path.as_ref();
        fs::create_dir_all(root).map_err(|e| not_made(root, &e))?;
        Self::lock(root, true)
    }

    /// Opens a directory that exists, for reading only, and locks it against other processes.
    pub fn open_locked_to_read(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::lock(path.as_ref(), false)
    }

    fn lock(root: &Path, writable: bool) -> io::Result<Self> {
        if let Some(file) = file_in(root) {
            return Err(file);
        }
        let lock = File::open(root).map_err(|e| about("cannot open directory", root, &e))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self {
                root: root.to_path_buf(),
                writable,
                _lock: Some(lock),
            }),
            Err(TryLockError::WouldBlock) => Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                format!(
                    "{} is in use by another shardgate process; stop that one or choose another \
                     log.dirs",
                    root.display()
                ),
            )),
            Err(TryLockError::Error(e)) => Err(about("cannot lock directory", root, &e)),
        }
    }

    /// Opens a directory that exists, without a lock (for tools that only read).
    pub fn open_unlocked(path: impl AsRef<Path>) -> io::Result<Self> {
        let root = path.as_ref();
        if !fs::metadata(root)
            .map_err(|e| about("cannot open directory", root, &e))?
            .is_dir()
        {
            return Err(about(
                "cannot open directory",
                root,
                &io::Error::from(io::ErrorKind::NotADirectory),
            ));
        }
        Ok(Self {
            root: root.to_path_buf(),
            writable: true,
            _lock: None,
        })
    }

    /// Where the directory is.
    pub fn path(&self) -> &Path {
        &self.root
    }

    fn resolve(&self, name: &str) -> io::Result<PathBuf> {
        let path = Path::new(name);
        if path
            .components()
            .all(|part| matches!(part, Component::Normal(_)))
        {
            Ok(self.root.join(path))
        } else {
            Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("not a plain name: {name:?}"),
            ))
        }
    }

    /// A second handle on a journal file that writes past the page cache. Journal groups are read
    /// back only by recovery, so the copy into the cache would be for nothing. `None` where the
    /// file system does not do that.
    fn direct(&self, name: &str) -> Option<File> {
        if !name.starts_with(JOURNAL_FOLDER) {
            return None;
        }
        let flags = OFlags::DIRECT.bits().cast_signed();
        OpenOptions::new()
            .write(true)
            .custom_flags(flags)
            .open(self.resolve(name).ok()?)
            .ok()
    }

    fn names(&self, folder: &str, dirs: bool) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(self.resolve(folder)?) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(e),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_dir() == dirs {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }
}

fn about(what: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what} {}: {error}", path.display()))
}

/// Why a directory cannot be made, and what to do.
fn not_made(root: &Path, error: &io::Error) -> io::Error {
    file_in(root).unwrap_or_else(|| {
        let what = format!(
            "cannot make directory {}: {error}; let the gateway's user make it, or choose another \
             log.dirs",
            root.display()
        );
        io::Error::new(error.kind(), what)
    })
}

/// What is wrong with a path that leads to or through a file.
fn file_in(root: &Path) -> Option<io::Error> {
    let mut parts = root.ancestors();
    let file = parts.find(|part| fs::metadata(part).is_ok_and(|found| !found.is_dir()))?;
    let what = format!(
        "{} is a file and no directory; log.dirs names directories, which are made if they are not \
         there: choose another path",
        file.display()
    );
    Some(io::Error::new(io::ErrorKind::NotADirectory, what))
}

impl Disk for DiskDir {
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.resolve(name)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)?;
        Ok(Arc::new(RealFile::new(file, self.direct(name))))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(self.writable)
            .open(self.resolve(name)?)?;
        Ok(Arc::new(RealFile::new(file, self.direct(name))))
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.names(folder, false)
    }

    fn folders(&self, folder: &str) -> io::Result<Vec<String>> {
        self.names(folder, true)
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.resolve(name)?)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.resolve(from)?, self.resolve(to)?)
    }

    fn create_dir(&self, folder: &str) -> io::Result<()> {
        fs::create_dir_all(self.resolve(folder)?)
    }

    fn sync_dir(&self, folder: &str) -> io::Result<()> {
        File::open(self.resolve(folder)?)?.sync_all()
    }

    fn space(&self) -> io::Result<Space> {
        let stat = statvfs(&self.root)?;
        let unit = stat.f_frsize;
        Ok(Space {
            free: stat.f_bavail.saturating_mul(unit),
            total: stat.f_blocks.saturating_mul(unit),
        })
    }
}

struct RealFile {
    file: File,
    direct: Option<File>,
}

impl RealFile {
    fn new(file: File, direct: Option<File>) -> Self {
        Self { file, direct }
    }
}

/// Whether the device takes a write past the page cache: address, length and place on its unit.
fn is_aligned(bytes: &[u8], offset: u64) -> bool {
    bytes.as_ptr().addr().is_multiple_of(DIRECT_UNIT)
        && bytes.len().is_multiple_of(DIRECT_UNIT)
        && offset.is_multiple_of(DIRECT_UNIT as u64)
}

impl DiskFile for RealFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if let Some(direct) = &self.direct
            && is_aligned(bytes, offset)
        {
            match direct.write_all_at(bytes, offset) {
                // A device with a larger unit than ours.
                Err(e) if e.kind() == io::ErrorKind::InvalidInput => {}
                done => return done,
            }
        }
        self.file.write_all_at(bytes, offset)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset)
    }

    fn read_cached_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let mut slice = [IoSliceMut::new(&mut bytes[done..])];
            match preadv2(
                &self.file,
                &mut slice,
                offset + done as u64,
                ReadWriteFlags::NOWAIT,
            ) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => done += n,
                Err(rustix::io::Errno::INTR) => {}
                // File systems without NOWAIT count as never cached.
                Err(rustix::io::Errno::OPNOTSUPP) => return Err(io::ErrorKind::WouldBlock.into()),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn start_writeback(&self, offset: u64, len: u64) -> io::Result<()> {
        // On Linux this advice starts writing the range's dirty pages without waiting for them,
        // as sync_file_range(WRITE) does; pages still dirty or on their way stay in the cache.
        match std::num::NonZeroU64::new(len) {
            Some(len) => Ok(fadvise(&self.file, offset, Some(len), Advice::DontNeed)?),
            None => Ok(()),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_writes_past_the_cache_and_others_read_back_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let disk = DiskDir::open_locked(dir.path()).unwrap();
        disk.create_dir("journal").unwrap();
        let file = disk.create("journal/1.log").unwrap();
        let buffer: Vec<u8> = (0..3 * DIRECT_UNIT).map(|n| (n % 251) as u8).collect();
        let front = buffer.as_ptr().align_offset(DIRECT_UNIT);
        let aligned = &buffer[front..front + DIRECT_UNIT];
        assert!(is_aligned(aligned, 8192) && !is_aligned(&aligned[1..], 8192));
        file.write_at(&buffer[..5000], 0).unwrap();
        file.write_at(aligned, 8192).unwrap();
        file.write_at(aligned, 4096).unwrap();
        file.sync_data().unwrap();
        let mut read = vec![0; 12288];
        file.read_at(&mut read, 0).unwrap();
        assert_eq!(read[..4096], buffer[..4096]);
        assert_eq!(&read[4096..8192], aligned);
        assert_eq!(&read[8192..], aligned);
    }

    #[test]
    fn a_file_in_the_way_is_named_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "x").unwrap();
        for path in [file.clone(), file.join("below"), file.join("two/below")] {
            let opened = [
                DiskDir::open_locked(&path),
                DiskDir::open_locked_to_read(&path),
            ];
            for error in opened.map(Result::unwrap_err) {
                let text = error.to_string();
                let named = format!("{} is a file and no directory", file.display());
                assert!(text.starts_with(&named), "{text}");
                assert!(text.contains("choose another path"), "{text}");
            }
        }
        assert_eq!(fs::read(&file).unwrap(), b"x");
    }

    #[test]
    fn a_second_lock_on_the_same_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let first = DiskDir::open_locked(dir.path()).unwrap();
        let error = DiskDir::open_locked(dir.path()).unwrap_err();
        assert!(
            error.to_string().contains("another shardgate process"),
            "{error}"
        );
        drop(first);
        DiskDir::open_locked(dir.path()).unwrap();
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            0,
            "locking leaves no file"
        );
    }

    #[test]
    fn files_are_written_read_renamed_and_listed() {
        let dir = tempfile::tempdir().unwrap();
        let disk = DiskDir::open_locked(dir.path().join("made/for/us")).unwrap();
        assert!(disk.list("a").unwrap().is_empty());
        disk.create_dir("a").unwrap();
        let file = disk.create("a/one").unwrap();
        file.write_at(b"hello", 3).unwrap();
        file.sync_data().unwrap();
        file.start_writeback(0, 8).unwrap();
        disk.sync_dir("a").unwrap();
        disk.sync_dir("").unwrap();
        assert!(disk.create("a/one").is_err());
        disk.rename("a/one", "a/two").unwrap();
        assert_eq!(disk.list("a").unwrap(), ["two"]);
        assert_eq!(disk.folders("").unwrap(), ["a"]);
        let mut bytes = [9; 8];
        let file = disk.open("a/two").unwrap();
        file.read_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"\0\0\0hello");
        match file.read_cached_at(&mut bytes, 0) {
            Ok(()) => assert_eq!(&bytes, b"\0\0\0hello"),
            Err(e) => assert_eq!(e.kind(), io::ErrorKind::WouldBlock),
        }
        let eof = file.read_at(&mut bytes, 4).unwrap_err();
        assert_eq!(eof.kind(), io::ErrorKind::UnexpectedEof);
        assert!(disk.space().unwrap().total > 0);
        disk.delete("a/two").unwrap();
        assert_eq!(
            disk.delete("a/two").unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        assert!(disk.open("../escape").is_err());
    }
}
