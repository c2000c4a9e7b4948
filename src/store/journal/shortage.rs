//! The writer waits for space on a disk that is full to the last byte, and says so.

use std::time::{Duration, Instant};

/// It is told after so long, and again each time that has doubled.
const TELL_AFTER: Duration = Duration::from_secs(5);

/// A wait of the writer for space.
pub(super) struct Shortage {
    since: Instant,
    next: Duration,
    told: bool,
    /// Attempts made since the journal is to end.
    pub(super) attempts: u32,
}

impl Shortage {
    pub(super) fn new() -> Self {
        Self {
            since: Instant::now(),
            next: TELL_AFTER,
            told: false,
            attempts: 0,
        }
    }

    /// Says that it waits, now and then.
    pub(super) fn tell(&mut self) {
        let waited = self.since.elapsed();
        if waited < self.next {
            return;
        }
        self.next = waited * 2;
        self.told = true;
        tracing::error!(
            seconds = waited.as_secs(),
            "the disk is full to the last byte and the journal has no file to go on in: nothing is \
             acknowledged, also no deletion, until there is space; what is durable is served. Free \
             space that something else than shardgate takes; the process goes on by itself then"
        );
    }

    /// There is space.
    pub(super) fn over(&self) {
        if self.told {
            let waited = self.since.elapsed().as_secs();
            tracing::info!(seconds = waited, "the journal has space again");
        }
    }
}
