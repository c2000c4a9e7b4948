//! What the log says of clients that are refused or served slowly: one line each, with the reason
//! and what to do, and no flood of them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use bytes::BytesMut;
use kafka_protocol::messages::{ApiVersionsRequest, MetadataRequest};
use kafka_protocol::protocol::{Encodable, Request};
use protocol_tests::batch::Batch;
use protocol_tests::calls::*;
use protocol_tests::wire::Wire;
use protocol_tests::{Server, foreign, wait_for};

/// Warnings in the log, without those that each start has.
fn warnings(server: &Server) -> Vec<String> {
    let log = server.log();
    let lines = log
        .lines()
        .filter(|line| line.contains(" WARN ") || line.contains("ERROR"));
    lines
        .filter(|line| !line.contains("configuration"))
        .map(str::to_owned)
        .collect()
}

/// The one line that comes for `act`; a second one would be found by the next case.
fn line_for(server: &Server, act: impl FnOnce()) -> String {
    let before = warnings(server).len();
    act();
    let lines = wait_for("a line in the log", || {
        let lines = warnings(server);
        (lines.len() > before).then_some(lines)
    });
    assert_eq!(lines.len(), before + 1, "{lines:#?}");
    lines[before].clone()
}

/// Sends bytes and reads until the server closes; gives the own address as the log shows it.
fn send_until_closed(server: &Server, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(server.address()).expect("connect");
    stream
        .set_read_timeout(Some(protocol_tests::PATIENCE))
        .expect("read timeout");
    let me = stream.local_addr().expect("an address").to_string();
    stream.write_all(bytes).expect("send");
    // A reset is a way of closing, too.
    let _ = stream.read_to_end(&mut Vec::new());
    me
}

/// A frame with its length, for an API by number.
fn frame(key: i16, version: i16, client: &str, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend(key.to_be_bytes());
    frame.extend(version.to_be_bytes());
    frame.extend(7_i32.to_be_bytes());
    frame.extend((client.len() as i16).to_be_bytes());
    frame.extend(client.as_bytes());
    frame.extend(body);
    [&(frame.len() as u32).to_be_bytes()[..], &frame].concat()
}

#[test]
fn each_refused_client_has_one_line_with_the_reason() {
    if foreign().is_some() {
        return;
    }
    let server = Server::with_settings(&["frame.timeout.ms=300"]);
    let mut lost = BytesMut::new();
    let batch = Batch::of(&["lost"]).bytes();
    produce_request("no-such-topic", 0, 0, batch)
        .encode(&mut lost, 3)
        .expect("encode");
    let huge = (200_u32 << 20).to_be_bytes();
    let heartbeat = [
        &(2_u32 << 20).to_be_bytes()[..],
        &frame(12, 0, "h", &[])[4..],
    ]
    .concat();
    let cases: Vec<(&str, Vec<u8>, &[&str])> = vec![
        (
            "SASL where there is none",
            frame(17, 1, "with-sasl", &[0, 5, b'P', b'L', b'A', b'I', b'N']),
            &[
                "SaslHandshake (API key 17",
                "with-sasl",
                "security.protocol=PLAINTEXT",
            ],
        ),
        (
            "an API that is not served",
            frame(68, 0, "newer", &[]),
            &[
                "ConsumerGroupHeartbeat (API key 68",
                "newer",
                "docs/compatibility.md",
            ],
        ),
        (
            "no API at all",
            frame(0x7fff, 0, "odd", &[]),
            &["API key 32767", "odd"],
        ),
        (
            "a version that is not served",
            frame(3, 99, "too-new", &[]),
            &["Metadata version 99", "too-new", "versions 0 to 13"],
        ),
        (
            "a cut header",
            vec![0, 0, 0, 6, 0, 3, 0, 1, 0, 0],
            &["ends within its header"],
        ),
        (
            "a body that is none",
            frame(3, 1, "liar", &[0x7f, 0xff, 0xff, 0xff]),
            &["Metadata version 1", "liar", "malformed"],
        ),
        (
            "TLS",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
            &["TLS", "PLAINTEXT"],
        ),
        (
            "HTTP",
            b"GET /metrics HTTP/1.1\r\n\r\n".to_vec(),
            &["HTTP", "admin.port"],
        ),
        (
            "a proxy's header",
            b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n".to_vec(),
            &["PROXY protocol"],
        ),
        (
            "too long a frame",
            huge.to_vec(),
            &["209715200 bytes", "socket.request.max.bytes"],
        ),
        ("a negative length", vec![0xff; 4], &["-1 bytes"]),
        (
            "too long for its API",
            heartbeat,
            &["2097152 bytes for Heartbeat"],
        ),
        (
            "a frame that never ends",
            frame(3, 1, "slow", &[])[..9].to_vec(),
            &["frame.timeout.ms"],
        ),
        ("acks=0 refused", frame(0, 3, "lost", &lost), &["acks=0"]),
    ];
    for (name, bytes, expected) in &cases {
        let mut me = String::new();
        let line = line_for(&server, || me = send_until_closed(&server, bytes));
        for part in expected
            .iter()
            .copied()
            .chain(["connection closed", me.as_str()])
        {
            assert!(line.contains(part), "{name}: no {part:?} in {line}");
        }
    }
    // Whoever goes away by itself, or is too new for ApiVersions and negotiates, is none of these.
    drop(Wire::connect(&server.address()));
    let mut wire = Wire::connect(&server.address());
    wire.send_body(ApiVersionsRequest::KEY, 99, 1, &[]);
    wire.read_frame().expect("an answer");
    assert!(
        !wire
            .call(1, &MetadataRequest::default().with_topics(None))
            .brokers
            .is_empty()
    );
    drop(wire);
    assert_eq!(
        warnings(&server).len(),
        cases.len(),
        "{:#?}",
        warnings(&server)
    );
}

