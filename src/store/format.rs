//! The `format` file: whose directory this is, and which version of the formats it holds.
//!
//! It is the first file of a new directory, so a directory with files but without it belongs to
//! somebody else and is left alone. A node's further directories name its first one, and the first
//! one names all that were ever used with it.

use std::fmt::Write as _;
use std::io;

use uuid::Uuid;

use super::backend::Disk;
use crate::types::DirectoryId;

/// The version that this program writes; it reads this one only, as it is the first.
pub const VERSION: u16 = 1;

const NAME: &str = "format";
const TEMPORARY: &str = "format.new";
const FIRST_LINE: &str = "shardgate data directory";
/// Far above any real one: a bound for what is read into memory.
const MAX_BYTES: u64 = 64 * 1024;
/// The feature of a directory whose node has, or had, several.
const DIRECTORIES: &str = "directories";
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// What the `format` file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    /// Random; ties journal groups to this directory. Never shown to clients.
    pub store_id: Uuid,
    /// The cluster id that clients see: 22 characters, as Kafka's.
    pub cluster_id: String,
    /// Version of the formats in the directory.
    pub version: u16,
    /// Optional parts of the formats that are in use.
    pub features: Vec<String>,
    /// Store id of the node's first directory, if this is another one.
    pub first: Option<Uuid>,
    /// Store ids of the node's other directories, if this is the first.
    pub others: Vec<Uuid>,
}

/// Why a directory is not opened.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The disk failed.
    #[error("cannot {what} the format file: {error}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The disk's error.
        error: io::Error,
    },
    /// The directory has files and no format file.
    #[error(
        "the data directory holds {found} but no format file, so it is not a shardgate directory; \
         nothing was written to it. Set log.dirs to an empty directory{hint}"
    )]
    Foreign {
        /// One of the names that are there.
        found: String,
        /// What else to know.
        hint: &'static str,
    },
    /// Written by a newer program.
    #[error(
        "the data directory has format version {found}, and this program knows versions up to \
         {VERSION}; start the shardgate release that wrote it, or a later one"
    )]
    Newer {
        /// The directory's version.
        found: u16,
    },
    /// Needs something that this program does not have.
    #[error(
        "the data directory uses the feature {0:?}, which this program does not know; start the \
         shardgate release that wrote it, or a later one"
    )]
    UnknownFeature(String),
    /// Another directory of some node where the first one is expected.
    #[error(
        "it is not the first data directory of its node; that one has store.id={0} in its format \
         file and must stand first in log.dirs"
    )]
    NotTheFirst(Uuid),
    /// A first directory, or one of another node, where another directory of this one is expected.
    #[error(
        "it belongs to another node ({0}); nothing was written to it. Take it out of log.dirs, or \
         name an empty directory instead"
    )]
    AnotherNode(String),
    /// The file is there and makes no sense.
    #[error(
        "the format file is damaged ({0}); restore it from a copy, since without its store id the \
         journal cannot be read"
    )]
    Damaged(String),
}

impl Format {
    /// Reads the `format` file of a node's first directory. For an empty one it says what is to be
    /// written, and that it is new.
    pub fn open_or_plan(disk: &dyn Disk) -> Result<(Format, bool), FormatError> {
        match read_unless_empty(disk)? {
            Some(format) => Ok((format.expect_first()?, false)),
            None => Ok((Self::plan(random_cluster_id(), None), true)),
        }
    }

    /// As [`Format::open_or_plan`], for another directory of the node that has `first`.
    pub fn open_or_plan_other(
        disk: &dyn Disk,
        first: &Format,
    ) -> Result<(Format, bool), FormatError> {
        match read_unless_empty(disk)? {
            Some(format) => Ok((format.expect_other(first)?, false)),
            None => {
                let cluster_id = first.cluster_id.clone();
                Ok((Self::plan(cluster_id, Some(first.store_id)), true))
            }
        }
    }

