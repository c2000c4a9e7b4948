//! The journal over files: its threads, and the handle that everybody else holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::watch;

use super::files::Pool;
use super::stall::StallWatch;
use super::writer::{Counters, Inbox, Ledger, Writer};
use super::{Ended, Entry, Group, Journal, JournalStats, Sink};
use crate::clock::Clock;
use crate::types::Position;

/// How often somebody looks whether the disk answers.
const LOOK: Duration = Duration::from_secs(1);

/// A journal that runs. Three threads belong to it: `journal` writes and syncs,
/// `journal-commit` tells the sink, `journal-files` keeps files ready.
pub struct FileJournal {
    inbox: Arc<Inbox>,
    commits: Arc<Commits>,
    durable: watch::Receiver<Position>,
    pool: Arc<Pool>,
    counters: Arc<Counters>,
    ledger: Arc<Mutex<Ledger>>,
    clock: Arc<dyn Clock>,
    threads: Mutex<Threads>,
}

#[derive(Default)]
struct Threads {
    writer: Option<JoinHandle<()>>,
    commit: Option<JoinHandle<()>>,
    files: Option<JoinHandle<()>>,
}

/// Durable groups on their way to the sink. Bounded by the budgets that their entries hold.
#[derive(Default)]
struct Commits {
    state: Mutex<CommitState>,
    wake: Condvar,
}

#[derive(Default)]
struct CommitState {
    groups: Vec<Group>,
    /// Somebody tells the sink of groups that were taken off already.
    telling: bool,
    closing: bool,
    failed: bool,
}

impl Commits {
    fn push(&self, group: Group) {
        let mut state = self.state.lock();
        state.groups.push(group);
        drop(state);
        self.wake.notify_one();
    }

    /// Reserves the telling for the caller if nothing is before it; [`Commits::told`] ends it.
    fn begin(&self) -> bool {
        let mut state = self.state.lock();
        let free = state.groups.is_empty() && !state.telling && !state.failed;
        state.telling |= free;
        free
    }

    fn told(&self) {
        self.state.lock().telling = false;
    }

    /// Moves what there is into an empty vector; false when there will be no more. While it waits,
    /// it looks after the writer.
    fn take(&self, groups: &mut Vec<Group>, watch: &mut StallWatch) -> bool {
        let mut state = self.state.lock();
        state.telling = false;
        loop {
            if state.failed {
                return false;
            }
            if !state.groups.is_empty() {
                std::mem::swap(groups, &mut state.groups);
                state.telling = true;
                return true;
            }
            if state.closing {
                return false;
            }
            if self.wake.wait_for(&mut state, LOOK).timed_out() {
                MutexGuard::unlocked(&mut state, || watch.look());
            }
        }
    }

    fn close(&self, failed: bool) {
        let mut state = self.state.lock();
        state.closing = true;
        state.failed |= failed;
        drop(state);
        self.wake.notify_all();
    }
}

/// Ends everything, once.
struct Fatal {
    called: AtomicBool,
    inbox: Arc<Inbox>,
    commits: Arc<Commits>,
    pool: Arc<Pool>,
    tell: Arc<dyn Fn(String) + Send + Sync>,
}

impl Fatal {
    fn call(&self, message: String) {
        // Nothing is acknowledged from here on, whatever the receiver of the message does.
        self.commits.close(true);
        self.inbox.fail();
        self.pool.close();
        if !self.called.swap(true, Ordering::SeqCst) {
            tracing::error!("{message}");
            (self.tell)(message);
        }
    }
}

/// A thread that panics ends everything too.
struct Alarm<'a>(&'a Fatal, &'static str);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.call(format!(
                "journal: the thread {} panicked; nothing more is acknowledged and the process \
                 must end. This is a defect: please report the panic message above",
                self.1
            ));
        }
    }
}

