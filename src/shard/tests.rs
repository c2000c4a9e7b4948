//! Rules of layouts, under random histories.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::types::ShardId;

fn ids(from: u64, count: u64) -> Vec<ShardId> {
    (from..from + count).map(ShardId).collect()
}

/// One step of a history, with numbers that are brought into range where it is applied.
#[derive(Clone, Debug)]
enum Step {
    Multiply(u32),
    Add(u32),
    Reshape {
        first: usize,
        count: usize,
        cuts: Vec<u32>,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (2u32..4).prop_map(Step::Multiply),
        (1u32..9).prop_map(Step::Add),
        (
            any::<usize>(),
            1usize..4,
            prop::collection::vec(any::<u32>(), 0..3)
        )
            .prop_map(|(first, count, cuts)| Step::Reshape { first, count, cuts }),
    ];
    prop::collection::vec(step, 0..10)
}

/// The next offset of a partition, as it would be at some epoch: it rises now and then.
fn next_offset(partition: u32, epoch: u32) -> i64 {
    i64::from((epoch + partition % 3) / 2) * i64::from(partition % 4) * 10
}

/// Takes a step, or `None` where it does not fit. `next` is the first shard id never used.
fn take(layout: &Layout, step: &Step, next: &mut u64) -> Option<Layout> {
    match step {
        Step::Multiply(k) if layout.partitions() < 300 => {
            Some(layout.grow(layout.partitions() * k, 7).unwrap())
        }
        Step::Add(n) => Some(layout.grow(layout.partitions() + n, 7).unwrap()),
        Step::Multiply(_) => None,
        Step::Reshape { first, count, cuts } => {
            let first = first % layout.shards().len();
            let old = layout.shards().iter().skip(first).take(*count);
            let sealed: Vec<ShardId> = old.clone().map(|s| s.id).collect();
            let slots: u32 = old.map(|s| s.slots).sum();
            let mut ends: BTreeSet<u32> =
                cuts.iter().map(|c| c % slots).filter(|c| *c > 0).collect();
            ends.insert(slots);
            let mut before = 0;
            let mut opened = Vec::new();
            for end in ends {
                opened.push((ShardId(*next), end - before));
                *next += 1;
                before = end;
            }
            let starts: Vec<i64> = layout
                .shards()
                .iter()
                .filter(|s| sealed.contains(&s.id))
                .flat_map(|s| layout.partitions_of(s))
                .map(|p| next_offset(*p, layout.epoch()))
                .collect();
            Some(layout.reshape(&sealed, &opened, &starts, 7).unwrap())
        }
    }
}

fn holds_the_rules(layout: &Layout) {
    // Slots are a permutation, the open shards tile them, ids are unique: checked on load.
    assert_eq!(&Layout::from_parts(layout.parts().clone()).unwrap(), layout);
    let mut seen = BTreeSet::new();
    assert!(
        layout
            .shards()
            .iter()
            .chain(layout.sealed())
            .all(|s| seen.insert(s.id))
    );
    // The hash ranges of open shards tile the space, and so do those of the partitions in order.
    let mut next = Some(0u128);
    for shard in layout.shards() {
        let range = layout.range_of(shard);
        assert_eq!(Some(range.begin), next);
        next = range.last.checked_add(1);
    }
    assert_eq!(next, None);
    let mut next = Some(0u128);
    for &partition in layout.slots() {
        let range = layout.range_of_partition(partition).unwrap();
        assert_eq!(Some(range.begin), next);
        next = range.last.checked_add(1);
        let shard = layout.shard(layout.shard_of(partition).unwrap()).unwrap();
        assert!(layout.range_of(shard).contains(range.begin));
        assert!(layout.range_of(shard).contains(range.last));
        assert!(layout.partitions_of(shard).contains(&partition));
    }
    assert_eq!(next, None);
    assert_eq!(layout.shard_of(layout.partitions()), None);
    // Links start behind the one before and end in the open shard, asked for one or for all.
    for (partition, links) in (0..).zip(layout.all_links()) {
        assert_eq!(links, layout.links(partition));
        assert_eq!(links.last().map(|l| l.shard), layout.shard_of(partition));
        assert!(links.windows(2).all(|w| w[0].start < w[1].start));
    }
}

fn slots_of<'a>(shards: impl Iterator<Item = &'a Arc<ShardSpan>>) -> Vec<u32> {
    let mut slots: Vec<u32> = shards.flat_map(|s| s.first_slot..s.end_slot()).collect();
    slots.sort_unstable();
    slots
}

