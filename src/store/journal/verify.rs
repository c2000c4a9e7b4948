//! Reads every group of an opened journal, needed or not.

use super::group;
use super::open::Opened;
use super::reader::Reader;
use super::{JournalError, recover};

/// A group whose entries cannot be trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedGroup {
    /// Its file.
    pub file: String,
    /// Where in the file it starts.
    pub place: u64,
    /// Position of its first entry.
    pub first: u64,
    /// Position of its last entry.
    pub last: u64,
    /// What is wrong.
    pub why: String,
}

/// What the groups of a journal look like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Files that hold groups of the journal.
    pub files: u64,
    /// Groups looked at.
    pub groups: u64,
    /// Entries in them.
    pub entries: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Groups that are needed and cannot be read.
    pub damage: Vec<DamagedGroup>,
    /// Groups that cannot be read and that nothing needs any more.
    pub unneeded: Vec<DamagedGroup>,
}

impl Opened {
    /// Checks header, checksum and order of every group. The chain's end was found, and told from
    /// damage, when the journal was opened.
    pub fn verify(&self) -> Result<Verified, JournalError> {
        let mut found = Verified::default();
        let mut before: Option<group::Header> = None;
        let trimmed = self.chain().last().map(|file| file.last.trimmed);
        for file in self.chain() {
            found.files += 1;
            let mut reader = Reader::whole(&file.file, self.store());
            let mut header = file.first;
            loop {
                let why = match &before {
                    Some(before) if !recover::follows(before, &header) => {
                        Some("it does not continue the group before it")
                    }
                    _ => group::parse(&header, reader.group(&header, false)?).err(),
                };
                let list = match Some(header.last()) <= trimmed {
                    true => &mut found.unneeded,
                    false => &mut found.damage,
                };
                list.extend(why.map(|why| DamagedGroup {
                    file: file.file.name.clone(),
                    place: header.place,
                    first: header.first.0,
                    last: header.last().0,
                    why: why.to_owned(),
                }));
                found.groups += 1;
                found.entries += u64::from(header.entries);
                found.bytes += header.padded();
                before = Some(header);
                if header.number == file.last.number {
                    break;
                }
                match reader.header(header.place + header.padded())? {
                    Some(next) => header = next,
                    None => break,
                }
            }
        }
        Ok(found)
    }
}
