//! The checkpoint: the state as of a journal position, so that recovery need not read the whole
//! journal.
//!
//! State is cut into numbered **slots** of at most about 1 MiB, each in a section file. A small
//! **root** names the section file of each slot. Two roots are kept, and no file belongs to both:
//! whatever single file is damaged, one root is whole, and it and the journal behind it give the
//! same state. A slot that did not change takes its file over from the root that goes, so that it
//! is written twice in all and not each time. `docs/formats.md` draws every byte.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use self::files::{BadFile, RootFile, SectionRef};
use crate::store::backend::{Disk, DiskFile};
use crate::types::Position;

mod files;
#[cfg(test)]
mod tests;

/// The folder of checkpoint files.
pub const FOLDER: &str = "checkpoint";

/// Advised greatest length of a section.
pub const SECTION_BYTES: usize = 1 << 20;

/// A root is written under this name first.
const UNNAMED_ROOT: &str = "root.new";

/// Written, and handed to write-back, at a time.
const STEP: usize = 1 << 20;

/// Section files under write-back, and open, at a time: enough for the device to be busy.
const SYNCED_TOGETHER: usize = 32;

/// Roots kept.
const ROOTS: usize = 2;

/// Why there is no going on from the checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// No root that is there can be used, and the journal alone is not enough.
    #[error(
        "the checkpoint is damaged ({0}) and the journal before it is gone: nothing was changed; \
         put the folder `{FOLDER}` back from a copy of this data directory"
    )]
    Damaged(String),
    /// Written by a later release.
    #[error(
        "checkpoint file {name} has format version {version}: start the release that wrote it or \
         a newer one"
    )]
    Newer {
        /// The file.
        name: String,
        /// Its version.
        version: u8,
    },
    /// The device or the file system said no.
    #[error("checkpoint file {name} cannot be read: {source}")]
    Io {
        /// The file or folder.
        name: String,
        /// What it said.
        source: io::Error,
    },
}

/// State read at start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The state holds every entry up to here; replay starts behind it.
    pub captured: Position,
    /// The root's payload.
    pub root: Bytes,
    /// Payloads of the slots, ascending.
    pub sections: Vec<(u32, Bytes)>,
}

/// What a check of all checkpoint files found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Roots looked at.
    pub roots: usize,
    /// Section files looked at.
    pub sections: usize,
    /// What is wrong, a sentence each; empty when all is well.
    pub damage: Vec<String>,
}

/// A root known to be on disk.
struct Root {
    number: u64,
    captured: Position,
    sections: BTreeMap<u32, SectionRef>,
}

/// The checkpoint of one data directory.
pub struct CheckpointStore {
    disk: Arc<dyn Disk>,
    /// Ascending by number.
    roots: Vec<Root>,
    /// Number of the next publication; one that failed uses its number up.
    next: u64,
    written: u64,
    /// A sentence for each root that could not be used at the start.
    damage: Vec<String>,
    damaged: u64,
}

impl CheckpointStore {
    /// Reads the newest state that is whole. `None` when nothing was ever published, or when all
    /// that was is damaged: then only a journal that was never trimmed is enough.
    pub fn open(disk: Arc<dyn Disk>) -> Result<(Self, Option<Loaded>), CheckpointError> {
        let io = |source| CheckpointError::Io {
            name: FOLDER.into(),
            source,
        };
        disk.create_dir(FOLDER).map_err(io)?;
        disk.sync_dir("").map_err(io)?;
        let names = disk.list(FOLDER).map_err(io)?;
        let mut numbers: Vec<u64> = names.iter().filter_map(|name| root_number(name)).collect();
        numbers.sort_unstable();
        let highest = names.iter().filter_map(|name| any_number(name)).max();
        let mut store = Self::over(disk);
        store.next = highest.unwrap_or(0) + 1;
        let mut loaded = None;
        for &number in numbers.iter().rev() {
            let outcome = match loaded {
                None => store.load(number).map(|(root, state)| {
                    loaded = Some(state);
                    root
                }),
                // Kept to fall back on; its sections are read when that happens.
                Some(_) => store.read_root(number).map(|(root, _)| root),
            };
            match outcome {
                Ok(root) => store.roots.insert(0, root),
                Err(LoadError::Damaged(what)) => {
                    store.damaged += 1;
                    store.damage.push(what);
                }
                // Nothing is lost without it, and the next publication replaces it. A later version
                // stops the start also here: its release has been at work on all of the directory.
                Err(LoadError::Fatal(CheckpointError::Io { name, source })) if loaded.is_some() => {
                    store.damaged += 1;
                    store
                        .damage
                        .push(format!("{name} cannot be read: {source}"));
                }
                Err(LoadError::Fatal(error)) => return Err(error),
            }
        }
        store.tell_damage(loaded.as_ref());
        Ok((store, loaded))
    }

