//! A shard goes to another data directory, with everything else in the middle of it.

use std::sync::Arc;

use crate::catalog::ReshapeError;
use crate::sim::jobs::Sim;
use crate::sim::ops::any_topic;
use crate::sim::seen::Branch;
use crate::sim::world::World;
use crate::types::{DirectoryNo, ShardId, TopicNo};

pub(super) fn run(sim: &Sim) {
    let chosen = choose(&mut sim.world.borrow_mut());
    if let Some((no, shard, to)) = chosen {
        move_shard(sim, no, shard, to);
    }
}

/// Moves a shard, with clients at work in the middle of it.
pub(in crate::sim) fn move_shard(sim: &Sim, no: TopicNo, shard: ShardId, to: DirectoryNo) {
    let registry = {
        let mut world = sim.world.borrow_mut();
        (world.in_background, world.in_move) = (true, true);
        Arc::clone(&world.store().registry)
    };
    let moved = registry.move_shard(no, shard, to);
    let mut world = sim.world.borrow_mut();
    (world.in_background, world.in_move) = (false, false);
    if !world.is_up() {
        world.seen.note(Branch::EndedInMove);
        return;
    }
    world.follow();
    match moved {
        Ok(moved) if moved.repeated => {}
        Ok(_) => world.seen.note(Branch::Moved),
        // What the device did is told as what ends the process.
        Err(ReshapeError::NoSpace | ReshapeError::JournalEnded) => {}
        // It was deleted, split or merged before its appenders had to wait.
        Err(
            ReshapeError::UnknownTopic
            | ReshapeError::Sealed { .. }
            | ReshapeError::UnknownShard { .. },
        ) => {}
        Err(ReshapeError::NotMoved { why, .. }) => {
            let excused = why.contains("changed meanwhile")
                || why.contains("full")
                || why.contains("flushed")
                || world.disks.fault_hits() > 0;
            assert!(excused, "{why}");
            world.seen.note(Branch::MoveGivenUp);
        }
        Err(error) => panic!("{error}"),
    }
}

/// An open shard that clients know of, and the directory that it does not live in.
fn choose(world: &mut World) -> Option<(TopicNo, ShardId, DirectoryNo)> {
    if world.options.directories < 2 || !world.is_up() {
        return None;
    }
    let name = any_topic(world)?;
    let topic = &world.model.durable.topics[&name];
    let (no, open) = (topic.no, topic.lineage.open.clone());
    let homes: Vec<_> = open.iter().map(|(id, _)| topic.lineage.home(*id)).collect();
    let at = world.random.below(open.len() as u64) as usize;
    let to = DirectoryNo(1 - homes[at].0);
    Some((no, open[at].0, to))
}
