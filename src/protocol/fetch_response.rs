//! Fetch responses, versions 4 to 18. The crate's encoder copies every payload into the answer;
//! this one puts large payloads between slices of one small buffer, for a vectored write.

use bytes::Bytes;
use kafka_protocol::messages::ApiKey;
use uuid::Uuid;

use super::response::{EncodeError, Frame};
use super::wire::put_uvarint;

/// Payload slices from this size on are passed through; smaller ones cost less copied.
pub const SPLICE_BYTES: usize = 8 << 10;

const FIRST_VERSION: i16 = 4;
const LAST_VERSION: i16 = 18;
/// Compact lengths and tagged fields.
const FLEXIBLE: i16 = 12;

/// A whole answer. Fields that a version does not have are left out when it is encoded.
#[derive(Clone, Debug, Default)]
pub struct FetchResponseData {
    /// How long the client was held back.
    pub throttle_time_ms: i32,
    /// An error of the whole request.
    pub error_code: i16,
    /// The fetch session, or 0.
    pub session_id: i32,
    /// Topics, in the order of the request.
    pub topics: Vec<FetchTopic>,
    /// Where the leaders are that partitions point to.
    pub node_endpoints: Vec<NodeEndpoint>,
}

/// One topic's part.
#[derive(Clone, Debug, Default)]
pub struct FetchTopic {
    /// Its name, for versions up to 12.
    pub topic: String,
    /// Its id, from version 13 on.
    pub topic_id: Uuid,
    /// Its partitions.
    pub partitions: Vec<FetchPartition>,
}

/// One partition's part.
#[derive(Clone, Debug)]
pub struct FetchPartition {
    /// The partition.
    pub partition_index: i32,
    /// Its error.
    pub error_code: i16,
    /// What is durable, or -1.
    pub high_watermark: i64,
    /// What a reader of committed records may see, or -1.
    pub last_stable_offset: i64,
    /// The first offset there is, or -1.
    pub log_start_offset: i64,
    /// Epoch and end offset where the client's log and ours part.
    pub diverging_epoch: Option<(i32, i64)>,
    /// Id and epoch of a leader that the client did not know.
    pub current_leader: Option<(i32, i32)>,
    /// Producer id and first offset of each aborted transaction; `None` unless asked for.
    pub aborted_transactions: Option<Vec<(i64, i64)>>,
    /// The replica to read from instead, or -1.
    pub preferred_read_replica: i32,
    /// Whole batches, in order, in as many slices as they come in.
    pub records: Vec<Bytes>,
}

impl Default for FetchPartition {
    fn default() -> Self {
        Self {
            partition_index: 0,
            error_code: 0,
            high_watermark: -1,
            last_stable_offset: -1,
            log_start_offset: -1,
            diverging_epoch: None,
            current_leader: None,
            aborted_transactions: None,
            preferred_read_replica: -1,
            records: Vec::new(),
        }
    }
}

impl FetchPartition {
    /// Bytes of its records.
    pub fn records_bytes(&self) -> usize {
        self.records.iter().map(Bytes::len).sum()
    }
}

/// A broker's address.
#[derive(Clone, Debug, Default)]
pub struct NodeEndpoint {
    /// Its id.
    pub node_id: i32,
    /// Its host.
    pub host: String,
    /// Its port.
    pub port: i32,
    /// Its rack.
    pub rack: Option<String>,
}

/// Encodes an answer with its header and length.
pub fn encode(
    correlation_id: i32,
    version: i16,
    response: &FetchResponseData,
) -> Result<Frame, EncodeError> {
    let fail = |reason: &str| EncodeError {
        api: ApiKey::Fetch,
        version,
        reason: reason.into(),
    };
    if !(FIRST_VERSION..=LAST_VERSION).contains(&version) {
        return Err(fail("no such version"));
    }
    let mut out = Output {
        version,
        ..Output::with_room_for(response)
    };
    out.i32(0);
    out.i32(correlation_id);
    out.no_tags();
    out.response(response);
    if out.too_long {
        return Err(fail("a length in it exceeds its field"));
    }
    out.finish().ok_or_else(|| fail("it exceeds 2 GiB"))
}

