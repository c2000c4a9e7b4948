//! Log lines to stderr, and panics among them.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// Starts logging. `filter` is a level, or levels by module.
pub fn start(filter: &str, format: LogFormat) -> Result<(), String> {
    let filter = EnvFilter::builder().parse(filter).map_err(|error| {
        format!(
            "--log {filter} (or SHARDGATE_LOG): {error}; a level (error, warn, info, debug, trace) \
             or module=level pairs with commas between them are allowed"
        )
    })?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    let started = match format {
        LogFormat::Text => lines.try_init(),
        LogFormat::Json => lines.json().try_init(),
    };
    started.map_err(|error| format!("cannot start logging: {error}"))?;
    log_panics();
    Ok(())
}

/// A panic ends one task at most; without this it would be seen by nobody who reads the log.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic
            .location()
            .map(ToString::to_string)
            .unwrap_or_default();
        let message = panic.payload_as_str().unwrap_or("no message");
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("unnamed");
        tracing::error!(
            place,
            thread,
            "a fault in shardgate itself: {message}; what this thread or connection was doing is \
             lost, please report it"
        );
    }));
}
