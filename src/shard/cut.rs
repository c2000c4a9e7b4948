//! Where to cut a shard: from what an operator says to numbers of slots. Pure.

use thiserror::Error;

use super::layout::ShardSpan;
use super::range::HashRange;

/// Why a shard can't be cut like that.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CutError {
    /// Too few slots.
    #[error(
        "the shard has {slots} slot(s), too few for {parts} parts: a partition is never cut, add \
         partitions to the topic instead"
    )]
    TooSmall {
        /// Slots of the shard.
        slots: u32,
        /// Parts asked for.
        parts: u32,
    },
    /// Less than two parts.
    #[error("a split makes at least two parts")]
    OnePart,
    /// The place is not inside.
    #[error("slot {slot} is no cut of this shard: take one from {first} to {last}")]
    SlotOutside {
        /// The slot asked for.
        slot: u32,
        /// The first that can begin the right side.
        first: u32,
        /// The last that can.
        last: u32,
    },
    /// The hash is another shard's.
    #[error("hash {hash:032x} is outside the shard's range {range}")]
    HashOutside {
        /// The hash asked for.
        hash: u128,
        /// The shard's range.
        range: String,
    },
    /// Not a hash.
    #[error("{0:?} is no hash: write up to 32 hexadecimal digits")]
    NotAHash(String),
}

/// Slots of `parts` parts that differ by one at most; the larger ones come last.
pub fn evenly(slots: u32, parts: u32) -> Result<Vec<u32>, CutError> {
    check(slots, parts)?;
    let cut = |i: u32| (u64::from(i) * u64::from(slots) / u64::from(parts)) as u32;
    Ok((0..parts).map(|i| cut(i + 1) - cut(i)).collect())
}

/// Slots of the two parts of which the right one begins at `slot`, counted over the whole topic.
pub fn at_slot(shard: &ShardSpan, slot: u32) -> Result<Vec<u32>, CutError> {
    check(shard.slots, 2)?;
    let (first, last) = (shard.first_slot + 1, shard.end_slot() - 1);
    if slot < first || slot > last {
        return Err(CutError::SlotOutside { slot, first, last });
    }
    Ok(vec![slot - shard.first_slot, shard.end_slot() - slot])
}

/// Slots of the two parts that meet at the boundary between slots which is nearest to `hash`, in a
/// topic of so many partitions.
pub fn at_hash(partitions: u32, shard: &ShardSpan, hash: u128) -> Result<Vec<u32>, CutError> {
    check(shard.slots, 2)?;
    let range = HashRange::of_slots(shard.first_slot, shard.slots, partitions);
    if !range.contains(hash) {
        let range = range.to_string();
        return Err(CutError::HashOutside { hash, range });
    }
    let begin = |slot: &u32| HashRange::of_slots(*slot, 1, partitions).begin;
    let nearest =
        (shard.first_slot + 1..shard.end_slot()).min_by_key(|slot| begin(slot).abs_diff(hash));
    at_slot(shard, nearest.unwrap_or(shard.first_slot))
}

/// Slots of `parts` parts whose loads are as near to one another as whole slots allow: the i-th cut
/// is where the load on its left is nearest to i parts of the whole. `loads` are those of the
/// shard's partitions in slot order. Of cuts that are equally good the one nearest to the even cut
/// is taken; without any load that is the even cut.
pub fn by_load(loads: &[u64], parts: u32) -> Result<Vec<u32>, CutError> {
    let slots = u32::try_from(loads.len()).unwrap_or(u32::MAX);
    check(slots, parts)?;
    let mut left = vec![0u128];
    for load in loads {
        left.push(left.last().unwrap_or(&0) + u128::from(*load));
    }
    let total = left.last().copied().unwrap_or(0);
    let mut cuts = Vec::new();
    let mut before = 0;
    for i in 1..parts {
        let even = (u64::from(i) * u64::from(slots) / u64::from(parts)) as u32;
        // Each part, also those still to come, gets a slot.
        let allowed = before + 1..=slots - (parts - i);
        let distance = |cut: &u32| {
            let load = left.get(*cut as usize).copied().unwrap_or(total);
            (load * u128::from(parts)).abs_diff(total * u128::from(i))
        };
        let cut = allowed.min_by_key(|cut| (distance(cut), cut.abs_diff(even)));
        let cut = cut.unwrap_or(before + 1);
        cuts.push(cut - before);
        before = cut;
    }
    cuts.push(slots - before);
    Ok(cuts)
}

