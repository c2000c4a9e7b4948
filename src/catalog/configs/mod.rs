//! Every config that clients can see: names, types, defaults, synonyms, and what values may be.

mod check;
mod describe;
mod table;

#[cfg(test)]
mod tests;

pub use check::{append, subtract, validate, validate_all, validate_group};
pub use describe::{ConfigEntry, Layers, Synonym, describe, effective};
pub use table::{Check, ConfigDef, ConfigType, Effect, Scope, SynonymDef, Table, table};

/// Where a value came from. The numbers are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i8)]
pub enum ConfigSource {
    /// Set on the topic.
    Topic = 1,
    /// Set at run time on this broker.
    DynamicBroker = 2,
    /// Set at run time for all brokers.
    DynamicDefaultBroker = 3,
    /// Set in the configuration that the process started with.
    StaticBroker = 4,
    /// Built in.
    Default = 5,
    /// Set for a client metrics subscription.
    ClientMetrics = 7,
    /// Set on the group.
    Group = 8,
}
