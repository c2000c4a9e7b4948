//! A bit flips at rest; a copy of the store is opened and must refuse, or serve nothing wrong.

use crate::sim::check;
use crate::sim::seen::Branch;
use crate::sim::world::World;
use crate::store::journal::SyncPolicy;

pub(super) fn run(world: &mut World) {
    let directory = world.any_directory();
    let copies = world.disks.killed();
    copies.iter().for_each(|copy| copy.set_capacity(None));
    let copy = &copies[usize::from(directory.0)];
    let names = copy.names();
    let was_sound = check::checkpoint_is_sound(copy);
    let Some(name) = world.random.pick(&names).cloned() else {
        return;
    };
    let len = copy.contents(&name).map_or(0, |bytes| bytes.len()) as u64;
    let at = match world.random.one_in(3) {
        // Headers and first entries, which most flips would miss.
        true => world.random.below(len.min(512)),
        false => world.random.below(len),
    };
    let mask = 1 << world.random.below(8);
    if !copy.flip(&name, at, mask) {
        return;
    }
    let roots = names.iter().filter(|n| n.starts_with("checkpoint/root-"));
    let newest_root = roots.max() == Some(&name);
    match check::open_copy(copies, &world.clock, &world.options) {
        Ok(store) => {
            let marked = world.store().home(directory).journal.is_marked();
            let always = world.options.sync == SyncPolicy::Always;
            let all_there = store.last().reaches(&world.shown);
            assert!(
                !always || !marked || all_there,
                "a flipped bit in {name} at {at} takes acknowledged entries away"
            );
            if !all_there {
                return;
            }
            let damaged = name.starts_with("segments");
            if check::check_copy(world, &store, damaged) > 0 {
                world.seen.note(Branch::SegmentDamageReported);
            }
            if newest_root {
                world.seen.note(Branch::OlderRoot);
            }
        }
        Err(reason) => {
            assert!(
                !name.starts_with("segments"),
                "damage in {name} keeps the store from opening: {reason}"
            );
            assert!(
                !name.starts_with("checkpoint") || !was_sound,
                "one damaged file, {name}, keeps the store from opening: {reason}"
            );
            if name.starts_with("journal") {
                world.seen.note(Branch::JournalDamageRefused);
            }
        }
    }
}
