//! The admin port's connections: few at a time, and none that idles for long. Whoever forgets to
//! close them must not take the sockets that clients need.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
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
            refusals: Arc::new(Semaphore::new(MOST_REFUSALS)),
            refused,
        }
    }

    fn refuse(&self, mut stream: TcpStream) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        if LINES.allow("the admin port has too many connections", None) {
            tracing::warn!(
                "a connection of the admin port was refused: {MOST} are open already; look for a \
                 program that opens connections and does not close them"
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
            match Arc::clone(&self.places).try_acquire_owned() {
                Ok(place) => return (Admitted::new(stream, place), address),
                Err(_) => self.refuse(stream),
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}

/// A connection that has a place.
pub struct Admitted {
    stream: TcpStream,
    _place: OwnedSemaphorePermit,
    /// Something was read that is not answered yet.
    asked: bool,
    idle: Pin<Box<Sleep>>,
}

impl Admitted {
    fn new(stream: TcpStream, place: OwnedSemaphorePermit) -> Self {
        Self {
            stream,
            _place: place,
            asked: false,
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
        if let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(cx, buffer) {
            self.asked = true;
            return Poll::Ready(read);
        }
        if !self.asked && self.idle.as_mut().poll(cx).is_ready() {
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
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if written.is_ready() {
            self.asked = false;
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

    /// Time only passes when nothing else can happen, so all that idle end together.
    #[tokio::test(start_paused = true)]
    async fn only_an_idle_connection_ends_by_itself() {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let mut bounded = Bounded::new(socket, &Metrics::new());
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
