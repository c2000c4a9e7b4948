//! The admin port's connections: few at a time, and none that idles for long. Whoever forgets to
//! close them must not take the sockets that clients need, nor keep others from health and metrics:
//! where all places are taken, a connection that waits for a request makes room.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::serve::Listener;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::metrics::{Metrics, SampleKind};
use crate::repeats::LINES;

/// Connections served at once.
pub const MOST: usize = 64;
/// Refusals under way at once; beyond that connections are closed without a word.
const MOST_REFUSALS: usize = 16;
/// How long a connection may be open without a request under way.
const IDLE: Duration = Duration::from_secs(90);
/// Who came or was answered just now may be about to ask, and is left alone.
const SHORT: Duration = Duration::from_secs(1);
/// Whose request is under way for so long makes room too, where there is none else: it came only in
/// part, its answer is not read, or it is one of very many that take long.
const LONG: Duration = Duration::from_secs(10);
/// How long somebody who is to make room may take.
const MAKING_ROOM: Duration = Duration::from_secs(1);
/// How long somebody who is refused gets to read why.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What is sent to a connection too many.
fn refusal() -> String {
    let text = format!(
        "the admin port serves {MOST} connections at a time: close those that are not needed, or \
         try again\n"
    );
    let length = text.len();
    format!(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nConnection: close\r\n\
         Content-Length: {length}\r\n\r\n{text}"
    )
}

/// Accepts connections as long as there are places.
pub struct Bounded {
    socket: TcpListener,
    places: Arc<Semaphore>,
    /// Connections that have a place, but for some that are gone.
    seats: Vec<Weak<Mutex<Seat>>>,
    refusals: Arc<Semaphore>,
    refused: Arc<AtomicU64>,
}

impl Bounded {
    /// Accepts on a socket that listens.
    pub fn new(socket: TcpListener, metrics: &Metrics) -> Self {
        let places = Arc::new(Semaphore::new(MOST));
        let refused = Arc::new(AtomicU64::new(0));
        let (free, count) = (Arc::clone(&places), Arc::clone(&refused));
        metrics.sample(
            "admin_connections",
            "Connections of the admin port open now",
            SampleKind::Gauge,
            None,
            move || MOST.saturating_sub(free.available_permits()) as f64,
        );
        metrics.sample(
            "admin_connections_refused",
            "Connections of the admin port that were one too many",
            SampleKind::Counter,
            None,
            move || count.load(Ordering::Relaxed) as f64,
        );
        Self {
            socket,
            places,
            seats: Vec::new(),
            refusals: Arc::new(Semaphore::new(MOST_REFUSALS)),
            refused,
        }
    }

    /// A place, if there is one or somebody can make room.
    async fn place(&mut self) -> Option<OwnedSemaphorePermit> {
        let places = Arc::clone(&self.places);
        if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
            return Some(place);
        }
        self.seats.retain(|seat| seat.strong_count() > 0);
        let now = Instant::now();
        let seats = self.seats.iter().filter_map(Weak::upgrade);
        let may_end = seats.filter_map(|seat| {
            let (asked, since) = seat.lock().standing();
            let least = if asked { LONG } else { SHORT };
            (now - since >= least).then_some((asked, since, seat))
        });
        let (_, _, seat) = may_end.min_by_key(|(asked, since, _)| (*asked, *since))?;
        seat.lock().end();
        timeout(MAKING_ROOM, places.acquire_owned())
            .await
            .ok()?
            .ok()
    }

    fn admit(&mut self, stream: TcpStream, place: OwnedSemaphorePermit) -> Admitted {
        let admitted = Admitted::new(stream, place);
        self.seats.retain(|seat| seat.strong_count() > 0);
        self.seats.push(Arc::downgrade(&admitted.seat));
        admitted
    }

    fn refuse(&self, mut stream: TcpStream) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        if LINES.allow("the admin port has too many connections", None) {
            tracing::warn!(
                "a connection of the admin port was refused: {MOST} have requests under way; look for \
                 a program that asks very often, or does not read the answers"
            );
        }
        let Ok(turn) = Arc::clone(&self.refusals).try_acquire_owned() else {
            return;
        };
        tokio::spawn(async move {
            let _turn = turn;
            let tell = async {
                stream.write_all(refusal().as_bytes()).await?;
                stream.shutdown().await?;
                // A close with unread bytes would take the words back.
                let mut rest = [0; 1024];
                while stream.read(&mut rest).await? > 0 {}
                io::Result::Ok(())
            };
            let _ = timeout(LAST_WORDS, tell).await;
        });
    }
}

