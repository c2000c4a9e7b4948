//! Tells when the disk does not answer: a write or sync of the journal that takes seconds.
//!
//! Nothing can be done about it but to wait: what is under way may still reach the device. So
//! nothing is acknowledged, room runs out, sockets are not read any more, and somebody has to know.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Clock;

/// An operation that takes longer than this is told.
const STUCK_AFTER: Duration = Duration::from_secs(5);
/// Told again each time that it has taken so many times as long.
const TOLD_AGAIN: u32 = 2;

/// Since when the writer waits for the disk, for others to look at.
#[derive(Default)]
pub(super) struct Waiting {
    /// Nanoseconds of monotonic time, plus one; 0 while it does not wait.
    since: AtomicU64,
}

impl Waiting {
    pub(super) fn begin(&self, now: Duration) {
        let since = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX - 1) + 1;
        self.since.store(since, Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        self.since.store(0, Ordering::Relaxed);
    }

    /// How long the operation under way has taken.
    pub(super) fn age(&self, now: Duration) -> Duration {
        match self.since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => now.saturating_sub(Duration::from_nanos(since - 1)),
        }
    }
}

/// Something to say of a wait.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// It goes on, for so long by now.
    Stuck(Duration),
    /// It is over at last, after about so long.
    Over(Duration),
}

/// Decides what to say of waits: of long ones only, seldom, and of their end once.
pub(super) struct Told {
    next: Duration,
    longest: Duration,
}

impl Told {
    pub(super) fn new() -> Self {
        Self {
            next: STUCK_AFTER,
            longest: Duration::ZERO,
        }
    }

    /// `age` is how long the wait under way has taken; zero without one.
    pub(super) fn news(&mut self, age: Duration) -> Option<News> {
        if age >= self.next {
            self.next = age * TOLD_AGAIN;
            self.longest = age;
            return Some(News::Stuck(age));
        }
        // A later operation is younger than the one that was told of.
        if self.longest > Duration::ZERO && age < self.longest {
            self.next = STUCK_AFTER;
            return Some(News::Over(std::mem::take(&mut self.longest)));
        }
        if self.longest > Duration::ZERO {
            self.longest = age;
        }
        None
    }
}

/// Looks at a writer now and then, from a thread that does not wait for the disk.
pub(super) struct StallWatch {
    waiting: Arc<Waiting>,
    clock: Arc<dyn Clock>,
    told: Told,
}

impl StallWatch {
    pub(super) fn new(waiting: Arc<Waiting>, clock: Arc<dyn Clock>) -> Self {
        Self {
            waiting,
            clock,
            told: Told::new(),
        }
    }

    pub(super) fn look(&mut self) {
        match self.told.news(self.waiting.age(self.clock.monotonic())) {
            Some(News::Stuck(age)) => tracing::error!(
                seconds = age.as_secs(),
                "the disk does not answer: a write of the journal is under way for that long. \
                 Nothing is acknowledged meanwhile, producers and commits wait, and what is \
                 durable is served. Check the device; the process goes on by itself when the disk \
                 does"
            ),
            Some(News::Over(age)) => {
                tracing::info!(seconds = age.as_secs(), "the disk answers again");
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stuck_operation_is_told_seldom_and_its_end_once() {
        let mut told = Told::new();
        let mut news = |seconds: u64| told.news(Duration::from_secs(seconds));
        let stuck = |seconds| Some(News::Stuck(Duration::from_secs(seconds)));
        assert_eq!([news(0), news(4), news(0)], [None, None, None]);
        assert_eq!([news(5), news(6), news(9)], [stuck(5), None, None]);
        assert_eq!([news(10), news(19), news(20)], [stuck(10), None, stuck(20)]);
        assert_eq!(news(23), None);
        assert_eq!(news(0), Some(News::Over(Duration::from_secs(23))));
        assert_eq!([news(0), news(4)], [None, None]);
        assert_eq!(news(7), stuck(7));
    }

    #[test]
    fn the_age_is_that_of_the_operation_under_way() {
        let waiting = Waiting::default();
        let at = Duration::from_secs;
        assert_eq!(waiting.age(at(9)), at(0));
        waiting.begin(at(0));
        assert_eq!(waiting.age(at(9)), at(9));
        waiting.end();
        assert_eq!(waiting.age(at(10)), at(0));
    }
}
