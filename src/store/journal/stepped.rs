//! The journal without threads, for simulations: writer, commit and file upkeep do one thing each
//! time they are told to, over the same core, writer and files as the real one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::core::Event;
use super::files::{Pool, Work};
use super::writer::{Inbox, Ledger, Outcome, Writer};
use super::{Ended, Entry, EntryKind, Group, Journal, Opened, Sink};
use crate::clock::Clock;
use crate::types::{PartitionKey, Position};

/// An entry as it was appended, for whoever keeps a model of the journal.
#[derive(Clone, Debug)]
pub(crate) struct Noted {
    pub position: Position,
    pub kind: EntryKind,
    pub key: PartitionKey,
    pub payload: Bytes,
}

/// What one step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stepped {
    /// Wrote, synced, opened a file, or decided.
    Worked,
    /// A group reached the sink.
    Committed,
    /// Nothing to do before an append, or before time passes.
    Idle,
    /// The journal has ended.
    Ended,
}

/// A journal that moves when told.
pub(crate) struct SteppedJournal {
    inbox: Arc<Inbox>,
    pool: Arc<Pool>,
    ledger: Arc<Mutex<Ledger>>,
    writer: Mutex<Machine>,
    committed: Mutex<VecDeque<Group>>,
    sink: Arc<dyn Sink>,
    durable: Mutex<Option<watch::Sender<Position>>>,
    receiver: watch::Receiver<Position>,
    noted: Mutex<Vec<Noted>>,
    failure: Mutex<Option<String>>,
    ended: AtomicBool,
    synced: AtomicU64,
    /// Runs whatever else runs while somebody waits for the journal.
    meanwhile: Box<dyn Fn() + Send + Sync>,
    /// Asked before a sync: whether the device has not finished it yet.
    stuck: Box<dyn Fn() -> bool + Send + Sync>,
}

struct Machine {
    writer: Writer,
    event: Option<Event>,
}

impl SteppedJournal {
    /// Starts an opened journal. `meanwhile` is called between the steps of a wait. While `stuck`
    /// says so, what is written stays un-synced and the writer does nothing else.
    pub(crate) fn start(
        opened: Opened,
        sink: Arc<dyn Sink>,
        clock: Arc<dyn Clock>,
        meanwhile: Box<dyn Fn() + Send + Sync>,
        stuck: Box<dyn Fn() -> bool + Send + Sync>,
    ) -> Arc<Self> {
        let writer = opened.into_writer(clock, 0);
        let (sender, receiver) = watch::channel(writer.inbox.last());
        Arc::new(Self {
            inbox: Arc::clone(&writer.inbox),
            pool: Arc::clone(&writer.pool),
            ledger: Arc::clone(&writer.ledger),
            synced: AtomicU64::new(writer.core.synced_last().0),
            writer: Mutex::new(Machine {
                writer,
                event: None,
            }),
            committed: Mutex::default(),
            sink,
            durable: Mutex::new(Some(sender)),
            receiver,
            noted: Mutex::default(),
            failure: Mutex::default(),
            ended: AtomicBool::new(false),
            meanwhile,
            stuck,
        })
    }

    /// One action of the writer thread: a write, a sync, the next file, or nothing.
    pub(crate) fn step(&self) -> Stepped {
        let Some(mut machine) = self.writer.try_lock() else {
            return Stepped::Idle;
        };
        if self.ended.load(Ordering::Relaxed) {
            return Stepped::Ended;
        }
        if matches!(machine.event, Some(Event::Written { .. })) && (self.stuck)() {
            return Stepped::Idle;
        }
        let event = machine.event.take();
        let event = event.unwrap_or_else(|| machine.writer.look());
        let outcome = machine.writer.step(event);
        let synced = machine.writer.core.synced_last().0;
        self.synced.store(synced, Ordering::Relaxed);
        match outcome {
            Ok(Outcome::Next(event)) => machine.event = Some(event),
            Ok(Outcome::Idle(_)) => return Stepped::Idle,
            Ok(Outcome::Committed(group)) => self.committed.lock().push_back(group),
            Ok(Outcome::Stopped) => {
                self.end(None);
                return Stepped::Ended;
            }
            Err(message) => {
                self.end(Some(message));
                return Stepped::Ended;
            }
        }
        Stepped::Worked
    }

