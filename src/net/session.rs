//! The seam between connections and handlers.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;

use crate::broker::Broker;
use crate::budget::Permit;
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
    /// A session for a connection that was just taken.
    fn open(&self, peer: &Peer) -> Self::Session;
}

impl Sessions for Arc<Broker> {
    type Session = Arc<Connection>;

    fn open(&self, peer: &Peer) -> Self::Session {
        Arc::new(Connection {
            id: peer.id,
            broker: Arc::clone(self),
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
}
