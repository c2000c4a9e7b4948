//! Members once they are in: syncs, heartbeats, static members, leaving, silence.

use super::*;

#[test]
fn syncs_wait_for_the_leader_and_are_stored() {
    let mut world = World::new(Settings::default());
    let tokens = [world.join(old_join()), world.join(old_join())];
    world.wait(6_000);
    let (a, b) = (world.joined(tokens[0]), world.joined(tokens[1]));
    let (leader, follower) = if a.members.is_empty() { (b, a) } else { (a, b) };
    let early = world.sync(&follower.member_id, 1, &[]);
    assert!(!world.answers.contains_key(&early));
    assert_eq!(world.heartbeat(&follower.member_id, 1), Ok(()));
    let given = [(&leader.member_id, "one"), (&follower.member_id, "two")];
    let own = world.sync_now(&leader.member_id, 1, &given);
    assert_eq!((own.error, &own.assignment[..]), (None, &b"one"[..]));
    assert_eq!(own.protocol.as_deref(), Some("range"));
    assert_eq!(&world.synced(early).assignment[..], b"two");
    // A stable group tells it again, and so does one that was read back.
    assert_eq!(
        &world.sync_now(&follower.member_id, 1, &[]).assignment[..],
        b"two"
    );
    let mut machine = world.replayed();
    machine.loaded(world.now);
    world.machine = machine;
    assert_eq!(
        &world.sync_now(&follower.member_id, 1, &[]).assignment[..],
        b"two"
    );
}

#[test]
fn an_assignment_for_strangers_is_passed_over() {
    let mut world = World::new(Settings::default());
    let token = world.join(old_join());
    world.wait(3_000);
    let id = world.joined(token).member_id;
    let reply = world.sync_now(&id, 1, &[(&"stranger".into(), "x")]);
    assert_eq!((reply.error, reply.assignment.len()), (None, 0));
    assert_eq!(world.state(), Some(State::Stable));
}

#[test]
fn syncs_that_cannot_be_taken() {
    let mut world = World::new(Settings::default());
    let (ids, generation) = world.stable(1);
    let good = sync_request(&ids[0], generation, &[]);
    let nobody = Name::from("nobody");
    let instance = Some(Name::from("i9"));
    let table = [
        (
            SyncRequest {
                group: "none".into(),
                ..good.clone()
            },
            25,
        ),
        (
            SyncRequest {
                group: "".into(),
                ..good.clone()
            },
            24,
        ),
        (
            SyncRequest {
                member_id: nobody,
                ..good.clone()
            },
            25,
        ),
        (
            SyncRequest {
                generation: generation + 1,
                ..good.clone()
            },
            22,
        ),
        (
            SyncRequest {
                protocol_type: Some("connect".into()),
                ..good.clone()
            },
            23,
        ),
        (
            SyncRequest {
                protocol: Some("sticky".into()),
                ..good.clone()
            },
            23,
        ),
        (
            SyncRequest {
                instance_id: instance,
                ..good.clone()
            },
            25,
        ),
        (good, 0),
    ];
    for (request, error) in table {
        let token = world.run(|token| Command::Sync { token, request });
        assert_eq!(world.synced(token).error.map_or(0, |e| e.code()), error);
    }
}

#[test]
fn heartbeats_say_where_the_group_stands() {
    let mut world = World::new(Settings::default());
    assert_eq!(
        world.heartbeat(&"x".into(), 1),
        Err(ResponseError::UnknownMemberId)
    );
    let (ids, generation) = world.stable(1);
    assert_eq!(world.heartbeat(&ids[0], generation), Ok(()));
    let wrong = ResponseError::IllegalGeneration;
    assert_eq!(world.heartbeat(&ids[0], generation + 1), Err(wrong));
    assert_eq!(world.heartbeat(&ids[0], -1), Err(wrong));
    assert_eq!(
        world.heartbeat(&"".into(), generation),
        Err(ResponseError::UnknownMemberId)
    );
    let fresh = world.join_now(join_request());
    world.join(rejoin(&fresh.member_id));
    let rebalance = ResponseError::RebalanceInProgress;
    assert_eq!(world.heartbeat(&ids[0], generation), Err(rebalance));
}

#[test]
fn silence_ends_a_membership_and_heartbeats_keep_it() {
    let mut world = World::new(Settings::default());
    let (ids, generation) = world.stable(2);
    world.wait(9_000);
    world.heartbeat(&ids[0], generation).unwrap();
    assert_eq!(world.state(), Some(State::Stable));
    world.wait(1_000);
    assert_eq!(
        world.state(),
        Some(State::PreparingRebalance),
        "the second fell silent"
    );
    let reply = world.join_now(rejoin(&ids[0]));
    assert_eq!((reply.generation, reply.members.len()), (generation + 1, 1));
}

