//! Finds a journal's end after any kind of stop, and tells a torn tail from damage.
//!
//! A group that cannot be read is the torn tail only if nobody knew it as synced: no header of
//! the same or a later generation says `synced_to` at or above its number. Then it was never
//! acknowledged, and the journal ends before it. Otherwise acknowledged entries are damaged, and
//! the journal does not open.

use std::cmp::Reverse;
use std::collections::VecDeque;

use super::files::{FOLDER, JournalFile};
use super::group::{self, BLOCK, Header};
use super::reader::{Reader, failed};
use super::{JournalError, JournalOptions};
use crate::store::backend::Disk;
use crate::types::Position;

/// While only headers are read, groups of this size and more are skipped over.
const SKIP: u64 = 64 * 1024;
const HEADER_STEP: usize = 256 * 1024;

/// A file of the chain of groups.
pub(super) struct ChainFile {
    /// The file.
    pub file: JournalFile,
    /// Header of its first group.
    pub first: Header,
    /// Header of its last group.
    pub last: Header,
}

impl ChainFile {
    /// Where its groups end.
    pub(super) fn end(&self) -> u64 {
        self.last.place + self.last.padded()
    }
}

/// What was found.
pub(super) struct Recovered {
    /// The files with live groups, in order.
    pub chain: VecDeque<ChainFile>,
    /// The other files.
    pub spares: Vec<JournalFile>,
    /// The number for the next file.
    pub next_id: u64,
    /// For the groups to come: above that of any header found.
    pub generation: u64,
    /// What was cut off, in words.
    pub cut: Option<String>,
}

/// The place where the chain of groups stops.
struct End {
    file: usize,
    place: u64,
}

/// Finds the journal, cuts its torn tail and makes the rest durable.
pub(super) fn recover(
    disk: &dyn Disk,
    options: &JournalOptions,
) -> Result<Recovered, JournalError> {
    let (files, next_id) = open_files(disk)?;
    let mut recovery = Recovery {
        options,
        files,
        chain: Vec::new(),
        behind: Vec::new(),
        cut: None,
    };
    recovery.follow()?;
    recovery.judge()?;
    if options.allow_truncate_corruption {
        recovery.verify_all()?;
    }
    let generation = recovery.next_generation();
    recovery.wipe_behind_end()?;
    recovery.clear_next_places()?;
    let Recovery {
        files, chain, cut, ..
    } = recovery;
    let mut files: Vec<Option<JournalFile>> = files.into_iter().map(Some).collect();
    let mut live = VecDeque::new();
    for (index, first, last) in chain {
        if let Some(file) = files.get_mut(index).and_then(Option::take) {
            live.push_back(ChainFile { file, first, last });
        }
    }
    let spares = files.into_iter().flatten().collect();
    Ok(Recovered {
        chain: live,
        spares,
        next_id,
        generation,
        cut,
    })
}

fn open_files(disk: &dyn Disk) -> Result<(Vec<JournalFile>, u64), JournalError> {
    let names = disk.list(FOLDER).map_err(failed("list", FOLDER))?;
    let mut files = Vec::new();
    let mut next_id = 1;
    for name in names {
        let id = name
            .strip_suffix(".log")
            .and_then(|id| id.parse::<u64>().ok());
        let Some(id) = id else {
            return Err(JournalError::Foreign {
                file: format!("{FOLDER}/{name}"),
            });
        };
        next_id = next_id.max(id + 1);
        let name = format!("{FOLDER}/{name}");
        let file = disk.open(&name).map_err(failed("open", &name))?;
        let len = file.len().map_err(failed("open", &name))?;
        let capacity = len / BLOCK * BLOCK;
        if capacity < len {
            // No group is there, but the header of one may be, and the file may grow back over it.
            file.set_len(capacity)
                .and_then(|()| file.sync_data())
                .map_err(failed("cut", &name))?;
        }
        files.push(JournalFile {
            name,
            file,
            capacity,
        });
    }
    Ok((files, next_id))
}

struct Recovery<'a> {
    options: &'a JournalOptions,
    files: Vec<JournalFile>,
    /// Index of each file of the chain, the headers of its first and its last group.
    chain: Vec<(usize, Header, Header)>,
    /// Headers behind the chain's end, and the files they are in.
    behind: Vec<(usize, Header)>,
    cut: Option<String>,
}

