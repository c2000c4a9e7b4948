//! Whatever clients do and whenever they do it.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::Group;
use super::super::weight::{Room, weighed};
use super::*;

#[derive(Clone, Debug)]
enum Step {
    Join {
        member: usize,
        instance: Option<u8>,
        protocols: u8,
        old: bool,
    },
    Sync {
        member: usize,
        generation: i32,
    },
    Heartbeat {
        member: usize,
        generation: i32,
    },
    Leave {
        member: usize,
        instance: Option<u8>,
    },
    Commit {
        member: usize,
        generation: i32,
        partition: i32,
    },
    Delete,
    Forget,
    CleanUp,
    Wait(u64),
    Room(u64),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let member = 0..8usize;
    let instance = prop_oneof![3 => Just(None), 1 => (0..2u8).prop_map(Some)];
    let generation = prop_oneof![8 => Just(0), 1 => Just(1), 1 => Just(-1)];
    prop_oneof![
        6 => (member.clone(), instance.clone(), 1..4u8, any::<bool>()).prop_map(
            |(member, instance, protocols, old)| Step::Join { member, instance, protocols, old }
        ),
        6 => (member.clone(), generation.clone())
            .prop_map(|(member, generation)| Step::Sync { member, generation }),
        3 => (member.clone(), generation.clone())
            .prop_map(|(member, generation)| Step::Heartbeat { member, generation }),
        1 => (member.clone(), instance).prop_map(|(member, instance)| Step::Leave { member, instance }),
        3 => (member, generation, 0..3i32).prop_map(|(member, generation, partition)| {
            Step::Commit { member, generation, partition }
        }),
        1 => Just(Step::Delete),
        1 => Just(Step::Forget),
        1 => Just(Step::CleanUp),
        5 => (0..12_000u64).prop_map(Step::Wait),
        1 => prop_oneof![0..3_000u64, Just(u64::MAX)].prop_map(Step::Room),
        1 => Just(Step::Restart),
    ]
}

/// The member ids that clients know, oldest first.
fn known(world: &World) -> Vec<Name> {
    let joined = world.answers.values().filter_map(|reply| match reply {
        Reply::Join(reply) if !reply.member_id.is_empty() => Some(reply.member_id.clone()),
        _ => None,
    });
    joined.collect()
}

fn pick(world: &World, member: usize) -> Name {
    let known = known(world);
    // The latest ids are the interesting ones; the largest number stands for no id at all.
    let at = known.len().checked_sub(member + 1);
    at.and_then(|at| known.get(at)).cloned().unwrap_or_default()
}

fn generation(world: &World, off_by: i32) -> i32 {
    match off_by {
        -1 => -1,
        by => {
            world
                .machine
                .groups
                .get("g")
                .map_or(0, |g| g.session.generation)
                + by
        }
    }
}

fn take_step(world: &mut World, step: &Step) {
    match step.clone() {
        Step::Join {
            member,
            instance,
            protocols: which,
            old,
        } => {
            let names: &[&str] = [&["a"][..], &["a", "b"], &["b", "a"]][usize::from(which) - 1];
            let known = if old {
                Name::default()
            } else {
                pick(world, member)
            };
            let instance_id = instance.map(|i| format!("i{i}").into());
            world.join(JoinRequest {
                member_id: known,
                instance_id,
                protocols: protocols(names),
                require_member_id: !old,
                rebalance_timeout_ms: i32::from(which) * 5_000 - 5_000,
                ..join_request()
            });
        }
        Step::Sync {
            member,
            generation: g,
        } => {
            let id = pick(world, member);
            let generation = generation(world, g);
            let request = SyncRequest {
                protocol_type: None,
                assignments: known(world)
                    .into_iter()
                    .map(|m| (m, Bytes::new()))
                    .collect(),
                ..sync_request(&id, generation, &[])
            };
            world.run(|token| Command::Sync { token, request });
        }
        Step::Heartbeat {
            member,
            generation: g,
        } => {
            let (id, generation) = (pick(world, member), generation(world, g));
            let _ = world.heartbeat(&id, generation);
        }
        Step::Leave { member, instance } => {
            let id = pick(world, member);
            let instance = instance.map(|i| format!("i{i}"));
            let id = if instance.is_some() { "" } else { &*id };
            world.leave(&[(id, instance.as_deref())]);
        }
        Step::Commit {
            member,
            generation: g,
            partition,
        } => {
            let (id, generation) = (pick(world, member), generation(world, g));
            let mut request = commit_request(&id, generation, 1);
            request.topics[0].partitions[0].partition = partition;
            world.commit_as(request);
        }
        Step::Wait(ms) => world.wait(ms),
        other => take_step_beside_the_members(world, &other),
    }
}

