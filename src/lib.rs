//! Shardgate: a Kafka-protocol gateway over its own shard store.
//!
//! Code map, top to bottom; calls go down, news comes back as return values or through a waiter:
//!
//! | module | what it holds |
//! |---|---|
//! | [`cli`], [`config`] | command line; `server.properties` with Kafka's own key names |
//! | [`admin`] | HTTP on loopback: health and metrics |
//! | [`net`] | listeners and connections: bytes to frames, order of answers, limits |
//! | [`handlers`] | one file per API |
//! | [`protocol`] | headers, API table, guard, record batches, compression, error codes (pure) |
//! | [`coordinator`] | group coordinator: a pure state machine over a log, and its runtime |
//! | [`catalog`] | topics and their configs: image and changes |
//! | [`partition`] | append rules, producer state, fetch, waiters, retention |
//! | [`shard`] | slots, ranges, layout, lineage (pure) |
//! | [`store`] | journal, tail, segments, flush, checkpoint, recovery; disk backends |
//! | [`broker`] | wiring and shutdown order; no logic |

pub mod admin;
pub mod broker;
pub mod budget;
pub mod catalog;
pub mod cli;
pub mod clock;
pub mod config;
pub mod coordinator;
pub mod handlers;
pub mod metrics;
pub mod net;
pub mod partition;
pub mod protocol;
pub mod repeats;
pub mod shard;
pub mod store;
pub mod types;

#[cfg(test)]
mod sim;
