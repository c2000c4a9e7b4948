//! From a frame to its answer: header → API row → guard → typed decode → handler → encode.
//!
//! One file per API. A handler never waits for durability: its reply carries the position of the
//! last change of what it shows, and the connection holds the answer back until that is durable.

use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::ApiKey;
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion};
use parking_lot::Mutex;

use crate::broker::Broker;
use crate::budget::{Budget, Permit};
use crate::config::Listener;
use crate::metrics::ApiLabel;
use crate::protocol::guard;
pub use crate::protocol::header::shortened;
use crate::protocol::header::{self, Header, HeaderError};
use crate::protocol::response::{EncodeError, Frame, encode_response};
use crate::types::Places;

/// What a client told about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientInfo {
    /// `client.id` of the last request.
    pub client_id: Option<String>,
    /// The client library's name, from ApiVersions.
    pub software_name: Option<String>,
    /// The client library's version, from ApiVersions.
    pub software_version: Option<String>,
}

/// One client connection, as handlers see it.
pub struct Connection {
    /// Counted from 1 in this process.
    pub id: u64,
    /// The gateway.
    pub broker: Arc<Broker>,
    /// Memory of decoded requests that hold many elements, over all connections.
    pub decoded: Budget,
    /// Where it came in, with the port that was really bound.
    pub listener: Arc<Listener>,
    /// The other side.
    pub peer: SocketAddr,
    /// What the client told about itself.
    pub client: Mutex<ClientInfo>,
}

/// A handler's response, before it is encoded.
#[derive(Debug)]
pub struct Reply<R> {
    /// The response.
    pub response: R,
    /// It is sent once these places are durable.
    pub after: Places,
}

impl<R> Reply<R> {
    /// A response that shows a change which must be durable before anybody hears of it.
    pub fn after(response: R, after: impl Into<Places>) -> Self {
        let after = after.into();
        Self { response, after }
    }
}

impl<R> From<R> for Reply<R> {
    fn from(response: R) -> Self {
        Self {
            response,
            after: Places::default(),
        }
    }
}

/// An answer in the queue of its connection.
#[derive(Default)]
pub struct Answer {
    /// What to send; nothing for a Produce with acks=0.
    pub frame: Option<Frame>,
    /// Sent once these places are durable.
    pub after: Places,
    /// Close the connection once it is sent.
    pub close: bool,
    /// The connection's next request is read so much later.
    pub pause: Duration,
    /// How long the client asked to wait for something to answer with.
    pub asked_wait: Duration,
    /// Kept until the frame is written: budget shares, pins on segment files.
    pub hold: Option<Box<dyn Any + Send>>,
}

impl Answer {
    /// An answer of one frame.
    pub fn new(frame: Frame, after: impl Into<Places>) -> Self {
        Self {
            frame: Some(frame),
            after: after.into(),
            close: false,
            pause: Duration::ZERO,
            asked_wait: Duration::ZERO,
            hold: None,
        }
    }

    /// The same answer, which holds a share of a budget.
    pub fn holding(self, share: Permit) -> Self {
        Self {
            hold: Some(Box::new(share)),
            ..self
        }
    }

    /// No answer at all, as a Produce with acks=0 gets.
    pub fn none() -> Self {
        Self::default()
    }
}

/// Why the gateway ends a connection by itself.
#[derive(Debug, thiserror::Error)]
pub enum CloseReason {
    /// The header cannot be served.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The body is not what its API and version say.
    #[error("{api} version {version} from client {client} is malformed: {reason}")]
    Malformed {
        /// Kafka's name of the API.
        api: &'static str,
        /// The version.
        version: i16,
        /// `client.id` as it is shown.
        client: String,
        /// What is wrong.
        reason: String,
    },
    /// A fault of this server.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// Kafka closes the connection in this case too.
    #[error("{0}")]
    Refused(&'static str),
}

impl CloseReason {
    /// A short word for metrics.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Header(_) => "header",
            Self::Malformed { .. } => "malformed",
            Self::Encode(_) => "encode",
            Self::Refused(_) => "refused",
        }
    }
}

/// Shares of the budgets for a request's frame and for what it is decoded into.
type Permits = [Permit; 2];

