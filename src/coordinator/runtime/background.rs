//! What runs beside the requests: loading, timers, expiry, compaction, the end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{BATCH_BYTES, Groups, Outbox, Part, Phase, batch_size};
use crate::coordinator::group::Machine;
use crate::coordinator::group::command::{Change, Name, Tick};
use crate::coordinator::group::record::{Record, RecordError};
use crate::coordinator::group::view::stored_size;
use crate::coordinator::log::{AppendError, LoadError, LogRecord};
use crate::types::Offset;

/// A log below this size is left alone.
pub(super) const LOOK_AT_LEAST: u64 = 1 << 20;
/// A log is written anew when it is larger than its state by this factor.
const COMPACT_FACTOR: u64 = 4;
/// Pause between tries to read a partition that could not be read.
const RELOAD: Duration = Duration::from_secs(5);

impl Groups {
    /// Starts loading, timers and upkeep on the runtime that this is called on.
    pub fn start(self: &Arc<Self>) {
        let (load, timers, upkeep) = (Arc::clone(self), Arc::clone(self), Arc::clone(self));
        let tasks = [
            tokio::spawn(async move { load.load_all().await }),
            tokio::spawn(async move { timers.run_timers().await }),
            tokio::spawn(async move { upkeep.run_upkeep().await }),
        ];
        self.tasks.lock().extend(tasks);
    }

    /// Ends all background work and answers everybody who waits with NOT_COORDINATOR.
    pub fn stop(&self) {
        for task in self.tasks.lock().drain(..) {
            task.abort();
        }
        for part in &self.parts {
            let mut part = part.lock();
            part.phase = Phase::Stopped;
            part.waiting.clear();
        }
    }

    async fn load_all(self: Arc<Self>) {
        loop {
            let groups = Arc::clone(&self);
            match tokio::task::spawn_blocking(move || groups.load()).await {
                Ok(true) => return,
                Ok(false) => tokio::time::sleep(RELOAD).await,
                Err(error) => {
                    tracing::error!(%error, "loading the consumer groups failed; no group whose \
                        partition is not loaded is served until a restart");
                    return;
                }
            }
        }
    }

    /// Reads all partitions that are not loaded. Blocks. Says whether all are ready.
    pub fn load(&self) -> bool {
        let start = self.clock.monotonic();
        let mut records = 0;
        for part in &self.parts {
            let (index, phase) = {
                let part = part.lock();
                (part.index, part.phase)
            };
            if matches!(phase, Phase::Ready | Phase::Stopped) {
                continue;
            }
            let loaded = self.read(index);
            let mut part = part.lock();
            if part.phase == Phase::Stopped {
                return true;
            }
            match loaded {
                Ok((mut machine, count)) => {
                    machine.loaded(self.now());
                    records += count;
                    part.machine = machine;
                    part.phase = Phase::Ready;
                    self.count(&mut part);
                    part.size = self.log.log_bytes(index);
                    self.counters.loaded.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => {
                    part.phase = Phase::Failed;
                    tracing::error!(
                        partition = index,
                        %error,
                        "a partition of __consumer_offsets can't be read; its groups get \
                         COORDINATOR_NOT_AVAILABLE until a later try succeeds"
                    );
                }
            }
        }
        let took = self.clock.monotonic().saturating_sub(start);
        self.counters
            .load_ms
            .store(took.as_millis() as u64, Ordering::Relaxed);
        self.wake.notify_one();
        self.tidy.notify_one();
        if records > 0 {
            tracing::info!(
                records,
                ms = took.as_millis() as u64,
                "consumer groups loaded"
            );
        }
        !self.is_loading()
    }

    fn read(&self, index: i32) -> Result<(Machine, u64), LoadError> {
        let mut machine = Machine::new(self.settings.clone());
        let mut count = 0;
        let mut failed = None;
        self.log.load(index, &mut |offset, key, value| {
            count += 1;
            match Record::decode(&key, value.as_deref()) {
                Ok(record) => machine.apply(&record),
                // Kinds of groups that this coordinator does not run.
                Err(RecordError::UnknownKey(version)) => {
                    tracing::debug!(partition = index, offset, version, "record passed over");
                }
                Err(error) => failed = failed.take().or(Some((offset, error))),
            }
        })?;
        match failed {
            None => Ok((machine, count)),
            Some((offset, error)) => Err(LoadError(format!("at offset {offset}: {error}"))),
        }
    }

    /// Serves timers as they run out.
    async fn run_timers(self: Arc<Self>) {
        loop {
            let next = self.serve_due();
            let wait = Duration::from_millis(next.saturating_sub(self.now().tick));
            tokio::select! {
                () = tokio::time::sleep(wait), if next != Tick::MAX => {}
                () = self.wake.notified() => {}
            }
        }
    }

    /// Serves the timers that have run out; when the next one does.
    pub(crate) fn serve_due(&self) -> Tick {
        // A deadline that is set while the partitions are looked at must wake the timer task again.
        self.armed.store(Tick::MAX, Ordering::SeqCst);
        let now = self.now();
        let mut next = Tick::MAX;
        for part in &self.parts {
            let mut part = part.lock();
            if part.phase != Phase::Ready {
                continue;
            }
            self.serve_timers(&mut part, now, &mut Outbox::default());
            next = next.min(part.machine.deadline().unwrap_or(Tick::MAX));
        }
        self.armed.store(next, Ordering::SeqCst);
        next
    }

    /// Lets commits expire at intervals, and compacts when a partition has grown.
    async fn run_upkeep(self: Arc<Self>) {
        let every = Duration::from_millis(self.settings.offsets_retention_check_ms.max(1));
        let mut interval = tokio::time::interval_at(tokio::time::Instant::now() + every, every);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let groups = Arc::clone(&self);
            let work: fn(&Self) = tokio::select! {
                _ = interval.tick() => |groups| groups.clean_up(),
                () = self.tidy.notified() => |groups| groups.compact_grown(),
            };
            if let Err(error) = tokio::task::spawn_blocking(move || work(&groups)).await {
                tracing::error!(%error, "upkeep of the consumer groups failed; it is tried again");
            }
        }
    }

