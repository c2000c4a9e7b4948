//! One run of the store's process: everything between the disk and the handlers, without a thread.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use uuid::Uuid;

use super::clock::SimClock;
use super::disk::SimDisk;
use crate::broker::Broker;
use crate::catalog::{Catalog, Environment, Topic};
use crate::config::{Config, GroupConfig};
use crate::coordinator::partition_log::{CatalogTopics, PartitionLog};
use crate::coordinator::{Groups, Settings};
use crate::partition::directory::Directory;
use crate::partition::maintenance::{MaintenanceOptions, Worker};
use crate::partition::recovery::{self, Fatal};
use crate::partition::registry::RegistryOptions;
use crate::partition::{Partition, Registry};
use crate::store::journal::stepped::SteppedJournal;
use crate::store::journal::{Group, Journal, JournalOptions, Sink, SyncPolicy};
use crate::types::{DirectoryId, PartitionKey, Position};

const STORE: Uuid = Uuid::from_u128(0x51);

/// Sizes and policies of one simulated store: small, so that little data goes through every path.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) sync: SyncPolicy,
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
            sync: SyncPolicy::Always,
            tail_bytes: 96 << 10,
            checkpoint_bytes: 64 << 10,
            reserve_bytes: 192 << 10,
            journal_file_bytes: 64 << 10,
            producer_expiration_ms: 24 * 3_600_000,
            producer_bytes: 1 << 20,
        }
    }
}

/// A running store.
pub(super) struct Store {
    pub(super) registry: Arc<Registry>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) journal: Arc<SteppedJournal>,
    pub(super) groups: Arc<Groups>,
    pub(super) broker: Arc<Broker>,
    pub(super) worker: Option<Worker>,
    /// Why the process must end, once something said so.
    pub(super) fatal: Arc<Mutex<Option<String>>>,
    /// Where the journal ended when it was opened.
    pub(super) last: Position,
    pub(super) tail_was_cut: bool,
    pub(super) files_were_reused: bool,
}

/// A sink that fails the test where the real one ends the process.
struct CheckedSink(Arc<Registry>, Arc<Directory>);

impl Sink for CheckedSink {
    fn commit(&self, group: Group) {
        if let Err(reason) = self.0.take_in(&self.1, group, None) {
            panic!("a committed entry cannot be taken in: {reason}");
        }
    }
}

impl Store {
    /// Recovers what the disk holds and starts.
    pub(super) fn open(
        disk: &SimDisk,
        clock: &Arc<SimClock>,
        options: &Options,
        meanwhile: fn(),
    ) -> Result<Self, String> {
        let fatal: Arc<Mutex<Option<String>>> = Arc::default();
        let told = Arc::clone(&fatal);
        let tell: Fatal = Arc::new(move |reason| {
            told.lock().get_or_insert(reason);
        });
        let (directory, opening) = opening(disk, clock, options, tell);
        let recovered = recovery::recover(vec![directory], opening, &|_, _| {})?;
        let (registry, catalog) = (recovered.registry, recovered.catalog);
        let stuck = disk.clone();
        let found = recovered.directories.into_iter().next().expect("one");
        let names: Vec<&str> = found.journal.file_names().collect();
        let files_were_reused = names.windows(2).any(|pair| pair[0] > pair[1]);
        let tail_was_cut = found.journal.cut().is_some();
        let last = found.journal.last();
        let directory = found.directory;
        let journal = SteppedJournal::start(
            found.journal,
            Arc::new(CheckedSink(Arc::clone(&registry), Arc::clone(&directory))),
            Arc::clone(clock) as _,
            Box::new(meanwhile),
            Box::new(move || stuck.is_stuck()),
        );
        directory.attach(Arc::clone(&journal) as _);
        catalog.attach(Arc::clone(&journal) as _);
        let worker = Worker::new(
            Arc::clone(&registry),
            directory,
            maintenance(options),
            found.checkpoints,
            found.checkpointer,
        );
        let groups = groups(&registry, &catalog, clock);
        groups.load();
        let broker = Broker::over(
            config(),
            Arc::clone(clock) as _,
            Arc::clone(&journal) as _,
            Arc::clone(&catalog),
            Arc::clone(&registry),
            Arc::clone(&groups),
        );
        Ok(Self {
            registry,
            catalog,
            journal,
            groups,
            broker,
            worker: Some(worker),
            fatal,
            last,
            tail_was_cut,
            files_were_reused,
        })
    }

    /// Why the process must end, if it must.
    pub(super) fn failure(&self) -> Option<String> {
        let fatal = self.fatal.lock().clone();
        self.journal.failure().or(fatal)
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
        self.journal.wait(self.journal.appended());
    }
}

fn opening(
    disk: &SimDisk,
    clock: &Arc<SimClock>,
    options: &Options,
    fatal: Fatal,
) -> (recovery::OpeningDirectory, recovery::Opening) {
    let journal = JournalOptions {
        file_bytes: options.journal_file_bytes,
        first_zero_bytes: options.journal_file_bytes / 2,
        max_group: 16 << 10,
        sync: options.sync,
        ..JournalOptions::new(STORE)
    };
    let directory = recovery::OpeningDirectory {
        disk: Arc::new(disk.clone()),
        id: DirectoryId::FIRST,
        name: "data".to_owned(),
        journal,
    };
    let registry = RegistryOptions {
        tail_bytes: options.tail_bytes,
        reserve_bytes: options.reserve_bytes,
        read_bytes: 1 << 20,
        producers_per_partition: 100,
        producer_bytes: options.producer_bytes,
        producer_expiration_ms: options.producer_expiration_ms,
    };
    let opening = recovery::Opening {
        registry,
        footer_bytes: 256 << 10,
        open_files: 16,
        environment: Environment::default(),
        clock: Arc::clone(clock) as _,
        fatal,
    };
    (directory, opening)
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
