//! The writer waits for space on a disk that is full to the last byte, and says so.

use std::time::{Duration, Instant};

use super::stall::{News, Told};

/// A wait of the writer for space.
pub(super) struct Shortage {
    since: Instant,
    told: Told,
    /// Attempts made since the journal is to end.
    pub(super) attempts: u32,
}

impl Shortage {
    pub(super) fn new() -> Self {
        Self {
            since: Instant::now(),
            told: Told::new(),
            attempts: 0,
        }
    }

    /// Says that it waits, now and then.
    pub(super) fn tell(&mut self) {
        if let Some(News::Stuck(waited)) = self.told.news(self.since.elapsed()) {
            tracing::error!(
                seconds = waited.as_secs(),
                "the disk is full to the last byte and the journal has no file to go on in: nothing \
                 is acknowledged, also no deletion, until there is space; what is durable is served. \
                 Free space that something else than shardgate takes; the process goes on by itself \
                 then"
            );
        }
    }

    /// There is space.
    pub(super) fn over(&mut self) {
        if let Some(News::Over(waited)) = self.told.news(Duration::ZERO) {
            tracing::info!(seconds = waited.as_secs(), "the journal has space again");
        }
    }
}
