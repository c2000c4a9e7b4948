//! The end of a process, and the start of the next one on what is left, with faults in its way.

use std::sync::Arc;

use super::check;
use super::jobs::meanwhile;
use super::ops;
use super::power::{Disks, End};
use super::seen::Branch;
use super::store::Store;
use super::world::World;
use crate::partition::Registry;
use crate::store::backend::memory::MemoryDisk;
use crate::store::journal::SyncPolicy;
use crate::types::DirectoryNo;

/// A start is tried this often with a fault in its way, then without.
const FAULTY_STARTS: u32 = 3;

impl World {
    /// The process ends, and another one starts on what is left.
    pub(super) fn restart(&mut self) {
        if self.disks.is_on() {
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
        let synced = self.store().synced();
        let always = self.options.sync == SyncPolicy::Always;
        self.answers.clear();
        self.net.hang_up();
        self.store = None;
        let left = self.disks.take_left().expect("the end left disks");
        let stays_full = !self.calm && self.full.is_some() && self.random.one_in(2);
        if !stays_full {
            left.iter().for_each(|disk| disk.set_capacity(None));
            self.full = None;
        }
        let store = self.start(left, &mut power_lost);
        let least = if always || !power_lost {
            self.shown.clone()
        } else {
            synced.least(&self.shown)
        };
        let last = store.last();
        assert!(
            last.reaches(&least),
            "the journals end at {last:?}, and somebody was shown {least:?}"
        );
        self.note_start(&store);
        self.store = Some(store);
        if self.model.reshapes_behind(last.of(DirectoryNo(0))) {
            self.seen.note(Branch::ReshapeLost);
            self.last_reshape = None;
        }
        let lost = self.model.restart(&last);
        if lost.entries > 0 {
            self.seen.note(Branch::UnackedLost);
        }
        if lost.before_a_kept_one {
            self.seen.note(Branch::OneJournalAhead);
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
        self.resume_moves();
    }

    /// What the broker does before it serves: moves that the end cut off are carried out.
    fn resume_moves(&mut self) {
        let registry = Arc::clone(&self.store().registry);
        let epochs = |registry: &Registry| {
            let image = registry.catalog.sequenced();
            let topics = image.topics();
            topics.map(|topic| topic.layout.epoch()).sum::<u32>()
        };
        let before = epochs(&registry);
        registry.resume_moves();
        if !self.is_up() {
            return self.restart();
        }
        self.follow();
        if epochs(&registry) > before {
            self.seen.note(Branch::MoveResumed);
        }
    }

    fn last_end(&mut self) -> End {
        let end = self.disks.ended_by().unwrap_or(End::Kill);
        if self.last_end == Some(End::Kill) && end == End::PowerLoss {
            self.seen.note(Branch::KillThenPowerLoss);
        }
        self.last_end = Some(end);
        end
    }

    /// Starts on the disks, now and then with a fault in the way of it.
    fn start(&mut self, mut left: Vec<MemoryDisk>, power_lost: &mut bool) -> Store {
        let mut tries = 0;
        loop {
            for (no, disk) in (0..).map(DirectoryNo).zip(&left) {
                let files = check::segment_files(disk).into_iter();
                let mut files = files.map(|file| (no, file));
                if files.any(|file| !self.named_files.contains(&file)) {
                    self.seen.note(Branch::SegmentWithoutEntry);
                }
            }
            let seed = self.random.next();
            self.disks = Disks::new(left, &self.clock, seed, meanwhile);
            if !self.calm && tries < FAULTY_STARTS {
                self.hinder();
            }
            let flipped = match self.calm || tries > 0 {
                true => None,
                false => self.flip_checkpoint(),
            };
            tries += 1;
            let opened = Store::open(&self.disks, &self.clock, &self.options, meanwhile);
            // Loading the groups reads records, and a device error there ends the process.
            let opened = opened.and_then(|store| match store.failure() {
                Some(reason) => Err(reason),
                None => Ok(store),
            });
            match opened {
                Ok(store) if self.disks.is_on() => {
                    self.disks.iter().for_each(|disk| disk.faults.clear());
                    self.went_back |= flipped.is_some_and(|flip| flip.newest_root);
                    return store;
                }
                Err(_) if self.disks.is_on() && self.disks.fault_hits() > 0 => {
                    // The device failed a start; the next one finds it well again.
                    self.seen.note(Branch::FailedStart);
                    left = self.disks.killed();
                }
                Err(_) if self.disks.is_on() && self.full.is_some() => {
                    // A journal without any file needs room for one.
                    left = self.disks.killed();
                    left.iter().for_each(|disk| disk.set_capacity(None));
                    self.full = None;
                    continue;
                }
                Err(reason) if self.disks.is_on() => panic!("the store does not open: {reason}"),
                _ => {
                    self.seen.note(Branch::EndedInRecovery);
                    *power_lost |= self.last_end() == End::PowerLoss;
                    left = self.disks.take_left().expect("the end left disks");
                }
            }
            if let Some(flip) = flipped {
                // Flipped once more, it is sound again.
                flip.at(&left);
            }
        }
    }

    /// Puts a fault in the way of a start: an end of the process, or a failing device.
    fn hinder(&mut self) {
        if self.random.one_in(3) {
            let end = match self.random.one_in(2) {
                true => End::Kill,
                false => End::PowerLoss,
            };
            self.disks.end_after(self.random.below(30), end);
        } else if self.random.one_in(6) {
            let directory = self.any_directory();
            ops::disk_fault::add(&mut self.random, self.disks.of(directory));
        }
    }

    /// Damages a file of a checkpoint, now and then: one at a time, as two may be too many.
    fn flip_checkpoint(&mut self) -> Option<Flip> {
        if !self.random.one_in(self.damaged_starts) {
            return None;
        }
        let directory = self.any_directory();
        let disk = self.disks.of(directory).memory.clone();
        if !check::checkpoint_is_sound(&disk) {
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
            directory,
            newest_root: Some(&name) == newest.as_ref(),
            place: self.random.below(len),
            mask: 1 << self.random.below(8),
            name,
        };
        disk.flip(&flip.name, flip.place, flip.mask).then_some(flip)
    }

    fn note_start(&mut self, store: &Store) {
        if store.tail_was_cut() {
            self.seen.note(Branch::TornTail);
        }
        if store.files_were_reused() {
            self.seen.note(Branch::RecycledFiles);
        }
    }
}

/// A flipped bit in a file of a checkpoint.
struct Flip {
    directory: DirectoryNo,
    name: String,
    place: u64,
    mask: u8,
    newest_root: bool,
}

impl Flip {
    fn at(&self, disks: &[MemoryDisk]) {
        let disk = &disks[usize::from(self.directory.0)];
        disk.flip(&self.name, self.place, self.mask);
    }
}
