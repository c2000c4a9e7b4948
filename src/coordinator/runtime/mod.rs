//! The coordinator at work: locks, the log, timers. Everything it decides comes from
//! [`super::group`]; nothing here waits while it holds a lock.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kafka_protocol::error::ResponseError;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};
use uuid::Uuid;

use super::group::Machine;
use super::group::command::{Command, Decision, Name, Now, Reply, Settings, Tick, Token};
use super::group::weight::Room;
use super::log::{AppendError, CoordinatorLog, LogRecord, Topics};
use super::partition_of;
use crate::budget::Account;
use crate::clock::Clock;
use crate::repeats::LINES;
use crate::types::Position;

mod api;
mod background;
#[cfg(test)]
mod room_tests;
mod stats;
#[cfg(test)]
mod tests;

pub use stats::Stats;

/// Records of one decision are appended in batches of about this size.
const BATCH_BYTES: usize = 512 << 10;
/// How many groups' timers are served in one go under the lock.
const TIMERS_AT_ONCE: usize = 64;
/// When to try again what could not be stored.
const RETRY_MS: Tick = 1_000;

/// An answer, and the journal position that must be durable before anybody hears of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held<T> {
    /// The answer.
    pub value: T,
    /// The position.
    pub after: Position,
}

impl<T> Held<T> {
    fn map<U>(self, f: impl FnOnce(T) -> U) -> Held<U> {
        Held {
            value: f(self.value),
            after: self.after,
        }
    }
}

/// Whether a partition's groups can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Its log is being read.
    Loading,
    /// Yes.
    Ready,
    /// Its log could not be read; it is tried again.
    Failed,
    /// The gateway is going down.
    Stopped,
}

impl Phase {
    fn refusal(self) -> Option<ResponseError> {
        match self {
            Self::Ready => None,
            Self::Loading => Some(ResponseError::CoordinatorLoadInProgress),
            Self::Failed => Some(ResponseError::CoordinatorNotAvailable),
            Self::Stopped => Some(ResponseError::NotCoordinator),
        }
    }
}

/// The groups of one partition of `__consumer_offsets`.
struct Part {
    index: i32,
    phase: Phase,
    machine: Machine,
    /// Callers whose JoinGroup or SyncGroup waits for others.
    waiting: HashMap<Token, oneshot::Sender<Held<Reply>>>,
    tokens: Token,
    /// The position of the last append, for answers about groups that are gone.
    last: Position,
    /// Bytes of log from the first record that is still needed to the end. Counted here, because
    /// the store gives space back later and in larger steps.
    size: u64,
    /// The size at which the log is compared with its state.
    look_at: u64,
    /// What the account holds for these groups.
    counted: u64,
}

/// The group coordinator.
pub struct Groups {
    settings: Settings,
    log: Arc<dyn CoordinatorLog>,
    topics: Arc<dyn Topics>,
    clock: Arc<dyn Clock>,
    /// Makes the ids of members.
    ids: fn() -> Uuid,
    parts: Vec<Mutex<Part>>,
    /// The tick at which the timer task wakes by itself.
    armed: AtomicU64,
    wake: Notify,
    tidy: Notify,
    counters: stats::Counters,
    /// What all groups take in memory.
    memory: Account,
    /// The figures that `/metrics` showed last, and when.
    shown: Mutex<(Tick, Stats)>,
    tasks: Mutex<Vec<tokio::task::JoinHandle<()>>>,
}

/// What became of a command.
enum Submitted {
    Answered(Held<Reply>),
    Parked(oneshot::Receiver<Held<Reply>>),
}

impl Groups {
    /// A coordinator over a log whose number of partitions is known. It answers once
    /// [`Groups::load`] has read them.
    pub fn new(
        settings: Settings,
        log: Arc<dyn CoordinatorLog>,
        topics: Arc<dyn Topics>,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        Self::with_ids(settings, log, topics, clock, Uuid::new_v4)
    }

