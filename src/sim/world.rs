//! The world around the store: clients, clock, disk, and the ends of processes.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::clock::SimClock;
use super::disk::SimDisk;
use super::ends::Ends;
use super::jobs::meanwhile;
use super::lineage::directory_id;
use super::model::{Change, Model, Sent};
use super::net::Net;
use super::ops::disk_full::Full;
use super::ops::disk_stuck::Stuck;
use super::ops::reshape::Done;
use super::power::{Disks, End};
use super::random::Random;
use super::seen::{Branch, Seen};
use super::store::{Options, Store};
use crate::catalog;
use crate::partition::entries::{SegmentsEntry, decode_log_start};
use crate::partition::move_entries::MoveEntry;
use crate::store::backend::memory::MemoryDisk;
use crate::store::journal::EntryKind;
use crate::store::journal::stepped::Stepped;
use crate::types::{DirectoryNo, FileId, PartitionKey, Place, Places, Position};

/// A batch that has its place in a journal.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub(super) place: Place,
    pub(super) key: PartitionKey,
    pub(super) payload: bytes::Bytes,
}

/// What the idempotent producers of the simulation remember.
#[derive(Default)]
pub(super) struct Clients {
    /// Ids given out; each is used in every partition.
    pub(super) ids: Vec<i64>,
    /// What each sent to a partition, newest last.
    pub(super) sent: BTreeMap<(i64, PartitionKey), Vec<Sent>>,
    /// Tells every batch from all others.
    pub(super) tag: u64,
}

/// One simulated machine.
pub(super) struct World {
    pub(super) random: Random,
    pub(super) clock: Arc<SimClock>,
    pub(super) options: Options,
    pub(super) disks: Disks,
    pub(super) store: Option<Store>,
    /// For calls that may go to a thread which waits for the disk.
    pub(super) runtime: tokio::runtime::Runtime,
    pub(super) model: Model,
    pub(super) clients: Clients,
    pub(super) seen: Seen,
    pub(super) trace: Vec<String>,
    /// Everything that anybody was shown lies at or below this.
    pub(super) shown: Ends,
    /// Answers that wait for their places.
    pub(super) answers: Vec<Places>,
    /// Segment files that some entry named.
    pub(super) named_files: BTreeSet<(DirectoryNo, FileId)>,
    /// A disk that has no room now.
    pub(super) full: Option<Full>,
    pub(super) refused_while_full: bool,
    /// A background job is in the middle of something.
    pub(super) in_background: bool,
    pub(super) in_merge: Option<DirectoryNo>,
    pub(super) in_move: bool,
    /// Where each partition was handed over last.
    pub(super) handed_over: BTreeMap<PartitionKey, Position>,
    pub(super) last_end: Option<End>,
    /// Nothing goes wrong any more.
    pub(super) calm: bool,
    /// This process started from the older root of its checkpoint.
    pub(super) went_back: bool,
    /// One start in so many finds a file of the checkpoint damaged.
    pub(super) damaged_starts: u64,
    /// Background jobs run alone.
    pub(super) alone: bool,
    pub(super) stuck: Option<Stuck>,
    pub(super) net: Net,
    pub(super) last_reshape: Option<Done>,
    /// Files that shards of one topic had in common.
    pub(super) shared_files: BTreeSet<(DirectoryNo, FileId)>,
    /// Processes that started so far.
    pub(super) starts: u64,
    /// The time up to which timers of handlers were served.
    pub(super) timers_at: Cell<Duration>,
}

impl World {
    pub(super) fn new(seed: u64, options: Options) -> Self {
        super::store::count_ids_from(0);
        let clock = Arc::new(SimClock::new());
        let empty = (0..options.directories).map(|_| MemoryDisk::new());
        let disks = Disks::new(empty.collect(), &clock, seed, meanwhile);
        let store = Store::open(&disks, &clock, &options, meanwhile).expect("empty disks open");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .max_blocking_threads(1)
            .build();
        Self {
            runtime: runtime.expect("a runtime"),
            random: Random::new(seed),
            clock,
            options,
            disks,
            store: Some(store),
            model: Model::default(),
            clients: Clients::default(),
            seen: Seen::default(),
            trace: Vec::new(),
            shown: Ends::default(),
            answers: Vec::new(),
            named_files: BTreeSet::new(),
            full: None,
            refused_while_full: false,
            in_background: false,
            in_merge: None,
            in_move: false,
            handed_over: BTreeMap::new(),
            went_back: false,
            damaged_starts: 4,
            last_end: None,
            calm: false,
            alone: false,
            stuck: None,
            net: Net::new(),
            last_reshape: None,
            shared_files: BTreeSet::new(),
            starts: 1,
            timers_at: Cell::default(),
        }
    }

    pub(super) fn store(&self) -> &Store {
        self.store.as_ref().expect("the store runs")
    }

    /// The disk of the first directory.
    pub(super) fn disk(&self) -> &SimDisk {
        self.disks.of(DirectoryNo(0))
    }

    /// One of the directories. Nothing is left to chance where there is one only.
    pub(super) fn any_directory(&mut self) -> DirectoryNo {
        match self.options.directories {
            1 => DirectoryNo(0),
            n => DirectoryNo(self.random.below(u64::from(n)) as u16),
        }
    }