    fn over(disk: Arc<dyn Disk>) -> Self {
        Self {
            disk,
            roots: Vec::new(),
            next: 0,
            written: 0,
            damage: Vec::new(),
            damaged: 0,
        }
    }

    fn tell_damage(&self, loaded: Option<&Loaded>) {
        let used = match loaded {
            Some(state) => format!(
                "the checkpoint as of journal position {} and the journal behind it",
                state.captured.0
            ),
            None => "the journal alone".to_owned(),
        };
        for what in &self.damage {
            tracing::error!(
                damage = what,
                used,
                "a checkpoint file is damaged; nothing is lost, as another checkpoint is used \
                 with the journal, and the next one replaces it. Check the device: a second \
                 damaged file before that may stop the start"
            );
        }
    }

    /// Reads every file that a root names and checks every checksum. Changes nothing.
    pub fn verify(disk: Arc<dyn Disk>) -> Result<Verified, CheckpointError> {
        let names = disk.list(FOLDER).map_err(|source| CheckpointError::Io {
            name: FOLDER.into(),
            source,
        })?;
        let store = Self::over(disk);
        let mut found = Verified::default();
        let mut note = |outcome: Result<(), LoadError>| match outcome {
            Err(LoadError::Fatal(error)) => Err(error),
            Err(LoadError::Damaged(what)) => {
                found.damage.push(format!("checkpoint file {what}"));
                Ok(())
            }
            Ok(()) => Ok(()),
        };
        let mut named = BTreeMap::new();
        for number in names.iter().filter_map(|name| root_number(name)) {
            found.roots += 1;
            let root = store.read_root(number).map(|(root, _)| {
                named.extend(root.sections.into_values().map(|s| (section_name(&s), s)));
            });
            note(root)?;
        }
        found.sections = named.len();
        for section in named.values() {
            note(store.read_section(section).map(drop))?;
        }
        Ok(found)
    }

    /// Publishes a state: all its slots, ascending. One whose file in the root that goes holds the
    /// same bytes keeps that file, all others are written.
    ///
    /// The caller makes sure that the journal is durable past everything the state holds. After
    /// an error a start finds this state or the one before; when there was no space, it may be
    /// published again.
    pub fn publish(
        &mut self,
        captured: Position,
        root: Bytes,
        slots: &[(u32, Bytes)],
    ) -> io::Result<()> {
        let number = self.next;
        self.next += 1;
        let mut made = Vec::new();
        let prepared = self
            .place_sections(number, slots, &mut made)
            .and_then(|sections| {
                let file = RootFile {
                    number,
                    captured,
                    sections,
                    payload: root,
                };
                self.write_root(&file.encode())?;
                Ok(file.sections)
            });
        let sections = match prepared {
            Ok(sections) => sections,
            Err(error) => {
                self.discard(&made);
                return Err(error);
            }
        };
        // From here on the new root may be found by a start, so its sections stay.
        self.disk
            .rename(&path(UNNAMED_ROOT), &path(&root_name(number)))?;
        self.disk.sync_dir(FOLDER)?;
        self.roots.push(Root {
            number,
            captured,
            sections: sections.into_iter().map(|s| (s.slot, s)).collect(),
        });
        self.clean()
    }

    /// The journal is not needed up to here: the capture position of the oldest root kept, or
    /// nothing while there is only one.
    pub fn trim_through(&self) -> Position {
        match self.roots.first() {
            Some(oldest) if self.roots.len() >= ROOTS => oldest.captured,
            _ => Position(0),
        }
    }

