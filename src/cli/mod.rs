//! The command line. Without a subcommand the gateway serves.

pub mod banner;
pub mod logging;
pub mod show_config;