impl Recovery<'_> {
    fn reader(&self, file: usize, step: usize) -> Reader<'_> {
        Reader::new(&self.files[file], self.options.store_id, step)
    }

    /// Walks from the first group that is needed to the last one that continues the one before.
    fn follow(&mut self) -> Result<(), JournalError> {
        let mut fronts = Vec::new();
        let mut trimmed = Position(0);
        for index in 0..self.files.len() {
            if let Some(first) = self.reader(index, BLOCK as usize).header(0)? {
                let last = self.walk(index, first)?;
                trimmed = trimmed.max(last.trimmed);
                fronts.push((index, first, last));
            }
        }
        // Of two groups with one number the later generation's counts: it was written because the
        // other one had been cut.
        fronts.sort_by_key(|(_, first, _)| (first.number, Reverse(first.generation)));
        fronts.dedup_by_key(|(_, first, _)| first.number);
        let needed = trimmed.0 + 1;
        let start = fronts
            .iter()
            .rposition(|(_, first, _)| first.first.0 <= needed);
        let Some(mut start) = start else {
            return Ok(());
        };
        // Files that go before it are kept as long as they are there: the group that calls them
        // trimmed may turn out to be torn, and then the journal ends in one of them.
        while start > 0 && follows(&fronts[start - 1].2, &fronts[start].1) {
            start -= 1;
        }
        for front in fronts.drain(start..) {
            let continues = |before: &Header| follows(before, &front.1);
            if self
                .chain
                .last()
                .is_none_or(|(_, _, before)| continues(before))
            {
                self.chain.push(front);
            } else {
                break;
            }
        }
        Ok(())
    }

    /// The last group of a file whose first one is given.
    fn walk(&self, file: usize, first: Header) -> Result<Header, JournalError> {
        let mut small = self.reader(file, HEADER_STEP);
        let mut large = self.reader(file, BLOCK as usize);
        let mut last = first;
        loop {
            let reader = if last.padded() < SKIP {
                &mut small
            } else {
                &mut large
            };
            match reader.header(last.place + last.padded())? {
                Some(next) if follows(&last, &next) => last = next,
                _ => return Ok(last),
            }
        }
    }

    fn last(&self) -> Option<Header> {
        self.chain.last().map(|(_, _, last)| *last)
    }

    fn end(&self) -> End {
        match self.chain.last() {
            Some((file, _, last)) => End {
                file: *file,
                place: last.place + last.padded(),
            },
            None => End { file: 0, place: 0 },
        }
    }

    /// Headers behind the chain's end: in the rest of its last file, and in files outside it.
    fn search_behind(&mut self) -> Result<(), JournalError> {
        let last = self.last();
        let number = last.map_or(0, |last| last.number);
        let mut found = Vec::new();
        for index in 0..self.files.len() {
            let position = self.chain.iter().position(|(file, _, _)| *file == index);
            let from = match position {
                Some(position) if position + 1 == self.chain.len() => self.end().place,
                Some(_) => continue,
                None => 0,
            };
            let mut reader = self.reader(index, 1024 * 1024);
            reader.search(from, &mut |header| {
                if header.number > number {
                    found.push((index, header));
                }
            })?;
        }
        self.behind = found;
        Ok(())
    }

    /// Where the group behind the chain's end should be: right there, unless the ones after it
    /// lie in another file.
    fn unreadable(&self) -> End {
        match self.behind.iter().min_by_key(|(_, header)| header.number) {
            Some((file, header)) if *file != self.end().file && header.place > 0 => End {
                file: *file,
                place: 0,
            },
            _ => self.end(),
        }
    }

    /// Decides whether the chain's end is a torn tail, checks and makes durable what nobody
    /// knows as synced.
    fn judge(&mut self) -> Result<(), JournalError> {
        let last = self.last();
        let (number, generation) = last.map_or((0, 0), |last| (last.number, last.generation));
        self.search_behind()?;
        let claims = self
            .behind
            .iter()
            .filter(|(_, header)| header.generation >= generation);
        let claimed = claims
            .map(|(_, header)| header.synced_to)
            .max()
            .unwrap_or(0);
        if claimed > number {
            let why = format!(
                "group {} cannot be read, though a later group knows it as synced",
                number + 1
            );
            let from = last.map_or(1, |last| last.last().0 + 1);
            return self.damaged(self.unreadable(), from, why);
        }
        if !self.behind.is_empty() {
            self.note_cut(format!("group {} is incomplete", number + 1));
        }
        let known = last.map_or(0, |last| last.synced_to).max(claimed);
        self.settle(known)
    }

    /// Reads each group behind `known` in full, and writes and syncs it again: it may be in the
    /// page cache only, and after a failed sync even a clean page may not be on the device.
    fn settle(&mut self, known: u64) -> Result<(), JournalError> {
        let from = self
            .chain
            .iter()
            .position(|(_, _, last)| last.number > known);
        for at in from.unwrap_or(self.chain.len())..self.chain.len() {
            let (index, first, last) = self.chain[at];
            let file = &self.files[index];
            let mut reader = Reader::whole(file, self.options.store_id);
            let mut header = first;
            let mut before = None;
            loop {
                if header.number > known {
                    let bytes = reader.group(&header, true)?;
                    if group::parse(&header, bytes.clone()).is_err() {
                        drop(reader);
                        self.cut_before(at, before, &header)?;
                        return self.sync_chain(known);
                    }
                    file.file
                        .write_at(&bytes, header.place)
                        .map_err(failed("write", &file.name))?;
                }
                if header.number == last.number {
                    break;
                }
                before = Some(header);
                let next = header.place + header.padded();
                match reader.header(next)? {
                    Some(next) => header = next,
                    None => break,
                }
            }
        }
        self.sync_chain(known)
    }

    fn sync_chain(&self, known: u64) -> Result<(), JournalError> {
        for (index, _, last) in &self.chain {
            if last.number > known {
                let file = &self.files[*index];
                file.file.sync_data().map_err(failed("sync", &file.name))?;
            }
        }
        Ok(())
    }

    /// Ends the chain before a group of its file number `at`.
    fn cut_before(
        &mut self,
        at: usize,
        before: Option<Header>,
        bad: &Header,
    ) -> Result<(), JournalError> {
        self.chain.truncate(at + 1);
        match (before, self.chain.last_mut()) {
            (Some(before), Some(file)) => file.2 = before,
            _ => self.chain.truncate(at),
        }
        self.search_behind()?;
        self.note_cut(format!("group {} is incomplete", bad.number));
        Ok(())
    }

    fn note_cut(&mut self, what: String) {
        let never = "it was never known as synced, so nothing acknowledged is lost";
        self.cut
            .get_or_insert(format!("cut the torn tail of the journal: {what}; {never}"));
    }

    /// Reports damage, or accepts it where the options say so.
    fn damaged(&mut self, end: End, from: u64, why: String) -> Result<(), JournalError> {
        let file = self
            .files
            .get(end.file)
            .map_or(FOLDER, |file| &file.name)
            .to_owned();
        if !self.options.allow_truncate_corruption {
            return Err(JournalError::Corrupt {
                file,
                offset: end.place,
                from,
                why,
            });
        }
        self.cut = Some(format!(
            "cut acknowledged entries from position {from} on, as asked: {file} is damaged at \
             byte {}: {why}",
            end.place
        ));
        Ok(())
    }

    /// Reads every group, to cut before the first damaged one.
    fn verify_all(&mut self) -> Result<(), JournalError> {
        let trimmed = self.last().map_or(Position(0), |last| last.trimmed);
        for at in 0..self.chain.len() {
            let (index, first, last) = self.chain[at];
            let mut reader = Reader::whole(&self.files[index], self.options.store_id);
            let mut header = first;
            let mut before = None;
            loop {
                // What is not needed any more may be damaged.
                let checked = match header.last() <= trimmed {
                    true => Ok(()),
                    false => group::parse(&header, reader.group(&header, false)?).map(|_| ()),
                };
                if let Err(why) = checked {
                    drop(reader);
                    let end = End {
                        file: index,
                        place: header.place,
                    };
                    self.cut_before(at, before, &header)?;
                    return self.damaged(end, header.first.0, why.to_owned());
                }
                if header.number == last.number {
                    break;
                }
                before = Some(header);
                match reader.header(header.place + header.padded())? {
                    Some(next) => header = next,
                    None => break,
                }
            }
        }
        Ok(())
    }

    fn next_generation(&self) -> u64 {
        let behind = self.behind.iter().map(|(_, header)| header.generation);
        let last = self.last().map(|last| last.generation);
        behind.chain(last).max().unwrap_or(0) + 1
    }

    /// Takes every header behind the end away, the highest number first, so that no later start
    /// can take one for a part of the journal or for a claim on what is written instead of it.
    fn wipe_behind_end(&mut self) -> Result<(), JournalError> {
        let mut behind = std::mem::take(&mut self.behind);
        behind.sort_by_key(|(_, header)| Reverse(header.number));
        for (index, header) in &behind {
            let file = &self.files[*index];
            file.file
                .write_at(&[0; BLOCK as usize], header.place)
                .and_then(|()| file.file.sync_data())
                .map_err(failed("write", &file.name))?;
        }
        Ok(())
    }

    /// Makes sure that the device holds no header where the next group may lie: right behind the
    /// last one, or at the front of another file. What is read there proves nothing. A start that
    /// was stopped may have wiped a header in the page cache only, and one that comes back after a
    /// power loss would compete with the group that was written elsewhere under its number.
    fn clear_next_places(&self) -> Result<(), JournalError> {
        for (index, file) in self.files.iter().enumerate() {
            let position = self.chain.iter().position(|(at, _, _)| *at == index);
            let place = match position {
                Some(position) if position + 1 == self.chain.len() => self.end().place,
                Some(_) => continue,
                None => 0,
            };
            if place + BLOCK <= file.capacity {
                file.file
                    .write_at(&[0; BLOCK as usize], place)
                    .map_err(failed("write", &file.name))?;
            }
            file.file.sync_data().map_err(failed("sync", &file.name))?;
        }
        Ok(())
    }
}

/// Whether a group is the one right after another.
pub(super) fn follows(before: &Header, next: &Header) -> bool {
    next.number == before.number + 1
        && next.previous_crc == before.crc
        && next.generation >= before.generation
        && next.first.0 == before.last().0 + 1
        && next.synced_to >= before.synced_to
        && next.trimmed >= before.trimmed
}
