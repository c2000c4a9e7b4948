//! The runtime over a log in memory, with time that tests move.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::error::ResponseError;
use tokio::time::{Instant, advance, sleep};

use super::{Groups, Held, Stats};
use crate::clock::Clock;
use crate::coordinator::group::command::*;
use crate::coordinator::group::record::Record;
use crate::coordinator::group::session::State;
use crate::coordinator::log::{AppendError, CoordinatorLog};
use crate::coordinator::memory::{MemoryLog, MemoryTopics};
use crate::coordinator::partition_of;
use crate::types::{Position, TopicId};

const TOPIC: TopicId = TopicId::from_u128(7);

/// Tokio's clock, which tests can move.
struct TestClock(Instant);

impl Clock for TestClock {
    fn wall_ms(&self) -> i64 {
        1_000_000 + self.monotonic().as_millis() as i64
    }

    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }
}

pub(super) struct World {
    log: Arc<MemoryLog>,
    topics: Arc<MemoryTopics>,
    pub(super) groups: Arc<Groups>,
}

impl World {
    pub(super) fn new(settings: Settings) -> Self {
        let topics = Arc::new(MemoryTopics::default());
        topics.set("t", Some(TOPIC));
        Self::over(Arc::new(MemoryLog::new(5)), topics, settings)
    }

    fn over(log: Arc<MemoryLog>, topics: Arc<MemoryTopics>, settings: Settings) -> Self {
        let clock = Arc::new(TestClock(Instant::now()));
        let groups = Groups::new(settings, log.clone(), topics.clone(), clock);
        groups.start();
        Self {
            log,
            topics,
            groups,
        }
    }

    pub(super) async fn ready(self) -> Self {
        while self.groups.is_loading() {
            sleep(Duration::from_millis(1)).await;
        }
        self
    }

    /// The same log in a new process.
    pub(super) async fn restarted(self, settings: Settings) -> Self {
        self.groups.stop();
        Self::over(self.log, self.topics, settings).ready().await
    }

    pub(super) fn commit(
        &self,
        group: &str,
        partition: i32,
        offset: i64,
    ) -> Held<Option<ResponseError>> {
        let held = self.groups.commit(commit(group, vec![(partition, offset)]));
        Held {
            value: held.value[0][0],
            after: held.after,
        }
    }

    pub(super) fn committed(&self, group: &str) -> Option<i64> {
        let held = self
            .groups
            .commits(group, &[("t".into(), vec![0])])
            .unwrap();
        held.value[0].1[0].1.as_ref().map(|c| c.offset)
    }

    async fn stable(&self, group: &str) -> (Name, i32) {
        let joined = self.groups.join(join(group, "")).await;
        let (id, generation) = (joined.value.member_id, joined.value.generation);
        let synced = self.groups.sync(sync(group, &id, generation)).await;
        assert_eq!(synced.value.error, None);
        (id, generation)
    }

    fn heartbeat(&self, group: &str, id: &Name, generation: i32) -> Result<(), ResponseError> {
        let request = HeartbeatRequest {
            group: group.into(),
            generation,
            member_id: id.clone(),
            instance_id: None,
        };
        self.groups.heartbeat(request).value
    }

    fn state(&self, group: &str) -> Option<State> {
        self.groups.describe(group).unwrap().value.map(|d| d.state)
    }

    async fn wait_for(&self, group: &str, state: Option<State>) {
        while self.state(group) != state {
            sleep(Duration::from_millis(10)).await;
        }
    }
}

