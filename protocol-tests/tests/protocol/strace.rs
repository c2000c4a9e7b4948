//! The server under `strace`: every acknowledgement leaves after an fdatasync that covers its bytes,
//! and an error of the device ends the process with nothing acknowledged behind it.
//!
//! Needs `strace` and the right to trace a process; `STRACE_REQUESTS` is the number of requests of
//! each client (60).

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::BytesMut;
use kafka_protocol::protocol::Encodable;
use protocol_tests::batch::{Batch, headers};
use protocol_tests::calls::*;
use protocol_tests::server::free_port;
use protocol_tests::trace::{self, attach};
use protocol_tests::wire::Wire;
use protocol_tests::{Server, foreign, wait_for};

const CLIENTS: i32 = 4;
const WRITERS: i32 = 24;
const LARGE_BATCHES: usize = 6;
const TRACED: &str = "trace=pwrite64,pwritev,pwritev2,fdatasync,fsync,write,writev,sendto,sendmsg";

fn mark(client: i32, number: i32) -> String {
    format!("mark-{client:02}-{number:06}!")
}

fn correlation_id(client: i32, number: i32) -> i32 {
    0x5a00_0000 + client * 100_000 + number
}

fn load(address: &str, topic: &str, client: i32, requests: i32) {
    let mut wire = Wire::connect(address);
    // Two requests under way at a time: an answer must not leave with the sync of another.
    for number in 0..requests + 1 {
        if number < requests {
            let batch = Batch::of(&[&mark(client, number)]).bytes();
            let acks = if number % 3 == 0 { 1 } else { -1 };
            let request = produce_request(topic, client, acks, batch);
            let mut body = BytesMut::new();
            request.encode(&mut body, 9).expect("encode");
            wire.send_body(0, 9, correlation_id(client, number), &body);
        }
        if number > 0 {
            let answer = wire.read_frame().expect("an answer");
            let id = correlation_id(client, number - 1).to_be_bytes();
            assert!(answer.starts_with(&id), "answers in order");
        }
    }
}

#[test]
fn every_acknowledgement_leaves_after_the_sync_that_covers_it() {
    if foreign().is_some() {
        return;
    }
    let requests = std::env::var("STRACE_REQUESTS")
        .ok()
        .and_then(|value| value.parse().ok())
        .unwrap_or(60);
    let server = Server::start();
    let topic = new_topic(&mut Wire::connect(&server.address()), CLIENTS, &[]);
    let output = server.data().join("../trace");
    let Some(mut strace) = attach(
        &server,
        &["-y", "-xx", "-s", "1000000", "-e", TRACED],
        &output,
    ) else {
        println!("skipped: no strace here");
        return;
    };
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (address, topic) = (server.address(), &topic);
            scope.spawn(move || load(&address, topic, client, requests));
        }
    });
    let stopped = Command::new("kill")
        .args(["-INT", &strace.id().to_string()])
        .status();
    assert!(stopped.is_ok_and(|status| status.success()));
    strace.wait().expect("strace ends");
    let text = fs::read(&output).expect("the trace");
    let calls = trace::calls(&String::from_utf8_lossy(&text));
    let count = |name: &str| calls.iter().filter(|call| call.name == name).count();
    println!(
        "{} requests, {} calls: {} fdatasync, {} pwrite64",
        CLIENTS * requests,
        calls.len(),
        count("fdatasync"),
        count("pwrite64")
    );
    let trace = trace::Trace::new(&calls, b"mark-", mark(0, 0).len());
    for client in 0..CLIENTS {
        for number in 0..requests {
            let mark = mark(client, number);
            let proof = trace.prove(mark.as_bytes(), correlation_id(client, number));
            assert!(proof.is_ok(), "{mark}: {proof:?}");
        }
    }
}

/// Produces until the connection breaks; the acknowledged offsets are 0 to the result less one.
fn produce_until_broken(address: &str, topic: &str) -> i64 {
    let mut wire = Wire::connect(address);
    let mut acknowledged = 0;
    loop {
        let batch = Batch::of(&[&format!("record {acknowledged}")]).bytes();
        let request = produce_request(topic, 0, -1, batch);
        let Ok(answer) = wire.try_call(9, &request) else {
            return acknowledged;
        };
        let answer = &answer.responses[0].partition_responses[0];
        assert_eq!((answer.error_code, answer.base_offset), (0, acknowledged));
        acknowledged += 1;
        assert!(acknowledged < 100_000, "the error was never met");
    }
}

