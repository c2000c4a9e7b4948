//! A producer sends a batch again, on a new connection: it heard no answer, or the answer was late.

use crate::sim::ops::append::submit;
use crate::sim::world::World;

pub(super) fn run(world: &mut World) {
    let sent: Vec<_> = world
        .clients
        .sent
        .iter()
        .filter(|((_, key), _)| world.model.durable.logs.contains_key(key))
        .flat_map(|((_, key), batches)| batches.iter().map(move |batch| (*key, batch.clone())))
        .collect();
    if let Some((key, batch)) = world.random.pick(&sent).cloned() {
        submit(world, key, &batch);
    }
}
