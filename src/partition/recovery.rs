//! Opening the data directories: checkpoints, then journals, then ready to append.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::catalog::{Catalog, Environment, Image};
use crate::clock::Clock;
use crate::partition::apply::{DirectorySink, Replay};
use crate::partition::checkpoint::{Checkpointer, LoadedSections, Root};
use crate::partition::directory::{Directories, Directory};
use crate::partition::log::Partition;
use crate::partition::registry::{Registry, RegistryOptions};
use crate::partition::shard::{PartitionSequence, SegmentFile};
use crate::partition::verify;
use crate::partition::witness;
use crate::store::backend::Disk;
use crate::store::checkpoint::{CheckpointError, CheckpointStore, Loaded};
use crate::store::journal::{self, FileJournal, JournalError, JournalOptions};
use crate::store::lineage::LineageStore;
use crate::store::segment::ReadError;
use crate::types::{DirectoryId, DirectoryNo, PartitionKey, Position};

/// Told how far replay is: bytes done, bytes in all.
pub type Progress<'a> = &'a dyn Fn(u64, u64);

/// Ends the process after an error that must not be survived; gets the reason.
pub type Fatal = Arc<dyn Fn(String) + Send + Sync>;

/// An open store.
pub struct Opened {
    /// All partitions, ready to append.
    pub registry: Arc<Registry>,
    /// The topics.
    pub catalog: Arc<Catalog>,
    /// The data directories.
    pub directories: Vec<OpenedDirectory>,
}

/// An open data directory.
pub struct OpenedDirectory {
    /// The directory.
    pub directory: Arc<Directory>,
    /// Its journal.
    pub journal: Arc<FileJournal>,
    /// Where checkpoints go.
    pub(super) checkpoints: CheckpointStore,
    /// What the last checkpoint holds.
    pub(super) checkpointer: Checkpointer,
}

/// A store as its disks have it, before it takes anything new in.
pub(crate) struct Recovered {
    pub(crate) registry: Arc<Registry>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) directories: Vec<RecoveredDirectory>,
}

/// A data directory as its disk has it.
pub(crate) struct RecoveredDirectory {
    pub(crate) directory: Arc<Directory>,
    pub(crate) journal: journal::Opened,
    pub(crate) checkpoints: CheckpointStore,
    pub(crate) checkpointer: Checkpointer,
}

/// What a start is told.
pub struct Opening {
    /// Bounds of the registry, over all directories.
    pub registry: RegistryOptions,
    /// Memory for cached segment footers.
    pub footer_bytes: u64,
    /// Segment files kept open at most.
    pub open_files: usize,
    /// Further directories that the node had at its last start and that are not among these.
    pub absent: Vec<DirectoryId>,
    /// What the catalog depends on besides its changes and the directories.
    pub environment: Environment,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Ends the process.
    pub fatal: Fatal,
    /// Makes directories that are new the node's own, once it is known that none of those that it
    /// had is missing; `None` where none is new.
    pub join: Option<Join>,
}

/// Writes what makes new directories the node's own.
pub type Join = Box<dyn FnOnce() -> Result<(), String>>;

/// A data directory to open.
pub struct OpeningDirectory {
    /// Its disk, whose lock the caller holds.
    pub disk: Arc<dyn Disk>,
    /// What layouts call it.
    pub id: DirectoryId,
    /// What the operator calls it.
    pub name: String,
    /// How its journal works.
    pub journal: JournalOptions,
    /// Nothing is in it yet, and nothing may be put there before [`Opening::join`].
    pub is_new: bool,
}

