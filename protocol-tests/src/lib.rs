//! What the protocol tests are written with: a server process that can be killed and started again
//! ([`server`]), a raw connection for requests that client libraries will not send ([`wire`]),
//! record batches as bytes ([`batch`]), the commonest requests ([`calls`], [`groups`]), a reader of
//! `__consumer_offsets` ([`offsets_topic`]), and short forms of rdkafka's clients ([`client`]).
//!
//! Tests talk to [`bootstrap`]: one server process shared by the whole run, or, when the
//! environment names one in `PROTOCOL_TESTS_BOOTSTRAP`, a broker that is already there, such as
//! Apache Kafka. Every test that does not stop its server passes on both.

pub mod admin;
pub mod batch;
pub mod calls;
pub mod client;
pub mod golden;
pub mod groups;
pub mod history;
pub mod lineage;
pub mod offsets_topic;
pub mod reshaper;
pub mod server;
pub mod trace;
pub mod wire;

use std::time::{Duration, Instant};

pub use server::{Server, bootstrap, foreign};

/// How long a condition may take before a test gives up on it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Asks `condition` until it answers, and fails the test with `what` when [`PATIENCE`] is over.
pub fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = condition() {
            return answer;
        }
        assert!(
            Instant::now() < deadline,
            "waited {PATIENCE:?} in vain: {what}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A name no other test and no earlier run has used.
pub fn unique(name: &str) -> String {
    let id = uuid::Uuid::new_v4().simple().to_string();
    format!("{name}-{}", &id[..12])
}
