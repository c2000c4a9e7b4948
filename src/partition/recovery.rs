//! Opening a data directory: checkpoint, then journal, then ready to append.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::catalog::{Catalog, Environment, Image};
use crate::clock::Clock;
use crate::partition::apply::{DirectorySink, Replay};
use crate::partition::checkpoint::{Checkpointer, LoadedSections, Root};
use crate::partition::directory::Directory;
use crate::partition::log::Partition;
use crate::partition::registry::{Registry, RegistryOptions};
use crate::partition::shard::SegmentFile;
use crate::store::backend::Disk;
use crate::store::checkpoint::{CheckpointError, CheckpointStore, Loaded};
use crate::store::journal::{self, FileJournal, JournalError, JournalOptions};
use crate::store::lineage::LineageStore;
use crate::store::segment::{ReadError, SegmentMeta, SegmentStore};
use crate::types::{DirectoryNo, PartitionKey, Position};

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
    /// How the journal works.
    pub journal: JournalOptions,
    /// Bounds of the registry.
    pub registry: RegistryOptions,
    /// Memory for cached segment footers.
    pub footer_bytes: u64,
    /// Segment files kept open at most.
    pub open_files: usize,
    /// What the catalog depends on besides its changes.
    pub environment: Environment,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Ends the process.
    pub fatal: Fatal,
}

/// Opens the store on a disk whose lock the caller holds.
pub fn open(
    disk: &Arc<dyn Disk>,
    opening: Opening,
    progress: Progress<'_>,
) -> Result<Opened, String> {
    let fatal = Arc::clone(&opening.fatal);
    let recovered = recover(disk, opening, progress)?;
    let (registry, catalog) = (recovered.registry, recovered.catalog);
    let mut directories = Vec::new();
    for found in recovered.directories {
        let directory = found.directory;
        let sink = DirectorySink {
            registry: Arc::clone(&registry),
            directory: Arc::clone(&directory),
        };
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

/// Checkpoint and journal into a registry that is ready but for its journal.
pub(crate) fn recover(
    disk: &Arc<dyn Disk>,
    opening: Opening,
    progress: Progress<'_>,
) -> Result<Recovered, String> {
    let reserve_bytes = opening.registry.reserve_bytes;
    let (checkpoints, loaded) =
        CheckpointStore::open(Arc::clone(disk)).map_err(|e| e.to_string())?;
    let segments = SegmentStore::new(Arc::clone(disk), opening.footer_bytes);
    let segments = Arc::new(segments.with_open_files(opening.open_files));
    let start = Start::from_checkpoint(loaded, opening.environment)?;
    let catalog = Arc::new(Catalog::new(start.image));
    let directory = Arc::new(Directory::new(
        DirectoryNo(0),
        Arc::clone(disk),
        segments,
        opening.registry.tail_bytes,
        opening.registry.reserve_bytes,
    ));
    let registry = Arc::new(Registry::new(
        opening.registry,
        Arc::clone(&catalog),
        vec![Arc::clone(&directory)],
        opening.clock,
        opening.fatal,
        LineageStore::open(Arc::clone(disk)).map_err(|e| e.to_string())?,
    ));
    registry.restore(&directory, &start.root, &start.sections)?;

    let journal = JournalOptions {
        reserve_bytes,
        ..opening.journal
    };
    let mut opened = FileJournal::open(Arc::clone(disk), journal).map_err(|e| e.to_string())?;
    let replay = Replay {
        captured: start.captured,
    };
    let replayed = opened.replay(
        start.root.flushed.min(start.captured),
        &mut |group| registry.take_in(&directory, group, Some(replay)),
        progress,
    );
    match replayed {
        // Nothing else than a checkpoint holds what was trimmed.
        Err(JournalError::Missing { .. }) if !checkpoints.damage().is_empty() => {
            return Err(CheckpointError::Damaged(checkpoints.damage().join("; ")).to_string());
        }
        other => other.map_err(|e| e.to_string())?,
    };
    directory.figures.note_checkpoints(&checkpoints);
    registry.finish_recovery(&directory)?;
    Ok(Recovered {
        registry,
        catalog,
        directories: vec![RecoveredDirectory {
            directory,
            journal: opened,
            checkpoints,
            checkpointer: start.checkpointer,
        }],
    })
}

/// What a checkpoint gives recovery to start from.
struct Start {
    captured: Position,
    root: Root,
    image: Image,
    sections: LoadedSections,
    checkpointer: Checkpointer,
}

impl Start {
    fn from_checkpoint(loaded: Option<Loaded>, environment: Environment) -> Result<Self, String> {
        let Some(loaded) = loaded else {
            return Ok(Self {
                captured: Position(0),
                root: Root {
                    next_file: 1,
                    ..Root::default()
                },
                image: Image::empty(environment),
                sections: LoadedSections::default(),
                checkpointer: Checkpointer::default(),
            });
        };
        let root = Root::decode(&loaded.root)?;
        let (checkpointer, mut sections) = Checkpointer::load(&root, loaded.sections)?;
        let catalog = std::mem::take(&mut sections.catalog);
        let image = Image::decode(catalog.iter().map(|section| &section[..]), environment)
            .map_err(|e| format!("the catalog in the checkpoint cannot be read: {e}"))?;
        Ok(Self {
            captured: loaded.captured,
            root,
            image,
            sections,
            checkpointer,
        })
    }
}

impl Registry {
    /// Puts partitions and segment lists back as the checkpoint kept them.
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
                let sequence = sections.partitions.get(&key).cloned().unwrap_or_default();
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
                Ok(meta) => SegmentFile {
                    directory: directory.no,
                    meta,
                    damaged: false,
                },
                // It may be whole: to serve without it would call records lost that are not.
                Err(error @ (ReadError::Io { .. } | ReadError::Newer { .. })) => {
                    return Err(error.to_string());
                }
                // Told after the replay: it may be about to leave the lists, and then it is gone
                // because the process was killed before the next checkpoint.
                Err(_) => {
                    let meta = SegmentMeta {
                        file: *file,
                        bytes: 0,
                        sections: Vec::new(),
                    };
                    SegmentFile {
                        directory: directory.no,
                        meta,
                        damaged: true,
                    }
                }
            };
            self.list_file(&mut applied, Arc::new(file));
        }
        Ok(())
    }

    /// Deletes what a crash left behind, now that the lists are complete.
    fn finish_recovery(&self, directory: &Directory) -> Result<(), String> {
        let mut applied = directory.applied.lock();
        applied.leaving.clear();
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
