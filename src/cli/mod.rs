//! The command line. Without a subcommand the gateway serves.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::config::{self, Loaded, LogFormat, Source};

pub mod banner;
mod limits;
pub mod logging;
pub mod serve;
pub mod shards;
pub mod show_config;
pub mod verify;

/// Exit code of a start that failed, a process that had to end, or a directory with damage.
pub const FAILED: u8 = 1;
/// Exit code of a command line or configuration that is wrong.
pub const USAGE: u8 = 2;

/// A Kafka-protocol gateway over its own shard store.
#[derive(Debug, Parser)]
#[command(
    name = "shardgate",
    version,
    about,
    args_conflicts_with_subcommands = false
)]
struct Cli {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Args)]
struct Options {
    /// A server.properties file with Kafka's key names
    #[arg(short, long, global = true, value_name = "FILE", env = config::ENV_CONFIG)]
    config: Option<PathBuf>,
    /// Sets one key, above the environment and the file; may be repeated
    #[arg(short, long, global = true, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// What is logged to stderr: error, warn, info, debug, trace, or by module
    #[arg(
        long,
        global = true,
        value_name = "FILTER",
        env = "SHARDGATE_LOG",
        default_value = "info"
    )]
    log: String,
    /// How a log line looks
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        env = "SHARDGATE_LOG_FORMAT",
        default_value = "text"
    )]
    log_format: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves clients until SIGTERM or Ctrl-C (the default)
    Serve,
    /// Prints every key with its value, where that comes from and what it does here
    Config {
        /// How it is printed
        #[arg(long, value_enum, default_value_t = show_config::Shape::Properties)]
        format: show_config::Shape,
    },
    /// Shows and changes the shards of a running gateway
    Shards(shards::Shards),
    /// Checks a data directory, every file and the store as a whole; changes nothing
    Verify(verify::Options),
}

/// Runs the command line and says how the process ends.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to stdout and are no failure.
            error.print().ok();
            return ExitCode::from(if error.use_stderr() { USAGE } else { 0 });
        }
    };
    let format = match cli.options.log_format {
        Format::Text => LogFormat::Text,
        Format::Json => LogFormat::Json,
    };
    if let Err(message) = logging::start(&cli.options.log, format) {
        eprintln!("shardgate: {message}");
        return ExitCode::from(USAGE);
    }
    let loaded = match load(&cli.options) {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!("shardgate: {error}");
            return ExitCode::from(USAGE);
        }
    };
    match cli.command {
        None | Some(Command::Serve) => serve::run(loaded),
        Some(Command::Config { format }) => {
            show_config::print(&loaded, format);
            ExitCode::SUCCESS
        }
        Some(Command::Shards(shards)) => shards::run(&shards, &loaded),
        Some(Command::Verify(options)) => verify::run(&loaded, &options),
    }
}

fn load(options: &Options) -> Result<Loaded, config::ConfigError> {
    config::load(&Source {
        file: options.config.clone(),
        environment: std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect(),
        set: options.set.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_are_taken_before_and_behind_a_subcommand() {
        let parse = |args: &[&str]| Cli::try_parse_from(args).unwrap();
        assert!(parse(&["shardgate"]).command.is_none());
        assert_eq!(
            parse(&["shardgate", "-s", "a=1", "--set", "b=2"])
                .options
                .set
                .len(),
            2
        );
        let behind = parse(&["shardgate", "config", "--set", "a=1", "-c", "x.properties"]);
        assert_eq!(behind.options.set, ["a=1"]);
        assert_eq!(behind.options.config, Some(PathBuf::from("x.properties")));
        assert!(matches!(behind.command, Some(Command::Config { .. })));
        assert!(Cli::try_parse_from(["shardgate", "frobnicate"]).is_err());
    }
}