#[test]
fn an_error_of_the_device_ends_the_process_and_takes_nothing_back() {
    if foreign().is_some() {
        return;
    }
    for fault in ["fdatasync:error=EIO:when=20", "pwrite64:error=EIO:when=30"] {
        let mut server = Server::start();
        let topic = new_topic(&mut Wire::connect(&server.address()), 1, &[]);
        let call = fault.split(':').next().unwrap_or_default();
        let options = [
            "-e",
            &format!("trace={call}"),
            "-e",
            &format!("inject={fault}"),
        ];
        let Some(mut strace) = attach(&server, &options, &server.data().join("../trace")) else {
            println!("skipped: no strace here");
            return;
        };
        let acknowledged = produce_until_broken(&server.address(), &topic);
        // It ends with its tracee.
        strace.wait().expect("strace ends");
        let log = server.log();
        assert!(
            log.contains("the process ends, what was acknowledged is safe"),
            "{log}"
        );
        server.kill();
        let (code, text) = server.verify(&[]);
        assert_eq!(code, 0, "{text}");
        server.start_again();
        let mut wire = Wire::connect(&server.address());
        let end = list_offsets(&mut wire, &topic, 0, -1).offset;
        println!("{fault}: {acknowledged} acknowledged, {end} there");
        // The one under way may be there or not.
        assert!((acknowledged..=acknowledged + 1).contains(&end));
    }
}

/// A sync that hangs: nothing is acknowledged, what is durable is served, clients are held at their
/// sockets, and the log and a metric say why. All of it goes on when the disk answers.
#[test]
fn a_stuck_sync_holds_writes_back_and_nothing_else() {
    if foreign().is_some() {
        return;
    }
    let server = Server::with_settings(&[
        &format!("admin.port={}", free_port()),
        "budget.tail.bytes=4194304",
        "budget.requests.bytes=4194304",
    ]);
    let mut wire = Wire::connect(&server.address());
    let topic = new_topic(&mut wire, WRITERS, &[]);
    assert_eq!(
        produce(&mut wire, &topic, 0, &Batch::of(&["before"])).error_code,
        0
    );
    let options = [
        "-e",
        "trace=fdatasync",
        "-e",
        "inject=fdatasync:delay_enter=9000000:when=1",
    ];
    let Some(mut strace) = attach(&server, &options, &server.data().join("../trace")) else {
        println!("skipped: no strace here");
        return;
    };
    let memory = server.resident_kib();
    let acknowledged = AtomicUsize::new(0);
    let value = "0123456789abcdef".repeat(30_000);
    let large = Batch::of(&[&value]).bytes();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (address, topic, large) = (server.address(), &topic, &large);
            let acknowledged = &acknowledged;
            scope.spawn(move || {
                let mut wire = Wire::connect(&address);
                for _ in 0..LARGE_BATCHES {
                    let answer = produce_bytes(&mut wire, 9, topic, writer, large.clone());
                    assert_eq!(answer.error_code, 0);
                    acknowledged.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        wait_for("the stuck sync to be told", || {
            server
                .log()
                .contains("the disk does not answer")
                .then_some(())
        });
        assert_eq!(
            acknowledged.load(Ordering::SeqCst),
            0,
            "nothing is acknowledged"
        );
        assert!(server.metric("journal_waiting_seconds") >= 5.0);
        assert_eq!(server.http("/readyz").0, 200, "reads are served");
        assert_eq!(describe_topic(&mut wire, &topic).error_code, 0);
        assert_eq!(
            list_offsets(&mut wire, &topic, 0, -1).offset,
            1,
            "what is durable"
        );
        let found = fetch(&mut wire, &topic, 0, Wanted::from(0));
        assert_eq!(headers(&found.records.unwrap_or_default()).len(), 1);
        let grown = server.resident_kib().saturating_sub(memory);
        println!("{grown} KiB more while {WRITERS} clients wait");
        assert!(grown < 64 << 10, "{grown} KiB");
    });
    let total = acknowledged.load(Ordering::SeqCst);
    assert_eq!(total, WRITERS as usize * LARGE_BATCHES);
    assert!(server.metric("journal_waiting_seconds") < 5.0);
    wait_for("the end to be told", || {
        server
            .log()
            .contains("the disk answers again")
            .then_some(())
    });
    let stopped = Command::new("kill")
        .args(["-INT", &strace.id().to_string()])
        .status();
    assert!(stopped.is_ok_and(|status| status.success()));
    strace.wait().expect("strace ends");
}
