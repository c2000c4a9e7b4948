//! Disk backend.
