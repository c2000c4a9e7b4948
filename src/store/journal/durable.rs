//! How far the journals of a node are durable, for whoever holds answers back.

use tokio::sync::watch;

use crate::types::{Places, Position};

/// Follows every journal of this node.
#[derive(Clone, Debug)]
pub struct Durable(Vec<watch::Receiver<Position>>);

/// A journal ended before it was durable up to a place.
#[derive(Debug, thiserror::Error)]
#[error("the journal is closed")]
pub struct Ended;

impl Durable {
    /// The journals of all directories, in the order of their numbers.
    pub fn new(journals: Vec<watch::Receiver<Position>>) -> Self {
        Self(journals)
    }

    /// Whether all of these places are durable.
    pub fn covers(&self, places: &Places) -> bool {
        places.iter().all(|place| {
            let journal = self.0.get(usize::from(place.directory.0));
            journal.is_some_and(|journal| *journal.borrow() >= place.position)
        })
    }

    /// Returns once all of these places are durable.
    pub async fn wait(&mut self, places: &Places) -> Result<(), Ended> {
        for place in places.iter() {
            let journal = self.0.get_mut(usize::from(place.directory.0));
            let wait = journal
                .ok_or(Ended)?
                .wait_for(|durable| *durable >= place.position);
            wait.await.map_err(|_| Ended)?;
        }
        Ok(())
    }
}
