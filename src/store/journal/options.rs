//! What a journal is told when it opens, what it counts, and why it may refuse.

use std::io;
use std::time::Duration;

use uuid::Uuid;

use crate::types::Position;

const MIB: u64 = 1024 * 1024;

/// When an entry counts as durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncPolicy {
    /// Once its group was synced to the device.
    Always,
    /// Once its group was written; the device follows at most this much later. A crash of the
    /// machine (not of the process) may take back what this interval holds.
    Interval(Duration),
}

/// How a journal works.
#[derive(Clone, Debug)]
pub struct JournalOptions {
    /// The directory's id from its `format` file.
    pub store_id: Uuid,
    /// Size of a journal file.
    pub file_bytes: u64,
    /// Size of the very first file, which a first start zeroes while somebody waits.
    pub first_zero_bytes: u64,
    /// Spare files are made only while the device has this much free besides, and are given up when
    /// it has less. 0 for a journal that may take all there is.
    pub reserve_bytes: u64,
    /// A group takes no more entries beyond this; a larger entry goes alone.
    pub max_group: usize,
    /// When an entry counts as durable.
    pub sync: SyncPolicy,
    /// Cut the journal where an acknowledged group is damaged instead of refusing to open.
    pub allow_truncate_corruption: bool,
}

impl JournalOptions {
    /// The defaults for a store.
    pub fn new(store_id: Uuid) -> Self {
        Self {
            store_id,
            file_bytes: 64 * MIB,
            first_zero_bytes: 16 * MIB,
            reserve_bytes: 0,
            max_group: 4 * MIB as usize,
            sync: SyncPolicy::Always,
            allow_truncate_corruption: false,
        }
    }
}

/// What a journal counted since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalStats {
    /// Groups written, without those that only mark earlier ones as synced.
    pub groups: u64,
    /// Entries written.
    pub entries: u64,
    /// Bytes written, headers and padding included.
    pub bytes: u64,
    /// Calls of fdatasync for groups.
    pub syncs: u64,
    /// Time spent in them.
    pub sync_nanos_total: u64,
    /// How long the write or sync under way has taken; none is under way at 0.
    pub waiting: Duration,
    /// Entries waiting to be written.
    pub queue_entries: u64,
    /// Payload bytes of those.
    pub queue_bytes: u64,
    /// Bytes that recovery would read.
    pub live_bytes: u64,
    /// Journal files, those kept for reuse included.
    pub files: u64,
    /// Files that hold it, and the one that is being written.
    pub live_files: u64,
    /// Files ready for reuse.
    pub spare_files: u64,
    /// No space was found for the next journal file; the write gate should close until it is.
    pub short_of_space: bool,
}

/// What replay found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplaySummary {
    /// Groups delivered.
    pub groups: u64,
    /// Entries in them.
    pub entries: u64,
    /// Bytes of them on disk.
    pub bytes: u64,
    /// Position of the journal's last entry.
    pub last: Position,
    /// What was cut off the end when the journal was opened, in words.
    pub cut: Option<String>,
}

/// Why a journal cannot be opened or replayed.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The disk failed.
    #[error("journal: cannot {what}: {error}")]
    Io {
        /// What was tried, on which file.
        what: String,
        /// The disk's error.
        error: io::Error,
    },
    /// A group that was on stable storage is damaged or gone.
    #[error(
        "journal: {file} is damaged at byte {offset}: {why}. Acknowledged entries are affected \
         (from position {from} on), so nothing was cut and nothing is served; restore the \
         directory from a copy, or accept the loss of everything from there on with \
         journal.truncate.corruption=true"
    )]
    Corrupt {
        /// The file's name.
        file: String,
        /// Where in it.
        offset: u64,
        /// First position affected.
        from: u64,
        /// What is wrong.
        why: String,
    },
    /// Entries that are needed are not there.
    #[error(
        "journal: entries {from} to {to} are needed and are not in the journal; its files were \
         removed or belong to another time: restore the whole directory from one copy"
    )]
    Missing {
        /// First entry that is missing.
        from: u64,
        /// Last one known to be missing.
        to: u64,
    },
    /// A file of another store.
    #[error("journal: {file} belongs to another store; move it out of the directory")]
    Foreign {
        /// The file's name.
        file: String,
    },
    /// Written by a newer program.
    #[error(
        "journal: {file} has group version {found}, and this program knows versions up to \
         {known}; start the shardgate release that wrote it, or a later one"
    )]
    Newer {
        /// The file's name.
        file: String,
        /// Its version.
        found: u8,
        /// Ours.
        known: u8,
    },
    /// The receiver of the groups refused one.
    #[error("journal: replay stopped at position {position}: {why}")]
    Refused {
        /// Last position of the refused group.
        position: u64,
        /// The receiver's reason.
        why: String,
    },
}

impl JournalError {
    /// The file that it is about, if it is one.
    pub fn file(&self) -> Option<&str> {
        match self {
            Self::Corrupt { file, .. } | Self::Foreign { file } | Self::Newer { file, .. } => {
                Some(file)
            }
            Self::Io { .. } | Self::Missing { .. } | Self::Refused { .. } => None,
        }
    }
}
