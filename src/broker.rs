//! What handlers reach through a connection: wiring, no logic.

use std::sync::Arc;

use crate::clock::Clock;
use crate::config::Config;
use crate::metrics::Metrics;
use crate::store::journal::Journal;

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
    /// The cluster's id as clients see it.
    pub cluster_id: String,
    /// This node's id.
    pub node_id: i32,
}
