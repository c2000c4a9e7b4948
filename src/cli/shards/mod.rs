//! `shardgate shards`: looking at shards and changing them, over the admin port of a running
//! gateway.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::Serialize;

use self::client::{Client, PATIENCE};
use super::FAILED;
use crate::admin::shards::views::{
    ChangeRequest, ChangeView, ExplainView, LineageView, LocateView, TopicView,
};
use crate::config::Loaded;

pub(super) mod client;
mod lineage;
mod print;

/// Options and command.
#[derive(Debug, Args)]
pub struct Shards {
    /// The gateway's admin port [default: 127.0.0.1 and admin.port of the configuration]
    #[arg(long, global = true, value_name = "HOST:PORT")]
    admin: Option<String>,
    /// Prints the answer as JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Shards with their ranges, load and size, of one topic or of all
    List {
        /// The topic; all of them if none is given
        topic: Option<String>,
    },
    /// How a topic's shards came to be
    Lineage {
        /// The topic
        topic: String,
        /// Shows the links of this partition too; may be repeated
        #[arg(long, value_name = "P")]
        partition: Vec<u32>,
        /// Shows and draws so many of the epochs before the last thousand, which only the disk has
        #[arg(long, value_name = "N", default_value_t = 0)]
        older: u32,
        /// Draws all epochs that are shown, as --older does, and not only the last twelve
        #[arg(long)]
        all: bool,
        /// Prints a graph for graphviz
        #[arg(long)]
        dot: bool,
    },
    /// Cuts a shard into two or more; clients notice nothing
    Split {
        /// The topic
        topic: String,
        /// The shard
        shard: u64,
        /// Where to cut: middle, load, slot:N or hash:HEX
        #[arg(long, default_value = "middle", value_name = "WHERE")]
        at: String,
        /// Cuts into so many parts, with --at middle or load
        #[arg(long, value_name = "N")]
        into: Option<u32>,
        #[command(flatten)]
        how: How,
    },
    /// Joins neighbouring shards into one; clients notice nothing
    Merge {
        /// The topic
        topic: String,
        /// The shards, in the order of their ranges
        #[arg(required = true, num_args = 2..)]
        shards: Vec<u64>,
        #[command(flatten)]
        how: How,
    },
    /// Hands a shard over to another data directory of the node; clients notice nothing
    Move {
        /// The topic
        topic: String,
        /// The shard
        shard: u64,
        /// The data directory, as log.dirs has it or as a path from here
        #[arg(long, value_name = "DIR")]
        to: String,
        #[command(flatten)]
        how: How,
    },
    /// Where the records of a key go, for each way that clients choose partitions
    Locate {
        /// The topic
        topic: String,
        /// The key
        #[arg(long)]
        key: String,
        /// Only this one: murmur2, crc32, fnv1a-signed, fnv1a-masked or fnv1a
        #[arg(long)]
        partitioner: Option<String>,
    },
    /// What limits a topic now, and whether a split helps
    Explain {
        /// The topic
        topic: String,
    },
}

#[derive(Debug, Args)]
struct How {
    /// Only says what would be done
    #[arg(long)]
    dry_run: bool,
}

/// Runs one of the commands.
pub fn run(shards: &Shards, loaded: &Loaded) -> ExitCode {
    match ask(shards, loaded) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("shardgate shards: {message}");
            ExitCode::from(FAILED)
        }
    }
}

fn ask(shards: &Shards, loaded: &Loaded) -> Result<String, String> {
    let client = Client::of(shards.admin.as_deref(), &loaded.config, Some(PATIENCE));
    let json = shards.json;
    match &shards.command {
        Command::List { topic: Some(topic) } => {
            let view: TopicView = client.get(&path(topic, "shards"), &[])?;
            shown(json, &view, print::topic)
        }
        Command::List { topic: None } => {
            let views: Vec<TopicView> = client.get("/shards", &[])?;
            shown(json, &views, |views| print::topics(views))
        }
        Command::Lineage {
            topic,
            partition,
            older,
            all,
            dot,
        } => {
            let all = *all || *older > 0;
            let partitions: Vec<String> = partition.iter().map(u32::to_string).collect();
            let older = older.to_string();
            let asked = partitions.iter().map(|p| ("partition", p.as_str()));
            let query: Vec<_> = asked.chain([("older", older.as_str())]).collect();
            let view: LineageView = client.get(&path(topic, "lineage"), &query)?;
            match dot {
                true => Ok(lineage::dot(&view)),
                false => shown(json, &view, |view| lineage::text(view, all)),
            }
        }
        Command::Locate {
            topic,
            key,
            partitioner,
        } => {
            let mut query = vec![("key", key.as_str())];
            query.extend(partitioner.as_deref().map(|name| ("partitioner", name)));
            let view: LocateView = client.get(&path(topic, "locate"), &query)?;
            shown(json, &view, print::places)
        }
        Command::Explain { topic } => {
            let view: ExplainView = client.get(&path(topic, "explain"), &[])?;
            shown(json, &view, print::explain)
        }
        change => {
            let (topic, request) = requested(change)?;
            let view: ChangeView =
                client.post(&path(topic, "reshape"), &request, loaded.config.data_dir())?;
            shown(json, &view, print::change)
        }
    }
}

/// Where to cut, and into how many parts.
fn cut(at: &str, into: Option<u32>) -> String {
    match (at, into) {
        ("middle", Some(parts)) => format!("even:{parts}"),
        (at, Some(parts)) => format!("{at}:{parts}"),
        (at, None) => at.to_owned(),
    }
}

/// The topic and the change that a command asks for.
fn requested(command: &Command) -> Result<(&str, ChangeRequest), String> {
    let request = match command {
        Command::Split {
            topic,
            shard,
            at,
            into,
            how,
        } => (
            topic,
            ChangeRequest {
                shards: vec![*shard],
                at: Some(cut(at, *into)),
                dry_run: how.dry_run,
                ..ChangeRequest::default()
            },
        ),
        Command::Move {
            topic,
            shard,
            to,
            how,
        } => (
            topic,
            ChangeRequest {
                shards: vec![*shard],
                to: Some(to.clone()),
                to_path: std::path::absolute(to).ok(),
                dry_run: how.dry_run,
                ..ChangeRequest::default()
            },
        ),
        Command::Merge { topic, shards, how } => (
            topic,
            ChangeRequest {
                shards: shards.clone(),
                dry_run: how.dry_run,
                ..ChangeRequest::default()
            },
        ),
        _ => return Err("this command changes nothing".to_owned()),
    };
    Ok((request.0, request.1))
}

fn shown<T: Serialize>(
    json: bool,
    view: &T,
    text: impl FnOnce(&T) -> String,
) -> Result<String, String> {
    match json {
        true => serde_json::to_string_pretty(view)
            .map(|text| text + "\n")
            .map_err(|e| e.to_string()),
        false => Ok(text(view)),
    }
}

/// Topic names hold nothing that a path would have to escape.
fn path(topic: &str, what: &str) -> String {
    format!("/topics/{topic}/{what}")
}