/// Everything but large payloads in one buffer, and where those belong in it.
#[derive(Default)]
struct Output {
    version: i16,
    buffer: Vec<u8>,
    spliced: Vec<(usize, Bytes)>,
    too_long: bool,
}

impl Output {
    fn with_room_for(response: &FetchResponseData) -> Self {
        let copied = |p: &FetchPartition| {
            let small = p
                .records
                .iter()
                .map(Bytes::len)
                .filter(|&n| n < SPLICE_BYTES);
            64 + small.sum::<usize>() + 17 * p.aborted_transactions.as_ref().map_or(0, Vec::len)
        };
        let topic =
            |t: &FetchTopic| 40 + t.topic.len() + t.partitions.iter().map(copied).sum::<usize>();
        let room = 64 + response.topics.iter().map(topic).sum::<usize>();
        Self {
            buffer: Vec::with_capacity(room),
            ..Self::default()
        }
    }

    fn response(&mut self, response: &FetchResponseData) {
        self.i32(response.throttle_time_ms);
        if self.version >= 7 {
            self.i16(response.error_code);
            self.i32(response.session_id);
        }
        self.array_length(response.topics.len());
        for topic in &response.topics {
            if self.version <= 12 {
                self.string(&topic.topic);
            } else {
                self.buffer.extend_from_slice(topic.topic_id.as_bytes());
            }
            self.array_length(topic.partitions.len());
            for partition in &topic.partitions {
                self.partition(partition);
            }
            self.no_tags();
        }
        if self.version >= 16 && !response.node_endpoints.is_empty() {
            self.uvarint(1);
            let mut value = Self {
                version: self.version,
                ..Self::default()
            };
            value.endpoints(&response.node_endpoints);
            self.tagged(0, &value.buffer);
            self.too_long |= value.too_long;
        } else {
            self.no_tags();
        }
    }

    fn partition(&mut self, partition: &FetchPartition) {
        self.i32(partition.partition_index);
        self.i16(partition.error_code);
        self.i64(partition.high_watermark);
        self.i64(partition.last_stable_offset);
        if self.version >= 5 {
            self.i64(partition.log_start_offset);
        }
        match &partition.aborted_transactions {
            None if self.version >= FLEXIBLE => self.uvarint(0),
            None => self.i32(-1),
            Some(aborted) => {
                self.array_length(aborted.len());
                for &(producer_id, first_offset) in aborted {
                    self.i64(producer_id);
                    self.i64(first_offset);
                    self.no_tags();
                }
            }
        }
        if self.version >= 11 {
            self.i32(partition.preferred_read_replica);
        }
        self.array_length(partition.records_bytes());
        for payload in &partition.records {
            self.payload(payload);
        }
        self.partition_tags(partition);
    }

    fn partition_tags(&mut self, partition: &FetchPartition) {
        if self.version < FLEXIBLE {
            return;
        }
        let diverging = partition.diverging_epoch.map(|(epoch, end_offset)| {
            [&epoch.to_be_bytes()[..], &end_offset.to_be_bytes(), &[0]].concat()
        });
        let leader = partition
            .current_leader
            .map(|(id, epoch)| [&id.to_be_bytes()[..], &epoch.to_be_bytes(), &[0]].concat());
        self.uvarint(diverging.iter().chain(&leader).count());
        if let Some(value) = diverging {
            self.tagged(0, &value);
        }
        if let Some(value) = leader {
            self.tagged(1, &value);
        }
    }

    fn endpoints(&mut self, endpoints: &[NodeEndpoint]) {
        self.array_length(endpoints.len());
        for endpoint in endpoints {
            self.i32(endpoint.node_id);
            self.string(&endpoint.host);
            self.i32(endpoint.port);
            match &endpoint.rack {
                Some(rack) => self.string(rack),
                None => self.uvarint(0),
            }
            self.no_tags();
        }
    }

    fn payload(&mut self, payload: &Bytes) {
        if payload.len() < SPLICE_BYTES {
            self.buffer.extend_from_slice(payload);
        } else {
            self.spliced.push((self.buffer.len(), payload.clone()));
        }
    }

