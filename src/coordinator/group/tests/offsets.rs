//! Commits: who may make them, when they go, what goes with them.

use super::*;

fn committed(world: &World) -> Option<i64> {
    let commits = world
        .machine
        .commits("g", &[("t".into(), vec![0])], &is_topic);
    commits[0].1[0].1.as_ref().map(|c| c.offset)
}

#[test]
fn who_may_commit_for_a_group_that_is_not_there() {
    let request = commit_request;
    let table = [
        (request("", -1, 5), None),
        (request("someone", -1, 5), None),
        (request("", 5, 5), Some(ResponseError::GroupIdNotFound)),
        (
            request("someone", 5, 5),
            Some(ResponseError::GroupIdNotFound),
        ),
        (
            CommitRequest {
                knows_group_id_not_found: false,
                ..request("", 5, 5)
            },
            Some(ResponseError::IllegalGeneration),
        ),
    ];
    for (request, error) in table {
        let mut world = World::new(Settings::default());
        assert_eq!(world.commit_as(request.clone()), [error], "{request:?}");
        assert_eq!(
            committed(&world),
            if error.is_none() { Some(5) } else { None }
        );
        assert_eq!(world.state().is_some(), error.is_none());
    }
}

#[test]
fn who_may_commit_for_a_group_with_members() {
    let mut world = World::new(Settings::default());
    let (ids, generation) = world.stable(1);
    let id = ids[0].clone();
    assert_eq!(world.commit(&id, generation, 3), None);
    assert_eq!(committed(&world), Some(3));
    let unknown = Some(ResponseError::UnknownMemberId);
    let illegal = Some(ResponseError::IllegalGeneration);
    assert_eq!(world.commit("nobody", generation, 4), unknown);
    assert_eq!(world.commit(&id, generation + 1, 4), illegal);
    assert_eq!(world.commit(&id, -1, 4), illegal);
    assert_eq!(world.commit("", -1, 4), unknown);
    let instance = Some(Name::from("i7"));
    let request = CommitRequest {
        instance_id: instance,
        ..commit_request(&id, generation, 4)
    };
    assert_eq!(world.commit_as(request), [unknown]);
    assert_eq!(committed(&world), Some(3));
    world.join(old_join());
    assert_eq!(world.state(), Some(State::PreparingRebalance));
    assert_eq!(
        world.commit(&id, generation, 6),
        None,
        "the old generation may finish its work"
    );
    world.join(rejoin(&id));
    assert_eq!(world.state(), Some(State::CompletingRebalance));
    let rebalance = Some(ResponseError::RebalanceInProgress);
    assert_eq!(world.commit(&id, generation + 1, 7), rebalance);
}

#[test]
fn simple_commits_need_an_empty_group() {
    let mut world = World::new(Settings::default());
    let (ids, generation) = world.stable(1);
    world.leave(&[(&ids[0], None)]);
    let unknown = Some(ResponseError::UnknownMemberId);
    assert_eq!(world.commit(&ids[0], generation, 3), unknown);
    assert_eq!(world.commit("", -1, 3), None);
    let (group, _) = world.machine.describe("g").unwrap();
    assert_eq!(
        (group.state, &*group.protocol_type),
        (State::Empty, "consumer")
    );
}

#[test]
fn a_commit_counts_as_a_heartbeat() {
    let mut world = World::new(Settings::default());
    let (ids, generation) = world.stable(1);
    for offset in 0..10 {
        world.wait(9_000);
        assert_eq!(world.commit(&ids[0], generation, offset), None);
    }
    assert_eq!(world.state(), Some(State::Stable));
}

#[test]
fn text_that_is_too_long_is_refused_for_its_partition_only() {
    let mut world = World::new(Settings::default());
    let mut request = commit_request("", -1, 5);
    let long = CommitPartition {
        partition: 1,
        metadata: "m".repeat(5_000).into(),
        ..request.topics[0].partitions[0].clone()
    };
    request.topics[0].partitions.insert(0, long);
    let too_large = Some(ResponseError::OffsetMetadataTooLarge);
    assert_eq!(world.commit_as(request), [too_large, None]);
    assert_eq!(committed(&world), Some(5));
    assert_eq!(world.log.len(), 1);
}

