//! Slots, ranges, layout and lineage of a topic's shards. Pure: no clock, randomness or IO.
//!
//! A topic's partitions stand in *slot order*, so that every partition owns a range of the hash
//! space and growth never moves a shard boundary. A shard owns a run of slots; the open shards of a
//! topic tile its slots exactly.

pub mod cut;
mod growth;
mod layout;
pub mod partitioner;
mod past;
mod range;
mod reshape;

#[cfg(test)]
mod tests;

pub use layout::{
    EpochEvent, EpochRecord, Forgotten, Layout, LayoutError, LayoutParts, Link, MAX_EPOCHS,
    MAX_STARTS, Parent, ShardSpan, ShardState,
};
pub use past::PastReshape;
pub use range::HashRange;
