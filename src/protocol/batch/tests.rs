//! Batches built, broken, patched and read back.

use std::ops::ControlFlow;

use proptest::prelude::*;

use super::super::compression::Codec;
use super::*;

fn rules() -> Rules {
    Rules {
        keys_required: false,
        timestamp_type: TimestampType::CreateTime,
        timestamps: i64::MIN..=i64::MAX,
        decompressed_limit: 1 << 20,
        record_limit: 1 << 20,
    }
}

fn three(codec: Codec) -> Vec<u8> {
    let mut builder = BatchBuilder::new().codec(codec, None).producer(7, 2, 40);
    builder.push(1000, Some(b"a"), Some(b"one"));
    builder.push(1020, None, Some(b"two"));
    let headers: [(&[u8], Option<&[u8]>); 3] =
        [(b"h", Some(b"1")), (b"h", Some(b"2")), (b"n", None)];
    builder.push_with_headers(1010, Some(b""), None, &headers);
    builder.build().unwrap().to_vec()
}

/// Changes bytes and makes the checksum fit again.
fn edit(batch: &mut [u8], at: usize, bytes: &[u8]) {
    batch[at..at + bytes.len()].copy_from_slice(bytes);
    let crc = compute_crc(batch);
    batch[AT_CRC..AT_CRC + 4].copy_from_slice(&crc.to_be_bytes());
}

#[test]
fn a_built_batch_is_valid_and_reads_back() {
    for codec in Codec::ALL {
        let batch = three(codec);
        let info = validate(&batch).unwrap();
        assert_eq!(
            (info.record_count, info.last_offset_delta, info.bytes),
            (3, 2, batch.len())
        );
        assert_eq!((info.base_timestamp, info.max_timestamp), (1000, 1020));
        assert_eq!(
            (info.producer_id, info.producer_epoch, info.base_sequence),
            (7, 2, 40)
        );
        assert_eq!((info.last_sequence(), info.codec().unwrap()), (42, codec));
        let view = BatchView::first(&batch).unwrap();
        let opened = open(&view, &rules()).unwrap();
        assert_eq!(
            (opened.max_timestamp, opened.max_timestamp_delta),
            (1020, 1)
        );
        assert_eq!(opened.flaws, []);
        let payload =
            super::super::compression::decompress(codec, view.payload(), 1 << 20).unwrap();
        assert_eq!(opened.records_bytes, payload.len() as u64);
        let records: Vec<_> = Records::new(&info, &payload).map(Result::unwrap).collect();
        assert_eq!(records[0].key, Some(&b"a"[..]));
        assert_eq!(records[1].key, None);
        assert_eq!((records[2].key, records[2].value), (Some(&b""[..]), None));
        assert_eq!(records[2].timestamp, 1010);
        assert_eq!(records[2].offset, 2);
        let headers: Vec<_> = records[2].headers.collect();
        let wanted: [(&[u8], Option<&[u8]>); 3] =
            [(b"h", Some(b"1")), (b"h", Some(b"2")), (b"n", None)];
        assert_eq!(headers, wanted);
    }
}

#[test]
fn header_faults_have_kafkas_codes() {
    let code = |batch: &[u8]| validate(batch).unwrap_err().code();
    let good = three(Codec::None);
    assert_eq!(code(&[]), ErrorCode::InvalidRecord);
    assert_eq!(code(&good[..good.len() - 1]), ErrorCode::InvalidRecord);
    assert_eq!(
        code(&[&good[..], &good[..]].concat()),
        ErrorCode::InvalidRecord
    );
    let mut crc = good.clone();
    *crc.last_mut().unwrap() ^= 1;
    assert_eq!(code(&crc), ErrorCode::CorruptMessage);
    for (at, bytes, wanted) in [
        (
            0usize,
            &[0, 0, 0, 0, 0, 0, 0, 1][..],
            ErrorCode::InvalidRecord,
        ),
        (8, &[0, 0, 0, 5], ErrorCode::CorruptMessage),
        (8, &[0xff; 4], ErrorCode::CorruptMessage),
        (16, &[1], ErrorCode::InvalidRecord),
        (16, &[3], ErrorCode::CorruptMessage),
        (21, &[0, 5], ErrorCode::UnsupportedCompressionType),
        (21, &[0, 0x20], ErrorCode::InvalidRecord),
        (23, &[0, 0, 0, 9], ErrorCode::InvalidRecord),
        (23, &[0xff; 4], ErrorCode::InvalidRecord),
        (53, &[0xff; 4], ErrorCode::InvalidRecord),
        (57, &[0x7f, 0xff, 0xff, 0xff], ErrorCode::InvalidRecord),
        (57, &[0; 4], ErrorCode::InvalidRecord),
    ] {
        let mut batch = good.clone();
        edit(&mut batch, at, bytes);
        assert_eq!(code(&batch), wanted, "{bytes:?} at {at}");
    }
}

