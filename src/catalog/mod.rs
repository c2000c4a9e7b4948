//! Topics, layouts, configs and id marks of the whole store.
//!
//! ```text
//! closure ─► Change ─► journal ─► durable ─► Image published, watchers woken
//!    ▲ sees the sequenced image                 ▲ what Metadata and configs show
//! ```
//!
//! [`Image`] and [`Change`] are pure; [`Catalog`] joins them to a journal.

mod alter;
pub mod assignment;
pub mod change;
pub mod codec;
pub mod configs;
mod cow;
mod decide;
mod error;
mod image;
mod live;
pub mod names;
mod reshape;
pub mod settings;
mod snapshot;
mod topic;
mod weight;

#[cfg(test)]
mod tests;

pub use alter::{AlterOp, Alteration, from_request};
pub use change::{Change, Reshaped, TopicCreated};
pub use decide::{MAX_PARTITIONS_PER_REQUEST, NewTopic};
pub use error::CatalogError;
pub use image::{Environment, Image, Misfit, TopicLookup};
pub use live::{Catalog, Sequencer};
pub use reshape::{Decision, Plan, ReshapeError};
pub use snapshot::{decode_epoch, encode_epoch};
pub use topic::{MAX_PARTITIONS, Replicas, Topic};