impl FileJournal {
    pub(super) fn run(
        mut writer: Writer,
        sink: Arc<dyn Sink>,
        tell: Arc<dyn Fn(String) + Send + Sync>,
    ) -> Arc<FileJournal> {
        let commits = Arc::new(Commits::default());
        let (inbox, pool) = (Arc::clone(&writer.inbox), Arc::clone(&writer.pool));
        let (counters, ledger) = (Arc::clone(&writer.counters), Arc::clone(&writer.ledger));
        let (sender, durable) = watch::channel(inbox.last());
        let clock = Arc::clone(&writer.clock);
        let mut stalls = StallWatch::new(Arc::clone(&counters.waiting), Arc::clone(&clock));
        let fatal = Arc::new(Fatal {
            called: AtomicBool::new(false),
            inbox: Arc::clone(&inbox),
            commits: Arc::clone(&commits),
            pool: Arc::clone(&pool),
            tell,
        });
        let tell = Arc::new(move |group: Group| {
            let last = group.last;
            sink.commit(group);
            sender.send_replace(last);
        });
        let (to_commit, tell_now) = (Arc::clone(&commits), Arc::clone(&tell));
        let write = spawn("journal", &fatal, move || {
            writer.run(|group, is_idle| {
                // With nothing to write next, waking another thread would only take longer.
                if is_idle && to_commit.begin() {
                    tell_now(group);
                    to_commit.told();
                } else {
                    to_commit.push(group);
                }
            })
        });
        let from_writer = Arc::clone(&commits);
        let commit = spawn("journal-commit", &fatal, move || {
            let mut groups = Vec::new();
            while from_writer.take(&mut groups, &mut stalls) {
                groups.drain(..).for_each(|group| tell(group));
            }
            Ok(())
        });
        let to_prepare = Arc::clone(&pool);
        let files = spawn("journal-files", &fatal, move || {
            to_prepare.run().map_err(|error| {
                format!(
                    "journal: cannot prepare or remove a journal file: {error}; the process must \
                     end. Check the device and start again: what was acknowledged is kept"
                )
            })
        });
        let threads = Threads {
            writer: write,
            commit,
            files,
        };
        let threads = Mutex::new(threads);
        Arc::new(Self {
            inbox,
            commits,
            durable,
            pool,
            counters,
            ledger,
            clock,
            threads,
        })
    }

    /// What was counted so far.
    pub fn stats(&self) -> JournalStats {
        let (files, spare_files, short_of_space) = self.pool.figures();
        JournalStats {
            groups: self.counters.groups.load(Ordering::Relaxed),
            entries: self.counters.entries.load(Ordering::Relaxed),
            bytes: self.counters.bytes.load(Ordering::Relaxed),
            syncs: self.counters.syncs.load(Ordering::Relaxed),
            sync_nanos_total: self.counters.sync_nanos.load(Ordering::Relaxed),
            waiting: self.counters.waiting.age(self.clock.monotonic()),
            queue_entries: self.inbox.queued_entries.load(Ordering::Relaxed),
            queue_bytes: self.inbox.queued_bytes.load(Ordering::Relaxed),
            live_bytes: self.ledger.lock().live(),
            files,
            live_files: self.pool.live_files(),
            spare_files,
            short_of_space,
        }
    }
}

fn spawn(
    name: &'static str,
    fatal: &Arc<Fatal>,
    body: impl FnOnce() -> Result<(), String> + Send + 'static,
) -> Option<JoinHandle<()>> {
    let alarm = Arc::clone(fatal);
    let span = tracing::Span::current();
    let thread = std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            let _alarm = Alarm(&alarm, name);
            let _named = span.entered();
            if let Err(message) = body() {
                alarm.call(message);
            }
        });
    match thread {
        Ok(thread) => Some(thread),
        Err(error) => {
            fatal.call(format!("journal: cannot start the thread {name}: {error}"));
            None
        }
    }
}

impl Journal for FileJournal {
    fn stats(&self) -> JournalStats {
        FileJournal::stats(self)
    }

    fn append(&self, entry: Entry) -> Position {
        self.inbox.push(entry)
    }

    fn durable(&self) -> Position {
        *self.durable.borrow()
    }

    fn synced(&self) -> Position {
        self.inbox.synced()
    }

    fn subscribe(&self) -> watch::Receiver<Position> {
        self.durable.clone()
    }

    fn appended(&self) -> Position {
        self.inbox.last()
    }

    fn trim(&self, through: Position) {
        let trimmed = self.inbox.trim(through);
        self.ledger.lock().trim(trimmed);
    }

    fn short_of_space(&self) -> bool {
        self.pool.figures().2
    }

    fn live_files(&self) -> u64 {
        self.pool.live_files()
    }

    fn live_bytes(&self) -> u64 {
        self.ledger.lock().live()
    }

    fn sync(&self) -> bool {
        self.inbox.sync(None).is_ok()
    }

    fn sync_at_most(&self, at_most: Duration) -> Result<bool, Ended> {
        self.inbox.sync(Some(at_most))
    }

    fn end_soon(&self) {
        self.pool.end();
    }

    fn close(&self) {
        self.end_soon();
        let mut threads = self.threads.lock();
        self.inbox.close();
        join(threads.writer.take());
        self.commits.close(false);
        self.pool.close();
        join(threads.commit.take());
        join(threads.files.take());
    }
}

fn join(thread: Option<JoinHandle<()>>) {
    // A panic was told as fatal by the thread's alarm. A sink may drop the last handle, so the
    // thread to wait for may be this one.
    if let Some(thread) = thread
        && thread.thread().id() != std::thread::current().id()
    {
        let _ = thread.join();
    }
}

impl Drop for FileJournal {
    fn drop(&mut self) {
        self.close();
    }
}