impl Listener for Bounded {
    type Io = Admitted;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Admitted, SocketAddr) {
        loop {
            let (stream, address) = Listener::accept(&mut self.socket).await;
            match self.place().await {
                Some(place) => return (self.admit(stream, place), address),
                None => self.refuse(stream),
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}

/// How a connection that has a place stands.
struct Seat {
    /// Something was read that is not answered yet.
    asked: bool,
    /// Since when that is so or not.
    since: Instant,
    /// It is to make room.
    ended: bool,
    waker: Option<Waker>,
}

impl Seat {
    fn standing(&self) -> (bool, Instant) {
        (self.asked, self.since)
    }

    fn set_asked(&mut self, asked: bool) {
        if !(asked && self.asked) {
            self.since = Instant::now();
        }
        self.asked = asked;
    }

    fn end(&mut self) {
        self.ended = true;
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Notes who is to be woken; an error if it is to make room.
    fn check(&mut self, cx: &Context<'_>) -> io::Result<()> {
        if self.ended {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        match &mut self.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Ok(())
    }
}

/// A connection that has a place.
pub struct Admitted {
    stream: TcpStream,
    _place: OwnedSemaphorePermit,
    seat: Arc<Mutex<Seat>>,
    idle: Pin<Box<Sleep>>,
}

impl Admitted {
    fn new(stream: TcpStream, place: OwnedSemaphorePermit) -> Self {
        let seat = Seat {
            asked: false,
            since: Instant::now(),
            ended: false,
            waker: None,
        };
        Self {
            stream,
            _place: place,
            seat: Arc::new(Mutex::new(seat)),
            idle: Box::pin(sleep(IDLE)),
        }
    }
}

impl AsyncRead for Admitted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.seat.lock().check(cx)?;
        if let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(cx, buffer) {
            self.seat.lock().set_asked(true);
            return Poll::Ready(read);
        }
        let asked = self.seat.lock().asked;
        if !asked && self.idle.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
    }
}

impl AsyncWrite for Admitted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.seat.lock().check(cx)?;
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if written.is_ready() {
            self.seat.lock().set_asked(false);
            self.idle.as_mut().reset(Instant::now() + IDLE);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn bounded() -> (Bounded, SocketAddr) {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        (Bounded::new(socket, &Metrics::new()), address)
    }

    async fn join(bounded: &mut Bounded, address: SocketAddr, say: &[u8]) -> (TcpStream, Admitted) {
        let mut client = TcpStream::connect(address).await.unwrap();
        let (mut admitted, _) = bounded.accept().await;
        client.write_all(say).await.unwrap();
        let mut bytes = vec![0; say.len()];
        admitted.read_exact(&mut bytes).await.unwrap();
        (client, admitted)
    }

    /// Whoever forgets connections, or speaks in halves, keeps nobody else out.
    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_request_makes_room_and_who_asked_only_after_long() {
        let (mut bounded, address) = bounded().await;
        let mut seated = std::collections::VecDeque::new();
        for n in 0..MOST {
            let say: &[u8] = if n < 2 { b"" } else { b"G" };
            let joined = join(&mut bounded, address, say).await;
            seated.push_back(tokio::spawn(async move {
                let (_client, mut admitted) = joined;
                let _ = admitted.read(&mut [0]).await;
            }));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        tokio::time::advance(SHORT).await;
        for _ in 0..2 {
            let (_client, admitted) = join(&mut bounded, address, b"G").await;
            seated.pop_front().unwrap().await.unwrap();
            seated.push_back(tokio::spawn(async move {
                let _admitted = admitted;
                std::future::pending().await
            }));
        }
        assert!(bounded.place().await.is_none(), "all are at work");
        tokio::time::advance(LONG).await;
        assert!(bounded.place().await.is_some());
        seated.pop_front().unwrap().await.unwrap();
    }

    /// Time only passes when nothing else can happen, so all that idle end together.
    #[tokio::test(start_paused = true)]
    async fn only_an_idle_connection_ends_by_itself() {
        let (mut bounded, address) = bounded().await;
        let mut clients = Vec::new();
        let mut admitted = Vec::new();
        for _ in 0..2 {
            clients.push(TcpStream::connect(address).await.unwrap());
            admitted.push(bounded.accept().await.0);
        }
        clients[0].write_all(b"GET").await.unwrap();
        let mut bytes = [0; 16];
        assert_eq!(admitted[0].read(&mut bytes).await.unwrap(), 3);
        let begun = Instant::now();
        let idle = admitted[1].read(&mut bytes).await.unwrap_err();
        assert_eq!(idle.kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= IDLE);
        let asked = timeout(IDLE * 3, admitted[0].read(&mut bytes)).await;
        assert!(asked.is_err(), "its answer may take long");
        admitted[0].write_all(b"200").await.unwrap();
        let idle = admitted[0].read(&mut bytes).await.unwrap_err();
        assert_eq!(idle.kind(), io::ErrorKind::TimedOut);
    }
}
