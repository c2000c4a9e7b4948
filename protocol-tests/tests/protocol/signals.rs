//! How signals end the process.

use std::time::{Duration, Instant};

use protocol_tests::batch::Batch;
use protocol_tests::calls::*;
use protocol_tests::server::Server;
use protocol_tests::wire::{Pending, Wire};
use protocol_tests::{foreign, wait_for};

/// A server whose drain does not end before a client has read its answer.
fn busy() -> (
    Server,
    Wire,
    Pending<kafka_protocol::messages::FetchRequest>,
) {
    let server = Server::with_settings(&["socket.send.buffer.bytes=16384"]);
    let mut wire = Wire::connect(&server.address());
    let topic = new_topic(&mut wire, 1, &[]);
    for _ in 0..4 {
        let batch = Batch::of(&[&"x".repeat(1_000_000)]);
        assert_eq!(produce(&mut wire, &topic, 0, &batch).error_code, 0);
    }
    let pending = send_fetch(&mut wire, &topic, 0, Wanted::from(0));
    wire.wait_for_bytes();
    (server, wire, pending)
}

#[test]
fn a_signal_that_comes_twice_at_once_still_drains() {
    if foreign().is_some() {
        return;
    }
    let (mut server, mut wire, pending) = busy();
    // As `timeout` does it: to the process, and to its group.
    server.signal("TERM");
    server.signal("TERM");
    server.signal("INT");
    wait_for("the drain begins", || {
        server.log().contains("draining").then_some(())
    });
    let answer = wire.receive(pending);
    assert_eq!(
        answer.responses.len(),
        1,
        "the request under way is answered"
    );
    let code = wait_for("the process ends", || server.exit_code());
    assert_eq!(code, 0, "{}", server.log());
    assert!(server.log().contains("stopped"), "{}", server.log());
}

#[test]
fn a_later_second_signal_ends_it_at_once() {
    if foreign().is_some() {
        return;
    }
    let (mut server, _wire, _pending) = busy();
    server.signal("TERM");
    let start = Instant::now();
    let code = wait_for("the process ends", || {
        let ended = server.exit_code();
        if ended.is_none() {
            server.signal("TERM");
        }
        ended
    });
    assert_eq!(code, 1, "{}", server.log());
    assert!(
        start.elapsed() >= Duration::from_millis(400),
        "it took the first ones for one"
    );
    assert!(
        server.log().contains("again: ending at once"),
        "{}",
        server.log()
    );
}
