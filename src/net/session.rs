//! The seam between connections and handlers.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;

use crate::broker::Broker;
use crate::budget::{Budget, Permit};
use crate::config::Listener;
use crate::handlers::{self, Answer, ClientInfo, CloseReason, Connection};

/// What answers the requests of one connection, one after the other.
pub trait Session: Send + Sync + 'static {
    /// Handles one frame, which is without its length. `permit` is its share of the budget.
    fn call(
        &self,
        frame: Bytes,
        permit: Permit,
    ) -> impl Future<Output = Result<Answer, CloseReason>> + Send;

    /// What the client calls itself, if it said so.
    fn client_id(&self) -> Option<String> {
        None
    }
}

/// Where connections come from.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Counted from 1 in this process.
    pub id: u64,
    /// The listener it came through.
    pub listener: Arc<Listener>,
    /// The other side.
    pub address: SocketAddr,
}

/// Makes a session for each connection.
pub trait Sessions: Send + Sync + 'static {
    /// The session's type.
    type Session: Session;
    /// The budget that answers hold shares of until they are written.
    fn responses(&self) -> Budget;
    /// `max.connections` and `max.connections.per.ip`, if they were changed at run time.
    fn connection_limits(&self) -> [Option<usize>; 2] {
        [None, None]
    }
    /// A session for a connection that was just taken.
    fn open(&self, peer: &Peer) -> Self::Session;
}

/// The gateway as connections see it.
#[derive(Clone)]
pub struct Gateway {
    broker: Arc<Broker>,
    decoded: Budget,
}

impl Gateway {
    /// Sessions that are answered by `broker`.
    pub fn new(broker: Arc<Broker>) -> Self {
        // What decoded requests may take is in proportion to what they take on the wire.
        let decoded = Budget::new("decoded_requests", broker.config.budgets.requests);
        broker.metrics.watch_budget(&decoded);
        Self { broker, decoded }
    }
}

impl Sessions for Gateway {
    type Session = Arc<Connection>;

    fn responses(&self) -> Budget {
        self.broker.budgets.responses.clone()
    }

    fn connection_limits(&self) -> [Option<usize>; 2] {
        let image = self.broker.catalog.image();
        ["max.connections", "max.connections.per.ip"].map(|name| image.set_at_run_time(name))
    }

    fn open(&self, peer: &Peer) -> Self::Session {
        Arc::new(Connection {
            id: peer.id,
            broker: Arc::clone(&self.broker),
            decoded: self.decoded.clone(),
            listener: Arc::clone(&peer.listener),
            peer: peer.address,
            client: parking_lot::Mutex::new(ClientInfo::default()),
        })
    }
}

impl Session for Arc<Connection> {
    async fn call(&self, frame: Bytes, permit: Permit) -> Result<Answer, CloseReason> {
        handlers::dispatch(self, frame, permit).await
    }

    fn client_id(&self) -> Option<String> {
        self.client.lock().client_id.clone()
    }
}
