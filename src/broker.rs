//! Wiring: what handlers reach through a connection, and the order of start and shutdown.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::budget::{Account, Budget, Unit};
use crate::catalog::{Catalog, Environment};
use crate::clock::{Clock, SystemClock};
use crate::config::{Budgets, Config, JournalSync};
use crate::coordinator::Groups;
use crate::coordinator::group::command::Settings;
use crate::coordinator::partition_log::{CatalogTopics, PartitionLog};
use crate::handlers::fetch::session::Sessions;
use crate::metrics::{Full, Limit, Metrics};
use crate::partition::Registry;
use crate::partition::maintenance::{Maintenance, MaintenanceOptions};
use crate::partition::recovery::{self, Fatal, Opening, OpeningDirectory, Progress};
use crate::partition::registry::{MOVE_PATIENCE, RegistryOptions};
use crate::store::directories;
use crate::store::format::Format;
use crate::store::journal::{Durable, Journal, JournalOptions, SyncPolicy};
use crate::types::{DirectoryId, DirectoryNo};

/// Budgets that handlers take shares of.
#[derive(Clone)]
pub struct HandlerBudgets {
    /// Buffers held by answers that were not sent yet.
    pub responses: Budget,
    /// Memory of decompression under way.
    pub decompression: Budget,
    /// Turns of batches that take long to look at.
    pub long_decompressions: Budget,
    /// Places of waiting fetches, one for each partition that is asked for.
    pub fetch_waiters: Account,
    /// The limit of the catalog's memory, and how often it was met.
    pub topics: Account,
}

impl HandlerBudgets {
    fn new(budgets: &Budgets) -> Self {
        let long = budgets.long_decompressions;
        Self {
            responses: Budget::new("responses", budgets.responses),
            decompression: Budget::new("decompression", budgets.decompression),
            long_decompressions: Budget::of_items("long_decompressions", long),
            fetch_waiters: Account::new(budgets.fetch_waiters),
            topics: Account::new(budgets.topics),
        }
    }
}

/// One running gateway.
pub struct Broker {
    /// The configuration it was started with.
    pub config: Arc<Config>,
    /// Wall and monotonic time.
    pub clock: Arc<dyn Clock>,
    /// What `/metrics` shows.
    pub metrics: Arc<Metrics>,
    /// The journal of the first data directory, which holds the catalog.
    pub journal: Arc<dyn Journal>,
    /// Topics and configs.
    pub catalog: Arc<Catalog>,
    /// Every partition.
    pub partitions: Arc<Registry>,
    /// The group coordinator.
    pub groups: Arc<Groups>,
    /// Fetch sessions of all connections.
    pub fetch_sessions: Arc<Sessions>,
    /// Shares for answers and decompression.
    pub budgets: HandlerBudgets,
    /// The cluster's id as clients see it.
    pub cluster_id: String,
    /// This node's id.
    pub node_id: i32,
    maintenance: Mutex<Option<Maintenance>>,
}

