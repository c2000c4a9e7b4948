//! What the fuzz targets do with their bytes. `replay.rs` does the same with the kept corpus in
//! every test run.
//!
//! Checksums would stop a fuzzer at the door, so a target may put them right first: an even first
//! byte asks for it. Each function says whether its bytes got past the door.

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use kafka_protocol::messages as m;
use kafka_protocol::protocol::Decodable;
use shardgate::catalog::{Change, Environment, Image};
use shardgate::coordinator::group::Machine;
use shardgate::coordinator::group::command::{Now, Settings};
use shardgate::coordinator::group::record::Record;
use shardgate::partition::checkpoint::{Checkpointer, Root};
use shardgate::partition::entries::{SegmentsEntry, decode_log_start};
use shardgate::partition::move_entries::MoveEntry;
use shardgate::partition::witness;
use shardgate::protocol::api::{ApiRow, ROWS};
use shardgate::protocol::batch::{self, Batches, Records, Rules, TimestampType};
use shardgate::protocol::{guard, header};
use shardgate::store::backend::Disk;
use shardgate::store::backend::memory::MemoryDisk;
use shardgate::store::checkpoint::CheckpointStore;
use shardgate::store::journal::{EntryKind, FileJournal, JournalOptions};
use shardgate::store::segment::{SegmentMeta, SegmentStore, file_path};
use shardgate::types::{FileId, Position};
use uuid::Uuid;

/// A fuzz target.
pub type Target = fn(&[u8]) -> bool;

/// All of them, by the names of their corpora.
pub const TARGETS: [(&str, Target); 7] = [
    ("frame", frame),
    ("guard", guard),
    ("record_batch", record_batch),
    ("segment_footer", segment_footer),
    ("journal_replay", journal_replay),
    ("checkpoint", checkpoint),
    ("group_records", group_records),
];

const BLOCK: usize = 4096;
/// Files are small, so that a run is quick.
const LARGEST: usize = 256 * 1024;
const STORE: Uuid = Uuid::from_u128(0x6f0d_3c5e_0b1f_4f5e_9a57_2b8c_3f1f_0a77);

/// A request frame without its length: header, guard, typed decoder.
pub fn frame(data: &[u8]) -> bool {
    let frame = Bytes::copy_from_slice(data);
    let Ok(header) = header::parse(&frame) else {
        return false;
    };
    header.row.decodes(header.version)
        && body(
            header.row,
            header.version,
            &frame.slice(header.body_offset..),
        )
}

/// A body of any API and version: what the guard lets through must decode in bounds.
pub fn guard(data: &[u8]) -> bool {
    let [row, version, rest @ ..] = data else {
        return false;
    };
    let row = &ROWS[usize::from(*row) % ROWS.len()];
    let versions = (row.max - row.decode_min + 1) as u8;
    let version = row.decode_min + i16::from(version % versions);
    body(row, version, rest)
}

fn body(row: &ApiRow, version: i16, body: &[u8]) -> bool {
    let Ok(checked) = guard::check(row, version, body) else {
        return false;
    };
    assert!(checked.elements <= guard::MAX_ELEMENTS);
    let plain = guard::plain(row, version, body).expect("it passed once");
    assert_eq!(plain.len(), body.len());
    let again = guard::check(row, version, &plain);
    assert!(again.is_ok_and(|checked| !checked.odd && checked.elements <= guard::MAX_ELEMENTS));
    decode(row.key, version, Bytes::from(plain))
}

fn decode(key: i16, version: i16, mut body: Bytes) -> bool {
    macro_rules! decode {
        ($($key:literal $request:ident),* $(,)?) => {
            match key {
                $($key => m::$request::decode(&mut body, version).is_ok(),)*
                _ => false,
            }
        };
    }
    decode!(
        0 ProduceRequest, 1 FetchRequest, 2 ListOffsetsRequest, 3 MetadataRequest,
        8 OffsetCommitRequest, 9 OffsetFetchRequest, 10 FindCoordinatorRequest,
        11 JoinGroupRequest, 12 HeartbeatRequest, 13 LeaveGroupRequest, 14 SyncGroupRequest,
        15 DescribeGroupsRequest, 16 ListGroupsRequest, 18 ApiVersionsRequest,
        19 CreateTopicsRequest, 20 DeleteTopicsRequest, 21 DeleteRecordsRequest,
        22 InitProducerIdRequest, 23 OffsetForLeaderEpochRequest, 32 DescribeConfigsRequest,
        33 AlterConfigsRequest, 35 DescribeLogDirsRequest, 37 CreatePartitionsRequest,
        42 DeleteGroupsRequest, 44 IncrementalAlterConfigsRequest, 47 OffsetDeleteRequest, 60 DescribeClusterRequest,
        75 DescribeTopicPartitionsRequest,
    )
}

