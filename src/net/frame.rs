//! Frames off a socket. The length is bounded before anything is read for it, a frame takes its
//! share of the request budget, and memory is reserved in steps as bytes arrive.

use std::io;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::ApiKey;
use tokio::net::tcp::OwnedReadHalf;
use tokio::time::{Instant, timeout_at};

use crate::budget::{Budget, Permit};
use crate::protocol::api::{self, ApiRow};
use crate::protocol::header::HeaderError;

/// One read of the socket.
const READ_BYTES: usize = 8 << 10;
/// Longest frame that shares a buffer with others. It takes its share of the budget only once it is
/// whole, so that clients which stop in the middle of one keep nobody else waiting.
const SHARING_FRAME: usize = READ_BYTES - 4;
/// How much of a longer frame must have come before it takes its share.
const FIRST_BYTES: usize = 4 << 10;
/// Longest frame of an API other than Produce that counts against the budget of small requests.
const SMALL_FRAME: usize = 64 << 10;
/// How long a frame may come too slowly while others wait for the share it holds.
const STALL: Duration = Duration::from_secs(2);

/// A whole request.
#[derive(Debug)]
pub struct Frame {
    /// The API's row.
    pub row: &'static ApiRow,
    /// The frame without its length.
    pub bytes: Bytes,
    /// Its share of the request budget.
    pub permit: Permit,
    /// How long it waited for that.
    pub memory: Duration,
}

/// A frame of which the API is known and not much more has been read.
#[derive(Debug)]
pub struct Begun {
    /// The API's row.
    pub row: &'static ApiRow,
    size: usize,
}

/// Why there is no next frame.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The client closed the connection between two requests.
    #[error("closed by the client")]
    Closed,
    /// The client closed the connection within a request.
    #[error("closed by the client within a request")]
    ClosedWithin,
    /// Nothing came for `connections.max.idle.ms`.
    #[error("idle for too long")]
    Idle,
    /// A length that no frame has, or that is over the bound.
    #[error("a request of {length} bytes{api} is refused, the most is {most} bytes ({key})")]
    Length {
        /// As the client sent it.
        length: i32,
        /// `" for API"`, once it is known.
        api: String,
        /// The bound.
        most: usize,
        /// Where the bound comes from.
        key: &'static str,
    },
    /// The bytes are of another protocol.
    #[error("{0}")]
    Foreign(&'static str),
    /// An API that is not served.
    #[error(transparent)]
    UnknownApi(HeaderError),
    /// The request took too long to arrive.
    #[error("a request did not arrive whole within frame.timeout.ms")]
    Slow,
    /// The request came too slowly while others waited for its share of the budget.
    #[error("a request came too slowly for frame.timeout.ms while others waited for memory")]
    Stalled,
    /// The socket failed.
    #[error("reading failed: {0}")]
    Io(io::Error),
}

impl ReadError {
    /// A short word for metrics.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Closed => "client",
            Self::ClosedWithin => "client_within_request",
            Self::Idle => "idle",
            Self::Length { .. } => "length",
            Self::Foreign(_) => "foreign",
            Self::UnknownApi(_) => "header",
            Self::Slow => "slow",
            Self::Stalled => "stalled",
            Self::Io(_) => "io",
        }
    }

    /// Whether the client did something that it should not.
    pub fn is_offence(&self) -> bool {
        matches!(
            self,
            Self::Length { .. }
                | Self::Foreign(_)
                | Self::UnknownApi(_)
                | Self::Slow
                | Self::Stalled
        )
    }
}

/// Bounds that all connections share.
#[derive(Clone, Debug)]
pub struct ReadLimits {
    /// `socket.request.max.bytes`.
    pub max_bytes: usize,
    /// `connections.max.idle.ms`.
    pub max_idle: Duration,
    /// `frame.timeout.ms`.
    pub frame_timeout: Duration,
    /// Frames being read and handled.
    pub requests: Budget,
    /// Small frames of APIs other than Produce.
    pub small_requests: Budget,
}

/// The reading side of a connection.
#[derive(Debug)]
pub struct FrameReader {
    socket: OwnedReadHalf,
    buffer: BytesMut,
    limits: ReadLimits,
}