    fn i16(&mut self, value: i16) {
        self.buffer.extend_from_slice(&value.to_be_bytes());
    }

    fn i32(&mut self, value: i32) {
        self.buffer.extend_from_slice(&value.to_be_bytes());
    }

    fn i64(&mut self, value: i64) {
        self.buffer.extend_from_slice(&value.to_be_bytes());
    }

    fn uvarint(&mut self, value: usize) {
        match u32::try_from(value) {
            Ok(value) => put_uvarint(&mut self.buffer, value),
            Err(_) => self.too_long = true,
        }
    }

    /// The length of an array or of bytes.
    fn array_length(&mut self, length: usize) {
        match i32::try_from(length) {
            Ok(_) if self.version >= FLEXIBLE => self.uvarint(length + 1),
            Ok(length) => self.i32(length),
            Err(_) => self.too_long = true,
        }
    }

    fn string(&mut self, text: &str) {
        match i16::try_from(text.len()) {
            Ok(_) if self.version >= FLEXIBLE => self.uvarint(text.len() + 1),
            Ok(length) => self.i16(length),
            Err(_) => self.too_long = true,
        }
        self.buffer.extend_from_slice(text.as_bytes());
    }

    fn tagged(&mut self, tag: usize, value: &[u8]) {
        self.uvarint(tag);
        self.uvarint(value.len());
        self.buffer.extend_from_slice(value);
    }

    fn no_tags(&mut self) {
        if self.version >= FLEXIBLE {
            self.buffer.push(0);
        }
    }

