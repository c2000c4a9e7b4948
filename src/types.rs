//! Ids and numbers that must not be swapped for one another.

use std::fmt;

/// A topic's id as clients see it: random, never reused.
pub type TopicId = uuid::Uuid;

/// An offset in a partition's log. Negative values are never stored.
pub type Offset = i64;

/// A topic's number inside this store: allocated upwards, never reused, never shown to clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicNo(pub u32);

/// One partition of one topic, inside this store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartitionKey {
    /// The topic's number.
    pub topic: TopicNo,
    /// The partition's index, from 0.
    pub index: u32,
}

impl fmt::Display for PartitionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic.0, self.index)
    }
}

/// A shard's id: allocated upwards over all topics, never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardId(pub u64);

/// A data directory of this node: its place in `log.dirs`, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DirectoryNo(pub u16);

/// A data directory as layouts name it: the store id in its `format` file, and nil for the first
/// one, whose journal holds the catalog.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DirectoryId(pub uuid::Uuid);

impl DirectoryId {
    /// The first directory.
    pub const FIRST: Self = Self(uuid::Uuid::nil());
}

/// A place in a directory's journal: the number of an entry, counted from 1 and never reset.
/// 0 stands for "before the first entry", so a wait for it is over at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position(pub u64);

/// A place in the journal of one of this node's directories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The directory.
    pub directory: DirectoryNo,
    /// The entry.
    pub position: Position,
}

/// What an answer waits for: a place in each journal that it is about, which is mostly one. The
/// default is over at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    one: Place,
    /// Places in other directories; without any, nothing is allocated.
    more: Vec<Place>,
}

impl Places {
    /// Adds a place: of two in one directory the later one counts.
    pub fn add(&mut self, place: Place) {
        if place.position == Position(0) {
            return;
        }
        if self.one.position == Position(0) {
            self.one = place;
            return;
        }
        let mut all = std::iter::once(&mut self.one).chain(&mut self.more);
        match all.find(|known| known.directory == place.directory) {
            Some(known) => known.position = known.position.max(place.position),
            None => self.more.push(place),
        }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = Place> {
        std::iter::once(self.one).chain(self.more.iter().copied())
    }
}

impl From<Place> for Places {
    fn from(one: Place) -> Self {
        Self {
            one,
            more: Vec::new(),
        }
    }
}

/// A position in the first directory's journal, where catalog and internal topics are.
impl From<Position> for Places {
    fn from(position: Position) -> Self {
        let directory = DirectoryNo(0);
        Place {
            directory,
            position,
        }
        .into()
    }
}

/// The number of a segment file, counted from 1 and never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_each_directory_the_latest_place_counts() {
        let place = |directory, position| Place {
            directory: DirectoryNo(directory),
            position: Position(position),
        };
        let mut places = Places::default();
        for added in [
            place(1, 0),
            place(1, 7),
            place(0, 3),
            place(1, 5),
            place(0, 4),
        ] {
            places.add(added);
        }
        assert_eq!(
            places.iter().collect::<Vec<_>>(),
            [place(1, 7), place(0, 4)]
        );
        assert_eq!(Places::from(Position(4)), place(0, 4).into());
        assert_eq!(Places::default(), Position(0).into());
    }
}