#[test]
fn connections_over_the_limit_are_told_of_and_the_limit_can_change() {
    if foreign().is_some() {
        return;
    }
    for (setting, key) in [
        ("max.connections=3", "max.connections"),
        ("max.connections.per.ip=3", "max.connections.per.ip"),
    ] {
        let server = Server::with_settings(&[setting]);
        let all = MetadataRequest::default().with_topics(Some(vec![]));
        // The connection that waited for the start may take a place for a moment.
        let connect = || {
            wait_for("room for a connection", || {
                let mut wire = Wire::connect(&server.address());
                wire.try_call(1, &all).ok().map(|_| wire)
            })
        };
        let mut open = vec![connect(), connect(), connect()];
        let line = line_for(&server, || drop(send_until_closed(&server, &[])));
        let expected = format!("connection refused: 3 connections are open already ({key})");
        assert!(line.contains(&expected), "{line}");
        drop(open.pop());
        let mut third = connect();
        assert_eq!(super::configs::change(&mut third, (4, ""), 0, key, "2"), 0);
        drop(third);
        wait_for("the lower limit is in force", || {
            let mut wire = Wire::connect(&server.address());
            wire.try_call(1, &all).is_err().then_some(())
        });
        assert!(
            server
                .log()
                .contains(&format!("2 connections are open already ({key})"))
        );
    }
}

#[test]
fn lines_that_repeat_are_counted_instead() {
    if foreign().is_some() {
        return;
    }
    let mut server = Server::start();
    for _ in 0..40 {
        send_until_closed(&server, b"GET / HTTP/1.1\r\n\r\n");
    }
    assert!(server.terminate());
    let lines = warnings(&server);
    let written = lines
        .iter()
        .filter(|line| line.contains("the client speaks HTTP"))
        .count();
    let left_out: usize = lines
        .iter()
        .filter(|line| line.contains("more lines like the last ones were left out"))
        .map(|line| {
            let (before, _) = line.split_once(" more lines").expect("the count");
            let count = before.rsplit(' ').next().expect("a word");
            count.parse::<usize>().expect("a number")
        })
        .sum();
    assert_eq!(written + left_out, 40, "{lines:#?}");
    assert!((5..=20).contains(&written), "{lines:#?}");
}

#[test]
fn a_slow_request_says_where_its_time_went() {
    if foreign().is_some() {
        return;
    }
    let server = Server::with_settings(&[
        "slow.request.ms=300",
        "socket.send.buffer.bytes=16384",
        "message.max.bytes=10000000",
    ]);
    let mut wire = Wire::connect(&server.address());
    let topic = new_topic(&mut wire, 1, &[]);
    let batch = Batch::of(&[&"v".repeat(9_000_000)]);
    assert_eq!(produce(&mut wire, &topic, 0, &batch).error_code, 0);
    // Waiting that the client asked for is not slow.
    let end = Wanted {
        max_wait_ms: 700,
        min_bytes: 1,
        ..Wanted::from(1)
    };
    assert_eq!(fetch(&mut wire, &topic, 0, end).error_code, 0);
    let slow = |server: &Server| {
        let lines = warnings(server).into_iter();
        lines
            .filter(|line| line.contains("slow request"))
            .collect::<Vec<_>>()
    };
    assert!(
        slow(&server).iter().all(|line| !line.contains("Fetch")),
        "{:#?}",
        slow(&server)
    );
    let pending = send_fetch(&mut wire, &topic, 0, Wanted::from(0));
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(receive_fetch(&mut wire, pending).error_code, 0);
    let line = wait_for("the slow Fetch is logged", || {
        slow(&server)
            .into_iter()
            .find(|line| line.contains("api=\"Fetch\""))
    });
    for part in [
        "client=\"protocol-tests\"",
        "peer=127.0.0.1",
        "took_ms=",
        "slow.request.ms=300",
        "ms until the client took the answer; look at the network",
    ] {
        assert!(line.contains(part), "no {part:?} in {line}");
    }
}

#[test]
fn a_slow_disk_is_named() {
    if foreign().is_some() {
        return;
    }
    let server = Server::with_settings(&["slow.request.ms=300"]);
    let mut wire = Wire::connect(&server.address());
    let topic = new_topic(&mut wire, 1, &[]);
    let options = [
        "-e",
        "trace=fdatasync",
        "-e",
        "inject=fdatasync:delay_enter=600000",
    ];
    let output = server.data().join("../trace");
    let Some(mut strace) = protocol_tests::trace::attach(&server, &options, &output) else {
        println!("skipped: no strace here");
        return;
    };
    assert_eq!(
        produce(&mut wire, &topic, 0, &Batch::of(&["slow"])).error_code,
        0
    );
    let line = wait_for("the slow Produce is logged", || {
        let lines = warnings(&server).into_iter();
        lines
            .rev()
            .find(|line| line.contains("slow request") && line.contains("\"Produce\""))
    });
    assert!(line.contains("look at the disk"), "{line}");
    let stopped = Command::new("kill")
        .args(["-INT", &strace.id().to_string()])
        .status();
    assert!(stopped.is_ok_and(|status| status.success()));
    strace.wait().expect("strace ends");
}