/// Opens the store in these directories, the first one first.
pub fn open(
    directories: Vec<OpeningDirectory>,
    opening: Opening,
    progress: Progress<'_>,
) -> Result<Opened, String> {
    let fatal = Arc::clone(&opening.fatal);
    let recovered = recover(directories, opening, progress)?;
    let (registry, catalog) = (recovered.registry, recovered.catalog);
    let mut directories = Vec::new();
    for found in recovered.directories {
        let directory = found.directory;
        let sink = DirectorySink {
            registry: Arc::clone(&registry),
            directory: Arc::clone(&directory),
        };
        let span = directory.span.clone();
        let _named = span.enter();
        let journal = found.journal.start(Arc::new(sink), Arc::clone(&fatal));
        directory.attach(Arc::clone(&journal) as _);
        if directory.no == registry.first().no {
            catalog.attach(Arc::clone(&journal) as _);
        }
        directories.push(OpenedDirectory {
            directory,
            journal,
            checkpoints: found.checkpoints,
            checkpointer: found.checkpointer,
        });
    }
    Ok(Opened {
        registry,
        catalog,
        directories,
    })
}

/// Why a store does not open.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecoveryError {
    /// Directories do not belong together; the text says what to do.
    #[error("{0}")]
    Mismatch(String),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl From<String> for RecoveryError {
    fn from(why: String) -> Self {
        Self::Other(why)
    }
}

impl From<RecoveryError> for String {
    fn from(error: RecoveryError) -> Self {
        error.to_string()
    }
}

/// Checkpoints and journals into a registry that is ready but for its journals.
///
/// The first directory comes first, with all of its journal: only then it is known what lives
/// where. Each other one then gives the state of the partitions that live in it. New ones come
/// last, when all that are in use are known to be there and to be of one time.
pub(crate) fn recover(
    directories: Vec<OpeningDirectory>,
    mut opening: Opening,
    progress: Progress<'_>,
) -> Result<Recovered, RecoveryError> {
    let mut join = opening.join.take();
    let of = directories.len();
    let made = (0..).map(DirectoryNo).zip(&directories);
    let made = made.map(|(no, each)| Arc::new(Directory::of(no, each, &opening, of)));
    let made: Vec<Arc<Directory>> = made.collect();
    // A node that begins misses nothing.
    if directories.first().is_some_and(|first| first.is_new)
        && let Some(join) = join.take()
    {
        join()?;
    }
    let open = |(directory, each): (&Arc<Directory>, &OpeningDirectory)| {
        let found = Found::open(directory, each, &opening);
        found.map_err(|e| told_where(&directories, &each.name, e))
    };
    let pairs = made.iter().zip(&directories);
    let waits = |each: &OpeningDirectory| each.is_new && join.is_some();
    let (new, known): (Vec<_>, Vec<_>) = pairs.partition(|(_, each)| waits(each));
    let mut found = Vec::new();
    for pair in known {
        found.push(open(pair)?);
    }
    let environment = Environment {
        directories: directories.iter().map(|directory| directory.id).collect(),
        ..opening.environment.clone()
    };
    let (Some(first), Some((no_0, others))) = (found.first(), made.split_first()) else {
        return Err("there is no data directory".to_owned().into());
    };
    let catalog = Arc::new(Catalog::new(first.image(environment)?));
    let registry = Arc::new(Registry::new(
        opening.registry.clone(),
        Arc::clone(&catalog),
        Directories::new(Arc::clone(no_0), others.to_vec()),
        Arc::clone(&opening.clock),
        Arc::clone(&opening.fatal),
        LineageStore::open(Arc::clone(&directories[0].disk)).map_err(|e| e.to_string())?,
    ));
    restore_all(&mut found, &registry, &directories, progress)?;
    check_witnesses(&found, &directories, &catalog).map_err(RecoveryError::Mismatch)?;
    registry.compare_all_copies();
    if !opening.absent.is_empty() {
        let covered = registry.check_coverage(&opening.absent);
        covered.map_err(RecoveryError::Mismatch)?;
    }
    if let Some(join) = join {
        join()?;
    }
    for pair in new {
        let mut each = open(pair)?;
        each.restore(&registry, &|_, _| ())?;
        found.push(each);
    }
    found.sort_by_key(|each| each.directory.no);
    for each in &found {
        let _named = each.directory.span.enter();
        registry.finish_recovery(&each.directory)?;
    }
    Ok(Recovered {
        registry,
        catalog,
        directories: found.into_iter().map(Found::done).collect(),
    })
}

