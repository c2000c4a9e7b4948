//! Produce (key 0), versions 3 to 13; 0 to 2 are offered and their message formats refused.
//!
//! - v3: record batches, transactional id · v5: log start · v7: zstd · v8: errors by record
//! - v9: flexible · v10: current leader · v13: topic ids (KIP-516)
//! - acks 1 and -1 both wait until the records are on stable storage; acks 0 gets no answer, and a
//!   closed connection when its records are refused.
//! - A transactional producer is refused until transactions exist.

use std::sync::Arc;
use std::time::Duration;

use kafka_protocol::messages::ProduceRequest;
use kafka_protocol::messages::produce_request::PartitionProduceData;
use kafka_protocol::messages::produce_response::{
    BatchIndexAndErrorMessage, PartitionProduceResponse, ProduceResponse, TopicProduceResponse,
};
use kafka_protocol::protocol::StrBytes;

use crate::catalog::settings::{TimestampType, TopicSettings};
use crate::catalog::Topic;
use crate::handlers::unpack::{self, Packed};
use crate::handlers::{Answer, CloseReason, Connection, charged, throttle_time};
use crate::partition::directory::{Directory, Room};
use crate::partition::load::Traffic;
use crate::partition::producer_state::Claim;
use crate::partition::registry::ENTRY_OVERHEAD;
use crate::partition::shard::{Stamping, claim_of};
use crate::partition::{Appended, Partition, Prepared, Refused};
use crate::protocol::batch::{self, BatchError, BatchInfo, FlawKind, Opened, Rules};
use crate::protocol::compression::{Codec, CompressionError};
use crate::protocol::error::ErrorCode;
use crate::protocol::header::Header;
use crate::protocol::response::encode_response;
use crate::types::{Offset, Place, Places};

/// Where larger batches are allowed, so many times as much may come out of them.
const GROWTH: u64 = 16;
/// First version whose clients can read zstd.
const FIRST_ZSTD: i16 = 7;
/// First version that names topics by id.
const FIRST_TOPIC_ID: i16 = 13;

/// A refusal of one partition's records.
struct Refusal {
    code: ErrorCode,
    message: Option<String>,
    records: Vec<BatchIndexAndErrorMessage>,
    /// The partition's log start, or -1. Kafka names it if it finds the fault only on append.
    log_start: Offset,
}

impl From<ErrorCode> for Refusal {
    fn from(code: ErrorCode) -> Self {
        Self { code, message: None, records: Vec::new(), log_start: -1 }
    }
}

impl Refusal {
    fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { message: Some(message.into()), ..code.into() }
    }

    fn at(self, partition: &Partition) -> Self {
        Self { log_start: partition.bounds().log_start, ..self }
    }

    fn of_batch(error: &BatchError, partition: &Partition) -> Self {
        let text = match error {
            BatchError::Compression(CompressionError::TooLarge(_)) => format!(
                "{error}; max.decompressed.batch.bytes bounds what comes out of a batch, and \
                 max.message.bytes what it is compressed to where the topic sets compression.type"
            ),
            _ => error.to_string(),
        };
        let refusal = Self::new(error.code(), text);
        if error.names_log_start() { refusal.at(partition) } else { refusal }
    }
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Sealed => ErrorCode::UnknownTopicOrPartition.into(),
            // Nobody is told of it: the batch is tried again where the shard went.
            Refused::Moving => ErrorCode::NotLeaderOrFollower.into(),
            Refused::InvalidProducerEpoch => Self::new(
                ErrorCode::InvalidProducerEpoch,
                "a newer epoch of this producer has written to the partition",
            ),
            Refused::OutOfOrderSequence => Self::new(
                ErrorCode::OutOfOrderSequenceNumber,
                "the batch does not continue the producer's sequence",
            ),
        }
    }
}

/// How far one partition's batch is.
enum Stage {
    /// It passed every check that needs no lock.
    Checked(Arc<Partition>, Prepared),
    /// It has its place in the journal, or is refused.
    Done(Result<Done, Refusal>),
}

/// A batch that has its place.
struct Done {
    response: PartitionProduceResponse,
    place: Place,
    /// How long the client is to pause.
    pause: Duration,
}

/// The partitions of a topic in a request, with their indexes.
type Stages = Vec<(i32, Stage)>;

