//! A log in memory, for tests of whatever stands on the coordinator.

use std::collections::BTreeMap;

use bytes::Bytes;
use parking_lot::Mutex;

use super::log::{AppendError, Appended, CoordinatorLog, LoadError, LogRecord, Topics};
use crate::types::{Offset, Position, TopicId};

/// Partitions that forget nothing but what lies below their log start.
#[derive(Debug)]
pub struct MemoryLog {
    inner: Mutex<Inner>,
    partitions: i32,
}

#[derive(Debug, Default)]
struct Inner {
    logs: BTreeMap<i32, Log>,
    position: u64,
    fails_with: Option<AppendError>,
}

#[derive(Debug, Default)]
struct Log {
    start: Offset,
    end: Offset,
    records: BTreeMap<Offset, LogRecord>,
}

impl MemoryLog {
    /// Empty partitions.
    pub fn new(partitions: i32) -> Self {
        Self {
            inner: Mutex::default(),
            partitions,
        }
    }

    /// From now on appends fail, or succeed again.
    pub fn fail(&self, error: Option<AppendError>) {
        self.inner.lock().fails_with = error;
    }

    /// The position given out last.
    pub fn position(&self) -> Position {
        Position(self.inner.lock().position)
    }

    /// The records of a partition from its log start on.
    pub fn records(&self, partition: i32) -> Vec<(Offset, LogRecord)> {
        let inner = self.inner.lock();
        let log = inner.logs.get(&partition);
        log.map_or(Vec::new(), |l| {
            l.records.iter().map(|(o, r)| (*o, r.clone())).collect()
        })
    }
}

impl CoordinatorLog for MemoryLog {
    fn partitions(&self) -> i32 {
        self.partitions
    }

    fn append(
        &self,
        partition: i32,
        records: Vec<LogRecord>,
        _timestamp_ms: i64,
    ) -> Result<Appended, AppendError> {
        let mut inner = self.inner.lock();
        if let Some(error) = &inner.fails_with {
            return Err(error.clone());
        }
        inner.position += 1;
        let position = Position(inner.position);
        let log = inner.logs.entry(partition).or_default();
        let base_offset = log.end;
        for record in records {
            log.records.insert(log.end, record);
            log.end += 1;
        }
        Ok(Appended {
            position,
            base_offset,
        })
    }

    fn load(
        &self,
        partition: i32,
        each: &mut dyn FnMut(Offset, Bytes, Option<Bytes>),
    ) -> Result<(), LoadError> {
        for (offset, record) in self.records(partition) {
            each(offset, record.key, record.value);
        }
        Ok(())
    }

    fn log_bytes(&self, partition: i32) -> u64 {
        let size =
            |(_, r): (Offset, LogRecord)| (r.key.len() + r.value.map_or(0, |v| v.len())) as u64;
        self.records(partition).into_iter().map(size).sum()
    }

    fn move_log_start(&self, partition: i32, offset: Offset) -> Result<Position, AppendError> {
        let mut inner = self.inner.lock();
        inner.position += 1;
        let position = Position(inner.position);
        let log = inner.logs.entry(partition).or_default();
        log.start = log.start.max(offset);
        log.records = log.records.split_off(&log.start);
        Ok(position)
    }
}

/// Topics in memory.
#[derive(Debug, Default)]
pub struct MemoryTopics(Mutex<BTreeMap<String, TopicId>>);

impl MemoryTopics {
    /// Makes a topic, or gives it another id, or deletes it.
    pub fn set(&self, name: &str, id: Option<TopicId>) {
        let mut topics = self.0.lock();
        match id {
            Some(id) => topics.insert(name.to_owned(), id),
            None => topics.remove(name),
        };
    }
}

impl Topics for MemoryTopics {
    fn topic_id(&self, name: &str) -> Option<TopicId> {
        self.0.lock().get(name).copied()
    }
}