/// One or more record batches, as a producer or a disk may bring them.
pub fn record_batch(data: &[u8]) -> bool {
    let Some((repair, bytes)) = split(data) else {
        return false;
    };
    let mut bytes = bytes.to_vec();
    if repair && bytes.len() > 61 {
        let length = (bytes.len() - 12) as u32;
        bytes[8..12].copy_from_slice(&length.to_be_bytes());
        let crc = batch::compute_crc(&bytes);
        bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    }
    for view in Batches::new(&bytes).flatten() {
        let _ = view.check_crc();
        let _ = view.info.last_offset();
        let _ = view.info.last_sequence();
    }
    let Ok(info) = batch::validate(&bytes) else {
        return false;
    };
    let Ok(view) = batch::BatchView::first(&bytes) else {
        return false;
    };
    let rules = Rules {
        keys_required: true,
        timestamp_type: TimestampType::CreateTime,
        timestamps: 0..=i64::MAX / 2,
        decompressed_limit: 1 << 20,
        record_limit: 1 << 20,
    };
    let opened = batch::open(&view, &rules);
    let mut count = 0;
    let walked = batch::walk(&view, 1 << 20, &mut |_| {
        count += 1;
        ControlFlow::Continue(())
    });
    if walked.is_ok() {
        assert_eq!(count, i64::from(info.record_count));
    }
    if info.codec_id() == 0 {
        for record in Records::new(&info, view.payload()) {
            let _ = record.map(|record| record.headers.count());
        }
    }
    opened.is_ok()
}

/// A segment file: footer, index, look-ups, and the `segments` entry that describes it.
pub fn segment_footer(data: &[u8]) -> bool {
    let Some((repair, bytes)) = split(data) else {
        return false;
    };
    let _ = SegmentsEntry::decode(bytes);
    let mut rest = bytes;
    let _ = SegmentMeta::decode(&mut rest);
    let mut bytes = bytes.to_vec();
    if repair {
        repair_segment(&mut bytes);
    }
    let disk = MemoryDisk::new();
    put(&disk, &file_path(FileId(1)), &bytes);
    let store = SegmentStore::new(Arc::new(disk), 1 << 20);
    let _ = store.verify(FileId(1));
    let Ok(sections) = store.sections(FileId(1)) else {
        return false;
    };
    let _ = store.meta(FileId(1));
    for section in &sections {
        let meta = *section.meta();
        for block in section.blocks() {
            assert!(block.range.start < block.range.end && block.start < block.end);
            let _ = store.read(FileId(1), block.range);
        }
        for offset in [0, meta.start, meta.end - 1, i64::MAX] {
            let blocks = section.blocks_from(offset, 100_000);
            assert!(
                blocks
                    .last()
                    .is_some_and(|b| b.range.end <= section.end_position())
            );
            assert!(section.seek(offset) >= meta.position);
        }
        assert!(section.seek_time(meta.max_timestamp) < section.end_position());
        assert!(section.aborted().count() <= bytes.len());
    }
    !sections.is_empty()
}

fn repair_segment(bytes: &mut [u8]) {
    let length = bytes.len();
    if length < 32 + 48 {
        return;
    }
    bytes[..8].copy_from_slice(b"SGSEGMNT");
    bytes[8] = 1;
    bytes[12..20].copy_from_slice(&1u64.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..28]);
    bytes[28..32].copy_from_slice(&crc.to_le_bytes());
    let trailer = length - 48;
    let count = |at: usize| usize::from(bytes[trailer + at]);
    let footer = count(12) * 60 + count(16) * 28 + count(20) * 32;
    for at in [12, 16, 20] {
        bytes[trailer + at + 1..trailer + at + 4].fill(0);
    }
    let Some(start) = trailer.checked_sub(footer) else {
        return;
    };
    bytes[trailer..trailer + 8].copy_from_slice(b"SGSEGEND");
    bytes[trailer + 8] = 1;
    bytes[trailer + 24..trailer + 32].copy_from_slice(&1u64.to_le_bytes());
    bytes[trailer + 32..trailer + 40].copy_from_slice(&(start as u64).to_le_bytes());
    let crc = crc32c::crc32c(&bytes[start..trailer]);
    bytes[trailer + 40..trailer + 44].copy_from_slice(&crc.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[trailer..trailer + 44]);
    bytes[trailer + 44..].copy_from_slice(&crc.to_le_bytes());
}