/// A place in the hash space as operators write it: up to 32 hexadecimal digits, with or without
/// `0x`. Short ones are numbers, not prefixes, as everywhere else.
pub fn parse_hash(text: &str) -> Result<u128, CutError> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let plain = digits.bytes().all(|b| b.is_ascii_hexdigit());
    plain
        .then(|| u128::from_str_radix(digits, 16).ok())
        .flatten()
        .ok_or_else(|| CutError::NotAHash(text.to_owned()))
}

fn check(slots: u32, parts: u32) -> Result<(), CutError> {
    if parts < 2 {
        return Err(CutError::OnePart);
    }
    if parts > slots {
        return Err(CutError::TooSmall { slots, parts });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::shard::Layout;
    use crate::types::ShardId;

    proptest! {
        #[test]
        fn even_parts_cover_and_differ_by_one(slots in 2u32..500, parts in 2u32..20) {
            let Ok(cut) = evenly(slots, parts) else {
                prop_assert!(parts > slots);
                return Ok(());
            };
            prop_assert_eq!(cut.len() as u32, parts);
            prop_assert_eq!(cut.iter().sum::<u32>(), slots);
            let (least, most) = (cut.iter().min().unwrap(), cut.iter().max().unwrap());
            prop_assert!(*least > 0 && most - least <= 1);
        }

        /// No other cut brings the two sides' loads nearer.
        #[test]
        fn a_cut_by_load_is_the_best_one(loads in prop::collection::vec(0u64..1000, 2..60)) {
            let cut = by_load(&loads, 2).unwrap();
            let gap = |cut: usize| {
                let (left, right) = loads.split_at(cut);
                left.iter().sum::<u64>().abs_diff(right.iter().sum())
            };
            let best = (1..loads.len()).map(gap).min().unwrap();
            prop_assert_eq!(gap(cut[0] as usize), best);
            prop_assert_eq!(cut.iter().sum::<u32>() as usize, loads.len());
        }

        #[test]
        fn parts_by_load_are_never_empty(
            loads in prop::collection::vec(prop_oneof![Just(0), any::<u64>()], 2..40),
            parts in 2u32..12,
        ) {
            if let Ok(cut) = by_load(&loads, parts) {
                prop_assert_eq!(cut.len() as u32, parts);
                prop_assert!(cut.iter().all(|slots| *slots > 0));
                prop_assert_eq!(cut.iter().sum::<u32>() as usize, loads.len());
            } else {
                prop_assert!(parts as usize > loads.len());
            }
        }

        #[test]
        fn no_load_is_cut_evenly(slots in 2usize..60, parts in 2u32..12) {
            let slots = slots.max(parts as usize);
            prop_assert_eq!(by_load(&vec![0; slots], parts), evenly(slots as u32, parts));
        }

        /// Every boundary between slots can be named by its hash, and by each hash near it.
        #[test]
        fn a_boundary_is_found_by_its_hash(count in 4u32..200, at in any::<u32>(), off in 0u128..99) {
            let layout = Layout::create(count, &[ShardId(1), ShardId(2)], 0).unwrap();
            let shard = &layout.shards()[1];
            let slot = shard.first_slot + 1 + at % (shard.slots - 1);
            let hash = layout.range_of_partition(layout.slots()[slot as usize]).unwrap().begin;
            prop_assert_eq!(at_hash(count, shard, hash + off), at_slot(shard, slot));
            prop_assert_eq!(at_hash(count, shard, hash - off), at_slot(shard, slot));
            prop_assert_eq!(parse_hash(&format!("{hash:032x}")), Ok(hash));
        }
    }

    #[test]
    fn refusals() {
        let layout = Layout::create(6, &[ShardId(1), ShardId(2)], 0).unwrap();
        let shard = &layout.shards()[1];
        assert_eq!(at_slot(shard, 4), Ok(vec![1, 2]));
        assert!(at_slot(shard, 3).is_err() && at_slot(shard, 6).is_err());
        assert!(matches!(
            at_hash(6, shard, 5),
            Err(CutError::HashOutside { .. })
        ));
        assert_eq!(evenly(3, 4), Err(CutError::TooSmall { slots: 3, parts: 4 }));
        assert_eq!(evenly(3, 1), Err(CutError::OnePart));
        for text in ["", "0x", "+5", "xyz", "111111111111111111111111111111111"] {
            assert!(parse_hash(text).is_err(), "{text}");
        }
        assert_eq!(parse_hash("0xFf"), Ok(255));
    }
}