    fn plan(cluster_id: String, first: Option<Uuid>) -> Format {
        Format {
            store_id: Uuid::new_v4(),
            cluster_id,
            version: VERSION,
            features: first.map(|_| DIRECTORIES.to_owned()).into_iter().collect(),
            first,
            others: Vec::new(),
        }
    }

    /// Names the node's other directories in the first one's file, if it names others than these.
    pub fn name_others(&mut self, disk: &dyn Disk, others: Vec<Uuid>) -> Result<(), FormatError> {
        if self.others == others {
            return Ok(());
        }
        self.others = others;
        if !self.features.iter().any(|f| f == DIRECTORIES) {
            self.features.push(DIRECTORIES.to_owned());
        }
        self.write(disk)
    }

    /// Refuses a directory that is not the first of its node.
    pub fn expect_first(self) -> Result<Format, FormatError> {
        match self.first {
            Some(first) => Err(FormatError::NotTheFirst(first)),
            None => Ok(self),
        }
    }

    /// Refuses a directory that is no other one of the node that has `first`.
    pub fn expect_other(self, first: &Format) -> Result<Format, FormatError> {
        let why = match self.first {
            None => "it is the first or only directory of that node".to_owned(),
            Some(id) if id != first.store_id => {
                format!("the first directory of that node has store.id={id}")
            }
            Some(_) if self.cluster_id != first.cluster_id => {
                format!("its cluster.id is {}", self.cluster_id)
            }
            Some(_) => return Ok(self),
        };
        Err(FormatError::AnotherNode(why))
    }

    /// Reads the `format` file of a directory that must have one. Changes nothing.
    pub fn open(disk: &dyn Disk) -> Result<Format, FormatError> {
        read(disk)
    }

    /// What layouts call the directory.
    pub fn directory_id(&self) -> DirectoryId {
        match self.first {
            None => DirectoryId::FIRST,
            Some(_) => DirectoryId(self.store_id),
        }
    }

    /// Writes the file.
    pub fn write(&self, disk: &dyn Disk) -> Result<(), FormatError> {
        write(disk, self).map_err(|error| FormatError::Io {
            what: "write",
            error,
        })
    }

    fn encode(&self) -> String {
        let mut text = format!(
            "{FIRST_LINE}\nversion={}\nstore.id={}\ncluster.id={}\nfeatures={}\n",
            self.version,
            self.store_id,
            self.cluster_id,
            self.features.join(",")
        );
        if let Some(first) = self.first {
            let _ = writeln!(text, "first.store.id={first}");
        }
        if !self.others.is_empty() {
            let others: Vec<String> = self.others.iter().map(Uuid::to_string).collect();
            let _ = writeln!(text, "other.store.ids={}", others.join(","));
        }
        let crc = crc32c::crc32c(text.as_bytes());
        let _ = writeln!(text, "crc32c={crc:08x}");
        text
    }

    fn decode(text: &str) -> Result<Format, FormatError> {
        let damaged = |why: &str| FormatError::Damaged(why.to_owned());
        let mut lines = text.lines();
        if lines.next() != Some(FIRST_LINE) {
            return Err(damaged("its first line is wrong"));
        }
        let value = |key: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
        };
        // The version comes before the checksum, as a newer format may be checked otherwise.
        let version = value("version").and_then(|v| v.parse::<u16>().ok());
        let version = version.ok_or_else(|| damaged("it has no version"))?;
        if version > VERSION {
            return Err(FormatError::Newer { found: version });
        }
        let (body, crc) = text
            .rsplit_once("crc32c=")
            .ok_or_else(|| damaged("no checksum"))?;
        let crc = u32::from_str_radix(crc.trim_end(), 16).map_err(|_| damaged("no checksum"))?;
        if crc != crc32c::crc32c(body.as_bytes()) {
            return Err(damaged("its checksum does not match"));
        }
        let store_id = value("store.id").and_then(|v| Uuid::parse_str(v).ok());
        let cluster_id = value("cluster.id").filter(|v| !v.is_empty());
        let features: Vec<String> = value("features")
            .unwrap_or_default()
            .split(',')
            .filter(|f| !f.is_empty())
            .map(str::to_owned)
            .collect();
        if let Some(unknown) = features.iter().find(|f| *f != DIRECTORIES) {
            return Err(FormatError::UnknownFeature(unknown.clone()));
        }
        let first = value("first.store.id").map(Uuid::parse_str).transpose();
        let others = value("other.store.ids").unwrap_or_default().split(',');
        let others = others.filter(|id| !id.is_empty()).map(Uuid::parse_str);
        Ok(Format {
            store_id: store_id.ok_or_else(|| damaged("it has no store.id"))?,
            cluster_id: cluster_id
                .ok_or_else(|| damaged("it has no cluster.id"))?
                .to_owned(),
            version,
            features,
            first: first.map_err(|_| damaged("its first.store.id is no id"))?,
            others: others
                .collect::<Result<_, _>>()
                .map_err(|_| damaged("its other.store.ids are no ids"))?,
        })
    }
}

