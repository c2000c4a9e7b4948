//! A simulated machine for the store, the partitions and the group coordinator: one thread, a clock
//! and a disk of its own, and chance that follows from a seed. The same seed gives the same run.
//!
//! [`world`] holds the machine, with a disk for each data directory, all of which lose their
//! [`power`] at once; [`restart`] lets processes end and start; [`store`] is one such process, from
//! disk to coordinator, with journals that move a step at a time; [`jobs`] runs background work with
//! everything else in the middle of it; [`ops`] has one file for each thing that clients, the machine
//! or fate do; [`net`] has clients behind connections; [`model`] says what must come of it, with
//! [`lineage`] for the shards, and [`check`] compares; [`seen`] counts rare branches, so that a set of
//! runs which never took one fails. [`named`] has a history for each fault that a careless store would have.
//!
//! `cargo test sim::` runs 240 seeds. More (and with `SHARDGATE_SIM_FROM=n` from a chosen
//! one on; `SHARDGATE_SIM_TRACE=1` prints every step):
//!
//! ```text
//! SHARDGATE_SIM_SEEDS=5000 cargo test --release --lib sim::seeds -- --nocapture
//! ```

mod check;
mod clock;
mod disk;
mod ends;
mod jobs;
mod lineage;
mod model;
mod named;
mod net;
mod ops;
mod power;
mod random;
mod restart;
mod seeds;
mod seen;
mod store;
mod world;
