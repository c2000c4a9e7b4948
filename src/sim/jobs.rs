//! Background jobs of the directories, with clients at work in the middle of them, and other jobs.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use super::check;
use super::disk::SimDisk;
use super::ops;
use super::seen::Branch;
use super::store::Options;
use super::world::World;
use crate::partition::maintenance::Worker;
use crate::types::DirectoryNo;

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
    if let Some(directory) = turn {
        // A merge has a thread of its own, beside the one that flushes and deletes, and so has each
        // directory.
        background(&world, directory, |worker| worker.turn(false));
    }
    if let Ok(mut world) = world.try_borrow_mut() {
        world.interleave();
    }
}

/// Runs a background job of a directory, with clients at work in the middle of it.
fn background(
    world: &Rc<RefCell<World>>,
    directory: DirectoryNo,
    job: impl FnOnce(&mut Worker) -> Result<(), String>,
) {
    let at = usize::from(directory.0);
    let (mut worker, was) = {
        let mut world = world.borrow_mut();
        let was = std::mem::replace(&mut world.in_background, true);
        let store = world.store.as_mut().expect("the store runs");
        let worker = store.homes[at].worker.take();
        (worker.expect("one job of a directory at a time"), was)
    };
    let done = job(&mut worker);
    let mut world = world.borrow_mut();
    world.in_background = was;
    if let Some(store) = world.store.as_mut() {
        store.homes[at].worker = Some(worker);
    }
    world.job_done(done);
}

impl World {
    /// The directory whose maintenance thread has a turn now, in the middle of a merge or of the
    /// work of another directory.
    fn takes_turn(&mut self) -> Option<DirectoryNo> {
        let merging = self.in_merge.is_some();
        let several = self.options.directories > 1 && self.in_background;
        if self.alone || !self.is_up() || !(merging || several) {
            return None;
        }
        let directory = self.any_directory();
        let home = self.store().home(directory);
        // A move flushes too, on this one thread: a worker would wait for it for ever.
        let is_idle = home.worker.is_some() && !home.directory.is_flushing();
        if !is_idle || !self.random.one_in(6) {
            return None;
        }
        if self.in_merge == Some(directory) {
            self.seen.note(Branch::TurnInMerge);
        }
        Some(directory)
    }

    /// A background job ended; an error must end the process, and have a reason.
    fn job_done(&mut self, done: Result<(), String>) {
        let Err(reason) = done else { return };
        let expected = !self.is_up() || self.disks.fault_hits() > 0;
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
            if self.disks.iter().any(SimDisk::is_file_stuck) {
                self.seen.note(Branch::WorkedBesideStuckSync);
            }
            ops::foreground(self);
            if !self.is_up() {
                return;
            }
        }
    }
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

    /// Runs a background job of the first directory, with clients at work in the middle of it.
    pub(super) fn background(&self, job: impl FnOnce(&mut Worker) -> Result<(), String>) {
        self.background_in(DirectoryNo(0), job);
    }

    /// Runs a background job of a directory, with clients at work in the middle of it.
    pub(super) fn background_in(
        &self,
        directory: DirectoryNo,
        job: impl FnOnce(&mut Worker) -> Result<(), String>,
    ) {
        background(&self.world, directory, job);
    }

    /// A turn of each directory's maintenance thread.
    pub(super) fn turn_everywhere(&self, stopping: bool) {
        let directories = self.world.borrow().disks.numbers();
        for directory in directories {
            if self.world.borrow().is_up() {
                self.background_in(directory, |worker| worker.turn(stopping));
            }
        }
    }

    /// Merges segment files, if some are due, with everything else in the middle of it.
    pub(super) fn merge(&self) {
        let (registry, directory) = {
            let mut world = self.world.borrow_mut();
            let no = world.any_directory();
            (world.in_background, world.in_merge) = (true, Some(no));
            let store = world.store();
            let directory = Arc::clone(&store.home(no).directory);
            (Arc::clone(&store.registry), directory)
        };
        let newest = directory.files().iter().map(|file| file.meta.file).max();
        let done = registry.merge_once(&directory, &|_| ());
        let mut world = self.world.borrow_mut();
        (world.in_background, world.in_merge) = (false, None);
        match done {
            Ok(true) => {
                world.seen.note(Branch::Merged);
                if world.is_up() {
                    world.follow();
                    let shared = check::shared_files(&world);
                    let mut shared = shared.iter().filter(|(no, _)| *no == directory.no);
                    if shared.any(|(_, file)| Some(*file) > newest) {
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
