//! A journal between opening and serving: recovered, replayed, then started.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::core::{Core, Start};
use super::file::FileJournal;
use super::files::{FOLDER, Files, JournalFile, LiveFile, Pool};
use super::group::{self, BLOCK};
use super::reader::{Reader, failed};
use super::recover::{ChainFile, recover};
use super::writer::{Counters, Inbox, Ledger, Writer};
use super::{Group, JournalError, JournalOptions, ReplaySummary, Sink};
use crate::clock::{Clock, SystemClock};
use crate::store::backend::Disk;
use crate::types::Position;

/// Attempts to find space for a file that the writer waits for, a tenth of a second apart, once the
/// journal is to end.
const PATIENCE: u32 = 300;
/// A first file that is left over must be this large to be used as it is.
const MIN_FIRST: u64 = 64 * 1024;

/// A journal whose end is known and safe, and whose groups can be read.
pub struct Opened {
    options: JournalOptions,
    chain: VecDeque<ChainFile>,
    /// The file to begin with where no file holds a group yet.
    first: Option<JournalFile>,
    pool: Arc<Pool>,
    generation: u64,
    cut: Option<String>,
    ledger: Ledger,
}

impl FileJournal {
    /// Finds the journal's end after any kind of stop. What nobody knew as synced is written and
    /// synced again before this returns, so whatever is replayed stays.
    pub fn open(disk: Arc<dyn Disk>, options: JournalOptions) -> Result<Opened, JournalError> {
        disk.create_dir(FOLDER).map_err(failed("make", FOLDER))?;
        disk.sync_dir("")
            .map_err(failed("sync", "the data directory"))?;
        let recovered = recover(&*disk, &options)?;
        disk.sync_dir(FOLDER).map_err(failed("sync", FOLDER))?;
        if let Some(cut) = &recovered.cut {
            tracing::warn!("journal: {cut}");
        }
        let file_bytes = options.file_bytes / BLOCK * BLOCK;
        let pool = Pool::new(disk, file_bytes, options.reserve_bytes, recovered.next_id);
        let mut spares = recovered.spares;
        let mut first = None;
        if recovered.chain.is_empty() {
            spares.sort_by_key(|file| file.capacity);
            first = match spares.pop_if(|file| file.capacity >= MIN_FIRST) {
                Some(file) => Some(file),
                None => {
                    let bytes = options.first_zero_bytes.min(options.file_bytes).max(BLOCK);
                    let made = pool.make(bytes / BLOCK * BLOCK);
                    Some(made.map_err(failed("make a file in", FOLDER))?)
                }
            };
        }
        for file in spares {
            pool.retire(file);
        }
        let (chain, cut) = (recovered.chain, recovered.cut);
        Ok(Opened {
            options,
            generation: recovered.generation,
            chain,
            first,
            pool: Arc::new(pool),
            cut,
            ledger: Ledger::default(),
        })
    }
}

impl Opened {
    /// Position of the last entry; 0 if there is none.
    pub fn last(&self) -> Position {
        self.chain
            .back()
            .map_or(Position(0), |file| file.last.last())
    }

    /// Bytes that a replay reads.
    pub fn bytes(&self) -> u64 {
        self.chain.iter().map(ChainFile::end).sum()
    }

    /// What opening cut off the journal's end, in words.
    pub fn cut(&self) -> Option<&str> {
        self.cut.as_deref()
    }

    /// The files with groups, in journal order. Recycled files keep their names, so these need not
    /// rise.
    pub fn file_names(&self) -> impl Iterator<Item = &str> {
        self.chain.iter().map(|file| file.file.name.as_str())
    }

    pub(super) fn chain(&self) -> impl Iterator<Item = &ChainFile> {
        self.chain.iter()
    }

    pub(super) fn store(&self) -> uuid::Uuid {
        self.options.store_id
    }

