//! One run of the store's process: everything between the disk and the handlers, without a thread.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use uuid::Uuid;

use super::clock::SimClock;
use super::ends::Ends;
use super::lineage::directory_id;
use super::power::Disks;
use crate::broker::Broker;
use crate::catalog::{Catalog, Environment, Topic};
use crate::config::{Config, GroupConfig};
use crate::coordinator::partition_log::{CatalogTopics, PartitionLog};
use crate::coordinator::{Groups, Settings};
use crate::partition::directory::Directory;
use crate::partition::maintenance::{MaintenanceOptions, Worker};
use crate::partition::recovery::{self, Fatal, RecoveredDirectory};
use crate::partition::registry::{MOVE_PATIENCE, RegistryOptions};
use crate::partition::{Partition, Registry};
use crate::store::journal::stepped::SteppedJournal;
use crate::store::journal::{Group, Journal, JournalOptions, Sink, SyncPolicy};
use crate::types::{DirectoryNo, PartitionKey, Position};

/// Ids of the directories: each journal belongs to one.
const STORES: u128 = 0x51;

/// Sizes and policies of one simulated store: small, so that little data goes through every path.
#[derive(Clone, Debug)]
pub(super) struct Options {
    /// Data directories, each on a disk of its own.
    pub(super) directories: u16,
    pub(super) sync: SyncPolicy,
    /// A start goes on without acknowledged entries that are missing.
    pub(super) accept_loss: bool,
    pub(super) tail_bytes: usize,
    pub(super) checkpoint_bytes: u64,
    pub(super) reserve_bytes: u64,
    pub(super) journal_file_bytes: u64,
    pub(super) producer_expiration_ms: i64,
    pub(super) producer_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            directories: 1,
            sync: SyncPolicy::Always,
            accept_loss: false,
            tail_bytes: 96 << 10,
            checkpoint_bytes: 64 << 10,
            reserve_bytes: 192 << 10,
            journal_file_bytes: 64 << 10,
            producer_expiration_ms: 24 * 3_600_000,
            producer_bytes: 1 << 20,
        }
    }
}

/// A data directory of a running store.
pub(super) struct Home {
    pub(super) directory: Arc<Directory>,
    pub(super) journal: Arc<SteppedJournal>,
    pub(super) worker: Option<Worker>,
    /// Where the journal ended when it was opened.
    last: Position,
    tail_was_cut: bool,
    files_were_reused: bool,
}

/// A running store.
pub(super) struct Store {
    pub(super) registry: Arc<Registry>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) homes: Vec<Home>,
    pub(super) groups: Arc<Groups>,
    pub(super) broker: Arc<Broker>,
    /// Why the process must end, once something said so.
    pub(super) fatal: Arc<Mutex<Option<String>>>,
}

/// A sink that fails the test where the real one ends the process. It does not keep alive what its
/// journal belongs to, so that a process that ended is gone with all that it held.
struct CheckedSink(Weak<Registry>, Weak<Directory>);

impl Sink for CheckedSink {
    fn commit(&self, group: Group) {
        let (Some(registry), Some(directory)) = (self.0.upgrade(), self.1.upgrade()) else {
            return;
        };
        if let Err(reason) = registry.take_in(&directory, group, None) {
            panic!("a committed entry cannot be taken in: {reason}");
        }
    }
}

impl Home {
    fn start(
        registry: &Arc<Registry>,
        found: RecoveredDirectory,
        disks: &Disks,
        clock: &Arc<SimClock>,
        options: &Options,
        meanwhile: fn(),
    ) -> Self {
        let directory = found.directory;
        let stuck = disks.of(directory.no).clone();
        let names: Vec<&str> = found.journal.file_names().collect();
        let files_were_reused = names.windows(2).any(|pair| pair[0] > pair[1]);
        let tail_was_cut = found.journal.cut().is_some();
        let last = found.journal.last();
        let journal = SteppedJournal::start(
            found.journal,
            Arc::new(CheckedSink(
                Arc::downgrade(registry),
                Arc::downgrade(&directory),
            )),
            Arc::clone(clock) as _,
            Box::new(meanwhile),
            Box::new(move || stuck.is_stuck()),
        );
        directory.attach(Arc::clone(&journal) as _);
        let worker = Worker::new(
            Arc::clone(registry),
            Arc::clone(&directory),
            maintenance(options),
            found.checkpoints,
            found.checkpointer,
        );
        Self {
            directory,
            journal,
            worker: Some(worker),
            last,
            tail_was_cut,
            files_were_reused,
        }
    }
}