    /// Bytes written since the start.
    pub fn written_bytes(&self) -> u64 {
        self.written
    }

    /// A sentence for each root that could not be used at the start.
    pub fn damage(&self) -> &[String] {
        &self.damage
    }

    /// Damaged files met since the start.
    pub fn damaged_files(&self) -> u64 {
        self.damaged
    }

    /// Files that the next publication may name: of the root that goes with it, and not of the
    /// one that stays.
    fn reusable(&self) -> BTreeMap<u32, SectionRef> {
        let [goes, .., stays] = &self.roots[..] else {
            return BTreeMap::new();
        };
        let mut files = goes.sections.clone();
        files.retain(|slot, file| stays.sections.get(slot) != Some(file));
        files
    }

    /// Finds or writes the file of each slot; `made` gets the names of those written.
    fn place_sections(
        &mut self,
        number: u64,
        slots: &[(u32, Bytes)],
        made: &mut Vec<String>,
    ) -> io::Result<Vec<SectionRef>> {
        let reusable = self.reusable();
        let mut placed = Vec::with_capacity(slots.len());
        for batch in slots.chunks(SYNCED_TOGETHER) {
            let mut handles = Vec::with_capacity(batch.len());
            for (slot, payload) in batch {
                let section = SectionRef::to(*slot, number, payload)?;
                if let Some(old) = reusable.get(slot)
                    && (old.length, old.crc) == (section.length, section.crc)
                    && self.still_holds(old, payload)?
                {
                    placed.push(*old);
                    continue;
                }
                let head = files::section_head(&section);
                let end = files::end_of(&[&head, payload]);
                let name = path(&section_name(&section));
                made.push(name.clone());
                handles.push(self.write(&name, &[&head, payload, &end])?);
                placed.push(section);
            }
            for handle in handles {
                handle.sync_data()?;
            }
        }
        // A root must never be found without the sections that it names.
        if !made.is_empty() {
            self.disk.sync_dir(FOLDER)?;
        }
        Ok(placed)
    }

    /// Reads a file to see whether it holds exactly `payload`. Checksums may agree by chance, and
    /// what was damaged at rest must not be named once more.
    fn still_holds(&mut self, section: &SectionRef, payload: &Bytes) -> io::Result<bool> {
        match self.read_section(section) {
            Ok(stored) => Ok(stored == payload),
            Err(LoadError::Damaged(what)) => {
                tracing::error!(
                    damage = what,
                    "a checkpoint file is damaged; nothing is lost, as the state is in memory and \
                     is written anew. Check the device"
                );
                self.damaged += 1;
                Ok(false)
            }
            Err(LoadError::Fatal(CheckpointError::Io { name, source })) => {
                let what = format!("checkpoint file {name} cannot be read: {source}");
                Err(io::Error::new(source.kind(), what))
            }
            Err(LoadError::Fatal(error)) => Err(io::Error::other(error)),
        }
    }

    fn write_root(&mut self, bytes: &[u8]) -> io::Result<()> {
        let name = path(UNNAMED_ROOT);
        absent_is_fine(self.disk.delete(&name))?;
        self.write(&name, &[bytes])?.sync_data()
    }

    fn write(&mut self, name: &str, parts: &[&[u8]]) -> io::Result<Arc<dyn DiskFile>> {
        let handle = self.disk.create(name)?;
        let mut position = 0;
        for step in parts.iter().flat_map(|part| part.chunks(STEP)) {
            handle.write_at(step, position)?;
            position += step.len() as u64;
        }
        handle.start_writeback(0, position)?;
        self.written += position;
        Ok(handle)
    }

    /// Removes files that nothing names, after a failure; what stays is removed by a later
    /// publication.
    fn discard(&self, made: &[String]) {
        for name in made
            .iter()
            .map(String::as_str)
            .chain([path(UNNAMED_ROOT).as_str()])
        {
            if let Err(error) = absent_is_fine(self.disk.delete(name)) {
                tracing::debug!(
                    file = name, %error,
                    "a useless checkpoint file stays until the next publication"
                );
            }
        }
    }

