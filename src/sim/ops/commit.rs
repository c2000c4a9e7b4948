//! OffsetCommit of a consumer that manages its partitions itself.

use kafka_protocol::error::ResponseError;

use crate::coordinator::group::command::{CommitPartition, CommitRequest, CommitTopic};
use crate::sim::model::{Change, CommitState};
use crate::sim::ops::{GROUPS, any_topic};
use crate::sim::world::World;

pub(super) fn run(world: &mut World) {
    let Some(name) = any_topic(world) else {
        return;
    };
    let group = GROUPS[world.random.below(GROUPS.len() as u64) as usize];
    let partitions = world.model.durable.topics[&name].partitions;
    let partition = world.random.below(u64::from(partitions)) as i32;
    let offset = world.random.below(1000) as i64;
    commit(world, group, &name, partition, offset);
}

pub(in crate::sim) fn commit(
    world: &mut World,
    group: &str,
    name: &str,
    partition: i32,
    offset: i64,
) {
    world.clients.tag += 1;
    let metadata = format!("m{}", world.clients.tag);
    let id = world.model.durable.topics[name].id;
    let partitions = vec![CommitPartition {
        partition,
        offset,
        leader_epoch: -1,
        metadata: metadata.as_str().into(),
    }];
    let request = CommitRequest {
        group: group.into(),
        generation: -1,
        member_id: "".into(),
        instance_id: None,
        retention_ms: None,
        knows_group_id_not_found: true,
        topics: vec![CommitTopic {
            name: name.into(),
            id,
            partitions,
        }],
    };
    world.follow();
    let writable = world.store().registry.is_writable();
    let held = world.store().groups.commit(request);
    if !world.is_up() {
        return;
    }
    match held.value[0][0] {
        None => {
            // Timers of other groups may have run out behind it.
            let appended = world.take_appended();
            let place = appended.first().expect("a commit's record").place;
            assert!(held.after >= place.position, "the commit's own position");
            let key = (group.to_string(), name.to_string(), partition);
            let commit = CommitState {
                offset,
                metadata,
                topic_id: id,
            };
            world.model.sequence(place, Change::Commit { key, commit });
            world.answer(held.after, place);
        }
        Some(ResponseError::NotCoordinator) if !writable => {
            world.refused_while_full |= world.full.is_some();
        }
        Some(error) => panic!("commit of {group}: {error:?}"),
    }
}