impl FrameReader {
    /// A reader that has read nothing yet.
    pub fn new(socket: OwnedReadHalf, limits: ReadLimits) -> Self {
        Self {
            socket,
            buffer: BytesMut::new(),
            limits,
        }
    }

    /// Waits for the next frame until it is known what it is. It holds no share of a budget yet.
    pub async fn begin(&mut self) -> Result<Begun, ReadError> {
        self.first_byte().await?;
        let deadline = Instant::now() + self.limits.frame_timeout;
        self.fill(4, deadline).await?;
        let length = self.buffered_i32();
        let size = self.check_length(length)?;
        self.fill(4 + size.min(2), deadline).await?;
        let row = self.row(size)?;
        self.check_row(length, row)?;
        Ok(Begun { row, size })
    }

    /// The frame that has begun, with its share of the budget. While the budget is used up nothing
    /// is read, which is how a client learns to wait.
    pub async fn finish(&mut self, begun: Begun) -> Result<Frame, ReadError> {
        let Begun { row, size } = begun;
        let deadline = Instant::now() + self.limits.frame_timeout;
        let whole = size <= SHARING_FRAME;
        let first = if whole { size } else { FIRST_BYTES };
        self.fill(4 + first, deadline).await?;

        let before = Instant::now();
        let budget = self.budget(row, size).clone();
        let permit = budget.acquire(size as u64).await;
        // Time spent waiting for others is not the client's.
        let memory = before.elapsed();
        let deadline = deadline + memory;
        self.buffer.advance(4);
        let bytes = if whole {
            self.buffer.split_to(size).freeze()
        } else {
            self.read_large(size, deadline, &budget).await?
        };
        Ok(Frame {
            row,
            bytes,
            permit,
            memory,
        })
    }

    /// Resolves once the client has gone away; never while it has sent more requests.
    pub async fn gone(&mut self) {
        if self.buffer.is_empty() && matches!(self.socket.peek(&mut [0]).await, Ok(0) | Err(_)) {
            return;
        }
        std::future::pending().await
    }

    /// Waits for the next request without holding a buffer: most connections are idle.
    async fn first_byte(&mut self) -> Result<(), ReadError> {
        if !self.buffer.is_empty() {
            return Ok(());
        }
        self.buffer = BytesMut::new();
        let idle = Instant::now() + self.limits.max_idle;
        match timeout_at(idle, self.read_some()).await {
            Err(_) => Err(ReadError::Idle),
            Ok(Err(ReadError::ClosedWithin)) => Err(ReadError::Closed),
            Ok(other) => other,
        }
    }

    /// Reads until `bytes` are in the buffer.
    async fn fill(&mut self, bytes: usize, deadline: Instant) -> Result<(), ReadError> {
        while self.buffer.len() < bytes {
            timeout_at(deadline, self.read_some())
                .await
                .map_err(|_| ReadError::Slow)??;
        }
        Ok(())
    }

    async fn read_some(&mut self) -> Result<(), ReadError> {
        loop {
            self.socket.readable().await.map_err(ReadError::Io)?;
            if self.buffer.capacity() - self.buffer.len() < READ_BYTES / 2 {
                self.buffer.reserve(READ_BYTES);
            }
            match self.socket.try_read_buf(&mut self.buffer) {
                Ok(0) => return Err(ReadError::ClosedWithin),
                Ok(_) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(ReadError::Io(e)),
            }
        }
    }

    /// Reads a frame into a buffer of its own, straight from the socket.
    async fn read_large(
        &mut self,
        size: usize,
        deadline: Instant,
        budget: &Budget,
    ) -> Result<Bytes, ReadError> {
        let mut own = BytesMut::with_capacity(next_capacity(0, size));
        let buffered = self.buffer.len().min(size);
        own.extend_from_slice(&self.buffer[..buffered]);
        self.buffer.advance(buffered);
        let pace = pace(size, self.limits.frame_timeout);
        let mut from = own.len();
        let mut stall = Instant::now() + STALL;
        while own.len() < size {
            if Instant::now() >= stall {
                if own.len() - from < pace && budget.waiting() > 0 {
                    return Err(ReadError::Stalled);
                }
                from = own.len();
                stall = Instant::now() + STALL;
            }
            if own.len() == own.capacity() {
                own.reserve(next_capacity(own.len(), size) - own.len());
            }
            let room = size.min(own.capacity()) - own.len();
            match timeout_at(stall.min(deadline), self.socket.readable()).await {
                Ok(ready) => ready.map_err(ReadError::Io)?,
                Err(_) if Instant::now() >= deadline => return Err(ReadError::Slow),
                Err(_) => continue,
            }
            match self.socket.try_read_buf(&mut (&mut own).limit(room)) {
                Ok(0) => return Err(ReadError::ClosedWithin),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(ReadError::Io(e)),
            }
        }
        Ok(own.freeze())
    }

