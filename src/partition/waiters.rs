//! Fetches that wait for data.
//!
//! One waiter per waiting Fetch, shared by all its partitions. A commit adds bytes and wakes it
//! once, when the fetch has what it asked for; news that ends a wait (a deleted topic, a moved log
//! start) wakes it at once.

use std::sync::atomic::{AtomicI64, Ordering};

use tokio::sync::Notify;

/// A parked Fetch.
pub struct Waiter {
    missing_bytes: AtomicI64,
    ready: Notify,
}

impl Waiter {
    /// A waiter that wants `missing_bytes` more bytes.
    pub fn new(missing_bytes: i64) -> Self {
        Self {
            missing_bytes: AtomicI64::new(missing_bytes.max(1)),
            ready: Notify::new(),
        }
    }

    /// Counts new bytes; wakes the fetch when they complete what it wants.
    pub fn add(&self, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let before = self.missing_bytes.fetch_sub(bytes, Ordering::AcqRel);
        if before > 0 && before <= bytes {
            self.ready.notify_one();
        }
    }

    /// Starts over: wants `missing_bytes` more from now on.
    pub fn expect(&self, missing_bytes: i64) {
        self.missing_bytes
            .store(missing_bytes.max(1), Ordering::Release);
    }

    /// Wakes the fetch whatever it still misses.
    pub fn wake(&self) {
        self.ready.notify_one();
    }

    /// Returns once woken.
    pub async fn woken(&self) {
        self.ready.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn wakes_when_the_bytes_are_there() {
        let waiter = Waiter::new(10);
        waiter.add(4);
        let early = tokio::time::timeout(std::time::Duration::from_millis(5), waiter.woken()).await;
        assert!(early.is_err(), "woken with 6 bytes missing");
        waiter.add(6);
        waiter.woken().await;
    }
}
