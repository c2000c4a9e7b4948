//! The load of an ordinary client: one librdkafka producer, then one librdkafka consumer.

use std::time::{Duration, Instant};

use protocol_tests::client;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};

const RECORD_BYTES: usize = 1024;

/// Produces `megabytes` in records of 1 KiB with acks=all; returns how long it took.
pub fn produce(address: &str, topic: &str, partitions: i32, megabytes: usize) -> Duration {
    let properties = [
        ("acks", "all"),
        ("linger.ms", "5"),
        ("queue.buffering.max.messages", "200000"),
        ("queue.buffering.max.kbytes", "262144"),
        ("message.timeout.ms", "120000"),
    ];
    let producer: BaseProducer = client::config(address, &properties)
        .create()
        .expect("producer");
    let payload: Vec<u8> = (0..RECORD_BYTES as u32)
        .map(|i| (i * 7919 % 251) as u8)
        .collect();
    let count = megabytes * 1_000_000 / RECORD_BYTES;
    let start = Instant::now();
    for index in 0..count {
        let mut record = BaseRecord::<(), [u8]>::to(topic)
            .partition(index as i32 % partitions)
            .payload(&payload);
        while let Err((error, unsent)) = producer.send(record) {
            let full = error.rdkafka_error_code() == Some(RDKafkaErrorCode::QueueFull);
            assert!(full, "produce: {error}");
            producer.poll(Duration::from_millis(5));
            record = unsent;
        }
        if index % 1000 == 0 {
            producer.poll(Duration::ZERO);
        }
    }
    producer.flush(Duration::from_secs(120)).expect("flush");
    start.elapsed()
}

/// Reads everything that [`produce`] wrote; returns how long it took.
pub fn consume(address: &str, topic: &str, partitions: i32, megabytes: usize) -> Duration {
    let properties = [
        ("group.id", "bench"),
        ("enable.auto.commit", "false"),
        ("auto.offset.reset", "error"),
    ];
    let consumer: BaseConsumer = client::config(address, &properties)
        .create()
        .expect("consumer");
    let mut assignment = TopicPartitionList::new();
    for partition in 0..partitions {
        assignment
            .add_partition_offset(topic, partition, Offset::Beginning)
            .expect("assignment");
    }
    let wanted = megabytes * 1_000_000 / RECORD_BYTES;
    let start = Instant::now();
    consumer.assign(&assignment).expect("assign");
    let mut seen = 0;
    while seen < wanted {
        let Some(polled) = consumer.poll(Duration::from_secs(60)) else {
            panic!("nothing came for a minute: {seen} of {wanted} records")
        };
        let message = polled.unwrap_or_else(|error| panic!("consume: {error}"));
        assert_eq!(message.payload_len(), RECORD_BYTES);
        seen += 1;
    }
    start.elapsed()
}