fn take_step_beside_the_members(world: &mut World, step: &Step) {
    match step {
        Step::Delete => {
            let _ = world.delete("g");
        }
        Step::Forget => {
            world.run(|_| Command::ForgetTopics {
                group: "g".into(),
                ids: vec![TOPIC],
            });
        }
        Step::CleanUp => {
            let decision = world.machine.clean_up(world.now, &"g".into(), &is_topic);
            world.take(decision);
        }
        Step::Room(bytes) => {
            let (new, more) = (*bytes / 2, *bytes);
            world.machine.room = Room { new, more };
        }
        Step::Restart => {
            // Callers lose their connections with the process that answered them.
            for token in waiting(world) {
                world.answers.insert(token, Reply::Done(Ok(())));
            }
            let mut machine = world.replayed();
            machine.loaded(world.now);
            machine.settings = world.machine.settings.clone();
            world.machine = machine;
        }
        _ => unreachable!("a step of members"),
    }
}

fn waiting(world: &World) -> BTreeSet<Token> {
    let members = world
        .machine
        .groups
        .values()
        .flat_map(|g| g.session.members.values());
    members
        .flat_map(|m| m.joining.into_iter().chain(m.syncing))
        .collect()
}

fn stored(group: &Group) -> Vec<Record> {
    let name = Name::from("g");
    group.records(&name).collect()
}

/// Checks what must hold after every step.
fn check(world: &World, asked: &BTreeSet<Token>) {
    let live = world
        .machine
        .groups
        .get("g")
        .map(stored)
        .unwrap_or_default();
    let replayed = world
        .replayed()
        .groups
        .get("g")
        .map(stored)
        .unwrap_or_default();
    assert_eq!(live, replayed, "the log tells what is stored");
    let answered: BTreeSet<Token> = world.answers.keys().copied().collect();
    let waiting = waiting(world);
    assert!(
        answered.is_disjoint(&waiting),
        "nobody waits who was answered"
    );
    let accounted: BTreeSet<Token> = answered.union(&waiting).copied().collect();
    assert!(
        asked.is_subset(&accounted),
        "nobody is forgotten: {asked:?} {accounted:?}"
    );
    let groups = world.machine.groups.iter();
    let weighed: u64 = groups.map(|(name, group)| weighed(name, group)).sum();
    assert_eq!(
        world.machine.bytes(),
        weighed,
        "the sum is that of the groups"
    );
    let Some(group) = world.machine.groups.get("g") else {
        return;
    };
    let s = &group.session;
    assert_eq!(
        s.members.is_empty(),
        matches!(s.state, State::Empty) || s.members.is_empty()
    );
    assert_eq!(s.leader.is_some(), !s.members.is_empty());
    assert!(
        s.leader
            .as_ref()
            .is_none_or(|id| s.members.contains_key(id))
    );
    assert!(s.instances.values().all(|id| s.members.contains_key(id)));
    let statics = s
        .members
        .values()
        .filter(|m| m.instance_id.is_some())
        .count();
    assert_eq!(statics, s.instances.len());
    assert!(s.pending_syncs.iter().all(|id| s.members.contains_key(id)));
    match s.state {
        State::Empty => assert!(s.members.is_empty() && s.join_timer.is_none()),
        State::PreparingRebalance => assert!(s.join_timer.is_some()),
        State::CompletingRebalance => {
            assert!(s.protocol.is_some() && s.join_timer.is_none());
            assert!(s.members.values().all(|m| m.joining.is_none()));
        }
        State::Stable => {
            assert!(s.protocol.is_some());
            assert!(
                s.members
                    .values()
                    .all(|m| m.joining.is_none() && m.syncing.is_none())
            );
            let metadata = group.stored.as_deref().unwrap();
            assert_eq!(metadata.generation, s.generation);
            let ids: Vec<&Name> = metadata.members.iter().map(|m| &m.id).collect();
            assert_eq!(ids, s.members.keys().collect::<Vec<_>>());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn the_log_tells_the_state_and_everybody_is_answered(
        steps in proptest::collection::vec(step(), 1..60),
        delay in prop_oneof![Just(0u64), Just(3_000)],
    ) {
        let settings = Settings {
            initial_rebalance_delay_ms: delay,
            max_size: 5,
            ..Settings::default()
        };
        let mut world = World::new(settings);
        let mut asked = BTreeSet::new();
        for step in &steps {
            let before = world.tokens;
            take_step(&mut world, step);
            if !matches!(step, Step::Forget) {
                asked.extend(before + 1..=world.tokens);
            }
            check(&world, &asked);
        }
        // When all fall silent, everybody is answered and the group empties.
        world.wait(700_000);
        check(&world, &asked);
        prop_assert!(waiting(&world).is_empty());
        prop_assert!(matches!(world.state(), None | Some(State::Empty)));
        prop_assert_eq!(world.machine.deadline(), None);
    }
}
