//! Executes what the core decides: the queue on one side, the disk on the other.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::core::{Action, Core, Event};
use super::files::{Files, Pool};
use super::stall::Waiting;
use super::{Ended, Entry, Group};
use crate::clock::Clock;
use crate::types::Position;

/// Entries on their way to the writer. Its bound is that of its payloads: each entry was given
/// its bytes by a budget before it came here.
#[derive(Default)]
pub(super) struct Inbox {
    state: Mutex<InboxState>,
    wake: Condvar,
    synced: Condvar,
    /// Entries and payload bytes that are not written yet.
    pub(super) queued_entries: AtomicU64,
    pub(super) queued_bytes: AtomicU64,
}

#[derive(Default)]
struct InboxState {
    entries: VecDeque<Entry>,
    last: Position,
    trimmed: Position,
    /// The trimmed position as the writer knows it.
    trim_taken: Position,
    sync_through: Position,
    synced: Position,
    closing: bool,
    /// Nothing is written any more; entries that still come in are dropped.
    failed: bool,
    waiting: bool,
}

impl Inbox {
    pub(super) fn new(last: Position, trimmed: Position) -> Self {
        let state = InboxState {
            last,
            trimmed,
            trim_taken: trimmed,
            synced: last,
            ..InboxState::default()
        };
        Self {
            state: Mutex::new(state),
            ..Self::default()
        }
    }

    /// Queues an entry. Callers hold locks of their own, so this is a push and nothing else.
    pub(super) fn push(&self, entry: Entry) -> Position {
        let bytes = entry.payload.len() as u64;
        let mut state = self.state.lock();
        state.last.0 += 1;
        let position = state.last;
        if state.failed {
            return position;
        }
        self.queued_entries.fetch_add(1, Ordering::Relaxed);
        self.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        state.entries.push_back(entry);
        let wake = std::mem::take(&mut state.waiting);
        drop(state);
        if wake {
            self.wake.notify_one();
        }
        position
    }

    /// The position given out last.
    pub(super) fn last(&self) -> Position {
        self.state.lock().last
    }

    /// Raises the trimmed position; what it is now.
    pub(super) fn trim(&self, through: Position) -> Position {
        let mut state = self.state.lock();
        state.trimmed = state.trimmed.max(through.min(state.last));
        let trimmed = state.trimmed;
        if trimmed > state.trim_taken {
            self.wake.notify_all();
        }
        trimmed
    }

    /// Asks the writer to stop once everything is durable.
    pub(super) fn close(&self) {
        self.state.lock().closing = true;
        self.wake.notify_all();
    }

    /// Makes the writer stop at once, with nothing more acknowledged.
    pub(super) fn fail(&self) {
        let mut state = self.state.lock();
        state.failed = true;
        state.closing = true;
        state.entries.clear();
        drop(state);
        self.wake.notify_all();
        self.synced.notify_all();
    }

    /// Waits until everything queued so far is on stable storage; false if it is not after
    /// `at_most`, and an error if it never will be.
    pub(super) fn sync(&self, at_most: Option<Duration>) -> Result<bool, Ended> {
        let until = at_most.map(|time| Instant::now() + time);
        let mut state = self.state.lock();
        let through = state.last;
        state.sync_through = through;
        self.wake.notify_all();
        while state.synced < through {
            if state.failed {
                return Err(Ended);
            }
            match until {
                None => self.synced.wait(&mut state),
                Some(until) if self.synced.wait_until(&mut state, until).timed_out() => break,
                Some(_) => {}
            }
        }
        Ok(state.synced >= through)
    }

    /// Entries up to here are on stable storage.
    pub(super) fn synced(&self) -> Position {
        self.state.lock().synced
    }

    /// Asks the writer for a sync of the entries up to `through`.
    #[cfg(test)]
    pub(super) fn ask_sync(&self, through: Position) {
        self.state.lock().sync_through = through;
    }

    fn note_synced(&self, through: Position) {
        let mut state = self.state.lock();
        state.synced = through;
        if state.sync_through > Position(0) {
            self.synced.notify_all();
        }
    }

    pub(super) fn failed(&self) -> bool {
        self.state.lock().failed
    }

    fn take(&self, pending: &mut VecDeque<Entry>) -> (Position, Position, bool) {
        let mut state = self.state.lock();
        if pending.is_empty() {
            std::mem::swap(pending, &mut state.entries);
        } else {
            pending.append(&mut state.entries);
        }
        state.trim_taken = state.trimmed;
        (state.trimmed, state.sync_through, state.closing)
    }

    fn is_empty(&self) -> bool {
        self.state.lock().entries.is_empty()
    }

    fn wait(&self, timeout: Option<Duration>) {
        let mut state = self.state.lock();
        let asked = state.sync_through > state.synced || state.trimmed > state.trim_taken;
        if !state.entries.is_empty() || state.closing || asked {
            return;
        }
        state.waiting = true;
        match timeout {
            Some(timeout) => {
                self.wake.wait_for(&mut state, timeout);
            }
            None => self.wake.wait(&mut state),
        }
        state.waiting = false;
    }
}

/// Counters of the writer.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) groups: AtomicU64,
    pub(super) entries: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) syncs: AtomicU64,
    pub(super) sync_nanos: AtomicU64,
    pub(super) waiting: Arc<Waiting>,
}

