//! DeleteGroups.

use kafka_protocol::error::ResponseError;

use crate::sim::model::Change;
use crate::sim::ops::GROUPS;
use crate::sim::world::World;

pub(super) fn run(world: &mut World) {
    let group = GROUPS[world.random.below(GROUPS.len() as u64) as usize];
    let writable = world.store().registry.is_writable();
    let held = world.store().groups.delete(group.into());
    if !world.is_up() {
        return;
    }
    // Commits of topics that are gone may have been tidied away already.
    let model = &world.model;
    let shown = model.sequenced.shown_commits(&model.durable.topics);
    let has_commits = shown.keys().any(|(of, _, _)| of == group);
    match held.value {
        Ok(()) => {
            // Timers of other groups may have run out behind it.
            if let Some(noted) = world.take_appended().first()
                && noted.place.position <= held.after
            {
                let group = group.to_string();
                let change = Change::GroupDeleted { group };
                world.model.sequence(noted.place, change);
            } else {
                assert!(!has_commits, "{group} was deleted without a trace");
            }
            world.answer(held.after, held.after);
        }
        Err(ResponseError::NotCoordinator) if !writable => {}
        Err(ResponseError::GroupIdNotFound) => assert!(!has_commits, "{group} has commits"),
        Err(error) => panic!("deletion of {group}: {error:?}"),
    }
}