#[test]
fn commits_of_a_topic_that_is_gone_count_as_none() {
    let mut world = World::new(Settings::default());
    world.commit("", -1, 5);
    assert_eq!(world.machine.all_commits("g", &is_topic).len(), 1);
    let made_again = |_: &str| Some(TopicId::from_u128(8));
    assert_eq!(world.machine.all_commits("g", &made_again), []);
    let one = world
        .machine
        .commits("g", &[("t".into(), vec![0])], &made_again);
    assert_eq!(one[0].1, [(0, None)]);
    let ids = vec![TopicId::from_u128(8)];
    let forget = Command::ForgetTopics {
        group: "g".into(),
        ids,
    };
    world.run(|_| forget);
    assert_eq!(committed(&world), Some(5), "another topic's");
    let forget = Command::ForgetTopics {
        group: "g".into(),
        ids: vec![TOPIC],
    };
    world.run(|_| forget);
    assert_eq!(committed(&world), None);
    assert_eq!(world.state(), Some(State::Empty), "until the next clean-up");
    clean_up(&mut world, &is_topic);
    assert_eq!(world.state(), None);
    assert_eq!(world.replayed().stored_bytes(), 0);
}

fn subscription(topic: &str) -> Vec<(Name, Bytes)> {
    let mut bytes = vec![0, 3, 0, 0, 0, 1, 0, topic.len() as u8];
    bytes.extend(topic.as_bytes());
    vec![(Name::from("range"), Bytes::from(bytes))]
}

fn clean_up(world: &mut World, topic_id: &dyn Fn(&str) -> Option<TopicId>) {
    let decision = world.machine.clean_up(world.now, &"g".into(), topic_id);
    world.take(decision);
}

#[test]
fn commits_expire() {
    const WEEK: u64 = 7 * 24 * 3_600_000;
    // A client that manages its partitions itself: a week after the commit.
    let mut world = World::new(Settings::default());
    world.commit("", -1, 5);
    world.wait(WEEK - 1);
    clean_up(&mut world, &is_topic);
    assert_eq!(committed(&world), Some(5));
    world.wait(1);
    clean_up(&mut world, &is_topic);
    assert_eq!((committed(&world), world.state()), (None, None));

    // A group: a week after the last member left, whatever the age of the commit.
    let mut world = World::new(Settings::default());
    let (ids, generation) = world.stable(1);
    world.commit(&ids[0], generation, 5);
    for _ in 0..(WEEK / 9_000 + 10) {
        world.now.tick += 9_000;
        world.now.wall_ms += 9_000;
        world.heartbeat(&ids[0], generation).unwrap();
    }
    clean_up(&mut world, &is_topic);
    assert_eq!(committed(&world), Some(5));
    world.leave(&[(&ids[0], None)]);
    world.wait(WEEK - 1);
    clean_up(&mut world, &is_topic);
    assert_eq!(committed(&world), Some(5));
    world.wait(1);
    clean_up(&mut world, &is_topic);
    assert_eq!((committed(&world), world.state()), (None, None));
    let last = world.log.last().unwrap();
    assert_eq!(
        (last.key[1], &last.value),
        (2, &None),
        "the group itself goes too"
    );

    // With an expiry of its own.
    let mut world = World::new(Settings::default());
    world.commit_as(CommitRequest {
        retention_ms: Some(1_000),
        ..commit_request("", -1, 5)
    });
    world.wait(1_000);
    clean_up(&mut world, &is_topic);
    assert_eq!(committed(&world), None);
}

#[test]
fn a_stable_consumer_group_keeps_the_commits_of_what_it_reads() {
    for (reads, kept) in [("t", Some(5)), ("other", None)] {
        let settings = Settings {
            offsets_retention_ms: 5_000,
            ..Settings::default()
        };
        let mut world = World::new(settings);
        let token = world.join(JoinRequest {
            protocols: subscription(reads),
            ..old_join()
        });
        world.wait(3_000);
        let id = world.joined(token).member_id;
        world.sync(&id, 1, &[]);
        world.commit(&id, 1, 5);
        world.wait(6_000);
        clean_up(&mut world, &is_topic);
        assert_eq!(committed(&world), kept);
    }
    // Metadata that can't be understood: nothing is let go.
    let settings = Settings {
        offsets_retention_ms: 5_000,
        ..Settings::default()
    };
    let mut world = World::new(settings);
    let (ids, generation) = world.stable(1);
    world.commit(&ids[0], generation, 5);
    world.wait(6_000);
    clean_up(&mut world, &is_topic);
    assert_eq!(committed(&world), Some(5));
}

#[test]
fn clean_up_finds_what_deleted_topics_left_behind() {
    let mut world = World::new(Settings::default());
    let (ids, generation) = world.stable(1);
    world.commit(&ids[0], generation, 5);
    clean_up(&mut world, &|_| None);
    assert_eq!(world.log.last().map(|r| r.value.is_none()), Some(true));
    assert_eq!(committed(&world), None);
    assert_eq!(world.state(), Some(State::Stable));
}

