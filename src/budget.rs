//! Named budgets. What passes through takes a share of a [`Budget`]: first come, first served; an
//! item larger than the whole budget goes alone. What is kept is counted by an [`Account`], whose
//! owner evicts or refuses when it is full.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What a budget counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Things.
    Items,
}

/// One budget. Clones share it.
#[derive(Clone, Debug)]
pub struct Budget {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: &'static str,
    unit: Unit,
    limit: u32,
    free: Arc<Semaphore>,
    waiting: AtomicUsize,
}

/// A share of a budget, given back when dropped.
#[derive(Debug)]
pub struct Permit {
    bytes: u32,
    share: Option<OwnedSemaphorePermit>,
}

impl Permit {
    /// A share of nothing.
    pub fn empty() -> Self {
        Self {
            bytes: 0,
            share: None,
        }
    }

    /// Gives back all but `bytes`.
    pub fn shrink_to(&mut self, bytes: u64) {
        let keep = u32::try_from(bytes).unwrap_or(u32::MAX);
        let spare = self.bytes.saturating_sub(keep);
        if let Some(share) = &mut self.share {
            drop(share.split(spare as usize));
            self.bytes -= spare;
        }
    }

    /// Bytes taken from the budget; less than asked for when that was more than all of it.
    pub fn bytes(&self) -> u32 {
        self.bytes
    }
}

impl Budget {
    /// A budget of `limit` bytes, at least 1 and at most 4 GiB. The name appears in `/metrics`.
    pub fn new(name: &'static str, limit: u64) -> Self {
        Self::of(name, Unit::Bytes, limit)
    }

    /// A budget of `limit` things, at least 1.
    pub fn of_items(name: &'static str, limit: u64) -> Self {
        Self::of(name, Unit::Items, limit)
    }

    fn of(name: &'static str, unit: Unit, limit: u64) -> Self {
        let most = u64::from(u32::MAX).min(Semaphore::MAX_PERMITS as u64);
        let limit = u32::try_from(limit.clamp(1, most)).unwrap_or(u32::MAX);
        let free = Arc::new(Semaphore::new(limit as usize));
        Self {
            inner: Arc::new(Inner {
                name,
                unit,
                limit,
                free,
                waiting: AtomicUsize::new(0),
            }),
        }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.inner.name
    }

    /// What it counts.
    pub fn unit(&self) -> Unit {
        self.inner.unit
    }

    /// All of it.
    pub fn limit(&self) -> u64 {
        u64::from(self.inner.limit)
    }

    /// How much is handed out now.
    pub fn used(&self) -> u64 {
        self.limit()
            .saturating_sub(self.inner.free.available_permits() as u64)
    }

    /// How many wait for a share now.
    pub fn waiting(&self) -> usize {
        self.inner.waiting.load(Ordering::Relaxed)
    }

    /// Waits for a share. Whoever asked first is served first.
    pub async fn acquire(&self, bytes: u64) -> Permit {
        let bytes = self.share(bytes);
        if let Some(permit) = self.try_share(bytes) {
            return permit;
        }
        let _waiting = Waiting::new(&self.inner.waiting);
        let share = Arc::clone(&self.inner.free)
            .acquire_many_owned(bytes)
            .await
            .ok();
        Permit { bytes, share }
    }

    /// A share if there is one without waiting.
    pub fn try_acquire(&self, bytes: u64) -> Option<Permit> {
        self.try_share(self.share(bytes))
    }

    fn share(&self, bytes: u64) -> u32 {
        u32::try_from(bytes)
            .unwrap_or(u32::MAX)
            .min(self.inner.limit)
    }

    fn try_share(&self, bytes: u32) -> Option<Permit> {
        let share = Arc::clone(&self.inner.free)
            .try_acquire_many_owned(bytes)
            .ok()?;
        Some(Permit {
            bytes,
            share: Some(share),
        })
    }
}

