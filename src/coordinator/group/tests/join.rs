//! Joining: who is taken in, who is asked to come back, who votes for what.

use super::*;

fn error_of(world: &mut World, request: JoinRequest) -> (i16, String) {
    let reply = world.join_now(request);
    assert_eq!(reply.generation, -1);
    assert_eq!(reply.protocol, None);
    (
        reply.error.map_or(0, |e| e.code()),
        reply.member_id.to_string(),
    )
}

#[test]
fn requests_that_cannot_be_taken() {
    let with = |change: fn(&mut JoinRequest)| {
        let mut request = join_request();
        change(&mut request);
        request
    };
    let table: [(JoinRequest, i16, &str); 6] = [
        (with(|r| r.session_timeout_ms = 100), 26, ""),
        (with(|r| r.session_timeout_ms = 3_600_000), 26, ""),
        (with(|r| r.protocols.clear()), 23, ""),
        (with(|r| r.protocol_type = "".into()), 23, ""),
        (with(|r| r.group = "".into()), 24, ""),
        (with(|r| r.member_id = "nobody".into()), 25, "nobody"),
    ];
    for (request, error, member) in table {
        let mut world = World::new(Settings::default());
        assert_eq!(
            error_of(&mut world, request.clone()),
            (error, member.into()),
            "{request:?}"
        );
    }
    // With a group that is there, the outcome is the same and the group is not touched.
    let mut world = World::new(Settings::default());
    world.stable(1);
    let stored = world.log.len();
    for change in [
        with(|r| r.protocols = protocols(&["sticky"])),
        with(|r| r.protocol_type = "connect".into()),
    ] {
        assert_eq!(error_of(&mut world, change), (23, "".into()));
    }
    assert_eq!(
        error_of(&mut world, with(|r| r.session_timeout_ms = 1)),
        (26, "".into())
    );
    assert_eq!(
        error_of(&mut world, with(|r| r.member_id = "x".into())),
        (25, "x".into())
    );
    assert_eq!(
        (world.log.len(), world.state()),
        (stored, Some(State::Stable))
    );
}

#[test]
fn a_dynamic_member_comes_back_with_its_id() {
    let mut world = World::new(Settings::default());
    let first = world.join_now(join_request());
    assert_eq!(first.error, Some(ResponseError::MemberIdRequired));
    assert_eq!(world.state(), Some(State::Empty));
    assert_eq!(world.log.len(), 1, "a new group is stored, without members");
    let token = world.join(rejoin(&first.member_id));
    assert!(
        !world.answers.contains_key(&token),
        "the initial delay runs"
    );
    world.wait(3_000);
    let second = world.joined(token);
    assert_eq!((second.error, second.generation), (None, 1));
    assert_eq!(
        (&second.leader, &second.member_id),
        (&first.member_id, &first.member_id)
    );
    assert_eq!(second.members.len(), 1);
    assert_eq!(&second.members[0].metadata[..], b"meta-range");
    assert_eq!(second.protocol.as_deref(), Some("range"));
    assert_eq!(second.protocol_type.as_deref(), Some("consumer"));
}

#[test]
fn an_id_that_is_not_used_lapses() {
    let mut world = World::new(Settings::default());
    let first = world.join_now(join_request());
    world.wait(10_000);
    let late = world.join_now(rejoin(&first.member_id));
    assert_eq!(late.error, Some(ResponseError::UnknownMemberId));
}

#[test]
fn an_id_that_is_awaited_holds_a_rebalance_up_until_it_lapses() {
    let mut world = World::new(Settings::default());
    let (ids, _) = world.stable(1);
    world.join_now(join_request());
    assert_eq!(
        world.state(),
        Some(State::Stable),
        "an id alone changes nothing"
    );
    let leader = world.join(rejoin(&ids[0]));
    assert_eq!(world.state(), Some(State::PreparingRebalance));
    world.wait(9_999);
    assert!(!world.answers.contains_key(&leader));
    world.wait(1);
    assert_eq!(world.joined(leader).generation, 2);
}

#[test]
fn the_initial_delay_grows_with_each_member_up_to_the_rebalance_timeout() {
    let settings = Settings {
        initial_rebalance_delay_ms: 3_000,
        ..Settings::default()
    };
    let mut world = World::new(settings);
    let request = JoinRequest {
        rebalance_timeout_ms: 7_000,
        ..old_join()
    };
    let mut tokens = vec![world.join(request.clone())];
    for _ in 0..4 {
        world.wait(1_500);
        tokens.push(world.join(request.clone()));
    }
    // 3 s, 3 s and the last second of 7.
    world.wait(999);
    assert!(world.answers.is_empty());
    world.wait(1);
    let leaders = tokens
        .iter()
        .filter(|t| !world.joined(**t).members.is_empty())
        .count();
    assert_eq!((world.answers.len(), leaders), (5, 1));
    assert_eq!(world.joined(tokens[0]).members.len(), 5);
    assert!(tokens.iter().all(|t| world.joined(*t).generation == 1));
}