/// Journal files. The bytes are pieces with a length of two bytes in front, each of which starts
/// on a block of its own; an empty one starts the next file.
pub fn journal_replay(data: &[u8]) -> bool {
    let Some((repair, bytes)) = split(data) else {
        return false;
    };
    let disk = MemoryDisk::new();
    for (index, mut file) in journal_files(bytes).into_iter().enumerate() {
        if repair {
            repair_groups(&mut file);
        }
        put(&disk, &format!("journal/{:08}.log", index + 1), &file);
    }
    let mut options = JournalOptions::new(STORE);
    options.file_bytes = 128 * 1024;
    options.first_zero_bytes = 64 * 1024;
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let first = replay(&disk, &options);
    let Ok((entries, cut)) = first else {
        options.allow_truncate_corruption = true;
        let _ = replay(&disk, &options);
        return false;
    };
    if entries.first().is_some_and(|first| *first > 1) {
        // The entries before are gone. A store has a checkpoint of them or does not start.
        return true;
    }
    // Opening put the end in order, so there is nothing left to cut, and nothing is lost.
    let again = replay(&disk, &options).expect("what opened once opens again");
    assert_eq!(again.0, entries);
    assert!(
        again.1.is_none() || cut.is_none() || entries.is_empty(),
        "cut twice: {again:?}"
    );
    !entries.is_empty()
}

type Replayed = (Vec<u64>, Option<String>);

fn replay(disk: &Arc<dyn Disk>, options: &JournalOptions) -> Result<Replayed, String> {
    let opened = FileJournal::open(Arc::clone(disk), options.clone());
    let mut opened = opened.map_err(|e| e.to_string())?;
    let _ = opened.verify();
    // Entries before the first group are gone; a checkpoint would hold them.
    let mut entries = Vec::new();
    let mut take = |group: shardgate::store::journal::Group| {
        for entry in &group.entries {
            entries.push(entry.position.0);
            let payload = group.payload(entry);
            match entry.kind {
                EntryKind::Batch => drop(Batches::new(&payload).count()),
                EntryKind::Catalog => drop(Change::decode(&payload)),
                EntryKind::Segments => drop(SegmentsEntry::decode(&payload)),
                EntryKind::LogStart => drop(decode_log_start(&payload)),
                EntryKind::Move => drop(MoveEntry::decode(&payload)),
                EntryKind::Witness => drop(witness::decode(&payload)),
            }
        }
        Ok(())
    };
    let mut after = Position(0);
    let outcome = loop {
        match opened.replay(after, &mut take, &|_, _| ()) {
            Err(shardgate::store::journal::JournalError::Missing { to, .. })
                if Position(to) <= opened.last() && Position(to) > after =>
            {
                after = Position(to);
            }
            other => break other.map_err(|e| e.to_string()),
        }
    };
    outcome?;
    assert!(entries.windows(2).all(|pair| pair[1] == pair[0] + 1));
    Ok((entries, opened.cut().map(str::to_owned)))
}

fn journal_files(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut files = vec![Vec::new()];
    let mut total = 0;
    while let Some((head, rest)) = bytes.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*head)).min(rest.len());
        let (piece, rest) = rest.split_at(length);
        bytes = rest;
        total += length.next_multiple_of(BLOCK);
        if total > LARGEST || files.len() > 4 {
            break;
        }
        match (piece.is_empty(), files.last_mut()) {
            (false, Some(file)) => {
                file.extend_from_slice(piece);
                file.resize(file.len().next_multiple_of(BLOCK), 0);
            }
            _ => files.push(Vec::new()),
        }
    }
    files
}

/// Puts the checksums of groups right, and what ties each to this store and to the one before it.
fn repair_groups(file: &mut [u8]) {
    let mut previous = None;
    for place in (0..file.len()).step_by(BLOCK) {
        let group = &mut file[place..];
        if &group[..4] != b"SGJL" {
            continue;
        }
        group[8..24].copy_from_slice(STORE.as_bytes());
        group[72..80].copy_from_slice(&(place as u64).to_le_bytes());
        // The seeds' own links stay, unless their first byte says that they are wanted anew.
        if group[5] & 1 == 0
            && let Some(previous) = previous
        {
            group[80..84].copy_from_slice(&u32::to_le_bytes(previous));
        }
        let length = u32::from_le_bytes([group[68], group[69], group[70], group[71]]) as usize;
        if let Some(body) = group.get(96..96 + length.min(LARGEST)) {
            let crc = crc32c::crc32c(body);
            group[84..88].copy_from_slice(&crc.to_le_bytes());
        }
        let crc = crc32c::crc32c(&group[..92]);
        group[92..96].copy_from_slice(&crc.to_le_bytes());
        previous = Some(crc);
    }
}