    /// One durable group to the sink, as the commit thread does it.
    pub(crate) fn commit_step(&self) -> Stepped {
        if self.ended.load(Ordering::Relaxed) && self.failure.lock().is_some() {
            return Stepped::Ended;
        }
        let Some(group) = self.committed.lock().pop_front() else {
            return Stepped::Idle;
        };
        let last = group.last;
        self.sink.commit(group);
        if let Some(durable) = &*self.durable.lock() {
            durable.send_replace(last);
        }
        Stepped::Committed
    }

    /// One piece of work of the thread that keeps files ready. Says whether there was any.
    pub(crate) fn files_step(&self) -> bool {
        if self.ended.load(Ordering::Relaxed) {
            return false;
        }
        match self.pool.work() {
            Ok(work) => matches!(work, Work::Done),
            Err(error) => {
                self.end(Some(format!("journal files: {error}")));
                false
            }
        }
    }

    /// Ends the journal as an I/O error does: nothing is acknowledged any more.
    pub(crate) fn end(&self, failure: Option<String>) {
        self.ended.store(true, Ordering::Relaxed);
        let mut reason = self.failure.lock();
        if reason.is_none() {
            *reason = failure;
        }
        if reason.is_some() {
            self.committed.lock().clear();
            *self.durable.lock() = None;
        }
    }

    /// Why it ended, if an error ended it.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    /// Takes what was appended since the last call.
    pub(crate) fn take_noted(&self) -> Vec<Noted> {
        std::mem::take(&mut self.noted.lock())
    }

    /// Entries up to here are on stable storage, whatever the sync policy.
    pub(crate) fn synced(&self) -> Position {
        Position(self.synced.load(Ordering::Relaxed))
    }

    /// Whether the journal itself says that all of it is synced, so that damage in it cannot be
    /// taken for a torn tail.
    pub(crate) fn is_marked(&self) -> bool {
        self.writer.lock().writer.core.is_marked()
    }

    /// Whether something is written that waits for its sync.
    pub(crate) fn awaits_sync(&self) -> bool {
        let machine = self.writer.lock();
        matches!(machine.event, Some(Event::Written { .. }))
    }

    /// Steps writer and commit until `done`, or nothing moves any more.
    fn pump(&self, done: impl Fn(&Self) -> bool) -> bool {
        let mut idle = 0;
        while !done(self) {
            if self.ended.load(Ordering::Relaxed) && self.failure.lock().is_some() {
                return false;
            }
            (self.meanwhile)();
            let stepped = self.step();
            let committed = self.commit_step();
            if stepped == Stepped::Worked || committed == Stepped::Committed {
                idle = 0;
                continue;
            }
            idle += 1;
            if idle > 1000 {
                panic!("a wait for the journal can never end: nothing is left to do");
            }
        }
        true
    }
}

impl Journal for SteppedJournal {
    fn append(&self, entry: Entry) -> Position {
        let (kind, key, payload) = (entry.kind, entry.key, entry.payload.clone());
        // Positions are counted here in the order of the notes.
        let mut noted = self.noted.lock();
        let position = self.inbox.push(entry);
        noted.push(Noted {
            position,
            kind,
            key,
            payload,
        });
        position
    }

    fn durable(&self) -> Position {
        *self.receiver.borrow()
    }

    fn synced(&self) -> Position {
        SteppedJournal::synced(self)
    }

    fn subscribe(&self) -> watch::Receiver<Position> {
        self.receiver.clone()
    }

    fn appended(&self) -> Position {
        self.inbox.last()
    }

    fn trim(&self, through: Position) {
        let trimmed = self.inbox.trim(through);
        self.ledger.lock().trim(trimmed);
    }

    fn live_files(&self) -> u64 {
        self.pool.live_files()
    }

    fn live_bytes(&self) -> u64 {
        self.ledger.lock().live()
    }

    fn sync(&self) -> bool {
        let through = self.inbox.last();
        self.inbox.ask_sync(through);
        self.pump(|journal| journal.synced() >= through)
    }

    fn wait(&self, position: Position) -> bool {
        self.pump(|journal| journal.durable() >= position)
    }

    fn wait_at_most(&self, position: Position, _: Duration) -> Result<bool, Ended> {
        match self.wait(position) {
            true => Ok(true),
            false => Err(Ended),
        }
    }

    fn close(&self) {
        self.inbox.close();
        while !matches!(self.step(), Stepped::Ended) {
            self.commit_step();
        }
        while self.commit_step() == Stepped::Committed {}
    }
}
