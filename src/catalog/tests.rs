//! Replay, encodings and rules of the catalog as a whole.
