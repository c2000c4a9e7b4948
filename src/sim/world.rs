//! The world around the store: clients, clock, disk, and the ends of processes.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::check;
use super::clock::SimClock;
use super::disk::{End, SimDisk};
use super::model::{Change, Model, Sent};
use super::net::Net;
use super::ops;
use super::ops::disk_stuck::Stuck;
use super::ops::reshape::Done;
use super::random::Random;
use super::seen::{Branch, Seen};
use super::store::{Options, Store};
use crate::partition::entries::{SegmentsEntry, decode_log_start};
use crate::partition::maintenance::Worker;
use crate::store::backend::memory::MemoryDisk;
use crate::store::journal::stepped::{Noted, Stepped};
use crate::store::journal::{EntryKind, Journal, SyncPolicy};
use crate::types::{FileId, PartitionKey, Position};

/// A start is tried this often with a fault in its way, then without.
const FAULTY_STARTS: u32 = 3;

thread_local! {
    /// The world of this thread, for what runs in the middle of a disk operation.
    static CURRENT: RefCell<Option<Rc<RefCell<World>>>> = const { RefCell::new(None) };
}

/// What else happens while a background job is at the disk or waits for the journal.
pub(super) fn meanwhile() {
    let Some(world) = CURRENT.with(|current| current.borrow().clone()) else {
        return;
    };
    let turn = match world.try_borrow_mut() {
        Ok(mut world) => world.takes_turn(),
        Err(_) => return,
    };
    if turn {
        // A merge has a thread of its own, beside the one that flushes and deletes.
        background(&world, |worker| worker.turn(false));
    }
    if let Ok(mut world) = world.try_borrow_mut() {
        world.interleave();
    }
}

/// Runs a background job, with clients at work in the middle of it.
fn background(world: &Rc<RefCell<World>>, job: impl FnOnce(&mut Worker) -> Result<(), String>) {
    let (mut worker, was) = {
        let mut world = world.borrow_mut();
        let was = std::mem::replace(&mut world.in_background, true);
        let store = world.store.as_mut().expect("the store runs");
        let worker = store.worker.take().expect("one background job at a time");
        (worker, was)
    };
    let done = job(&mut worker);
    let mut world = world.borrow_mut();
    world.in_background = was;
    if let Some(store) = world.store.as_mut() {
        store.worker = Some(worker);
    }
    world.job_done(done);
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
    pub(super) disk: SimDisk,
    pub(super) store: Option<Store>,
    /// For calls that may go to a thread which waits for the disk.
    pub(super) runtime: tokio::runtime::Runtime,
    pub(super) model: Model,
    pub(super) clients: Clients,
    pub(super) seen: Seen,
    pub(super) trace: Vec<String>,
    /// Everything that anybody was shown lies at or below this.
    pub(super) shown: Position,
    /// Answers that wait for their position.
    pub(super) answers: Vec<Position>,
    /// Segment files that some entry named.
    pub(super) named_files: BTreeSet<FileId>,
    /// Steps until the disk has room again.
    pub(super) full_for: Option<u64>,
    pub(super) refused_while_full: bool,
    /// A background job is in the middle of something.
    pub(super) in_background: bool,
    pub(super) in_merge: bool,
    last_end: Option<End>,
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
    pub(super) shared_files: BTreeSet<FileId>,
    /// Processes that started so far.
    pub(super) starts: u64,
    /// The time up to which timers of handlers were served.
    pub(super) timers_at: Cell<Duration>,
}

