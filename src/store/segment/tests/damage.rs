//! A damaged file is found out and never believed.

use super::*;
use crate::store::segment::footer::{
    BadFooter, Footer, HEADER_BYTES, TRAILER_BYTES, Trailer, check_header, header,
};

#[test]
fn any_flipped_byte_of_footer_or_trailer_is_found() {
    let (memory, disk) = memory();
    let meta = write(&disk, FileId(1), &small_model()).unwrap();
    for at in footer_start(&memory, FileId(1)) as u64..meta.bytes {
        for mask in [1, 0x80, 0xff] {
            assert!(memory.flip(&file_path(FileId(1)), at, mask));
            let store = SegmentStore::new(Arc::clone(&disk), MIB);
            let outcome = store.section(FileId(1), key(1, 0));
            assert!(
                matches!(outcome, Err(ReadError::Damaged { .. })),
                "byte {at}: {outcome:?}"
            );
            assert!(memory.flip(&file_path(FileId(1)), at, mask));
        }
    }
}

#[test]
fn any_flipped_byte_of_the_header_is_found_by_verify() {
    let (memory, disk) = memory();
    write(&disk, FileId(1), &small_model()).unwrap();
    let store = SegmentStore::new(disk, MIB);
    for at in 0..HEADER_BYTES as u64 {
        assert!(memory.flip(&file_path(FileId(1)), at, 4));
        assert!(matches!(
            store.verify(FileId(1)),
            Err(ReadError::Damaged { .. })
        ));
        assert!(memory.flip(&file_path(FileId(1)), at, 4));
    }
    assert!(store.verify(FileId(1)).unwrap().damage.is_empty());
}

#[test]
fn a_flipped_byte_of_a_batch_is_told_with_its_offsets() {
    let (memory, disk) = memory();
    let model = small_model();
    write(&disk, FileId(1), &model).unwrap();
    let store = SegmentStore::new(disk, MIB);
    for (key, batches) in &model {
        let section = store.section(FileId(1), *key).unwrap().unwrap();
        for (batch, position) in batches.iter().zip(positions(&section, batches)) {
            let at = position + batch.bytes.len() as u64 / 2;
            assert!(memory.flip(&file_path(FileId(1)), at, 1));
            let found = store.verify(FileId(1)).unwrap().damage;
            assert!(memory.flip(&file_path(FileId(1)), at, 1));
            let [damage] = &found[..] else {
                panic!("{found:?}")
            };
            assert_eq!(damage.key, *key);
            assert!(damage.start <= batch.base && batch.last < damage.end);
            let words = format!("of partition {key} are damaged in segment file 1");
            assert!(damage.to_string().contains(&words), "{damage}");
        }
    }
}

#[test]
fn a_shortened_file_is_damaged() {
    let (memory, disk) = memory();
    let meta = write(&disk, FileId(1), &small_model()).unwrap();
    let handle = disk.open(&file_path(FileId(1))).unwrap();
    for cut in [1, 48, 60, meta.bytes / 2, meta.bytes - 10, meta.bytes] {
        handle.set_len(meta.bytes - cut).unwrap();
        let store = SegmentStore::new(Arc::clone(&disk), MIB);
        let outcome = store.section(FileId(1), key(1, 0));
        assert!(
            matches!(outcome, Err(ReadError::Damaged { .. })),
            "{cut}: {outcome:?}"
        );
    }
    assert_eq!(memory.names().len(), 1);
}

#[test]
fn a_file_under_a_wrong_name_is_damaged() {
    let (_, disk) = memory();
    write(&disk, FileId(1), &small_model()).unwrap();
    disk.rename(&file_path(FileId(1)), &file_path(FileId(2)))
        .unwrap();
    let store = SegmentStore::new(disk, MIB);
    let error = store.section(FileId(2), key(1, 0)).unwrap_err();
    assert!(error.to_string().contains("belongs to file 1"), "{error}");
}

#[test]
fn a_later_version_is_refused_in_words() {
    let (_, disk) = memory();
    let meta = write(&disk, FileId(1), &small_model()).unwrap();
    let handle = disk.open(&file_path(FileId(1))).unwrap();
    let mut trailer = [0; TRAILER_BYTES];
    handle.read_at(&mut trailer, meta.bytes - 48).unwrap();
    trailer[8] = 2;
    let crc = crc32c::crc32c(&trailer[..44]);
    trailer[44..].copy_from_slice(&crc.to_le_bytes());
    handle.write_at(&trailer, meta.bytes - 48).unwrap();
    let store = SegmentStore::new(disk, MIB);
    let error = store.section(FileId(1), key(1, 0)).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("has format version 2: use the release"),
        "{error}"
    );

    let mut head = header(FileId(1));
    head[8] = 2;
    let crc = crc32c::crc32c(&head[..28]);
    head[28..].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(check_header(&head, FileId(1)), Err(BadFooter::Newer(2)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Checksums can be right by chance or malice: fields are checked all the same.
    #[test]
    fn changed_fields_with_right_checksums_never_lead_out_of_bounds(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let (memory, disk) = memory();
        let meta = write(&disk, FileId(1), &small_model()).unwrap();
        let file = memory.contents(&file_path(FileId(1))).unwrap();
        let start = footer_start(&memory, FileId(1));
        let mut footer = file[start..file.len() - TRAILER_BYTES].to_vec();
        let mut trailer: [u8; TRAILER_BYTES] = *file.last_chunk().unwrap();
        for (place, value) in changes {
            let at = place.index(footer.len() + 28);
            match at.checked_sub(footer.len()) {
                Some(at) => trailer[12 + at] = value,
                None => footer[at] = value,
            }
        }
        trailer[40..44].copy_from_slice(&crc32c::crc32c(&footer).to_le_bytes());
        let crc = crc32c::crc32c(&trailer[..44]);
        trailer[44..].copy_from_slice(&crc.to_le_bytes());
        let Ok(trailer) = Trailer::parse(&trailer, FileId(1), meta.bytes) else { return Ok(()) };
        let Ok(footer) = Footer::parse(trailer, footer.into()) else { return Ok(()) };
        let footer = Arc::new(footer);
        for row in 0..footer.sections() {
            let section = Section::new(Arc::clone(&footer), row);
            for offset in [0, 70, 75, 1_000, i64::MAX] {
                prop_assert!(section.seek(offset) < section.end_position());
                prop_assert!(section.seek_time(offset) < section.end_position());
            }
            let end = section.blocks().last().map(|block| block.range.end);
            prop_assert_eq!(end, Some(section.end_position()));
            prop_assert!(section.end_position() <= meta.bytes);
            section.aborted().count();
        }
    }
}
