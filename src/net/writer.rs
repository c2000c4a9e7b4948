//! Answers leave in request order, each when what it shows is durable.

use std::any::Any;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Buf, Bytes};
use prometheus_client::metrics::counter::Counter;
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::server::Shared;
use super::slow::Timing;
use crate::budget::Budget;
use crate::handlers::Answer;
use crate::store::journal::Durable;

/// Linux takes no more slices in one call.
const MAX_SLICES: usize = 1_024;
/// Answers are gathered for one call up to about this many bytes.
const GATHER_BYTES: usize = 1 << 20;
/// How long a client may read too slowly while others want the share its answer holds.
const STALL: Duration = Duration::from_secs(10);
/// Who needs longer for an answer reads too slowly: clients themselves wait half of it by default.
const ANSWER_TIME: Duration = Duration::from_secs(60);

/// An answer in its connection's queue.
pub struct Queued {
    /// What the handler gave.
    pub answer: Answer,
    /// Where its time went so far.
    pub timing: Timing,
}

/// Answers of a connection, counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    /// How many.
    pub answers: u64,
    /// The bytes of those that take no share of a budget.
    pub bytes: u64,
}

impl Count {
    /// Counts one more.
    pub fn add(&mut self, answer: &Answer) {
        self.answers += 1;
        if answer.hold.is_none() {
            let bytes = answer.frame.as_ref().map_or(0, |frame| frame.len());
            self.bytes += bytes as u64;
        }
    }
}

/// Why writing ended.
#[derive(Debug, thiserror::Error)]
pub enum WriteEnd {
    /// The reader is done and everything is written.
    #[error("done")]
    Done,
    /// An answer asked for the connection to be closed.
    #[error("closed after an answer")]
    Asked,
    /// The client did not take an answer in time.
    #[error("the client read its answers too slowly, or not at all")]
    Stalled,
    /// The journal is closed, so what is left can't be promised any more.
    #[error("the journal is closed")]
    JournalClosed,
    /// The socket failed.
    #[error("writing failed: {0}")]
    Io(io::Error),
}

/// Whose answers they are, for log lines.
pub struct Client<'a> {
    /// The other side.
    pub peer: SocketAddr,
    /// What it calls itself.
    pub name: &'a (dyn Fn() -> Option<String> + Sync),
}

/// The writing side of a connection.
pub struct Writer<'a> {
    socket: OwnedWriteHalf,
    queue: mpsc::Receiver<Queued>,
    durable: Durable,
    /// What was taken off the queue and done with; the reader follows it.
    done: watch::Sender<Count>,
    max_stall: Duration,
    responses: Budget,
    bytes_out: Counter,
    slow: Option<Duration>,
    client: Client<'a>,
    batch: Batch,
}

/// Answers that go into one vectored write.
#[derive(Default)]
struct Batch {
    parts: VecDeque<Bytes>,
    bytes: usize,
    count: Count,
    held: Vec<Box<dyn Any + Send>>,
    timings: Vec<Timing>,
    close: bool,
}

impl Batch {
    fn add(&mut self, queued: Queued) {
        self.count.add(&queued.answer);
        let Answer {
            frame, close, hold, ..
        } = queued.answer;
        if let Some(frame) = frame {
            self.bytes += frame.len();
            self.parts
                .extend(frame.parts.into_iter().filter(|part| !part.is_empty()));
        }
        self.held.extend(hold);
        self.timings.push(Timing {
            durable: Instant::now(),
            ..queued.timing
        });
        self.close |= close;
    }

    fn is_full(&self) -> bool {
        self.close || self.bytes >= GATHER_BYTES || self.parts.len() >= MAX_SLICES
    }
}

impl<'a> Writer<'a> {
    /// A writer that takes answers off `queue` and counts in `done` what it is done with.
    pub fn new(
        socket: OwnedWriteHalf,
        queue: mpsc::Receiver<Queued>,
        done: watch::Sender<Count>,
        shared: &Shared,
        client: Client<'a>,
    ) -> Self {
        Self {
            socket,
            queue,
            durable: shared.durable.clone(),
            done,
            max_stall: shared.config.max_idle,
            responses: shared.responses.clone(),
            bytes_out: shared.metrics.bytes_out.clone(),
            slow: shared.config.slow_request,
            client,
            batch: Batch::default(),
        }
    }

