//! InitProducerId: an id that nobody has, durable before anybody hears of it.

use crate::sim::ends::in_first;
use crate::sim::model::Change;
use crate::sim::world::World;
use crate::store::journal::Journal;

/// Enough producers.
const MOST: usize = 6;

pub(super) fn run(world: &mut World) {
    if world.clients.ids.len() < MOST {
        allocate(world);
    }
}

pub(in crate::sim) fn allocate(world: &mut World) -> i64 {
    let store = world.store();
    let before = store.journal().appended();
    let (id, after) = store.catalog.allocate_producer_id();
    assert!(!world.clients.ids.contains(&id), "{id} was given out twice");
    let next = store.catalog.sequenced().next_producer_id();
    let appended = store.journal().appended();
    if appended > before {
        let change = Change::ProducerIds { next };
        world.model.sequence(in_first(appended), change);
        assert_eq!(after, appended);
    }
    assert!(id < world.model.sequenced.next_producer_id);
    world.clients.ids.push(id);
    world.answer(after, after);
    id
}
