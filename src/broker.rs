//! Wiring: what handlers reach through a connection, and the order of start and shutdown.

use std::sync::Arc;

use crate::budget::Budget;
use crate::catalog::Catalog;
use crate::clock::Clock;
use crate::config::Config;
use crate::coordinator::Groups;
use crate::handlers::fetch::session::Sessions;
use crate::metrics::Metrics;
use crate::partition::Registry;
use crate::store::journal::Journal;

/// Budgets that handlers take shares of.
#[derive(Clone)]
pub struct HandlerBudgets {
    /// Buffers held by answers that were not sent yet.
    pub responses: Budget,
    /// Memory of decompression under way.
    pub decompression: Budget,
}

/// One running gateway.
pub struct Broker {
    /// The configuration it was started with.
    pub config: Arc<Config>,
    /// Wall and monotonic time.
    pub clock: Arc<dyn Clock>,
    /// What `/metrics` shows.
    pub metrics: Arc<Metrics>,
    /// The journal of the data directory.
    pub journal: Arc<dyn Journal>,
    /// Topics and configs.
    pub catalog: Arc<Catalog>,
    /// Every partition.
    pub partitions: Arc<Registry>,
    /// The group coordinator.
    pub groups: Arc<Groups>,
    /// Fetch sessions of all connections.
    pub fetch_sessions: Sessions,
    /// Shares for answers and decompression.
    pub budgets: HandlerBudgets,
    /// The cluster's id as clients see it.
    pub cluster_id: String,
    /// This node's id.
    pub node_id: i32,
}
