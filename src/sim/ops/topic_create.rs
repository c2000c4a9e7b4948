//! CreateTopics.

use std::sync::Arc;

use uuid::Uuid;

use crate::catalog::settings::TimestampType;
use crate::catalog::{CatalogError, NewTopic};
use crate::sim::ends::in_first;
use crate::sim::lineage::{Lineage, directory_id};
use crate::sim::model::{Change, TopicState};
use crate::sim::ops::TOPICS;
use crate::sim::seen::Branch;
use crate::sim::world::World;

pub(super) fn run(world: &mut World) {
    let name = TOPICS[world.random.below(TOPICS.len() as u64) as usize];
    let partitions = 1 + world.random.below(5) as i32;
    let config = match world.random.below(6) {
        0 => Some(("retention.bytes", "4000")),
        1 => Some(("retention.ms", "3000")),
        2 => Some(("shard.count", "2")),
        3 => Some(("message.timestamp.type", "LogAppendTime")),
        _ => None,
    };
    create(world, name, partitions, config);
}

pub(in crate::sim) fn create(
    world: &mut World,
    name: &str,
    partitions: i32,
    config: Option<(&str, &str)>,
) {
    let random = u128::from(world.random.next()) << 64 | u128::from(world.random.next());
    let config = config.map(|(name, value)| (name.to_string(), value.to_string()));
    let new = NewTopic {
        name: name.into(),
        id: Uuid::from_u128(random),
        partitions,
        replication_factor: 1,
        configs: config.into_iter().collect(),
        ..NewTopic::default()
    };
    let catalog = Arc::clone(&world.store().catalog);
    let is_there = world.model.sequenced.topics.contains_key(name);
    match catalog.propose(|image| image.create_topic(&new)) {
        Ok(position) => {
            assert!(!is_there, "{name} was created twice");
            let image = catalog.sequenced();
            let topic = image.topic(name).expect("sequenced");
            if topic.no.0 as usize > TOPICS.len() + 1 {
                world.seen.note(Branch::TopicAgain);
            }
            let topic = TopicState {
                no: topic.no,
                id: topic.id,
                partitions: topic.partitions,
                lineage: {
                    let open = topic.layout.shards().iter().map(|span| {
                        let mut all = world.disks.numbers();
                        let home = all.find(|no| directory_id(*no) == span.home);
                        (span.id, span.slots, home.expect("a home that is there"))
                    });
                    Lineage::new(topic.partitions, open.collect())
                },
                stamps: topic.settings.timestamp_type == TimestampType::LogAppendTime,
            };
            let name = name.to_string();
            let change = Change::Created { name, topic };
            world.model.sequence(in_first(position), change);
            world.answer(position, position);
        }
        Err(CatalogError::TopicExists(_)) => assert!(is_there, "{name} is not there"),
        Err(error) => panic!("{name}: {error}"),
    }
}
