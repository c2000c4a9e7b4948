//! Tests of the checkpoint.