/// The `format` file; `None` for an empty directory. One with anything else in it is refused.
pub(super) fn read_unless_empty(disk: &dyn Disk) -> Result<Option<Format>, FormatError> {
    let looking = |error| FormatError::Io {
        what: "look for",
        error,
    };
    let names = disk.list("").map_err(looking)?;
    if names.iter().any(|name| name == NAME) {
        return read(disk).map(Some);
    }
    let folders = disk.folders("").map_err(looking)?;
    let foreign = names
        .iter()
        .filter(|name| name.as_str() != TEMPORARY)
        .chain(folders.iter().filter(|name| name.as_str() != "lost+found"))
        .next();
    match foreign {
        None => Ok(None),
        Some(found) => Err(FormatError::Foreign {
            found: found.clone(),
            hint: hint(&names, &folders),
        }),
    }
}

fn hint(names: &[String], folders: &[String]) -> &'static str {
    if names.iter().any(|name| name == "meta.properties") {
        "; this one is Apache Kafka's (meta.properties)"
    } else if folders.iter().any(|name| name == "journal") {
        ", or restore the format file if this directory has lost it"
    } else {
        ""
    }
}

fn read(disk: &dyn Disk) -> Result<Format, FormatError> {
    let io = |error| FormatError::Io {
        what: "read",
        error,
    };
    let file = disk.open(NAME).map_err(io)?;
    let len = file.len().map_err(io)?;
    if len > MAX_BYTES {
        return Err(FormatError::Damaged("it is far too long".to_owned()));
    }
    let mut bytes = vec![0; len as usize];
    file.read_at(&mut bytes, 0).map_err(io)?;
    let text = std::str::from_utf8(&bytes)
        .map_err(|_| FormatError::Damaged("it is not text".to_owned()))?;
    Format::decode(text)
}

fn write(disk: &dyn Disk, format: &Format) -> io::Result<()> {
    match disk.delete(TEMPORARY) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let file = disk.create(TEMPORARY)?;
    file.write_at(format.encode().as_bytes(), 0)?;
    file.sync_data()?;
    disk.rename(TEMPORARY, NAME)?;
    disk.sync_dir("")
}

/// A random id in Kafka's dress: 16 bytes in URL-safe base64, never starting with a dash, which
/// command lines take for an option.
fn random_cluster_id() -> String {
    loop {
        let id = base64(Uuid::new_v4().as_bytes());
        if !id.starts_with('-') {
            return id;
        }
    }
}

