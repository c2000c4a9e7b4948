//! The shard store's engine. It knows entries, files and positions, and no Kafka words.
//!
//! ```text
//! append ─► JOURNAL (group commit) ─► durable ─► sink: tail, visible, waiters
//!                                        flush ─► SEGMENTS ─► `segments` entry ─► tail freed
//! ```

pub mod backend;
pub mod checkpoint;
pub mod directories;
pub mod format;
pub mod journal;
pub mod lineage;
pub mod segment;
