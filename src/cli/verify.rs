//! `shardgate verify`: is everything in a data directory as it was written?

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::process::ExitCode;

use super::shards::client::{Client, PATIENCE};
use super::{FAILED, USAGE};
use crate::catalog::Environment;
use crate::config::{Config, Loaded};
use crate::partition::verify::{self, Checked, Report};
use crate::store::directories::{self, OpenError};

/// How it is checked.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Prints what was found as JSON
    #[arg(long)]
    json: bool,
    /// Asks the gateway that runs on the directory instead of opening the directory
    #[arg(long)]
    live: bool,
    /// The running gateway's admin port [default: 127.0.0.1 and admin.port of the configuration]
    #[arg(long, value_name = "HOST:PORT", requires = "live")]
    admin: Option<String>,
    /// Has the running gateway read every segment file and check its checksums
    #[arg(long, requires = "live")]
    deep: bool,
}

/// Checks the data directory and prints what was found. 0: clean, 1: damage, 2: not possible.
pub fn run(loaded: &Loaded, options: &Options) -> ExitCode {
    let config = &loaded.config;
    let checked = match options.live {
        true => ask(config, options),
        false => check(config),
    };
    let checked = match checked {
        Ok(report) => report,
        Err(Refusal::Damaged(why)) => {
            let mut report = Report::default();
            report.damage(Some("format".to_owned()), why, "see above");
            report
        }
        Err(Refusal::Usage(why)) => {
            eprintln!("shardgate verify: {why}");
            return ExitCode::from(USAGE);
        }
    };
    let text = if options.json {
        serde_json::to_string_pretty(&checked).map_or_else(|e| e.to_string(), |text| text + "\n")
    } else {
        words(&checked, config, options)
    };
    // A closed pipe downstream changes nothing about the directory.
    io::stdout().write_all(text.as_bytes()).ok();
    if checked.damage.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(FAILED)
    }
}

enum Refusal {
    /// There is nothing that could be checked.
    Usage(String),
    /// A format file itself.
    Damaged(String),
}

impl From<OpenError> for Refusal {
    fn from(error: OpenError) -> Self {
        let words = error.to_string();
        match error {
            OpenError::Unusable { .. } => Self::Usage(words),
            OpenError::Damaged { .. } => Self::Damaged(words),
        }
    }
}

fn ask(config: &Config, options: &Options) -> Result<Report, Refusal> {
    // How long it takes to read every record depends on how many there are.
    let (query, patience): (&[(&str, &str)], _) = match options.deep {
        true => (&[("deep", "1")], None),
        false => (&[], Some(PATIENCE)),
    };
    let client = Client::of(options.admin.as_deref(), config, patience);
    client.get("/verify", query).map_err(Refusal::Usage)
}

fn check(config: &Config) -> Result<Report, Refusal> {
    let opened = directories::open_to_read(&config.data_dirs)?;
    let checked = opened.into_iter().map(|directory| Checked {
        disk: directory.disk,
        format: directory.format,
        name: directory.name,
    });
    let checked: Vec<Checked> = checked.collect();
    let environment = Environment {
        node_id: config.node_id,
        fixed: config.properties.clone(),
        ..Environment::default()
    };
    let quiet = tracing::subscriber::NoSubscriber::default();
    // What recovery logs is about a start, and would be misleading here.
    Ok(tracing::subscriber::with_default(quiet, || {
        verify::verify(&checked, environment, &progress)
    }))
}

fn progress(done: u64, total: u64) {
    let mut terminal = io::stderr();
    if terminal.is_terminal() {
        let percent = done.saturating_mul(100).checked_div(total).unwrap_or(100);
        let end = if done >= total { "\r          \r" } else { "" };
        write!(terminal, "\rjournal: {percent} %{end}").ok();
    }
}

fn words(report: &Report, config: &Config, options: &Options) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    for finding in &report.damage {
        let _ = writeln!(out, "DAMAGE  {}", finding.what);
        let _ = writeln!(out, "        {}", finding.advice);
    }
    for note in &report.notes {
        let _ = writeln!(out, "note    {note}");
    }
    let _ = match options.live {
        true => writeln!(out, "{}", looked_at_live(report, options)),
        false => writeln!(out, "{}: {}", config.directory_names(), looked_at(report)),
    };
    let _ = match report.damage.len() {
        0 => writeln!(out, "clean"),
        1 => writeln!(out, "1 thing is damaged"),
        n => writeln!(out, "{n} things are damaged"),
    };
    out
}

/// A running gateway reads neither its journal nor its checkpoints for this.
fn looked_at_live(report: &Report, options: &Options) -> String {
    let files = match options.deep {
        true => format!("{} bytes of them read", report.segment_bytes),
        false => "not read (--deep reads them)".to_owned(),
    };
    format!(
        "the running gateway: {} topics, {} partitions, {} segment files, {files}",
        report.topics, report.partitions, report.segment_files
    )
}

fn looked_at(report: &Report) -> String {
    format!(
        "journal {} files, {} groups, {} entries; checkpoint {} roots, {} sections; segments \
         {} files, {} bytes; {} topics, {} partitions, {} batches in segments",
        report.journal_files,
        report.journal_groups,
        report.journal_entries,
        report.checkpoint_roots,
        report.checkpoint_sections,
        report.segment_files,
        report.segment_bytes,
        report.topics,
        report.partitions,
        report.batches,
    )
}
