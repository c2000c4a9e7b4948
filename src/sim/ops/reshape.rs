//! A split, a merge of neighbours, or both in one, and now and then the same once more.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::catalog::ReshapeError;
use crate::sim::ends::in_first;
use crate::sim::model::Change;
use crate::sim::ops::any_topic;
use crate::sim::seen::Branch;
use crate::sim::world::World;
use crate::types::ShardId;

/// A reshape that was sequenced.
#[derive(Clone, Debug)]
pub(in crate::sim) struct Done {
    topic: String,
    sealed: Vec<ShardId>,
    slots: Vec<u32>,
    opened: Vec<ShardId>,
    epoch: u32,
}

pub(super) fn run(world: &mut World) {
    if world.random.one_in(8)
        && let Some(done) = world.last_reshape.clone()
    {
        repeat(world, &done);
        return;
    }
    let Some(name) = any_topic(world) else {
        return;
    };
    let Some(topic) = world.model.sequenced.topics.get(&name) else {
        return;
    };
    let open = topic.lineage.open.clone();
    let at = world.random.below(open.len() as u64) as usize;
    let most = (open.len() - at).min(3) as u64;
    let merged = match world.random.one_in(2) {
        true => 1,
        false => 1 + world.random.below(most) as usize,
    };
    let run = &open[at..at + merged];
    let total: u32 = run.iter().map(|(_, slots)| slots).sum();
    let mut slots = Vec::new();
    let mut left = total;
    // A split where one shard gives way, a merge more often than not where several do.
    let parts = match merged {
        1 => 2 + world.random.below(2),
        _ => 1 + world.random.below(5) / 4,
    };
    while slots.len() + 1 < parts as usize && left > 1 {
        let part = 1 + world.random.below(u64::from(left - 1)) as u32;
        slots.push(part);
        left -= part;
    }
    slots.push(left);
    let sealed: Vec<_> = run.iter().map(|(id, _)| *id).collect();
    reshape(world, &name, &sealed, &slots);
}

/// Does it, and compares the outcome with the model's.
pub(in crate::sim) fn reshape(world: &mut World, name: &str, sealed: &[ShardId], slots: &[u32]) {
    let durable = world.model.durable.topics[name].clone();
    let registry = Arc::clone(&world.store().registry);
    let writable = registry.is_writable();
    let starts = world.model.starts(durable.no);
    let outcome = registry.reshape(durable.no, sealed, slots);
    let sequenced = world.model.sequenced.topics.get(name);
    let sequenced = sequenced.filter(|topic| topic.no == durable.no);
    match outcome {
        Ok(reshaped) => {
            let topic = sequenced.expect("a topic that is not there was reshaped");
            assert!(!reshaped.repeated);
            assert_eq!(
                reshaped.epoch,
                topic.lineage.epoch + 1,
                "epochs rise by one"
            );
            let opened = reshaped.opened.iter().copied();
            let opened: Vec<_> = opened.zip(slots.iter().copied()).collect();
            if world.model.durable_is_behind(name) {
                world.seen.note(Branch::ReshapedAhead);
            }
            let change = Change::Reshaped {
                no: durable.no,
                sealed: sealed.to_vec(),
                opened,
                starts,
            };
            world.model.sequence(in_first(reshaped.position), change);
            world.answer(reshaped.position, reshaped.position);
            world.seen.note(match sealed.len() {
                1 => Branch::Split,
                _ => Branch::ShardsMerged,
            });
            world.last_reshape = Some(Done {
                topic: name.to_string(),
                sealed: sealed.to_vec(),
                slots: slots.to_vec(),
                opened: reshaped.opened,
                epoch: reshaped.epoch,
            });
            let image = world.store().catalog.sequenced();
            let layout = &image.topic_by_no(durable.no).expect("sequenced").layout;
            world.model.sequenced.topics[name].lineage.is(layout, name);
        }
        Err(ReshapeError::JournalEnded) => assert!(!world.is_up(), "nothing ended"),
        Err(ReshapeError::Moving { .. }) => assert!(world.in_move, "nobody moves a shard"),
        Err(ReshapeError::NoSpace) => assert!(!writable, "there is room"),
        Err(ReshapeError::DifferentHomes { .. }) => {
            let topic = sequenced.expect("a topic that is not there was looked at");
            let homes: BTreeSet<_> = sealed.iter().map(|id| topic.lineage.home(*id)).collect();
            assert!(homes.len() > 1, "{name}: {sealed:?} are in one directory");
            world.seen.note(Branch::HomesDiffer);
        }
        Err(ReshapeError::UnknownTopic) => assert!(sequenced.is_none(), "{name} is there"),
        Err(error) => panic!("{name}: {error}"),
    }
}

/// Repeats what was done; if a crash took it, it may be done now.
fn repeat(world: &mut World, done: &Done) {
    let sequenced = world.model.sequenced.topics.get(&done.topic);
    let durable = world.model.durable.topics.get(&done.topic);
    let (Some(sequenced), Some(durable)) = (sequenced, durable) else {
        return;
    };
    let is_done = sequenced.no == durable.no
        && sequenced.lineage.was_opened(&done.opened, done.epoch)
        && world.store().registry.is_writable();
    if !is_done {
        return;
    }
    let no = durable.no;
    let registry = Arc::clone(&world.store().registry);
    let again = registry.reshape(no, &done.sealed, &done.slots);
    let again = again.expect("the same once more");
    assert!(again.repeated, "it was done before");
    assert_eq!((again.epoch, &again.opened), (done.epoch, &done.opened));
    let truth = world.model.reshaped_at(no, done.epoch);
    world.answer(again.position, truth);
    world.seen.note(Branch::ReshapeRepeated);
}