impl Store {
    /// Recovers what the disks hold and starts.
    pub(super) fn open(
        disks: &Disks,
        clock: &Arc<SimClock>,
        options: &Options,
        meanwhile: fn(),
    ) -> Result<Self, String> {
        let fatal: Arc<Mutex<Option<String>>> = Arc::default();
        let told = Arc::clone(&fatal);
        let tell: Fatal = Arc::new(move |reason| {
            told.lock().get_or_insert(reason);
        });
        let directories = disks
            .numbers()
            .map(|no| opening_directory(disks, options, no));
        let opening = opening(clock, options, tell);
        let recovered = recovery::recover(directories.collect(), opening, &|_, _| {})?;
        let (registry, catalog) = (recovered.registry, recovered.catalog);
        let start = |found| Home::start(&registry, found, disks, clock, options, meanwhile);
        let homes: Vec<Home> = recovered.directories.into_iter().map(start).collect();
        let first = &homes.first().expect("one").journal;
        catalog.attach(Arc::clone(first) as _);
        let groups = groups(&registry, &catalog, clock);
        groups.load();
        let broker = Broker::over(
            config(),
            Arc::clone(clock) as _,
            Arc::clone(first) as _,
            Arc::clone(&catalog),
            Arc::clone(&registry),
            Arc::clone(&groups),
        );
        Ok(Self {
            registry,
            catalog,
            homes,
            groups,
            broker,
            fatal,
        })
    }

    /// Why the process must end, if it must.
    pub(super) fn failure(&self) -> Option<String> {
        let fatal = self.fatal.lock().clone();
        self.journal_failure().or(fatal)
    }

    /// Why a journal ended, if an error ended one.
    pub(super) fn journal_failure(&self) -> Option<String> {
        self.homes.iter().find_map(|home| home.journal.failure())
    }

    pub(super) fn home(&self, directory: DirectoryNo) -> &Home {
        &self.homes[usize::from(directory.0)]
    }

    /// The journal of the first directory, which holds the catalog and the groups.
    pub(super) fn journal(&self) -> &Arc<SteppedJournal> {
        &self.home(DirectoryNo(0)).journal
    }

    fn ends(&self, of: impl Fn(&Home) -> Position) -> Ends {
        self.homes.iter().map(of).collect()
    }

    /// How far each journal is durable.
    pub(super) fn durable(&self) -> Ends {
        self.ends(|home| home.journal.durable())
    }

    /// How far each journal is on stable storage, whatever the sync policy.
    pub(super) fn synced(&self) -> Ends {
        self.ends(|home| home.journal.synced())
    }

    /// How far each journal has given out places.
    pub(super) fn appended(&self) -> Ends {
        self.ends(|home| home.journal.appended())
    }

    /// Where each journal ended when it was opened.
    pub(super) fn last(&self) -> Ends {
        self.ends(|home| home.last)
    }

    pub(super) fn tail_was_cut(&self) -> bool {
        self.homes.iter().any(|home| home.tail_was_cut)
    }

    pub(super) fn files_were_reused(&self) -> bool {
        self.homes.iter().any(|home| home.files_were_reused)
    }

    /// Whether all directories take client writes.
    pub(super) fn is_writable(&self) -> bool {
        self.homes.iter().all(|home| home.directory.is_writable())
    }

