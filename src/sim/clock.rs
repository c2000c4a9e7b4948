//! A clock that moves when told: wall time may jump, monotonic time only goes on.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Clock;

/// Where wall time starts.
const START_MS: i64 = 1_700_000_000_000;

#[derive(Debug)]
pub(super) struct SimClock {
    wall_ms: AtomicI64,
    monotonic_ns: AtomicU64,
}

impl SimClock {
    pub(super) fn new() -> Self {
        Self {
            wall_ms: AtomicI64::new(START_MS),
            monotonic_ns: AtomicU64::new(0),
        }
    }

    /// Time passes.
    pub(super) fn advance(&self, by: Duration) {
        let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        self.monotonic_ns.fetch_add(nanos, Ordering::Relaxed);
        self.wall_ms
            .fetch_add(by.as_millis() as i64, Ordering::Relaxed);
    }

    /// Somebody sets the wall clock.
    pub(super) fn jump(&self, by_ms: i64) {
        self.wall_ms.fetch_add(by_ms, Ordering::Relaxed);
    }
}

impl Clock for SimClock {
    fn wall_ms(&self) -> i64 {
        self.wall_ms.load(Ordering::Relaxed)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.monotonic_ns.load(Ordering::Relaxed))
    }
}
