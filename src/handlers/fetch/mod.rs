//! Fetch (key 1), versions 4 to 18.
//!
//! - v5: log start · v7: sessions (KIP-227) · v9: current leader epoch · v11: rack · v12: flexible,
//!   last fetched epoch · v13: topic ids (KIP-516) · v15: replica state · v16: node endpoints
//! - The first batch of an answer comes whole even when it is larger than the limits (KIP-74).
//! - There are no follower replicas: a fetch with a replica id is refused.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::FetchRequest;
use tokio::time::Instant;
use uuid::Uuid;

use crate::budget::{Account, Permit};
use crate::handlers::list_offsets::check_epoch;
use crate::handlers::{Answer, CloseReason, Connection, SMALL_ANSWER, throttle_time};
use crate::partition::load::Traffic;
use crate::partition::read::ReadFailure;
use crate::partition::waiters::Waiter;
use crate::partition::{Bounds, Partition};
use crate::protocol::error::ErrorCode;
use crate::protocol::fetch_response::{self, FetchPartition, FetchResponseData, FetchTopic};
use crate::protocol::header::Header;
use crate::types::{Offset, Places};

pub mod session;

use session::{CachedSession, Context, FetchKey, FetchSpec, SessionRequest, Told};

/// First version that names topics by id.
const FIRST_TOPIC_ID: i16 = 13;
/// About what a partition takes in an answer beside its records.
const PARTITION_BYTES: usize = 48;
/// How long a client waits by itself when there is no place for its Fetch among those that wait.
const UNPARKED: Duration = Duration::from_millis(500);
/// Read only what transactions have committed.
const READ_COMMITTED: i8 = 1;

/// What a request asks for apart from its partitions.
#[derive(Clone, Copy)]
struct Limits {
    max_wait: Duration,
    min_bytes: usize,
    max_bytes: usize,
    read_committed: bool,
}

/// One partition of the answer.
struct Part {
    key: FetchKey,
    response: FetchPartition,
    bytes: usize,
    ends_wait: EndsWait,
}

/// Whether a partition's news has a waiting Fetch answered at once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EndsWait {
    /// There is nothing but perhaps records, which count by their bytes.
    No,
    /// The partition does not exist; it ends the wait if it did when the Fetch came.
    IfNew,
    /// It cannot be read, or the client is ahead of it.
    Always,
}

/// Handles one Fetch request.
pub async fn handle(
    cx: &Connection,
    header: &Header,
    request: FetchRequest,
) -> Result<Answer, CloseReason> {
    if !matches!(request.isolation_level, 0 | READ_COMMITTED) {
        return unknown_isolation(header, &request);
    }
    let limits = limits(cx, &request);
    let refuse_all = refusal_of_all(&request);
    let context = match cx.broker.fetch_sessions.enter(session_request(cx, header, request)).await
    {
        Ok(context) => context,
        Err(code) => return whole_error(header, code),
    };
    let wanted = match &context {
        Context::Full(partitions) => partitions.clone(),
        Context::New(cached) | Context::Incremental(cached) => {
            cached.session.lock().await.partitions()
        }
    };
    let (parts, hold, unparked) = match refuse_all {
        Some(code) => {
            let refuse = |(key, _)| failed(key, code);
            (wanted.into_iter().map(refuse).collect(), Permit::empty(), Duration::ZERO)
        }
        None => {
            // Of a session's partitions only those with news are answered.
            let told = match &context {
                Context::Full(_) | Context::New(_) => wanted.len(),
                Context::Incremental(_) => 0,
            };
            within_budget(cx, &wanted, limits, told * PARTITION_BYTES).await
        }
    };
    cx.broker.metrics.fetched_bytes.inc_by(total_bytes(&parts) as u64);
    let pause = count(cx, &parts).max(unparked);
    let (session_id, parts) = tell(&context, parts).await;
    let data = FetchResponseData {
        throttle_time_ms: throttle_time(pause),
        session_id,
        topics: by_topic(parts),
        ..Default::default()
    };
    let frame = fetch_response::encode(header.correlation_id, header.version, &data)?;
    let asked_wait = limits.max_wait;
    let answer = Answer::new(frame, Places::default());
    Ok(Answer { hold: Some(Box::new(hold)), pause, asked_wait, ..answer })
}

