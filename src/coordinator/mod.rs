//! The group coordinator: a pure state machine ([`group`]) over a log ([`log`]), and the runtime
//! that joins them ([`runtime`]).
//!
//! ```text
//! handler ─► Groups ─► lock of the group's partition ─► decide ─► append ─► accept ─► answers
//!                                                                   │
//!                        each answer leaves when its position in the journal is durable
//! ```

pub mod group;
pub mod log;
pub mod memory;
pub mod partition_log;
pub mod runtime;

pub use group::command::Settings;
pub use log::{AppendError, Appended, CoordinatorLog, LoadError, LogRecord, Topics};
pub use runtime::{Groups, Held};

/// The partition of `__consumer_offsets` that keeps a group: Kafka's choice, so that a log written
/// by either is read by both.
pub fn partition_of(group: &str, partitions: i32) -> i32 {
    let hash = group
        .encode_utf16()
        .fold(0i32, |h, c| h.wrapping_mul(31).wrapping_add(c.into()));
    hash.checked_abs()
        .unwrap_or(0)
        .checked_rem(partitions)
        .unwrap_or(0)
}
