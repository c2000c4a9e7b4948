//! DeleteTopics.

use crate::catalog::CatalogError;
use crate::sim::ends::in_first;
use crate::sim::model::Change;
use crate::sim::ops::any_topic;
use crate::sim::seen::Branch;
use crate::sim::world::World;

pub(super) fn run(world: &mut World) {
    if let Some(name) = any_topic(world) {
        delete(world, &name);
    }
}

pub(in crate::sim) fn delete(world: &mut World, name: &str) {
    let store = world.store();
    let (registry, image) = (&store.registry, store.catalog.image());
    let topic = image.topic(name).expect("it is durable");
    let outcome = store.catalog.propose(|image| {
        let change = image.delete_topic(topic.no)?;
        registry.seal_topic(topic);
        Ok::<_, CatalogError>(change)
    });
    let sequenced = world.model.sequenced.topics.get(name);
    let is_there = sequenced.is_some_and(|t| t.no == topic.no);
    match outcome {
        Ok(position) => {
            if world.model.durable_is_behind(name) {
                world.seen.note(Branch::ReshapedThenDeleted);
            }
            assert!(is_there, "{name} was deleted twice");
            let name = name.to_string();
            let change = Change::Deleted { name };
            world.model.sequence(in_first(position), change);
            world.answer(position, position);
        }
        Err(CatalogError::UnknownTopic(_)) => assert!(!is_there, "{name} is there"),
        Err(error) => panic!("{name}: {error}"),
    }
}
