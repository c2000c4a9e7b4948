//! Lookups by offset and by time against a model; encodings there and back.

use super::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn seeks_agree_with_a_scan(model in any_model()) {
        let (_, disk) = memory();
        write(&disk, FileId(1), &model).unwrap();
        let store = SegmentStore::new(disk, MIB);
        for (key, batches) in &model {
            let section = store.section(FileId(1), *key).unwrap().unwrap();
            let positions = positions(&section, batches);
            check_offsets(&section, batches, &positions)?;
            check_times(&section, batches, &positions)?;
            check_blocks(&section, batches, &positions)?;
        }
        prop_assert!(store.verify(FileId(1)).unwrap().damage.is_empty());
    }

    #[test]
    fn metas_survive_encoding(models in prop::collection::vec(any_model(), 1..3), file in 0u64..) {
        let mut metas = Vec::new();
        let mut encoded = Vec::new();
        for model in &models {
            let (_, disk) = memory();
            metas.push(write(&disk, FileId(file), model).unwrap());
            metas.last().unwrap().encode(&mut encoded);
        }
        let mut input = &encoded[..];
        for meta in &metas {
            prop_assert_eq!(&SegmentMeta::decode(&mut input).unwrap(), meta);
        }
        prop_assert!(input.is_empty());
        for cut in 0..encoded.len() {
            let mut input = &encoded[..cut];
            let all = metas.iter().all(|_| SegmentMeta::decode(&mut input).is_ok());
            prop_assert!(!all, "cut at {}", cut);
        }
    }

    #[test]
    fn any_bytes_decode_to_a_meta_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut with_version = vec![1];
        with_version.extend_from_slice(&bytes);
        for mut input in [&bytes[..], &with_version[..]] {
            if let Ok(meta) = SegmentMeta::decode(&mut input) {
                let mut again = Vec::new();
                meta.encode(&mut again);
                prop_assert_eq!(SegmentMeta::decode(&mut &again[..]), Ok(meta));
            }
        }
    }

    #[test]
    fn numbers_survive_encoding(unsigned in any::<u64>(), signed in any::<i64>()) {
        let mut out = Vec::new();
        codec::put_varint(&mut out, unsigned);
        codec::put_zigzag(&mut out, signed);
        let mut input = &out[..];
        prop_assert_eq!(codec::take_varint(&mut input), Some(unsigned));
        prop_assert_eq!(codec::take_zigzag(&mut input), Some(signed));
        prop_assert!(input.is_empty());
    }
}

fn check_offsets(
    section: &Section,
    batches: &[Batch],
    positions: &[u64],
) -> Result<(), TestCaseError> {
    let meta = section.meta();
    for offset in meta.start - 2..meta.end + 2 {
        // The batch a reader wants: the one that holds the offset, else the next one.
        let wanted = batches
            .iter()
            .position(|b| b.last >= offset)
            .unwrap_or(batches.len() - 1);
        let found = section.seek(offset);
        let Some(at) = positions.iter().position(|p| *p == found) else {
            return Err(TestCaseError::fail("not at the start of a batch"));
        };
        prop_assert!(at <= wanted);
        let scanned: u64 = batches[at..wanted]
            .iter()
            .map(|b| b.bytes.len() as u64)
            .sum();
        let last = batches[at..wanted]
            .last()
            .map_or(0, |b| b.bytes.len() as u64);
        prop_assert!(
            scanned - last < INDEX_EVERY,
            "{} bytes before the batch",
            scanned
        );
        for bytes in [0, 500, u64::MAX] {
            let blocks = section.blocks_from(offset, bytes);
            let range = blocks[0].range.start..blocks[blocks.len() - 1].range.end;
            prop_assert_eq!(range.start, found);
            prop_assert!(range.end <= section.end_position());
            let connected = |pair: &[Block]| pair[0].range.end == pair[1].range.start;
            prop_assert!(blocks.windows(2).all(connected));
            prop_assert!(blocks.len() == 1 || range.end - range.start <= bytes);
            if batches[wanted].base <= offset {
                let end = positions[wanted] + batches[wanted].bytes.len() as u64;
                prop_assert!(range.end >= end);
            }
        }
    }
    Ok(())
}

