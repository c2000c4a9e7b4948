//! Requests as clients encode them, and answers as clients decode them.

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    ApiKey, FetchRequest, HeartbeatRequest, InitProducerIdRequest, JoinGroupRequest,
    LeaveGroupRequest, OffsetCommitRequest, OffsetFetchRequest, ProduceRequest, RequestHeader,
    ResponseHeader, SyncGroupRequest,
};
use kafka_protocol::protocol::{Decodable, Encodable, StrBytes};

use crate::protocol::error::ErrorCode;
use crate::sim::model::{Sent, State, Verdict};
use crate::types::{DirectoryNo, Offset, PartitionKey, Place, TopicId};

/// An answer's error.
pub(super) fn error_of(code: i16) -> Option<ErrorCode> {
    match code {
        0 => None,
        code => Some(ErrorCode::try_from_code(code).expect("an error that exists")),
    }
}

/// A batch for a partition.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) topic: TopicId,
    pub(super) index: u32,
    pub(super) sent: Sent,
    /// Where it goes, if the topic was there when the server looked.
    pub(super) key: Option<PartitionKey>,
    /// Whether its topic asked for the time of the append then.
    pub(super) stamps: bool,
    /// What the model says that becomes of it, at each look of the server.
    pub(super) expected: Vec<Expected>,
    /// Where it went.
    pub(super) landed: Option<Landed>,
}

/// What becomes of a batch that gets its turn now.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    /// The verdict and the partition's next offset, if its topic is still there.
    pub(super) judged: Option<(Verdict, Offset)>,
    pub(super) home: DirectoryNo,
    /// Whether that directory takes client writes.
    pub(super) writable: bool,
}

/// A batch that has its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Landed {
    pub(super) base: Offset,
    pub(super) place: Place,
    /// The time of its append, or -1.
    pub(super) append_time: i64,
}

impl Part {
    pub(super) fn new(topic: TopicId, index: u32, sent: Sent) -> Self {
        Self {
            topic,
            index,
            sent,
            key: None,
            stamps: false,
            expected: Vec::new(),
            landed: None,
        }
    }
}

/// What a client asks for.
#[derive(Clone, Debug)]
pub(super) enum Asked {
    ProducerId,
    Produce(Vec<Part>),
    Fetch(FetchRequest),
    Join(JoinGroupRequest),
    Sync(SyncGroupRequest),
    Heartbeat(HeartbeatRequest),
    Leave(LeaveGroupRequest),
    Commit(OffsetCommitRequest),
    Offsets(OffsetFetchRequest),
}

/// A request on its way.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) asked: Asked,
    pub(super) api: ApiKey,
    version: i16,
    correlation: i32,
    /// Without the length.
    pub(super) frame: Bytes,
    /// How often it was looked at without being done.
    pub(super) polls: u32,
    /// The time at which the server looked at it first.
    pub(super) noticed_ms: Option<i64>,
    /// Groups that had gone when it was handled.
    pub(super) era: u64,
}

impl Request {
    pub(super) fn new(asked: Asked, correlation: i32) -> Self {
        let c = correlation;
        let (api, version, frame) = match &asked {
            Asked::ProducerId => {
                let request = InitProducerIdRequest::default()
                    .with_transactional_id(None)
                    .with_producer_id((-1).into())
                    .with_producer_epoch(-1);
                encode(ApiKey::InitProducerId, 5, c, &request)
            }
            Asked::Produce(parts) => encode(ApiKey::Produce, 13, c, &produce(parts)),
            Asked::Fetch(request) => encode(ApiKey::Fetch, 17, c, request),
            Asked::Join(request) => encode(ApiKey::JoinGroup, 9, c, request),
            Asked::Sync(request) => encode(ApiKey::SyncGroup, 5, c, request),
            Asked::Heartbeat(request) => encode(ApiKey::Heartbeat, 4, c, request),
            Asked::Leave(request) => encode(ApiKey::LeaveGroup, 5, c, request),
            Asked::Commit(request) => encode(ApiKey::OffsetCommit, 9, c, request),
            Asked::Offsets(request) => encode(ApiKey::OffsetFetch, 9, c, request),
        };
        Self {
            asked,
            api,
            version,
            correlation,
            frame,
            polls: 0,
            noticed_ms: None,
            era: 0,
        }
    }

    /// The server looks at it for the first time: topics are looked up as they are now.
    pub(super) fn notice(&mut self, durable: &State, now_ms: i64) {
        if self.noticed_ms.is_some() {
            return;
        }
        self.noticed_ms = Some(now_ms);
        if let Asked::Produce(parts) = &mut self.asked {
            for part in parts {
                part.key = durable.partition(part.topic, part.index);
                let topic = durable.topics.values().find(|t| t.id == part.topic);
                part.stamps = topic.is_some_and(|topic| topic.stamps);
            }
        }
    }

    /// The body of its answer.
    pub(super) fn decode<R: Decodable>(&self, frame: &Bytes) -> R {
        let mut frame = frame.clone();
        let length = frame.split_to(4);
        let length = u32::from_be_bytes(length[..].try_into().expect("four bytes"));
        assert_eq!(length as usize, frame.len(), "one whole frame");
        let version = self.api.response_header_version(self.version);
        let header = ResponseHeader::decode(&mut frame, version).expect("a header");
        assert_eq!(header.correlation_id, self.correlation, "answers in order");
        let response = R::decode(&mut frame, self.version).expect("a response");
        assert!(frame.is_empty(), "nothing behind it");
        response
    }
}

fn produce(parts: &[Part]) -> ProduceRequest {
    let topics = parts.iter().map(|part| {
        let data = PartitionProduceData::default()
            .with_index(part.index as i32)
            .with_records(Some(part.sent.payload.clone()));
        TopicProduceData::default()
            .with_topic_id(part.topic)
            .with_partition_data(vec![data])
    });
    ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(30_000)
        .with_topic_data(topics.collect())
}

fn encode<R: Encodable>(
    api: ApiKey,
    version: i16,
    correlation: i32,
    request: &R,
) -> (ApiKey, i16, Bytes) {
    let header = RequestHeader::default()
        .with_request_api_key(api as i16)
        .with_request_api_version(version)
        .with_correlation_id(correlation)
        .with_client_id(Some(StrBytes::from_static_str("sim")));
    let mut frame = BytesMut::new();
    let header_version = api.request_header_version(version);
    header.encode(&mut frame, header_version).expect("a header");
    request.encode(&mut frame, version).expect("a request");
    (api, version, frame.freeze())
}