#[test]
fn counts_that_the_records_do_not_keep_are_refused() {
    for codec in Codec::ALL {
        for count in [2i32, 4, i32::MAX] {
            let mut batch = three(codec);
            edit(&mut batch, 57, &count.to_be_bytes());
            edit(&mut batch, 23, &(count - 1).to_be_bytes());
            validate(&batch).unwrap();
            let error = open(&BatchView::first(&batch).unwrap(), &rules()).unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidRecord, "{codec:?} {count}");
        }
    }
}

#[test]
fn offset_deltas_stay_within_the_batch_and_count_up_in_a_compressed_one() {
    let with_first_delta = |zigzag: u8| {
        let mut batch = three(Codec::None);
        // The first record's offset delta: behind its size, attributes and timestamp delta.
        edit(&mut batch, HEADER_BYTES + 3, &[zigzag]);
        batch
    };
    let code = |batch: &[u8]| {
        let opened = open(&BatchView::first(batch).unwrap(), &rules());
        opened.map(|_| ()).map_err(|error| error.code())
    };
    let repeated = with_first_delta(2);
    assert_eq!(code(&repeated), Ok(()));
    for outside in [1, 6] {
        assert_eq!(
            code(&with_first_delta(outside)),
            Err(ErrorCode::InvalidRecord)
        );
    }
    let view = BatchView::first(&repeated).unwrap();
    let compressed = recompress(&view, Codec::Lz4, None, 1 << 20, 1 << 20).unwrap();
    assert_eq!(code(&compressed), Err(ErrorCode::InvalidRecord));
}

#[test]
fn what_follows_a_batch_counts_only_if_it_is_whole() {
    let good = three(Codec::None);
    let with = |rest: &[u8]| {
        let checked = validate(&[&good[..], rest].concat());
        checked.map(|info| info.bytes).map_err(|error| error.code())
    };
    assert_eq!(with(b"junk"), Ok(good.len()));
    assert_eq!(with(&good[..good.len() - 1]), Ok(good.len()));
    assert_eq!(with(&good[..16]), Ok(good.len()));
    assert_eq!(with(&good), Err(ErrorCode::InvalidRecord));
    assert_eq!(with(&[0; 12]), Err(ErrorCode::CorruptMessage));
    let mut unknown = good.clone();
    unknown[AT_MAGIC] = 3;
    assert_eq!(with(&unknown), Err(ErrorCode::CorruptMessage));
}

#[test]
fn flawed_records_are_named() {
    let batch = three(Codec::Zstd);
    let view = BatchView::first(&batch).unwrap();
    let keys = Rules {
        keys_required: true,
        ..rules()
    };
    let flaws = open(&view, &keys).unwrap().flaws;
    assert_eq!(
        flaws,
        [Flaw {
            index: 1,
            kind: FlawKind::NullKey
        }]
    );
    let old = Rules {
        timestamps: 1010..=1015,
        ..rules()
    };
    let wanted = [
        Flaw {
            index: 0,
            kind: FlawKind::Timestamp(1000),
        },
        Flaw {
            index: 1,
            kind: FlawKind::Timestamp(1020),
        },
    ];
    assert_eq!(open(&view, &old).unwrap().flaws, wanted);
    let both = open(
        &view,
        &Rules {
            keys_required: true,
            ..old.clone()
        },
    )
    .unwrap();
    assert_eq!(both.flaws[1].kind, FlawKind::NullKey);
    assert_eq!(both.refusal(), Some(ErrorCode::InvalidTimestamp));
    let append = Rules {
        timestamp_type: TimestampType::LogAppendTime,
        ..old
    };
    assert_eq!(open(&view, &append).unwrap().flaws, []);
}

#[test]
fn a_bomb_is_refused_at_the_limit_with_little_memory() {
    let value = vec![0; 64 << 20];
    let mut builder = BatchBuilder::new().codec(Codec::Zstd, None);
    builder.push(1, None, Some(&value));
    let batch = builder.build().unwrap();
    assert!(batch.len() < 64 << 10);
    let view = BatchView::first(&batch).unwrap();
    let small = Rules {
        decompressed_limit: 8 << 20,
        ..rules()
    };
    assert_eq!(
        open(&view, &small).unwrap_err().code(),
        ErrorCode::MessageTooLarge
    );
    let large = Rules {
        decompressed_limit: 65 << 20,
        record_limit: 65 << 20,
        ..rules()
    };
    assert!(open(&view, &large).unwrap().records_bytes > 64 << 20);
    let record = Rules {
        record_limit: 64 << 20,
        ..large
    };
    let refused = open(&view, &record).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::InvalidRecord);
    assert!(
        refused
            .to_string()
            .contains("max.decompressed.message.bytes"),
        "{refused}"
    );
}

#[test]
fn records_that_break_a_rule_are_named_up_to_a_number() {
    let keys = Rules {
        keys_required: true,
        decompressed_limit: 16 << 20,
        ..rules()
    };
    let mut builder = BatchBuilder::new().codec(Codec::Zstd, None);
    for _ in 0..2 * MAX_FLAWS {
        builder.push(1, None, Some(b"x"));
    }
    let batch = builder.build().unwrap();
    let opened = open(&BatchView::first(&batch).unwrap(), &keys).unwrap();
    assert_eq!(opened.flaws.len(), MAX_FLAWS);
}