    /// The same, with a source of its own for the ids of members. None may come twice.
    pub fn with_ids(
        settings: Settings,
        log: Arc<dyn CoordinatorLog>,
        topics: Arc<dyn Topics>,
        clock: Arc<dyn Clock>,
        ids: fn() -> Uuid,
    ) -> Arc<Self> {
        let part = |index| {
            Mutex::new(Part {
                index,
                phase: Phase::Loading,
                machine: Machine::new(settings.clone()),
                waiting: HashMap::new(),
                tokens: 0,
                last: Position(0),
                size: 0,
                look_at: background::LOOK_AT_LEAST,
                counted: 0,
            })
        };
        let parts = (0..log.partitions().max(1)).map(part).collect();
        Arc::new(Self {
            memory: Account::new(settings.memory_bytes),
            settings,
            log,
            topics,
            clock,
            ids,
            parts,
            armed: AtomicU64::new(Tick::MAX),
            wake: Notify::new(),
            tidy: Notify::new(),
            counters: stats::Counters::default(),
            shown: Mutex::default(),
            tasks: Mutex::new(Vec::new()),
        })
    }

    fn now(&self) -> Now {
        let tick = u64::try_from(self.clock.monotonic().as_millis()).unwrap_or(Tick::MAX);
        Now {
            wall_ms: self.clock.wall_ms(),
            tick,
        }
    }

    fn part(&self, group: &str) -> MutexGuard<'_, Part> {
        let index = partition_of(group, self.parts.len() as i32) as usize;
        self.parts[index % self.parts.len()].lock()
    }

    /// Carries a command out. The lock is held from the decision to its place in the log, so that
    /// the log tells what happened in the order in which it happened.
    fn submit(&self, group: &str, command: impl FnOnce(Token) -> Command) -> Submitted {
        let mut part = self.part(group);
        part.tokens += 1;
        let token = part.tokens;
        let command = command(token);
        if let Some(error) = part.phase.refusal() {
            let (value, after) = (command.refuse(error), Position(0));
            return Submitted::Answered(Held { value, after });
        }
        let now = self.now();
        part.machine.room = self.room();
        let decision = part.machine.decide(now, &command);
        if decision.turned_away > 0 {
            self.turned_away(&decision);
        }
        let mut own = Outbox {
            token: Some(token),
            answer: None,
        };
        if let Err(error) = self.store(&mut part, now, decision, &mut own) {
            let error = match (error, &command) {
                (ResponseError::InvalidCommitOffsetSize, Command::Commit { .. }) => error,
                (ResponseError::InvalidCommitOffsetSize, _) => ResponseError::UnknownServerError,
                (error, _) => error,
            };
            let (value, after) = (command.refuse(error), part.last);
            return Submitted::Answered(Held { value, after });
        }
        self.serve_timers(&mut part, now, &mut own);
        let submitted = match own.answer {
            Some(answer) => Submitted::Answered(answer),
            None => {
                let (sender, receiver) = oneshot::channel();
                part.waiting.insert(token, sender);
                Submitted::Parked(receiver)
            }
        };
        let deadline = part.machine.deadline();
        drop(part);
        if deadline.is_some_and(|at| at < self.armed.load(Ordering::SeqCst)) {
            self.wake.notify_one();
        }
        submitted
    }

    /// Appends a decision's records and takes it in. A large one goes piece by piece, each in the
    /// log before it counts; only with the last one come its change and its answers.
    fn store(
        &self,
        part: &mut Part,
        now: Now,
        decision: Decision,
        own: &mut Outbox,
    ) -> Result<(), ResponseError> {
        let rebalanced = decision.rebalanced;
        let group = decision.group.clone();
        for piece in pieces(decision) {
            let records: Vec<LogRecord> = piece.records.iter().map(|r| r.encode()).collect();
            let mut position = None;
            if !records.is_empty() {
                let size = batch_size(&records);
                let appended = self.log.append(part.index, records, now.wall_ms);
                let appended = appended.map_err(|e| self.append_failed(part.index, &group, &e))?;
                position = Some(appended.position);
                part.last = appended.position;
                part.size += size;
                self.counters.records(&piece.records);
            }
            let effects = part.machine.accept(piece, position);
            let after = part.machine.changed(&group).unwrap_or(part.last);
            for (token, value) in effects {
                own.deliver(part, token, Held { value, after });
            }
        }
        if rebalanced {
            self.counters.rebalances.fetch_add(1, Ordering::Relaxed);
        }
        if part.size >= part.look_at {
            self.tidy.notify_one();
        }
        self.count(part);
        Ok(())
    }

    /// By how much groups may grow: a quarter more than the budget where it is by what is there.
    fn room(&self) -> Room {
        let (limit, used) = (self.memory.limit(), self.memory.used());
        Room {
            new: limit.saturating_sub(used),
            more: limit.saturating_add(limit / 4).saturating_sub(used),
        }
    }

    /// Brings the account up to what a partition's groups take now.
    fn count(&self, part: &mut Part) {
        let now = part.machine.bytes();
        self.memory.change(part.counted, now);
        part.counted = now;
    }

    fn turned_away(&self, decision: &Decision) {
        self.memory.deny(decision.turned_away);
        if LINES.allow("consumer groups were refused more memory", None) {
            tracing::warn!(
                group = &*decision.group,
                used = self.memory.used(),
                limit = self.memory.limit(),
                "consumer groups take as much memory as budget.groups.bytes allows: new members \
                 (GROUP_MAX_SIZE_REACHED) and first commits of a partition (POLICY_VIOLATION) \
                 are refused, groups at work go on; delete groups that nobody needs, commit \
                 shorter texts, or raise the budget"
            );
        }
    }

    fn append_failed(&self, partition: i32, group: &Name, error: &AppendError) -> ResponseError {
        self.counters.append_errors.fetch_add(1, Ordering::Relaxed);
        if LINES.allow("a change of a consumer group was not stored", None) {
            tracing::warn!(
                partition,
                group = &**group,
                %error,
                "a change of a consumer group was not stored; the group stays as it was and its \
                 client is told to try again"
            );
        }
        match error {
            AppendError::NoSpace => ResponseError::NotCoordinator,
            AppendError::TooLarge => ResponseError::InvalidCommitOffsetSize,
            AppendError::Unavailable(_) => ResponseError::CoordinatorNotAvailable,
        }
    }

    /// Serves timers that have run out. What can't be stored now is tried again later.
    fn serve_timers(&self, part: &mut Part, now: Now, own: &mut Outbox) {
        for _ in 0..TIMERS_AT_ONCE {
            let Some(group) = part.machine.next_due(now.tick) else {
                break;
            };
            let decision = part.machine.decide(
                now,
                &Command::Timer {
                    group: group.clone(),
                },
            );
            if self.store(part, now, decision, own).is_err() {
                part.machine
                    .put_off(&group, now.tick.saturating_add(RETRY_MS));
            }
        }
        self.count(part);
    }
}

