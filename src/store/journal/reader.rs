//! Reads groups back from files, in large steps.

use std::io;

use bytes::Bytes;
use uuid::Uuid;

use super::JournalError;
use super::files::JournalFile;
use super::group::{self, BLOCK, HEADER, Header, NoHeader};

/// Bytes read at a time while groups are small, and while the disk is searched for them.
const STEP: usize = 1024 * 1024;

/// Turns a disk's error into ours.
pub(super) fn failed<'a>(
    what: &'static str,
    name: &'a str,
) -> impl Fn(io::Error) -> JournalError + 'a {
    move |error| JournalError::Io {
        what: format!("{what} {name}"),
        error,
    }
}

/// Reads one file from front to back.
pub(super) struct Reader<'a> {
    file: &'a JournalFile,
    store: Uuid,
    window: Vec<u8>,
    start: u64,
    /// How much to read when the window runs out.
    step: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(file: &'a JournalFile, store: Uuid, step: usize) -> Self {
        Self {
            file,
            store,
            window: Vec::new(),
            start: 0,
            step,
        }
    }

    /// A reader that expects to need every byte.
    pub(super) fn whole(file: &'a JournalFile, store: Uuid) -> Self {
        Self::new(file, store, STEP)
    }

    /// Bytes from `place` on: at least `least`, if the file has as many.
    fn bytes(&mut self, place: u64, least: usize) -> Result<&[u8], JournalError> {
        let end = self.start + self.window.len() as u64;
        if place < self.start || place + least as u64 > end {
            let len = (self.step.max(least) as u64).min(self.file.capacity.saturating_sub(place))
                as usize;
            self.window.resize(len, 0);
            self.start = place;
            let read = self.file.file.read_at(&mut self.window, place);
            read.map_err(failed("read", &self.file.name))?;
        }
        Ok(&self.window[(place - self.start) as usize..])
    }

    /// The header of a group that starts at `place`, if one does and it fits into the file.
    pub(super) fn header(&mut self, place: u64) -> Result<Option<Header>, JournalError> {
        let header = self.any_header(place)?;
        let capacity = self.file.capacity;
        Ok(header.filter(|header| place + header.padded() <= capacity))
    }

    /// The same, also of a group whose end is missing.
    fn any_header(&mut self, place: u64) -> Result<Option<Header>, JournalError> {
        if place + HEADER as u64 > self.file.capacity {
            return Ok(None);
        }
        let decoded = Header::decode(self.bytes(place, HEADER)?);
        match decoded {
            Ok(header) if header.store != self.store => {
                if place == 0 {
                    return Err(JournalError::Foreign {
                        file: self.file.name.clone(),
                    });
                }
                Ok(None)
            }
            Ok(header) => Ok(Some(header).filter(|header| header.place == place)),
            Err(NoHeader::Newer(found)) => Err(JournalError::Newer {
                file: self.file.name.clone(),
                found,
                known: group::VERSION,
            }),
            Err(NoHeader::Invalid) => Ok(None),
        }
    }

    /// The group's bytes in a buffer of their own: with its padding, or without.
    pub(super) fn group(&mut self, header: &Header, padded: bool) -> Result<Bytes, JournalError> {
        let used = HEADER + header.length as usize;
        let len = if padded {
            header.padded() as usize
        } else {
            used
        };
        let place = header.place;
        let inside =
            place >= self.start && place + len as u64 <= self.start + self.window.len() as u64;
        if inside || len <= self.step / 4 {
            return Ok(Bytes::copy_from_slice(&self.bytes(place, len)?[..len]));
        }
        let mut buffer = vec![0; len];
        let read = self.file.file.read_at(&mut buffer, place);
        read.map_err(failed("read", &self.file.name))?;
        Ok(Bytes::from(buffer))
    }

    /// Every header from `place` on, at any block, whatever lies between. Also those of groups that
    /// the file's end cuts off: a file that grows again would make them look whole.
    pub(super) fn search(
        &mut self,
        mut place: u64,
        found: &mut dyn FnMut(Header),
    ) -> Result<(), JournalError> {
        while place + HEADER as u64 <= self.file.capacity {
            if let Some(header) = self.any_header(place)? {
                found(header);
            }
            place += BLOCK;
        }
        Ok(())
    }
}
