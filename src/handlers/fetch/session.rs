//! Fetch sessions (KIP-227): what a client told once, so that it sends and gets only changes.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use uuid::Uuid;

use crate::budget::Unit;
use crate::metrics::{Full, Limit, Metrics};
use crate::protocol::error::ErrorCode;

/// Epoch of a request that wants no session, or ends one.
pub const FINAL_EPOCH: i32 = -1;
/// Epoch of a request that wants a new session.
pub const INITIAL_EPOCH: i32 = 0;
/// A session idle for this long may make room for another.
const EVICTION_AGE: Duration = Duration::from_secs(120);

/// A partition as a Fetch names it. What differs most comes first, so that keys compare quickly.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FetchKey {
    /// The partition.
    pub partition: i32,
    /// The topic's id; zero in versions that use names.
    pub topic_id: Uuid,
    /// The topic's name, one for all its partitions; empty in versions that use ids.
    pub topic: Arc<str>,
}

/// What is asked of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchSpec {
    /// First offset wanted.
    pub offset: i64,
    /// Most bytes wanted.
    pub max_bytes: i32,
    /// The leader epoch that the client knows, or -1.
    pub current_leader_epoch: i32,
    /// Epoch of the last record that the client has, or -1.
    pub last_fetched_epoch: i32,
}

/// What the client was told last about one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// High watermark.
    pub high_watermark: i64,
    /// Last stable offset.
    pub last_stable: i64,
    /// Log start.
    pub log_start: i64,
}

/// Nothing was told yet, so the first answer always counts as news.
const UNTOLD: Told = Told { high_watermark: -2, last_stable: -2, log_start: -2 };

#[derive(Clone, Copy, Debug)]
struct Slot {
    spec: FetchSpec,
    told: Told,
}

/// One client's session.
#[derive(Debug, Default)]
pub struct Session {
    /// The epoch that the next request must carry.
    next_epoch: i32,
    uses_topic_ids: bool,
    slots: BTreeMap<FetchKey, Slot>,
    /// Fetch order: a partition that gave data goes to the end, so that all get their turn.
    order: VecDeque<FetchKey>,
}

impl Session {
    fn set(&mut self, key: FetchKey, spec: FetchSpec) {
        match self.slots.get_mut(&key) {
            Some(slot) => slot.spec = spec,
            None => {
                self.slots.insert(key.clone(), Slot { spec, told: UNTOLD });
                self.order.push_back(key);
            }
        }
    }

    fn forget(&mut self, keys: &[FetchKey]) {
        let gone: HashSet<_> = keys.iter().filter(|key| self.slots.remove(key).is_some()).collect();
        if !gone.is_empty() {
            self.order.retain(|key| !gone.contains(key));
        }
    }

    /// Partitions in fetch order.
    pub fn partitions(&self) -> Vec<(FetchKey, FetchSpec)> {
        self.order
            .iter()
            .filter_map(|key| self.slots.get(key).map(|slot| (key.clone(), slot.spec)))
            .collect()
    }

    /// Whether an incremental answer must name a partition; remembers what it says.
    pub fn is_news(&mut self, key: &FetchKey, told: Told, has_records: bool, failed: bool) -> bool {
        let Some(slot) = self.slots.get_mut(key) else { return true };
        let changed = slot.told != told;
        // An error is repeated until it is over, also when the numbers are the same.
        slot.told = if failed { UNTOLD } else { told };
        changed || has_records || failed
    }

    /// Puts partitions that gave data behind the others.
    pub fn rotate(&mut self, served: &[FetchKey]) {
        if served.is_empty() {
            return;
        }
        let served: std::collections::BTreeSet<_> = served.iter().collect();
        let (mut rest, back): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.order).into_iter().partition(|key| !served.contains(key));
        rest.extend(back);
        self.order = rest;
    }
}

/// A session in the cache.
pub struct CachedSession {
    /// Its id, above 0.
    pub id: i32,
    /// Held for the length of one request.
    pub session: tokio::sync::Mutex<Session>,
}

struct Entry {
    session: Arc<CachedSession>,
    last_used: Duration,
    /// How many it remembered when its last request was taken in.
    partitions: usize,
}