#[test]
fn members_that_do_not_come_back_in_time_are_dropped() {
    let mut world = World::new(Settings::default());
    let (ids, generation) = world.stable(2);
    let token = world.join(JoinRequest {
        protocols: protocols(&["range", "x"]),
        ..rejoin(&ids[1])
    });
    for _ in 0..5 {
        world.wait(5_000);
        assert_eq!(
            world.heartbeat(&ids[0], generation),
            Err(ResponseError::RebalanceInProgress)
        );
    }
    assert!(!world.answers.contains_key(&token));
    world.wait(5_000);
    assert_eq!(world.joined(token).members.len(), 1);
    assert_eq!(
        world.heartbeat(&ids[0], generation),
        Err(ResponseError::UnknownMemberId)
    );
}

#[test]
fn members_that_do_not_sync_in_time_are_dropped() {
    let mut world = World::new(Settings::default());
    let request = JoinRequest {
        session_timeout_ms: 300_000,
        ..old_join()
    };
    let tokens = [world.join(request.clone()), world.join(request)];
    world.wait(6_000);
    let replies = [world.joined(tokens[0]), world.joined(tokens[1])];
    let [leader, follower] = match replies[0].members.is_empty() {
        true => [&replies[1], &replies[0]],
        false => [&replies[0], &replies[1]],
    };
    let waiting = world.sync(&follower.member_id, 1, &[]);
    world.wait(30_000);
    let rebalance = Some(ResponseError::RebalanceInProgress);
    assert_eq!(world.synced(waiting).error, rebalance);
    assert_eq!(world.state(), Some(State::PreparingRebalance));
    assert_eq!(
        world.heartbeat(&leader.member_id, 1),
        Err(ResponseError::UnknownMemberId)
    );
    let request = JoinRequest {
        session_timeout_ms: 300_000,
        ..rejoin(&follower.member_id)
    };
    assert_eq!(world.join_now(request).leader, follower.member_id);
}

#[test]
fn joiners_that_vanish_do_not_stop_the_others() {
    let mut world = World::new(Settings::default());
    let (ids, mut generation) = world.stable(1);
    for round in 0..100 {
        world.join(old_join());
        let survivor = world.join(JoinRequest {
            member_id: ids[0].clone(),
            ..old_join()
        });
        let started = world.now.tick;
        while !world.answers.contains_key(&survivor) {
            world.wait(500);
            assert!(
                world.now.tick - started <= 10_000,
                "round {round} takes too long"
            );
        }
        let reply = world.joined(survivor);
        generation = reply.generation;
        assert_eq!(reply.leader, ids[0]);
        let given: Vec<_> = reply.members.iter().map(|m| (&m.id, "w")).collect();
        world.sync(&ids[0], generation, &given);
        assert_eq!(world.state(), Some(State::Stable));
        assert!(reply.members.len() <= 3, "dead joiners pile up");
    }
    let started = world.now.tick;
    while world.machine.groups["g"].session.members.len() > 1 {
        world.wait(1_000);
        if world.heartbeat(&ids[0], generation).is_err() {
            let again = world.join(JoinRequest {
                member_id: ids[0].clone(),
                ..old_join()
            });
            generation = world.joined(again).generation;
            world.sync(&ids[0], generation, &[(&ids[0], "w")]);
        }
        assert!(world.now.tick - started <= 40_000);
    }
    assert_eq!(world.state(), Some(State::Stable));
}

#[test]
fn leaving_by_id_and_by_instance() {
    let mut world = World::new(Settings::default());
    let unknown = Some(ResponseError::UnknownMemberId);
    assert_eq!(world.leave(&[("nobody", None)]), [unknown]);
    assert_eq!(world.state(), None, "leaving makes no group");
    let (ids, generation) = world.stable(1);
    assert_eq!(world.leave(&[]), []);
    assert_eq!(
        world.leave(&[(&ids[0], None), ("nobody", None)]),
        [None, unknown]
    );
    assert_eq!(world.state(), Some(State::Empty));
    let stored = world.replayed();
    let metadata = stored.groups["g"].stored.as_ref().unwrap();
    assert_eq!(
        (metadata.generation, metadata.members.len()),
        (generation + 1, 0)
    );
    assert_eq!(&*metadata.protocol_type, "consumer");
    assert_eq!(world.leave(&[("", Some("i1"))]), [unknown]);
}

#[test]
fn an_awaited_id_can_be_given_back() {
    let mut world = World::new(Settings::default());
    let (ids, _) = world.stable(1);
    let fresh = world.join_now(join_request());
    let leader = world.join(rejoin(&ids[0]));
    assert!(!world.answers.contains_key(&leader));
    assert_eq!(world.leave(&[(&fresh.member_id, None)]), [None]);
    assert_eq!(world.joined(leader).generation, 2);
}

