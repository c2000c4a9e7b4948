//! One connection: requests are handled one after the other, as in Kafka, but a Produce counts as
//! handled once it is sequenced, so the next Produce may be sequenced while the disk still works on
//! the first.

use std::net::SocketAddr;
use std::time::Duration;

use kafka_protocol::messages::ApiKey;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::frame::{Frame, FrameReader, ReadError};
use super::server::{Phase, Shared};
use super::session::Session;
use super::slow::Timing;
use super::writer::{Client, Count, Queued, WriteEnd, Writer};
use crate::handlers::{self, CloseReason, SMALL_ANSWER};
use crate::metrics::ApiLabel;

/// How long answers get to leave once a connection is to be closed.
const LAST_WRITES: Duration = Duration::from_secs(5);

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum End {
    /// There is no next frame.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A request could not be served.
    #[error(transparent)]
    Request(#[from] CloseReason),
    /// Answers could not be sent.
    #[error(transparent)]
    Write(#[from] WriteEnd),
    /// The client went away while its request waited.
    #[error("closed by the client while its request waited")]
    Gone,
    /// The gateway is going down.
    #[error("the gateway is shutting down")]
    Drained,
}

impl End {
    /// A short word for metrics.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Read(error) => error.word(),
            Self::Request(reason) => reason.word(),
            Self::Write(WriteEnd::Stalled) => "write_stalled",
            Self::Write(_) => "write",
            Self::Gone => "client_while_waiting",
            Self::Drained => "shutdown",
        }
    }

    /// Whether somebody should look into it.
    pub fn is_offence(&self) -> bool {
        match self {
            Self::Read(error) => error.is_offence(),
            Self::Request(_) | Self::Write(WriteEnd::Stalled) => true,
            Self::Write(_) | Self::Gone | Self::Drained => false,
        }
    }
}

/// Serves a connection until it ends.
pub async fn serve<S: Session>(
    stream: TcpStream,
    session: S,
    peer: SocketAddr,
    shared: &Shared,
    mut phase: watch::Receiver<Phase>,
) -> End {
    let (read_half, write_half) = stream.into_split();
    let (queue, answers) = mpsc::channel(shared.config.max_answers);
    let (done, written) = watch::channel(Count::default());
    let name = || session.client_id();
    let client = Client { peer, name: &name };
    let mut writer = Writer::new(write_half, answers, done, shared, client);
    let mut reader = Reader {
        frames: FrameReader::new(read_half, shared.limits.clone()),
        session: &session,
        shared,
        phase: phase.clone(),
        queue: Some(queue),
        queued: Count::default(),
        written,
    };

    let stop = phase.wait_for(|phase| *phase == Phase::Stop);
    // Both sides live in this task: answering a request wakes nobody else.
    let work = async {
        let mut writing = std::pin::pin!(writer.run());
        let end = tokio::select! {
            end = reader.run() => end,
            end = &mut writing => return End::Write(end),
        };
        // What was promised before the connection went wrong is still sent.
        reader.queue = None;
        match tokio::time::timeout(LAST_WRITES, writing).await {
            Ok(WriteEnd::Done) | Err(_) => end,
            Ok(_) if end.is_offence() => end,
            Ok(other) => End::Write(other),
        }
    };
    tokio::select! {
        end = work => end,
        _ = stop => End::Drained,
    }
}

struct Reader<'a, S> {
    frames: FrameReader,
    session: &'a S,
    shared: &'a Shared,
    phase: watch::Receiver<Phase>,
    /// `None` once the connection takes no more requests.
    queue: Option<mpsc::Sender<Queued>>,
    queued: Count,
    written: watch::Receiver<Count>,
}

impl<S: Session> Reader<'_, S> {
    async fn run(&mut self) -> End {
        loop {
            match self.step().await {
                Ok(()) => {}
                Err(end) => return end,
            }
        }
    }

    async fn step(&mut self) -> Result<(), End> {
        let begun = tokio::select! {
            biased;
            _ = self.phase.wait_for(|phase| *phase != Phase::Serve) => return Err(End::Drained),
            begun = self.frames.begin() => begun?,
        };
        // Who does not read the answers must not hold a share of what requests may take.
        let came = Instant::now();
        self.all_written(begun.row.api).await?;
        let behind = came.elapsed();
        let frame = tokio::select! {
            biased;
            _ = self.phase.wait_for(|phase| *phase != Phase::Serve) => return Err(End::Drained),
            frame = self.frames.finish(begun) => frame?,
        };
        self.shared
            .metrics
            .bytes_in
            .inc_by(frame.bytes.len() as u64 + 4);
        let started = Instant::now();
        let (row, memory) = (frame.row, frame.memory);
        let label = ApiLabel { api: row.name };
        let answer = self.handle(frame).await?;
        let pause = answer.pause;
        let queued = Instant::now();
        let handled = queued - started;
        let histogram = self
            .shared
            .metrics
            .request_seconds
            .get_or_create(&label)
            .clone();
        let queued = Queued {
            timing: Timing {
                api: row.name,
                histogram,
                started,
                memory,
                behind,
                handled,
                asked: handlers::asked_wait(row.api, &answer, handled),
                queued,
                durable: queued,
            },
            answer,
        };
        self.queued.add(&queued.answer);
        let Some(queue) = &self.queue else {
            return Err(End::Drained);
        };
        // A full queue stops the reading of this socket.
        queue
            .send(queued)
            .await
            .map_err(|_| End::Write(WriteEnd::Done))?;
        self.pause(pause).await
    }

    /// Reads nothing for a while: how a limit that the client went over is kept to, as by Kafka's
    /// quotas.
    async fn pause(&mut self, pause: Duration) -> Result<(), End> {
        if pause.is_zero() {
            return Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => Ok(()),
            _ = self.phase.wait_for(|phase| *phase != Phase::Serve) => Err(End::Drained),
            () = self.frames.gone() => Err(End::Gone),
        }
    }

    /// Anything but a Produce sees what came before it on this connection, as in Kafka, where a
    /// request is handled after the answer before it was sent. A Produce waits only while many
    /// bytes of answers do, which take no share of a budget.
    async fn all_written(&mut self, api: ApiKey) -> Result<(), End> {
        let queued = self.queued;
        let is_written = |written: &Count| match api {
            ApiKey::Produce => queued.bytes - written.bytes <= SMALL_ANSWER as u64,
            _ => written.answers >= queued.answers,
        };
        match self.written.wait_for(is_written).await {
            Ok(_) => Ok(()),
            Err(_) => Err(End::Write(WriteEnd::Done)),
        }
    }

    async fn handle(&mut self, frame: Frame) -> Result<crate::handlers::Answer, End> {
        let parks = handlers::parks(frame.row.api);
        let call = self.session.call(frame.bytes, frame.permit);
        if !parks {
            return Ok(call.await?);
        }
        tokio::select! {
            biased;
            answer = call => Ok(answer?),
            _ = self.phase.wait_for(|phase| *phase != Phase::Serve) => Err(End::Drained),
            () = self.frames.gone() => Err(End::Gone),
        }
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