    /// Whether the process runs and nothing has told it to end.
    pub(super) fn is_up(&self) -> bool {
        self.disks.is_on() && self.store.as_ref().is_some_and(|s| s.failure().is_none())
    }

    /// Brings the model up to what the store has sequenced and made durable, and lets answers go.
    pub(super) fn follow(&mut self) {
        self.take_appended();
        let durable = self.store().durable();
        let synced = self.store().synced();
        self.model.advance(&durable, &synced);
        let shown = &mut self.shown;
        self.answers.retain(|after| {
            let leaves = durable.covers(after);
            if leaves {
                shown.raise_to(after.iter());
            }
            !leaves
        });
        // Readers see everything that the sinks took in.
        self.shown.raise_to(durable.iter());
    }

    /// Takes in a change of the catalog if it is a move.
    fn note_move(&mut self, place: Place, payload: &[u8]) {
        let change = catalog::Change::decode(payload).expect("a change");
        let catalog::Change::Reshaped(moved) = change else {
            return;
        };
        let ([sealed], [opened], [home]) = (&moved.sealed[..], &moved.opened[..], &moved.homes[..])
        else {
            return;
        };
        let numbers = self.disks.numbers();
        let home = numbers.into_iter().find(|no| directory_id(*no) == *home);
        let of_topic = |key: &&PartitionKey| key.topic == moved.no;
        let keys = self.model.sequenced.logs.keys().filter(of_topic);
        let starts = keys.map(|key| (key.index, self.model.sequenced.logs[key].next));
        let handed = self.handed_over.iter().filter(|(key, _)| of_topic(key));
        let change = Change::Moved {
            no: moved.no,
            sealed: *sealed,
            opened: *opened,
            home: home.expect("a directory of the node"),
            starts: starts.collect(),
            at: handed.map(|(key, at)| (key.index, *at)).collect(),
        };
        self.model.sequence(place, change);
    }

    /// Takes in what the store appended by itself since the last look, and gives the batches, those
    /// of the first directory first.
    pub(super) fn take_appended(&mut self) -> Vec<Placed> {
        let journals = self.store().homes.iter();
        let noted = journals.map(|home| (home.directory.no, home.journal.take_noted()));
        let noted: Vec<_> = noted.collect();
        let noted = noted
            .into_iter()
            .flat_map(|(directory, all)| all.into_iter().map(move |noted| (directory, noted)));
        let noted: Vec<_> = noted.collect();
        for (_, noted) in noted
            .iter()
            .filter(|(_, noted)| noted.kind == EntryKind::Move)
        {
            if let Ok(MoveEntry::HandOver(_) | MoveEntry::MoreProducers(_)) =
                MoveEntry::decode(&noted.payload)
            {
                self.handed_over.insert(noted.key, noted.position);
            }
        }
        let mut batches = Vec::new();
        for (directory, noted) in noted {
            let (position, key) = (noted.position, noted.key);
            let place = Place {
                directory,
                position,
            };
            match noted.kind {
                EntryKind::LogStart => {
                    let offset = decode_log_start(&noted.payload).expect("a log start");
                    self.seen.note(Branch::LogStartMoved);
                    self.model.sequence(place, Change::LogStart { key, offset });
                }
                EntryKind::Segments => {
                    let entry = SegmentsEntry::decode(&noted.payload).expect("an entry");
                    let added = entry.added.iter().map(|meta| (directory, meta.file));
                    self.named_files.extend(added);
                }
                EntryKind::Batch => {
                    let payload = noted.payload;
                    batches.push(Placed {
                        place,
                        key,
                        payload,
                    });
                }
                EntryKind::Catalog => self.note_move(place, &noted.payload),
                EntryKind::Move | EntryKind::Witness => {}
            }
        }
        batches
    }

    /// An answer that shows what lies at `truth` and leaves when `after` is durable.
    pub(super) fn answer(&mut self, after: impl Into<Places>, truth: impl Into<Places>) {
        let (after, truth) = (after.into(), truth.into());
        let mut told = self.store().durable();
        told.raise_to(after.iter());
        assert!(
            told.covers(&truth),
            "an answer that shows {truth:?} would leave at {after:?}"
        );
        self.answers.push(after);
    }

    pub(super) fn journal_step(&mut self) {
        let directory = self.any_directory();
        let journal = Arc::clone(&self.store().home(directory).journal);
        match self.random.below(20) {
            0 => {
                journal.files_step();
            }
            1..6 => {
                journal.commit_step();
            }
            _ => {
                if journal.step() == Stepped::Idle && journal.commit_step() == Stepped::Idle {
                    self.clock.advance(Duration::from_millis(10));
                }
            }
        }
    }

    /// Ends the process now.
    pub(super) fn end(&mut self, end: End) {
        self.disks.end_now(end);
    }

    /// Writes down where the world stands, for the comparison of two runs.
    pub(super) fn note(&mut self, step: u64, what: &str) {
        let (changes, digest) = self.disks.figures();
        let mut line = format!("{step} {what}: disk {changes} {digest:x}, journal");
        let store = self.store();
        for (durable, appended) in store.durable().iter().zip(store.appended().iter()) {
            line += &format!(" {}/{}", durable.position.0, appended.position.0);
        }
        if std::env::var_os("SHARDGATE_SIM_TRACE").is_some() {
            println!("{line}");
        }
        self.trace.push(line);
    }
}
