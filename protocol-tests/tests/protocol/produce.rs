//! Produce: codecs, acks, limits, refusals, idempotent producers.

use kafka_protocol::messages::{InitProducerIdRequest, ProducerId};
use protocol_tests::batch::{Batch, headers, now_ms};
use protocol_tests::calls::*;
use protocol_tests::wire::Wire;
use protocol_tests::{Server, bootstrap, client, foreign, wait_for};

const CORRUPT_MESSAGE: i16 = 2;
const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const MESSAGE_TOO_LARGE: i16 = 10;
const INVALID_TIMESTAMP: i16 = 32;
const OUT_OF_ORDER_SEQUENCE_NUMBER: i16 = 45;
const DUPLICATE_SEQUENCE_NUMBER: i16 = 46;
const INVALID_PRODUCER_EPOCH: i16 = 47;
const INVALID_RECORD: i16 = 87;

fn values(count: usize) -> Vec<Vec<u8>> {
    (0..count)
        .map(|i| format!("value {i} {}", "x".repeat(i % 300)).into_bytes())
        .collect()
}

/// Allocates the id and epoch of an idempotent producer.
fn init_producer_id(wire: &mut Wire) -> (i64, i16) {
    let request = InitProducerIdRequest::default()
        .with_transactional_id(None)
        .with_transaction_timeout_ms(60_000)
        .with_producer_id(ProducerId(-1))
        .with_producer_epoch(-1);
    let answer = wait_for("producer ids are there", || {
        let answer = wire.call(4, &request);
        (!(14..=16).contains(&answer.error_code)).then_some(answer)
    });
    assert_eq!(answer.error_code, 0);
    (answer.producer_id.0, answer.producer_epoch)
}

#[test]
fn every_codec_comes_back_as_it_was_sent() {
    let bootstrap = bootstrap();
    let topic = new_topic(&mut Wire::open(), 1, &[]);
    let values = values(2000);
    let mut from = 0;
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let properties = [
            ("compression.codec", codec),
            ("linger.ms", "20"),
            ("acks", "all"),
        ];
        let producer = client::producer(&bootstrap, &properties);
        for fate in client::produce_values(&producer, &topic, 0, &values) {
            fate.unwrap_or_else(|error| panic!("{codec}: {error}"));
        }
        let seen = client::read_partition(&bootstrap, &topic, 0, from, values.len());
        for (i, record) in seen.iter().enumerate() {
            assert_eq!(record.offset, from + i as i64, "{codec}");
            assert_eq!(record.value, values[i], "{codec}");
        }
        from += values.len() as i64;
    }
    let mut wire = Wire::open();
    let fetched = fetch(&mut wire, &topic, 0, Wanted::from(0))
        .records
        .expect("records");
    let mut codecs: Vec<i16> = headers(&fetched).iter().map(|b| b.attributes & 7).collect();
    codecs.dedup();
    assert_eq!(
        codecs,
        [0, 1, 2, 3, 4],
        "batches are kept as they were sent"
    );
    assert!(headers(&fetched).iter().all(|batch| batch.intact));
}

#[test]
fn each_level_of_acks_stores_the_record() {
    let bootstrap = bootstrap();
    let topic = new_topic(&mut Wire::open(), 1, &[]);
    for (i, acks) in ["0", "1", "all"].into_iter().enumerate() {
        let producer = client::producer(&bootstrap, &[("acks", acks)]);
        let fates = client::produce_values(&producer, &topic, 0, &[acks.as_bytes().to_vec()]);
        let (_, offset) = fates[0].clone().expect("delivered");
        if acks != "0" {
            assert_eq!(offset, i as i64);
        }
        let seen = client::read_partition(&bootstrap, &topic, 0, i as i64, 1);
        assert_eq!(seen[0].value, acks.as_bytes());
    }
}

#[test]
fn acks_0_is_not_answered_and_keeps_its_place_in_the_order() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    for round in 0..20 {
        let silent = produce_request(&topic, 0, 0, Batch::of(&["silent"]).bytes());
        wire.send(9, &silent);
        let answer = produce(&mut wire, &topic, 0, &Batch::of(&["loud"]));
        assert_eq!((answer.error_code, answer.base_offset), (0, 2 * round + 1));
    }
}

