//! Sockets: bytes to frames, the order of answers, and everything that bounds a client.
//!
//! ```text
//! accept ─► limits ─► connection ─┬─ reader: frame ─► budget ─► dispatch ─┐
//!                                 └─ writer: wait durable ─► write  ◄─────┘ bounded queue
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`listen`] | sockets that are bound, with the ports they really got |
//! | [`frame`] | frames with a bounded length, their memory reserved as bytes arrive |
//! | [`connection`] | one request after the other; a Produce counts as handled once sequenced |
//! | [`writer`] | answers in request order, each when what it shows is durable |
//! | [`server`] | accepting, limits on connections, drain |
//! | [`slow`] | requests that took long, and where the time went |
//! | [`session`] | the seam to [`crate::handlers`] |

pub mod connection;
pub mod frame;
pub mod listen;
pub mod server;
pub mod session;
mod slow;
pub mod writer;

pub use server::Server;
