//! What crosses the wire: bytes to requests, responses to bytes. No clock, no IO, no state.
//!
//! | module | what it holds |
//! |---|---|
//! | [`api`] | one row per API: key, versions, frame cap |
//! | [`header`] | request headers, read without trust |
//! | [`guard`] | bounds check of a request body before the typed decoder sees it |
//! | [`batch`] | record batches: view, check, patch, iterate, build |
//! | [`compression`] | the four codecs, always through a limit |
//! | [`response`], [`fetch_response`] | frames to send; Fetch payloads are spliced, not copied |
//! | [`error`] | Kafka's error codes |
//! | [`compatibility`] | docs/compatibility.md, printed from the API table |
//! | [`edge_cases`] | its part about the differential test |
//! | [`foreign_suites`] | its part about librdkafka's and rust-rdkafka's tests |
//!
//! Order of use: [`header::parse`] → [`api::ApiRow::decodes`] → [`guard::check`] → the typed
//! decoder of `kafka_protocol` → handler → [`response::encode_response`].

pub mod api;
pub mod batch;
pub mod compatibility;
pub mod compression;
pub mod edge_cases;
pub mod error;
pub mod fetch_response;
pub mod foreign_suites;
pub mod guard;
pub mod header;
pub mod response;
mod wire;