#[test]
fn a_walk_can_stop_at_the_record_it_looks_for() {
    let batch = three(Codec::Lz4);
    let mut found = None;
    walk(&BatchView::first(&batch).unwrap(), 1 << 20, &mut |record| {
        if record.timestamp >= 1010 {
            found = Some((record.offset_delta, record.timestamp));
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(found, Some((1, 1020)));
}

#[test]
fn patched_fields_keep_the_checksum_right() {
    for codec in Codec::ALL {
        let stamps = [
            Stamp::Keep,
            Stamp::CreateTime(5),
            Stamp::LogAppendTime(1 << 40),
        ];
        for stamp in stamps {
            let mut batch = three(codec);
            patch(
                &mut batch,
                Patch {
                    base_offset: 99,
                    leader_epoch: 4,
                    stamp,
                },
            );
            let view = BatchView::first(&batch).unwrap();
            view.check_crc().unwrap();
            assert_eq!((view.info.base_offset, view.info.leader_epoch), (99, 4));
            let (kind, max) = match stamp {
                Stamp::Keep => (TimestampType::CreateTime, 1020),
                Stamp::CreateTime(max) => (TimestampType::CreateTime, max),
                Stamp::LogAppendTime(now) => (TimestampType::LogAppendTime, now),
            };
            assert_eq!(
                (view.info.timestamp_type(), view.info.max_timestamp),
                (kind, max)
            );
            assert_eq!(view.info.last_offset(), 101);
        }
    }
}

#[test]
fn damage_before_a_patch_stays_visible() {
    let mut batch = three(Codec::None);
    *batch.last_mut().unwrap() ^= 0x40;
    patch(
        &mut batch,
        Patch {
            base_offset: 1,
            leader_epoch: 0,
            stamp: Stamp::LogAppendTime(9),
        },
    );
    assert!(BatchView::first(&batch).unwrap().check_crc().is_err());
    patch(
        &mut [0; 10],
        Patch {
            base_offset: 1,
            leader_epoch: 0,
            stamp: Stamp::Keep,
        },
    );
}

#[test]
fn another_codec_keeps_the_records() {
    let batch = three(Codec::Gzip);
    let view = BatchView::first(&batch).unwrap();
    for codec in Codec::ALL {
        let other = recompress(&view, codec, None, 1 << 20, 1 << 20).unwrap();
        let small = recompress(&view, codec, None, 1 << 20, other.len() as u64 - 1);
        assert_eq!(small.map_err(|e| e.code()), Err(ErrorCode::MessageTooLarge));
        let info = validate(&other).unwrap();
        assert_eq!(info.codec().unwrap(), codec);
        assert_eq!((info.record_count, info.producer_id), (3, 7));
        let opened = open(&BatchView::first(&other).unwrap(), &rules()).unwrap();
        assert_eq!(opened.max_timestamp, 1020);
    }
}

#[test]
fn batches_follow_one_another() {
    let (a, b) = (three(Codec::None), three(Codec::Snappy));
    let both = [&a[..], &b[..]].concat();
    let sizes: Vec<_> = Batches::new(&both)
        .map(|v| v.unwrap().bytes.len())
        .collect();
    assert_eq!(sizes, [a.len(), b.len()]);
    let mut cut = Batches::new(&both[..both.len() - 1]);
    assert!(cut.next().unwrap().is_ok());
    assert!(matches!(
        cut.next(),
        Some(Err(BatchError::Incomplete { .. }))
    ));
    assert!(cut.next().is_none());
}

#[test]
fn the_crates_decoder_agrees() {
    let batch = three(Codec::None);
    let mut bytes = bytes::Bytes::from(batch);
    let decoded = kafka_protocol::records::RecordBatchDecoder::decode(&mut bytes).unwrap();
    let offsets: Vec<_> = decoded
        .records
        .iter()
        .map(|r| (r.offset, r.timestamp))
        .collect();
    assert_eq!(offsets, [(0, 1000), (1, 1020), (2, 1010)]);
    assert_eq!(decoded.records[1].value.as_deref(), Some(&b"two"[..]));
}

proptest! {
    #[test]
    fn arbitrary_payloads_never_panic(codec in 0u8..8, count in 1i32..50, payload: Vec<u8>) {
        let mut batch = three(Codec::None);
        batch.truncate(HEADER_BYTES);
        batch.extend_from_slice(&payload);
        edit(&mut batch, 57, &count.to_be_bytes());
        edit(&mut batch, 23, &(count - 1).to_be_bytes());
        edit(&mut batch, 21, &[0, codec]);
        let length = (batch.len() - LENGTH_OVERHEAD) as i32;
        edit(&mut batch, 8, &length.to_be_bytes());
        if let Ok(info) = validate(&batch) {
            let view = BatchView::first(&batch).unwrap();
            let walked = open(&view, &rules());
            let read: Result<Vec<_>, _> = Records::new(&info, view.payload()).collect();
            if walked.is_ok() && info.codec_id() == 0 {
                prop_assert!(read.is_ok());
            }
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
        let _ = validate(&bytes);
        Batches::new(&bytes).for_each(drop);
    }
}