#[test]
fn a_record_just_below_the_limit_is_taken_and_one_above_is_refused() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[("max.message.bytes", "100000")]);
    let fits = Batch::of(&[&"x".repeat(99_000)]);
    assert_eq!(produce(&mut wire, &topic, 0, &fits).error_code, 0);
    let too_large = Batch::of(&[&"x".repeat(101_000)]);
    assert_eq!(
        produce(&mut wire, &topic, 0, &too_large).error_code,
        MESSAGE_TOO_LARGE
    );
    assert_eq!(list_offsets(&mut wire, &topic, 0, -1).offset, 1);
}

#[test]
fn the_limit_holds_for_what_is_stored_as_well() {
    let configs = [
        ("max.message.bytes", "100000"),
        ("compression.type", "uncompressed"),
    ];
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &configs);
    let producer = client::producer(&bootstrap(), &[("compression.codec", "gzip")]);
    let values = [90_000, 110_000].map(|size| vec![b'x'; size]);
    let [fits, grows] =
        values.map(|value| client::produce_values(&producer, &topic, 0, &[value]).remove(0));
    assert_eq!(fits, Ok((0, 0)));
    assert!(
        grows
            .expect_err("too large")
            .contains("MessageSizeTooLarge")
    );
    assert_eq!(list_offsets(&mut wire, &topic, 0, -1).offset, 1);
}

#[test]
fn a_message_of_several_megabytes_comes_back_whole() {
    let bootstrap = bootstrap();
    let topic = new_topic(&mut Wire::open(), 1, &[("max.message.bytes", "12000000")]);
    let value: Vec<u8> = (0..10_000_000_u32).map(|i| (i % 251) as u8).collect();
    let producer = client::producer(&bootstrap, &[("message.max.bytes", "12000000")]);
    let fates = client::produce_values(&producer, &topic, 0, std::slice::from_ref(&value));
    assert_eq!(fates, [Ok((0, 0))]);
    let seen = client::read_partition(&bootstrap, &topic, 0, 0, 1);
    assert!(seen[0].value == value);
}

#[test]
fn what_is_no_batch_is_refused_and_nothing_of_it_is_stored() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    let good = Batch::of(&["one", "two"]).bytes();
    let mut wrong_checksum = good.to_vec();
    *wrong_checksum.last_mut().expect("bytes") ^= 1;
    let answer = produce_bytes(&mut wire, 9, &topic, 0, wrong_checksum.into());
    assert_eq!(answer.error_code, CORRUPT_MESSAGE);
    let cut = good.slice(..good.len() - 1);
    assert_ne!(produce_bytes(&mut wire, 9, &topic, 0, cut).error_code, 0);
    assert_eq!(list_offsets(&mut wire, &topic, 0, -1).offset, 0);
    assert_eq!(
        produce_bytes(&mut wire, 9, &topic, 0, good).error_code,
        0,
        "the connection lives"
    );
}

#[test]
fn a_missing_topic_or_partition_is_named() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    let batch = Batch::of(&["lost"]);
    assert_eq!(
        produce(&mut wire, &topic, 7, &batch).error_code,
        UNKNOWN_TOPIC_OR_PARTITION
    );
    let nowhere = protocol_tests::unique("nowhere");
    assert_eq!(
        produce(&mut wire, &nowhere, 0, &batch).error_code,
        UNKNOWN_TOPIC_OR_PARTITION
    );
}

#[test]
fn a_compacted_topic_refuses_records_without_a_key() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[("cleanup.policy", "compact")]);
    let mut batch = Batch::of(&["a", "b", "c"]);
    batch.records[0].1 = Some(b"key".to_vec());
    batch.records[2].1 = Some(Vec::new());
    let answer = produce(&mut wire, &topic, 0, &batch);
    assert_eq!(answer.error_code, INVALID_RECORD);
    let named: Vec<i32> = answer
        .record_errors
        .iter()
        .map(|error| error.batch_index)
        .collect();
    assert_eq!(named, [1], "only the record without a key is named");
    batch.records[1].1 = Some(Vec::new());
    assert_eq!(
        produce(&mut wire, &topic, 0, &batch).error_code,
        0,
        "an empty key is a key"
    );
}

