//! The catalog that runs: proposals go through the journal, images come out.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use super::change::Change;
use super::image::{Image, Misfit};
use crate::store::journal::{Entry, EntryKind, Journal};
use crate::types::{PartitionKey, Position};

/// Producer ids are reserved in blocks of this many.
const PRODUCER_ID_BLOCK: i64 = 1000;

/// The image with every change that has a place in the journal, durable or not.
struct Sequenced {
    image: Arc<Image>,
    /// Images of the changes that are not durable yet, oldest first.
    pending: VecDeque<Arc<Image>>,
}

/// A reserved block of producer ids.
#[derive(Default)]
struct ProducerIds {
    next: i64,
    end: i64,
    /// Where the reservation stands in the journal.
    position: Position,
}

/// Where changes go.
enum Log {
    Journal(Arc<dyn Journal>),
    /// A catalog without a store: changes are durable at once.
    Memory,
}

/// The catalog of a running process.
pub struct Catalog {
    sequenced: Mutex<Sequenced>,
    durable: ArcSwap<Image>,
    versions: watch::Sender<u64>,
    producer_ids: Mutex<ProducerIds>,
    /// The next producer id that this process gives out, 0 until it gave out one.
    next_producer_id: AtomicI64,
    log: OnceLock<Log>,
}

/// The catalog's lock, held: no change gets its place meanwhile but through this.
pub struct Sequencer<'a> {
    catalog: &'a Catalog,
    sequenced: MutexGuard<'a, Sequenced>,
}

impl Sequencer<'_> {
    /// The image with every change that has a place in the journal.
    pub fn image(&self) -> &Image {
        &self.sequenced.image
    }

    /// Gives a change that was decided on [`Sequencer::image`] its place in the journal.
    pub fn sequence(&mut self, change: &Change) -> Position {
        self.catalog.sequence(&mut self.sequenced, change)
    }
}

impl Catalog {
    /// A catalog that starts from this image. It takes replayed changes by
    /// [`Catalog::apply_durable`], and proposals once it is attached.
    pub fn new(image: Image) -> Self {
        let image = Arc::new(image);
        Self {
            sequenced: Mutex::new(Sequenced {
                image: Arc::clone(&image),
                pending: VecDeque::new(),
            }),
            versions: watch::Sender::new(image.version()),
            durable: ArcSwap::new(image),
            producer_ids: Mutex::default(),
            next_producer_id: AtomicI64::new(0),
            log: OnceLock::new(),
        }
    }

    /// A catalog without a store: every change is durable at once.
    pub fn in_memory(image: Image) -> Self {
        let catalog = Self::new(image);
        let _ = catalog.log.set(Log::Memory);
        catalog
    }

    /// Opens it for proposals, which go to this journal. After replay, once.
    pub fn attach(&self, journal: Arc<dyn Journal>) {
        let _ = self.log.set(Log::Journal(journal));
    }

    /// The durable image: what clients are shown.
    pub fn image(&self) -> Arc<Image> {
        self.durable.load_full()
    }

    /// The durable image for a short look, without touching its reference count.
    pub fn peek(&self) -> arc_swap::Guard<Arc<Image>> {
        self.durable.load()
    }

    /// The image with every change that has a place in the journal.
    pub fn sequenced(&self) -> Arc<Image> {
        Arc::clone(&self.sequenced.lock().image)
    }

    /// Follows the version of the durable image.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.versions.subscribe()
    }

    /// Sequences the change that `decide` makes of the sequenced image, and gives its position.
    /// An answer that shows the change leaves when that position is durable.
    pub fn propose<E>(
        &self,
        decide: impl FnOnce(&Image) -> Result<Change, E>,
    ) -> Result<Position, E> {
        let mut sequencer = self.lock();
        let change = decide(sequencer.image())?;
        Ok(sequencer.sequence(&change))
    }

    /// Takes the catalog's lock, for a change that must have its place in the journal while other
    /// locks are held. It comes before those of shards and behind that of the journal's sink.
    pub fn lock(&self) -> Sequencer<'_> {
        Sequencer {
            sequenced: self.sequenced.lock(),
            catalog: self,
        }
    }

    /// Gives a change its place.
    fn sequence(&self, sequenced: &mut Sequenced, change: &Change) -> Position {
        // Tried before the journal gets it: an entry in the journal can't be taken back.
        let position = Position(0);
        let mut next = match sequenced.image.apply(change, position) {
            Ok(next) => next,
            Err(misfit) => unfit(change, &misfit),
        };
        match self.log.get() {
            Some(Log::Journal(journal)) => {
                next.position = journal.append(Entry {
                    kind: EntryKind::Catalog,
                    key: PartitionKey::default(),
                    payload: change.encode(),
                    fill: None,
                    charge: 0,
                });
                let next = Arc::new(next);
                sequenced.pending.push_back(Arc::clone(&next));
                sequenced.image = Arc::clone(&next);
                next.position()
            }
            Some(Log::Memory) => {
                sequenced.image = Arc::new(next);
                self.publish(Arc::clone(&sequenced.image));
                Position(0)
            }
            None => unattached(),
        }
    }

    /// Takes a change in that is durable: called in journal order, by the journal's sink and by
    /// recovery. Entries that the image already holds are passed over.
    pub fn apply_durable(&self, position: Position, change: &Change) -> Result<(), Misfit> {
        let mut sequenced = self.sequenced.lock();
        if position <= self.durable.load().position() {
            return Ok(());
        }
        let next = match sequenced.pending.pop_front() {
            Some(next) if next.position() == position => next,
            Some(_) => {
                let text = format!("position {} is not the next one proposed", position.0);
                return Err(Misfit(text));
            }
            None => {
                let next = Arc::new(sequenced.image.apply(change, position)?);
                sequenced.image = Arc::clone(&next);
                next
            }
        };
        self.publish(next);
        Ok(())
    }

    fn publish(&self, image: Arc<Image>) {
        let version = image.version();
        self.durable.store(image);
        self.versions.send_replace(version);
    }

    /// A producer id that was never given out, and the position that must be durable before a
    /// client is told of it.
    pub fn allocate_producer_id(&self) -> (i64, Position) {
        let mut ids = self.producer_ids.lock();
        if ids.next == ids.end {
            let mut first = 0;
            let reserved = self.propose(|image| {
                first = image.next_producer_id();
                let next = first.saturating_add(PRODUCER_ID_BLOCK);
                Ok::<_, Infallible>(Change::ProducerIdsReserved { next })
            });
            let Ok(position) = reserved;
            *ids = ProducerIds {
                next: first,
                end: first + PRODUCER_ID_BLOCK,
                position,
            };
        }
        let id = ids.next;
        ids.next += 1;
        self.next_producer_id.store(ids.next, Ordering::Release);
        (id, ids.position)
    }

    /// Every producer id from here on is still to be given out. Takes no lock.
    pub fn next_producer_id(&self) -> i64 {
        match self.next_producer_id.load(Ordering::Acquire) {
            0 => self.durable.load().next_producer_id(),
            next => next,
        }
    }
}

/// `decide` functions return changes that fit the image they were given.
fn unfit(change: &Change, misfit: &Misfit) -> ! {
    panic!("a proposal was decided on another image: {misfit}: {change:?}")
}

/// Proposals before the end of recovery would go nowhere.
fn unattached() -> ! {
    panic!("the catalog got a proposal before it was attached to a journal")
}