/// Counts what is given out; the client is to pause for so long.
fn count(cx: &Connection, parts: &[Part]) -> Duration {
    let read = parts.iter().filter(|part| part.bytes > 0);
    let pauses = read.filter_map(|part| {
        let partition = resolve(cx, &part.key).ok()?;
        Some(cx.broker.partitions.count(&partition, Traffic::read(part.bytes)))
    });
    pauses.max().unwrap_or_default()
}

/// Reads, and takes the answer's share of the budget for answers: that of its records and `beside`.
/// While readers that do not keep up hold all of it, the others get small answers, copied so that
/// they pin nothing.
async fn within_budget(
    cx: &Connection,
    wanted: &[(FetchKey, FetchSpec)],
    limits: Limits,
    beside: usize,
) -> (Vec<Part>, Permit, Duration) {
    let (parts, unparked) = read_or_wait(cx, wanted, limits).await;
    let budget = &cx.broker.budgets.responses;
    if let Some(permit) = budget.try_acquire((total_bytes(&parts) + beside) as u64) {
        return (parts, permit, unparked);
    }
    drop(parts);
    let small = Limits { max_bytes: limits.max_bytes.min(SMALL_ANSWER), ..limits };
    let mut parts = read_all(cx, wanted, small).await;
    let bytes = total_bytes(&parts) + beside;
    if bytes > SMALL_ANSWER {
        // One batch alone is larger, or it asks for very many partitions: it has to wait for its
        // share, and takes up no memory meanwhile.
        drop(parts);
        let permit = budget.acquire(bytes as u64).await;
        return (read_all(cx, wanted, small).await, permit, unparked);
    }
    for slice in parts.iter_mut().flat_map(|part| &mut part.response.records) {
        *slice = Bytes::copy_from_slice(slice);
    }
    (parts, Permit::empty(), unparked)
}

fn total_bytes(parts: &[Part]) -> usize {
    parts.iter().map(|part| part.bytes).sum()
}

/// A reason that holds for every partition: followers have nothing to fetch here, and there is no
/// negative number of bytes.
fn refusal_of_all(request: &FetchRequest) -> Option<ErrorCode> {
    if request.replica_id.0 >= 0 || request.replica_state.replica_id.0 >= 0 {
        return Some(ErrorCode::NotLeaderOrFollower);
    }
    (request.max_bytes < 0).then_some(ErrorCode::InvalidRequest)
}

/// Refuses a request whose isolation level does not exist. Where topics have names every
/// partition says so as well.
fn unknown_isolation(header: &Header, request: &FetchRequest) -> Result<Answer, CloseReason> {
    let error = ErrorCode::InvalidRequest;
    let mut data = FetchResponseData { error_code: error.code(), ..Default::default() };
    if header.version < FIRST_TOPIC_ID {
        let keys = request.topics.iter().flat_map(|topic| {
            let name = Arc::<str>::from(topic.topic.as_str());
            topic.partitions.iter().map(move |p| FetchKey {
                partition: p.partition,
                topic_id: Uuid::nil(),
                topic: Arc::clone(&name),
            })
        });
        data.topics = by_topic(keys.map(|key| unread(key, error)).collect());
    }
    let frame = fetch_response::encode(header.correlation_id, header.version, &data)?;
    Ok(Answer::new(frame, Places::default()))
}

fn limits(cx: &Connection, request: &FetchRequest) -> Limits {
    let wait = request.max_wait_ms.clamp(0, cx.broker.config.fetch_max_wait_ms.max(0));
    let max_bytes = request.max_bytes.clamp(0, cx.broker.config.fetch_max_bytes.max(0));
    // Read for one answer what the budget could hold for several: whoever asks for more than that
    // at once would take all of it, and a network thread for long.
    let share = usize::try_from(cx.broker.budgets.responses.limit() / 4).unwrap_or(usize::MAX);
    let max_bytes = usize::try_from(max_bytes).unwrap_or(0).min(share);
    Limits {
        max_wait: Duration::from_millis(u64::from(wait.unsigned_abs())),
        // More than an answer may hold cannot be waited for.
        min_bytes: usize::try_from(request.min_bytes).unwrap_or(0).min(max_bytes),
        max_bytes,
        read_committed: request.isolation_level == READ_COMMITTED,
    }
}

