//! ListOffsets: by time, special timestamps, inside compressed batches; DeleteRecords.

use protocol_tests::batch::{Batch, headers};
use protocol_tests::calls::*;
use protocol_tests::wire::Wire;
use protocol_tests::{bootstrap, client};
use rdkafka::producer::{BaseRecord, Producer};

const OFFSET_OUT_OF_RANGE: i16 = 1;

fn found(offset: i64, timestamp: i64) -> FoundOffset {
    FoundOffset {
        error_code: 0,
        offset,
        timestamp,
    }
}

#[test]
fn a_time_finds_the_first_record_that_is_not_older() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    for (time, value) in [(100, "a"), (200, "b"), (300, "c")] {
        assert_eq!(
            produce(&mut wire, &topic, 0, &Batch::at(&[(time, value)])).error_code,
            0
        );
    }
    for (time, expected) in [
        (150, found(1, 200)),
        (200, found(1, 200)),
        (301, found(-1, -1)),
        (0, found(0, 100)),
        (-1, found(3, -1)),
        (-2, found(0, -1)),
        (-3, found(2, 300)),
    ] {
        assert_eq!(
            list_offsets(&mut wire, &topic, 0, time),
            expected,
            "asked for {time}"
        );
    }
}

#[test]
fn a_time_finds_its_record_inside_one_batch() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    let batch = Batch::at(&[(100, "a"), (500, "b"), (300, "c"), (400, "d")]);
    assert_eq!(produce(&mut wire, &topic, 0, &batch).error_code, 0);
    assert_eq!(list_offsets(&mut wire, &topic, 0, 101), found(1, 500));
    assert_eq!(
        list_offsets(&mut wire, &topic, 0, -3),
        found(1, 500),
        "the newest timestamp"
    );
}

#[test]
fn a_time_finds_its_record_inside_compressed_batches() {
    let bootstrap = bootstrap();
    let mut wire = Wire::open();
    for codec in ["gzip", "snappy", "lz4", "zstd"] {
        let topic = new_topic(&mut wire, 1, &[]);
        let producer = client::producer(
            &bootstrap,
            &[("compression.codec", codec), ("linger.ms", "100")],
        );
        for i in 0..100_usize {
            let record = BaseRecord::<(), [u8], Box<usize>>::with_opaque_to(&topic, Box::new(i));
            let record = record
                .partition(0)
                .payload(&[b'v'; 200])
                .timestamp(1000 + 10 * i as i64);
            producer
                .send(record)
                .map_err(|(error, _)| error)
                .expect("queued");
        }
        producer.flush(protocol_tests::PATIENCE).expect("flush");
        assert_eq!(
            list_offsets(&mut wire, &topic, 0, 1495),
            found(50, 1500),
            "{codec}"
        );
        assert_eq!(
            list_offsets(&mut wire, &topic, 0, 1990),
            found(99, 1990),
            "{codec}"
        );
        assert_eq!(
            list_offsets(&mut wire, &topic, 0, 1991),
            found(-1, -1),
            "{codec}"
        );
    }
}

#[test]
fn deleted_records_are_gone_and_the_log_starts_behind_them() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    for time in 1..=10 {
        produce(&mut wire, &topic, 0, &Batch::at(&[(time, "x")]));
    }
    assert_eq!(delete_records(&mut wire, &topic, 0, 4), (0, 4));
    assert_eq!(list_offsets(&mut wire, &topic, 0, -2), found(4, -1));
    assert_eq!(
        list_offsets(&mut wire, &topic, 0, 1),
        found(4, 5),
        "by time, too"
    );
    let below = fetch(&mut wire, &topic, 0, Wanted::from(3));
    assert_eq!(below.error_code, OFFSET_OUT_OF_RANGE);
    let at = fetch(&mut wire, &topic, 0, Wanted::from(4));
    assert_eq!(
        (at.error_code, at.log_start_offset, at.high_watermark),
        (0, 4, 10)
    );
    assert_eq!(
        delete_records(&mut wire, &topic, 0, 2),
        (0, 4),
        "the start never goes back"
    );
    assert_eq!(
        delete_records(&mut wire, &topic, 0, 11).0,
        OFFSET_OUT_OF_RANGE
    );
    assert_eq!(
        delete_records(&mut wire, &topic, 0, -1),
        (0, 10),
        "-1 is the high watermark"
    );
    assert_eq!(
        produce(&mut wire, &topic, 0, &Batch::of(&["next"])).base_offset,
        10
    );
}

#[test]
fn a_reader_at_the_log_start_sees_records_or_out_of_range_while_records_are_deleted() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    let deleter = std::thread::spawn({
        let topic = topic.clone();
        move || {
            let mut wire = Wire::open();
            for _ in 0..150 {
                let batch = Batch::of(&["a", "b", "c"]);
                let end = produce(&mut wire, &topic, 0, &batch).base_offset + 3;
                assert_eq!(delete_records(&mut wire, &topic, 0, (end - 4).max(0)).0, 0);
            }
        }
    });
    let mut position = 0;
    while !deleter.is_finished() {
        let fetched = fetch(&mut wire, &topic, 0, Wanted::from(position));
        match fetched.error_code {
            0 => {
                let records = fetched.records.unwrap_or_default();
                for batch in headers(&records) {
                    assert!(batch.intact && batch.last_offset >= position);
                    position = batch.last_offset + 1;
                }
            }
            OFFSET_OUT_OF_RANGE => {
                let start = list_offsets(&mut wire, &topic, 0, -2).offset;
                assert!(
                    start > position,
                    "out of range at {position}, the log starts at {start}"
                );
                position = start;
            }
            code => panic!("error {code} at {position}"),
        }
    }
    deleter.join().expect("the deleter");
    assert_eq!(list_offsets(&mut wire, &topic, 0, -1).offset, 450);
}