/// What a reshape must keep: the slots of the sealed are those of the opened, and both know it.
fn conserved(before: &Layout, after: &Layout) {
    let old: BTreeSet<ShardId> = before.shards().iter().map(|s| s.id).collect();
    let now: BTreeSet<ShardId> = after.shards().iter().map(|s| s.id).collect();
    let sealed: Vec<&Arc<ShardSpan>> = after
        .sealed()
        .iter()
        .filter(|s| old.contains(&s.id))
        .collect();
    let opened: Vec<&Arc<ShardSpan>> = after
        .shards()
        .iter()
        .filter(|s| !old.contains(&s.id))
        .collect();
    assert_eq!(
        slots_of(sealed.iter().copied()),
        slots_of(opened.iter().copied())
    );
    for parent in &sealed {
        assert!(!now.contains(&parent.id) && parent.state == ShardState::Sealed);
        for id in &parent.children {
            let child = opened.iter().find(|s| s.id == *id).unwrap();
            assert!(child.parents.contains(&parent.id));
            assert_eq!(parent.sealed, Some(child.created));
        }
    }
    assert!(opened.iter().all(|child| !child.parents.is_empty()));
}

/// Runs a history and shows each step to `look`: before, after, the step.
fn history(
    born: u32,
    shards: u64,
    steps: &[Step],
    mut look: impl FnMut(&Layout, &Layout, &Step),
) -> Layout {
    let shards = shards.min(u64::from(born));
    let mut layout = Layout::create(born, &ids(1, shards), 5).unwrap();
    let mut next = 1 + shards;
    holds_the_rules(&layout);
    for step in steps {
        let Some(after) = take(&layout, step, &mut next) else {
            continue;
        };
        look(&layout, &after, step);
        layout = after;
    }
    layout
}

proptest! {
    /// I1: at each epoch the open shards are not empty, sorted, and cover all slots exactly.
    #[test]
    fn i1_open_shards_tile_the_slots(born in 1u32..40, shards in 1u64..6, steps in steps()) {
        history(born, shards, &steps, |before, after, _| {
            holds_the_rules(after);
            assert_eq!(after.epoch(), before.epoch() + 1);
        });
    }

    /// I2: a reshape keeps the slots of the sealed shards, links parents and children by the same
    /// epoch, and uses no id again; growth moves no partition to another shard.
    #[test]
    fn i2_slots_and_lineage_are_conserved(born in 1u32..40, shards in 1u64..6, steps in steps()) {
        let mut used = BTreeSet::new();
        history(born, shards, &steps, |before, after, step| {
            used.extend(before.shards().iter().map(|s| s.id));
            if let Step::Reshape { .. } = step {
                conserved(before, after);
                assert_eq!(after.slots(), before.slots());
                let fresh = after.shards().iter().filter(|s| s.created == after.epoch());
                assert!(fresh.into_iter().all(|s| used.insert(s.id)), "an id is used again");
                return;
            }
            for partition in 0..before.partitions() {
                assert_eq!(after.shard_of(partition), before.shard_of(partition));
                assert_eq!(after.links(partition), before.links(partition));
            }
            for child in before.partitions()..after.partitions() {
                let parent = child % before.partitions();
                assert_eq!(after.shard_of(child), before.shard_of(parent));
            }
        });
    }

    /// I3: every offset of every partition is in exactly one link, that of the shard which had the
    /// partition when the offset was given out.
    #[test]
    fn i3_every_offset_is_in_one_link(born in 1u32..40, shards in 1u64..6, steps in steps()) {
        let mut owners: BTreeMap<(u32, i64), ShardId> = BTreeMap::new();
        let mut ends: BTreeMap<u32, i64> = BTreeMap::new();
        let last = history(born, shards, &steps, |before, after, step| {
            // Records that came in at the epoch before, up to where the reshape cut.
            if let Step::Reshape { .. } = step {
                for partition in 0..before.partitions() {
                    if before.shard_of(partition) == after.shard_of(partition) {
                        continue;
                    }
                    let end = next_offset(partition, before.epoch());
                    let from = ends.insert(partition, end).unwrap_or(0);
                    let shard = before.shard_of(partition).unwrap();
                    owners.extend((from..end).map(|offset| ((partition, offset), shard)));
                }
            }
        });
        for ((partition, offset), shard) in owners {
            let links = last.links(partition);
            prop_assert_eq!(links[0].start, 0);
            let after = links.partition_point(|link| link.start <= offset);
            prop_assert_eq!(links[after - 1].shard, shard, "{}/{}", partition, offset);
        }
    }

    /// I11: children of a partition are exactly `p + iN`, and their ranges lie in its range.
    #[test]
    fn i11_aligned_growth_cuts_each_slot_where_it_stands(
        born in 1u32..20,
        factors in prop::collection::vec(2u32..5, 1..4),
    ) {
        let mut layout = Layout::create(born, &ids(1, u64::from(born.min(3))), 5).unwrap();
        for factor in factors {
            let count = layout.partitions();
            let after = layout.grow(count * factor, 6).unwrap();
            for (old, new) in layout.shards().iter().zip(after.shards()) {
                prop_assert_eq!(layout.range_of(old), after.range_of(new));
            }
            for parent in 0..count {
                let slot = after.slot_of(parent).unwrap();
                let whole = layout.range_of_partition(parent).unwrap();
                for i in 0..factor {
                    let child = parent + i * count;
                    prop_assert_eq!(after.slot_of(child), Some(slot + i));
                    let part = after.range_of_partition(child).unwrap();
                    prop_assert!(whole.contains(part.begin) && whole.contains(part.last));
                    if i > 0 {
                        prop_assert_eq!(after.parent_of(child), Parent::Exact(parent));
                    }
                }
            }
            layout = after;
        }
        prop_assert!(layout.lineage_exact());
        prop_assert!((0..born).all(|p| layout.parent_of(p) == Parent::None));
    }

    /// I11: whatever hash a client uses, keys of a new partition were in its parent before.
    #[test]
    fn i11_keys_come_from_the_parent(hash in any::<u64>(), count in 1u32..50, factor in 2u32..9) {
        let layout = Layout::create(count, &ids(1, 1), 0).unwrap();
        let layout = layout.grow(count * factor, 0).unwrap();
        let before = (hash % u64::from(count)) as u32;
        let now = (hash % u64::from(count * factor)) as u32;
        let parent = if now < count { Parent::None } else { Parent::Exact(before) };
        prop_assert_eq!(layout.parent_of(now), parent);
        prop_assert!(now >= count || now == before);
    }

    /// Stored bytes are not trusted: no parts make a layout that breaks a lookup.
    #[test]
    fn damaged_parts_are_refused_or_whole(
        slots in prop::collection::vec(0u32..6, 0..6),
        spans in prop::collection::vec((0u32..6, 0u32..6), 0..4),
    ) {
        let mut parts = Layout::create(1, &ids(1, 1), 0).unwrap().parts().clone();
        let template = parts.open[0].clone();
        parts.counts = [slots.len() as u32].into();
        parts.slots = slots.into();
        parts.open = (1..)
            .zip(spans)
            .map(|(id, (first_slot, slots))| {
                Arc::new(ShardSpan {
                    id: ShardId(id),
                    first_slot,
                    slots,
                    ..template.as_ref().clone()
                })
            })
            .collect();
        if let Ok(layout) = Layout::from_parts(parts) {
            holds_the_rules(&layout);
        }
    }
}