fn session_request(cx: &Connection, header: &Header, request: FetchRequest) -> SessionRequest {
    let uses_topic_ids = header.version >= FIRST_TOPIC_ID;
    let key = |name: &Arc<str>, topic_id: Uuid, partition| {
        let topic_id = if uses_topic_ids { topic_id } else { Uuid::nil() };
        FetchKey { partition, topic_id, topic: Arc::clone(name) }
    };
    // Shared by the topic's partitions: a short request may name many of a topic with a long name.
    let shared = |name: &str| Arc::<str>::from(if uses_topic_ids { "" } else { name });
    let mut partitions = Vec::new();
    for topic in &request.topics {
        let name = shared(&topic.topic);
        for p in &topic.partitions {
            let spec = FetchSpec {
                offset: p.fetch_offset,
                max_bytes: p.partition_max_bytes,
                current_leader_epoch: p.current_leader_epoch,
                last_fetched_epoch: p.last_fetched_epoch,
            };
            partitions.push((key(&name, topic.topic_id, p.partition), spec));
        }
    }
    let mut forgotten = Vec::new();
    for topic in &request.forgotten_topics_data {
        let name = shared(&topic.topic);
        forgotten.extend(topic.partitions.iter().map(|p| key(&name, topic.topic_id, *p)));
    }
    SessionRequest {
        id: request.session_id,
        epoch: if header.version < 7 { session::FINAL_EPOCH } else { request.session_epoch },
        partitions,
        forgotten,
        uses_topic_ids,
        fresh_id: (Uuid::new_v4().as_u128() & i32::MAX as u128) as i32,
        now: cx.broker.clock.monotonic(),
    }
}

fn whole_error(header: &Header, code: ErrorCode) -> Result<Answer, CloseReason> {
    let data = FetchResponseData { error_code: code.code(), ..Default::default() };
    let frame = fetch_response::encode(header.correlation_id, header.version, &data)?;
    Ok(Answer::new(frame, Places::default()))
}

/// Reads, and if that is less than was asked for waits for more or for the time to be over. Where
/// so many wait already that there is no place for another, the client has its answer at once and
/// is to wait by itself for the time that is returned.
async fn read_or_wait(
    cx: &Connection,
    wanted: &[(FetchKey, FetchSpec)],
    limits: Limits,
) -> (Vec<Part>, Duration) {
    let deadline = Instant::now() + limits.max_wait;
    let parts = read_all(cx, wanted, limits).await;
    // Partitions that do not exist are told of when the others have data or the time is over: a
    // client that asks for one again and again must not turn its fetches into a busy loop.
    let unknown = parts.iter().filter(|part| part.ends_wait == EndsWait::IfNew).count();
    let enough = |parts: &[Part]| {
        let gone = parts.iter().filter(|part| part.ends_wait == EndsWait::IfNew).count();
        gone > unknown
            || parts.iter().any(|part| part.ends_wait == EndsWait::Always)
            || total_bytes(parts) >= limits.min_bytes
    };
    if limits.max_wait.is_zero() || unknown == wanted.len() || enough(&parts) {
        return (parts, Duration::ZERO);
    }
    let places = &cx.broker.budgets.fetch_waiters;
    if places.is_full_for(wanted.len() as u64) {
        places.deny(1);
        return (parts, limits.max_wait.min(UNPARKED));
    }
    let missing = limits.min_bytes - total_bytes(&parts);
    let missing = i64::try_from(missing).unwrap_or(i64::MAX);
    // Records are let go of while waiting, so that a parked fetch pins no buffer.
    drop(parts);
    let waiting = Waiting::register(cx, wanted, missing);
    loop {
        // Read again after registering: what came in between was not counted.
        let parts = read_all(cx, wanted, limits).await;
        if enough(&parts) || Instant::now() >= deadline {
            return (parts, Duration::ZERO);
        }
        drop(parts);
        if tokio::time::timeout_at(deadline, waiting.waiter.woken()).await.is_err() {
            return (read_all(cx, wanted, limits).await, Duration::ZERO);
        }
        waiting.waiter.expect(1);
    }
}