fn join(group: &str, member: &str) -> JoinRequest {
    JoinRequest {
        group: group.into(),
        member_id: member.into(),
        instance_id: None,
        client_id: "client".into(),
        client_host: "/127.0.0.1".into(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 30_000,
        protocol_type: "consumer".into(),
        protocols: vec![("range".into(), Bytes::from_static(b"meta"))],
        require_member_id: false,
        can_skip_assignment: true,
    }
}

fn sync(group: &str, member: &Name, generation: i32) -> SyncRequest {
    SyncRequest {
        group: group.into(),
        generation,
        member_id: member.clone(),
        instance_id: None,
        protocol_type: None,
        protocol: None,
        assignments: vec![(member.clone(), Bytes::from_static(b"work"))],
    }
}

fn commit(group: &str, offsets: Vec<(i32, i64)>) -> CommitRequest {
    let partitions = offsets
        .into_iter()
        .map(|(partition, offset)| CommitPartition {
            partition,
            offset,
            leader_epoch: -1,
            metadata: "".into(),
        });
    CommitRequest {
        group: group.into(),
        generation: -1,
        member_id: "".into(),
        instance_id: None,
        retention_ms: None,
        knows_group_id_not_found: true,
        topics: vec![CommitTopic {
            name: "t".into(),
            id: TOPIC,
            partitions: partitions.collect(),
        }],
    }
}

#[test]
fn groups_live_where_kafka_puts_them() {
    // Partitions that Apache Kafka's own hash gives.
    for (group, partition) in [("", 0), ("a", 47), ("group", 47), ("polygenelubricants", 0)] {
        assert_eq!(partition_of(group, 50), partition, "{group}");
    }
    assert_eq!(partition_of("ü𝄞", 1), 0);
}

#[tokio::test(start_paused = true)]
async fn a_group_forms_and_answers_wait_for_what_they_show() {
    let world = World::new(Settings::default()).ready().await;
    let started = Instant::now();
    let joined = world.groups.join(join("g", "")).await;
    assert_eq!(started.elapsed().as_secs(), 3, "the initial delay");
    let reply = &joined.value;
    assert_eq!(
        (reply.error, reply.generation, &reply.leader),
        (None, 1, &reply.member_id)
    );
    assert!(reply.member_id.starts_with("client-") && reply.member_id.len() == 43);
    assert_eq!(joined.after, world.log.position());
    let before = world.log.position();
    let synced = world.groups.sync(sync("g", &reply.member_id, 1)).await;
    assert_eq!(&synced.value.assignment[..], b"work");
    assert!(synced.after > before && synced.after == world.log.position());
    let id = reply.member_id.clone();
    assert_eq!(world.heartbeat("g", &id, 1), Ok(()));
    let list = world.groups.list().unwrap();
    assert_eq!((list.value.len(), list.value[0].state), (1, State::Stable));
    assert_eq!(list.after, world.log.position());
}

#[tokio::test(start_paused = true)]
async fn members_park_until_all_are_there() {
    let world = World::new(Settings::default()).ready().await;
    let groups = world.groups.clone();
    let first = tokio::spawn(async move { groups.join(join("g", "")).await.value });
    let second = world.groups.join(join("g", "")).await.value;
    let first = first.await.unwrap();
    assert_eq!((first.generation, second.generation), (1, 1));
    let (leader, follower) = match first.members.is_empty() {
        true => (second, first),
        false => (first, second),
    };
    assert_eq!(leader.members.len(), 2);
    let groups = world.groups.clone();
    let request = SyncRequest {
        assignments: vec![],
        ..sync("g", &follower.member_id, 1)
    };
    let waiting = tokio::spawn(async move { groups.sync(request).await });
    sleep(Duration::from_millis(100)).await;
    assert_eq!(world.groups.stats().waiting, 1);
    world.groups.sync(sync("g", &leader.member_id, 1)).await;
    let synced = waiting.await.unwrap();
    assert_eq!(
        (synced.value.error, synced.after),
        (None, world.log.position())
    );
    assert_eq!(world.groups.stats().waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn a_silent_member_is_found_out_without_any_request() {
    let world = World::new(Settings::default()).ready().await;
    let (id, generation) = world.stable("g").await;
    for _ in 0..3 {
        sleep(Duration::from_secs(9)).await;
        assert_eq!(world.heartbeat("g", &id, generation), Ok(()));
    }
    let started = Instant::now();
    world.wait_for("g", Some(State::Empty)).await;
    assert_eq!(started.elapsed().as_secs(), 10);
}

#[tokio::test(start_paused = true)]
async fn everything_stored_is_there_after_a_restart() {
    let world = World::new(Settings::default()).ready().await;
    let (id, generation) = world.stable("g").await;
    let held = world.groups.commit(CommitRequest {
        generation,
        member_id: id.clone(),
        ..commit("g", vec![(0, 42)])
    });
    assert_eq!(
        (held.value, held.after),
        (vec![vec![None]], world.log.position())
    );
    assert_eq!(
        world.groups.commits("g", &[]).unwrap().after,
        world.log.position()
    );
    world.commit("simple", 0, 5);
    let world = world.restarted(Settings::default()).await;
    assert_eq!(
        (world.committed("g"), world.committed("simple")),
        (Some(42), Some(5))
    );
    assert_eq!(world.state("g"), Some(State::Stable));
    assert_eq!(world.heartbeat("g", &id, generation), Ok(()));
    assert_eq!(
        &world
            .groups
            .sync(sync("g", &id, generation))
            .await
            .value
            .assignment[..],
        b"work"
    );
    world.wait_for("g", Some(State::Empty)).await;
}

#[tokio::test(start_paused = true)]
async fn while_the_log_is_read_everybody_is_asked_to_wait() {
    let log = Arc::new(MemoryLog::new(5));
    let clock = Arc::new(TestClock(Instant::now()));
    let topics = Arc::new(MemoryTopics::default());
    let groups = Groups::new(Settings::default(), log, topics, clock);
    let loading = ResponseError::CoordinatorLoadInProgress;
    assert!(groups.is_loading());
    assert_eq!(groups.join(join("g", "")).await.value.error, Some(loading));
    assert_eq!(
        groups.sync(sync("g", &"m".into(), 1)).await.value.error,
        Some(loading)
    );
    assert_eq!(
        groups.commit(commit("g", vec![(0, 1)])).value,
        [[Some(loading)]]
    );
    assert_eq!(groups.commits("g", &[]), Err(loading));
    assert_eq!(groups.describe("g"), Err(loading));
    assert_eq!(groups.list(), Err(loading));
    assert_eq!(groups.delete("g".into()).value, Err(loading));
    assert!(groups.load());
    assert_eq!(groups.commit(commit("g", vec![(0, 1)])).value, [[None]]);
    groups.stop();
    let stopped = ResponseError::NotCoordinator;
    assert_eq!(groups.join(join("g", "")).await.value.error, Some(stopped));
}

#[tokio::test(start_paused = true)]
async fn stopping_answers_those_who_wait() {
    let world = World::new(Settings::default()).ready().await;
    let groups = world.groups.clone();
    let waiting = tokio::spawn(async move { groups.join(join("g", "")).await.value });
    sleep(Duration::from_millis(10)).await;
    world.groups.stop();
    assert_eq!(
        waiting.await.unwrap().error,
        Some(ResponseError::NotCoordinator)
    );
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_stored_did_not_happen() {
    let settings = Settings {
        initial_rebalance_delay_ms: 0,
        ..Settings::default()
    };
    let world = World::new(settings).ready().await;
    let (id, generation) = world.stable("g").await;
    world.commit("simple", 0, 5);
    for (cause, error) in [
        (AppendError::NoSpace, ResponseError::NotCoordinator),
        (
            AppendError::Unavailable("gone".into()),
            ResponseError::CoordinatorNotAvailable,
        ),
    ] {
        world.log.fail(Some(cause));
        assert_eq!(world.commit("simple", 0, 6).value, Some(error));
        assert_eq!(
            world.groups.join(join("other", "")).await.value.error,
            Some(error)
        );
        assert_eq!(world.groups.delete("simple".into()).value, Err(error));
        let joined = world.groups.join(join("g", &id)).await.value;
        assert_eq!(
            joined.error, None,
            "a rebalance is not stored before its end"
        );
        let synced = world
            .groups
            .sync(sync("g", &id, joined.generation))
            .await
            .value;
        assert_eq!(synced.error, Some(error));
    }
    world.log.fail(Some(AppendError::TooLarge));
    let too_large = Some(ResponseError::InvalidCommitOffsetSize);
    assert_eq!(world.commit("simple", 0, 6).value, too_large);
    world.log.fail(None);
    assert_eq!(
        (world.committed("simple"), world.state("other")),
        (Some(5), None)
    );
    assert_eq!(world.state("g"), Some(State::CompletingRebalance));
    let synced = world
        .groups
        .sync(sync("g", &id, generation + 1))
        .await
        .value;
    assert_eq!(synced.error, None, "the leader's next try succeeds");
    assert_eq!(world.groups.stats().append_errors, 9);
}

#[tokio::test(start_paused = true)]
async fn timers_that_cannot_be_stored_are_tried_again() {
    let world = World::new(Settings::default()).ready().await;
    world.stable("g").await;
    world.log.fail(Some(AppendError::NoSpace));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(world.state("g"), Some(State::Stable));
    let tries = world.groups.stats().append_errors;
    assert!((40..=55).contains(&tries), "{tries} tries in 50 s");
    world.log.fail(None);
    world.wait_for("g", Some(State::Empty)).await;
}

#[tokio::test(start_paused = true)]
async fn large_commits_and_deletions_go_in_pieces() {
    let world = World::new(Settings::default()).ready().await;
    let offsets: Vec<_> = (0..40_000).map(|p| (p, i64::from(p))).collect();
    let held = world.groups.commit(commit("g", offsets));
    assert!(held.value[0].iter().all(Option::is_none));
    assert!(world.log.position() > Position(3) && held.after == world.log.position());
    let world = world.restarted(Settings::default()).await;
    assert_eq!(world.groups.stats().census.commits, 40_000);
    assert_eq!(world.groups.delete("g".into()).value, Ok(()));
    assert_eq!(world.groups.stats().census.commits, 0);
    let world = world.restarted(Settings::default()).await;
    assert_eq!(world.groups.list().unwrap().value, []);
}

#[tokio::test(start_paused = true)]
async fn commits_end_with_their_topic() {
    let world = World::new(Settings::default()).ready().await;
    world.commit("g", 0, 5);
    world.topics.set("t", None);
    assert_eq!(world.committed("g"), None, "at once");
    world.topics.set("t", Some(TopicId::from_u128(8)));
    assert_eq!(
        world.committed("g"),
        None,
        "also for a topic with the same name"
    );
    let before = world.log.position();
    world.groups.forget_topics(&[TOPIC]);
    assert!(world.log.position() > before);
    assert_eq!(
        world.groups.stats(),
        Stats {
            tombstones: 1,
            ..world.groups.stats()
        }
    );
    world.topics.set("t", Some(TOPIC));
    assert_eq!(world.committed("g"), None);
}

#[tokio::test(start_paused = true)]
async fn commits_expire_by_themselves() {
    let settings = Settings {
        offsets_retention_ms: 3_600_000,
        ..Settings::default()
    };
    let world = World::new(settings).ready().await;
    world.commit("g", 0, 5);
    advance(Duration::from_secs(3_500)).await;
    assert_eq!(world.committed("g"), Some(5));
    let deadline = Instant::now() + Duration::from_secs(800);
    while world.committed("g").is_some() {
        assert!(Instant::now() < deadline);
        sleep(Duration::from_secs(10)).await;
    }
    assert_eq!(world.state("g"), None);
}

#[tokio::test(start_paused = true)]
async fn a_log_much_larger_than_its_state_is_written_anew() {
    let world = World::new(Settings::default()).ready().await;
    let (id, generation) = world.stable("g").await;
    let partition = partition_of("g", 5);
    for round in 0..60 {
        let offsets = (0..500).map(|p| (p, round)).collect();
        let request = CommitRequest {
            generation,
            member_id: id.clone(),
            ..commit("g", offsets)
        };
        assert!(
            world.groups.commit(request).value[0]
                .iter()
                .all(Option::is_none)
        );
        sleep(Duration::from_millis(10)).await;
    }
    while world.groups.stats().compactions == 0 {
        sleep(Duration::from_millis(10)).await;
    }
    let bytes = world.log.log_bytes(partition);
    assert!(bytes < 1_300_000, "{bytes}");
    let first = world
        .log
        .records(partition)
        .first()
        .map(|(offset, _)| *offset);
    assert!(first > Some(0));
    let world = world.restarted(Settings::default()).await;
    let stats = world.groups.stats();
    assert_eq!((stats.census.commits, stats.census.stable), (500, 1));
    assert_eq!(world.committed("g"), Some(59));
    assert_eq!(world.heartbeat("g", &id, generation), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_log_of_nothing_but_the_past_is_let_go() {
    let world = World::new(Settings::default()).ready().await;
    let partition = partition_of("g", 5);
    for _ in 0..60 {
        world
            .groups
            .commit(commit("g", (0..500).map(|p| (p, 1)).collect()));
        world.groups.delete("g".into());
        sleep(Duration::from_millis(10)).await;
    }
    while world.groups.stats().compactions == 0 {
        sleep(Duration::from_millis(10)).await;
    }
    assert!(world.log.log_bytes(partition) < 1_100_000);
    let world = world.restarted(Settings::default()).await;
    assert_eq!(world.groups.list().unwrap().value, []);
}

#[tokio::test(start_paused = true)]
async fn a_damaged_record_keeps_its_partition_closed() {
    let log = Arc::new(MemoryLog::new(5));
    let mut damaged = Record::Group {
        group: "g".into(),
        value: Some(Arc::default()),
    }
    .encode();
    damaged.value = Some(Bytes::from_static(b"\0\x03\0\0"));
    let partition = partition_of("g", 5);
    log.append(partition, vec![damaged], 0).unwrap();
    let world = World::over(log, Arc::default(), Settings::default());
    while world.groups.stats().loaded < 4 {
        sleep(Duration::from_millis(10)).await;
    }
    let error = Some(ResponseError::CoordinatorNotAvailable);
    assert_eq!(world.groups.join(join("g", "")).await.value.error, error);
    let elsewhere = (0..)
        .map(|i| format!("g{i}"))
        .find(|g| partition_of(g, 5) != partition);
    assert_eq!(world.commit(&elsewhere.unwrap(), 0, 1).value, None);
    world.log.move_log_start(partition, 1).unwrap();
    while world.groups.is_loading() {
        sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test]
async fn commits_from_many_threads_are_all_there() {
    let log = Arc::new(MemoryLog::new(5));
    let topics = Arc::new(MemoryTopics::default());
    topics.set("t", Some(TOPIC));
    let world = World::over(log, topics, Settings::default()).ready().await;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let groups = &world.groups;
            scope.spawn(move || {
                for i in 0..200 {
                    let request = commit(&format!("g{}", i % 20), vec![(thread, i)]);
                    assert_eq!(groups.commit(request).value, [[None]]);
                }
            });
        }
    });
    assert_eq!(world.groups.stats().census.commits, 80);
    let world = world.restarted(Settings::default()).await;
    assert_eq!(world.groups.stats().census.commits, 80);
}
