//! About what topics and configs take in memory, so that all of them together can be bounded.

use super::change::Change;
use super::codec::Configs;
use super::image::Image;
use super::topic::{Replicas, Topic};

/// A topic without its partitions, in every index.
const TOPIC: u64 = 1_536;
/// An idle partition: what it was measured to take, with the maps that it is in.
const PARTITION: u64 = 512;
/// A shard and its place in the layout.
const SHARD: u64 = 512;
/// A config, or anything else with a place of its own.
const PIECE: u64 = 96;

fn configs(configs: &Configs) -> u64 {
    let one = |(name, value): (&String, &String)| PIECE + (name.len() + value.len()) as u64;
    configs.iter().map(one).sum()
}

fn replicas(replicas: &Replicas) -> u64 {
    replicas
        .values()
        .map(|ids| PIECE + 4 * ids.len() as u64)
        .sum()
}

fn named(name: &str) -> u64 {
    TOPIC + 4 * name.len() as u64
}

/// A topic with all that belongs to it.
fn topic(topic: &Topic) -> u64 {
    let parts = topic.layout.parts();
    named(&topic.name)
        + PARTITION * u64::from(topic.partitions)
        + SHARD * parts.open.len() as u64
        + configs(&topic.configs)
        + replicas(&topic.replicas)
}

fn difference(after: u64, before: u64) -> i64 {
    i64::try_from(after).unwrap_or(i64::MAX) - i64::try_from(before).unwrap_or(i64::MAX)
}

impl Image {
    /// About what topics and configs take in memory.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// By how much a change that fits the image lets that grow or shrink.
    pub fn growth(&self, change: &Change) -> i64 {
        match change {
            Change::TopicCreated(new) => {
                let shards = SHARD * u64::from(new.shards);
                let partitions = PARTITION * u64::from(new.partitions);
                let more = configs(&new.configs) + replicas(&new.replicas);
                difference(named(&new.name) + partitions + shards + more, 0)
            }
            Change::TopicDeleted { no } => {
                difference(0, self.topic_by_no(*no).map_or(0, |t| topic(t)))
            }
            Change::PartitionsAdded {
                no,
                to,
                replicas: new,
                ..
            } => {
                let have = self.topic_by_no(*no).map_or(*to, |t| t.partitions);
                let added = PARTITION * u64::from(to.saturating_sub(have));
                difference(added + replicas(new), 0)
            }
            Change::TopicConfigsSet { no, configs: new } => {
                let before = self.topic_by_no(*no).map_or(0, |t| configs(&t.configs));
                difference(configs(new), before)
            }
            Change::BrokerConfigsSet {
                broker,
                configs: new,
            } => difference(configs(new), configs(self.broker_configs(*broker))),
            Change::GroupConfigsSet {
                group,
                configs: new,
            } => {
                let weight = |of: &Configs| match of.is_empty() {
                    true => 0,
                    false => PIECE + group.len() as u64 + configs(of),
                };
                let before = self.group_configs(group).map_or(0, |of| weight(of));
                difference(weight(new), before)
            }
            Change::ProducerIdsReserved { .. } => 0,
            Change::Reshaped(reshaped) => difference(
                SHARD * reshaped.opened.len() as u64,
                SHARD * reshaped.sealed.len() as u64,
            ),
        }
    }

    /// All of it, counted anew.
    pub(super) fn weigh(&self) -> u64 {
        let groups: u64 = self
            .groups_with_configs()
            .map(|(group, of)| PIECE + group.len() as u64 + configs(of))
            .sum();
        let brokers: u64 = self.broker_configs.values().map(configs).sum();
        self.topics_by_no().map(|t| topic(t)).sum::<u64>() + groups + brokers
    }
}
