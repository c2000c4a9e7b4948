//! What the journal's writer does next: a pure step function.
//!
//! A thread (or a simulation) executes each [`Action`] and tells the outcome as the next
//! [`Event`]; there is exactly one event for each action. Time comes in with the events.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;

use super::group::{self, BLOCK, Built, HEADER, Header};
use super::{Entry, EntryKind, Group, SyncPolicy};
use crate::types::Position;

/// How long the queue must stay empty before an empty group says that the last one is synced.
/// Long enough that a client sending one request after the other does not pay for it.
const IDLE_MARK_AFTER: Duration = Duration::from_millis(50);
/// When a sync takes longer than this, larger groups pay.
const SLOW_SYNC: Duration = Duration::from_millis(20);
/// How much larger.
const SLOW_SYNC_FACTOR: usize = 4;

/// What happened.
#[derive(Debug)]
pub(super) enum Event {
    /// Time passed, entries were queued, or the last action is done.
    Look {
        /// Monotonic time.
        now: Duration,
        /// Entries up to here are not needed any more.
        trimmed: Position,
        /// Somebody waits for a sync of the entries up to here.
        sync_through: Position,
        /// Whether to stop once all is durable.
        closing: bool,
    },
    /// There is a next file; groups go to its start from now on.
    Opened {
        /// Monotonic time.
        now: Duration,
        /// Its size.
        capacity: u64,
    },
    /// The bytes are written.
    Written {
        /// Monotonic time.
        now: Duration,
    },
    /// The file is synced.
    Synced {
        /// Monotonic time.
        now: Duration,
        /// How long it took.
        took: Duration,
    },
}

/// What to do.
pub(super) enum Action {
    /// Wait for entries, a wish to close, or a time. Answer: [`Event::Look`].
    Wait {
        /// When to look again in any case.
        until: Option<Duration>,
    },
    /// Go to another file with room for so many bytes. Answer: [`Event::Opened`].
    Open {
        /// Bytes of the group that goes there first.
        bytes: u64,
    },
    /// Write into the current file. Answer: [`Event::Written`].
    Write {
        /// Where.
        place: u64,
        /// Whole blocks.
        bytes: Bytes,
        /// Position of the last entry in them, or before them.
        last: Position,
        /// Entries in them.
        entries: u32,
        /// Bytes of their payloads.
        payload: u64,
    },
    /// Sync the current file. Answer: [`Event::Synced`].
    Sync,
    /// The group counts as durable. Answer: [`Event::Look`].
    Commit(Group),
    /// Everything is durable and known to be; there is no next event.
    Stop,
}

/// Where a journal goes on.
#[derive(Clone, Debug, Default)]
pub(super) struct Start {
    /// The store.
    pub store: Uuid,
    /// This start's generation.
    pub generation: u64,
    /// Number of the last group; all are synced.
    pub number: u64,
    /// Its header checksum.
    pub previous_crc: u32,
    /// Position of the last entry.
    pub last: Position,
    /// Entries up to here were not needed any more.
    pub trimmed: Position,
    /// Where the next group goes in the current file.
    pub place: u64,
    /// Size of the current file; 0 if there is none.
    pub capacity: u64,
}

/// The writer's state.
pub(super) struct Core {
    start: Start,
    max_group: usize,
    sync: SyncPolicy,
    /// Entries that were taken from the queue and are not written yet.
    pub(super) pending: VecDeque<Entry>,
    state: State,
    now: Duration,
    closing: bool,
    /// Groups up to this number are on stable storage.
    synced: u64,
    /// The last written header says so of groups up to this number.
    announced: u64,
    /// Number of the last group with entries.
    data_number: u64,
    written_trim: Position,
    synced_trim: Position,
    synced_last: Position,
    sync_through: Position,
    sync_due: Option<Duration>,
    idle_since: Option<Duration>,
    sync_took: Duration,
}

enum State {
    Looking,
    /// The group that is being written.
    Writing(Built),
    /// The group that is being synced, if readers wait for it.
    Syncing(Option<Built>),
    /// A next file was asked for.
    Opening,
}

impl Core {
    pub(super) fn new(start: Start, max_group: usize, sync: SyncPolicy) -> Self {
        Self {
            max_group,
            sync,
            pending: VecDeque::new(),
            state: State::Looking,
            now: Duration::ZERO,
            closing: false,
            synced: start.number,
            // A start says anew that what it found is synced, under its own generation.
            announced: 0,
            data_number: start.number,
            written_trim: start.trimmed,
            synced_trim: start.trimmed,
            synced_last: start.last,
            sync_through: Position(0),
            sync_due: None,
            idle_since: None,
            sync_took: Duration::ZERO,
            start,
        }
    }

    /// Files whose entries all lie at or below this may be reused: a synced header says so.
    pub(super) fn synced_trim(&self) -> Position {
        self.synced_trim
    }

    /// Entries up to here are on stable storage.
    pub(super) fn synced_last(&self) -> Position {
        self.synced_last
    }

    /// Whether some header says that every group with entries is synced.
    #[cfg(test)]
    pub(super) fn is_marked(&self) -> bool {
        self.announced >= self.data_number
    }

    /// One step.
    pub(super) fn step(&mut self, event: Event) -> Action {
        match event {
            Event::Look {
                now,
                trimmed,
                sync_through,
                closing,
            } => {
                self.now = now;
                self.sync_through = self.sync_through.max(sync_through);
                self.closing |= closing;
                self.start.trimmed = self.start.trimmed.max(trimmed);
                self.state = State::Looking;
                self.decide()
            }
            Event::Opened { now, capacity } => {
                self.now = now;
                self.start.place = 0;
                self.start.capacity = capacity / BLOCK * BLOCK;
                self.decide()
            }
            Event::Written { now } => self.written(now),
            Event::Synced { now, took } => self.synced(now, took),
        }
    }