    /// Delivers every group with entries behind `after`, in order. `progress` is told bytes done
    /// and bytes in all.
    pub fn replay(
        &mut self,
        after: Position,
        f: &mut dyn FnMut(Group) -> Result<(), String>,
        progress: &dyn Fn(u64, u64),
    ) -> Result<ReplaySummary, JournalError> {
        let last = self.last();
        if after > last {
            return Err(JournalError::Missing {
                from: last.0 + 1,
                to: after.0,
            });
        }
        if let Some(first) = self.chain.front().map(|file| file.first.first)
            && first.0 > after.0 + 1
        {
            return Err(JournalError::Missing {
                from: after.0 + 1,
                to: first.0 - 1,
            });
        }
        let mut summary = ReplaySummary {
            last,
            cut: self.cut.clone(),
            ..Default::default()
        };
        let total = self.bytes();
        let mut before = 0;
        self.ledger = Ledger::default();
        for file in &self.chain {
            let told = |done| progress(before + done, total);
            replay_file(
                &self.options,
                file,
                after,
                &mut self.ledger,
                &mut summary,
                f,
                &told,
            )?;
            before += file.end();
        }
        self.ledger.trim(
            self.chain
                .back()
                .map_or(Position(0), |file| file.last.trimmed),
        );
        Ok(summary)
    }

    /// Begins to take entries. `sink` is told of each durable group; `fatal` is called once if
    /// the journal cannot go on, and must end the process.
    pub fn start(
        self,
        sink: Arc<dyn Sink>,
        fatal: Arc<dyn Fn(String) + Send + Sync>,
    ) -> Arc<FileJournal> {
        let writer = self.into_writer(Arc::new(SystemClock::new()), PATIENCE);
        FileJournal::run(writer, sink, fatal)
    }

    pub(super) fn into_writer(self, clock: Arc<dyn Clock>, patience: u32) -> Writer {
        let end = self
            .chain
            .back()
            .map(|file| (file.last, file.end(), file.file.capacity));
        let mut start = Start {
            store: self.options.store_id,
            generation: self.generation,
            ..Start::default()
        };
        if let Some((last, place, capacity)) = end {
            // What lies before the chain cannot be read any more, also where the group that called
            // it trimmed was cut off as torn.
            let before = self.chain.front().map_or(0, |file| file.first.first.0 - 1);
            start = Start {
                number: last.number,
                previous_crc: last.crc,
                last: last.last(),
                trimmed: last.trimmed.max(Position(before)),
                place,
                capacity,
                ..start
            };
        }
        if let Some(first) = &self.first {
            start.capacity = first.capacity;
        }
        let groups = self.chain.into_iter().map(|file| LiveFile {
            last: file.last.last(),
            file: file.file,
        });
        let first = self.first.map(|file| LiveFile {
            last: Position(0),
            file,
        });
        let live = groups.chain(first).collect();
        let inbox = Inbox::new(start.last, start.trimmed);
        Writer {
            core: Core::new(start, self.options.max_group, self.options.sync),
            files: Files::new(live, Arc::clone(&self.pool), patience),
            pool: self.pool,
            inbox: Arc::new(inbox),
            counters: Arc::new(Counters::default()),
            ledger: Arc::new(Mutex::new(self.ledger)),
            clock,
        }
    }
}

fn replay_file(
    options: &JournalOptions,
    file: &ChainFile,
    after: Position,
    ledger: &mut Ledger,
    summary: &mut ReplaySummary,
    f: &mut dyn FnMut(Group) -> Result<(), String>,
    progress: &dyn Fn(u64),
) -> Result<(), JournalError> {
    let mut reader = Reader::whole(&file.file, options.store_id);
    let mut header = file.first;
    loop {
        let corrupt = |offset: u64, why: &str| JournalError::Corrupt {
            file: file.file.name.clone(),
            offset,
            from: header.first.0,
            why: why.to_owned(),
        };
        if header.entries > 0 && header.last() > after {
            let buffer = reader.group(&header, false)?;
            let group = group::parse(&header, buffer).map_err(|why| corrupt(header.place, why))?;
            summary.groups += 1;
            summary.entries += u64::from(header.entries);
            summary.bytes += header.padded();
            f(group).map_err(|why| JournalError::Refused {
                position: header.last().0,
                why,
            })?;
        }
        ledger.note(header.last(), header.padded());
        let end = header.place + header.padded();
        progress(end);
        if header.number == file.last.number {
            return Ok(());
        }
        header = match reader.header(end)? {
            Some(next) if next.number == header.number + 1 => next,
            _ => return Err(corrupt(end, "a group's header changed while it was read")),
        };
    }
}