#[test]
fn timestamps_outside_the_topics_bounds_are_refused() {
    let mut wire = Wire::open();
    let configs = [
        ("message.timestamp.before.max.ms", "60000"),
        ("message.timestamp.after.max.ms", "60000"),
    ];
    let topic = new_topic(&mut wire, 1, &configs);
    let now = now_ms();
    for (time, expected) in [
        (now, 0),
        (now - 3_600_000, INVALID_TIMESTAMP),
        (now + 3_600_000, INVALID_TIMESTAMP),
    ] {
        let answer = produce(&mut wire, &topic, 0, &Batch::at(&[(time, "when")]));
        assert_eq!(answer.error_code, expected, "{} ms from now", time - now);
    }
}

#[test]
fn an_idempotent_batch_sent_again_gets_its_first_offset_and_is_stored_once() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    let (id, epoch) = init_producer_id(&mut wire);
    let batch = |sequence: i32| {
        Batch::of(&[&format!("sequence {sequence}")]).from_producer(id, epoch, sequence)
    };
    for sequence in 0..10 {
        let answer = produce(&mut wire, &topic, 0, &batch(sequence));
        assert_eq!(
            (answer.error_code, answer.base_offset),
            (0, i64::from(sequence))
        );
    }
    for sequence in [9, 5] {
        let answer = produce(&mut wire, &topic, 0, &batch(sequence));
        assert_eq!(
            (answer.error_code, answer.base_offset),
            (0, i64::from(sequence))
        );
    }
    let old = produce(&mut wire, &topic, 0, &batch(4)).error_code;
    assert!(
        [OUT_OF_ORDER_SEQUENCE_NUMBER, DUPLICATE_SEQUENCE_NUMBER].contains(&old),
        "{old}"
    );
    let gap = produce(&mut wire, &topic, 0, &batch(12));
    assert_eq!(gap.error_code, OUT_OF_ORDER_SEQUENCE_NUMBER);
    assert_eq!(
        list_offsets(&mut wire, &topic, 0, -1).offset,
        10,
        "nothing was stored twice"
    );
    assert_eq!(
        produce(&mut wire, &topic, 0, &batch(10)).error_code,
        0,
        "the next one is taken"
    );
}

#[test]
fn a_partition_that_was_never_written_takes_sequence_0_first() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 2, &[]);
    let (id, epoch) = init_producer_id(&mut wire);
    let batch = |sequence| Batch::of(&["x"]).from_producer(id, epoch, sequence);
    let early = produce(&mut wire, &topic, 0, &batch(1)).error_code;
    if protocol_tests::foreign().is_some() {
        // Kafka takes it, and never again the one before it.
        assert_eq!(early, 0);
        let late = produce(&mut wire, &topic, 0, &batch(0)).error_code;
        return assert_eq!(late, OUT_OF_ORDER_SEQUENCE_NUMBER);
    }
    assert_eq!(early, OUT_OF_ORDER_SEQUENCE_NUMBER);
    for sequence in [0, 1] {
        let taken = produce(&mut wire, &topic, 0, &batch(sequence));
        assert_eq!(
            (taken.error_code, taken.base_offset),
            (0, i64::from(sequence))
        );
    }
    let other = produce(&mut wire, &topic, 1, &batch(2)).error_code;
    assert_eq!(
        other, OUT_OF_ORDER_SEQUENCE_NUMBER,
        "each partition by itself"
    );
}

