//! CreatePartitions: to a multiple, and to any other count.

use crate::catalog::CatalogError;
use crate::sim::ends::in_first;
use crate::sim::model::Change;
use crate::sim::ops::any_topic;
use crate::sim::world::World;

/// Enough partitions.
const MOST: u32 = 8;

pub(super) fn run(world: &mut World) {
    let Some(name) = any_topic(world) else {
        return;
    };
    let topic = world.model.durable.topics[&name].clone();
    let to = match world.random.one_in(2) {
        true => topic.partitions * 2,
        false => topic.partitions + 1,
    };
    if to > MOST {
        return;
    }
    let sequenced = world.model.sequenced.topics.get(&name);
    let now = sequenced.filter(|t| t.no == topic.no).map(|t| t.partitions);
    let catalog = &world.store().catalog;
    let outcome = catalog.propose(|image| image.add_partitions(topic.no, to as i32, &[], None, 0));
    match outcome {
        Ok(position) => {
            assert!(now.is_some_and(|now| now < to), "{name} grew to {to}");
            let change = Change::Grown { name, to };
            world.model.sequence(in_first(position), change);
            world.answer(position, position);
        }
        Err(CatalogError::UnknownTopic(_)) => assert!(now.is_none(), "{name} is there"),
        Err(CatalogError::InvalidPartitions(_)) => assert!(now.is_some_and(|now| now >= to)),
        Err(error) => panic!("{name}: {error}"),
    }
}