/// All sessions, a bounded number.
pub struct Sessions {
    slots: usize,
    /// Partitions that all sessions together may remember.
    partitions: usize,
    evicted: AtomicU64,
    refused: AtomicU64,
    by_id: Mutex<HashMap<i32, Entry>>,
}

/// How a request is to be answered.
pub enum Context {
    /// Without a session: everything that was asked for.
    Full(Vec<(FetchKey, FetchSpec)>),
    /// The first request of a session: everything, and the session's id.
    New(Arc<CachedSession>),
    /// Only what changed.
    Incremental(Arc<CachedSession>),
}

/// The part of a request that is about sessions.
pub struct SessionRequest {
    /// The session's id, 0 for none.
    pub id: i32,
    /// Its epoch.
    pub epoch: i32,
    /// Partitions named: all of them, or the changed ones.
    pub partitions: Vec<(FetchKey, FetchSpec)>,
    /// Partitions to take out.
    pub forgotten: Vec<FetchKey>,
    /// The request's version uses topic ids.
    pub uses_topic_ids: bool,
    /// A new id drawn by the caller, tried if a session is made.
    pub fresh_id: i32,
    /// Monotonic time.
    pub now: Duration,
}

impl Sessions {
    /// A cache of at most `slots` sessions that remember at most so many partitions together.
    pub fn new(slots: usize, partitions: usize) -> Self {
        Self {
            slots,
            partitions,
            evicted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            by_id: Mutex::default(),
        }
    }

    /// Shows the cache's limits on `/metrics`.
    pub fn watch(self: &Arc<Self>, metrics: &Metrics) {
        let slots = self.slots as u64;
        let (used, evicted) = (Arc::clone(self), Arc::clone(self));
        metrics.watch_limit(Limit {
            name: "fetch_sessions",
            unit: Unit::Items,
            limit: Box::new(move || slots),
            used: Box::new(move || used.len() as u64),
            full: Full::Evicted,
            count: Box::new(move || evicted.evicted.load(Ordering::Relaxed)),
        });
        let partitions = self.partitions as u64;
        let (used, refused) = (Arc::clone(self), Arc::clone(self));
        metrics.watch_limit(Limit {
            name: "fetch_session_partitions",
            unit: Unit::Items,
            limit: Box::new(move || partitions),
            used: Box::new(move || remembered(&used.by_id.lock()) as u64),
            full: Full::Refused,
            count: Box::new(move || refused.refused.load(Ordering::Relaxed)),
        });
    }

    /// Sessions there are.
    pub fn len(&self) -> usize {
        self.by_id.lock().len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_id.lock().is_empty()
    }

    /// Finds or makes the session of a request and brings it up to date.
    pub async fn enter(&self, request: SessionRequest) -> Result<Context, ErrorCode> {
        match request.epoch {
            FINAL_EPOCH | INITIAL_EPOCH => {
                if request.id != 0 {
                    self.by_id.lock().remove(&request.id);
                }
                if request.epoch == INITIAL_EPOCH
                    && let Some(session) = self.create(&request)
                {
                    return Ok(Context::New(session));
                }
                Ok(Context::Full(last_of_each(request.partitions)))
            }
            _ => self.resume(request).await,
        }
    }