/// A checkpoint folder of one root and up to three sections; each file has a length of two bytes
/// in front. The payloads are decoded as far as they go.
pub fn checkpoint(data: &[u8]) -> bool {
    let Some((repair, mut bytes)) = split(data) else {
        return false;
    };
    let mut files = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<2>()
        && files.len() < 4
    {
        let length = usize::from(u16::from_le_bytes(*head)).min(rest.len());
        files.push(rest[..length].to_vec());
        bytes = &rest[length..];
    }
    let disk = MemoryDisk::new();
    if files.is_empty() {
        return false;
    }
    let sections = files.split_off(1);
    let mut root = files.remove(0);
    for (index, mut file) in sections.into_iter().enumerate() {
        let row = 40 + 20 * index;
        if repair && file.len() >= 36 && root.len() >= row + 20 {
            // The root names this section, and the catalog's slots begin at 2^31.
            let end = file.len() - 4;
            let slot = (u32::from(root[row] & 1) << 31) + index as u32;
            root[row..row + 4].copy_from_slice(&slot.to_le_bytes());
            root[row + 4..row + 12].copy_from_slice(&1u64.to_le_bytes());
            root[row + 12..row + 16].copy_from_slice(&((end - 32) as u32).to_le_bytes());
            let crc = crc32c::crc32c(&file[32..end]);
            root[row + 16..row + 20].copy_from_slice(&crc.to_le_bytes());
            file[..8].copy_from_slice(b"SGCHKSEC");
            file[8] = 1;
            file[12..16].copy_from_slice(&slot.to_le_bytes());
            file[16..24].copy_from_slice(&1u64.to_le_bytes());
            file[24..28].copy_from_slice(&((end - 32) as u32).to_le_bytes());
            seal(&mut file);
        }
        let slot = root
            .get(row..row + 4)
            .map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        put(
            &disk,
            &format!("checkpoint/section-{slot:010}-{:020}", 1),
            &file,
        );
    }
    if repair && root.len() >= 44 {
        root[..8].copy_from_slice(b"SGCHKROT");
        root[8] = 1;
        root[16..24].copy_from_slice(&1u64.to_le_bytes());
        let rows = usize::from(root[12] % 4);
        root[12..16].copy_from_slice(&(rows as u32).to_le_bytes());
        let payload = root.len().saturating_sub(44 + 20 * rows) as u64;
        root[32..40].copy_from_slice(&payload.to_le_bytes());
        seal(&mut root);
    }
    put(&disk, &format!("checkpoint/root-{:020}", 1), &root);
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let _ = CheckpointStore::verify(Arc::clone(&disk));
    let Ok((_, Some(loaded))) = CheckpointStore::open(disk) else {
        return false;
    };
    let Ok(root) = Root::decode(&loaded.root) else {
        return false;
    };
    let Ok((_, found)) = Checkpointer::load(&root, loaded.sections) else {
        return false;
    };
    Image::decode(found.catalog.iter().map(|b| &b[..]), Environment::default()).is_ok()
}

/// Gives a checkpoint file its checksum.
fn seal(file: &mut [u8]) {
    let end = file.len() - 4;
    let crc = crc32c::crc32c(&file[..end]);
    file[end..].copy_from_slice(&crc.to_le_bytes());
}

/// Records of `__consumer_offsets`: key and value with a length in front, length 0xffff for none.
pub fn group_records(mut data: &[u8]) -> bool {
    let mut machine = Machine::new(Settings::default());
    let mut taken = 0;
    while let Some((head, rest)) = data.split_first_chunk::<4>() {
        let key = usize::from(u16::from_le_bytes([head[0], head[1]])).min(rest.len());
        let (key, rest) = rest.split_at(key);
        let value = usize::from(u16::from_le_bytes([head[2], head[3]]));
        let (value, rest) = match value {
            0xffff => (None, rest),
            length => {
                let (value, rest) = rest.split_at(length.min(rest.len()));
                (Some(value), rest)
            }
        };
        data = rest;
        let Ok(record) = Record::decode(key, value) else {
            continue;
        };
        let stored = record.encode();
        let again = Record::decode(&stored.key, stored.value.as_deref());
        assert_eq!(again.as_ref(), Ok(&record), "a record comes back as stored");
        machine.apply(&record);
        taken += 1;
    }
    let now = Now {
        wall_ms: 1_700_000_000_000,
        tick: 0,
    };
    machine.loaded(now);
    let _ = machine.deadline();
    taken > 0
}

fn split(data: &[u8]) -> Option<(bool, &[u8])> {
    let (first, rest) = data.split_first()?;
    (rest.len() <= LARGEST).then_some((first % 2 == 0, rest))
}

fn put(disk: &MemoryDisk, name: &str, bytes: &[u8]) {
    let (folder, _) = name.split_once('/').expect("a name in a folder");
    disk.create_dir(folder).expect("make a folder in memory");
    // Two sections of one slot: the first one stays.
    if let Ok(file) = disk.create(name) {
        file.write_at(bytes, 0).expect("write to memory");
        file.sync_data().expect("sync memory");
    }
}