/// Checkpoints and journals into the registry, the first directory's first.
fn restore_all(
    found: &mut [Found],
    registry: &Registry,
    directories: &[OpeningDirectory],
    progress: Progress<'_>,
) -> Result<(), RecoveryError> {
    let total: u64 = found.iter().map(|each| each.journal.bytes()).sum();
    let mut before = 0;
    for each in found {
        let bytes = each.journal.bytes();
        let told = |done, _| progress(before + done, total);
        let restored = each.restore(registry, &told);
        restored.map_err(|e| told_where(directories, &each.directory.name, e))?;
        before += bytes;
        if each.directory.no == DirectoryNo(0) {
            registry.check_homes().map_err(RecoveryError::Mismatch)?;
        }
    }
    Ok(())
}

/// Refuses directories of different times.
fn check_witnesses(
    found: &[Found],
    directories: &[OpeningDirectory],
    catalog: &Catalog,
) -> Result<(), String> {
    let ends: Vec<_> = found
        .iter()
        .map(|each| witness::Found {
            directory: &each.directory,
            last: each.journal.last(),
            loss_accepted: directories
                .get(usize::from(each.directory.no.0))
                .is_some_and(|opened| opened.journal.allow_truncate_corruption),
        })
        .collect();
    witness::check(&ends, &catalog.image())
}

fn told_where(all: &[OpeningDirectory], name: &str, error: String) -> String {
    match all.len() {
        1 => error,
        _ => format!("data directory {name}: {error}"),
    }
}

/// A directory whose checkpoint is read and whose journal is to be replayed.
struct Found {
    directory: Arc<Directory>,
    checkpoints: CheckpointStore,
    start: Start,
    journal: journal::Opened,
}

impl Found {
    fn open(
        directory: &Arc<Directory>,
        opening: &OpeningDirectory,
        all: &Opening,
    ) -> Result<Self, String> {
        let disk = &opening.disk;
        let _named = directory.span.enter();
        let (checkpoints, loaded) =
            CheckpointStore::open(Arc::clone(disk)).map_err(|e| e.to_string())?;
        let journal = JournalOptions {
            reserve_bytes: all.registry.reserve_bytes,
            ..opening.journal.clone()
        };
        Ok(Self {
            directory: Arc::clone(directory),
            start: Start::from_checkpoint(loaded)?,
            journal: FileJournal::open(Arc::clone(disk), journal).map_err(|e| e.to_string())?,
            checkpoints,
        })
    }

    /// The catalog as the checkpoint has it.
    fn image(&self, environment: Environment) -> Result<Image, String> {
        let catalog = &self.start.sections.catalog;
        if catalog.is_empty() {
            return Ok(Image::empty(environment));
        }
        Image::decode(catalog.iter().map(|section| &section[..]), environment)
            .map_err(|e| format!("the catalog in the checkpoint cannot be read: {e}"))
    }

    fn restore(&mut self, registry: &Registry, progress: Progress<'_>) -> Result<(), String> {
        let (directory, start) = (&self.directory, &self.start);
        let _named = directory.span.enter();
        registry.restore(directory, &start.root, &start.sections)?;
        // There may be nothing behind it to replay.
        directory.applied.lock().position = start.captured;
        let replay = Replay {
            captured: start.captured,
        };
        let replayed = self.journal.replay(
            start.root.flushed.min(start.captured),
            &mut |group| registry.take_in(directory, group, Some(replay)),
            progress,
        );
        match replayed {
            // Nothing else than a checkpoint holds what was trimmed.
            Err(JournalError::Missing { .. }) if !self.checkpoints.damage().is_empty() => {
                let damage = self.checkpoints.damage().join("; ");
                return Err(CheckpointError::Damaged(damage).to_string());
            }
            other => other.map_err(|e| e.to_string())?,
        };
        directory.figures.note_checkpoints(&self.checkpoints);
        Ok(())
    }