impl Broker {
    /// Opens the data directories, replays their journals and starts the background work. Blocks until
    /// everything is ready to serve; runs on a tokio runtime.
    pub fn start(
        config: Arc<Config>,
        metrics: Arc<Metrics>,
        progress: Progress<'_>,
        fatal: Fatal,
    ) -> Result<Arc<Self>, String> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let (opened, cluster_id) = open_store(&config, &clock, progress, &fatal)?;
        let (partitions, catalog) = (Arc::clone(&opened.registry), Arc::clone(&opened.catalog));
        partitions.resume_moves();
        partitions.watch(&metrics);
        let several = opened.directories.len() > 1;
        for directory in &opened.directories {
            directory.watch(
                &metrics,
                several.then_some(directory.directory.name.as_str()),
            );
        }
        let journal: Arc<dyn Journal> = match opened.directories.first() {
            Some(first) => Arc::clone(&first.journal) as _,
            None => return Err("there is no data directory".to_owned()),
        };
        let log = PartitionLog::new(
            Arc::clone(&partitions),
            Arc::clone(&catalog),
            Arc::clone(&clock),
            config.group.clone(),
        );
        let topics = Arc::new(CatalogTopics(Arc::clone(&catalog)));
        let settings = Settings {
            memory_bytes: config.budgets.groups,
            ..(&config.group).into()
        };
        let groups = Groups::new(settings, Arc::new(log), topics, Arc::clone(&clock));
        groups.start();
        let options = MaintenanceOptions {
            checkpoint_bytes: config.checkpoint_interval_bytes,
            retention_interval: retention_interval(&config),
        };
        let maintenance = Maintenance::start(opened, options, &fatal)
            .map_err(|e| format!("cannot start the store's background threads: {e}"))?;
        let budgets = HandlerBudgets::new(&config.budgets);
        let fetch_sessions = fetch_sessions(&config);
        let broker = Self {
            fetch_sessions,
            cluster_id,
            node_id: config.node_id,
            maintenance: Mutex::new(Some(maintenance)),
            config,
            clock,
            metrics,
            journal,
            catalog,
            partitions,
            groups,
            budgets,
        };
        broker.watch();
        Ok(Arc::new(broker))
    }

    /// Shows on `/metrics` what handlers take shares of, and what they keep.
    fn watch(&self) {
        let (metrics, budgets) = (&self.metrics, &self.budgets);
        metrics.watch_budget(&budgets.responses);
        metrics.watch_budget(&budgets.decompression);
        metrics.watch_budget(&budgets.long_decompressions);
        watch_topics(metrics, &budgets.topics, &self.catalog);
        let waiters = &budgets.fetch_waiters;
        metrics.watch_account("fetch_waiters", Unit::Items, Full::Refused, waiters);
        self.groups.watch(metrics);
        self.fetch_sessions.watch(metrics);
    }

    /// A data directory's path, as configured.
    pub fn directory_path(&self, no: DirectoryNo) -> String {
        self.partitions.directories().get(no).name.clone()
    }

    /// How far the journals of all directories are durable.
    pub fn durable(&self) -> Durable {
        let journals = self.partitions.directories().iter();
        let journals = journals.filter_map(|directory| directory.journal());
        Durable::new(journals.map(|journal| journal.subscribe()).collect())
    }

    /// A gateway over parts whose background work somebody else does.
    #[cfg(test)]
    pub(crate) fn over(
        config: Config,
        clock: Arc<dyn Clock>,
        journal: Arc<dyn Journal>,
        catalog: Arc<Catalog>,
        partitions: Arc<Registry>,
        groups: Arc<Groups>,
    ) -> Arc<Self> {
        let budgets = HandlerBudgets::new(&config.budgets);
        Arc::new(Self {
            fetch_sessions: fetch_sessions(&config),
            cluster_id: "cluster".to_string(),
            node_id: config.node_id,
            maintenance: Mutex::new(None),
            config: Arc::new(config),
            clock,
            metrics: Arc::new(Metrics::new()),
            journal,
            catalog,
            partitions,
            groups,
            budgets,
        })
    }

    /// Ends the background work and closes the journal, once no connection is left. The last
    /// flush and checkpoint make the next start quick; nothing depends on them.
    pub fn stop(&self) {
        for directory in self.partitions.directories().iter() {
            if let Some(journal) = directory.journal() {
                journal.end_soon();
            }
        }
        self.groups.stop();
        self.partitions.end_moves();
        if let Some(mut maintenance) = self.maintenance.lock().take() {
            maintenance.stop();
        }
        for directory in self.partitions.directories().iter() {
            if let Some(journal) = directory.journal() {
                journal.close();
            }
        }
    }
}

fn fetch_sessions(config: &Config) -> Arc<Sessions> {
    let partitions = config.budgets.fetch_session_partitions;
    Arc::new(Sessions::new(config.fetch_sessions, partitions))
}