#[test]
fn growth_to_other_counts_breaks_the_lineage_of_the_new_partitions_only() {
    let layout = Layout::create(4, &ids(1, 2), 5)
        .unwrap()
        .grow(6, 6)
        .unwrap();
    assert_eq!(layout.slots(), [0, 4, 1, 5, 2, 3]);
    assert_eq!(
        layout.shards().iter().map(|s| s.slots).collect::<Vec<_>>(),
        [4, 2]
    );
    assert_eq!(layout.parent_of(3), Parent::None);
    assert_eq!(layout.parent_of(5), Parent::Broken);
    assert!(!layout.lineage_exact());
    let layout = layout.grow(12, 7).unwrap();
    assert_eq!(layout.parent_of(5), Parent::Broken);
    assert_eq!(layout.parent_of(11), Parent::Exact(5));
}

#[test]
fn digits_stand_reversed_after_two_doublings() {
    let layout = Layout::create(2, &ids(1, 1), 0).unwrap();
    let layout = layout.grow(4, 0).unwrap().grow(8, 0).unwrap();
    assert_eq!(layout.slots(), [0, 4, 2, 6, 1, 5, 3, 7]);
    assert_eq!(layout.range_of_partition(1).unwrap().begin, 1 << 127);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5, ..ProptestConfig::default() })]

    /// What a layout forgets is what it had, and what it keeps with that is all there was.
    #[test]
    fn what_is_forgotten_is_told(born in 1u32..9, steps in prop::collection::vec(steps(), 300)) {
        let steps: Vec<Step> = steps.into_iter().flatten().collect();
        let mut told = Vec::new();
        let mut all = BTreeSet::new();
        let last = history(born, 1, &steps, |before, after, _| {
            told.extend(before.forgotten(after));
            all.extend(after.sealed().iter().map(|s| s.id));
        });
        let epochs = told.iter().map(|f| f.record.epoch);
        prop_assert!(epochs.chain(last.history().iter().map(|r| r.epoch)).eq(1..=last.epoch()));
        let sealed = told.iter().flat_map(|f| &f.sealed).chain(last.sealed());
        let ids: Vec<ShardId> = sealed.map(|s| s.id).collect();
        prop_assert_eq!(ids.len(), all.len());
        prop_assert!(ids.into_iter().all(|id| all.contains(&id)));
    }
}