/// Handles one Produce request.
pub async fn handle(
    cx: &Connection,
    header: &Header,
    request: ProduceRequest,
) -> Result<Answer, CloseReason> {
    let refuse_all = is_transactional(&request)
        .then_some(ErrorCode::TransactionalIdAuthorizationFailed);
    let known_acks = matches!(request.acks, -1..=1);
    let mut checked: Vec<(TopicProduceResponse, Stages)> = Vec::new();
    for topic in request.topic_data {
        let mut response = TopicProduceResponse::default();
        let found = if header.version >= FIRST_TOPIC_ID {
            response.topic_id = topic.topic_id;
            let image = cx.broker.catalog.image();
            image.topic_by_id(topic.topic_id).cloned().ok_or(ErrorCode::UnknownTopicId)
        } else {
            let image = cx.broker.catalog.image();
            let found = image.topic(&topic.name).cloned();
            response.name = topic.name;
            found.ok_or(ErrorCode::UnknownTopicOrPartition)
        };
        let mut partitions = Vec::with_capacity(topic.partition_data.len());
        for data in topic.partition_data {
            let index = data.index;
            let outcome = match (&refuse_all, &found) {
                (Some(code), _) => Err((*code).into()),
                (None, Err(code)) => Err((*code).into()),
                (None, Ok(topic)) => check(cx, topic, data, header.version, known_acks).await,
            };
            let stage = match outcome {
                Ok((partition, batch)) => Stage::Checked(partition, batch),
                Err(refusal) => Stage::Done(Err(refusal)),
            };
            partitions.push((index, stage));
        }
        // A topic of which nothing was sent is not answered, as in Kafka.
        if !partitions.is_empty() {
            checked.push((response, partitions));
        }
    }
    let Outcome { responses, after, failed, pause } = append(cx, checked).await;
    if request.acks == 0 {
        if failed {
            return Err(CloseReason::Refused(
                "records of a Produce with acks=0 were refused; closing the connection is the \
                 only way to tell the client",
            ));
        }
        return Ok(Answer { pause, ..Answer::none() });
    }
    let response = ProduceResponse::default()
        .with_responses(responses)
        .with_throttle_time_ms(throttle_time(pause));
    let frame =
        encode_response(header.correlation_id, header.row.api, header.version, &response)?;
    Ok(charged(cx, Answer { pause, ..Answer::new(frame, after) }).await)
}

/// What came of a request.
#[derive(Default)]
struct Outcome {
    responses: Vec<TopicProduceResponse>,
    /// The answer may leave when this is durable.
    after: Places,
    /// Something was refused.
    failed: bool,
    /// How long the client is to pause.
    pause: Duration,
}

/// Whether any part of the request belongs to a transaction; then all of it is refused.
fn is_transactional(request: &ProduceRequest) -> bool {
    let mut partitions = request.topic_data.iter().flat_map(|topic| &topic.partition_data);
    request.transactional_id.as_ref().is_some_and(|id| !id.is_empty())
        || partitions.any(|data| {
            let records = data.records.as_deref().unwrap_or_default();
            BatchInfo::read(records).is_ok_and(|info| info.is_transactional())
        })
}

/// Sequences everything that passed the checks. Only this part of a request is in order with the
/// other requests of its partitions. One directory comes after the other, so that room in the tail
/// of one is never held while another, slower one has none.
async fn append(cx: &Connection, mut checked: Vec<(TopicProduceResponse, Stages)>) -> Outcome {
    while let Some(home) = next_home(cx, &checked) {
        let waiting = stages(&checked).filter_map(|stage| match stage {
            Stage::Checked(partition, batch) if home_of(cx, partition).no == home.no => Some(batch),
            _ => None,
        });
        let bytes = waiting.map(|batch| batch.payload.len() + ENTRY_OVERHEAD).sum();
        let mut room = home.room(bytes).await;
        for (_, stage) in checked.iter_mut().flat_map(|(_, partitions)| partitions) {
            stage.append_in(cx, &home, room.as_mut());
        }
        drop(room);
        // What could not be sequenced there is on its way elsewhere, and waits without room.
        let waiting = stages(&checked).find_map(|stage| match stage {
            Stage::Checked(partition, _) => Some(Arc::clone(partition)),
            Stage::Done(_) => None,
        });
        if let Some(partition) = waiting {
            partition.settled().await;
        }
    }
    let mut all = Outcome::default();
    for (mut response, partitions) in checked {
        for (index, stage) in partitions {
            match stage {
                Stage::Done(Ok(done)) => {
                    all.after.add(done.place);
                    all.pause = all.pause.max(done.pause);
                    response.partition_responses.push(done.response.with_index(index));
                }
                Stage::Done(Err(refusal)) => {
                    cx.broker.metrics.refused_batches.inc();
                    all.failed = true;
                    response.partition_responses.push(refused(index, refusal));
                }
                // None is left: the loop above goes on until all are done.
                Stage::Checked(..) => {}
            }
        }
        all.responses.push(response);
    }
    all
}