impl World {
    pub(super) fn new(seed: u64, options: Options) -> Self {
        super::store::count_ids_from(0);
        let clock = Arc::new(SimClock::new());
        let disk = SimDisk::new(MemoryDisk::new(), Arc::clone(&clock), seed, meanwhile);
        let store = Store::open(&disk, &clock, &options, meanwhile).expect("an empty disk opens");
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
            disk,
            store: Some(store),
            model: Model::default(),
            clients: Clients::default(),
            seen: Seen::default(),
            trace: Vec::new(),
            shown: Position(0),
            answers: Vec::new(),
            named_files: BTreeSet::new(),
            full_for: None,
            refused_while_full: false,
            in_background: false,
            in_merge: false,
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

    /// Whether the process runs and nothing has told it to end.
    pub(super) fn is_up(&self) -> bool {
        self.disk.is_on() && self.store.as_ref().is_some_and(|s| s.failure().is_none())
    }

    /// Brings the model up to what the store has sequenced and made durable, and lets answers go.
    pub(super) fn follow(&mut self) {
        self.take_appended();
        let journal = Arc::clone(&self.store().journal);
        let durable = journal.durable();
        self.model.advance(durable, journal.synced());
        self.answers.retain(|after| {
            if *after <= durable {
                self.shown = self.shown.max(*after);
            }
            *after > durable
        });
        // Readers see everything that the sink took in.
        self.shown = self.shown.max(durable);
    }

    /// Takes in what the store appended by itself since the last look, and gives the batches.
    pub(super) fn take_appended(&mut self) -> Vec<Noted> {
        let journal = Arc::clone(&self.store().journal);
        let mut batches = Vec::new();
        for noted in journal.take_noted() {
            match noted.kind {
                EntryKind::LogStart => {
                    let offset = decode_log_start(&noted.payload).expect("a log start");
                    let key = noted.key;
                    self.seen.note(Branch::LogStartMoved);
                    let change = Change::LogStart { key, offset };
                    self.model.sequence(noted.position, change);
                }
                EntryKind::Segments => {
                    let entry = SegmentsEntry::decode(&noted.payload).expect("an entry");
                    self.named_files.extend(entry.added.iter().map(|m| m.file));
                }
                EntryKind::Batch => batches.push(noted),
                EntryKind::Catalog => {}
            }
        }
        batches
    }

    /// An answer that shows what lies at `truth` and leaves when `after` is durable.
    pub(super) fn answer(&mut self, after: Position, truth: Position) {
        let durable = self.store().journal.durable();
        assert!(
            after >= truth || durable >= truth,
            "an answer that shows {truth:?} would leave at {after:?}"
        );
        self.answers.push(after);
    }

    /// Whether the maintenance thread has a turn now, in the middle of a merge.
    fn takes_turn(&mut self) -> bool {
        let idle = self.store.as_ref().is_some_and(|s| s.worker.is_some());
        let turn = self.in_merge && idle && !self.alone && self.is_up() && self.random.one_in(6);
        if turn {
            self.seen.note(Branch::TurnInMerge);
        }
        turn
    }

    /// A background job ended; an error must end the process, and have a reason.
    fn job_done(&mut self, done: Result<(), String>) {
        let Err(reason) = done else { return };
        let expected = !self.is_up() || self.disk.faults.hits() > 0;
        assert!(expected, "a background job failed for no reason: {reason}");
        if self.is_up() {
            self.seen.note(Branch::BackgroundFailed);
        }
        if let Some(store) = &self.store {
            store.fatal.lock().get_or_insert(reason);
        }
    }

    /// Work of clients in the middle of a background job.
    pub(super) fn interleave(&mut self) {
        if self.alone || !self.is_up() || !self.in_background || !self.random.one_in(3) {
            return;
        }
        for _ in 0..=self.random.below(2) {
            self.seen.note(Branch::Interleaved);
            if self.disk.is_file_stuck() {
                self.seen.note(Branch::WorkedBesideStuckSync);
            }
            ops::foreground(self);
            if !self.is_up() {
                return;
            }
        }
    }

    pub(super) fn journal_step(&mut self) {
        let journal = Arc::clone(&self.store().journal);
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

    /// The process ends, and another one starts on what is left.
    pub(super) fn restart(&mut self) {
        if self.disk.is_on() {
            let end = if self.random.one_in(2) {
                End::Kill
            } else {
                End::PowerLoss
            };
            self.end(end);
        }
        let mut power_lost = self.last_end() == End::PowerLoss;
        // What could have left before the end is taken to have left.
        self.follow();
        let synced = self.store().journal.synced();
        let always = self.options.sync == SyncPolicy::Always;
        self.answers.clear();
        self.net.hang_up();
        self.store = None;
        let left = self.disk.take_left().expect("the end left a disk");
        let stays_full = !self.calm && self.full_for.is_some() && self.random.one_in(2);
        if !stays_full {
            left.set_capacity(None);
            self.full_for = None;
        }
        let store = self.start(left, &mut power_lost);
        let least = if always || !power_lost {
            self.shown
        } else {
            synced.min(self.shown)
        };
        assert!(
            store.last >= least,
            "the journal ends at {:?}, and somebody was shown {least:?}",
            store.last
        );
        self.note_start(&store);
        let last = store.last;
        self.store = Some(store);
        if self.model.reshapes_behind(last) {
            self.seen.note(Branch::ReshapeLost);
            self.last_reshape = None;
        }
        if self.model.restart(last) > 0 {
            self.seen.note(Branch::UnackedLost);
        }
        self.shown = last;
        // Ids whose reservation was lost were told to nobody.
        let next = self.model.durable.next_producer_id;
        self.net.restart(next, self.options.sync);
        self.starts += 1;
        self.clients.ids.retain(|id| *id < next);
        self.clients.sent.retain(|(id, _), _| *id < next);
        if !self.model.durable.commits.is_empty() {
            self.seen.note(Branch::CommitRecovered);
        }
        check::recovered(self);
    }

    /// Ends the process now.
    pub(super) fn end(&mut self, end: End) {
        self.disk.end_now(end);
    }

    fn last_end(&mut self) -> End {
        let end = self.disk.ended_by().unwrap_or(End::Kill);
        if self.last_end == Some(End::Kill) && end == End::PowerLoss {
            self.seen.note(Branch::KillThenPowerLoss);
        }
        self.last_end = Some(end);
        end
    }

    /// Starts on a disk, now and then with a fault in the way of it.
    fn start(&mut self, mut left: MemoryDisk, power_lost: &mut bool) -> Store {
        let mut tries = 0;
        loop {
            let files = check::segment_files(&left);
            if files.iter().any(|file| !self.named_files.contains(file)) {
                self.seen.note(Branch::SegmentWithoutEntry);
            }
            let seed = self.random.next();
            let disk = SimDisk::new(left, Arc::clone(&self.clock), seed, meanwhile);
            let faulty = !self.calm && tries < FAULTY_STARTS && self.random.one_in(3);
            if faulty {
                let end = if self.random.one_in(2) {
                    End::Kill
                } else {
                    End::PowerLoss
                };
                disk.end_after(self.random.below(30), end);
            } else if !self.calm && tries < FAULTY_STARTS && self.random.one_in(6) {
                ops::disk_fault::add(&mut self.random, &disk);
            }
            let flipped = match self.calm || tries > 0 {
                true => None,
                false => self.flip_checkpoint(&disk.memory),
            };
            tries += 1;
            self.disk = disk;
            let opened = Store::open(&self.disk, &self.clock, &self.options, meanwhile);
            // Loading the groups reads records, and a device error there ends the process.
            let opened = opened.and_then(|store| match store.failure() {
                Some(reason) => Err(reason),
                None => Ok(store),
            });
            match opened {
                Ok(store) if self.disk.is_on() => {
                    self.disk.faults.clear();
                    self.went_back |= flipped.is_some_and(|flip| flip.newest_root);
                    return store;
                }
                Err(_) if self.disk.is_on() && self.disk.faults.hits() > 0 => {
                    // The device failed a start; the next one finds it well again.
                    self.seen.note(Branch::FailedStart);
                    left = self.disk.memory.kill();
                    if let Some(flip) = flipped {
                        left.flip(&flip.name, flip.at, flip.mask);
                    }
                }
                Err(_) if self.disk.is_on() && self.full_for.is_some() => {
                    // A journal without any file needs room for one.
                    left = self.disk.memory.kill();
                    left.set_capacity(None);
                    self.full_for = None;
                }
                Err(reason) if self.disk.is_on() => panic!("the store does not open: {reason}"),
                _ => {
                    self.seen.note(Branch::EndedInRecovery);
                    *power_lost |= self.last_end() == End::PowerLoss;
                    left = self.disk.take_left().expect("the end left a disk");
                    if let Some(flip) = flipped {
                        left.flip(&flip.name, flip.at, flip.mask);
                    }
                }
            }
        }
    }

    /// Damages a file of the checkpoint, now and then: one at a time, as two may be too many.
    fn flip_checkpoint(&mut self, disk: &MemoryDisk) -> Option<Flip> {
        if !self.random.one_in(self.damaged_starts) || !check::checkpoint_is_sound(disk) {
            return None;
        }
        let mut names = disk.names();
        names.retain(|name| name.starts_with("checkpoint/") && !name.ends_with(".new"));
        let newest = names.iter().filter(|n| n.contains("/root-")).max().cloned();
        let name = match self.random.one_in(2) {
            true => newest.clone()?,
            false => self.random.pick(&names)?.clone(),
        };
        let len = disk.contents(&name)?.len() as u64;
        let flip = Flip {
            newest_root: Some(&name) == newest.as_ref(),
            at: self.random.below(len),
            mask: 1 << self.random.below(8),
            name,
        };
        disk.flip(&flip.name, flip.at, flip.mask).then_some(flip)
    }

    fn note_start(&mut self, store: &Store) {
        if store.tail_was_cut {
            self.seen.note(Branch::TornTail);
        }
        if store.files_were_reused {
            self.seen.note(Branch::RecycledFiles);
        }
    }

    /// Writes down where the world stands, for the comparison of two runs.
    pub(super) fn note(&mut self, step: u64, what: &str) {
        let (changes, digest) = self.disk.figures();
        let journal = &self.store().journal;
        let (durable, appended) = (journal.durable().0, journal.appended().0);
        let line =
            format!("{step} {what}: disk {changes} {digest:x}, journal {durable}/{appended}");
        if std::env::var_os("SHARDGATE_SIM_TRACE").is_some() {
            println!("{line}");
        }
        self.trace.push(line);
    }
}

/// A flipped bit in a file of the checkpoint.
struct Flip {
    name: String,
    at: u64,
    mask: u8,
    newest_root: bool,
}

/// A world, and the way to let background jobs run in it.
pub(super) struct Sim {
    pub(super) world: Rc<RefCell<World>>,
}

impl Sim {
    pub(super) fn new(seed: u64, options: Options) -> Self {
        let world = Rc::new(RefCell::new(World::new(seed, options)));
        CURRENT.with(|current| *current.borrow_mut() = Some(Rc::clone(&world)));
        Self { world }
    }

    /// Runs a background job, with clients at work in the middle of it.
    pub(super) fn background(&self, job: impl FnOnce(&mut Worker) -> Result<(), String>) {
        background(&self.world, job);
    }

    /// Merges segment files, if some are due, with everything else in the middle of it.
    pub(super) fn merge(&self) {
        let registry = {
            let mut world = self.world.borrow_mut();
            (world.in_background, world.in_merge) = (true, true);
            Arc::clone(&world.store().registry)
        };
        let files = registry.first().files();
        let newest = files.iter().map(|file| file.meta.file).max();
        let done = registry.merge_once(registry.first(), &|_| ());
        let mut world = self.world.borrow_mut();
        (world.in_background, world.in_merge) = (false, false);
        match done {
            Ok(true) => {
                world.seen.note(Branch::Merged);
                if world.is_up() {
                    world.follow();
                    let shared = check::shared_files(&world);
                    if shared.iter().any(|file| Some(*file) > newest) {
                        world.seen.note(Branch::MergedAcrossShards);
                    }
                }
            }
            Ok(false) => {}
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {}
            Err(error) => world.job_done(Err(error.to_string())),
        }
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        CURRENT.with(|current| *current.borrow_mut() = None);
    }
}
