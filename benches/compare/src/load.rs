//! Pre-encoded Produce requests, sent as fast as they are answered: what the load costs its own
//! process is little and the same for every number of partitions.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    ApiKey, ProduceRequest, ProduceResponse, RequestHeader, ResponseHeader,
};
use kafka_protocol::protocol::{Decodable, Encodable};
use protocol_tests::batch::Batch;
use protocol_tests::calls::topic_name;

const VERSION: i16 = 9;

/// How the load looks; the same for every number of partitions.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Connections, each with a thread.
    pub connections: usize,
    /// Requests of a connection that wait for their answer.
    pub in_flight: usize,
    /// Batches, each for another partition, in one request.
    pub batches_per_request: usize,
    /// Bytes of records in one batch.
    pub batch_bytes: usize,
}

/// One partition to write to.
pub type Target = (String, i32);

/// What a load has done.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// Bytes of batches that were acknowledged.
    pub bytes: u64,
    /// From the first request to the last answer.
    pub elapsed: Duration,
}

impl Done {
    /// Acknowledged megabytes per second.
    pub fn megabytes_per_second(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.elapsed.as_secs_f64()
    }
}

/// A load that runs until it is stopped or its connections break.
pub struct Running {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
    start: Instant,
}

impl Running {
    /// Batch bytes acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Ends the load and waits for the last answers.
    pub fn stop(self) -> Done {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("a load thread");
        }
        let bytes = self.acknowledged.load(Ordering::Relaxed);
        Done {
            bytes,
            elapsed: self.start.elapsed(),
        }
    }
}

/// Starts a load over `targets`, which the connections share out among themselves.
pub fn start(address: &str, targets: &[Target], shape: Shape) -> Running {
    let batch = batch_of(shape.batch_bytes);
    let stop = Arc::new(AtomicBool::new(false));
    let acknowledged = Arc::new(AtomicU64::new(0));
    let requests = encode(targets, &batch, shape);
    let per_connection = requests.len().div_ceil(shape.connections).max(1);
    let start = Instant::now();
    let threads = (0..shape.connections)
        .map(|index| {
            let from = (index * per_connection) % requests.len();
            let mut own: Vec<Vec<u8>> = requests
                .iter()
                .cycle()
                .skip(from)
                .take(per_connection)
                .cloned()
                .collect();
            let stream = TcpStream::connect(address).expect("connect");
            let (stop, acknowledged) = (stop.clone(), acknowledged.clone());
            let bytes = (batch.len() * shape.batches_per_request) as u64;
            std::thread::spawn(move || {
                run(
                    stream,
                    &mut own,
                    shape.in_flight,
                    bytes,
                    &stop,
                    &acknowledged,
                );
            })
        })
        .collect();
    Running {
        stop,
        acknowledged,
        threads,
        start,
    }
}

/// A batch of records of 1 KiB that do not compress.
fn batch_of(bytes: usize) -> Bytes {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let values: Vec<String> = (0..bytes.div_ceil(1024))
        .map(|_| {
            let characters = (0..1024.min(bytes)).map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                char::from(b' ' + (state >> 33) as u8 % 94)
            });
            characters.collect()
        })
        .collect();
    Batch::of(&values.iter().map(String::as_str).collect::<Vec<_>>()).bytes()
}

/// Every target once, `batches_per_request` of them in each request.
fn encode(targets: &[Target], batch: &Bytes, shape: Shape) -> Vec<Vec<u8>> {
    let wanted = targets.len().div_ceil(shape.batches_per_request);
    (0..wanted.max(1))
        .map(|index| {
            let first = index * shape.batches_per_request;
            let own = targets
                .iter()
                .cycle()
                .skip(first)
                .take(shape.batches_per_request);
            frame(own, batch)
        })
        .collect()
}

fn frame<'a>(targets: impl Iterator<Item = &'a Target>, batch: &Bytes) -> Vec<u8> {
    let mut topics: Vec<TopicProduceData> = Vec::new();
    for (name, partition) in targets {
        let data = PartitionProduceData::default()
            .with_index(*partition)
            .with_records(Some(batch.clone()));
        match topics.last_mut().filter(|topic| *topic.name.0 == **name) {
            Some(topic) => topic.partition_data.push(data),
            None => topics.push(
                TopicProduceData::default()
                    .with_name(topic_name(name))
                    .with_partition_data(vec![data]),
            ),
        }
    }
    let request = ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(60_000)
        .with_topic_data(topics);
    let header = RequestHeader::default()
        .with_request_api_key(ApiKey::Produce as i16)
        .with_request_api_version(VERSION)
        .with_client_id(Some("load".into()));
    let mut body = BytesMut::new();
    header
        .encode(&mut body, ApiKey::Produce.request_header_version(VERSION))
        .expect("header");
    request.encode(&mut body, VERSION).expect("request");
    [&(body.len() as u32).to_be_bytes()[..], &body[..]].concat()
}

fn run(
    mut stream: TcpStream,
    requests: &mut [Vec<u8>],
    in_flight: usize,
    bytes: u64,
    stop: &AtomicBool,
    acknowledged: &AtomicU64,
) {
    stream.set_nodelay(true).expect("no delay");
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .expect("read timeout");
    let mut sent = 0_u32;
    let mut answered = 0_u32;
    loop {
        while !stop.load(Ordering::Relaxed) && (sent - answered) < in_flight as u32 {
            let index = sent as usize % requests.len();
            requests[index][8..12].copy_from_slice(&sent.to_be_bytes());
            if stream.write_all(&requests[index]).is_err() {
                return;
            }
            sent += 1;
        }
        if sent == answered {
            return;
        }
        let Some(frame) = read_frame(&mut stream) else {
            return;
        };
        check(frame, answered);
        answered += 1;
        acknowledged.fetch_add(bytes, Ordering::Relaxed);
    }
}

fn read_frame(stream: &mut TcpStream) -> Option<Bytes> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut frame = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut frame).ok()?;
    Some(frame.into())
}

fn check(mut frame: Bytes, expected: u32) {
    let version = ApiKey::Produce.response_header_version(VERSION);
    let header = ResponseHeader::decode(&mut frame, version).expect("response header");
    assert_eq!(
        header.correlation_id as u32, expected,
        "answers in request order"
    );
    let answer = ProduceResponse::decode(&mut frame, VERSION).expect("response");
    for partition in answer
        .responses
        .iter()
        .flat_map(|topic| &topic.partition_responses)
    {
        assert_eq!(
            partition.error_code, 0,
            "partition {} refused a batch",
            partition.index
        );
    }
}

/// Times of single small Produce requests, one after the other at a steady rate.
pub fn latencies(address: &str, target: &Target, rate: u32, count: u32) -> Vec<Duration> {
    let mut request = frame(std::iter::once(target), &batch_of(1024));
    let mut stream = TcpStream::connect(address).expect("connect");
    stream.set_nodelay(true).expect("no delay");
    let start = Instant::now();
    (0..count)
        .map(|index| {
            let due = start + Duration::from_secs(1) * index / rate;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let sent = Instant::now();
            request[8..12].copy_from_slice(&index.to_be_bytes());
            stream.write_all(&request).expect("send");
            check(read_frame(&mut stream).expect("an answer"), index);
            sent.elapsed()
        })
        .collect()
}
