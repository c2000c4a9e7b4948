//! What clients may rely on, one module per topic.

mod configs;
mod connection;
mod crash;
mod edges;
mod effects;
mod fetch;
mod golden;
mod group_protocol;
mod groups;
mod kills;
mod limits;
mod listeners;
mod offsets;
mod open_files;
mod produce;
mod refusals;
mod reports;
mod restart;
mod shards;
mod signals;
mod small_disk;
mod soak;
mod strace;
mod topics;
mod verify;
mod versions;