#[test]
fn only_groups_without_members_can_be_deleted() {
    let mut world = World::new(Settings::default());
    let not_found = Err(ResponseError::GroupIdNotFound);
    assert_eq!(world.delete("g"), not_found);
    assert_eq!(world.delete(""), not_found);
    let (ids, generation) = world.stable(1);
    world.commit(&ids[0], generation, 5);
    assert_eq!(world.delete("g"), Err(ResponseError::NonEmptyGroup));
    world.leave(&[(&ids[0], None)]);
    assert_eq!(world.delete("g"), Ok(()));
    assert_eq!(world.delete("g"), not_found);
    assert_eq!((committed(&world), world.state()), (None, None));
    let mut replayed = world.replayed();
    replayed.loaded(world.now);
    assert_eq!(replayed.names(), Vec::<Name>::new());
    world.commit("", -1, 5);
    assert_eq!(world.delete("g"), Ok(()));
    assert_eq!(world.state(), None);
}

fn delete_offsets(
    world: &mut World,
    topics: &[(&str, &[i32])],
) -> Result<Vec<Option<ResponseError>>, ResponseError> {
    let topics = topics
        .iter()
        .map(|(name, partitions)| ((*name).into(), partitions.to_vec()));
    let topics = topics.collect();
    let token = world.run(|token| Command::DeleteOffsets {
        token,
        group: "g".into(),
        topics,
    });
    match world.answers.get(&token) {
        Some(Reply::DeleteOffsets(result)) => result.clone(),
        other => panic!("no OffsetDelete answer: {other:?}"),
    }
}

const ONE: &[(&str, &[i32])] = &[("t", &[0])];

#[test]
fn commits_of_a_group_without_members_can_be_deleted() {
    let mut world = World::new(Settings::default());
    let not_found = Err(ResponseError::GroupIdNotFound);
    assert_eq!(delete_offsets(&mut world, ONE), not_found);
    world.commit("", -1, 5);
    let before = world.log.len();
    let topics: &[(&str, &[i32])] = &[("t", &[0, 1, 0]), ("never committed", &[0])];
    assert_eq!(delete_offsets(&mut world, topics), Ok(vec![None, None]));
    assert_eq!(
        world.log.len(),
        before + 1,
        "one tombstone for what was there"
    );
    assert_eq!(
        (committed(&world), world.state()),
        (None, Some(State::Empty))
    );
    let mut replayed = world.replayed();
    replayed.loaded(world.now);
    assert_eq!(replayed.names(), Vec::<Name>::new());
    assert_eq!(world.delete("g"), Ok(()), "it is there until the clean-up");
    assert_eq!(delete_offsets(&mut world, ONE), not_found);
}

#[test]
fn a_consumer_group_loses_only_commits_of_what_it_does_not_read() {
    let subscribed = Ok(vec![Some(ResponseError::GroupSubscribedToTopic)]);
    for (reads, outcome) in [("t", &subscribed), ("other", &Ok(vec![None]))] {
        let mut world = World::new(Settings::default());
        let join = JoinRequest {
            protocols: subscription(reads),
            ..old_join()
        };
        let token = world.join(join.clone());
        assert_eq!(
            delete_offsets(&mut world, ONE),
            subscribed,
            "in the first joining nothing is known"
        );
        world.wait(3_000);
        let id = world.joined(token).member_id;
        world.sync(&id, 1, &[]);
        world.commit(&id, 1, 5);
        let mut restarted = World::new(Settings::default());
        restarted.machine = world.replayed();
        restarted.machine.loaded(restarted.now);
        assert_eq!(
            &delete_offsets(&mut restarted, ONE),
            outcome,
            "after a restart"
        );
        world.join(JoinRequest {
            protocols: subscription("third"),
            ..old_join()
        });
        assert_eq!(world.state(), Some(State::PreparingRebalance));
        assert_eq!(
            &delete_offsets(&mut world, ONE),
            outcome,
            "what it read last"
        );
        world.leave(&[(&id, None)]);
        world.wait(400_000);
        assert_eq!(world.state(), Some(State::Empty));
        assert_eq!(delete_offsets(&mut world, ONE), Ok(vec![None]));
        assert_eq!(committed(&world), None);
    }
}

#[test]
fn groups_of_other_kinds_keep_their_commits_while_they_have_members() {
    let mut world = World::new(Settings::default());
    let token = world.join(JoinRequest {
        protocol_type: "connect".into(),
        ..old_join()
    });
    world.wait(3_000);
    let id = world.joined(token).member_id;
    assert_eq!(
        delete_offsets(&mut world, ONE),
        Err(ResponseError::NonEmptyGroup)
    );
    world.leave(&[(&id, None)]);
    assert_eq!(delete_offsets(&mut world, ONE), Ok(vec![None]));
}