#[test]
fn without_a_delay_the_first_member_is_answered_at_once() {
    let settings = Settings {
        initial_rebalance_delay_ms: 0,
        ..Settings::default()
    };
    let mut world = World::new(settings);
    assert_eq!(world.join_now(old_join()).generation, 1);
}

#[test]
fn the_protocol_that_most_prefer_is_chosen_among_common_ones() {
    let mut world = World::new(Settings::default());
    let lists = [
        &["a", "b", "c"][..],
        &["b", "a", "d"],
        &["b", "a"],
        &["d", "a", "b"],
    ];
    let tokens: Vec<Token> = lists
        .iter()
        .map(|names| {
            world.join(JoinRequest {
                protocols: protocols(names),
                ..old_join()
            })
        })
        .collect();
    world.wait(6_000);
    // a, b, b, and a for the last, whose first choice not everybody has: the leader's order counts.
    assert_eq!(world.joined(tokens[0]).protocol.as_deref(), Some("a"));
    let none_in_common = JoinRequest {
        protocols: protocols(&["c", "d"]),
        ..old_join()
    };
    let refused = world.join_now(none_in_common);
    assert_eq!(
        refused.error,
        Some(ResponseError::InconsistentGroupProtocol)
    );
}

#[test]
fn followers_that_changed_nothing_are_told_the_generation_again() {
    let mut world = World::new(Settings::default());
    let (ids, generation) = world.stable(2);
    let leader = ids
        .iter()
        .find(|id| world.machine.groups["g"].session.is_leader(id))
        .unwrap();
    let follower = ids.iter().find(|id| *id != leader).unwrap();
    let again = world.join_now(rejoin(follower));
    assert_eq!(
        (again.error, again.generation, again.members.len()),
        (None, generation, 0)
    );
    assert_eq!(world.state(), Some(State::Stable));
    world.join(JoinRequest {
        protocols: vec![("range".into(), Bytes::from_static(b"other"))],
        ..rejoin(follower)
    });
    assert_eq!(world.state(), Some(State::PreparingRebalance));
}

#[test]
fn the_leader_can_force_a_rebalance() {
    let mut world = World::new(Settings::default());
    let (ids, generation) = world.stable(1);
    let again = world.join_now(rejoin(&ids[0]));
    assert_eq!((again.generation, again.members.len()), (generation + 1, 1));
    assert_eq!(world.state(), Some(State::CompletingRebalance));
    // Its answer got lost: it asks again and hears the same.
    assert_eq!(world.join_now(rejoin(&ids[0])), again);
}

#[test]
fn a_second_connection_of_a_member_ends_the_wait_of_the_first() {
    let mut world = World::new(Settings::default());
    let (ids, _) = world.stable(2);
    let first = world.join(JoinRequest {
        protocols: protocols(&["range", "x"]),
        ..rejoin(&ids[0])
    });
    let second = world.join(rejoin(&ids[0]));
    assert_eq!(
        world.joined(first).error,
        Some(ResponseError::RebalanceInProgress)
    );
    assert!(!world.answers.contains_key(&second));
}

#[test]
fn a_full_group_takes_nobody_in() {
    let mut world = World::new(Settings {
        max_size: 2,
        ..Settings::default()
    });
    let tokens: Vec<Token> = (0..3).map(|_| world.join(old_join())).collect();
    let refused = world.joined(tokens[2]);
    assert_eq!(refused.error, Some(ResponseError::GroupMaxSizeReached));
    assert_eq!(&*refused.member_id, "");
    let mut world = World::new(Settings {
        max_size: 2,
        ..Settings::default()
    });
    let (ids, generation) = world.stable(2);
    assert_eq!(
        world.join_now(old_join()).error,
        Some(ResponseError::GroupMaxSizeReached)
    );
    assert_eq!(world.heartbeat(&ids[0], generation), Ok(()));
}

#[test]
fn a_group_that_outgrew_its_limit_rebalances_when_it_is_read_back() {
    let mut world = World::new(Settings::default());
    let (ids, _) = world.stable(3);
    let mut after = World::new(Settings {
        max_size: 2,
        ..Settings::default()
    });
    for record in &world.log {
        after
            .machine
            .apply(&Record::decode(&record.key, record.value.as_deref()).unwrap());
    }
    after.machine.loaded(after.now);
    assert_eq!(after.state(), Some(State::PreparingRebalance));
    let tokens: Vec<Token> = ids.iter().map(|id| after.join(rejoin(id))).collect();
    assert_eq!(
        after.joined(tokens[2]).error,
        Some(ResponseError::GroupMaxSizeReached)
    );
    assert_eq!(after.joined(tokens[0]).error, None);
    assert_eq!(after.joined(tokens[1]).error, None);
}
