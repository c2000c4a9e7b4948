//! A member was told its generation and its assignment; then the power fails.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;

use super::Scene;
use crate::coordinator::Held;
use crate::coordinator::group::command::{HeartbeatRequest, JoinReply, JoinRequest, SyncRequest};
use crate::sim::power::End;
use crate::store::journal::Journal;

fn join_request() -> JoinRequest {
    JoinRequest {
        group: "g1".into(),
        member_id: "".into(),
        instance_id: None,
        client_id: "client".into(),
        client_host: "/127.0.0.1".into(),
        session_timeout_ms: 30_000,
        rebalance_timeout_ms: 30_000,
        protocol_type: "consumer".into(),
        protocols: vec![("range".into(), Bytes::from_static(b"metadata"))],
        require_member_id: false,
        can_skip_assignment: false,
    }
}

/// Joins as the only member, waiting as long as the coordinator does.
fn join(scene: &Scene) -> Held<JoinReply> {
    let groups = scene.world(|world| Arc::clone(&world.store().groups));
    let waiting = Arc::clone(&groups);
    let mut joined = Box::pin(async move { waiting.join(join_request()).await });
    for _ in 0..100 {
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(held) = joined.as_mut().poll(&mut context) {
            return held;
        }
        scene.world(|world| world.clock.advance(Duration::from_millis(200)));
        groups.serve_due();
    }
    panic!("the only member of a group waits for ever");
}

#[test]
fn a_member_goes_on_after_a_power_loss_with_what_it_was_told() {
    let scene = Scene::new(1);
    for _ in 0..4 {
        let joined = join(&scene);
        assert!(joined.value.error.is_none(), "{:?}", joined.value.error);
        let (member, generation) = (joined.value.member_id, joined.value.generation);
        let synced = scene.world(|world| {
            let request = SyncRequest {
                group: "g1".into(),
                generation,
                member_id: member.clone(),
                instance_id: None,
                protocol_type: None,
                protocol: None,
                assignments: vec![(member.clone(), Bytes::from_static(b"mine"))],
            };
            let sync = world.store().groups.sync(request);
            crate::sim::store::at_once(sync).expect("the leader's own sync")
        });
        assert!(synced.value.error.is_none());
        assert_eq!(&synced.value.assignment[..], b"mine");
        scene.world(|world| {
            let durable = world.store().journal().durable();
            assert!(synced.after > durable, "held until its group is durable");
        });
        scene.settle();
        for end in [End::PowerLoss, End::Kill] {
            scene.restart(end);
            let beat = scene.world(|world| {
                world.store().groups.heartbeat(HeartbeatRequest {
                    group: "g1".into(),
                    generation,
                    member_id: member.clone(),
                    instance_id: None,
                })
            });
            assert_eq!(beat.value, Ok(()), "generation {generation} was told");
        }
        // The member goes silent; the group is empty when the next one comes.
        scene.world(|world| world.clock.advance(Duration::from_secs(60)));
        scene.world(|world| world.store().groups.serve_due());
        scene.settle();
    }
}
