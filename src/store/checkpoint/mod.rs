//! Checkpoint.