fn stages(checked: &[(TopicProduceResponse, Stages)]) -> impl Iterator<Item = &Stage> {
    checked.iter().flat_map(|(_, partitions)| partitions).map(|(_, stage)| stage)
}

/// A directory in which some batch is still to be sequenced.
fn next_home(cx: &Connection, checked: &[(TopicProduceResponse, Stages)]) -> Option<Arc<Directory>> {
    stages(checked).find_map(|stage| match stage {
        Stage::Checked(partition, _) => Some(home_of(cx, partition)),
        Stage::Done(_) => None,
    })
}

fn home_of(cx: &Connection, partition: &Partition) -> Arc<Directory> {
    let shard = partition.shard();
    let first = cx.broker.partitions.first();
    shard.map_or_else(|| Arc::clone(first), |shard| Arc::clone(&shard.home))
}

impl Stage {
    /// Sequences the batch if its partition lives in this directory, and is not on its way out.
    fn append_in(&mut self, cx: &Connection, home: &Directory, room: Option<&mut Room>) {
        let Self::Checked(partition, batch) = self else { return };
        if home_of(cx, partition).no == home.no {
            let batch = batch.clone();
            if let Some(done) = append_one(cx, home, partition, batch, room) {
                *self = Self::Done(done);
            }
        }
    }
}

/// `None` while the partition's shard is on its way to another directory.
fn append_one(
    cx: &Connection,
    home: &Directory,
    partition: &Partition,
    batch: Prepared,
    room: Option<&mut Room>,
) -> Option<Result<Done, Refusal>> {
    if !home.is_writable() {
        return Some(Err(Refusal::new(
            ErrorCode::KafkaStorageError,
            "the disk is nearly full; writes are refused until there is room",
        )));
    }
    let (bytes, records) = (batch.payload.len(), batch.last_offset_delta as u64 + 1);
    match cx.broker.partitions.append(partition, batch, room) {
        Ok(appended) => Some(Ok(done(cx, partition, appended, bytes, records))),
        Err(Refused::Moving) => None,
        Err(Refused::Sealed) => Some(Err(Refused::Sealed.into())),
        Err(refused) => Some(Err(Refusal::from(refused).at(partition))),
    }
}

fn done(
    cx: &Connection,
    partition: &Partition,
    appended: Appended,
    bytes: usize,
    records: u64,
) -> Done {
    let response = PartitionProduceResponse::default()
        .with_base_offset(appended.base_offset)
        .with_log_append_time_ms(appended.log_append_time_ms)
        .with_log_start_offset(appended.log_start);
    let metrics = &cx.broker.metrics;
    if appended.duplicate {
        metrics.duplicate_batches.inc();
        return Done { response, place: appended.place, pause: Duration::ZERO };
    }
    metrics.produced_batches.inc();
    metrics.produced_records.inc_by(records);
    metrics.produced_bytes.inc_by(bytes as u64);
    let pause = cx.broker.partitions.count(partition, Traffic::written(bytes, records));
    Done { response, place: appended.place, pause }
}

fn refused(index: i32, refusal: Refusal) -> PartitionProduceResponse {
    PartitionProduceResponse::default()
        .with_index(index)
        .with_error_code(refusal.code.code())
        .with_base_offset(-1)
        .with_log_append_time_ms(-1)
        .with_log_start_offset(refusal.log_start)
        .with_record_errors(refusal.records)
        .with_error_message(refusal.message.map(StrBytes::from_string))
}

