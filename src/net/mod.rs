//! See the crate's code map.