    /// Removes all but the newest roots, then the sections that no kept root names.
    fn clean(&mut self) -> io::Result<()> {
        let keep = self.roots.len().saturating_sub(ROOTS);
        let kept = &self.roots[keep..];
        let roots: BTreeSet<String> = kept.iter().map(|root| root_name(root.number)).collect();
        let sections: BTreeSet<String> = kept
            .iter()
            .flat_map(|root| root.sections.values().map(section_name))
            .collect();
        let names = self.disk.list(FOLDER)?;
        let mut gone = false;
        for name in names
            .iter()
            .filter(|n| root_number(n).is_some() && !roots.contains(*n))
        {
            self.disk.delete(&path(name))?;
            gone = true;
        }
        if gone {
            // The journal may be trimmed as far as the kept roots allow once this one is gone for
            // good, and not before.
            self.disk.sync_dir(FOLDER)?;
        }
        self.roots.drain(..keep);
        for name in names
            .iter()
            .filter(|n| section_number(n).is_some() && !sections.contains(*n))
        {
            self.disk.delete(&path(name))?;
        }
        Ok(())
    }

    fn load(&self, number: u64) -> Result<(Root, Loaded), LoadError> {
        let (root, payload) = self.read_root(number)?;
        let mut sections = Vec::with_capacity(root.sections.len());
        for section in root.sections.values() {
            let payload = self.read_section(section)?;
            sections.push((section.slot, payload));
        }
        let loaded = Loaded {
            captured: root.captured,
            root: payload,
            sections,
        };
        Ok((root, loaded))
    }

    fn read_section(&self, section: &SectionRef) -> Result<Bytes, LoadError> {
        let name = section_name(section);
        files::parse_section(self.read(&name)?, section).map_err(|bad| judge(name, bad))
    }

    fn read_root(&self, number: u64) -> Result<(Root, Bytes), LoadError> {
        let name = root_name(number);
        let file = RootFile::parse(self.read(&name)?, number).map_err(|bad| judge(name, bad))?;
        let sections = file
            .sections
            .iter()
            .map(|section| (section.slot, *section))
            .collect();
        Ok((
            Root {
                number,
                captured: file.captured,
                sections,
            },
            file.payload,
        ))
    }

    fn read(&self, name: &str) -> Result<Bytes, LoadError> {
        let read = || {
            let handle = self.disk.open(&path(name))?;
            let length = usize::try_from(handle.len()?).map_err(io::Error::other)?;
            let mut bytes = BytesMut::zeroed(length);
            handle.read_at(&mut bytes, 0)?;
            Ok(bytes.freeze())
        };
        read().map_err(|source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => LoadError::Damaged(format!("{name} is missing")),
            io::ErrorKind::UnexpectedEof => LoadError::Damaged(format!("{name} ends too early")),
            _ => LoadError::Fatal(CheckpointError::Io {
                name: name.into(),
                source,
            }),
        })
    }
}

#[derive(Debug)]
enum LoadError {
    /// An older root may do.
    Damaged(String),
    Fatal(CheckpointError),
}

fn judge(name: String, bad: BadFile) -> LoadError {
    match bad {
        BadFile::Damaged(what) => LoadError::Damaged(format!("{name}: {what}")),
        BadFile::Newer(version) => LoadError::Fatal(CheckpointError::Newer { name, version }),
    }
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn path(name: &str) -> String {
    format!("{FOLDER}/{name}")
}

fn root_name(number: u64) -> String {
    format!("root-{number:020}")
}

fn section_name(section: &SectionRef) -> String {
    format!("section-{:010}-{:020}", section.slot, section.number)
}

fn root_number(name: &str) -> Option<u64> {
    digits(name.strip_prefix("root-")?, 20)
}

fn section_number(name: &str) -> Option<u64> {
    let (slot, number) = name.strip_prefix("section-")?.split_once('-')?;
    digits(slot, 10)?;
    digits(number, 20)
}

fn any_number(name: &str) -> Option<u64> {
    root_number(name).or_else(|| section_number(name))
}

fn digits(text: &str, count: usize) -> Option<u64> {
    let all = text.len() == count && text.bytes().all(|b| b.is_ascii_digit());
    if all { text.parse().ok() } else { None }
}
