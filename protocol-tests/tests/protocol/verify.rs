//! `shardgate verify` on directories of a real server: it calls a good one clean, names the place
//! of every flipped byte, and changes nothing; the server serves what is not damaged.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use protocol_tests::batch::{Batch, headers};
use protocol_tests::calls::*;
use protocol_tests::golden;
use protocol_tests::server::{binary, free_port, verify};
use protocol_tests::wire::Wire;
use protocol_tests::{Server, foreign};

/// A directory with all kinds of files, which nobody uses.
fn directory() -> Server {
    directory_with(&[])
}

fn directory_with(more: &[&str]) -> Server {
    let settings = [
        golden::TIMELESS,
        more,
        &[
            "budget.tail.bytes=4194304",
            "checkpoint.interval.bytes=1048576",
        ],
    ];
    let mut server = Server::calm(&settings.concat());
    let mut wire = Wire::connect(&server.address());
    assert_eq!(
        create_topic(&mut wire, "bulk", 3, &[("retention.ms", "-1")]),
        0
    );
    await_topic(&mut wire, "bulk", 3);
    let large = "0123456789abcdef".repeat(2000);
    for index in 0..240 {
        let batch = Batch::of(&[&large, &large]);
        assert_eq!(produce(&mut wire, "bulk", index % 3, &batch).error_code, 0);
    }
    golden::fill(&mut server);
    server
}

fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        match entry.path() {
            path if path.is_dir() => found.extend(files(&path)),
            path => found.push((path.clone(), fs::read(&path).expect("a file"))),
        }
    }
    found.sort();
    found
}

fn in_folder(data: &Path, folder: &str, prefix: &str) -> Vec<PathBuf> {
    let all = files(&data.join(folder)).into_iter().map(|file| file.0);
    let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    all.filter(|path| name(path).starts_with(prefix)).collect()
}

/// Flips a bit while `check` runs.
fn with_flip(path: &Path, at: usize, check: impl FnOnce()) {
    let good = fs::read(path).expect("a file");
    let mut bad = good.clone();
    bad[at] ^= 0x10;
    fs::write(path, &bad).expect("write");
    check();
    fs::write(path, &good).expect("write");
}

/// Place, number and entries of each group in a journal file.
fn groups(bytes: &[u8]) -> Vec<(usize, u64, u32)> {
    let number = |at: usize| u64::from_le_bytes(bytes[at + 32..at + 40].try_into().unwrap());
    let entries = |at: usize| u32::from_le_bytes(bytes[at + 64..at + 68].try_into().unwrap());
    (0..bytes.len())
        .step_by(4096)
        .filter(|at| bytes[*at..].starts_with(b"SGJL"))
        .map(|at| (at, number(at), entries(at)))
        .collect()
}

#[test]
fn a_good_directory_is_clean_and_stays_as_it_was() {
    if foreign().is_some() {
        return;
    }
    let mut server = directory();
    let before = files(&server.data());
    let (code, text) = verify(&server.data(), &[]);
    assert!(code == 0 && text.contains("clean"), "{code} {text}");
    let (code, json) = verify(&server.data(), &["--json"]);
    assert!(
        code == 0 && json.contains("\"damage\": []"),
        "{code} {json}"
    );
    assert!(files(&server.data()) == before, "verify changed something");

    // As a crash leaves them: written whole or in part, and in no list yet.
    let segment = in_folder(&server.data(), "segments", "").remove(0);
    let whole = fs::read(&segment).expect("a file");
    for (name, bytes) in [("9000", &whole[..]), ("9001", &whole[..whole.len() / 2])] {
        let path = segment.with_file_name(format!("{name:0>20}.seg"));
        fs::write(&path, bytes).expect("write");
        let (code, text) = verify(&server.data(), &[]);
        let notes: Vec<&str> = text.lines().filter(|line| line.contains(name)).collect();
        let told = matches!(notes[..], [note] if note.contains("the next start removes it"));
        assert!(code == 0 && told, "{code} {text}");
        fs::remove_file(&path).expect("remove");
    }

    let empty = server.data().join("checkpoint");
    assert_eq!(verify(&empty, &[]).0, 2, "not a data directory");
    server.start_again();
    let (code, text) = verify(&server.data(), &[]);
    assert!(code == 2 && text.contains("in use"), "{code} {text}");
    golden::check(&server.address());
}