fn reshape_all(layout: &Layout, next: &mut u64) -> Layout {
    let sealed: Vec<ShardId> = layout.shards().iter().map(|s| s.id).collect();
    let starts: Vec<i64> = layout
        .slots()
        .iter()
        .map(|_| i64::from(layout.epoch()))
        .collect();
    *next += 1;
    layout
        .reshape(
            &sealed,
            &[(ShardId(*next), layout.partitions())],
            &starts,
            0,
        )
        .unwrap()
}

#[test]
fn old_epochs_are_forgotten_but_growths_are_not() {
    let mut layout = Layout::create(1, &ids(1, 1), 0).unwrap();
    let mut next = 1;
    for _ in 0..600 {
        if layout.partitions() < 64 {
            layout = layout.grow(layout.partitions() * 2, 0).unwrap();
        }
        layout = reshape_all(&layout, &mut next);
        layout = reshape_all(&layout, &mut next);
    }
    assert_eq!((layout.history().len(), layout.epoch()), (MAX_EPOCHS, 1207));
    assert_eq!(layout.sealed().len(), MAX_EPOCHS);
    assert_eq!(layout.parent_of(33), Parent::Exact(1));
    assert!(layout.lineage_exact());
    let links = layout.links(0);
    assert_eq!(links[0].start, 206, "what lies before is forgotten");
    holds_the_rules(&layout);
}

#[test]
fn thousands_of_growths_are_forgotten_and_leave_broken_lineage() {
    let mut layout = Layout::create(1, &ids(1, 1), 0).unwrap();
    for _ in 0..1200 {
        layout = layout.grow(layout.partitions() + 1, 0).unwrap();
    }
    assert_eq!(layout.parts().counts.len(), 1001);
    assert_eq!(layout.parent_of(0), Parent::Broken);
    assert!(!layout.lineage_exact());
    holds_the_rules(&layout);
}

#[test]
fn memory_is_bounded_with_large_shards_too() {
    let mut layout = Layout::create(10_000, &ids(1, 1), 0).unwrap();
    let mut next = 1;
    for _ in 0..40 {
        layout = reshape_all(&layout, &mut next);
        let held: usize = layout.sealed().iter().map(|s| s.starts.len()).sum();
        assert!(held <= MAX_STARTS);
    }
    assert_eq!(layout.epoch(), 41);
    assert_eq!(layout.history().len(), MAX_STARTS / 10_000);
    holds_the_rules(&layout);
}

#[test]
fn refusals() {
    assert!(Layout::create(0, &ids(1, 1), 0).is_err());
    assert!(Layout::create(1, &ids(1, 2), 0).is_err());
    assert!(Layout::create(1, &[], 0).is_err());
    let layout = Layout::create(4, &ids(1, 4), 0).unwrap();
    assert_eq!(
        layout.grow(4, 0),
        Err(LayoutError::NotAGrowth { have: 4, to: 4 })
    );
    let reshape = |sealed: &[u64], opened: &[(u64, u32)]| {
        let sealed: Vec<_> = sealed.iter().map(|id| ShardId(*id)).collect();
        let opened: Vec<_> = opened.iter().map(|(id, n)| (ShardId(*id), *n)).collect();
        layout.reshape(&sealed, &opened, &vec![0; sealed.len()], 0)
    };
    assert!(reshape(&[2, 3], &[(9, 2)]).is_ok());
    for (sealed, opened) in [
        (&[][..], &[(9, 1)][..]),
        (&[2, 4], &[(9, 2)]),
        (&[3, 2], &[(9, 2)]),
        (&[4, 5], &[(9, 2)]),
        (&[2], &[(9, 2)]),
        (&[2], &[]),
        (&[2, 3], &[(9, 2), (10, 0)]),
        (&[2, 3], &[(9, 1), (9, 1)]),
        (&[2], &[(3, 1)]),
    ] {
        assert!(reshape(sealed, opened).is_err(), "{sealed:?} -> {opened:?}");
    }
}

#[test]
fn ranges_are_shown_as_128_bit_hex() {
    let layout = Layout::create(3, &ids(1, 1), 0).unwrap();
    let shown: Vec<String> = (0..3)
        .map(|p| layout.range_of_partition(p).unwrap().to_string())
        .collect();
    let third = "55555555555555555555555555555555";
    let two_thirds = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    assert_eq!(shown[0], format!("[{},{third})", "0".repeat(32)));
    assert_eq!(shown[1], format!("[{third},{two_thirds})"));
    assert_eq!(shown[2], format!("[{two_thirds},{})", "f".repeat(32)));
    assert_eq!(HashRange::of_slots(0, 1, 1), HashRange::ALL);
}