fn check_times(
    section: &Section,
    batches: &[Batch],
    positions: &[u64],
) -> Result<(), TestCaseError> {
    for timestamp in -2..62 {
        let found = section.seek_time(timestamp);
        let Some(at) = positions.iter().position(|p| *p == found) else {
            return Err(TestCaseError::fail("not at the start of a batch"));
        };
        prop_assert!(batches[..at].iter().all(|b| b.max_timestamp < timestamp));
        let blocks: Vec<Block> = section.blocks_from_time(timestamp).collect();
        prop_assert_eq!(blocks[0].range.start, found);
        prop_assert_eq!(blocks[blocks.len() - 1].range.end, section.end_position());
        // No later entry would have done.
        let mut behind = batches[at..].iter().zip(&positions[at..]);
        let first = behind
            .find(|(b, _)| b.max_timestamp >= timestamp)
            .map(|(_, p)| *p);
        let end = section
            .blocks()
            .map(|b| b.range)
            .find(|r| r.start == found)
            .unwrap()
            .end;
        prop_assert!(end == section.end_position() || first.is_some_and(|p| p < end));
    }
    Ok(())
}

fn check_blocks(
    section: &Section,
    batches: &[Batch],
    positions: &[u64],
) -> Result<(), TestCaseError> {
    let bytes = joined(batches);
    let base = section.meta().position;
    let mut next = (section.meta().start, base);
    for block in section.blocks() {
        prop_assert_eq!((block.start, block.range.start), next);
        prop_assert!(positions.contains(&block.range.start));
        let part = &bytes[(block.range.start - base) as usize..(block.range.end - base) as usize];
        prop_assert_eq!(crc32c::crc32c(part), block.crc);
        next = (block.end, block.range.end);
    }
    prop_assert_eq!(next, (section.meta().end, section.end_position()));
    let greatest = batches.iter().map(|b| b.max_timestamp).max();
    prop_assert_eq!(Some(section.meta().max_timestamp), greatest);
    Ok(())
}

#[test]
fn a_meta_of_a_later_version_is_refused() {
    let mut bytes = Vec::new();
    SegmentMeta::default().encode(&mut bytes);
    bytes[0] = 2;
    assert_eq!(
        SegmentMeta::decode(&mut &bytes[..]),
        Err(DecodeError::Newer(2))
    );
}

#[test]
fn a_hostile_count_reserves_nothing() {
    let mut bytes = vec![1, 1, 1];
    codec::put_varint(&mut bytes, u64::MAX);
    bytes.extend_from_slice(&[1; 20]);
    assert!(matches!(
        SegmentMeta::decode(&mut &bytes[..]),
        Err(DecodeError::Malformed(_))
    ));
}

/// The layout that `docs/formats.md` draws. It changes only together with the version.
#[test]
fn a_file_has_the_bytes_of_version_1() {
    let (memory, disk) = memory();
    let model = vec![
        (key(7, 1), batches(256, &[2], 3)),
        (key(6, 9), batches(1, &[1], 2)),
    ];
    write(&disk, FileId(5), &model).unwrap();
    let bytes = memory.contents(&file_path(FileId(5))).unwrap();
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    let lines = [
        "53475345474d4e540100000005000000000000000000000000000000c9d4b26d",
        "0001020102",
        "060000000900000001000000000000000200000000000000230000000000000002000000",
        "00000000e803000000000000",
        "0000000000000000529ff803",
        "070000000100000000010000000000000201000000000000200000000000000003000000",
        "00000000e803000000000000",
        "0000000000000000fa4bfd92",
        "5347534547454e4401000000020000000000000000000000050000000000000025000000",
        "000000000ed0f9c3703e8c66",
    ];
    assert_eq!(hex, lines.concat());
}
