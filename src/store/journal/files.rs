//! The journal's files: those that hold live groups, those ready for reuse, and the background
//! thread that makes and removes them.
//!
//! Every file is filled with zeros before groups go into it: a write that allocates no block
//! costs a fraction of one that does, and finds its space reserved.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::shortage::Shortage;
use crate::store::backend::{Disk, DiskFile};
use crate::types::Position;

/// The folder of the journal's files.
pub(super) const FOLDER: &str = "journal";
/// Files kept for reuse; more are removed.
const MAX_SPARES: usize = 6;
/// Background writing and removing goes in steps of this size.
const STEP: u64 = 1024 * 1024;
const DELETE_STEP: u64 = 4 * STEP;
/// Background zeroing is at least this fast, in bytes per second.
const MIN_PACE: u64 = 16 * STEP;
/// When no file is ready, the writer zeroes one of this size itself.
const HASTY_BYTES: u64 = 8 * STEP;
/// How often background zeroing looks at how fast the writer is.
const TICK: Duration = Duration::from_millis(10);
/// Between attempts to make a file on a full disk.
const RETRY: Duration = Duration::from_millis(100);
/// How often the free space is looked at while there is nothing to do.
const LOOK: Duration = Duration::from_secs(1);

/// One file.
#[derive(Clone)]
pub(super) struct JournalFile {
    /// With its folder.
    pub name: String,
    /// Open for as long as the file exists.
    pub file: Arc<dyn DiskFile>,
    /// Bytes that groups may use.
    pub capacity: u64,
}

/// A file that holds groups.
pub(super) struct LiveFile {
    /// The file.
    pub file: JournalFile,
    /// Position of the last entry in it, or before it.
    pub last: Position,
}

/// The files as the writer uses them.
pub(super) struct Files {
    live: VecDeque<LiveFile>,
    pool: Arc<Pool>,
    /// Attempts to find space for a next file once the journal is to end; before that it waits as
    /// long as it takes. With 0 it never waits.
    patience: u32,
}

impl Files {
    pub(super) fn new(live: VecDeque<LiveFile>, pool: Arc<Pool>, patience: u32) -> Self {
        pool.live.store(live.len() as u64, Ordering::Relaxed);
        Self {
            live,
            pool,
            patience,
        }
    }

    /// Goes to another file; its capacity. Where there is no space for one it waits for some:
    /// nothing of what it is for was written, so that nothing is lost by waiting, and what is
    /// durable is served meanwhile.
    pub(super) fn open_next(&mut self, bytes: u64) -> io::Result<u64> {
        let mut shortage = Shortage::new();
        let file = loop {
            if let Some(file) = self.pool.take(bytes) {
                break file;
            }
            match self.pool.make_if_room(bytes.max(self.pool.hasty_bytes())) {
                Ok(file) => {
                    self.pool.state.lock().short_of_space = false;
                    break file;
                }
                Err(e) if is_full(&e) && shortage.attempts < self.patience => {
                    let ending = {
                        let mut state = self.pool.state.lock();
                        state.short_of_space = true;
                        state.ending
                    };
                    shortage.attempts += u32::from(ending);
                    shortage.tell();
                    std::thread::sleep(RETRY);
                }
                Err(e) => return Err(e),
            }
        };
        shortage.over();
        let capacity = file.capacity;
        let last = self.live.back().map_or(Position(0), |live| live.last);
        self.live.push_back(LiveFile { file, last });
        self.pool
            .live
            .store(self.live.len() as u64, Ordering::Relaxed);
        Ok(capacity)
    }

    fn current(&mut self) -> io::Result<&mut LiveFile> {
        self.live
            .back_mut()
            .ok_or_else(|| io::Error::other("the journal has no open file"))
    }

    /// Name of the current file, for messages.
    pub(super) fn current_name(&self) -> &str {
        self.live.back().map_or(FOLDER, |live| &live.file.name)
    }

    /// Writes a group.
    pub(super) fn write(&mut self, place: u64, bytes: &[u8], last: Position) -> io::Result<()> {
        let live = self.current()?;
        live.file.file.write_at(bytes, place)?;
        live.file.capacity = live.file.capacity.max(place + bytes.len() as u64);
        live.last = last;
        Ok(())
    }