/// Declares the handlers, one line per API: the file, the API, the request type. `typed` handlers
/// return a `Reply`; `framed` ones build their `Answer` themselves.
macro_rules! handlers {
    (
        typed { $($typed:ident: $typed_api:ident($typed_request:ident),)* }
        framed { $($framed:ident: $framed_api:ident($framed_request:ident),)* }
    ) => {
        $(pub mod $typed;)*
        $(pub mod $framed;)*

        /// Whether an API has a handler.
        pub fn handles(api: ApiKey) -> bool {
            match api {
                $(ApiKey::$typed_api => true,)*
                $(ApiKey::$framed_api => true,)*
                _ => false,
            }
        }

        async fn call(
            cx: &Arc<Connection>,
            header: &Header,
            body: Bytes,
            permits: Permits,
        ) -> Result<Answer, CloseReason> {
            // Boxed, so that an idle connection does not carry the largest handler's state.
            match header.row.api {
                $(ApiKey::$typed_api => {
                    let body_again = only_reads(header.row.api).then(|| body.clone());
                    let request: kafka_protocol::messages::$typed_request = decode(header, body)?;
                    let _held = held_while_handled(header, permits);
                    let reply = Box::pin($typed::handle(cx, request, header.version)).await;
                    let answer = respond(header, reply)?;
                    let Some(body) = body_again else {
                        return Ok(charged(cx, answer).await);
                    };
                    let share = match charged_or_again(cx, answer).await {
                        Ok(answer) => return Ok(answer),
                        Err(share) => share,
                    };
                    let request: kafka_protocol::messages::$typed_request = decode(header, body)?;
                    let reply = Box::pin($typed::handle(cx, request, header.version)).await;
                    Ok(respond(header, reply)?.holding(share))
                })*
                $(ApiKey::$framed_api => {
                    let request: kafka_protocol::messages::$framed_request = decode(header, body)?;
                    let _held = held_while_handled(header, permits);
                    Box::pin($framed::handle(cx, header, request)).await
                })*
                _ => {
                    drop((cx, permits));
                    Err(HeaderError::unknown_api(header.api_key, &body).into())
                }
            }
        }
    };
}

mod alterations;
mod answers;
mod text;
mod unpack;

handlers! {
    typed {
        alter_configs: AlterConfigs(AlterConfigsRequest),
        api_versions: ApiVersions(ApiVersionsRequest),
        create_partitions: CreatePartitions(CreatePartitionsRequest),
        create_topics: CreateTopics(CreateTopicsRequest),
        delete_records: DeleteRecords(DeleteRecordsRequest),
        delete_topics: DeleteTopics(DeleteTopicsRequest),
        describe_cluster: DescribeCluster(DescribeClusterRequest),
        describe_configs: DescribeConfigs(DescribeConfigsRequest),
        describe_log_dirs: DescribeLogDirs(DescribeLogDirsRequest),
        describe_topic_partitions: DescribeTopicPartitions(DescribeTopicPartitionsRequest),
        incremental_alter_configs: IncrementalAlterConfigs(IncrementalAlterConfigsRequest),
        init_producer_id: InitProducerId(InitProducerIdRequest),
        metadata: Metadata(MetadataRequest),
        offset_for_leader_epoch: OffsetForLeaderEpoch(OffsetForLeaderEpochRequest),
        list_offsets: ListOffsets(ListOffsetsRequest),
        find_coordinator: FindCoordinator(FindCoordinatorRequest),
        join_group: JoinGroup(JoinGroupRequest),
        sync_group: SyncGroup(SyncGroupRequest),
        heartbeat: Heartbeat(HeartbeatRequest),
        leave_group: LeaveGroup(LeaveGroupRequest),
        offset_commit: OffsetCommit(OffsetCommitRequest),
        offset_fetch: OffsetFetch(OffsetFetchRequest),
        describe_groups: DescribeGroups(DescribeGroupsRequest),
        list_groups: ListGroups(ListGroupsRequest),
        delete_groups: DeleteGroups(DeleteGroupsRequest),
        offset_delete: OffsetDelete(OffsetDeleteRequest),
    }
    framed {
        fetch: Fetch(FetchRequest),
        produce: Produce(ProduceRequest),
    }
}

/// Handles one request. `permit` is the frame's share of the request budget.
pub async fn dispatch(
    cx: &Arc<Connection>,
    frame: Bytes,
    permit: Permit,
) -> Result<Answer, CloseReason> {
    let header = header::parse(&frame)?;
    note_client(cx, &header);
    let label = ApiLabel {
        api: header.row.name,
    };
    cx.broker.metrics.requests.get_or_create(&label).inc();
    if !header.row.decodes(header.version) {
        // Only ApiVersions comes here; its refusal is laid out as version 0 whatever was asked.
        let refusal = Reply::from(api_versions::unsupported());
        return respond(
            &Header {
                version: 0,
                ..header
            },
            refusal,
        );
    }
    let body = frame.slice(header.body_offset..);
    drop(frame);
    let checked = guard::check(header.row, header.version, &body)
        .map_err(|e| malformed(&header, e.to_string()))?;
    let body = if checked.odd {
        guard::plain(header.row, header.version, &body)
            .map_err(|e| malformed(&header, e.to_string()))?
            .into()
    } else {
        body
    };
    let permits = [permit, decoded_share(cx, checked.decoded_bytes()).await];
    call(cx, &header, body, permits).await
}