    fn decide(&mut self) -> Action {
        if !self.pending.is_empty() {
            self.idle_since = None;
            return self.write_entries();
        }
        let idle_since = *self.idle_since.get_or_insert(self.now);
        let unsynced = self.synced < self.start.number;
        if unsynced && (self.closing || self.sync_is_due()) {
            return self.sync(None);
        }
        let unmarked = self.announced < self.data_number && self.synced >= self.data_number;
        // Files are given back when a synced header says that they are not needed.
        let unmarked = unmarked || (!unsynced && self.written_trim < self.start.trimmed);
        let mark_due = idle_since + IDLE_MARK_AFTER;
        if unmarked && (self.closing || mark_due <= self.now) {
            return self.write(0, 0);
        }
        if self.closing {
            return Action::Stop;
        }
        let sync_due = self.sync_due.filter(|_| unsynced);
        let mark_due = Some(mark_due).filter(|_| unmarked);
        Action::Wait {
            until: sync_due.into_iter().chain(mark_due).min(),
        }
    }

    fn write_entries(&mut self) -> Action {
        if self.synced < self.start.number && self.sync_is_due() {
            return self.sync(None);
        }
        let slow = self.sync_took > SLOW_SYNC;
        let limit = self.max_group * if slow { SLOW_SYNC_FACTOR } else { 1 };
        let (count, length) = self.plan(limit);
        let room = self.room();
        if group::padded(length) > room && room > HEADER as u64 {
            // The end of a file takes what fits, rather than nothing.
            let fits = (room - HEADER as u64) as usize;
            let (fewer, shorter) = self.plan(fits.min(limit));
            if group::padded(shorter) <= room {
                return self.write(fewer, shorter);
            }
        }
        self.write(count, length)
    }

    fn sync_is_due(&self) -> bool {
        let asked = self.sync_through.min(self.start.last) > self.synced_last;
        asked || self.sync_due.is_some_and(|due| due <= self.now)
    }

    /// How many entries, of how many bytes, go together: at least one.
    fn plan(&self, limit: usize) -> (usize, usize) {
        let (mut count, mut length) = (0, 0);
        for entry in &self.pending {
            let bytes = group::entry_bytes(entry);
            if count > 0 && length + bytes > limit {
                break;
            }
            count += 1;
            length += bytes;
        }
        (count, length)
    }

    fn room(&self) -> u64 {
        self.start.capacity.saturating_sub(self.start.place)
    }

    fn write(&mut self, count: usize, length: usize) -> Action {
        let bytes = group::padded(length);
        if bytes > self.room() {
            if matches!(self.state, State::Opening) {
                // A group larger than a whole file: the file grows.
                self.start.capacity = bytes;
            } else if self.synced < self.start.number {
                // A file is left behind with all of it synced.
                return self.sync(None);
            } else {
                self.state = State::Opening;
                return Action::Open { bytes };
            }
        }
        let header = Header {
            store: self.start.store,
            generation: self.start.generation,
            number: self.start.number + 1,
            synced_to: self.synced,
            trimmed: self.start.trimmed,
            first: Position(self.start.last.0 + 1),
            entries: 0,
            length: 0,
            place: self.start.place,
            previous_crc: self.start.previous_crc,
            body_crc: 0,
            crc: 0,
        };
        let built = group::build(header, self.pending.drain(..count), length);
        let action = Action::Write {
            place: self.start.place,
            bytes: built.bytes.clone(),
            last: built.header.last(),
            entries: built.header.entries,
            payload: (length - count * group::ENTRY_HEADER) as u64,
        };
        self.state = State::Writing(built);
        action
    }

    fn written(&mut self, now: Duration) -> Action {
        self.now = now;
        let State::Writing(built) = std::mem::replace(&mut self.state, State::Looking) else {
            return Action::Wait { until: None };
        };
        let header = built.header;
        self.start.number = header.number;
        self.start.previous_crc = header.crc;
        self.start.last = header.last();
        self.start.place += header.padded();
        self.announced = header.synced_to;
        self.written_trim = header.trimmed;
        if header.entries == 0 {
            return self.sync(None);
        }
        self.data_number = header.number;
        match self.sync {
            SyncPolicy::Always => self.sync(Some(built)),
            // Other directories' journals hold records of topics that are created here, and a
            // power loss must not leave those without these.
            SyncPolicy::Interval(_) if built.holds(EntryKind::Catalog) => self.sync(Some(built)),
            SyncPolicy::Interval(interval) => {
                self.sync_due.get_or_insert(now + interval);
                Action::Commit(built.into_group())
            }
        }
    }

    fn sync(&mut self, built: Option<Built>) -> Action {
        self.state = State::Syncing(built);
        Action::Sync
    }

    fn synced(&mut self, now: Duration, took: Duration) -> Action {
        self.now = now;
        self.sync_took = took;
        self.sync_due = None;
        self.synced = self.start.number;
        self.synced_trim = self.written_trim;
        self.synced_last = self.start.last;
        match std::mem::replace(&mut self.state, State::Looking) {
            State::Syncing(Some(built)) => Action::Commit(built.into_group()),
            _ => self.decide(),
        }
    }
}