    /// Syncs the current file.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.current()?.file.file.sync_data()
    }

    /// Gives back files whose entries all lie at or below `trimmed`.
    pub(super) fn release(&mut self, trimmed: Position) {
        while self.live.len() > 1 && self.live.front().is_some_and(|file| file.last <= trimmed) {
            if let Some(old) = self.live.pop_front() {
                self.pool.retire(old.file);
            }
        }
        self.pool
            .live
            .store(self.live.len() as u64, Ordering::Relaxed);
    }
}

/// Whether an error says that there is no space.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Files without live groups, shared by the writer and the background thread.
pub(super) struct Pool {
    disk: Arc<dyn Disk>,
    file_bytes: u64,
    /// Spare files take nothing of this much free space.
    reserve_bytes: u64,
    state: Mutex<State>,
    wake: Condvar,
    live: AtomicU64,
    /// Bytes the writer wrote so far: what background zeroing keeps ahead of.
    pub(super) ingested: AtomicU64,
}

/// What came of one piece of background work.
pub(super) enum Work {
    /// It is done; there may be more.
    Done,
    /// There is no space for it now.
    Full,
    /// There was none.
    Nothing,
}

/// How much room the disk has for spare files.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    /// For one more.
    Ample,
    /// For those that are there.
    Tight,
    /// The reserve is touched: their space is wanted.
    Short,
}

struct State {
    ready: VecDeque<JournalFile>,
    /// Being zeroed; its capacity is what is zeroed so far.
    growing: Option<JournalFile>,
    /// Smaller than they should be: grown before they are used again.
    short: Vec<JournalFile>,
    doomed: Vec<JournalFile>,
    next_id: u64,
    short_of_space: bool,
    /// The writer is to write what is queued and stop.
    ending: bool,
    closing: bool,
}

impl State {
    /// A file is ready and none is to be removed.
    fn is_settled(&self) -> bool {
        self.doomed.is_empty() && !self.ready.is_empty()
    }

    /// Gives all spare files up but one: with none, a disk that is full to the last byte could not
    /// even take the entries that delete something.
    fn give_up(&mut self) {
        while self.ready.len() > 1 {
            self.doomed.extend(self.ready.pop_back());
        }
        self.short.sort_by_key(|file| file.capacity);
        let kept = match self.ready.is_empty() {
            true => self.short.pop(),
            false => None,
        };
        self.doomed.append(&mut self.short);
        self.short.extend(kept);
    }
}

impl Pool {
    pub(super) fn new(
        disk: Arc<dyn Disk>,
        file_bytes: u64,
        reserve_bytes: u64,
        next_id: u64,
    ) -> Self {
        let state = State {
            ready: VecDeque::new(),
            growing: None,
            short: Vec::new(),
            doomed: Vec::new(),
            next_id,
            short_of_space: false,
            ending: false,
            closing: false,
        };
        Self {
            disk,
            file_bytes,
            reserve_bytes,
            state: Mutex::new(state),
            wake: Condvar::new(),
            live: AtomicU64::new(0),
            ingested: AtomicU64::new(0),
        }
    }

    /// Takes a file without live groups in, for reuse or for removal.
    pub(super) fn retire(&self, file: JournalFile) {
        let mut state = self.state.lock();
        let room = state.ready.len() + state.short.len() < MAX_SPARES;
        if room && file.capacity == self.file_bytes {
            state.ready.push_back(file);
            state.short_of_space = false;
        } else if room && file.capacity < self.file_bytes {
            state.short.push(file);
        } else {
            state.doomed.push(file);
        }
        drop(state);
        self.wake.notify_all();
    }

    fn take(&self, bytes: u64) -> Option<JournalFile> {
        let mut state = self.state.lock();
        // For what is larger than any file one is made, and removed when it was trimmed: a file that
        // grows as it is written may find the disk full in the middle of a group.
        let ready = state.ready.iter().position(|file| file.capacity >= bytes);
        let ready = ready.and_then(|index| state.ready.remove(index));
        let enough = bytes.max(self.hasty_bytes());
        let file = ready
            .or_else(|| state.growing.take_if(|file| file.capacity >= enough))
            .or_else(|| {
                let index = state
                    .short
                    .iter()
                    .position(|file| file.capacity >= enough)?;
                Some(state.short.swap_remove(index))
            });
        drop(state);
        self.wake.notify_all();
        file
    }

