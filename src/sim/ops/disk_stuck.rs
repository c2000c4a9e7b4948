//! A sync does not come back for a long while.
//!
//! What it covers is not durable meanwhile, so nothing of it is told; everything else goes on, and
//! so does all of it once the device is well again.

use std::sync::Arc;

use crate::sim::seen::Branch;
use crate::sim::world::World;
use crate::store::journal::{Journal, SyncPolicy};
use crate::types::{DirectoryNo, Position};

/// What is known of a stuck device.
pub(in crate::sim) struct Stuck {
    directory: DirectoryNo,
    /// Entries up to here were synced when the journal's sync got stuck, if it did.
    synced: Option<Position>,
    /// Clients appended something behind that.
    appended: bool,
}

pub(super) fn run(world: &mut World) {
    if world.stuck.is_none() {
        let looks = 10 + world.random.below(120);
        let directory = world.any_directory();
        stick(world, directory, looks);
    }
}

/// Lets a directory's device finish no sync before it was looked at so many times.
pub(in crate::sim) fn stick(world: &mut World, directory: DirectoryNo, looks: u64) {
    world.disks.of(directory).stick(looks);
    world.stuck = Some(Stuck {
        directory,
        synced: None,
        appended: false,
    });
}

/// A step passed.
pub(in crate::sim) fn tick(world: &mut World) {
    let Some(mut stuck) = world.stuck.take() else {
        return;
    };
    let journal = Arc::clone(&world.store().home(stuck.directory).journal);
    let still = world.disks.of(stuck.directory).stays_stuck();
    if still && !world.is_up() {
        if stuck.synced.is_some() {
            world.seen.note(Branch::EndedWhileStuck);
        }
        return;
    }
    if !world.is_up() {
        return;
    }
    match stuck.synced {
        None if journal.awaits_sync() => stuck.synced = Some(journal.synced()),
        Some(synced) if still => {
            stuck.appended |= journal.appended() > synced;
            assert_eq!(
                journal.synced(),
                synced,
                "a sync that did not come back counts"
            );
            let always = world.options.sync == SyncPolicy::Always;
            assert!(
                !always || journal.durable() <= synced,
                "nothing behind it is durable"
            );
        }
        Some(synced) if journal.durable() > synced => {
            if stuck.appended {
                world.seen.note(Branch::WentOnAfterStuckSync);
            }
            return;
        }
        None if !still => return,
        _ => {}
    }
    world.stuck = Some(stuck);
}