/// Shows on `/metrics` what topics and configs take in memory.
fn watch_topics(metrics: &Metrics, account: &Account, catalog: &Arc<Catalog>) {
    let (all, refused, catalog) = (account.clone(), account.clone(), Arc::clone(catalog));
    metrics.watch_limit(Limit {
        name: "topics",
        unit: Unit::Bytes,
        limit: Box::new(move || all.limit()),
        used: Box::new(move || catalog.sequenced().bytes()),
        full: Full::Refused,
        count: Box::new(move || refused.denied()),
    });
}

/// Opens the data directories and brings the store up; gives the cluster's id beside it.
fn open_store(
    config: &Config,
    clock: &Arc<dyn Clock>,
    progress: Progress<'_>,
    fatal: &Fatal,
) -> Result<(recovery::Opened, String), String> {
    let found = directories::open(&config.data_dirs).map_err(|e| e.to_string())?;
    let cluster_id = found.first().map(|first| first.format.cluster_id.clone());
    let opening = found.iter().map(|directory| OpeningDirectory {
        disk: Arc::clone(&directory.disk),
        id: directory.format.directory_id(),
        name: directory.name.clone(),
        journal: journal_options(config, &directory.format),
        is_new: directory.is_new,
    });
    let opening: Vec<OpeningDirectory> = opening.collect();
    let others = found.first().map_or(&[][..], |first| &first.format.others);
    let absent = others.iter().map(|id| DirectoryId(*id));
    let absent = absent.filter(|id| !opening.iter().any(|given| given.id == *id));
    let absent = absent.collect();
    let found = Arc::new(Mutex::new(found));
    let joining = Arc::clone(&found);
    let of_all = Opening {
        absent,
        registry: registry_options(config),
        footer_bytes: config.budgets.footers,
        open_files: config.segment_open_files,
        environment: Environment {
            node_id: config.node_id,
            fixed: config.properties.clone(),
            ..Environment::default()
        },
        clock: Arc::clone(clock),
        fatal: Arc::clone(fatal),
        join: Some(Box::new(move || {
            directories::join(&mut joining.lock()).map_err(|e| e.to_string())
        })),
    };
    let opened = recovery::open(opening, of_all, progress)?;
    directories::forget_others(&mut found.lock()).map_err(|e| e.to_string())?;
    Ok((opened, cluster_id.unwrap_or_default()))
}

fn journal_options(config: &Config, format: &Format) -> JournalOptions {
    JournalOptions {
        file_bytes: config.journal_file_bytes,
        sync: match config.journal_sync {
            JournalSync::Always => SyncPolicy::Always,
            JournalSync::Interval(interval) => SyncPolicy::Interval(interval),
        },
        allow_truncate_corruption: config.journal_truncate_corruption,
        ..JournalOptions::new(format.store_id)
    }
}

/// The room that must stay free: when the gate closes, the tail is still to be flushed and the
/// journal may need files for what is queued.
fn reserve(config: &Config) -> u64 {
    let tail = config.budgets.tail / config.data_dirs.len() as u64;
    let needed = tail + 2 * config.journal_file_bytes;
    if config.disk_reserve_bytes < needed {
        tracing::warn!(
            "disk.reserve.bytes={} is less than the store may need when the disk fills up; \
             {needed} is used (a directory's part of budget.tail.bytes + 2 * journal.file.bytes)",
            config.disk_reserve_bytes
        );
    }
    config.disk_reserve_bytes.max(needed)
}

fn registry_options(config: &Config) -> RegistryOptions {
    RegistryOptions {
        tail_bytes: usize::try_from(config.budgets.tail).unwrap_or(usize::MAX),
        producers_per_partition: config.max_producers_per_partition,
        producer_bytes: config.budgets.producers,
        producer_expiration_ms: config.producer_id_expiration_ms,
        reserve_bytes: reserve(config),
        read_bytes: config.budgets.reads,
        move_patience: MOVE_PATIENCE,
    }
}

fn retention_interval(config: &Config) -> Duration {
    Duration::from_millis(
        u64::try_from(config.retention_check_interval_ms)
            .unwrap_or(1)
            .max(1),
    )
}