/// Bytes of an answer that takes no share of the budget for answers. Few of them wait on one
/// connection, so that their number is bounded by the number of connections.
pub const SMALL_ANSWER: usize = 64 << 10;

/// Takes a share of the budget for answers, if this is a large one. It takes up memory while it
/// waits, in proportion to its request, whose share of the request budgets is held meanwhile.
async fn charged(cx: &Connection, answer: Answer) -> Answer {
    match large(&answer) {
        None => answer,
        Some(bytes) => answer.holding(cx.broker.budgets.responses.acquire(bytes).await),
    }
}

/// The same for one that can be made again from its request: if it has to wait, it is let go of,
/// and what is given back is the share to make it with.
async fn charged_or_again(cx: &Connection, answer: Answer) -> Result<Answer, Permit> {
    let budget = &cx.broker.budgets.responses;
    let Some(bytes) = large(&answer) else {
        return Ok(answer);
    };
    match budget.try_acquire(bytes) {
        Some(share) => Ok(answer.holding(share)),
        None => {
            drop(answer);
            Err(budget.acquire(bytes).await)
        }
    }
}

/// The bytes of an answer, if that is what takes a share.
fn large(answer: &Answer) -> Option<u64> {
    let bytes = answer.frame.as_ref().map_or(0, Frame::len);
    (bytes > SMALL_ANSWER).then_some(bytes as u64)
}

/// Whether a request of an API may be handled once more in place of its answer. What it makes on
/// its way, such as a topic, is there the second time.
fn only_reads(api: ApiKey) -> bool {
    matches!(
        api,
        ApiKey::Metadata
            | ApiKey::ListOffsets
            | ApiKey::OffsetFetch
            | ApiKey::OffsetForLeaderEpoch
            | ApiKey::DescribeConfigs
            | ApiKey::DescribeGroups
            | ApiKey::DescribeLogDirs
            | ApiKey::DescribeTopicPartitions
            | ApiKey::ListGroups
    )
}

/// Whether requests of an API may wait for others (or for data) before they are answered.
pub fn parks(api: ApiKey) -> bool {
    matches!(api, ApiKey::Fetch | ApiKey::JoinGroup | ApiKey::SyncGroup)
}

/// How much of the time in a handler its client asked for: a Fetch says how long it waits for
/// records, members of a group wait for one another.
pub fn asked_wait(api: ApiKey, answer: &Answer, handled: Duration) -> Duration {
    match api {
        ApiKey::JoinGroup | ApiKey::SyncGroup => handled,
        _ => answer.asked_wait.min(handled),
    }
}

/// A request that may wait for others must not hold a share of the budget while it does.
fn held_while_handled(header: &Header, permits: Permits) -> Option<Permits> {
    (!parks(header.row.api)).then_some(permits)
}

/// Elements cost far more decoded than on the wire. Few requests hold enough of them to matter, and
/// those wait for one another.
async fn decoded_share(cx: &Connection, bytes: usize) -> Permit {
    const UNCOUNTED: usize = 256 << 10;
    match bytes <= UNCOUNTED {
        true => Permit::empty(),
        false => cx.decoded.acquire(bytes as u64).await,
    }
}

/// A pause as answers name it, in milliseconds.
fn throttle_time(pause: Duration) -> i32 {
    i32::try_from(pause.as_millis()).unwrap_or(i32::MAX)
}

fn note_client(cx: &Connection, header: &Header) {
    let mut client = cx.client.lock();
    if client.client_id.as_deref() != header.client_id.as_deref() {
        client.client_id = header.client_id.as_ref().map(|id| id.to_string());
    }
}

fn malformed(header: &Header, reason: String) -> CloseReason {
    CloseReason::Malformed {
        api: header.row.name,
        version: header.version,
        client: header::quoted(header.client_id.as_deref()),
        reason,
    }
}

fn decode<R: Decodable>(header: &Header, mut body: Bytes) -> Result<R, CloseReason> {
    R::decode(&mut body, header.version).map_err(|e| malformed(header, e.to_string()))
}

fn respond<R: Encodable + HeaderVersion>(
    header: &Header,
    reply: Reply<R>,
) -> Result<Answer, CloseReason> {
    let frame = encode_response(
        header.correlation_id,
        header.row.api,
        header.version,
        &reply.response,
    )?;
    Ok(Answer::new(frame, reply.after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::api::ROWS;

    /// Guards against an API that is advertised and does not work.
    #[test]
    fn every_api_in_the_table_has_a_handler() {
        let missing: Vec<_> = ROWS.iter().filter(|row| !handles(row.api)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