/// What something kept takes in memory, against a limit. Nobody waits: its owner keeps below the
/// limit, and counts what it evicted or refused to do so. Clones share it.
#[derive(Clone, Debug)]
pub struct Account {
    inner: Arc<Kept>,
}

#[derive(Debug)]
struct Kept {
    limit: u64,
    used: AtomicU64,
    denied: AtomicU64,
}

impl Account {
    /// An account of at most `limit`.
    pub fn new(limit: u64) -> Self {
        Self {
            inner: Arc::new(Kept {
                limit,
                used: AtomicU64::new(0),
                denied: AtomicU64::new(0),
            }),
        }
    }

    /// The limit.
    pub fn limit(&self) -> u64 {
        self.inner.limit
    }

    /// What is kept now.
    pub fn used(&self) -> u64 {
        self.inner.used.load(Ordering::Relaxed)
    }

    /// Whether so much more would be too much.
    pub fn is_full_for(&self, more: u64) -> bool {
        self.used().saturating_add(more) > self.inner.limit
    }

    /// By how much the limit is exceeded.
    pub fn excess(&self) -> u64 {
        self.used().saturating_sub(self.inner.limit)
    }

    /// Takes the change of something kept from `before` to `after` in.
    pub fn change(&self, before: u64, after: u64) {
        let used = &self.inner.used;
        match after.checked_sub(before) {
            Some(more) => used.fetch_add(more, Ordering::Relaxed),
            None => used.fetch_sub(before - after, Ordering::Relaxed),
        };
    }

    /// Counts things that were evicted or refused.
    pub fn deny(&self, count: u64) {
        self.inner.denied.fetch_add(count, Ordering::Relaxed);
    }

    /// How many were.
    pub fn denied(&self) -> u64 {
        self.inner.denied.load(Ordering::Relaxed)
    }
}

/// Counts a waiter for as long as it waits, also when it gives up.
pub struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    /// One more.
    pub fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_item_larger_than_all_of_it_goes_alone() {
        let budget = Budget::new("test", 100);
        let small = budget.acquire(1).await;
        assert!(budget.try_acquire(1_000_000).is_none());
        drop(small);
        let large = budget.acquire(1_000_000).await;
        assert_eq!((large.bytes(), budget.used()), (100, 100));
        assert!(budget.try_acquire(1).is_none());
        drop(large);
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn a_share_can_be_given_back_in_part() {
        let budget = Budget::new("test", 100);
        let mut permit = budget.acquire(80).await;
        permit.shrink_to(30);
        assert_eq!((permit.bytes(), budget.used()), (30, 30));
        permit.shrink_to(90);
        assert_eq!((permit.bytes(), budget.used()), (30, 30));
        drop(permit);
        assert_eq!(budget.used(), 0);
        let mut none = Permit::empty();
        none.shrink_to(0);
        assert_eq!(none.bytes(), 0);
    }

    #[test]
    fn an_account_follows_what_is_kept() {
        let account = Account::new(100);
        account.change(0, 90);
        assert!(!account.is_full_for(10) && account.is_full_for(11));
        account.change(90, 130);
        assert_eq!((account.used(), account.excess()), (130, 30));
        account.change(130, 0);
        account.deny(2);
        assert_eq!(
            (account.used(), account.excess(), account.denied()),
            (0, 0, 2)
        );
    }

    #[tokio::test]
    async fn those_who_wait_are_served_in_order() {
        let budget = Budget::new("test", 10);
        let held = budget.acquire(10).await;
        let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
        for (id, bytes) in [(1, 10), (2, 1)] {
            let (budget, sender) = (budget.clone(), sender.clone());
            let before = budget.waiting();
            let probe = budget.clone();
            tokio::spawn(async move {
                let permit = budget.acquire(bytes).await;
                sender.send(id).ok();
                drop(permit);
            });
            while probe.waiting() == before {
                tokio::task::yield_now().await;
            }
        }
        // The second would fit, but does not overtake.
        drop(held);
        assert_eq!((order.recv().await, order.recv().await), (Some(1), Some(2)));
        assert_eq!(budget.waiting(), 0);
    }
}