    fn finish(mut self) -> Option<Frame> {
        let spliced: usize = self.spliced.iter().map(|(_, payload)| payload.len()).sum();
        let length = i32::try_from(self.buffer.len() - 4 + spliced).ok()?;
        *self.buffer.first_chunk_mut()? = length.to_be_bytes();
        let buffer = Bytes::from(self.buffer);
        let mut parts = Vec::with_capacity(2 * self.spliced.len() + 1);
        let mut from = 0;
        for (at, payload) in self.spliced {
            if at > from {
                parts.push(buffer.slice(from..at));
                from = at;
            }
            parts.push(payload);
        }
        if from < buffer.len() {
            parts.push(buffer.slice(from..));
        }
        Some(Frame { parts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::response::encode_response;
    use kafka_protocol::messages::fetch_response as typed;
    use kafka_protocol::messages::{FetchResponse, TopicName};
    use kafka_protocol::protocol::StrBytes;

    fn text(s: &str) -> StrBytes {
        StrBytes::from_string(s.to_owned())
    }

    /// The crate refuses to encode set fields that a version lacks, so they are cleared for it.
    fn typed_partition(p: &FetchPartition, version: i16) -> typed::PartitionData {
        let mut out = typed::PartitionData::default()
            .with_partition_index(p.partition_index)
            .with_error_code(p.error_code)
            .with_high_watermark(p.high_watermark)
            .with_last_stable_offset(p.last_stable_offset)
            .with_log_start_offset(p.log_start_offset)
            .with_aborted_transactions(p.aborted_transactions.as_ref().map(|list| {
                let one = |&(id, first): &(i64, i64)| {
                    typed::AbortedTransaction::default()
                        .with_producer_id(id.into())
                        .with_first_offset(first)
                };
                list.iter().map(one).collect()
            }))
            .with_records(Some(p.records.concat().into()));
        if version >= 11 {
            out.preferred_read_replica = p.preferred_read_replica.into();
        }
        if version >= FLEXIBLE {
            if let Some((epoch, end)) = p.diverging_epoch {
                let value = typed::EpochEndOffset::default().with_epoch(epoch);
                out.diverging_epoch = value.with_end_offset(end);
            }
            if let Some((id, epoch)) = p.current_leader {
                let value = typed::LeaderIdAndEpoch::default().with_leader_id(id.into());
                out.current_leader = value.with_leader_epoch(epoch);
            }
        }
        out
    }

    fn typed_response(r: &FetchResponseData, version: i16) -> FetchResponse {
        let mut out = FetchResponse::default()
            .with_throttle_time_ms(r.throttle_time_ms)
            .with_error_code(r.error_code);
        if version >= 7 {
            out.session_id = r.session_id;
        }
        for t in &r.topics {
            let mut topic = typed::FetchableTopicResponse::default();
            if version <= 12 {
                topic.topic = TopicName(text(&t.topic));
            } else {
                topic.topic_id = t.topic_id;
            }
            topic.partitions = t
                .partitions
                .iter()
                .map(|p| typed_partition(p, version))
                .collect();
            out.responses.push(topic);
        }
        if version >= 16 {
            out.node_endpoints = r.node_endpoints.iter().map(typed_endpoint).collect();
        }
        out
    }

    fn typed_endpoint(e: &NodeEndpoint) -> typed::NodeEndpoint {
        typed::NodeEndpoint::default()
            .with_node_id(e.node_id.into())
            .with_host(text(&e.host))
            .with_port(e.port)
            .with_rack(e.rack.as_deref().map(text))
    }

    fn payload(byte: u8, n: usize) -> Bytes {
        Bytes::from(vec![byte; n])
    }

    fn sample() -> FetchResponseData {
        let plain = FetchPartition {
            partition_index: 1,
            high_watermark: 77,
            last_stable_offset: 70,
            log_start_offset: 3,
            records: vec![
                payload(1, 100),
                payload(2, SPLICE_BYTES),
                payload(3, 20_000),
            ],
            ..Default::default()
        };
        let aborted = FetchPartition {
            partition_index: 2,
            aborted_transactions: Some(vec![(9, 1000), (10, 2000)]),
            preferred_read_replica: 5,
            records: vec![payload(4, 50_000), payload(5, 9)],
            ..Default::default()
        };
        let fenced = FetchPartition {
            partition_index: 3,
            error_code: 6,
            diverging_epoch: Some((4, 44)),
            current_leader: Some((2, 8)),
            aborted_transactions: Some(Vec::new()),
            ..Default::default()
        };
        let leader_only = FetchPartition {
            diverging_epoch: None,
            ..fenced.clone()
        };
        let topic = |name: &str, partitions| FetchTopic {
            topic: name.into(),
            topic_id: Uuid::from_u128(0x1234_5678 << 64 | name.len() as u128),
            partitions,
        };
        FetchResponseData {
            throttle_time_ms: 12,
            error_code: 0,
            session_id: 99,
            topics: vec![
                topic("orders", vec![plain, aborted]),
                topic("payments-eu", vec![fenced, leader_only]),
                topic("empty", Vec::new()),
            ],
            node_endpoints: vec![
                NodeEndpoint {
                    node_id: 2,
                    host: "b".into(),
                    port: 9092,
                    rack: None,
                },
                NodeEndpoint {
                    node_id: 3,
                    host: "c".into(),
                    port: 9093,
                    rack: Some("r".into()),
                },
            ],
        }
    }

    #[test]
    fn every_version_is_byte_identical_to_the_crates_encoder() {
        let error = FetchResponseData {
            error_code: 70,
            ..Default::default()
        };
        for response in [sample(), FetchResponseData::default(), error] {
            for version in FIRST_VERSION..=LAST_VERSION {
                let ours = encode(7, version, &response).unwrap();
                let typed = typed_response(&response, version);
                let theirs = encode_response(7, ApiKey::Fetch, version, &typed).unwrap();
                assert_eq!(
                    ours.parts.concat(),
                    theirs.parts.concat(),
                    "version {version}"
                );
                assert!(ours.parts.iter().all(|part| !part.is_empty()));
            }
        }
        assert!(encode(7, 3, &sample()).is_err());
        assert!(encode(7, 19, &sample()).is_err());
    }

    #[test]
    fn large_payloads_are_passed_through() {
        let response = sample();
        let frame = encode(7, 12, &response).unwrap();
        let large = response
            .topics
            .iter()
            .flat_map(|t| &t.partitions)
            .flat_map(|p| &p.records);
        for payload in large.filter(|p| p.len() >= SPLICE_BYTES) {
            let same = |part: &Bytes| part.as_ptr() == payload.as_ptr() && part == payload;
            assert!(frame.parts.iter().any(same));
        }
        assert_eq!(frame.parts.len(), 6);
    }
}