/// How many bytes of journal lie behind a position, to about a mebibyte.
#[derive(Default)]
pub(super) struct Ledger {
    total: u64,
    trimmed: u64,
    /// Bytes up to the end of the group that ends with the position.
    marks: VecDeque<(Position, u64)>,
}

const LEDGER_STEP: u64 = 1024 * 1024;

impl Ledger {
    pub(super) fn note(&mut self, last: Position, bytes: u64) {
        self.total += bytes;
        let since = self.marks.back().map_or(self.trimmed, |mark| mark.1);
        if self.total - since >= LEDGER_STEP {
            self.marks.push_back((last, self.total));
        }
    }

    pub(super) fn trim(&mut self, through: Position) {
        while let Some((_, total)) = self.marks.pop_front_if(|mark| mark.0 <= through) {
            self.trimmed = total;
        }
    }

    pub(super) fn live(&self) -> u64 {
        self.total - self.trimmed
    }
}

/// What the writer works with.
pub(super) struct Writer {
    pub(super) core: Core,
    pub(super) files: Files,
    pub(super) pool: Arc<Pool>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) counters: Arc<Counters>,
    pub(super) ledger: Arc<Mutex<Ledger>>,
    pub(super) clock: Arc<dyn Clock>,
}

/// What came of one action.
pub(super) enum Outcome {
    /// Go on with this event.
    Next(Event),
    /// Go on after the time, or when the inbox wakes.
    Idle(Option<Duration>),
    /// A group counts as durable.
    Committed(Group),
    /// All is done.
    Stopped,
}

impl Writer {
    /// Takes over what is queued.
    pub(super) fn look(&mut self) -> Event {
        let (trimmed, sync_through, closing) = self.inbox.take(&mut self.core.pending);
        Event::Look {
            now: self.clock.monotonic(),
            trimmed,
            sync_through,
            closing,
        }
    }

    /// One step of the core and its action.
    pub(super) fn step(&mut self, event: Event) -> Result<Outcome, String> {
        let synced = matches!(event, Event::Synced { .. });
        let action = self.core.step(event);
        if synced {
            self.inbox.note_synced(self.core.synced_last());
            self.files.release(self.core.synced_trim());
        }
        let what = match &action {
            Action::Open { .. } => "open the next file",
            Action::Write { .. } => "write to",
            _ => "sync",
        };
        if matches!(action, Action::Write { .. } | Action::Sync) {
            self.counters.waiting.begin(self.clock.monotonic());
        }
        let done = self.perform(action);
        self.counters.waiting.end();
        done.map_err(|error| {
            format!(
                "journal: cannot {what} ({}): {error}; nothing after this is acknowledged, and \
                 the process must end. Check the device and start again: what was acknowledged \
                 is kept",
                self.files.current_name()
            )
        })
    }

    fn perform(&mut self, action: Action) -> io::Result<Outcome> {
        Ok(match action {
            Action::Wait { until } => Outcome::Idle(until),
            Action::Open { bytes } => {
                let capacity = self.files.open_next(bytes)?;
                Outcome::Next(Event::Opened {
                    now: self.clock.monotonic(),
                    capacity,
                })
            }
            Action::Write {
                place,
                bytes,
                last,
                entries,
                payload,
            } => {
                self.files.write(place, &bytes, last)?;
                self.count(bytes.len() as u64, last, u64::from(entries), payload);
                Outcome::Next(Event::Written {
                    now: self.clock.monotonic(),
                })
            }
            Action::Sync => {
                let begun = self.clock.monotonic();
                self.files.sync()?;
                let now = self.clock.monotonic();
                let took = now.saturating_sub(begun);
                self.counters.syncs.fetch_add(1, Ordering::Relaxed);
                self.counters
                    .sync_nanos
                    .fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
                Outcome::Next(Event::Synced { now, took })
            }
            Action::Commit(group) => Outcome::Committed(group),
            Action::Stop => Outcome::Stopped,
        })
    }

    fn count(&self, bytes: u64, last: Position, entries: u64, payload: u64) {
        self.counters.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.counters
            .groups
            .fetch_add(u64::from(entries > 0), Ordering::Relaxed);
        self.counters.entries.fetch_add(entries, Ordering::Relaxed);
        self.inbox
            .queued_entries
            .fetch_sub(entries, Ordering::Relaxed);
        self.inbox
            .queued_bytes
            .fetch_sub(payload, Ordering::Relaxed);
        self.pool.ingested.fetch_add(bytes, Ordering::Relaxed);
        self.ledger.lock().note(last, bytes);
    }

    /// Runs until stopped; `commit` takes each durable group, and whether nothing waits to be
    /// written behind it.
    pub(super) fn run(&mut self, mut commit: impl FnMut(Group, bool)) -> Result<(), String> {
        let mut event = self.look();
        loop {
            event = match self.step(event)? {
                Outcome::Next(event) => event,
                Outcome::Idle(until) => {
                    let now = self.clock.monotonic();
                    self.inbox
                        .wait(until.map(|until| until.saturating_sub(now)));
                    self.look()
                }
                Outcome::Committed(group) => {
                    let is_idle = self.core.pending.is_empty() && self.inbox.is_empty();
                    commit(group, is_idle);
                    self.look()
                }
                Outcome::Stopped => return Ok(()),
            };
            if self.inbox.failed() {
                return Ok(());
            }
        }
    }
}
