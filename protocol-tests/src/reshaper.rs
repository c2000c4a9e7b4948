//! Splits and merges the shards of every topic of two and more partitions, again and again, while
//! other tests run. Clients must not notice.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::admin;

/// How often each topic is reshaped.
const EVERY: Duration = Duration::from_millis(200);
/// Shortest time between two reshapes of any topics: at most 50 a second.
const BETWEEN: Duration = Duration::from_millis(20);

/// A reshaper of one gateway.
pub struct Reshaper {
    address: String,
    token: PathBuf,
    chance: u64,
    /// Reshapes done.
    pub done: u64,
    /// Reshapes refused, as when a topic is deleted meanwhile, with the last reason.
    pub refused: (u64, String),
}

impl Reshaper {
    /// For the gateway with that admin port and data directory. The seed decides what is cut.
    pub fn new(address: &str, data: &Path, seed: u64) -> Reshaper {
        Reshaper {
            address: address.to_owned(),
            token: data.join("admin.token"),
            chance: seed | 1,
            done: 0,
            refused: (0, String::new()),
        }
    }

    /// Reshapes each topic once; waits so that it takes [`EVERY`] at least. Nothing is done while
    /// the gateway is down.
    pub fn round(&mut self) {
        let started = Instant::now();
        for (topic, shards) in self.topics() {
            let next = Instant::now() + BETWEEN;
            self.reshape(&topic, &shards);
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        std::thread::sleep(EVERY.saturating_sub(started.elapsed()));
    }

    /// Topics with their open shards: id and number of slots.
    fn topics(&self) -> Vec<(String, Vec<(u64, u64)>)> {
        let Ok((200, text)) = admin::get(&self.address, "/shards?brief=1") else {
            return Vec::new();
        };
        let views: Value = serde_json::from_str(&text).unwrap_or_default();
        let topics = views.as_array().into_iter().flatten();
        let several = topics.filter(|topic| topic["partitions"].as_u64() > Some(1));
        several
            .map(|topic| {
                let shards = topic["shards"].as_array().into_iter().flatten();
                let shards = shards.filter_map(|s| Some((s["id"].as_u64()?, s["slots"].as_u64()?)));
                (
                    topic["topic"].as_str().unwrap_or_default().to_owned(),
                    shards.collect(),
                )
            })
            .collect()
    }

    fn reshape(&mut self, topic: &str, shards: &[(u64, u64)]) {
        let first = self.random(shards.len() as u64) as usize;
        let Some((id, slots)) = shards.get(first) else {
            return;
        };
        let neighbours = shards
            .get(first..(first + 3).min(shards.len()))
            .unwrap_or(&[]);
        // Merges win once there are several shards, so that splits find something to cut.
        let merge = neighbours.len() > 1 && (*slots < 2 || self.random(3) > 0);
        let body = if merge {
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
        match admin::post(&self.address, &path, token.trim(), &body.to_string()) {
            Ok((200, _)) => self.done += 1,
            Ok((status, text)) => self.refused = (self.refused.0 + 1, format!("{status} {text}")),
            // The gateway is being killed or restarted.
            Err(_) => {}
        }
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