    fn buffered_i32(&self) -> i32 {
        self.buffer
            .first_chunk()
            .map_or(-1, |bytes| i32::from_be_bytes(*bytes))
    }

    fn check_length(&self, length: i32) -> Result<usize, ReadError> {
        match usize::try_from(length) {
            Ok(size) if size <= self.limits.max_bytes => Ok(size),
            _ => Err(match foreign(length) {
                Some(protocol) => ReadError::Foreign(protocol),
                None => ReadError::Length {
                    length,
                    api: String::new(),
                    most: self.limits.max_bytes,
                    key: "socket.request.max.bytes",
                },
            }),
        }
    }

    /// The row of the request whose first bytes are buffered.
    fn row(&self, size: usize) -> Result<&'static ApiRow, ReadError> {
        let key = match self.buffer.get(4..6) {
            Some(&[high, low]) if size >= 2 => i16::from_be_bytes([high, low]),
            _ => -1,
        };
        api::lookup(key).ok_or_else(|| {
            let begun = self.buffer.get(4..).unwrap_or_default();
            ReadError::UnknownApi(HeaderError::unknown_api(key, begun))
        })
    }

    fn check_row(&self, length: i32, row: &ApiRow) -> Result<(), ReadError> {
        // Produce is bounded by the user's key alone.
        let bounded = row.api != ApiKey::Produce;
        if bounded && usize::try_from(length).is_ok_and(|size| size > row.max_frame_bytes) {
            return Err(ReadError::Length {
                length,
                api: format!(" for {}", row.name),
                most: row.max_frame_bytes,
                key: "a bound of this API",
            });
        }
        Ok(())
    }

    fn budget(&self, row: &ApiRow, size: usize) -> &Budget {
        if row.api != ApiKey::Produce && size <= SMALL_FRAME {
            &self.limits.small_requests
        } else {
            &self.limits.requests
        }
    }
}

/// Other protocols, read as a length.
fn foreign(length: i32) -> Option<&'static str> {
    match &length.to_be_bytes() {
        [0x16, 3, ..] => Some(
            "the client begins with TLS on a plaintext listener: set security.protocol=PLAINTEXT \
             in the client, TLS is not served here",
        ),
        b"GET " | b"POST" | b"HEAD" | b"PUT " | b"OPTI" | b"DELE" | b"PATC" | b"CONN" => Some(
            "the client speaks HTTP on a listener for Kafka clients: health and metrics are \
             served on admin.port",
        ),
        b"PROX" | b"\r\n\r\n" => Some(
            "a proxy in front begins with the PROXY protocol: switch that off, it is not read here",
        ),
        b"SSH-" => Some("the client speaks SSH on a listener for Kafka clients"),
        _ => None,
    }
}

/// What has to come within [`STALL`] for a frame to be whole in time. Whoever sends less would be
/// cut off in the end anyway, and has the share to itself until then.
fn pace(size: usize, frame_timeout: Duration) -> usize {
    let part = STALL.as_secs_f64() / frame_timeout.as_secs_f64().max(0.001);
    ((size as f64 * part) as usize).max(1)
}

/// A claim of many bytes is believed step by step: what is reserved is at most 16 times what came.
fn next_capacity(came: usize, size: usize) -> usize {
    let step = if came < SMALL_FRAME {
        SMALL_FRAME
    } else if came < 1 << 20 {
        1 << 20
    } else {
        came.saturating_mul(4)
    };
    step.min(size)
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