/// A registered waiter; leaves all partitions when dropped, also when the client goes away.
struct Waiting {
    waiter: Arc<Waiter>,
    partitions: Vec<Arc<Partition>>,
    /// Its places among all that wait, one for each partition that was asked for.
    places: (Account, u64),
    gauge: prometheus_client::metrics::gauge::Gauge,
}

impl Waiting {
    fn register(cx: &Connection, wanted: &[(FetchKey, FetchSpec)], missing: i64) -> Self {
        let waiter = Arc::new(Waiter::new(missing));
        let partitions: Vec<_> =
            wanted.iter().filter_map(|(key, _)| resolve(cx, key).ok()).collect();
        partitions.iter().for_each(|partition| partition.wait(&waiter));
        let gauge = cx.broker.metrics.fetches_waiting.clone();
        gauge.inc();
        let places = (cx.broker.budgets.fetch_waiters.clone(), wanted.len() as u64);
        places.0.change(0, places.1);
        Self { waiter, partitions, places, gauge }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.partitions.iter().for_each(|partition| partition.leave(&self.waiter));
        self.places.0.change(self.places.1, 0);
        self.gauge.dec();
    }
}

async fn read_all(
    cx: &Connection,
    wanted: &[(FetchKey, FetchSpec)],
    limits: Limits,
) -> Vec<Part> {
    let mut parts = Vec::with_capacity(wanted.len());
    let mut left = limits.max_bytes;
    let mut first = true;
    for (key, spec) in wanted {
        let part = read_one(cx, key, spec, left, first, limits.read_committed).await;
        first &= part.bytes == 0;
        left = left.saturating_sub(part.bytes);
        parts.push(part);
    }
    parts
}

async fn read_one(
    cx: &Connection,
    key: &FetchKey,
    spec: &FetchSpec,
    left: usize,
    first: bool,
    read_committed: bool,
) -> Part {
    let partition = match resolve(cx, key) {
        Ok(partition) => partition,
        Err(code) => return unread(key.clone(), code),
    };
    let max_bytes = usize::try_from(spec.max_bytes).unwrap_or(0).min(left);
    let read = cx.broker.partitions.read(&partition, spec.offset, max_bytes, first).await;
    let bounds = match &read {
        Ok(read) => read.bounds,
        Err(ReadFailure::OutOfRange(bounds)) => *bounds,
        Err(ReadFailure::Deleted) if key.topic.is_empty() => {
            return unread(key.clone(), ErrorCode::UnknownTopicId);
        }
        Err(ReadFailure::Deleted) => {
            return unread(key.clone(), ErrorCode::UnknownTopicOrPartition);
        }
        Err(ReadFailure::Storage(_)) => return failed(key.clone(), ErrorCode::KafkaStorageError),
    };
    // Fetch takes any negative epoch for none.
    if let Err(code) = check_epoch(spec.current_leader_epoch.max(-1), bounds.leader_epoch) {
        return failed(key.clone(), code);
    }
    if spec.max_bytes < 0 {
        return failed(key.clone(), ErrorCode::InvalidRequest);
    }
    match (history(spec, &bounds), read) {
        (History::Shared, Ok(read)) => {
            let mut response = borders(key, &bounds);
            response.records = read.slices;
            response.aborted_transactions = read_committed.then(Vec::new);
            Part { key: key.clone(), response, bytes: read.bytes, ends_wait: EndsWait::No }
        }
        (History::Diverges(epoch, end), _) => {
            let mut response = borders(key, &bounds);
            response.diverging_epoch = Some((epoch, end));
            Part { key: key.clone(), response, bytes: 0, ends_wait: EndsWait::Always }
        }
        (History::Unknown, _) | (History::Shared, Err(_)) => {
            failed(key.clone(), ErrorCode::OffsetOutOfRange)
        }
    }
}

/// How what the client has read compares with this log (KIP-595).
#[derive(Debug, PartialEq, Eq)]
enum History {
    /// It is a part of it, or the client does not say.
    Shared,
    /// The log never had the client's epoch.
    Unknown,
    /// The client is ahead of the log: the epoch and where it ends here.
    Diverges(i32, Offset),
}

