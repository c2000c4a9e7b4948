//! Limits of a shard: who goes over one is told to pause and is not read from meanwhile.

use std::time::{Duration, Instant};

use protocol_tests::Server;
use protocol_tests::batch::Batch;
use protocol_tests::calls::*;
use protocol_tests::wire::Wire;

/// Bytes a second in the tests, and of one batch.
const LIMIT: usize = 200_000;
const BATCH: usize = 100_000;

fn big_batch() -> Batch {
    Batch::of(&[&"x".repeat(BATCH)])
}

/// Produces so many batches and returns the longest pause that was asked for.
fn produce_some(wire: &mut Wire, topic: &str, partition: i32, count: usize) -> i32 {
    let request = produce_request(topic, partition, -1, big_batch().bytes());
    let mut longest = 0;
    for _ in 0..count {
        let answer = wire.call(9, &request);
        assert_eq!(answer.responses[0].partition_responses[0].error_code, 0);
        longest = longest.max(answer.throttle_time_ms);
    }
    longest
}

#[test]
fn a_writer_over_the_limit_is_slowed_down_and_others_are_not() {
    let server = Server::calm(&[]);
    let mut wire = Wire::connect(&server.address());
    let limit = LIMIT.to_string();
    let limited = new_topic(&mut wire, 2, &[("shard.write.bytes.per.second", &limit)]);
    let free = new_topic(&mut wire, 2, &[]);
    let started = Instant::now();
    let pause = produce_some(&mut wire, &limited, 0, 8);
    assert!(pause > 0, "the client is told to pause");
    // 800 kB, of which a second's worth is free and the last pause is still to come.
    assert!(
        started.elapsed() >= Duration::from_secs(2),
        "{:?}",
        started.elapsed()
    );

    // A partition of the same shard shares the limit, whoever writes to it.
    let mut other = Wire::connect(&server.address());
    assert!(produce_some(&mut other, &limited, 1, 1) > 0);
    // Another topic does not.
    let mut third = Wire::connect(&server.address());
    assert_eq!(produce_some(&mut third, &free, 0, 8), 0);
    assert_eq!(
        list_offsets(&mut third, &limited, 0, -1).offset,
        8,
        "nothing was refused"
    );
}

#[test]
fn a_reader_over_the_limit_is_slowed_down() {
    let server = Server::calm(&[]);
    let mut wire = Wire::connect(&server.address());
    let limit = LIMIT.to_string();
    let topic = new_topic(&mut wire, 1, &[("shard.read.bytes.per.second", &limit)]);
    assert_eq!(produce_some(&mut wire, &topic, 0, 8), 0);
    let started = Instant::now();
    let mut paused = 0;
    for offset in 0..8 {
        let wanted = Wanted {
            partition_max_bytes: BATCH as i32,
            ..Wanted::from(offset)
        };
        let answer = wire.call(11, &wanted.request(&topic, &[0]));
        let records = answer.responses[0].partitions[0]
            .records
            .clone()
            .unwrap_or_default();
        assert!(records.len() >= BATCH);
        paused = paused.max(answer.throttle_time_ms);
    }
    assert!(paused > 0, "the client is told to pause");
    assert!(
        started.elapsed() >= Duration::from_secs(2),
        "{:?}",
        started.elapsed()
    );
}
