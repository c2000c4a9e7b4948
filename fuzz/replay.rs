//! Every file of the kept corpus through its fuzz target, in a plain test.

#[path = "src/lib.rs"]
mod targets;

use std::fs;
use std::path::{Path, PathBuf};

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(target)
}

#[test]
fn the_kept_corpus_passes() {
    for (name, target) in targets::TARGETS {
        let (mut files, mut deep) = (0, 0);
        for entry in fs::read_dir(corpus(name)).expect("a corpus").flatten() {
            let bytes = fs::read(entry.path()).expect("a file of the corpus");
            files += 1;
            deep += usize::from(target(&bytes));
        }
        println!("{name}: {files} files, {deep} past the checksums");
        assert!(
            deep > 0,
            "no file of the corpus of {name} gets to the heart of it"
        );
    }
}

/// CI builds no libFuzzer, so what stands between it and a target is compared as text.
#[test]
fn every_target_has_its_program() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).expect("a manifest");
    for (name, _) in targets::TARGETS {
        let program = fs::read_to_string(folder.join(format!("fuzz_targets/{name}.rs")));
        let expected = format!(
            "#![no_main]\n\nlibfuzzer_sys::fuzz_target!(|data: &[u8]| {{\n    \
             shardgate_fuzz::{name}(data);\n}});\n"
        );
        assert_eq!(program.expect("a program"), expected);
        let entry = format!("[[bin]]\nname = \"{name}\"\npath = \"fuzz_targets/{name}.rs\"\n");
        assert!(
            manifest.contains(&entry),
            "{name} is not in fuzz/Cargo.toml"
        );
    }
    let programs = fs::read_dir(folder.join("fuzz_targets")).expect("programs");
    assert_eq!(programs.count(), targets::TARGETS.len());
}

/// The first files of the corpora, out of the golden store and our own encoders.
#[test]
#[ignore = "writes files of the corpora"]
fn write_seeds() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("protocol-tests/golden/v1");
    let read = |name: &str| fs::read(golden.join(name)).expect("a file of the golden store");
    let journal = read("journal/00000001.log");
    let pieces: Vec<&[u8]> = groups(&journal);
    for count in [1, 3, 6, 10, 20] {
        seed(
            "journal_replay",
            count,
            &[vec![0], pieces_of(&pieces[..count])].concat(),
        );
    }
    seed(
        "journal_replay",
        99,
        &[vec![1], pieces_of(&pieces[..8])].concat(),
    );
    let split = [
        pieces_of(&pieces[..4]),
        vec![0, 0],
        pieces_of(&pieces[4..9]),
    ]
    .concat();
    seed("journal_replay", 98, &[vec![0], split].concat());

    for n in 1..=2 {
        let name = format!("segments/{n:020}.seg");
        let file = read(&name);
        seed("segment_footer", n, &[vec![0], file].concat());
        let sections = ["0000000000", "2147483648"]
            .map(|slot| read(&format!("checkpoint/section-{slot}-{n:020}")));
        let root = read(&format!("checkpoint/root-{n:020}"));
        let mut files = vec![&root[..]];
        files.extend(sections.iter().map(|s| &s[..]));
        // The low bit of a row's first byte says that the slot is one of the catalog's.
        let mut root = root.clone();
        (root[40], root[60]) = (0, 1);
        files[0] = &root;
        seed("checkpoint", n, &[vec![0], pieces_of(&files)].concat());
    }
    let mut batches = 0;
    for group in &pieces {
        for batch in entries(group).into_iter().filter(|entry| entry.0 == 1) {
            batches += 1;
            if batches % 8 == 1 {
                let mut batch = batch.1.to_vec();
                batch[..8].fill(0);
                seed("record_batch", batches, &[vec![0], batch].concat());
            }
        }
    }
    seeds_of_requests();
    seeds_of_groups();
}

fn seed(target: &str, number: usize, bytes: &[u8]) {
    fs::create_dir_all(corpus(target)).expect("a folder");
    fs::write(corpus(target).join(format!("seed-{number:03}")), bytes).expect("a seed");
}

/// The groups of a journal file, without their padding.
fn groups(journal: &[u8]) -> Vec<&[u8]> {
    let length = |at: usize| u32::from_le_bytes(journal[at + 68..at + 72].try_into().unwrap());
    (0..journal.len())
        .step_by(4096)
        .filter(|at| journal[*at..].starts_with(b"SGJL"))
        .map(|at| &journal[at..at + 96 + length(at) as usize])
        .collect()
}