    /// Lets go of commits that have expired or whose topics are gone, and of groups of which
    /// nothing is left.
    pub fn clean_up(&self) {
        for part in &self.parts {
            let mut from = 0;
            loop {
                let mut part = part.lock();
                let names = part.machine.names();
                if part.phase != Phase::Ready || from >= names.len() {
                    break;
                }
                // The lock is let go now and then; a group that is passed over has its turn later.
                let until = names.len().min(from + super::TIMERS_AT_ONCE);
                for name in names.get(from..until).unwrap_or_default() {
                    if !self.clean_up_group(&mut part, name) {
                        return;
                    }
                }
                from = until;
            }
        }
    }

    fn clean_up_group(&self, part: &mut Part, name: &Name) -> bool {
        let now = self.now();
        let topic_id = |topic: &str| self.topics.topic_id(topic);
        let decision = part.machine.clean_up(now, name, &topic_id);
        let nothing_to_do = decision.records.is_empty() && decision.change == Change::None;
        nothing_to_do
            || self
                .store(part, now, decision, &mut Outbox::default())
                .is_ok()
    }

    /// Compacts the partitions that have grown enough to be looked at.
    fn compact_grown(&self) {
        for part in &self.parts {
            let mut locked = part.lock();
            if locked.phase != Phase::Ready || locked.size < locked.look_at {
                continue;
            }
            let (index, size) = (locked.index, locked.size);
            let state = locked.machine.stored_bytes();
            locked.look_at = state.saturating_mul(COMPACT_FACTOR).max(LOOK_AT_LEAST);
            if size < locked.look_at {
                continue;
            }
            locked.size = 0;
            drop(locked);
            match self.compact(index) {
                Ok(start) => {
                    self.counters.compactions.fetch_add(1, Ordering::Relaxed);
                    tracing::debug!(partition = index, size, state, start, "group log compacted");
                }
                Err(error) => {
                    let mut part = part.lock();
                    part.size += size;
                    part.look_at = part.size + LOOK_AT_LEAST;
                    tracing::warn!(
                        partition = index,
                        %error,
                        "the log of consumer groups could not be compacted; it keeps growing \
                         until a later try succeeds"
                    );
                }
            }
        }
    }

    /// Writes what is stored of every group to the end of the log and lets go of all before it.
    /// Changes may come between: each group is written as it is at that moment.
    pub(crate) fn compact(&self, index: i32) -> Result<Offset, AppendError> {
        let Some(part) = self.parts.get(index as usize) else {
            return Ok(0);
        };
        let (mut from, mut start) = (None, None);
        loop {
            let mut part = part.lock();
            let Some((records, last)) = part.machine.snapshot(from.as_ref(), BATCH_BYTES) else {
                break;
            };
            let offset = self.append_all(&mut part, &records)?;
            start = start.or(offset);
            from = Some(last);
        }
        if start.is_none() {
            // Nothing is left, which an empty log can't say of itself.
            let mut part = part.lock();
            let end = Record::Group {
                group: Name::default(),
                value: None,
            };
            if part.machine.names().is_empty() {
                start = self.append_all(&mut part, &[end])?;
            }
        }
        if let Some(start) = start {
            self.log.move_log_start(index, start)?;
        }
        Ok(start.unwrap_or(0))
    }

    fn append_all(
        &self,
        part: &mut Part,
        records: &[Record],
    ) -> Result<Option<Offset>, AppendError> {
        let wall_ms = self.clock.wall_ms();
        let mut start = None;
        let mut batch: Vec<LogRecord> = Vec::new();
        let mut size = 0;
        for (i, record) in records.iter().enumerate() {
            size += stored_size(record);
            batch.push(record.encode());
            if size >= BATCH_BYTES || i + 1 == records.len() {
                let records = std::mem::take(&mut batch);
                let bytes = batch_size(&records);
                let appended = self.log.append(part.index, records, wall_ms)?;
                part.size += bytes;
                part.last = appended.position;
                start = start.or(Some(appended.base_offset));
                size = 0;
            }
        }
        Ok(start)
    }
}