    fn done(self) -> RecoveredDirectory {
        RecoveredDirectory {
            directory: self.directory,
            journal: self.journal,
            checkpoints: self.checkpoints,
            checkpointer: self.start.checkpointer,
        }
    }
}

/// What a checkpoint gives recovery to start from.
struct Start {
    captured: Position,
    root: Root,
    sections: LoadedSections,
    checkpointer: Checkpointer,
}

impl Start {
    fn from_checkpoint(loaded: Option<Loaded>) -> Result<Self, String> {
        let Some(loaded) = loaded else {
            return Ok(Self {
                captured: Position(0),
                root: Root {
                    next_file: 1,
                    ..Root::default()
                },
                sections: LoadedSections::default(),
                checkpointer: Checkpointer::default(),
            });
        };
        let root = Root::decode(&loaded.root)?;
        let (checkpointer, sections) = Checkpointer::load(&root, loaded.sections)?;
        Ok(Self {
            captured: loaded.captured,
            root,
            sections,
            checkpointer,
        })
    }
}

/// The first offsets of a partition that are nowhere.
fn first_gap(partition: &Partition) -> Option<verify::Gap> {
    let (bounds, pieces) = verify::pieces(partition, false);
    verify::gaps(bounds, &pieces)
        .into_iter()
        .find(|gap| gap.missing)
}

impl Registry {
    /// Puts the partitions that live in a directory and its segment files back as its checkpoint
    /// kept them; the first one makes those of the others, too.
    fn restore(
        &self,
        directory: &Directory,
        root: &Root,
        sections: &LoadedSections,
    ) -> Result<(), String> {
        let image = self.catalog.image();
        for topic in image.topics() {
            let shards = self.follow_growth(topic);
            for index in 0..topic.partitions {
                let key = PartitionKey {
                    topic: topic.no,
                    index,
                };
                let kept = sections.partitions.get(&key);
                let sequence = match (self.get(key), shards.lives_in(index, directory)) {
                    (Some(_), false) => continue,
                    (None, false) => PartitionSequence::default(),
                    (Some(before), true) => {
                        before.sequenced(|_, sequence| self.producers.forget_all(sequence));
                        kept.cloned().unwrap_or_default()
                    }
                    (None, true) => kept.cloned().unwrap_or_default(),
                };
                self.producers.count(&sequence);
                let partition = Partition::new(key, topic.id, Arc::clone(&shards), sequence);
                self.partitions.insert(key, Arc::new(partition));
            }
        }
        directory.next_file.store(root.next_file, Ordering::Relaxed);
        let mut applied = directory.applied.lock();
        applied.flushed = root.flushed;
        for file in &root.files {
            let file = match directory.segments.meta(*file) {
                Ok(meta) => SegmentFile::new(directory.no, meta),
                // It may be whole: to serve without it would call records lost that are not.
                Err(error @ (ReadError::Io { .. } | ReadError::Newer { .. })) => {
                    return Err(error.to_string());
                }
                // Told after the replay: it may be about to leave the lists, and then it is gone
                // because the process was killed before the next checkpoint.
                Err(_) => SegmentFile::damaged(directory.no, *file),
            };
            self.list_file(&mut applied, Arc::new(file));
        }
        Ok(())
    }