    fn create(&self, request: &SessionRequest) -> Option<Arc<CachedSession>> {
        if self.slots == 0 {
            return None;
        }
        let mut by_id = self.by_id.lock();
        if by_id.len() >= self.slots {
            let oldest = by_id.iter().min_by_key(|(_, e)| e.last_used);
            let (id, idle) = oldest.map(|(id, e)| (*id, request.now.saturating_sub(e.last_used)))?;
            if idle < EVICTION_AGE {
                return None;
            }
            by_id.remove(&id);
            self.evicted.fetch_add(1, Ordering::Relaxed);
        }
        if remembered(&by_id) + request.partitions.len() > self.partitions {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let mut id = request.fresh_id.max(1);
        while by_id.contains_key(&id) {
            id = id.checked_add(1).unwrap_or(1);
        }
        let mut session = Session {
            next_epoch: 1,
            uses_topic_ids: request.uses_topic_ids,
            ..Session::default()
        };
        for (key, spec) in &request.partitions {
            session.set(key.clone(), *spec);
        }
        let partitions = session.slots.len();
        let session = Arc::new(CachedSession { id, session: tokio::sync::Mutex::new(session) });
        let entry = Entry { session: Arc::clone(&session), last_used: request.now, partitions };
        by_id.insert(id, entry);
        Some(session)
    }

    async fn resume(&self, request: SessionRequest) -> Result<Context, ErrorCode> {
        let cached = {
            let mut by_id = self.by_id.lock();
            let entry = by_id.get_mut(&request.id).ok_or(ErrorCode::FetchSessionIdNotFound)?;
            entry.last_used = request.now;
            entry.partitions += request.partitions.len();
            let session = Arc::clone(&entry.session);
            if !request.partitions.is_empty() && remembered(&by_id) > self.partitions {
                self.refused.fetch_add(1, Ordering::Relaxed);
                // The client begins anew, and goes without a session while there is no room.
                by_id.remove(&request.id);
                return Err(ErrorCode::FetchSessionIdNotFound);
            }
            session
        };
        {
            let mut session = cached.session.lock().await;
            if request.epoch != session.next_epoch {
                return Err(ErrorCode::InvalidFetchSessionEpoch);
            }
            if request.uses_topic_ids != session.uses_topic_ids {
                return Err(ErrorCode::FetchSessionTopicIdError);
            }
            session.next_epoch = session.next_epoch.checked_add(1).unwrap_or(1);
            for (key, spec) in request.partitions {
                session.set(key, spec);
            }
            session.forget(&request.forgotten);
            if !session.slots.is_empty() {
                let partitions = session.slots.len();
                drop(session);
                if let Some(entry) = self.by_id.lock().get_mut(&cached.id) {
                    entry.partitions = partitions;
                }
                return Ok(Context::Incremental(cached));
            }
        }
        // A session of nothing ends, and the answer names none.
        self.by_id.lock().remove(&cached.id);
        Ok(Context::Full(Vec::new()))
    }
}

fn remembered(by_id: &HashMap<i32, Entry>) -> usize {
    by_id.values().map(|entry| entry.partitions).sum()
}

/// Each partition once, at its first place, with what was asked of it last.
fn last_of_each(asked: Vec<(FetchKey, FetchSpec)>) -> Vec<(FetchKey, FetchSpec)> {
    let last: HashMap<_, _> = asked.iter().map(|(key, spec)| (key.clone(), *spec)).collect();
    if last.len() == asked.len() {
        return asked;
    }
    let mut seen = HashSet::new();
    let keys = asked.into_iter().map(|(key, _)| key).filter(|key| seen.insert(key.clone()));
    keys.filter_map(|key| last.get(&key).map(|spec| (key, *spec)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 1_000;

    fn key(partition: i32) -> FetchKey {
        FetchKey { topic: "t".into(), topic_id: Uuid::nil(), partition }
    }

    fn spec(offset: i64) -> FetchSpec {
        FetchSpec { offset, max_bytes: 1, current_leader_epoch: -1, last_fetched_epoch: -1 }
    }

    fn request(id: i32, epoch: i32, partitions: &[(i32, i64)]) -> SessionRequest {
        SessionRequest {
            id,
            epoch,
            partitions: partitions.iter().map(|(p, o)| (key(*p), spec(*o))).collect(),
            forgotten: Vec::new(),
            uses_topic_ids: false,
            fresh_id: 7,
            now: Duration::ZERO,
        }
    }

    async fn new_session(sessions: &Sessions) -> Arc<CachedSession> {
        match sessions.enter(request(0, 0, &[(0, 0), (1, 0)])).await {
            Ok(Context::New(session)) => session,
            _ => panic!("no session was made"),
        }
    }

    #[tokio::test]
    async fn a_session_takes_changes_and_refuses_wrong_epochs() {
        let sessions = Sessions::new(2, MOST);
        let session = new_session(&sessions).await;
        let mut change = request(session.id, 1, &[(1, 5), (2, 0)]);
        change.forgotten.push(key(0));
        assert!(matches!(sessions.enter(change).await, Ok(Context::Incremental(_))));
        let now = session.session.lock().await.partitions();
        assert_eq!(now, vec![(key(1), spec(5)), (key(2), spec(0))]);

        let again = sessions.enter(request(session.id, 1, &[])).await;
        assert!(matches!(again, Err(ErrorCode::InvalidFetchSessionEpoch)));
        let unknown = sessions.enter(request(99, 1, &[])).await;
        assert!(matches!(unknown, Err(ErrorCode::FetchSessionIdNotFound)));
        let mut ids = request(session.id, 2, &[]);
        ids.uses_topic_ids = true;
        let mixed = sessions.enter(ids).await;
        assert!(matches!(mixed, Err(ErrorCode::FetchSessionTopicIdError)));
    }

    #[tokio::test]
    async fn only_news_is_told_and_served_partitions_go_last() {
        let sessions = Sessions::new(2, MOST);
        let session = new_session(&sessions).await;
        let mut session = session.session.lock().await;
        let told = Told { high_watermark: 3, last_stable: 3, log_start: 0 };
        assert!(session.is_news(&key(0), told, false, false), "the first answer names all");
        assert!(!session.is_news(&key(0), told, false, false));
        assert!(session.is_news(&key(0), told, true, false), "records are news");
        assert!(session.is_news(&key(0), told, false, true), "errors are news");
        assert!(session.is_news(&key(0), told, false, false), "so is the end of an error");
        session.rotate(&[key(0)]);
        let order: Vec<_> = session.partitions().into_iter().map(|(k, _)| k.partition).collect();
        assert_eq!(order, vec![1, 0]);
    }

    #[tokio::test]
    async fn a_session_ends_when_all_is_forgotten() {
        let sessions = Sessions::new(2, MOST);
        let session = new_session(&sessions).await;
        let mut forget = request(session.id, 1, &[]);
        forget.forgotten = vec![key(0), key(1)];
        let answer = sessions.enter(forget).await;
        assert!(matches!(answer, Ok(Context::Full(all)) if all.is_empty()));
        let gone = sessions.enter(request(session.id, 2, &[])).await;
        assert!(matches!(gone, Err(ErrorCode::FetchSessionIdNotFound)));
    }

    #[tokio::test]
    async fn a_partition_named_twice_is_read_once() {
        let sessions = Sessions::new(2, MOST);
        let asked = request(0, FINAL_EPOCH, &[(0, 1), (1, 2), (0, 3)]);
        match sessions.enter(asked).await {
            Ok(Context::Full(all)) => assert_eq!(all, vec![(key(0), spec(3)), (key(1), spec(2))]),
            _ => panic!("a session was made"),
        }
    }

    #[tokio::test]
    async fn partitions_of_all_sessions_are_bounded() {
        let sessions = Sessions::new(3, MOST);
        let most = i32::try_from(MOST).unwrap();
        let all: Vec<_> = (0..most).map(|p| (p, 0)).collect();
        let more = sessions.enter(request(0, 0, &[(0, 0)])).await;
        let Ok(Context::New(first)) = more else { panic!("no session was made") };
        let full = sessions.enter(request(0, 0, &all)).await;
        assert!(matches!(full, Ok(Context::Full(_))), "there is room for all but one");
        let grown = sessions.enter(request(first.id, 1, &all)).await;
        assert!(matches!(grown, Err(ErrorCode::FetchSessionIdNotFound)));
        assert_eq!(sessions.refused.load(Ordering::Relaxed), 2);
        assert!(matches!(sessions.enter(request(0, 0, &all)).await, Ok(Context::New(_))));
    }

    #[tokio::test]
    async fn a_full_cache_evicts_only_idle_sessions() {
        let sessions = Sessions::new(1, MOST);
        let first = new_session(&sessions).await;
        let full = sessions.enter(request(0, 0, &[(0, 0)])).await;
        assert!(matches!(full, Ok(Context::Full(_))), "the cache is full");
        let mut later = request(0, 0, &[(0, 0)]);
        later.now = EVICTION_AGE;
        assert!(matches!(sessions.enter(later).await, Ok(Context::New(_))));
        let gone = sessions.enter(request(first.id, 1, &[])).await;
        // Ids are drawn at random outside tests; here the new session got the same one.
        assert!(gone.is_ok() || matches!(gone, Err(ErrorCode::FetchSessionIdNotFound)));
    }
}
