//! The `format` file.
