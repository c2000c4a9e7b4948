//! A record whose timestamp lies in the future must not keep its partition for ever.

use super::Scene;
use crate::clock::Clock;
use crate::protocol::batch::{BatchBuilder, compute_crc};
use crate::sim::model::Sent;
use crate::sim::power::End;
use crate::sim::store::Options;

const DAY_MS: i64 = 24 * 3_600_000;

fn stamped(timestamp: i64) -> Sent {
    let mut builder = BatchBuilder::new();
    builder.push(timestamp, None, Some(b"value"));
    Sent {
        payload: builder.build().expect("a batch"),
        records: 1,
        producer: None,
        stamp: None,
    }
}

#[test]
fn a_future_timestamp_does_not_pin_retention() {
    let scene = Scene::with(Options::default(), 1, Some(("retention.ms", "3000")));
    let key = scene.key(0);
    let now = scene.world(|world| world.clock.wall_ms());
    for timestamp in [now, now + 365 * DAY_MS, now] {
        scene.send(key, &stamped(timestamp));
        scene.settle();
        scene.flush();
    }
    scene.world(|world| world.clock.advance(std::time::Duration::from_secs(60)));
    scene.send(key, &stamped(now + 60_000));
    scene.settle();
    scene.flush();
    scene.turn();
    scene.settle();
    let bounds = scene.world(|world| world.store().partition(key).bounds());
    assert_eq!(bounds.log_start, 3, "all that is older than a minute went");
    scene.turn();
    scene.check();
}

/// A log may hold a header that names a maximum which no record has: Produce puts it right today,
/// and a log may come from elsewhere.
#[test]
fn a_header_that_lies_about_its_maximum_is_recovered_and_does_not_pin_retention() {
    for end in [End::Kill, End::PowerLoss] {
        let scene = Scene::with(Options::default(), 1, Some(("retention.ms", "3000")));
        let key = scene.key(0);
        let now = scene.world(|world| world.clock.wall_ms());
        let mut lying = stamped(now);
        let mut bytes = lying.payload.to_vec();
        bytes[35..43].copy_from_slice(&i64::MAX.to_be_bytes());
        let crc = compute_crc(&bytes);
        bytes[17..21].copy_from_slice(&crc.to_be_bytes());
        lying.payload = bytes.into();
        scene.send(key, &stamped(now));
        scene.send(key, &lying);
        scene.settle();
        scene.restart(end);
        scene.checkpoint();
        scene.restart(end);
        scene.check();
        scene.send(key, &stamped(now));
        scene.settle();
        scene.world(|world| world.clock.advance(std::time::Duration::from_secs(60)));
        scene.turn();
        scene.settle();
        let bounds = scene.world(|world| world.store().partition(key).bounds());
        assert_eq!(
            bounds.log_start, 3,
            "it goes with the first old record behind it"
        );
        scene.check();
    }
}
