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
use crate::budget::Budget;
use crate::config::{Config, Listener, NetConfig};
use crate::metrics::{Metrics, ReasonLabel};
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
    warnings: WarnLimit,
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
            warnings: WarnLimit::default(),
        });
        let phase = watch::Sender::new(Phase::Serve);
        let sessions = Arc::new(sessions);
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
                    tracing::warn!(
                        listener = self.listener.name, %error,
                        "cannot take connections now; clients wait (is the limit of open files \
                         too low?)"
                    );
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn take(&self, stream: TcpStream, address: SocketAddr) {
        let ip = address.ip().to_canonical();
        let ticket = match Ticket::new(&self.shared, ip) {
            Ok(ticket) => ticket,
            Err((reason, key)) => {
                let closed = &self.shared.metrics.connections_closed;
                closed.get_or_create(&ReasonLabel { reason }).inc();
                if self.shared.warnings.allows() {
                    tracing::warn!(peer = %address, "connection refused: {key} is reached");
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
            let end = connection::serve(stream, session, &shared, phase).await;
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
    if end.is_offence() && shared.warnings.allows() {
        tracing::warn!(id, %peer, reason, "connection closed: {end}");
    } else {
        tracing::debug!(id, %peer, reason, "connection closed: {end}");
    }
}

/// A connection's place among those that are open.
struct Ticket {
    shared: Arc<Shared>,
    ip: IpAddr,
}

impl Ticket {
    fn new(shared: &Arc<Shared>, ip: IpAddr) -> Result<Self, (&'static str, &'static str)> {
        let mut open = shared.open.lock();
        if open.all >= shared.config.max_connections {
            return Err(("max_connections", "max.connections"));
        }
        let of_ip = open.by_ip.entry(ip).or_default();
        if *of_ip >= shared.config.max_connections_per_ip {
            if *of_ip == 0 {
                open.by_ip.remove(&ip);
            }
            return Err(("max_connections_per_ip", "max.connections.per.ip"));
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

/// Lets a few warnings a second pass, so that a client can't fill the log.
#[derive(Debug)]
struct WarnLimit {
    start: std::time::Instant,
    /// The second in the upper half, warnings in it in the lower.
    window: AtomicU64,
}

impl Default for WarnLimit {
    fn default() -> Self {
        Self {
            start: std::time::Instant::now(),
            window: AtomicU64::new(0),
        }
    }
}

impl WarnLimit {
    const PER_SECOND: u64 = 10;

    fn allows(&self) -> bool {
        let second = self.start.elapsed().as_secs() << 32;
        let next = |window: u64| match window >> 32 << 32 == second {
            true => window + 1,
            false => second + 1,
        };
        let before = self
            .window
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |window| {
                Some(next(window))
            })
            .unwrap_or(second);
        next(before) - second <= Self::PER_SECOND
    }
}