    /// Size of a file that is used or made in a hurry.
    fn hasty_bytes(&self) -> u64 {
        HASTY_BYTES.min(self.file_bytes)
    }

    /// Makes a file and zeroes it at once, unless the disk says that it has no room for it.
    fn make_if_room(&self, bytes: u64) -> io::Result<JournalFile> {
        match self.disk.space()?.free < bytes {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => self.make(bytes),
        }
    }

    /// Makes a file and zeroes it at once.
    pub(super) fn make(&self, bytes: u64) -> io::Result<JournalFile> {
        let mut file = self.create()?;
        let made = (|| {
            while file.capacity < bytes {
                self.zero_step(&mut file, bytes)?;
            }
            self.disk.sync_dir(FOLDER)
        })();
        match made {
            Ok(()) => Ok(file),
            Err(e) => {
                self.discard(&file);
                Err(e)
            }
        }
    }

    fn create(&self) -> io::Result<JournalFile> {
        let id = {
            let mut state = self.state.lock();
            state.next_id += 1;
            state.next_id - 1
        };
        let name = format!("{FOLDER}/{id:08}.log");
        let file = self.disk.create(&name)?;
        Ok(JournalFile {
            name,
            file,
            capacity: 0,
        })
    }

    fn zero_step(&self, file: &mut JournalFile, bytes: u64) -> io::Result<()> {
        /// On a block, so that the disk can take it past the page cache.
        #[repr(align(4096))]
        struct Zeros([u8; STEP as usize]);
        static ZEROS: Zeros = Zeros([0; STEP as usize]);
        let len = STEP.min(bytes - file.capacity);
        file.file
            .write_at(&ZEROS.0[..len as usize], file.capacity)?;
        file.file.start_writeback(file.capacity, len)?;
        file.capacity += len;
        Ok(())
    }

    /// Drops a file that never held a group; what remains of it goes at the next start.
    fn discard(&self, file: &JournalFile) {
        let dropped = file
            .file
            .set_len(0)
            .and_then(|()| self.disk.delete(&file.name));
        if let Err(error) = dropped {
            tracing::warn!(%error, file = file.name, "cannot remove an unused journal file");
        }
    }

    /// Numbers for the statistics: files, files ready for reuse, whether space was short.
    pub(super) fn figures(&self) -> (u64, u64, bool) {
        let state = self.state.lock();
        let ready = state.ready.len() as u64;
        let idle = (state.doomed.len() + state.short.len()) as u64;
        let other = idle + u64::from(state.growing.is_some());
        (
            self.live.load(Ordering::Relaxed) + ready + other,
            ready,
            state.short_of_space,
        )
    }

    /// Files that hold live groups, or are written to.
    pub(super) fn live_files(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }

    /// Lets the writer wait for space no longer than for its patience.
    pub(super) fn end(&self) {
        self.state.lock().ending = true;
    }