/// Catches the answer to the caller's own command; other callers get theirs through [`Part`].
#[derive(Default)]
struct Outbox {
    token: Option<Token>,
    answer: Option<Held<Reply>>,
}

impl Outbox {
    fn deliver(&mut self, part: &mut Part, token: Token, answer: Held<Reply>) {
        if self.token == Some(token) {
            self.answer = Some(answer);
        } else if let Some(sender) = part.waiting.remove(&token) {
            // The caller may be gone; its member's session timeout will tell.
            let _ = sender.send(answer);
        }
    }
}

/// About how many bytes a batch of these records takes in the log.
fn batch_size(records: &[LogRecord]) -> u64 {
    const BATCH: usize = 61;
    const RECORD: usize = 12;
    let one = |r: &LogRecord| RECORD + r.key.len() + r.value.as_ref().map_or(0, |v| v.len());
    (BATCH + records.iter().map(one).sum::<usize>()) as u64
}

/// A decision in pieces whose records fit into one batch each.
fn pieces(mut decision: Decision) -> Vec<Decision> {
    let mut pieces = Vec::new();
    let mut rest = std::mem::take(&mut decision.records).into_iter().peekable();
    loop {
        let mut size = 0;
        while size < BATCH_BYTES
            && let Some(record) = rest.next()
        {
            size += super::group::view::stored_size(&record);
            decision.records.push(record);
        }
        if rest.peek().is_none() {
            pieces.push(decision);
            return pieces;
        }
        let records = std::mem::take(&mut decision.records);
        pieces.push(Decision {
            group: decision.group.clone(),
            records,
            ..Decision::default()
        });
    }
}
