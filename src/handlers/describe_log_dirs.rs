//! DescribeLogDirs 1–4: where partitions are and how large they are.
//!
//! KIP-113 (the API), KIP-827 (size and free space of the disk, version 4).
//!
//! Each shard is shown as a log directory of its own, named after the shard's id, so that stock
//! tools print which partitions share a shard. No such directory exists on disk: all shards of a
//! data directory share its journal and segment files, and its free space. Without any partition
//! to show, the data directory itself is shown.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kafka_protocol::messages::describe_log_dirs_request::DescribableLogDirTopic;
use kafka_protocol::messages::describe_log_dirs_response::{
    DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic,
};
use kafka_protocol::messages::{DescribeLogDirsRequest, DescribeLogDirsResponse, TopicName};

use super::answers::{index, text};
use super::{Connection, Reply};
use crate::catalog::{Image, Topic};
use crate::partition::log::Partition;
use crate::partition::shard::SegmentFile;
use crate::store::backend::disk::DiskDir;
use crate::store::backend::{Disk, Space};
use crate::types::{PartitionKey, ShardId};

/// Answers with one directory per shard that holds an asked partition.
pub async fn handle(
    cx: &Arc<Connection>,
    request: DescribeLogDirsRequest,
    _version: i16,
) -> Reply<DescribeLogDirsResponse> {
    let image = cx.broker.catalog.image();
    let size = |key| cx.broker.partitions.get(key).map(|partition| bytes(&partition));
    let shards = by_shard(&image, request.topics.as_deref(), size);
    let dir = DiskDir::open_unlocked(&cx.broker.config.data_dir);
    let space = dir.and_then(|dir| dir.space()).ok();
    let root = cx.broker.config.data_dir.display().to_string();
    let mut results: Vec<_> = shards
        .into_iter()
        .map(|(shard, topics)| directory(&format!("{root}/shards/{}", shard.0), topics, space))
        .collect();
    if results.is_empty() {
        results.push(directory(&root, BTreeMap::new(), space));
    }
    DescribeLogDirsResponse::default().with_results(results).into()
}

/// Bytes of a partition, in segment files and in the tail.
fn bytes(partition: &Partition) -> u64 {
    partition.search(|_, files, tail| {
        let section = |file: &Arc<SegmentFile>| {
            let sections = &file.meta.sections;
            let at = sections.binary_search_by_key(&partition.key, |section| section.key).ok()?;
            sections.get(at).map(|section| section.bytes)
        };
        let in_files: u64 = files.iter().filter_map(section).sum();
        let in_tail: u64 = tail.iter().map(|batch| batch.payload.len() as u64).sum();
        in_files + in_tail
    })
}

/// Partitions of one shard with their sizes, by topic.
type Sizes<'a> = BTreeMap<&'a str, Vec<(u32, u64)>>;

/// Sorts the asked partitions (all if `None`) by the shard they are in. What does not exist is
/// left out.
fn by_shard<'a>(
    image: &'a Image,
    asked: Option<&[DescribableLogDirTopic]>,
    size: impl Fn(PartitionKey) -> Option<u64>,
) -> BTreeMap<ShardId, Sizes<'a>> {
    let mut shards: BTreeMap<ShardId, Sizes<'a>> = BTreeMap::new();
    let mut add = |topic: &'a Topic, at: u32| {
        let Some(bytes) = size(PartitionKey { topic: topic.no, index: at }) else { return };
        let Some(shard) = topic.layout.shard_of(at) else { return };
        shards.entry(shard).or_default().entry(&topic.name).or_default().push((at, bytes));
    };
    match asked {
        None => {
            for topic in image.topics() {
                (0..topic.partitions).for_each(|at| add(topic, at));
            }
        }
        Some(asked) => {
            let pairs = asked.iter().flat_map(|topic| {
                topic.partitions.iter().map(|partition| (topic.topic.as_str(), *partition))
            });
            for (name, partition) in pairs.collect::<BTreeSet<_>>() {
                if let Some((topic, at)) = image.topic(name).zip(index(partition)) {
                    add(topic, at);
                }
            }
        }
    }
    shards
}

fn directory(name: &str, topics: Sizes<'_>, space: Option<Space>) -> DescribeLogDirsResult {
    let topics = topics.into_iter().map(|(name, partitions)| {
        let partitions = partitions.into_iter().map(|(at, bytes)| {
            DescribeLogDirsPartition::default()
                .with_partition_index(i32::try_from(at).unwrap_or(i32::MAX))
                .with_partition_size(signed(bytes))
        });
        DescribeLogDirsTopic::default()
            .with_name(TopicName(text(name)))
            .with_partitions(partitions.collect())
    });
    DescribeLogDirsResult::default()
        .with_log_dir(text(name))
        .with_topics(topics.collect())
        .with_total_bytes(space.map_or(-1, |space| signed(space.total)))
        .with_usable_bytes(space.map_or(-1, |space| signed(space.free)))
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::ApiKey;

    use crate::protocol::response::encode_response;

    #[test]
    fn directories_fit_every_version() {
        let sizes: Sizes<'_> = BTreeMap::from([("t", vec![(0, 94), (3, u64::MAX)])]);
        let space = Some(Space { free: 5, total: 9 });
        let result = directory("data/shards/7", sizes, space);
        assert_eq!((result.usable_bytes, result.total_bytes), (5, 9));
        assert_eq!(result.topics[0].partitions[0].partition_size, 94);
        assert_eq!(result.topics[0].partitions[1].partition_size, i64::MAX);
        let answer = DescribeLogDirsResponse::default().with_results(vec![result]);
        for version in 1..=4 {
            assert!(encode_response(1, ApiKey::DescribeLogDirs, version, &answer).is_ok());
        }
    }
}
