//! Ranges of the 128-bit hash space, as operators see them.

use std::fmt;

/// A non-empty part of the hash space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashRange {
    /// First hash inside.
    pub begin: u128,
    /// Last hash inside. Inclusive, because the end of the space does not fit in 128 bits.
    pub last: u128,
}

impl HashRange {
    /// The whole hash space.
    pub const ALL: Self = Self {
        begin: 0,
        last: u128::MAX,
    };

    /// The range of `slots` slots from `first` on, when the space is cut into `total` equal slots.
    /// Clamped to the space; `total` 0 counts as 1.
    pub fn of_slots(first: u32, slots: u32, total: u32) -> Self {
        let total = total.max(1);
        let end = first.saturating_add(slots).min(total);
        let first = first.min(total - 1);
        let last = if end == total {
            u128::MAX
        } else {
            boundary(end, total).saturating_sub(1)
        };
        Self {
            begin: boundary(first, total),
            last,
        }
    }

    /// Whether the hash lies inside.
    pub fn contains(&self, hash: u128) -> bool {
        self.begin <= hash && hash <= self.last
    }
}

/// floor(index · 2^128 / total), for index < total.
fn boundary(index: u32, total: u32) -> u128 {
    let (index, total) = (u128::from(index), u128::from(total));
    let mut quotient = u128::MAX / total;
    let mut remainder = u128::MAX % total + 1;
    if remainder == total {
        quotient = quotient.wrapping_add(1);
        remainder = 0;
    }
    // With total 1 the quotient wraps to 2^128, but then the index is 0.
    index
        .wrapping_mul(quotient)
        .wrapping_add(index * remainder / total)
}

impl fmt::Display for HashRange {
    /// Left-closed and right-open, as `[begin,end)`; the end of the space is shown as all `f`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.last.saturating_add(1);
        write!(f, "[{:032x},{end:032x})", self.begin)
    }
}
