//! A journal in memory, for tests of what stands on a journal: entries become durable when the
//! test says so.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;
use uuid::Uuid;

use super::group::{self, Header};
use super::{Entry, Group, Journal, Sink};
use crate::types::Position;

/// A journal without a disk.
pub struct MemoryJournal {
    state: Mutex<State>,
    /// Held by a commit from start to end, so that groups reach the sink in order.
    commit: Mutex<()>,
    durable: watch::Sender<Position>,
    sink: Option<Arc<dyn Sink>>,
}

#[derive(Default)]
struct State {
    queue: Vec<Entry>,
    appended: Position,
    trimmed: Position,
    groups: Vec<Group>,
    bytes: u64,
}

impl MemoryJournal {
    /// An empty journal that tells `sink`, if there is one.
    pub fn new(sink: Option<Arc<dyn Sink>>) -> Self {
        let (durable, _) = watch::channel(Position(0));
        Self {
            state: Mutex::default(),
            commit: Mutex::default(),
            durable,
            sink,
        }
    }

    /// Makes everything that is queued durable, as one group. Nothing if the queue is empty.
    pub fn commit(&self) -> Position {
        let _in_order = self.commit.lock();
        let (entries, first) = {
            let mut state = self.state.lock();
            let entries = std::mem::take(&mut state.queue);
            let first = state.appended.0 + 1 - entries.len() as u64;
            (entries, Position(first))
        };
        if entries.is_empty() {
            return self.durable();
        }
        let group = as_group(entries, first);
        {
            let mut state = self.state.lock();
            state.bytes += group.buffer.len() as u64;
            state.groups.push(group.clone());
        }
        let last = group.last;
        if let Some(sink) = &self.sink {
            sink.commit(group);
        }
        self.durable.send_replace(last);
        last
    }

    /// The durable groups so far.
    pub fn groups(&self) -> Vec<Group> {
        self.state.lock().groups.clone()
    }

    /// What was trimmed so far.
    pub fn trimmed(&self) -> Position {
        self.state.lock().trimmed
    }
}

fn as_group(entries: Vec<Entry>, first: Position) -> Group {
    let header = Header {
        store: Uuid::nil(),
        generation: 1,
        number: 1,
        synced_to: 0,
        trimmed: Position(0),
        first,
        entries: 0,
        length: 0,
        place: 0,
        previous_crc: 0,
        body_crc: 0,
        crc: 0,
    };
    let length = entries.iter().map(group::entry_bytes).sum();
    group::build(header, entries.into_iter(), length).into_group()
}

impl Journal for MemoryJournal {
    fn append(&self, entry: Entry) -> Position {
        let mut state = self.state.lock();
        state.appended.0 += 1;
        state.queue.push(entry);
        state.appended
    }

    fn durable(&self) -> Position {
        *self.durable.borrow()
    }

    fn subscribe(&self) -> watch::Receiver<Position> {
        self.durable.subscribe()
    }

    fn appended(&self) -> Position {
        self.state.lock().appended
    }

    fn trim(&self, through: Position) {
        let mut state = self.state.lock();
        state.trimmed = state.trimmed.max(through);
    }

    fn live_bytes(&self) -> u64 {
        self.state.lock().bytes
    }

    fn sync(&self) -> bool {
        self.commit();
        true
    }

    fn close(&self) {
        self.commit();
    }
}

impl MemoryJournal {
    /// A payload of a durable entry, by position.
    pub fn payload(&self, position: Position) -> Option<Bytes> {
        let state = self.state.lock();
        let mut entries = state
            .groups
            .iter()
            .flat_map(|g| g.entries.iter().map(move |e| (g, e)));
        let (group, entry) = entries.find(|(_, entry)| entry.position == position)?;
        Some(group.payload(entry))
    }
}