/// Kind and payload of a group's entries.
fn entries(group: &[u8]) -> Vec<(u8, &[u8])> {
    let (mut at, mut found) = (96, Vec::new());
    while at + 16 <= group.len() {
        let length = u32::from_le_bytes(group[at + 12..at + 16].try_into().unwrap()) as usize;
        found.push((group[at], &group[at + 16..at + 16 + length]));
        at += 16 + length;
    }
    found
}

fn pieces_of(pieces: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in pieces {
        out.extend_from_slice(&(piece.len() as u16).to_le_bytes());
        out.extend_from_slice(piece);
    }
    out
}

/// Each API with the default request of its first and last version, as a frame and as a body.
fn seeds_of_requests() {
    use bytes::BytesMut;
    use kafka_protocol::messages as m;
    use kafka_protocol::protocol::Encodable;
    use shardgate::protocol::api::ROWS;
    macro_rules! bodies {
        ($($key:literal $request:ident),* $(,)?) => {
            |key: i16, version: i16| {
                let mut body = BytesMut::new();
                let done = match key {
                    $($key => m::$request::default().encode(&mut body, version).is_ok(),)*
                    _ => false,
                };
                done.then_some(body)
            }
        };
    }
    let bodies = bodies!(
        0 ProduceRequest, 1 FetchRequest, 2 ListOffsetsRequest, 3 MetadataRequest,
        8 OffsetCommitRequest, 9 OffsetFetchRequest, 10 FindCoordinatorRequest,
        11 JoinGroupRequest, 12 HeartbeatRequest, 13 LeaveGroupRequest, 14 SyncGroupRequest,
        15 DescribeGroupsRequest, 16 ListGroupsRequest, 18 ApiVersionsRequest,
        19 CreateTopicsRequest, 20 DeleteTopicsRequest, 21 DeleteRecordsRequest,
        22 InitProducerIdRequest, 23 OffsetForLeaderEpochRequest, 32 DescribeConfigsRequest,
        33 AlterConfigsRequest, 35 DescribeLogDirsRequest, 37 CreatePartitionsRequest,
        42 DeleteGroupsRequest, 44 IncrementalAlterConfigsRequest, 47 OffsetDeleteRequest, 60 DescribeClusterRequest,
        75 DescribeTopicPartitionsRequest,
    );
    for (index, row) in ROWS.iter().enumerate() {
        for version in [row.decode_min, row.max] {
            let Some(body) = bodies(row.key, version) else {
                continue;
            };
            let number = index * 100 + version as usize;
            let nth = (version - row.decode_min) as u8;
            seed("guard", number, &[&[index as u8, nth], &body[..]].concat());
            let mut frame = BytesMut::new();
            m::RequestHeader::default()
                .with_request_api_key(row.key)
                .with_request_api_version(version)
                .encode(&mut frame, row.api.request_header_version(version))
                .expect("a header");
            frame.extend_from_slice(&body);
            seed("frame", number, &frame);
        }
    }
}

fn seeds_of_groups() {
    use shardgate::coordinator::group::record::{Commit, GroupMetadata, Record};
    let commit = Commit {
        offset: 42,
        leader_epoch: 3,
        metadata: "metadata".into(),
        commit_ms: 1_700_000_000_000,
        expire_ms: Some(1_700_000_100_000),
        topic_id: uuid::Uuid::from_u128(9),
    };
    let records = [
        Record::Offset {
            group: "g".into(),
            topic: "t".into(),
            partition: 1,
            value: Some(commit),
        },
        Record::Offset {
            group: "g".into(),
            topic: "t".into(),
            partition: 2,
            value: None,
        },
        Record::Group {
            group: "g".into(),
            value: Some(std::sync::Arc::new(GroupMetadata::default())),
        },
        Record::Group {
            group: "h".into(),
            value: None,
        },
    ];
    let mut all = Vec::new();
    for (number, record) in records.iter().enumerate() {
        let stored = record.encode();
        let value = stored.value.as_deref();
        let length = value.map_or(0xffff, |v| v.len() as u16);
        let mut one = Vec::new();
        one.extend_from_slice(&(stored.key.len() as u16).to_le_bytes());
        one.extend_from_slice(&length.to_le_bytes());
        one.extend_from_slice(&stored.key);
        one.extend_from_slice(value.unwrap_or_default());
        seed("group_records", number, &one);
        all.extend(one);
    }
    seed("group_records", 9, &all);
}