#[test]
fn a_producer_that_may_have_been_forgotten_starts_anywhere() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 3, &[]);
    let (id, epoch) = init_producer_id(&mut wire);
    let batch = |id, sequence| Batch::of(&["x"]).from_producer(id, epoch, sequence);
    assert_eq!(produce(&mut wire, &topic, 0, &batch(id, 0)).error_code, 0);
    // The topic is made again: to the producer it is the same.
    assert_eq!(delete_topic(&mut wire, &topic), 0);
    wait_for("the topic is gone", || {
        (describe_topic(&mut wire, &topic).error_code != 0).then_some(())
    });
    assert_eq!(create_topic(&mut wire, &topic, 3, &[]), 0);
    await_topic(&mut wire, &topic, 3);
    assert_eq!(produce(&mut wire, &topic, 0, &batch(id, 1)).error_code, 0);
    // Others have written: what was there may be gone.
    assert_eq!(
        produce(&mut wire, &topic, 1, &Batch::of(&["x"])).error_code,
        0
    );
    let (younger, _) = init_producer_id(&mut wire);
    assert_eq!(
        produce(&mut wire, &topic, 1, &batch(younger, 7)).error_code,
        0
    );
    let gap = produce(&mut wire, &topic, 1, &batch(younger, 9)).error_code;
    assert_eq!(gap, OUT_OF_ORDER_SEQUENCE_NUMBER);
    // Not an id of this broker.
    assert_eq!(
        produce(&mut wire, &topic, 2, &batch(1 << 40, 7)).error_code,
        0
    );
}

#[test]
fn a_new_epoch_starts_at_zero_and_fences_the_old_one() {
    let mut wire = Wire::open();
    let topic = new_topic(&mut wire, 1, &[]);
    let (id, epoch) = init_producer_id(&mut wire);
    let batch = |epoch, sequence| Batch::of(&["x"]).from_producer(id, epoch, sequence);
    assert_eq!(
        produce(&mut wire, &topic, 0, &batch(epoch, 0)).error_code,
        0
    );
    let wrong_start = produce(&mut wire, &topic, 0, &batch(epoch + 1, 1));
    assert_eq!(wrong_start.error_code, OUT_OF_ORDER_SEQUENCE_NUMBER);
    assert_eq!(
        produce(&mut wire, &topic, 0, &batch(epoch + 1, 0)).error_code,
        0
    );
    let stale = produce(&mut wire, &topic, 0, &batch(epoch, 1));
    assert_eq!(stale.error_code, INVALID_PRODUCER_EPOCH);
}

#[test]
fn producer_ids_are_never_given_twice() {
    let mut wire = Wire::open();
    let mut ids: Vec<i64> = (0..50).map(|_| init_producer_id(&mut wire).0).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 50);
}

/// The header's maximum is what retention goes by, so it must be that of the records.
#[test]
fn a_maximum_timestamp_that_no_record_has_is_put_right_and_pins_nothing() {
    let mut server = None;
    let address = foreign().unwrap_or_else(|| {
        let settings = ["log.retention.check.interval.ms=200"];
        server.insert(Server::with_settings(&settings)).address()
    });
    let mut wire = Wire::connect(&address);
    let topic = new_topic(&mut wire, 1, &[("retention.ms", "60000")]);
    let old = now_ms() - 3_600_000;
    for lie in [i64::MAX, now_ms() + 365 * 86_400_000] {
        let mut lying = Batch::at(&[(old, "a"), (old + 5, "b")]).bytes().to_vec();
        lying[35..43].copy_from_slice(&lie.to_be_bytes());
        let crc = crc32c::crc32c(&lying[21..]);
        lying[17..21].copy_from_slice(&crc.to_be_bytes());
        let answer = produce_bytes(&mut wire, 9, &topic, 0, lying.into());
        assert_eq!(answer.error_code, 0);
        let found = fetch(&mut wire, &topic, 0, Wanted::from(answer.base_offset));
        if found.error_code == 0 && server.is_some() {
            let stored = headers(&found.records.unwrap_or_default());
            assert!(
                stored
                    .iter()
                    .all(|batch| batch.intact && batch.max_timestamp == old + 5)
            );
        }
    }
    if server.is_some() {
        // On a real broker the active segment stays for minutes.
        wait_for("retention", || {
            (list_offsets(&mut wire, &topic, 0, -2).offset == 4).then_some(())
        });
    }
}