/// All checks that need no lock.
async fn check(
    cx: &Connection,
    topic: &Topic,
    data: PartitionProduceData,
    version: i16,
    known_acks: bool,
) -> Result<(Arc<Partition>, Prepared), Refusal> {
    let partition = topic
        .partition(data.index)
        .and_then(|key| cx.broker.partitions.get(key))
        .ok_or(ErrorCode::UnknownTopicOrPartition)?;
    let payload = data.records.unwrap_or_default();
    let settings = &topic.settings;
    let bad_batch = |error: BatchError| Refusal::of_batch(&error, &partition);
    let info = batch::validate(&payload).map_err(bad_batch)?;
    let payload = payload.slice(..info.bytes);
    if !known_acks {
        return Err(ErrorCode::InvalidRequiredAcks.into());
    }
    if topic.internal {
        return Err(Refusal::new(
            ErrorCode::InvalidTopicException,
            format!("clients may not write to the internal topic {}", topic.name),
        ));
    }
    if info.bytes > settings.max_message_bytes as usize {
        return Err(Refusal::new(
            ErrorCode::MessageTooLarge,
            format!(
                "the batch has {} bytes, more than max.message.bytes = {} of the topic",
                info.bytes, settings.max_message_bytes
            ),
        ));
    }
    let codec = info.codec().map_err(bad_batch)?;
    if codec == Codec::Zstd && version < FIRST_ZSTD {
        return Err(ErrorCode::UnsupportedCompressionType.into());
    }
    let packed = Packed {
        payload,
        rules: rules(cx, settings),
        target: unpack::target(codec, settings),
        most_bytes: u64::from(settings.max_message_bytes),
    };
    let (opened, payload) = packed.open(&cx.broker.budgets).await.map_err(bad_batch)?;
    refuse_flaws(&opened).map_err(|refusal| refusal.at(&partition))?;
    let stamping = match settings.timestamp_type {
        TimestampType::LogAppendTime => Stamping::LogAppendTime,
        TimestampType::CreateTime
            if opened.max_timestamp == info.max_timestamp
                && info.timestamp_type() == batch::TimestampType::CreateTime =>
        {
            Stamping::Keep
        }
        TimestampType::CreateTime => Stamping::MaxTimestamp(opened.max_timestamp),
    };
    let prepared = Prepared {
        last_offset_delta: info.last_offset_delta,
        max_timestamp: opened.max_timestamp,
        claim: claim_of(&info).map(|claim| Claim {
            is_younger: partition
                .predates(claim.producer_id, cx.broker.catalog.next_producer_id()),
            ..claim
        }),
        stamping,
        charge: 0,
        payload,
    };
    Ok((partition, prepared))
}

fn rules(cx: &Connection, settings: &TopicSettings) -> Rules {
    let now_ms = cx.broker.clock.wall_ms();
    let earliest = now_ms.saturating_sub(settings.timestamp_before_max_ms);
    let latest = now_ms.saturating_add(settings.timestamp_after_max_ms);
    Rules {
        keys_required: settings.cleanup_compact,
        timestamp_type: match settings.timestamp_type {
            TimestampType::CreateTime => batch::TimestampType::CreateTime,
            TimestampType::LogAppendTime => batch::TimestampType::LogAppendTime,
        },
        timestamps: earliest..=latest,
        decompressed_limit: cx
            .broker
            .config
            .max_decompressed_batch_bytes
            .max(GROWTH * u64::from(settings.max_message_bytes)),
        record_limit: u64::from(settings.max_decompressed_bytes),
    }
}

/// Names each record that breaks a rule of the topic (KIP-467).
fn refuse_flaws(opened: &Opened) -> Result<(), Refusal> {
    let Some(first) = opened.flaws.first() else { return Ok(()) };
    let code = match first.kind {
        FlawKind::NullKey => ErrorCode::InvalidRecord,
        FlawKind::Timestamp(_) | FlawKind::LogAppendTime => ErrorCode::InvalidTimestamp,
    };
    let records = opened
        .flaws
        .iter()
        .map(|flaw| {
            let text = match flaw.kind {
                FlawKind::NullKey => None,
                FlawKind::Timestamp(timestamp) => Some(format!(
                    "timestamp {timestamp} of record {} is outside the range the topic takes",
                    flaw.index
                )),
                FlawKind::LogAppendTime => {
                    Some("a producer's batch must not claim log append time".to_string())
                }
            };
            BatchIndexAndErrorMessage::default()
                .with_batch_index(flaw.index)
                .with_batch_index_error_message(text.map(StrBytes::from_string))
        })
        .collect();
    let message = match first.kind {
        FlawKind::NullKey => "a compacted topic takes only records with a key",
        _ => "the batch holds records with timestamps that the topic does not take",
    };
    Err(Refusal { records, ..Refusal::new(code, message) })
}