    /// Ends [`Pool::run`] soon.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.ending = true;
        state.closing = true;
        drop(state);
        self.wake.notify_all();
    }

    /// Keeps one file ready and removes those that are not needed, until closed.
    pub(super) fn run(&self) -> io::Result<()> {
        loop {
            match self.work()? {
                Work::Done => {}
                Work::Full => self.pause(RETRY),
                Work::Nothing => {
                    let mut state = self.state.lock();
                    if state.closing {
                        return Ok(());
                    }
                    if state.is_settled() {
                        self.wake.wait_for(&mut state, LOOK);
                    }
                }
            }
        }
    }

    fn space(&self) -> io::Result<Space> {
        let free = self.disk.space()?.free;
        Ok(match self.reserve_bytes {
            0 => Space::Ample,
            reserve if free < reserve => Space::Short,
            reserve if free < reserve.saturating_add(self.file_bytes) => Space::Tight,
            _ => Space::Ample,
        })
    }

    /// One piece of background work: removes a file, or makes one ready.
    pub(super) fn work(&self) -> io::Result<Work> {
        let space = self.space()?;
        let mut state = self.state.lock();
        if state.closing {
            return Ok(Work::Nothing);
        }
        if space == Space::Short {
            state.give_up();
        }
        if state.is_settled() {
            return Ok(Work::Nothing);
        }
        // A file for the writer first, unless it is space that is wanted.
        let wanted = state.ready.is_empty() && space == Space::Ample;
        let doomed = match wanted && !state.short_of_space {
            true => None,
            false => state.doomed.pop(),
        };
        drop(state);
        match doomed {
            Some(file) => {
                self.remove(&file)?;
                Ok(Work::Done)
            }
            None if wanted => self.prepare(),
            None => Ok(Work::Full),
        }
    }

    /// Zeroes a new file at a measured pace.
    fn prepare(&self) -> io::Result<Work> {
        let result = self.grow();
        let mut state = self.state.lock();
        match result {
            Ok(()) => {
                state.short_of_space = false;
                Ok(Work::Done)
            }
            Err(e) if is_full(&e) => {
                if !state.short_of_space {
                    tracing::warn!(
                        bytes = self.file_bytes,
                        "no space for the next journal file; client writes are refused until there is \
                         some. Free space, or delete records or topics"
                    );
                }
                state.short_of_space = true;
                let partial = state.growing.take();
                drop(state);
                if let Some(file) = partial {
                    self.discard(&file);
                }
                Ok(Work::Full)
            }
            Err(e) => Err(e),
        }
    }

    fn grow(&self) -> io::Result<()> {
        let short = self.state.lock().short.pop();
        let mut file = short.map_or_else(|| self.create(), Ok)?;
        self.state.lock().growing = Some(file.clone());
        self.disk.sync_dir(FOLDER)?;
        let mut pace = Pace::new(self.ingested.load(Ordering::Relaxed));
        while file.capacity < self.file_bytes {
            self.zero_step(&mut file, self.file_bytes)?;
            {
                let mut state = self.state.lock();
                let closing = state.closing;
                match &mut state.growing {
                    Some(growing) if !closing => growing.capacity = file.capacity,
                    // Closing, or the writer could not wait for the rest of it.
                    _ => return Ok(()),
                }
            }
            if file.capacity == self.file_bytes {
                break;
            }
            pace.spend(STEP);
            while !pace.earn(self.ingested.load(Ordering::Relaxed)) {
                self.pause(TICK);
                if self.state.lock().closing {
                    return Ok(());
                }
            }
        }
        file.file.sync_data()?;
        let mut state = self.state.lock();
        if let Some(file) = state.growing.take() {
            state.ready.push_back(file);
        }
        Ok(())
    }

    fn pause(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut state = self.state.lock();
        while !state.closing && !self.wake.wait_until(&mut state, until).timed_out() {}
    }

    /// Gives a file's space back a little at a time, as a large unlink holds up the device.
    fn remove(&self, file: &JournalFile) -> io::Result<()> {
        let mut len = file.file.len()?;
        while len > DELETE_STEP {
            len -= DELETE_STEP;
            file.file.set_len(len)?;
            self.pause(Duration::from_millis(5));
        }
        self.disk.delete(&file.name)?;
        self.disk.sync_dir(FOLDER)
    }
}

/// Keeps background writing half as fast again as the writer, or at the lowest pace.
struct Pace {
    /// Bytes that may be written now, if positive.
    credit: f64,
    ingested: u64,
    at: Instant,
}

impl Pace {
    fn new(ingested: u64) -> Self {
        Self {
            credit: 0.0,
            ingested,
            at: Instant::now(),
        }
    }

    fn spend(&mut self, bytes: u64) {
        self.credit -= bytes as f64;
    }

    /// Counts the time that passed and what the writer wrote meanwhile; whether to go on.
    fn earn(&mut self, ingested: u64) -> bool {
        let slowest = self.at.elapsed().as_secs_f64() * MIN_PACE as f64;
        let ahead = (ingested - self.ingested) as f64 * 1.5;
        self.credit = (self.credit + slowest.max(ahead)).min(HASTY_BYTES as f64);
        self.ingested = ingested;
        self.at = Instant::now();
        self.credit >= 0.0
    }
}
