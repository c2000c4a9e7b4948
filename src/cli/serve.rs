//! `shardgate serve`: start, run until a signal, drain, stop.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::FAILED;
use super::banner::Banner;
use super::limits;
use crate::admin::shards::{Slot, Store};
use crate::admin::{self, Readiness, Stage, token};
use crate::broker::Broker;
use crate::config::{AdminConfig, Config, Listener, Loaded};
use crate::metrics::Metrics;
use crate::net::Server;
use crate::net::listen::{Bound, bind};
use crate::net::session::Gateway;

/// Threads for blocking calls; the store has its own.
const BLOCKING_THREADS: usize = 32;

/// A signal that comes again this soon is the same request to stop: `timeout` and a Ctrl-C in a
/// terminal reach a process both by itself and with its group.
const SAME_SIGNAL: Duration = Duration::from_millis(500);

/// How often the log says how far replay is.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);

/// Serves until a signal ends it.
pub fn run(loaded: Loaded) -> ExitCode {
    let started = Instant::now();
    tracing::info!("configuration: {}", loaded.summary());
    for warning in &loaded.warnings {
        tracing::warn!("configuration: {warning}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("shardgate-net")
        .max_blocking_threads(BLOCKING_THREADS)
        .build();
    let outcome = match runtime {
        Ok(runtime) => {
            let mut config = loaded.config;
            limits::share_out(&mut config);
            runtime.block_on(serve(Arc::new(config), started))
        }
        Err(error) => Err(format!("cannot start threads: {error}")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            tracing::error!("{message}");
            ExitCode::from(FAILED)
        }
    }
}

async fn serve(config: Arc<Config>, started: Instant) -> Result<(), String> {
    let mut signals = Signals::new().map_err(|e| format!("cannot wait for signals: {e}"))?;
    let metrics = Arc::new(Metrics::new());
    let readiness = Arc::new(Readiness::default());
    readiness.watch(&metrics);
    let store = Slot::default();
    let admin = start_admin(config.admin, &metrics, &readiness, &store).await?;
    // Ports are taken before the data directory is touched: a wrong one costs nothing then, and
    // clients that come early wait in the backlog.
    let bound = bind_all(&config)?;
    let listeners: Vec<Arc<Listener>> = bound.iter().map(|b| Arc::clone(&b.listener)).collect();

    let broker = open(&config, &metrics, &readiness)?;
    let durable = broker.durable();
    let server = Server::start(
        bound,
        Gateway::new(Arc::clone(&broker)),
        &config,
        metrics,
        durable,
    );
    if admin.is_some() {
        open_shards(&store, &broker);
    }
    readiness.enter(Stage::Ready);
    let shown: Vec<&Listener> = listeners.iter().map(AsRef::as_ref).collect();
    let took = started.elapsed();
    print!(
        "{}",
        Banner {
            listeners: &shown,
            admin,
            data: &config.data_dirs,
            took
        }
        .render()
    );
    tracing::info!(took_ms = took.as_millis(), "ready");

    let name = signals.next().await;
    tracing::info!("{name}: draining {} connections", server.connections());
    readiness.enter(Stage::Draining);
    let draining = Instant::now();
    tokio::spawn(async move {
        let name = loop {
            let name = signals.next().await;
            if draining.elapsed() >= SAME_SIGNAL {
                break name;
            }
        };
        tracing::warn!("{name} again: ending at once; what was acknowledged is safe");
        std::process::exit(i32::from(FAILED));
    });
    let cut = server.drain().await;
    if cut > 0 {
        tracing::warn!(
            connections = cut,
            "drain.timeout.ms is over; connections were cut"
        );
    }
    broker.stop();
    tracing::info!(took_ms = draining.elapsed().as_millis(), "stopped");
    Ok(())
}

/// A port that nobody asked for is no reason not to start.
async fn start_admin(
    config: AdminConfig,
    metrics: &Arc<Metrics>,
    readiness: &Arc<Readiness>,
    store: &Slot,
) -> Result<Option<u16>, String> {
    if config.port == 0 {
        return Ok(None);
    }
    match admin::serve(
        config.port,
        Arc::clone(metrics),
        Arc::clone(readiness),
        Arc::clone(store),
    )
    .await
    {
        Ok(port) => Ok(Some(port)),
        Err(error) if config.explicit => Err(format!(
            "admin.port={}: cannot listen on 127.0.0.1:{}: {error}; choose another port, or 0 to \
             do without",
            config.port, config.port
        )),
        Err(error) => {
            tracing::warn!(
                "no health and metrics: cannot listen on 127.0.0.1:{}: {error}; choose another \
                 port with admin.port, or 0 to do without",
                config.port
            );
            Ok(None)
        }
    }
}

/// Lets the admin port show and change shards.
fn open_shards(store: &Slot, broker: &Arc<Broker>) {
    match token::open(broker.config.data_dir()) {
        Ok(token) => {
            let broker = Arc::clone(broker);
            let _ = store.set(Store { broker, token });
        }
        Err(error) => tracing::warn!(
            "the admin port shows no shards: the file {} cannot be used: {error}; everything else \
             works",
            token::path(broker.config.data_dir()).display()
        ),
    }
}

fn bind_all(config: &Config) -> Result<Vec<Bound>, String> {
    config
        .listeners
        .iter()
        .map(|l| bind(l, &config.net).map_err(|e| e.to_string()))
        .collect()
}

fn open(
    config: &Arc<Config>,
    metrics: &Arc<Metrics>,
    readiness: &Arc<Readiness>,
) -> Result<Arc<Broker>, String> {
    let told = Mutex::new(Instant::now());
    let progress = |done: u64, total: u64| {
        readiness.progress(done, total);
        let mut told = told.lock();
        if told.elapsed() >= PROGRESS_EVERY {
            *told = Instant::now();
            let percent = done.saturating_mul(100).checked_div(total).unwrap_or(100);
            tracing::info!(done, total, "replaying the journal: {percent} %");
        }
    };
    // An error on the journal must not be survived: nothing may be acknowledged behind it.
    let fatal = Arc::new(|reason: String| {
        tracing::error!("{reason}; the process ends, what was acknowledged is safe");
        std::process::exit(i32::from(FAILED));
    });
    Broker::start(Arc::clone(config), Arc::clone(metrics), &progress, fatal)
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
