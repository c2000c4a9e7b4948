//! AlterConfigs: retention by size, on and off.

use crate::sim::ops::any_topic;
use crate::sim::world::World;

pub(super) fn run(world: &mut World) {
    let Some(name) = any_topic(world) else {
        return;
    };
    let no = world.model.durable.topics[&name].no;
    let bytes = 1000 * world.random.below(8);
    let config = ("retention.bytes".to_string(), bytes.to_string());
    let configs = world.random.one_in(2).then_some(config);
    let configs = configs.into_iter().collect();
    let catalog = &world.store().catalog;
    if let Ok(position) = catalog.propose(|image| image.set_topic_configs(no, configs)) {
        world.answer(position, position);
    }
}