    /// Whether the directory of a partition takes client writes.
    pub(super) fn takes(&self, key: PartitionKey) -> bool {
        let shard = self.partition(key).shard();
        shard.is_none_or(|shard| shard.home.is_writable())
    }

    /// Topics that clients know of, by name.
    pub(super) fn topics(&self) -> BTreeMap<String, Arc<Topic>> {
        let image = self.catalog.image();
        let topics = image.topics().filter(|topic| !topic.internal);
        topics
            .map(|topic| (topic.name.to_string(), Arc::clone(topic)))
            .collect()
    }

    pub(super) fn partition(&self, key: PartitionKey) -> Arc<Partition> {
        let partition = self.registry.get(key);
        partition.unwrap_or_else(|| panic!("partition {key} is not there"))
    }

    /// Makes everything durable that was appended.
    pub(super) fn settle(&self) {
        for home in &self.homes {
            home.journal.wait(home.journal.appended());
        }
    }
}

fn opening_directory(
    disks: &Disks,
    options: &Options,
    no: DirectoryNo,
) -> recovery::OpeningDirectory {
    let journal = JournalOptions {
        file_bytes: options.journal_file_bytes,
        first_zero_bytes: options.journal_file_bytes / 2,
        max_group: 16 << 10,
        sync: options.sync,
        allow_truncate_corruption: options.accept_loss,
        ..JournalOptions::new(Uuid::from_u128(STORES + u128::from(no.0)))
    };
    recovery::OpeningDirectory {
        disk: Arc::new(disks.of(no).clone()),
        id: directory_id(no),
        name: format!("data{}", no.0),
        journal,
        is_new: false,
    }
}

fn opening(clock: &Arc<SimClock>, options: &Options, fatal: Fatal) -> recovery::Opening {
    let registry = RegistryOptions {
        tail_bytes: options.tail_bytes,
        reserve_bytes: options.reserve_bytes,
        read_bytes: 1 << 20,
        move_patience: MOVE_PATIENCE,
        producers_per_partition: 100,
        producer_bytes: options.producer_bytes,
        producer_expiration_ms: options.producer_expiration_ms,
    };
    recovery::Opening {
        absent: Vec::new(),
        registry,
        footer_bytes: 256 << 10,
        open_files: 16,
        environment: Environment::default(),
        clock: Arc::clone(clock) as _,
        fatal,
        join: None,
    }
}

fn maintenance(options: &Options) -> MaintenanceOptions {
    MaintenanceOptions {
        checkpoint_bytes: options.checkpoint_bytes,
        retention_interval: Duration::from_secs(1),
    }
}

fn groups(registry: &Arc<Registry>, catalog: &Arc<Catalog>, clock: &Arc<SimClock>) -> Arc<Groups> {
    let config = config().group;
    let log = PartitionLog::new(
        Arc::clone(registry),
        Arc::clone(catalog),
        Arc::clone(clock) as _,
        config.clone(),
    );
    Groups::with_ids(
        Settings::from(&config),
        Arc::new(log),
        Arc::new(CatalogTopics(Arc::clone(catalog))),
        Arc::clone(clock) as _,
        next_id,
    )
}

fn config() -> Config {
    let mut config = Config {
        group: GroupConfig {
            offsets_topic_partitions: 2,
            // The clock jumps by days here, and commits go by wall time.
            offsets_retention_ms: i64::MAX / 4,
            initial_rebalance_delay_ms: 100,
            min_session_timeout_ms: 1,
            ..GroupConfig::default()
        },
        ..Config::defaults()
    };
    // A few answers of slow readers fill it.
    config.budgets.responses = 48 << 10;
    config
}

thread_local! {
    static IDS: Cell<u128> = const { Cell::new(0) };
}

/// The ids of members follow from the seed as everything does.
pub(super) fn count_ids_from(first: u128) {
    IDS.set(first);
}

fn next_id() -> Uuid {
    let next = IDS.get() + 1;
    IDS.set(next);
    Uuid::from_u128(next)
}

/// The outcome of a future that need not wait.
pub(super) fn at_once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    match future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
