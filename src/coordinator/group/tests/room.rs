//! What goes on, and what is refused, when groups may not take more memory.

use super::super::weight::Room;
use super::*;

const FULL: Room = Room { new: 0, more: 0 };
/// No room for what is new, some for what is there.
const TIGHT: Room = Room { new: 0, more: 500 };
const REFUSED: Option<ResponseError> = Some(ResponseError::PolicyViolation);

fn commit_of(group: &str, partitions: &[(i32, usize)]) -> CommitRequest {
    let mut request = commit_request("", -1, 1);
    request.group = group.into();
    let partition = |(partition, length): &(i32, usize)| CommitPartition {
        partition: *partition,
        offset: 5,
        leader_epoch: -1,
        metadata: "x".repeat(*length).into(),
    };
    request.topics[0].partitions = partitions.iter().map(partition).collect();
    request
}

#[test]
fn commits_that_are_there_go_on_and_new_ones_are_refused() {
    let mut world = World::new(Settings::default());
    assert_eq!(
        world.commit_as(commit_of("g", &[(0, 10), (1, 10)])),
        [None, None]
    );
    let before = world.machine.bytes();
    world.machine.room = FULL;
    let mixed = commit_of("g", &[(0, 10), (2, 0), (1, 0)]);
    assert_eq!(world.commit_as(mixed), [None, REFUSED, None]);
    assert!(world.machine.bytes() < before, "a text went, nothing came");
    assert_eq!(world.commit_as(commit_of("g", &[(0, 11)])), [REFUSED]);
    assert_eq!(world.commit_as(commit_of("other", &[(0, 0)])), [REFUSED]);
    world.machine.room = TIGHT;
    assert_eq!(
        world.commit_as(commit_of("g", &[(0, 400), (1, 400)])),
        [None, REFUSED]
    );
    assert_eq!(world.commit_as(commit_of("g", &[(2, 0)])), [REFUSED]);
    let commits = world.machine.all_commits("g", &is_topic);
    let partitions: Vec<i32> = commits[0].1.iter().map(|(p, _)| *p).collect();
    assert_eq!(partitions, [0, 1]);
    assert!(
        world.machine.describe("other").is_none(),
        "nothing is left of it"
    );
}

#[test]
fn a_request_takes_what_there_is_room_for() {
    let mut world = World::new(Settings::default());
    world.machine.room = Room {
        new: 2_000,
        more: 2_000,
    };
    let all: Vec<(i32, usize)> = (0..100).map(|partition| (partition, 0)).collect();
    let errors = world.commit_as(commit_of("g", &all));
    let taken = errors.iter().filter(|error| error.is_none()).count();
    assert!((1..20).contains(&taken), "{taken}");
    assert!(errors[taken..].iter().all(|error| *error == REFUSED));
    assert!(world.machine.bytes() <= 2_000);
}

#[test]
fn members_at_work_go_on_and_new_ones_are_refused() {
    let mut world = World::new(Settings::default());
    let (ids, generation) = world.stable(2);
    world.machine.room = FULL;
    let full = Some(ResponseError::GroupMaxSizeReached);
    for request in [join_request(), old_join(), static_join("i1")] {
        assert_eq!(world.join_now(request.clone()).error, full, "{request:?}");
        let elsewhere = JoinRequest {
            group: "other".into(),
            ..request
        };
        assert_eq!(world.join_now(elsewhere).error, full);
    }
    assert_eq!(world.state(), Some(State::Stable), "nobody was disturbed");
    assert_eq!(world.heartbeat(&ids[0], generation), Ok(()));
    // The leader asks for a rebalance; all come back as they were.
    let first = world.join(rejoin(&ids[0]));
    assert_eq!(
        world.heartbeat(&ids[1], generation),
        Err(ResponseError::RebalanceInProgress)
    );
    let second = world.join_now(rejoin(&ids[1]));
    assert_eq!((world.joined(first).error, second.error), (None, None));
    let generation = second.generation;
    let leader = second.leader.clone();
    let given: Vec<(&Name, &str)> = ids.iter().map(|id| (id, "work")).collect();
    assert_eq!(world.sync_now(&leader, generation, &given).error, None);
    assert_eq!(world.state(), Some(State::Stable));
    // One leaves, and its place can be had.
    world.leave(&[(&ids[1], None)]);
    world.machine.room = Room {
        new: 1_000,
        more: 1_000,
    };
    world.join(old_join());
    assert_eq!(world.state(), Some(State::PreparingRebalance));
}

#[test]
fn an_assignment_beyond_the_room_is_refused_and_the_group_waits_for_another() {
    let mut world = World::new(Settings::default());
    let first = world.join(old_join());
    world.wait(3_000);
    let joined = world.joined(first);
    world.machine.room = TIGHT;
    let id = joined.member_id;
    let long = "x".repeat(1_000);
    let refused = world.sync_now(&id, joined.generation, &[(&id, &long)]);
    assert_eq!(refused.error, Some(ResponseError::GroupMaxSizeReached));
    let short = "x".repeat(400);
    assert_eq!(
        world
            .sync_now(&id, joined.generation, &[(&id, &short)])
            .error,
        None
    );
    assert_eq!(world.state(), Some(State::Stable));
}
