//! AlterConfigs: retention by size and the time of the append, on and off.

use crate::sim::ends::in_first;
use crate::sim::model::Change;
use crate::sim::ops::any_topic;
use crate::sim::world::World;

pub(super) fn run(world: &mut World) {
    let Some(name) = any_topic(world) else {
        return;
    };
    let topic = world.model.durable.topics[&name].clone();
    let bytes = 1000 * world.random.below(8);
    let config = ("retention.bytes".to_string(), bytes.to_string());
    let configs = world.random.one_in(2).then_some(config);
    let stamps = topic.stamps != world.random.one_in(4);
    let stamp = (
        "message.timestamp.type".to_string(),
        "LogAppendTime".to_string(),
    );
    let configs = configs.into_iter().chain(stamps.then_some(stamp)).collect();
    let catalog = &world.store().catalog;
    if let Ok(position) = catalog.propose(|image| image.set_topic_configs(topic.no, configs)) {
        let no = topic.no;
        let change = Change::Stamps { no, stamps };
        world.model.sequence(in_first(position), change);
        world.answer(position, position);
    }
}