/// Compares the epoch of the client's last record with the log. The ends of earlier epochs are not
/// kept; there the offset alone decides.
fn history(spec: &FetchSpec, bounds: &Bounds) -> History {
    let (epoch, end) = (bounds.leader_epoch, bounds.high_watermark);
    match spec.last_fetched_epoch {
        last if last < 0 || last < epoch => History::Shared,
        last if last > epoch => History::Unknown,
        _ if spec.offset > end => History::Diverges(epoch, end),
        _ => History::Shared,
    }
}

fn resolve(cx: &Connection, key: &FetchKey) -> Result<Arc<Partition>, ErrorCode> {
    let image = cx.broker.catalog.peek();
    let topic = if key.topic.is_empty() {
        image.topic_by_id(key.topic_id).ok_or(ErrorCode::UnknownTopicId)?
    } else {
        image.topic(&key.topic).ok_or(ErrorCode::UnknownTopicOrPartition)?
    };
    topic
        .partition(key.partition)
        .and_then(|key| cx.broker.partitions.get(key))
        .ok_or(ErrorCode::UnknownTopicOrPartition)
}

fn borders(key: &FetchKey, bounds: &Bounds) -> FetchPartition {
    FetchPartition {
        partition_index: key.partition,
        high_watermark: bounds.high_watermark,
        last_stable_offset: bounds.last_stable,
        log_start_offset: bounds.log_start,
        ..FetchPartition::default()
    }
}

fn failed(key: FetchKey, code: ErrorCode) -> Part {
    let response = FetchPartition {
        partition_index: key.partition,
        error_code: code.code(),
        ..FetchPartition::default()
    };
    Part { key, response, bytes: 0, ends_wait: EndsWait::Always }
}

/// A partition that was not looked at. As in Kafka it names no aborted transactions, where one that
/// was looked at and failed has none to name.
fn unread(key: FetchKey, code: ErrorCode) -> Part {
    let mut part = failed(key, code);
    part.response.aborted_transactions = Some(Vec::new());
    part.ends_wait = EndsWait::IfNew;
    part
}

/// Brings the session up to date; an incremental answer keeps only what is news to the client.
async fn tell(context: &Context, parts: Vec<Part>) -> (i32, Vec<Part>) {
    let (cached, incremental): (&CachedSession, bool) = match context {
        Context::Full(_) => return (0, parts),
        Context::New(cached) => (cached, false),
        Context::Incremental(cached) => (cached, true),
    };
    let mut session = cached.session.lock().await;
    let mut told = Vec::with_capacity(parts.len());
    let mut served = Vec::new();
    for part in parts {
        let borders = Told {
            high_watermark: part.response.high_watermark,
            last_stable: part.response.last_stable_offset,
            log_start: part.response.log_start_offset,
        };
        let failed = part.ends_wait != EndsWait::No;
        let news = session.is_news(&part.key, borders, part.bytes > 0, failed);
        if part.bytes > 0 {
            served.push(part.key.clone());
        }
        if news || !incremental {
            told.push(part);
        }
    }
    session.rotate(&served);
    (cached.id, told)
}

/// Groups neighbours and strangers of one topic, keeping the order of first appearance.
fn by_topic(parts: Vec<Part>) -> Vec<FetchTopic> {
    let mut topics: Vec<FetchTopic> = Vec::new();
    let mut places: BTreeMap<(Arc<str>, Uuid), usize> = BTreeMap::new();
    for part in parts {
        let name = (part.key.topic, part.key.topic_id);
        let place = *places.entry(name).or_insert_with_key(|(topic, topic_id)| {
            topics.push(FetchTopic {
                topic: topic.to_string(),
                topic_id: *topic_id,
                partitions: Vec::new(),
            });
            topics.len() - 1
        });
        topics[place].partitions.push(part.response);
    }
    topics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_ahead_of_the_log_is_told_where_it_ends() {
        let bounds = Bounds { log_start: 0, high_watermark: 5, last_stable: 5, leader_epoch: 2 };
        let of = |last_fetched_epoch, offset| {
            let spec =
                FetchSpec { offset, max_bytes: 1, current_leader_epoch: -1, last_fetched_epoch };
            history(&spec, &bounds)
        };
        assert_eq!(of(-1, 9), History::Shared);
        assert_eq!(of(1, 9), History::Shared);
        assert_eq!(of(2, 5), History::Shared);
        assert_eq!(of(2, 6), History::Diverges(2, 5));
        assert_eq!(of(3, 1), History::Unknown);
    }
}
