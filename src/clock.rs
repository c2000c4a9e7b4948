//! The only source of time outside the network layer.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Wall time for timestamps, monotonic time for everything that is a duration.
pub trait Clock: Send + Sync {
    /// Milliseconds since the Unix epoch. May jump.
    fn wall_ms(&self) -> i64;
    /// Time since an arbitrary start. Never goes back.
    fn monotonic(&self) -> Duration;
}

/// The machine's clocks.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock whose monotonic time starts now.
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn wall_ms(&self) -> i64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }
}
