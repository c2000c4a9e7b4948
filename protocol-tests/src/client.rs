//! Short forms of rdkafka's clients: produce some records, read a partition, run a group member.

use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};
use rdkafka::{ClientContext, Offset, TopicPartitionList};

use crate::PATIENCE;

/// A client configuration for `bootstrap` with more properties.
pub fn config(bootstrap: &str, properties: &[(&str, &str)]) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap);
    config.set("reconnect.backoff.max.ms", "500");
    for (key, value) in properties {
        config.set(*key, *value);
    }
    config
}

/// One acknowledged record: partition and offset.
pub type Acknowledged = (i32, i64);

/// Where a producer's delivery reports end up: the index a record was sent with, and its fate.
#[derive(Default)]
pub struct Reports {
    /// Filled by [`BaseProducer::poll`] and [`Producer::flush`].
    pub received: std::sync::Mutex<Vec<(usize, Result<Acknowledged, String>)>>,
}

impl ClientContext for Reports {}

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<usize>;

    fn delivery(&self, result: &DeliveryResult<'_>, index: Box<usize>) {
        let fate = match result {
            Ok(message) => Ok((message.partition(), message.offset())),
            Err((error, _)) => Err(error.to_string()),
        };
        self.received.lock().expect("reports").push((*index, fate));
    }
}

/// A producer that keeps its delivery reports.
pub type ReportingProducer = BaseProducer<Reports>;

/// Makes a producer that keeps its delivery reports.
pub fn producer(bootstrap: &str, properties: &[(&str, &str)]) -> ReportingProducer {
    config(bootstrap, properties)
        .create_with_context(Reports::default())
        .expect("a producer")
}

/// Sends values to one partition and returns the fate of each.
pub fn produce_values(
    producer: &ReportingProducer,
    topic: &str,
    partition: i32,
    values: &[Vec<u8>],
) -> Vec<Result<Acknowledged, String>> {
    for (index, value) in values.iter().enumerate() {
        let mut record = BaseRecord::<(), [u8], Box<usize>>::with_opaque_to(topic, Box::new(index));
        record = record.partition(partition).payload(value);
        while let Err((_, unsent)) = producer.send(record) {
            producer.poll(Duration::from_millis(20));
            record = unsent;
        }
    }
    producer.flush(PATIENCE).expect("flush");
    let mut received = std::mem::take(&mut *producer.context().received.lock().expect("reports"));
    received.sort_by_key(|report| report.0);
    received.into_iter().map(|report| report.1).collect()
}

/// Sends one record with a key and lets the client choose its partition; returns its fate.
pub fn produce_keyed(
    producer: &ReportingProducer,
    topic: &str,
    key: &[u8],
    value: &[u8],
) -> Result<Acknowledged, String> {
    let record = BaseRecord::<[u8], [u8], Box<usize>>::with_opaque_to(topic, Box::new(0));
    let sent = producer.send(record.key(key).payload(value));
    sent.map_err(|(error, _)| error.to_string())?;
    producer.flush(PATIENCE).expect("flush");
    let fate = producer.context().received.lock().expect("reports").pop();
    fate.expect("a report").1
}

/// A record as a consumer saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its partition.
    pub partition: i32,
    /// Its offset.
    pub offset: i64,
    /// Its value.
    pub value: Vec<u8>,
}

impl Seen {
    fn of(message: &BorrowedMessage<'_>) -> Seen {
        Seen {
            partition: message.partition(),
            offset: message.offset(),
            value: message.payload().unwrap_or_default().to_vec(),
        }
    }
}

/// Reads one partition from `from` until `count` records were seen.
pub fn read_partition(
    bootstrap: &str,
    topic: &str,
    partition: i32,
    from: i64,
    count: usize,
) -> Vec<Seen> {
    let consumer: BaseConsumer = config(
        bootstrap,
        &[
            ("group.id", "protocol-tests-reader"),
            ("enable.auto.commit", "false"),
            ("auto.offset.reset", "error"),
        ],
    )
    .create()
    .expect("a consumer");
    let mut assignment = TopicPartitionList::new();
    assignment
        .add_partition_offset(topic, partition, Offset::Offset(from))
        .expect("an offset to start at");
    consumer.assign(&assignment).expect("assign");
    let mut seen = Vec::with_capacity(count);
    poll_until(&consumer, &mut seen, |seen| seen.len() >= count);
    seen
}

/// A consumer of all partitions of a topic from the beginning, in no group.
pub fn reader(bootstrap: &str, topic: &str, partitions: i32) -> BaseConsumer {
    let properties = [
        ("group.id", "protocol-tests-reader"),
        ("enable.auto.commit", "false"),
        ("auto.offset.reset", "error"),
    ];
    let consumer: BaseConsumer = config(bootstrap, &properties).create().expect("a consumer");
    let mut assignment = TopicPartitionList::new();
    for partition in 0..partitions {
        assignment
            .add_partition_offset(topic, partition, Offset::Offset(0))
            .expect("offset 0");
    }
    consumer.assign(&assignment).expect("assign");
    consumer
}

/// A group member with automatic commits off, reading from the beginning where nothing is committed.
pub fn member(bootstrap: &str, group: &str, topic: &str, more: &[(&str, &str)]) -> BaseConsumer {
    let mut properties = vec![
        ("group.id", group),
        ("enable.auto.commit", "false"),
        ("auto.offset.reset", "earliest"),
        ("session.timeout.ms", "6000"),
    ];
    properties.extend_from_slice(more);
    let consumer: BaseConsumer = config(bootstrap, &properties).create().expect("a consumer");
    consumer.subscribe(&[topic]).expect("subscribe");
    consumer
}

/// Polls into `seen` until `enough` says so; fails the test when that takes too long.
pub fn poll_until(consumer: &BaseConsumer, seen: &mut Vec<Seen>, enough: impl Fn(&[Seen]) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !enough(seen) {
        assert!(
            Instant::now() < deadline,
            "the consumer saw only {} records",
            seen.len()
        );
        poll_once(consumer, seen);
    }
}

/// Polls once; an error counts as nothing seen, since the client goes on by itself.
pub fn poll_once(consumer: &BaseConsumer, seen: &mut Vec<Seen>) {
    if let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) {
        seen.push(Seen::of(&message));
    }
}
