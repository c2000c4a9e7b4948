//! Kafka log semantics over the store: append rules, reads, waiting fetches, retention.
//!
//! [`registry::Registry`] is the one door. What it shows is durable; what is sequenced but not yet
//! durable lives behind the shards' locks and is seen by later appends only.

mod apply;
mod archive;
pub mod checkpoint;
pub mod directory;
pub mod entries;
mod figures;
mod flush;
mod gate;
pub mod load;
pub mod log;
pub mod maintenance;
mod merge;
pub mod move_entries;
mod moves;
pub mod producer_budget;
pub mod producer_state;
pub mod read;
pub mod recovery;
pub mod registry;
mod reshape;
pub mod retention;
mod routes;
pub mod shard;
mod superseded;
pub mod tail;
pub mod time_search;
pub mod verify;
mod verify_batches;
pub mod verify_live;
pub mod waiters;
pub mod witness;

#[cfg(test)]
mod tests;

pub use log::{Bounds, Partition};
pub use registry::Registry;
pub use reshape::Reshaped;
pub use shard::{Appended, Prepared, Refused};
