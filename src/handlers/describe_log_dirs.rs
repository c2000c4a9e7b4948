//! DescribeLogDirs 1–4: where partitions are and how large they are.
//!
//! KIP-113 (the API), KIP-827 (size and free space of the disk, version 4).
//!
//! Each data directory is shown with the partitions that live there, and the size and free space of
//! its device. A partition of a shard that was moved is shown in its old directory too, with what
//! segment files there still hold of it. With `describe.log.dirs.shards=true` each shard is shown as a directory of its own
//! below its data directory, so that stock tools print which partitions share a shard; no such
//! directory exists on disk.

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
use crate::store::backend::Space;
use crate::types::{DirectoryNo, PartitionKey, ShardId};

/// Answers with every data directory, or with every shard that holds an asked partition.
pub async fn handle(
    cx: &Arc<Connection>,
    request: DescribeLogDirsRequest,
    _version: i16,
) -> Reply<DescribeLogDirsResponse> {
    let image = cx.broker.catalog.image();
    let partitions = &cx.broker.partitions;
    let shards = cx.broker.config.describe_shards;
    let place = |key| {
        let partition = partitions.get(key);
        let shard = partition.as_ref().and_then(|partition| partition.shard());
        let (Some(partition), Some(shard)) = (partition, shard) else {
            return Vec::new();
        };
        let shown = shards.then_some(shard.id);
        let bytes = partition.bytes_by_directory().into_iter();
        bytes.map(|(directory, bytes)| ((directory, shown), bytes)).collect()
    };
    let mut places = by_place(&image, request.topics.as_deref(), place);
    let mut results = Vec::new();
    for root in partitions.directories().iter() {
        let space = root.space().ok();
        if !shards {
            let topics = places.remove(&(root.no, None)).unwrap_or_default();
            results.push(directory(&root.name, topics, space));
            continue;
        }
        let there = places.extract_if((root.no, None).., |place, _| place.0 == root.no);
        let before = results.len();
        results.extend(there.map(|((_, shard), topics)| {
            let shard = shard.map_or(0, |shard| shard.0);
            directory(&format!("{}/shards/{shard}", root.name), topics, space)
        }));
        if results.len() == before {
            results.push(directory(&root.name, BTreeMap::new(), space));
        }
    }
    DescribeLogDirsResponse::default().with_results(results).into()
}

/// A data directory, and a shard in it if those are shown.
type Place = (DirectoryNo, Option<ShardId>);

/// Partitions of one place with their sizes, by topic.
type Sizes<'a> = BTreeMap<&'a str, Vec<(u32, u64)>>;

/// Sorts the asked partitions (all if `None`) by where they are, which `place` tells with their
/// size there. What does not exist is left out.
fn by_place<'a>(
    image: &'a Image,
    asked: Option<&[DescribableLogDirTopic]>,
    place: impl Fn(PartitionKey) -> Vec<(Place, u64)>,
) -> BTreeMap<Place, Sizes<'a>> {
    let mut places: BTreeMap<Place, Sizes<'a>> = BTreeMap::new();
    let mut add = |topic: &'a Topic, at: u32| {
        let key = PartitionKey { topic: topic.no, index: at };
        for (place, bytes) in place(key) {
            places.entry(place).or_default().entry(&topic.name).or_default().push((at, bytes));
        }
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
    places
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