    /// Writes until the reader is done or something ends the connection.
    pub async fn run(&mut self) -> WriteEnd {
        let mut next = None;
        loop {
            let first = match next.take() {
                Some(queued) => queued,
                None => match self.queue.recv().await {
                    Some(queued) => queued,
                    None => return WriteEnd::Done,
                },
            };
            // The wait holds no lock and no share of the request budget.
            if self.durable.wait(&first.answer.after).await.is_err() {
                return WriteEnd::JournalClosed;
            }
            self.batch.add(first);
            next = self.gather();
            if let Err(end) = self.write().await {
                return end;
            }
            if self.batch.close {
                return WriteEnd::Asked;
            }
            self.finish();
        }
    }

    /// Adds what is queued and durable already; gives back the first answer that is not.
    fn gather(&mut self) -> Option<Queued> {
        while !self.batch.is_full() {
            let Ok(queued) = self.queue.try_recv() else {
                return None;
            };
            if !self.durable.covers(&queued.answer.after) {
                return Some(queued);
            }
            self.batch.add(queued);
        }
        None
    }

    async fn write(&mut self) -> Result<(), WriteEnd> {
        let mut progress = Instant::now();
        let mut look = progress + STALL;
        let pace = pace(self.batch.bytes);
        let mut paced = 0;
        while !self.batch.parts.is_empty() {
            let now = Instant::now();
            if now >= look {
                // A client that hardly reads must not keep others from their answers.
                if paced < pace && !self.batch.held.is_empty() && is_scarce(&self.responses) {
                    return Err(WriteEnd::Stalled);
                }
                paced = 0;
                look = now + STALL;
            }
            if now - progress >= self.max_stall {
                return Err(WriteEnd::Stalled);
            }
            let slices: Vec<IoSlice<'_>> = self
                .batch
                .parts
                .iter()
                .take(MAX_SLICES)
                .map(|part| IoSlice::new(part))
                .collect();
            let until = look.min(progress + self.max_stall);
            let written = self.socket.write_vectored(&slices);
            let written = match tokio::time::timeout_at(until, written).await {
                Err(_) => continue,
                Ok(Err(error)) => return Err(WriteEnd::Io(error)),
                Ok(Ok(0)) => return Err(WriteEnd::Io(io::ErrorKind::WriteZero.into())),
                Ok(Ok(written)) => written,
            };
            drop(slices);
            progress = Instant::now();
            paced += written;
            self.bytes_out.inc_by(written as u64);
            advance(&mut self.batch.parts, written);
        }
        Ok(())
    }

    fn finish(&mut self) {
        let count = std::mem::take(&mut self.batch.count);
        self.batch.bytes = 0;
        self.batch.held.clear();
        for timing in self.batch.timings.drain(..) {
            timing.finish(self.slow, self.client.peer, self.client.name);
        }
        self.done.send_modify(|done| {
            done.answers += count.answers;
            done.bytes += count.bytes;
        });
    }
}

/// How many of so many bytes have to go within [`STALL`] for all to be gone in [`ANSWER_TIME`].
fn pace(bytes: usize) -> usize {
    let part = STALL.as_secs_f64() / ANSWER_TIME.as_secs_f64();
    ((bytes as f64 * part) as usize).max(1)
}

/// Whether others wait for answer memory, or are given little for want of it.
fn is_scarce(responses: &Budget) -> bool {
    responses.waiting() > 0 || responses.used() >= responses.limit() / 4 * 3
}

/// Takes `written` bytes off the front.
fn advance(parts: &mut VecDeque<Bytes>, mut written: usize) {
    while let Some(part) = parts.front_mut() {
        if part.len() > written {
            part.advance(written);
            return;
        }
        written -= part.len();
        parts.pop_front();
    }
}
