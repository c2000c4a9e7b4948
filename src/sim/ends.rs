//! How far each journal of the machine is, in the order of its directories.

use crate::types::{DirectoryNo, Place, Places, Position};

/// A place in the first directory's journal.
pub(super) fn in_first(position: Position) -> Place {
    Place {
        directory: DirectoryNo(0),
        position,
    }
}

/// One position in each journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ends(Vec<Position>);

impl Ends {
    pub(super) fn of(&self, directory: DirectoryNo) -> Position {
        let at = self.0.get(usize::from(directory.0));
        at.copied().unwrap_or_default()
    }

    /// Takes what lies further.
    pub(super) fn raise(&mut self, place: Place) {
        let at = usize::from(place.directory.0);
        if self.0.len() <= at {
            self.0.resize(at + 1, Position(0));
        }
        self.0[at] = self.0[at].max(place.position);
    }

    pub(super) fn raise_to(&mut self, places: impl Iterator<Item = Place>) {
        places.for_each(|place| self.raise(place));
    }

    pub(super) fn covers(&self, places: &Places) -> bool {
        let mut places = places.iter();
        places.all(|place| self.of(place.directory) >= place.position)
    }

    /// Whether no journal is further in the other one.
    pub(super) fn reaches(&self, other: &Ends) -> bool {
        other
            .iter()
            .all(|place| self.of(place.directory) >= place.position)
    }

    /// Of each journal the position that is less far.
    pub(super) fn least(&self, other: &Ends) -> Ends {
        let both = self.0.iter().zip(&other.0);
        Self(both.map(|(one, two)| *one.min(two)).collect())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Place> {
        let directories = (0..).map(DirectoryNo);
        let places = directories.zip(&self.0);
        places.map(|(directory, position)| Place {
            directory,
            position: *position,
        })
    }
}

impl FromIterator<Position> for Ends {
    fn from_iter<T: IntoIterator<Item = Position>>(positions: T) -> Self {
        Self(positions.into_iter().collect())
    }
}