#[test]
fn a_static_member_that_comes_back_keeps_its_place() {
    let mut world = World::new(Settings::default());
    let token = world.join(static_join("i1"));
    world.wait(3_000);
    let first = world.joined(token);
    world.sync(&first.member_id, 1, &[(&first.member_id, "work")]);
    let stored = world.log.len();
    let second = world.join_now(static_join("i1"));
    assert_ne!(second.member_id, first.member_id);
    assert_eq!((second.error, second.generation), (None, 1));
    assert_eq!(second.leader, second.member_id);
    assert!(second.skip_assignment);
    assert_eq!(second.members.len(), 1);
    assert_eq!(world.log.len(), stored + 1, "the new id is stored");
    assert_eq!(world.state(), Some(State::Stable));
    let fenced = Err(ResponseError::FencedInstanceId);
    assert_eq!(world.heartbeat_of(&first.member_id, 1, Some("i1")), fenced);
    assert_eq!(world.heartbeat_of(&second.member_id, 1, Some("i1")), Ok(()));
    assert_eq!(
        world.heartbeat_of(&second.member_id, 1, Some("i2")),
        Err(ResponseError::UnknownMemberId)
    );
    assert_eq!(
        &world.sync_now(&second.member_id, 1, &[]).assignment[..],
        b"work"
    );
    // A client that does not know of skipping is told that another one leads.
    let old = JoinRequest {
        can_skip_assignment: false,
        ..static_join("i1")
    };
    let third = world.join_now(old);
    assert_eq!((&third.leader, third.members.len()), (&second.member_id, 0));
    let late = JoinRequest {
        member_id: first.member_id.clone(),
        ..static_join("i1")
    };
    assert_eq!(
        world.join_now(late).error,
        Some(ResponseError::FencedInstanceId)
    );
    assert_eq!(world.leave(&[("", Some("i1"))]), [None]);
    assert_eq!(
        world.leave(&[("", Some("i1"))]),
        [Some(ResponseError::UnknownMemberId)]
    );
}

#[test]
fn a_static_member_fences_its_former_self_wherever_it_waits() {
    let mut world = World::new(Settings::default());
    let first = world.join(static_join("i1"));
    let second = world.join(static_join("i1"));
    assert_eq!(
        world.joined(first).error,
        Some(ResponseError::FencedInstanceId)
    );
    let other = world.join(old_join());
    world.wait(60_000 - 54_000);
    let reply = world.joined(second);
    let other = world.joined(other);
    let (waiting, leader) = match reply.members.is_empty() {
        true => (reply.member_id.clone(), other.member_id.clone()),
        false => (other.member_id.clone(), reply.member_id.clone()),
    };
    let token = world.sync(&waiting, 1, &[]);
    let third = world.join(static_join("i1"));
    assert!(!world.answers.contains_key(&third), "a rebalance begins");
    assert_eq!(world.state(), Some(State::PreparingRebalance));
    let error = match waiting == reply.member_id {
        true => ResponseError::FencedInstanceId,
        false => ResponseError::RebalanceInProgress,
    };
    assert_eq!(world.synced(token).error, Some(error));
    drop(leader);
    world.join(rejoin(&other.member_id));
    let reply = world.joined(third);
    assert_eq!((reply.error, reply.generation), (None, 2));
}

#[test]
fn a_static_member_whose_protocol_changes_the_vote_causes_a_rebalance() {
    let mut world = World::new(Settings::default());
    let both = protocols(&["a", "b"]);
    let token = world.join(JoinRequest {
        protocols: both.clone(),
        ..static_join("i1")
    });
    world.wait(3_000);
    let first = world.joined(token);
    world.sync(&first.member_id, 1, &[]);
    let again = world.join_now(JoinRequest {
        protocols: protocols(&["b", "a"]),
        ..static_join("i1")
    });
    assert_eq!(
        (again.generation, again.protocol.as_deref()),
        (2, Some("b"))
    );
}

#[test]
fn static_members_outlive_a_rebalance_they_missed() {
    let mut world = World::new(Settings::default());
    let token = world.join(JoinRequest {
        session_timeout_ms: 120_000,
        ..static_join("i1")
    });
    world.wait(3_000);
    let id = world.joined(token).member_id;
    world.sync(&id, 1, &[]);
    let other = world.join(old_join());
    world.wait(30_000);
    let reply = world.joined(other);
    assert_eq!((reply.generation, reply.members.len()), (2, 2));
    assert_eq!(reply.leader, reply.member_id, "one who joined leads");
}

#[test]
fn a_group_of_silent_static_members_ends_with_their_sessions() {
    let mut world = World::new(Settings::default());
    let tokens = [world.join(static_join("i1")), world.join(static_join("i2"))];
    world.wait(6_000);
    let replies = tokens.map(|t| world.joined(t));
    for reply in &replies {
        world.sync(&reply.member_id, 1, &[]);
    }
    world.leave(&[("", Some("i1"))]);
    assert_eq!(world.state(), Some(State::PreparingRebalance));
    world.wait(60_000);
    assert_eq!(world.state(), Some(State::Empty));
}

#[test]
fn sessions_start_anew_when_a_group_is_read_back() {
    let mut world = World::new(Settings::default());
    let (ids, generation) = world.stable(1);
    world.machine = world.replayed();
    world.machine.loaded(world.now);
    assert_eq!(world.state(), Some(State::Stable));
    world.wait(9_000);
    assert_eq!(world.heartbeat(&ids[0], generation), Ok(()));
    world.wait(10_000);
    assert_eq!(world.state(), Some(State::Empty));
}
