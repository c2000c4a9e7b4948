//! A disk so small that it is full all the time: a tmpfs of limited size in a mount namespace. The
//! gateway refuses writes while it is full, takes deletions, and comes back by itself. Skipped with
//! a message where no such namespace can be made.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use protocol_tests::batch::{Batch, headers};
use protocol_tests::calls::*;
use protocol_tests::server::free_port;
use protocol_tests::wire::Wire;
use protocol_tests::{Server, foreign, wait_for};
use serde_json::{Value, json};

const KAFKA_STORAGE_ERROR: i16 = 56;
const MIB: usize = 1 << 20;
const DISK: usize = 160 * MIB;
const RESERVE: usize = 40 * MIB;

/// A mounted disk that is there as long as its holder lives; the holder ends with this process, as
/// its input does.
struct SmallDisk {
    holder: Child,
    folder: tempfile::TempDir,
}

impl SmallDisk {
    fn mount() -> Option<SmallDisk> {
        let folder = tempfile::tempdir().expect("temp dir");
        let script = format!(
            "mount -t tmpfs -o size={DISK} tmpfs '{}' && echo mounted && exec cat",
            folder.path().display()
        );
        let mut holder = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut line = String::new();
        let output = holder.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut line).ok()?;
        let disk = SmallDisk { holder, folder };
        // From outside the namespace; not every sandbox lets one look in.
        let seen = std::fs::create_dir(disk.path()).is_ok();
        (line == "mounted\n" && seen).then_some(disk)
    }

    fn path(&self) -> PathBuf {
        let inside = self.folder.path().strip_prefix("/").expect("from the root");
        let root = PathBuf::from(format!("/proc/{}/root", self.holder.id()));
        root.join(inside).join("data")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// A server on a small disk; its log has the reason if there can be none.
fn server() -> Option<(SmallDisk, Server)> {
    if foreign().is_some() {
        return None;
    }
    let Some(disk) = SmallDisk::mount() else {
        println!("skipped: no tmpfs can be mounted in a user namespace here");
        return None;
    };
    let server = Server::with_settings(&[
        &format!("log.dirs={}", disk.path().display()),
        &format!("admin.port={}", free_port()),
        "journal.file.bytes=16777216",
        "budget.tail.bytes=4194304",
        &format!("disk.reserve.bytes={RESERVE}"),
        "log.retention.check.interval.ms=1000",
    ]);
    Some((disk, server))
}

fn large() -> Bytes {
    let value = "0123456789abcdef".repeat(50_000);
    Batch::of(&[&value]).bytes()
}

/// Produces until writes are refused, and stay refused when the store has given back what it can.
/// How many batches were taken.
fn fill(server: &Server, wire: &mut Wire, topic: &str) -> i64 {
    let large = large();
    let mut taken = 0;
    while taken < 1000 {
        match produce_bytes(wire, 9, topic, 0, large.clone()).error_code {
            0 => taken += 1,
            KAFKA_STORAGE_ERROR if stays_full(server) => return taken,
            KAFKA_STORAGE_ERROR => {}
            other => panic!("error {other} after {taken} batches"),
        }
    }
    panic!("the disk never fills up");
}

/// Whether nothing changes any more while writes are refused, for longer than the store takes
/// between two looks.
fn stays_full(server: &Server) -> bool {
    let mut last = (0.0, Instant::now());
    wait_for("full or writable", || {
        let free = server.metric("disk_free_bytes");
        if server.metric("writable") == 1.0 {
            return Some(false);
        }
        if free != last.0 || server.metric("journal_live_files") > 1.0 {
            last = (free, Instant::now());
        }
        (last.1.elapsed() > Duration::from_secs(3)).then_some(true)
    })
}

fn await_writable(server: &Server, wire: &mut Wire, topic: &str) {
    wait_for("the disk to have room again", || {
        (server.metric("writable") == 1.0).then_some(())
    });
    let answer = produce(wire, topic, 0, &Batch::of(&["after"]));
    assert_eq!(answer.error_code, 0);
    let (body, is_ready, takes_writes) = readiness(server);
    assert!(is_ready && takes_writes, "{body}");
    assert_eq!(body, json!({ "status": "ready", "writable": true }));
}

/// What `/readyz` says, and whether it says so with 200, also to who asks for writes.
fn readiness(server: &Server) -> (Value, bool, bool) {
    let (code, text) = server.http("/readyz");
    let (code_for_writes, _) = server.http("/readyz?writes");
    let body = serde_json::from_str(&text).expect("JSON");
    (body, code == 200, code_for_writes == 200)
}

/// What is refused and what is not while the disk is full.
fn check_full(server: &Server, wire: &mut Wire, topic: &str, kept: i64) {
    let (body, is_ready, takes_writes) = readiness(server);
    assert!(is_ready && !takes_writes, "{body}");
    assert_eq!(
        (&body["status"], &body["writable"]),
        (&json!("ready"), &json!(false))
    );
    assert_eq!(body["full_directories"].as_array().map(Vec::len), Some(1));
    assert_eq!(create_topic(wire, "new", 1, &[]), KAFKA_STORAGE_ERROR);
    assert_eq!(create_topic(wire, topic, 1, &[]), 36, "it exists");
    assert_eq!(grow_topic(wire, topic, 2), KAFKA_STORAGE_ERROR);
    assert_eq!(list_offsets(wire, topic, 0, -1).offset, kept);
    let found = fetch(wire, topic, 0, Wanted::from(kept - 1));
    let records = found.records.unwrap_or_default();
    assert_eq!((found.error_code, headers(&records).len()), (0, 1));
}

#[test]
fn it_comes_back_after_deletions_also_after_a_kill() {
    let Some((_disk, mut server)) = server() else {
        return;
    };
    let mut wire = Wire::connect(&server.address());
    assert_eq!(create_topic(&mut wire, "a", 1, &[]), 0);
    assert_eq!(create_topic(&mut wire, "b", 1, &[]), 0);
    await_topic(&mut wire, "b", 1);

    let taken = fill(&server, &mut wire, "a");
    assert!(taken >= 60, "{taken} batches");
    check_full(&server, &mut wire, "a", taken);
    assert_eq!(delete_records(&mut wire, "a", 0, -1).0, 0);
    await_writable(&server, &mut wire, "a");

    let taken = fill(&server, &mut wire, "b");
    server.kill();
    server.start_again();
    let mut wire = Wire::connect(&server.address());
    // A start takes writes down to the reserve itself, not to an eighth more.
    let more = fill(&server, &mut wire, "b");
    assert!(
        more < taken / 3,
        "the disk is as full as it was: {more} more"
    );
    check_full(&server, &mut wire, "b", taken + more);
    assert_eq!(delete_topic(&mut wire, "b"), 0);
    await_writable(&server, &mut wire, "a");
    assert_eq!(create_topic(&mut wire, "new", 1, &[]), 0);
    assert_eq!(grow_topic(&mut wire, "a", 2), 0);

    // Writes and restarts go on with what the last deletion left.
    assert!(server.terminate());
    server.start_again();
    let mut wire = Wire::connect(&server.address());
    let answer = produce(&mut wire, "a", 1, &Batch::of(&["last"]));
    assert_eq!((answer.error_code, answer.base_offset), (0, 0));
}

/// What a topic keeps is small, and the journal of what it did not keep is larger than the disk.
#[test]
fn more_than_the_disk_holds_goes_through_a_topic_that_keeps_little() {
    let Some((_disk, server)) = server() else {
        return;
    };
    let mut wire = Wire::connect(&server.address());
    let keeps = [("retention.bytes", "2097152")];
    assert_eq!(create_topic(&mut wire, "a", 1, &keeps), 0);
    await_topic(&mut wire, "a", 1);
    let (mut sent, mut refused) = (0, 0);
    let large = large();
    while sent * large.len() < 2 * DISK {
        match produce_bytes(&mut wire, 9, "a", 0, large.clone()).error_code {
            0 => sent += 1,
            KAFKA_STORAGE_ERROR => {
                refused += 1;
                await_writable(&server, &mut wire, "a");
                sent += 1;
            }
            other => panic!("error {other}"),
        }
    }
    assert!(refused > 0, "the disk was never full");
    assert_eq!(list_offsets(&mut wire, "a", 0, -1).offset, sent as i64);
}

/// Takes what is left of the disk, to the last page.
fn take_the_rest(filler: &mut File) {
    for piece in [MIB, 4096] {
        let piece = vec![1; piece];
        while filler.write_all(&piece).is_ok() {}
    }
}

/// Others fill the disk, until the journal has no file to go on in. Nothing ends for it.
#[test]
fn a_disk_that_others_fill_to_the_last_byte_is_waited_for() {
    let Some((disk, mut server)) = server() else {
        return;
    };
    let mut wire = Wire::connect(&server.address());
    assert_eq!(create_topic(&mut wire, "a", 1, &[]), 0);
    await_topic(&mut wire, "a", 1);
    let thousand = Batch::of(&["x"; 1000]);
    for _ in 0..30 {
        assert_eq!(produce(&mut wire, "a", 0, &thousand).error_code, 0);
    }
    let path = disk.path().with_file_name("filler");
    let mut filler = File::create(&path).expect("a file beside the data");
    let stop = AtomicBool::new(false);
    let deleted = std::thread::scope(|scope| {
        let deleter = scope.spawn(|| {
            let mut wire = Wire::connect(&server.address());
            let mut deleted = 0;
            while !stop.load(Ordering::Relaxed) && deleted < 30_000 {
                deleted += 1;
                assert_eq!(delete_records(&mut wire, "a", 0, deleted), (0, deleted));
            }
            deleted
        });
        let stop = Ending(&stop);
        wait_for("the journal has no file to go on in", || {
            take_the_rest(&mut filler);
            server
                .log()
                .contains("the disk is full to the last byte")
                .then_some(())
        });
        assert_eq!(
            produce(&mut wire, "a", 0, &thousand).error_code,
            KAFKA_STORAGE_ERROR
        );
        let found = fetch(&mut wire, "a", 0, Wanted::from(29_999));
        assert_eq!((found.error_code, found.high_watermark), (0, 30_000));
        let (body, is_ready, takes_writes) = readiness(&server);
        assert!(is_ready && !takes_writes, "{body}");
        drop(stop);
        filler.set_len(0).expect("space again");
        deleter.join().expect("all were answered")
    });
    assert!(server.log().contains("the journal has space again"));
    await_writable(&server, &mut wire, "a");
    server.kill();
    server.start_again();
    let mut wire = Wire::connect(&server.address());
    assert_eq!(list_offsets(&mut wire, "a", 0, -2).offset, deleted);
    assert_eq!(list_offsets(&mut wire, "a", 0, -1).offset, 30_001);
}

/// Raises a flag when dropped, also when a test fails.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
