//! Accepting connections, limits on their number, and the drain at the end.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::connection;
use super::frame::ReadLimits;
use super::listen::Bound;
use super::session::{Peer, Sessions};
use crate::budget::{Budget, Unit};
use crate::config::{Config, Listener, NetConfig};
use crate::metrics::{self, Limit, Metrics, ReasonLabel};
use crate::repeats::{LINES, NEWS};
use crate::store::journal::Durable;

/// How far the gateway is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Requests are taken.
    Serve,
    /// Requests under way are finished, no new ones are taken.
    Drain,
    /// Connections end where they stand.
    Stop,
}

/// What all connections share.
#[derive(Debug)]
pub struct Shared {
    /// Limits.
    pub config: NetConfig,
    /// Bounds of the reading side, with the request budgets.
    pub limits: ReadLimits,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// What answers hold shares of until they are written.
    pub responses: Budget,
    /// How far the journals are durable.
    pub durable: Durable,
    open: Mutex<Open>,
    /// Connections open now; the drain waits for 0.
    count: watch::Sender<usize>,
    next_id: AtomicU64,
}

#[derive(Debug, Default)]
struct Open {
    all: usize,
    by_ip: HashMap<IpAddr, usize>,
}

/// Listeners that accept, until it is drained.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    phase: watch::Sender<Phase>,
}

impl Server {
    /// Starts to accept on every bound listener. Must run inside the runtime.
    pub fn start<S: Sessions>(
        bound: Vec<Bound>,
        sessions: S,
        config: &Config,
        metrics: Arc<Metrics>,
        durable: Durable,
    ) -> Self {
        let requests = Budget::new("requests", config.budgets.requests);
        let small_requests = Budget::new("small_requests", config.budgets.small_requests);
        metrics.watch_budget(&requests);
        metrics.watch_budget(&small_requests);
        let shared = Arc::new(Shared {
            config: config.net.clone(),
            limits: ReadLimits {
                max_bytes: config.net.request_max_bytes as usize,
                max_idle: config.net.max_idle,
                frame_timeout: config.net.frame_timeout,
                requests,
                small_requests,
            },
            metrics,
            responses: sessions.responses(),
            durable,
            open: Mutex::default(),
            count: watch::Sender::new(0),
            next_id: AtomicU64::new(1),
        });
        let phase = watch::Sender::new(Phase::Serve);
        tokio::spawn(tell_repeats(phase.subscribe()));
        let sessions = Arc::new(sessions);
        watch(&shared, &sessions);
        for Bound { listener, sockets } in bound {
            for socket in sockets {
                let acceptor = Acceptor {
                    listener: Arc::clone(&listener),
                    sessions: Arc::clone(&sessions),
                    shared: Arc::clone(&shared),
                    phase: phase.subscribe(),
                };
                tokio::spawn(acceptor.run(socket));
            }
        }
        Self { shared, phase }
    }

    /// Stops accepting, lets requests under way finish and answers leave, and cuts off what is
    /// left after `drain.timeout.ms`. Returns how many connections had to be cut.
    pub async fn drain(&self) -> usize {
        self.phase.send_replace(Phase::Drain);
        let mut count = self.shared.count.subscribe();
        let all_gone = count.wait_for(|open| *open == 0);
        let within = self.shared.config.drain_timeout;
        let in_time = tokio::time::timeout(within, all_gone).await.is_ok();
        let left = if in_time {
            0
        } else {
            *self.shared.count.borrow()
        };
        self.phase.send_replace(Phase::Stop);
        LINES.tell_all();
        NEWS.tell_all();
        left
    }

    /// Connections open now.
    pub fn connections(&self) -> usize {
        *self.shared.count.borrow()
    }
}

struct Acceptor<S: Sessions> {
    listener: Arc<Listener>,
    sessions: Arc<S>,
    shared: Arc<Shared>,
    phase: watch::Receiver<Phase>,
}