fn base64(bytes: &[u8; 16]) -> String {
    let mut text = String::with_capacity(22);
    for chunk in bytes.chunks(3) {
        let value = chunk
            .iter()
            .fold(0u32, |value, byte| value << 8 | u32::from(*byte));
        let value = value << (8 * (3 - chunk.len()));
        for digit in 0..=chunk.len() {
            let index = (value >> (18 - 6 * digit)) & 63;
            text.push(char::from(ALPHABET[index as usize]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::backend::memory::MemoryDisk;
    use super::*;

    /// The format of a directory, which is written if it is empty.
    fn written(
        disk: &MemoryDisk,
        planned: Result<(Format, bool), FormatError>,
    ) -> Result<Format, FormatError> {
        let (format, is_new) = planned?;
        if is_new {
            assert_eq!(disk.contents(NAME), None, "nothing is written before");
            format.write(disk)?;
        }
        Ok(format)
    }

    fn first_of(disk: &MemoryDisk) -> Result<Format, FormatError> {
        written(disk, Format::open_or_plan(disk))
    }

    fn other_of(disk: &MemoryDisk, of: &Format) -> Result<Format, FormatError> {
        written(disk, Format::open_or_plan_other(disk, of))
    }

    #[test]
    fn an_empty_directory_gets_a_format_that_is_read_again() {
        let disk = MemoryDisk::new();
        let first = first_of(&disk).unwrap();
        assert_eq!(first.cluster_id.len(), 22);
        assert_eq!(first, first_of(&disk).unwrap());
        for seed in 0..20 {
            assert_eq!(first, first_of(&disk.crash(seed)).unwrap());
        }
    }

    #[test]
    fn other_directories_know_the_first_and_strangers_are_refused() {
        let (disk, other, stranger) = (MemoryDisk::new(), MemoryDisk::new(), MemoryDisk::new());
        let mut first = first_of(&disk).unwrap();
        let joined = other_of(&other, &first).unwrap();
        assert_eq!(joined.first, Some(first.store_id));
        assert_eq!(joined.cluster_id, first.cluster_id);
        assert_ne!(joined.store_id, first.store_id);
        first.name_others(&disk, vec![joined.store_id]).unwrap();
        for seed in 0..20 {
            let (disk, other) = (disk.crash(seed), other.crash(seed));
            assert_eq!(first_of(&disk).unwrap(), first);
            assert_eq!(other_of(&other, &first).unwrap(), joined);
        }
        let error = first_of(&other).unwrap_err().to_string();
        assert!(error.contains(&first.store_id.to_string()), "{error}");
        let own = first_of(&stranger).unwrap();
        for (disk, of) in [(&stranger, &first), (&other, &own), (&disk, &own)] {
            let before = disk.contents("format");
            let error = other_of(disk, of).unwrap_err();
            assert!(matches!(error, FormatError::AnotherNode(_)), "{error}");
            assert_eq!(disk.contents("format"), before);
        }
    }

    #[test]
    fn base64_is_kafkas() {
        let id = Uuid::parse_str("00000000-0000-0000-0000-000000000001").unwrap();
        assert_eq!(base64(id.as_bytes()), "AAAAAAAAAAAAAAAAAAAAAQ");
        assert_eq!(base64(&[0xff; 16]), "_____________________w");
    }

    #[test]
    fn a_foreign_directory_is_refused_and_left_alone() {
        let disk = MemoryDisk::new();
        disk.create("meta.properties").unwrap();
        let error = first_of(&disk).unwrap_err().to_string();
        assert!(
            error.contains("meta.properties") && error.contains("Kafka"),
            "{error}"
        );
        assert_eq!(disk.names(), ["meta.properties"]);
        let disk = MemoryDisk::new();
        disk.create_dir("photos").unwrap();
        assert!(first_of(&disk).unwrap_err().to_string().contains("photos"));
    }

    #[test]
    fn newer_unknown_and_damaged_ones_are_refused_in_words() {
        let disk = MemoryDisk::new();
        let mut format = first_of(&disk).unwrap();
        format.version = 9;
        let error = Format::decode(&format.encode()).unwrap_err();
        assert!(matches!(error, FormatError::Newer { found: 9 }));
        format.version = 1;
        format.features = vec!["tiers".to_owned()];
        let error = Format::decode(&format.encode()).unwrap_err();
        assert!(matches!(error, FormatError::UnknownFeature(_)));
        for offset in 0..disk.contents("format").unwrap().len() as u64 {
            let copy = disk.kill();
            copy.flip("format", offset, 1);
            if let Ok(read) = first_of(&copy) {
                // Only the case of a hexadecimal digit and the last newline may change freely.
                assert_eq!(read.store_id, first_of(&disk).unwrap().store_id);
            }
        }
    }
}