    /// Refuses a start without a directory that shards live in.
    fn check_homes(&self) -> Result<(), String> {
        let image = self.catalog.image();
        let mut missing: BTreeMap<DirectoryId, Vec<&str>> = BTreeMap::new();
        for topic in image.topics() {
            for shard in topic.layout.shards() {
                if self.directories.home(shard.home).id != shard.home {
                    let topics = missing.entry(shard.home).or_default();
                    if topics.last() != Some(&&*topic.name) {
                        topics.push(&topic.name);
                    }
                }
            }
        }
        let Some((home, topics)) = missing.into_iter().next() else {
            return Ok(());
        };
        let holds_nothing = |directory: &&Arc<Directory>| {
            let mut shards = image.topics().flat_map(|topic| topic.layout.shards());
            directory.no != DirectoryNo(0) && !shards.any(|shard| shard.home == directory.id)
        };
        let unmounted = match self.directories.iter().find(holds_nothing) {
            Some(empty) => format!(
                " ({} holds no shard: is the right disk mounted there?)",
                empty.name
            ),
            None => String::new(),
        };
        let more = match topics.len() {
            n if n > 10 => format!(" and {} more", n - 10),
            _ => String::new(),
        };
        let named = topics[..topics.len().min(10)].join(", ");
        Err(format!(
            "log.dirs lacks the data directory with store.id={}, which holds records of {} \
             topics: {named}{more}. Put it back into log.dirs{unmounted}; if it is lost, restore \
             the whole node from a copy",
            home.0,
            topics.len(),
        ))
    }

    /// Refuses a start without a directory whose segment files still hold records of a shard that
    /// was moved out of it.
    fn check_coverage(&self, absent: &[DirectoryId]) -> Result<(), String> {
        let image = self.catalog.image();
        for topic in image.topics() {
            for index in 0..topic.partitions {
                let key = PartitionKey {
                    topic: topic.no,
                    index,
                };
                let gap = self.get(key).and_then(|partition| first_gap(&partition));
                let Some(gap) = gap else {
                    continue;
                };
                let absent: Vec<_> = absent.iter().map(|id| id.0.to_string()).collect();
                return Err(format!(
                    "log.dirs lacks a data directory that the node had at its last start \
                     (store.id={}), and of topic {} partition {index} offsets {} to {} are in none \
                     of the others: shards that are moved out of a directory are copied in the \
                     background, and it may go when `shardgate shards list --json` shows no bytes \
                     elsewhere. Put it back into log.dirs; if it is lost, restore the whole node \
                     from a copy",
                    absent.join(", "),
                    topic.name,
                    gap.start,
                    gap.end - 1,
                ));
            }
        }
        Ok(())
    }

    /// Deletes what a crash left behind, now that the lists are complete.
    fn finish_recovery(&self, directory: &Directory) -> Result<(), String> {
        let mut applied = directory.applied.lock();
        applied.leaving.clear();
        // Its number would be given out again, and then these records be taken for the new topic's.
        let next = self.catalog.image().next_topic();
        for file in applied.files.values() {
            if let Some(section) = file.meta.sections.last()
                && section.key.topic >= next
            {
                let what = format!("segment file {} is", file.meta.file.0);
                return Err(self.never_created(directory, &what, section.key));
            }
        }
        let named: BTreeSet<_> = applied.files.keys().copied().collect();
        let damaged: BTreeSet<_> = applied
            .files
            .values()
            .filter(|file| file.damaged)
            .map(|file| file.meta.file)
            .collect();
        drop(applied);
        let there = directory
            .segments
            .list_files()
            .map_err(|e| format!("the folder of segment files cannot be listed: {e}"))?;
        for file in &named {
            if !there.contains(file) {
                tracing::error!(
                    file = file.0,
                    "a segment file is missing; its records cannot be served, everything else \
                     can: put the file back from a copy"
                );
            } else if damaged.contains(file)
                && let Err(error) = directory.segments.meta(*file)
            {
                tracing::error!(file = file.0, %error, "a segment file serves nothing");
            }
        }
        for file in there {
            directory.next_file.fetch_max(file.0 + 1, Ordering::Relaxed);
            if !named.contains(&file) {
                tracing::info!(file = file.0, "deleting a segment file that no list names");
                self.remove_unlisted(directory, file);
            }
        }
        Ok(())
    }
}
