//! Splits and merges the shards of every topic of two and more partitions, again and again, while
//! other tests run, and moves them if the gateway has several data directories. Clients must not
//! notice.
//!
//! Each reshape is a line of the reshaper's log, which begins with `done`; with `refused` where the
//! gateway may refuse, as when the topic was deleted meanwhile; or with `fault`.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::admin;

/// How often each topic is reshaped.
const EVERY: Duration = Duration::from_millis(200);
/// Shortest time between two reshapes of any topics: at most 50 a second.
const BETWEEN: Duration = Duration::from_millis(20);

/// An open shard: its id and number of slots.
type Slots = (u64, u64);

/// A reshaper of one gateway.
pub struct Reshaper {
    address: String,
    token: PathBuf,
    chance: u64,
    done: Arc<AtomicU64>,
    log: Box<dyn Write + Send>,
    /// Where shards are moved; none are if it is a single one.
    directories: Vec<String>,
    moves: Arc<AtomicU64>,
}

impl Reshaper {
    /// For the gateway with that admin port and data directory. The seed decides what is cut;
    /// `done` counts.
    pub fn new(
        address: &str,
        data: &Path,
        seed: u64,
        done: &Arc<AtomicU64>,
        log: impl Write + Send + 'static,
    ) -> Reshaper {
        Reshaper {
            address: address.to_owned(),
            token: data.join("admin.token"),
            chance: seed | 1,
            done: Arc::clone(done),
            log: Box::new(log),
            directories: Vec::new(),
            moves: Arc::default(),
        }
    }

    /// Moves shards between these data directories, too.
    pub fn with_directories(mut self, directories: Vec<String>) -> Reshaper {
        self.directories = directories;
        self
    }

    /// Counts moves that were done.
    pub fn moves(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.moves)
    }

    /// Reshapes each topic once; waits so that it takes [`EVERY`] at least. A gateway that is down
    /// or not ready is asked again at once, so that its first moments see reshapes.
    pub fn round(&mut self) {
        let started = Instant::now();
        let Some(topics) = self.topics() else {
            return std::thread::sleep(BETWEEN);
        };
        for (topic, shards) in topics {
            let next = Instant::now() + BETWEEN;
            self.reshape(&topic, &shards);
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        std::thread::sleep(EVERY.saturating_sub(started.elapsed()));
    }

    /// Topics with their open shards: id and number of slots. `None` if the gateway does not say.
    fn topics(&self) -> Option<Vec<(String, Vec<Slots>)>> {
        let Ok((200, text)) = admin::get(&self.address, "/shards?brief=1") else {
            return None;
        };
        let views: Value = serde_json::from_str(&text).unwrap_or_default();
        let topics = views.as_array().into_iter().flatten();
        let several = topics.filter(|topic| topic["partitions"].as_u64() > Some(1));
        let named = several.map(|topic| {
            let shards = topic["shards"].as_array().into_iter().flatten();
            let shards = shards.filter_map(|s| Some((s["id"].as_u64()?, s["slots"].as_u64()?)));
            let name = topic["topic"].as_str().unwrap_or_default().to_owned();
            (name, shards.collect())
        });
        Some(named.collect())
    }

    fn reshape(&mut self, topic: &str, shards: &[Slots]) {
        let first = self.random(shards.len() as u64) as usize;
        let Some((id, slots)) = shards.get(first) else {
            return;
        };
        let neighbours = shards
            .get(first..(first + 3).min(shards.len()))
            .unwrap_or(&[]);
        // Merges win once there are several shards, so that splits find something to cut.
        let merge = neighbours.len() > 1 && (*slots < 2 || self.random(3) > 0);
        let may_move = self.directories.len() > 1 && !topic.starts_with("__");
        let moves = may_move && self.random(3) == 0;
        let body = if moves {
            let to = self.random(self.directories.len() as u64) as usize;
            serde_json::json!({ "shards": [id], "to": self.directories[to] })
        } else if merge {
            let ids: Vec<u64> = neighbours.iter().map(|shard| shard.0).collect();
            serde_json::json!({ "shards": ids })
        } else if *slots > 1 {
            let parts = 2 + self.random((*slots - 1).min(3));
            let how = if self.random(2) == 0 { "even" } else { "load" };
            serde_json::json!({ "shards": [id], "at": format!("{how}:{parts}") })
        } else {
            return;
        };
        let token = fs::read_to_string(&self.token).unwrap_or_default();
        let path = format!("/topics/{topic}/reshape");
        // No answer: the gateway is being killed or restarted.
        if let Ok((status, text)) =
            admin::post(&self.address, &path, token.trim(), &body.to_string())
        {
            self.note(topic, status, &text, &body);
        }
    }

    fn note(&mut self, topic: &str, status: u16, text: &str, body: &Value) {
        let answer: Value = serde_json::from_str(text).unwrap_or_default();
        let line = match status {
            200 => {
                self.done.fetch_add(1, Ordering::Relaxed);
                if body["to"].is_string() && answer["repeated"] == false {
                    self.moves.fetch_add(1, Ordering::Relaxed);
                }
                let opened = answer["after"].as_array().into_iter().flatten();
                let opened: Vec<Value> = opened.map(|shard| shard["id"].clone()).collect();
                let (epoch, sealed) = (&answer["epoch"], &body["shards"]);
                format!(
                    "done {topic} epoch {epoch}: {sealed} into {}\n",
                    Value::from(opened)
                )
            }
            404 | 409 | 503 => format!("refused {topic} {status} {text}\n"),
            _ => format!("fault {topic} {status} {text} for {body}\n"),
        };
        self.log.write_all(line.as_bytes()).expect("the log");
    }

    /// A number below `below`, by a linear congruential generator.
    fn random(&mut self, below: u64) -> u64 {
        self.chance = self
            .chance
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.chance >> 33) % below.max(1)
    }
}