#[test]
fn a_flipped_byte_in_any_kind_of_file_is_named() {
    if foreign().is_some() {
        return;
    }
    let server = directory();
    let data = server.data();
    let damaged = |path: &Path, at: usize| {
        with_flip(path, at, || {
            let (code, text) = verify(&data, &["--json"]);
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            assert!(
                code == 1 && text.contains(&name),
                "{name} at {at}: {code} {text}"
            );
        });
    };
    damaged(&data.join("format"), 40);
    for root in in_folder(&data, "checkpoint", "root-") {
        damaged(&root, 17);
        damaged(&root, 45);
    }
    for section in in_folder(&data, "checkpoint", "section-").iter().take(3) {
        damaged(section, 40);
    }
    let segments = in_folder(&data, "segments", "");
    assert!(segments.len() >= 2, "{segments:?}");
    for segment in [&segments[0], &segments[segments.len() - 1]] {
        let length = fs::metadata(segment).unwrap().len() as usize;
        for at in [12, 40, length / 2, length - 60, length - 20] {
            damaged(segment, at);
        }
    }
    for journal in in_folder(&data, "journal", "") {
        let all = groups(&fs::read(&journal).unwrap());
        let Some(last) = all.iter().filter(|group| group.2 > 0).max_by_key(|g| g.1) else {
            continue;
        };
        for at in [33, 96 + 2, 96 + 40] {
            damaged(&journal, last.0 + at);
        }
        with_flip(&journal, last.0 + 96 + 40, || {
            let (ended, text) = start_fails(&data);
            assert!(
                ended && text.contains("Acknowledged entries are affected"),
                "{text}"
            );
        });
        // What nobody knew as synced is a torn tail: no damage.
        let end = all.iter().max_by_key(|group| group.1).unwrap();
        if end.2 == 0 {
            with_flip(&journal, end.0 + 33, || {
                let (code, text) = verify(&data, &[]);
                assert!(code == 0, "{code} {text}");
            });
        }
    }
}

/// Starts a server that must refuse to serve; whether it did, and what it said.
fn start_fails(data: &Path) -> (bool, String) {
    let port = free_port();
    let mut command = Command::new(binary());
    command.args(["--set", "admin.port=0", "--set"]);
    command.arg(format!("listeners=PLAINTEXT://127.0.0.1:{port}"));
    command
        .arg("--set")
        .arg(format!("log.dirs={}", data.display()));
    let output = command.output().expect("run the server");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code() == Some(1), text)
}

#[test]
fn damage_in_a_segment_file_costs_its_records_only() {
    if foreign().is_some() {
        return;
    }
    let mut server = directory();
    let segments = in_folder(&server.data(), "segments", "");
    let victim = segments
        .iter()
        .max_by_key(|path| fs::metadata(path).unwrap().len())
        .unwrap();
    let mut bytes = fs::read(victim).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    // The base offset of the first batch, which the batch's own checksum does not cover.
    bytes[32 + 7] ^= 1;
    fs::write(victim, &bytes).unwrap();
    let (code, text) = verify(&server.data(), &[]);
    assert!(code == 1 && text.contains("of bulk-"), "{code} {text}");
    assert!(text.contains("2 things are damaged"), "{text}");

    server.start_again();
    golden::check(&server.address());
    let mut wire = Wire::connect(&server.address());
    let (mut served, mut refused) = (0, Vec::new());
    for partition in 0..3 {
        let end = list_offsets(&mut wire, "bulk", partition, -1).offset;
        let mut offset = 0;
        while offset < end {
            let found = fetch(&mut wire, "bulk", partition, Wanted::from(offset));
            let batches = headers(&found.records.unwrap_or_default());
            if found.error_code == 56 {
                refused.push((partition, offset));
                offset += 1;
                continue;
            }
            assert_eq!(found.error_code, 0, "bulk-{partition} at {offset}");
            assert!(batches.iter().all(|batch| batch.intact));
            served += batches.iter().map(|b| i64::from(b.count)).sum::<i64>();
            offset = batches.last().expect("records below the end").last_offset + 1;
        }
    }
    assert!(refused.len() >= 2 && refused.len() <= 12, "{refused:?}");
    assert_eq!(
        served + refused.len() as i64,
        480,
        "everything else is served"
    );
}

#[test]
fn any_one_damaged_file_of_the_checkpoint_costs_nothing() {
    if foreign().is_some() {
        return;
    }
    let admin = format!("admin.port={}", free_port());
    let mut server = directory_with(&[&admin]);
    let roots = in_folder(&server.data(), "checkpoint", "root-");
    let newest = roots.last().expect("a root");
    let mut went_back = 0;
    for path in in_folder(&server.data(), "checkpoint", "") {
        let copy = server.data().with_file_name("copy");
        golden::copy_whole(&server.data(), &copy);
        let mut bytes = fs::read(&path).unwrap();
        bytes[30] ^= 0x10;
        fs::write(&path, &bytes).unwrap();
        server.start_again();
        golden::check(&server.address());
        let mut wire = Wire::connect(&server.address());
        for partition in 0..3 {
            assert_eq!(list_offsets(&mut wire, "bulk", partition, -1).offset, 160);
        }
        let met = server.metric("checkpoint_files_damaged_total");
        assert!(met >= f64::from(u8::from(path == *newest)), "{met}");
        went_back += met as u32;
        // The next checkpoints mend it.
        assert!(server.terminate());
        server.start_again();
        assert!(server.terminate());
        let (code, text) = server.verify(&[]);
        assert_eq!(code, 0, "{text}");
        fs::remove_dir_all(server.data()).unwrap();
        fs::rename(&copy, server.data()).unwrap();
    }
    assert!(went_back >= 3, "the newest root and its sections");
    assert!(server.log().contains("a checkpoint file is damaged"));
}