impl<S: Sessions> Acceptor<S> {
    async fn run(mut self, socket: TcpListener) {
        loop {
            let accepted = tokio::select! {
                biased;
                _ = self.phase.wait_for(|phase| *phase != Phase::Serve) => return,
                accepted = socket.accept() => accepted,
            };
            match accepted {
                Ok((stream, address)) => self.take(stream, address),
                Err(error) if is_about_one_connection(&error) => {}
                Err(error) => {
                    if LINES.allow("cannot take connections", None) {
                        tracing::warn!(
                            listener = self.listener.name, %error,
                            "cannot take connections now; clients wait (is the limit of open \
                             files too low?)"
                        );
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn take(&self, stream: TcpStream, address: SocketAddr) {
        let ip = address.ip().to_canonical();
        let ticket = match Ticket::new(&self.shared, limits(&self.shared, &*self.sessions), ip) {
            Ok(ticket) => ticket,
            Err(full) => {
                let reason = full.reason;
                let closed = &self.shared.metrics.connections_closed;
                closed.get_or_create(&ReasonLabel { reason }).inc();
                if LINES.allow(reason, Some(ip)) {
                    tracing::warn!(peer = %address, reason, "connection refused: {full}");
                }
                return;
            }
        };
        // Small answers must not wait for the client's acknowledgement of earlier ones.
        stream.set_nodelay(true).ok();
        // A machine that vanished is noticed even while its request waits.
        SockRef::from(&stream).set_keepalive(true).ok();
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        let peer = Peer {
            id,
            listener: Arc::clone(&self.listener),
            address,
        };
        let session = self.sessions.open(&peer);
        let (shared, phase) = (Arc::clone(&self.shared), self.phase.clone());
        tokio::spawn(async move {
            let _ticket = ticket;
            tracing::debug!(id, peer = %address, listener = peer.listener.name, "connection opened");
            let end = connection::serve(stream, session, address, &shared, phase).await;
            report(&shared, id, address, &end);
        });
    }
}

/// Errors of `accept` that say something about one client only.
fn is_about_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted
    )
}

fn report(shared: &Shared, id: u64, peer: SocketAddr, end: &connection::End) {
    let reason = end.word();
    shared
        .metrics
        .connections_closed
        .get_or_create(&ReasonLabel { reason })
        .inc();
    if end.is_offence() && LINES.allow(reason, Some(peer.ip().to_canonical())) {
        tracing::warn!(id, %peer, reason, "connection closed: {end}");
    } else {
        tracing::debug!(id, %peer, reason, "connection closed: {end}");
    }
}

/// Why a connection is not taken.
#[derive(Debug, thiserror::Error)]
#[error(
    "{most} connections are open already ({key}); raise that, or look for a client that opens \
     connections and does not close them"
)]
struct Full {
    reason: &'static str,
    key: &'static str,
    most: usize,
}

/// Tells of the log lines that were left out, once their period is over.
async fn tell_repeats(mut phase: watch::Receiver<Phase>) {
    let mut second = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            _ = phase.wait_for(|phase| *phase == Phase::Stop) => return,
            _ = second.tick() => {
                LINES.tell();
                NEWS.tell();
            }
        }
    }
}

/// The limits in force: a change at run time can lower what the process started with.
fn limits<S: Sessions>(shared: &Shared, sessions: &S) -> [usize; 2] {
    let config = &shared.config;
    let [all, of_ip] = sessions.connection_limits();
    let least = |set: Option<usize>, start: usize| set.map_or(start, |set| set.min(start));
    [
        least(all, config.max_connections),
        least(of_ip, config.max_connections_per_ip),
    ]
}

/// Shows the limit of connections on `/metrics`, which must not keep the server alive.
fn watch<S: Sessions>(shared: &Arc<Shared>, sessions: &Arc<S>) {
    let (of_limit, sessions) = (Arc::downgrade(shared), Arc::downgrade(sessions));
    let (used, closed) = (
        Arc::downgrade(shared),
        shared.metrics.connections_closed.clone(),
    );
    shared.metrics.watch_limit(Limit {
        name: "connections",
        unit: Unit::Items,
        limit: Box::new(move || match (of_limit.upgrade(), sessions.upgrade()) {
            (Some(shared), Some(sessions)) => limits(&shared, &*sessions)[0] as u64,
            _ => 0,
        }),
        used: Box::new(move || used.upgrade().map_or(0, |s| s.open.lock().all as u64)),
        full: metrics::Full::Refused,
        count: Box::new(move || {
            let of = |reason| closed.get_or_create(&ReasonLabel { reason }).get();
            ["max_connections", "max_connections_per_ip"]
                .map(of)
                .iter()
                .sum()
        }),
    });
}

/// A connection's place among those that are open.
struct Ticket {
    shared: Arc<Shared>,
    ip: IpAddr,
}

impl Ticket {
    fn new(shared: &Arc<Shared>, [most, most_of_ip]: [usize; 2], ip: IpAddr) -> Result<Self, Full> {
        let mut open = shared.open.lock();
        if open.all >= most {
            return Err(Full {
                reason: "max_connections",
                key: "max.connections",
                most,
            });
        }
        let of_ip = open.by_ip.entry(ip).or_default();
        if *of_ip >= most_of_ip {
            if *of_ip == 0 {
                open.by_ip.remove(&ip);
            }
            let (reason, key) = ("max_connections_per_ip", "max.connections.per.ip");
            return Err(Full {
                reason,
                key,
                most: most_of_ip,
            });
        }
        *of_ip += 1;
        open.all += 1;
        shared.metrics.connections_opened.inc();
        shared.metrics.connections.inc();
        shared.count.send_modify(|count| *count += 1);
        drop(open);
        Ok(Self {
            shared: Arc::clone(shared),
            ip,
        })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut open = self.shared.open.lock();
        open.all = open.all.saturating_sub(1);
        if let Some(of_ip) = open.by_ip.get_mut(&self.ip) {
            *of_ip = of_ip.saturating_sub(1);
            if *of_ip == 0 {
                open.by_ip.remove(&self.ip);
            }
        }
        self.shared.metrics.connections.dec();
        self.shared
            .count
            .send_modify(|count| *count = count.saturating_sub(1));
    }
}
