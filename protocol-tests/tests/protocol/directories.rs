//! A node with several data directories.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kafka_protocol::messages::DescribeLogDirsRequest;
use protocol_tests::batch::Batch;
use protocol_tests::calls::*;
use protocol_tests::server::{binary, verify};
use protocol_tests::trace::{attach, detach, slow_journal};
use protocol_tests::wire::Wire;
use protocol_tests::{Server, client, wait_for};

/// Relative to the server's working directory; the first is [`Server::data`].
const TWO: &[&str] = &["log.dirs=data,second", "shard.count=2"];

/// A topic of four partitions, of which the first two live in the first directory.
fn topic_in_both(server: &Server) -> String {
    new_topic(&mut Wire::connect(&server.address()), 4, &[])
}

/// What a start on these directories says before it ends.
fn refused(server: &Server, setting: &str) -> String {
    let mut command = Command::new(binary());
    command.args([
        "--set",
        "listeners=PLAINTEXT://127.0.0.1:0",
        "--set",
        "admin.port=0",
    ]);
    let output = command
        .args(["--set", setting])
        .current_dir(server.data().join(".."));
    let output = output.output().expect("a start");
    assert_eq!(output.status.code(), Some(1), "{setting}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn store_id(directory: &Path) -> String {
    let format = fs::read_to_string(directory.join("format")).expect("a format file");
    let line = format
        .lines()
        .find_map(|line| line.strip_prefix("store.id="));
    line.expect("a store id").to_owned()
}

#[test]
fn records_of_both_directories_survive_kills_and_verify_checks_both() {
    let mut server = Server::calm(TWO);
    let topic = topic_in_both(&server);
    for round in 0..3 {
        let mut wire = Wire::connect(&server.address());
        for partition in 0..4 {
            for n in 0..20 {
                let value = format!("{partition} {}", round * 20 + n);
                let answer = produce(&mut wire, &topic, partition, &Batch::of(&[&value]));
                assert_eq!((answer.error_code, answer.base_offset), (0, round * 20 + n));
            }
        }
        server.kill();
        server.start_again();
        for partition in 0..4 {
            let count = (round as usize + 1) * 20;
            let records = client::read_partition(&server.address(), &topic, partition, 0, count);
            for (n, record) in records.iter().enumerate() {
                assert_eq!(record.value, format!("{partition} {n}").as_bytes());
            }
        }
    }
    assert!(server.terminate());
    let (code, text) = server.verify(&[]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("1 topics, 4 partitions"), "{text}");
    let journal = server.data().with_file_name("second").join("segments");
    let segment = fs::read_dir(journal).expect("segments").flatten().next();
    let segment = segment.expect("the stop flushed").path();
    let mut bytes = fs::read(&segment).expect("a file");
    bytes[40] ^= 1;
    fs::write(&segment, bytes).expect("written");
    let (code, text) = server.verify(&[]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("second/segments/"), "{text}");

    server.start_again();
    let (code, text) = wait_for("the gateway is ready", || {
        let answer = server.verify(&["--live", "--deep", "--admin", &server.admin_address()]);
        (!answer.1.contains("is not ready yet")).then_some(answer)
    });
    assert!(
        code == 1 && text.contains(&format!(" of {topic}-")),
        "{text}"
    );
    let mut wire = Wire::connect(&server.address());
    let answers = [2, 3].map(|p| fetch(&mut wire, &topic, p, Wanted::from(0)).error_code);
    assert!(answers.contains(&56), "{answers:?}");
    let log = server.log();
    let line = log.lines().find(|line| line.contains("cannot be served"));
    let line = line.expect("a line about the damage");
    assert!(
        line.contains(&format!("{topic:?}")) && line.contains("\"second\""),
        "{line}"
    );
}

#[test]
fn log_dirs_are_described_with_the_partitions_that_live_in_each() {
    let mut server = Server::calm(TWO);
    let topic = topic_in_both(&server);
    let described = |server: &Server| {
        let request = DescribeLogDirsRequest::default().with_topics(None);
        let answer = Wire::connect(&server.address()).call(4, &request);
        let results = answer.results.into_iter().map(|result| {
            assert!(result.total_bytes > 0);
            let topics = result
                .topics
                .into_iter()
                .filter(|t| t.name.as_str() == topic);
            let partitions = topics.flat_map(|topic| topic.partitions);
            let mut partitions: Vec<i32> = partitions.map(|p| p.partition_index).collect();
            partitions.sort_unstable();
            (result.log_dir.to_string(), partitions)
        });
        results.collect::<Vec<_>>()
    };
    let place = |name: &str, partitions: [i32; 2]| (name.to_owned(), partitions.to_vec());
    assert_eq!(
        described(&server),
        [place("data", [0, 1]), place("second", [2, 3])]
    );
    server.set("describe.log.dirs.shards=true");
    assert!(server.terminate());
    server.start_again();
    assert_eq!(
        described(&server),
        [
            place("data/shards/1", [0, 1]),
            place("second/shards/2", [2, 3])
        ]
    );
}

/// Runs `shardgate shards` against a server, in its first data directory: exit code and everything
/// it printed.
fn shards(server: &Server, arguments: &[&str]) -> (i32, String) {
    wait_for("the gateway is ready", || {
        let mut command = Command::new(binary());
        let data = format!("log.dirs={}", server.data().display());
        command.args(["--set", &data]).args(["shards", "--admin"]);
        command.current_dir(server.data());
        command.arg(server.admin_address()).args(arguments);
        let output = command.output().expect("run shards");
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        let ready = !text.contains("is not ready yet");
        ready.then(|| (output.status.code().unwrap_or(-1), text))
    })
}

/// How a disk is emptied and taken out.
#[test]
fn a_directory_whose_shards_were_moved_out_may_be_taken_out() {
    let mut server = Server::calm(TWO);
    let topic = topic_in_both(&server);
    let mut wire = Wire::connect(&server.address());
    for partition in 0..4 {
        let answer = produce(&mut wire, &topic, partition, &Batch::of(&["before"]));
        assert_eq!(answer.error_code, 0);
    }
    let json = |server: &Server, arguments: &[&str]| {
        let (code, text) = shards(server, &[&["--json"], arguments].concat());
        assert_eq!(code, 0, "{text}");
        serde_json::from_str::<serde_json::Value>(&text).expect("JSON")
    };
    let change = ["move", topic.as_str(), "2", "--to", "data"];
    let planned = json(&server, &[&change[..], &["--dry-run"]].concat());
    assert_eq!(
        (&planned["dry_run"], &planned["epoch"]),
        (&true.into(), &2.into())
    );
    assert_eq!(planned["before"][0]["now"]["directory"], "second");
    assert_eq!(planned["after"][0]["now"]["directory"], "data");
    // A path is one from where the caller stands.
    let path = ["move", &topic, "2", "--to", ".", "--dry-run"];
    let planned = json(&server, &path);
    assert_eq!(planned["after"][0]["now"]["directory"], "data");
    let list = json(&server, &["list", &topic]);
    assert_eq!(list["epoch"], 1, "nothing was done");
    let (code, text) = shards(&server, &["move", &topic, "2", "--to", "nowhere"]);
    assert_ne!(code, 0);
    assert!(text.contains("log.dirs has data, second"), "{text}");
    let moved = json(&server, &change);
    assert_eq!(
        (&moved["repeated"], &moved["epoch"]),
        (&false.into(), &2.into())
    );
    let (_, lineage) = shards(&server, &["lineage", &topic]);
    assert!(lineage.contains("moved 2 into 3 in data\n"), "{lineage}");
    let again = json(&server, &change);
    assert_eq!(
        (&again["repeated"], &again["epoch"]),
        (&true.into(), &2.into())
    );
    assert_eq!(again["after"][0]["id"], moved["after"][0]["id"]);
    for done in [&moved, &again] {
        let after = &done["after"][0];
        assert_eq!(after["now"]["directory"], "data", "{done}");
        assert!(!done["verdict"].to_string().contains("would"), "{done}");
    }
    for partition in 0..4 {
        let answer = produce(&mut wire, &topic, partition, &Batch::of(&["after"]));
        assert_eq!((answer.error_code, answer.base_offset), (0, 1));
    }
    // A copy of all that the directory held is made in the background.
    wait_for("nothing is left there", || {
        let list = json(&server, &["list", &topic]);
        let shards = list["shards"].as_array().expect("shards").clone();
        let home = |shard: &serde_json::Value| shard["now"]["directory"] == "data";
        let whole = |shard: &serde_json::Value| shard["now"].get("bytes_elsewhere").is_none();
        shards
            .iter()
            .all(|shard| home(shard) && whole(shard))
            .then_some(())
    });
    assert!(server.terminate());
    server.set("log.dirs=data");
    server.start_again();
    let address = server.address();
    for partition in 0..4 {
        let records = client::read_partition(&address, &topic, partition, 0, 2);
        let values: Vec<_> = records.iter().map(|record| &record.value[..]).collect();
        assert_eq!(values, [&b"before"[..], b"after"]);
    }
    assert!(server.terminate());
    let (code, text) = server.verify(&[]);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn directories_that_do_not_belong_together_are_refused_in_words() {
    let mut server = Server::calm(TWO);
    let topic = topic_in_both(&server);
    assert!(server.terminate());
    let said = refused(&server, "log.dirs=data");
    let second = server.data().with_file_name("second");
    assert!(
        said.contains(&topic) && said.contains(&store_id(&second)),
        "{said}"
    );
    let (code, text) = verify(&server.data(), &[]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains(&store_id(&second)), "{text}");
    let said = refused(&server, "log.dirs=data,second,data/../second");
    assert!(said.contains("is the same directory as second"), "{said}");

    let said = refused(&server, "log.dirs=second,data");
    assert!(said.contains(&store_id(&server.data())), "{said}");
    // Disks that are not mounted: empty folders stand in their places.
    let said = refused(&server, "log.dirs=empty,second");
    assert!(
        said.contains("data directory empty: it is empty")
            && said.contains(&store_id(&server.data())),
        "{said}"
    );
    let empty = server.data().with_file_name("empty");
    assert_eq!(fs::read_dir(&empty).map(Iterator::count).ok(), Some(0));
    let said = refused(&server, "log.dirs=data,unmounted");
    assert!(said.contains("unmounted holds no shard"), "{said}");
    let unmounted = server.data().with_file_name("unmounted");
    assert_eq!(fs::read_dir(&unmounted).map(Iterator::count).ok(), Some(0));

    let mut stranger = Server::calm(&[]);
    assert!(stranger.terminate());
    let setting = format!("log.dirs=data,{}", stranger.data().display());
    let said = refused(&server, &setting);
    assert!(said.contains("belongs to another node"), "{said}");
    let (code, text) = verify(&server.data(), &["--set", &format!("{setting},second")]);
    assert_eq!(code, 2, "{text}");

    server.start_again();
    assert!(server.terminate());
    server.set("log.dirs=data,second,third");
    server.start_again();
    let mut wire = Wire::connect(&server.address());
    assert_eq!(create_topic(&mut wire, "more", 1, &[]), 0);
    await_topic(&mut wire, "more", 1);
    assert_eq!(
        produce(&mut wire, "more", 0, &Batch::of(&["x"])).error_code,
        0
    );
    assert!(
        server
            .data()
            .with_file_name("third")
            .join("format")
            .exists()
    );
}

fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    let status = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(status.expect("cp").success());
}

/// A copy of one disk from yesterday beside another one from today would serve topics without
/// acknowledged records.
#[test]
fn an_older_copy_of_one_directory_is_refused_by_a_start_and_by_verify() {
    let mut server = Server::calm(TWO);
    let topic = topic_in_both(&server);
    let fill = |server: &Server| {
        let mut wire = Wire::connect(&server.address());
        for partition in 0..4 {
            let answer = produce(&mut wire, &topic, partition, &Batch::of(&["x"]));
            assert_eq!(answer.error_code, 0);
        }
    };
    let places = ["data", "second"].map(|name| server.data().with_file_name(name));
    let [old, new] = ["old", "new"].map(|time| {
        ["data", "second"].map(|name| server.data().with_file_name(format!("{name}.{time}")))
    });
    fill(&server);
    assert!(server.terminate());
    for (place, copied) in places.iter().zip(&old) {
        copy(place, copied);
    }
    server.start_again();
    fill(&server);
    assert!(server.terminate());
    for (place, copied) in places.iter().zip(&new) {
        copy(place, copied);
    }
    for stale in [0, 1] {
        for (at, place) in places.iter().enumerate() {
            let copied = if at == stale { &old[at] } else { &new[at] };
            copy(copied, place);
        }
        let said = refused(&server, TWO[0]);
        let name = ["data", "second"][stale];
        let line = format!("data directory {name} is an older copy than");
        assert!(said.contains(&line), "{said}");
        let (code, text) = server.verify(&[]);
        assert!(
            code == 1 && text.contains("is an older copy than"),
            "{text}"
        );
    }
    for (place, copied) in places.iter().zip(&new) {
        copy(copied, place);
    }
    server.start_again();
    for partition in 0..4 {
        let records = client::read_partition(&server.address(), &topic, partition, 0, 2);
        assert_eq!(records.len(), 2);
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Nothing that goes to one directory waits for the device of another.
#[test]
fn a_slow_device_slows_its_own_directory_only() {
    let server = Server::calm(TWO);
    let topic = topic_in_both(&server);
    let options = slow_journal(&server.data().with_file_name("second"), 40_000);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let output = server.data().with_file_name("trace");
    let Some(strace) = attach(&server, &options, &output) else {
        println!("skipped: no strace here");
        return;
    };
    let produce_until = |partition: i32, done: &dyn Fn(usize) -> bool| {
        let mut wire = Wire::connect(&server.address());
        let mut times = Vec::new();
        while !done(times.len()) {
            let started = Instant::now();
            let answer = produce(&mut wire, &topic, partition, &Batch::of(&["x"]));
            assert_eq!(answer.error_code, 0);
            times.push(started.elapsed());
        }
        median(times)
    };
    let over = AtomicBool::new(false);
    let (slow, fast) = std::thread::scope(|scope| {
        let fast = scope.spawn(|| produce_until(0, &|_| over.load(Ordering::Relaxed)));
        let slow = produce_until(3, &|count| count == 25);
        over.store(true, Ordering::Relaxed);
        (slow, fast.join().expect("the other directory"))
    });
    detach(strace);
    println!("median of the slowed directory {slow:?}, of the other {fast:?}");
    assert!(
        slow >= Duration::from_millis(40),
        "{slow:?}: nothing was slowed"
    );
    assert!(fast < slow / 2, "{fast:?} beside {slow:?}");
}

/// Of so many partitions few epochs stay in memory.
#[test]
fn a_move_is_answered_as_it_was_then_when_only_the_disk_knows_it() {
    let server = Server::calm(&[TWO, &["shard.count=1"]].concat());
    let topic = new_topic(&mut Wire::connect(&server.address()), 9_999, &[]);
    let json = |arguments: &[&str]| {
        let (code, text) = shards(&server, &[&["--json"], arguments].concat());
        assert_eq!(code, 0, "{text}");
        serde_json::from_str::<serde_json::Value>(&text).expect("JSON")
    };
    let list = json(&["list", &topic]);
    let shard = &list["shards"][0];
    let first = shard["id"].to_string();
    let (mut to, mut other) = ("second", "data");
    if shard["now"]["directory"] == to {
        (to, other) = (other, to);
    }
    let change = ["move", &topic, &first, "--to", to];
    let moved = json(&change);
    let mut last = moved["after"][0]["id"].to_string();
    for round in 0..12 {
        let to = if round % 2 == 0 { other } else { to };
        let moved = json(&["move", &topic, &last, "--to", to]);
        assert_eq!(moved["repeated"], false);
        last = moved["after"][0]["id"].to_string();
    }
    let lineage = json(&["lineage", &topic]);
    assert!(lineage["epochs"][0]["epoch"].as_u64() > Some(2));
    for how in [&[][..], &["--dry-run"]] {
        let again = json(&[&change[..], how].concat());
        assert_eq!(again["repeated"], true);
        assert_eq!(again["epoch"], moved["epoch"]);
        assert_eq!(again["after"][0]["id"], moved["after"][0]["id"]);
    }
    let (code, text) = shards(&server, &["move", &topic, &first, "--to", other]);
    assert!(code == 1 && text.contains("sealed since"), "{text}");
    let there = json(&["move", &topic, &last, "--to", to, "--dry-run"]);
    assert_eq!(there["repeated"], true);
    assert_eq!(there["after"][0]["id"].to_string(), last);
}
