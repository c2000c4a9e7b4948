//! Log lines that clients and operators can cause again and again: the first few of a kind are
//! written, the rest are counted, and how many that were is told once the period is over. All such
//! lines ask [`LINES`], so that no client can fill the log and none is refused in silence, or
//! [`NEWS`] if all is well.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Warnings of this process.
pub static LINES: Repeats = Repeats::new(true);
/// What it tells of things that go as they should.
pub static NEWS: Repeats = Repeats::new(false);

/// How long lines of a kind are counted before the next ones are written.
pub const PERIOD: Duration = Duration::from_secs(10);
/// Lines of a kind that are written within a period.
pub const WRITTEN: u64 = 5;
/// Kinds that are told apart at once; when there are more, addresses are not.
const MOST_KINDS: usize = 1_024;

/// What a line is about: a fixed text, and whom it concerns if that is a client.
type Kind = (&'static str, Option<IpAddr>);

#[derive(Debug)]
struct Count {
    since: Instant,
    seen: u64,
}

impl Count {
    fn left_out(&self) -> u64 {
        self.seen.saturating_sub(WRITTEN)
    }
}

/// Counts lines by kind.
#[derive(Debug)]
pub struct Repeats {
    are_warnings: bool,
    kinds: Mutex<BTreeMap<Kind, Count>>,
}

impl Repeats {
    /// Nothing seen yet.
    const fn new(are_warnings: bool) -> Self {
        Self {
            are_warnings,
            kinds: Mutex::new(BTreeMap::new()),
        }
    }

    /// Whether a line is to be written now; if not it is counted. `about` is a short fixed text
    /// that also names the kind when the count is told, `of` the client it concerns.
    pub fn allow(&self, about: &'static str, of: Option<IpAddr>) -> bool {
        let (written, over) = self.count((about, of), Instant::now());
        over.into_iter().for_each(|over| self.tell_of(over));
        written
    }

    /// Tells how many lines were left out in the periods that are over. Called once a second.
    pub fn tell(&self) {
        let over = self.take_over(Instant::now(), PERIOD);
        over.into_iter().for_each(|over| self.tell_of(over));
    }

    /// The same for all periods, before the process ends.
    pub fn tell_all(&self) {
        let over = self.take_over(Instant::now(), Duration::ZERO);
        over.into_iter().for_each(|over| self.tell_of(over));
    }

    fn count(&self, kind: Kind, now: Instant) -> (bool, Option<(Kind, u64)>) {
        let mut kinds = self.kinds.lock();
        let kind = match kinds.len() < MOST_KINDS || kinds.contains_key(&kind) {
            true => kind,
            false => (kind.0, None),
        };
        let count = kinds.entry(kind).or_insert(Count {
            since: now,
            seen: 0,
        });
        let mut over = None;
        if now.saturating_duration_since(count.since) >= PERIOD {
            over = Some((kind, count.left_out())).filter(|(_, left_out)| *left_out > 0);
            *count = Count {
                since: now,
                seen: 0,
            };
        }
        count.seen += 1;
        (count.seen <= WRITTEN, over)
    }

    fn take_over(&self, now: Instant, period: Duration) -> Vec<(Kind, u64)> {
        let mut over = Vec::new();
        self.kinds.lock().retain(|kind, count| {
            if now.saturating_duration_since(count.since) < period {
                return true;
            }
            over.push((*kind, count.left_out()));
            false
        });
        over.retain(|(_, left_out)| *left_out > 0);
        over
    }

    fn tell_of(&self, ((about, of), left_out): (Kind, u64)) {
        let within = PERIOD.as_secs();
        match of {
            Some(address) => tracing::warn!(
                %address,
                "{left_out} more lines like the last ones were left out within {within} s: {about}"
            ),
            None if self.are_warnings => tracing::warn!(
                "{left_out} more lines like the last ones were left out within {within} s: {about}"
            ),
            None => tracing::info!(
                "{left_out} more lines like the last ones were left out within {within} s: {about}"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));

    #[test]
    fn the_first_lines_are_written_and_the_rest_is_counted() {
        let (repeats, start) = (Repeats::new(true), Instant::now());
        let written = |kind, at| repeats.count(kind, at).0;
        for _ in 0..WRITTEN {
            assert!(written(("slow", ONE), start));
        }
        assert!(!written(("slow", ONE), start));
        assert!(!written(("slow", ONE), start + PERIOD / 2));
        assert!(written(("slow", None), start), "another client");
        assert!(written(("bad", ONE), start), "another reason");
        assert_eq!(repeats.take_over(start + PERIOD / 2, PERIOD), []);
        assert_eq!(
            repeats.count(("slow", ONE), start + PERIOD),
            (true, Some((("slow", ONE), 2)))
        );
    }

    #[test]
    fn counts_are_told_once_the_period_is_over() {
        let (repeats, start) = (Repeats::new(true), Instant::now());
        for _ in 0..WRITTEN + 7 {
            repeats.count(("slow", ONE), start);
        }
        repeats.count(("bad", None), start);
        assert_eq!(
            repeats.take_over(start + PERIOD, PERIOD),
            [(("slow", ONE), 7)]
        );
        assert_eq!(repeats.take_over(start + PERIOD, PERIOD), []);
        assert!(repeats.kinds.lock().is_empty());
    }

    #[test]
    fn many_addresses_take_bounded_memory_and_share_what_is_left() {
        let (repeats, start) = (Repeats::new(true), Instant::now());
        let written = (0..100_000_u32)
            .filter(|ip| {
                repeats
                    .count(("bad", Some(IpAddr::from(ip.to_be_bytes()))), start)
                    .0
            })
            .count();
        assert!(repeats.kinds.lock().len() <= MOST_KINDS + 1);
        assert_eq!(written, MOST_KINDS + WRITTEN as usize);
    }
}
