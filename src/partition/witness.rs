//! What the data directories of a node know of one another: each journal now and then notes how far
//! the others were on stable storage, so that a start finds out if one of them is an older copy.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};

use crate::catalog::{Image, Topic};
use crate::partition::directory::Directory;
use crate::partition::figures::Figures;
use crate::partition::registry::Registry;
use crate::store::journal::{Entry, EntryKind};
use crate::types::{DirectoryId, PartitionKey, Position};

const VERSION: u8 = 1;
/// Least time between two notes in one journal.
const INTERVAL: Duration = Duration::from_secs(10);
/// Topics that a refusal names.
const NAMED: usize = 10;

/// How far the journals of the other directories were on stable storage.
pub type Witness = BTreeMap<DirectoryId, Position>;

/// The journal payload: version u8, count u16, and for each directory its id (16 bytes, nil for the
/// first) and the position u64.
fn encode(witness: &Witness) -> Bytes {
    let mut out = Vec::with_capacity(3 + witness.len() * 24);
    out.put_u8(VERSION);
    out.put_u16(witness.len() as u16);
    for (directory, position) in witness {
        out.put_slice(directory.0.as_bytes());
        out.put_u64(position.0);
    }
    out.into()
}

/// Reads the payload of such a note.
pub fn decode(mut payload: &[u8]) -> Result<Witness, String> {
    let short = |_| "the entry about other directories is cut short".to_owned();
    let version = payload.try_get_u8().map_err(short)?;
    if version != VERSION {
        return Err(format!(
            "the entry about other directories has version {version}, this build reads {VERSION}"
        ));
    }
    let count = payload.try_get_u16().map_err(short)?;
    let mut witness = Witness::new();
    for _ in 0..count {
        let id = payload.try_get_u128().map_err(short)?;
        let position = payload.try_get_u64().map_err(short)?;
        let directory = DirectoryId(uuid::Uuid::from_u128(id));
        witness.insert(directory, Position(position));
    }
    Ok(witness)
}

/// When a directory's journal noted something last, and what all journals held then but for such
/// notes.
pub(super) type Noted = Option<(Duration, u64)>;

impl Registry {
    /// Notes in a directory's journal how far the others are, if they went on since the last note
    /// and that was some time ago, or if it must. Such notes alone call for none, or two idle
    /// directories would never be at rest.
    pub(super) fn witness(&self, directory: &Directory, must: bool) {
        let Some(journal) = directory.journal() else {
            return;
        };
        if !self.directories.are_several() {
            return;
        }
        let now = self.clock.monotonic();
        let held = self.directories.iter().map(|each| {
            let appended = each.journal().map_or(0, |journal| journal.appended().0);
            appended.saturating_sub(each.figures.witnesses.load(Ordering::Relaxed))
        });
        let held = held.sum();
        let mut noted = directory.noted.lock();
        let due = match *noted {
            None => true,
            Some((at, before)) => now >= at + INTERVAL && held != before,
        };
        if !(due || must) {
            return;
        }
        let others = self.directories.iter();
        let others = others.filter(|other| other.no != directory.no);
        let witness: Witness = others
            .filter_map(|other| Some((other.id, other.journal()?.synced())))
            .collect();
        Figures::add(&directory.figures.witnesses, 1);
        journal.append(Entry {
            kind: EntryKind::Witness,
            key: PartitionKey::default(),
            payload: encode(&witness),
            fill: None,
            charge: 0,
        });
        *noted = Some((now, held));
    }
}

/// A directory as a start finds it.
pub(super) struct Found<'a> {
    pub(super) directory: &'a Arc<Directory>,
    /// Where its journal ends.
    pub(super) last: Position,
    /// A loss of acknowledged entries of this directory was accepted.
    pub(super) loss_accepted: bool,
}

/// Refuses a start on a directory that is behind what another one has noted of it.
pub(super) fn check(found: &[Found<'_>], image: &Image) -> Result<(), String> {
    for one in found {
        let id = one.directory.id;
        let ahead = found.iter().filter_map(|other| {
            let applied = other.directory.applied.lock();
            let noted = *applied.witness.get(&id)?;
            (noted > one.last).then_some((noted, &*other.directory.name))
        });
        let Some((noted, by)) = ahead.max() else {
            continue;
        };
        let (name, missing) = (&one.directory.name, noted.0 - one.last.0);
        if one.loss_accepted {
            tracing::warn!(
                directory = %name, missing,
                "the journal ends before what another directory has noted of it; the loss is \
                 accepted, as asked by journal.truncate.corruption=true"
            );
            continue;
        }
        return Err(format!(
            "data directory {name} is an older copy than {by}, or has lost the end of its journal: \
             the journal ends with entry {}, and entry {} was on stable storage when {by} noted it. \
             Acknowledged entries are missing ({missing} or more), which affects {}; nothing is \
             served. Put the newest copy of {name} back, or restore all data directories from copies \
             of one moment; to accept the loss, start once with journal.truncate.corruption=true",
            one.last.0,
            noted.0,
            affected(image, id),
        ));
    }
    Ok(())
}

/// What a directory holds, in words.
fn affected(image: &Image, id: DirectoryId) -> String {
    if id == DirectoryId::FIRST {
        return "topics, configs and consumer groups, and the records that live there".to_owned();
    }
    let lives_there = |topic: &&Arc<Topic>| {
        let mut shards = topic.layout.shards().iter();
        shards.any(|shard| shard.home == id)
    };
    let topics: Vec<&str> = image
        .topics()
        .filter(lives_there)
        .map(|t| &*t.name)
        .collect();
    let named = topics[..topics.len().min(NAMED)].join(", ");
    match topics.len() {
        0 => "no topic that is there now".to_owned(),
        n if n > NAMED => format!("records of {named} and {} more topics", n - NAMED),
        _ => format!("records of {named}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_comes_back_as_written() {
        let other = DirectoryId(uuid::Uuid::from_u128(7));
        let witness: Witness = [
            (DirectoryId::FIRST, Position(9)),
            (other, Position(1 << 40)),
        ]
        .into();
        let bytes = encode(&witness);
        assert_eq!(decode(&bytes), Ok(witness));
        for cut in 0..bytes.len() {
            assert!(decode(&bytes[..cut]).is_err());
        }
        let mut newer = bytes.to_vec();
        newer[0] = 9;
        assert!(decode(&newer).unwrap_err().contains("version 9"));
    }
}
