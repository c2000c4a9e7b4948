//! Connections over real sockets, with a session and a journal that the test plays.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};

use crate::budget::{Budget, Permit};
use crate::config::{Config, Listener};
use crate::handlers::{Answer, CloseReason};
use crate::metrics::Metrics;
use crate::net::listen::bind;
use crate::net::server::Server;
use crate::net::session::{Peer, Session, Sessions};
use crate::protocol::response::Frame;
use crate::store::journal::Durable;
use crate::types::Position;

const PRODUCE: i16 = 0;
const FETCH: i16 = 1;
const METADATA: i16 = 3;

/// Answers each request with its own number. Bytes behind the API's key say how:
/// position to wait for, then whether to close, refuse or wait for `release`.
struct Played {
    responses: Budget,
    handled: AtomicUsize,
    release: Notify,
    seen: parking_lot::Mutex<Vec<u8>>,
}

#[derive(Clone)]
struct Play(Arc<Played>);

impl Sessions for Play {
    type Session = Play;
    fn responses(&self) -> Budget {
        self.0.responses.clone()
    }
    fn open(&self, _peer: &Peer) -> Play {
        self.clone()
    }
}

impl Session for Play {
    async fn call(&self, frame: Bytes, _permit: Permit) -> Result<Answer, CloseReason> {
        let (number, after, how) = (frame[2], frame[3], frame[4]);
        self.0.seen.lock().push(number);
        if how == b'w' {
            self.0.release.notified().await;
        }
        self.0.handled.fetch_add(1, Ordering::SeqCst);
        let after = Position(u64::from(after));
        match how {
            b'r' => Err(CloseReason::Refused("as the test wants")),
            b'0' => Ok(Answer::none()),
            b'M' => {
                let parts = vec![Bytes::from(vec![number; 20_000])];
                Ok(Answer::new(Frame { parts }, after))
            }
            b'L' => {
                let hold = self.0.responses.acquire(700_000).await;
                let parts = (0..3_000)
                    .map(|_| Bytes::from(vec![number; 1_000]))
                    .collect();
                let answer = Answer::new(Frame { parts }, after);
                Ok(Answer {
                    hold: Some(Box::new(hold)),
                    ..answer
                })
            }
            _ => {
                let parts = vec![
                    Bytes::from(vec![number]),
                    Bytes::new(),
                    Bytes::from(vec![how]),
                ];
                let close = how == b'c';
                Ok(Answer {
                    close,
                    ..Answer::new(Frame { parts }, after)
                })
            }
        }
    }
}

struct World {
    server: Server,
    address: SocketAddr,
    played: Arc<Played>,
    durable: watch::Sender<Position>,
    metrics: Arc<Metrics>,
}

async fn world(change: impl FnOnce(&mut Config)) -> World {
    let mut config = Config::defaults();
    change(&mut config);
    let bound = bind(&Listener::plaintext("A", "127.0.0.1", 0), &config.net).unwrap();
    let address = bound.sockets[0].local_addr().unwrap();
    let played = Arc::new(Played {
        responses: Budget::new("responses", 1_000_000),
        handled: AtomicUsize::new(0),
        release: Notify::new(),
        seen: parking_lot::Mutex::default(),
    });
    let durable = watch::Sender::new(Position(0));
    let metrics = Arc::new(Metrics::new());
    let server = Server::start(
        vec![bound],
        Play(Arc::clone(&played)),
        &config,
        Arc::clone(&metrics),
        Durable::new(vec![durable.subscribe()]),
    );
    World {
        server,
        address,
        played,
        durable,
        metrics,
    }
}

impl World {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    async fn handled(&self, count: usize) {
        eventually(|| self.played.handled.load(Ordering::SeqCst) >= count).await;
    }

    async fn closed(&self, reason: &str) {
        let line = format!("shardgate_connections_closed_total{{reason=\"{reason}\"}} 1");
        eventually(|| self.metrics.render().unwrap().contains(&line)).await;
    }
}

async fn eventually(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}

fn request(api: i16, number: u8, after: u8, how: u8) -> Vec<u8> {
    let mut out = 8i32.to_be_bytes().to_vec();
    out.extend_from_slice(&api.to_be_bytes());
    out.extend_from_slice(&[number, after, how, 0, 0, 0]);
    out
}

async fn read(client: &mut TcpStream, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    client.read_exact(&mut out).await.unwrap();
    out
}

async fn assert_end(client: &mut TcpStream) {
    let mut rest = Vec::new();
    // A reset is an end too: the gateway may close with bytes unread.
    match client.read_to_end(&mut rest).await {
        Ok(_) => assert!(rest.is_empty(), "{rest:?}"),
        Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset),
    }
}

#[tokio::test]
async fn produces_are_handled_ahead_of_the_disk_and_answered_in_order() {
    let world = world(|_| {}).await;
    let mut client = world.connect().await;
    for (number, after) in [(1, 5), (2, 3), (3, 9), (4, 0)] {
        client
            .write_all(&request(PRODUCE, number, after, b'.'))
            .await
            .unwrap();
    }
    world.handled(4).await;
    // The second and the fourth are durable, but the first was asked first.
    world.durable.send_replace(Position(4));
    let mut byte = [0];
    assert!(client.try_read(&mut byte).is_err(), "{byte:?}");
    world.durable.send_replace(Position(5));
    assert_eq!(read(&mut client, 4).await, [1, b'.', 2, b'.']);
    world.durable.send_replace(Position(10));
    assert_eq!(read(&mut client, 4).await, [3, b'.', 4, b'.']);
}

#[tokio::test]
async fn other_requests_wait_for_the_answers_before_them() {
    let world = world(|_| {}).await;
    let mut client = world.connect().await;
    client
        .write_all(&request(PRODUCE, 1, 5, b'.'))
        .await
        .unwrap();
    client
        .write_all(&request(METADATA, 2, 0, b'.'))
        .await
        .unwrap();
    client
        .write_all(&request(PRODUCE, 3, 0, b'.'))
        .await
        .unwrap();
    world.handled(1).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(*world.played.seen.lock(), [1]);
    world.durable.send_replace(Position(5));
    assert_eq!(read(&mut client, 6).await, [1, b'.', 2, b'.', 3, b'.']);
}

#[tokio::test]
async fn a_produce_without_answer_keeps_its_place() {
    let world = world(|_| {}).await;
    let mut client = world.connect().await;
    client
        .write_all(&request(PRODUCE, 1, 5, b'0'))
        .await
        .unwrap();
    client
        .write_all(&request(PRODUCE, 2, 0, b'.'))
        .await
        .unwrap();
    client
        .write_all(&request(METADATA, 3, 0, b'.'))
        .await
        .unwrap();
    world.durable.send_replace(Position(5));
    assert_eq!(read(&mut client, 4).await, [2, b'.', 3, b'.']);
}

#[tokio::test]
async fn a_full_queue_stops_the_reading() {
    let world = world(|config| config.net.max_answers = 4).await;
    let mut client = world.connect().await;
    for number in 0..50 {
        client
            .write_all(&request(PRODUCE, number, 1, b'.'))
            .await
            .unwrap();
    }
    // Four in the queue, one with the writer, one that the reader cannot queue.
    world.handled(6).await;
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(world.played.handled.load(Ordering::SeqCst), 6);
    world.durable.send_replace(Position(1));
    let wanted: Vec<u8> = (0..50).flat_map(|number| [number, b'.']).collect();
    assert_eq!(read(&mut client, 100).await, wanted);
}

/// Each is small, and takes no share of a budget.
#[tokio::test]
async fn many_bytes_of_small_answers_stop_the_reading() {
    let world = world(|_| ()).await;
    let mut client = world.connect().await;
    for number in 0..50 {
        let request = request(PRODUCE, number, 1, b'M');
        client.write_all(&request).await.unwrap();
    }
    // The fourth is the first with which there are more than 64 KiB.
    world.handled(4).await;
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(world.played.handled.load(Ordering::SeqCst), 4);
    world.durable.send_replace(Position(1));
    let wanted: Vec<u8> = (0..50).flat_map(|number| vec![number; 20_000]).collect();
    assert_eq!(read(&mut client, wanted.len()).await, wanted);
}

#[tokio::test]
async fn large_answers_of_many_parts_arrive_whole() {
    let world = world(|_| {}).await;
    let mut client = world.connect().await;
    client.write_all(&request(FETCH, 7, 0, b'L')).await.unwrap();
    client.write_all(&request(FETCH, 8, 0, b'L')).await.unwrap();
    assert_eq!(read(&mut client, 3_000_000).await, vec![7; 3_000_000]);
    assert_eq!(read(&mut client, 3_000_000).await, vec![8; 3_000_000]);
}

async fn loses_its_share_to_those_who_wait(drip: bool) {
    let world = world(|config| config.net.send_buffer = Some(50_000)).await;
    let mut slow = world.connect().await;
    SockRef::from(&slow).set_recv_buffer_size(50_000).unwrap();
    slow.write_all(&request(FETCH, 7, 0, b'L')).await.unwrap();
    eventually(|| world.played.responses.used() == 700_000).await;
    let dripping = async move {
        // The answer would take two minutes.
        let mut some = [0; 25_000];
        while drip && slow.read_exact(&mut some).await.is_ok() {
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        }
        std::future::pending::<()>().await;
        drop(slow);
    };
    let others = async {
        let mut quick = world.connect().await;
        quick.write_all(&request(FETCH, 8, 0, b'L')).await.unwrap();
        assert_eq!(read(&mut quick, 3_000_000).await, vec![8; 3_000_000]);
        world.closed("write_stalled").await;
    };
    let most = std::time::Duration::from_secs(60);
    tokio::select! {
        () = dripping => {}
        done = tokio::time::timeout(most, others) => done.expect("the share"),
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_loses_its_share() {
    loses_its_share_to_those_who_wait(false).await;
}

#[tokio::test]
async fn a_client_that_hardly_reads_loses_its_share() {
    loses_its_share_to_those_who_wait(true).await;
}

/// Requests behind an answer that its client does not read take nothing from others.
#[tokio::test]
async fn a_client_that_does_not_read_holds_no_share_of_what_requests_may_take() {
    const SHARE: usize = 6_000;
    let world = world(|config| {
        config.net.send_buffer = Some(4_096);
        config.budgets.requests = SHARE as u64;
        config.budgets.small_requests = SHARE as u64;
    })
    .await;
    for api in [METADATA, PRODUCE] {
        let mut deaf = world.connect().await;
        SockRef::from(&deaf).set_recv_buffer_size(4_096).unwrap();
        for number in 1..5 {
            let answered = request(PRODUCE, number, 0, b'M');
            deaf.write_all(&answered).await.unwrap();
        }
        world.handled(4).await;
        let mut large = (SHARE as i32).to_be_bytes().to_vec();
        large.extend_from_slice(&api.to_be_bytes());
        large.resize(4 + SHARE, b'.');
        deaf.write_all(&large).await.unwrap();
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
        let mut other = world.connect().await;
        other.write_all(&request(api, 9, 0, b'.')).await.unwrap();
        let answer = tokio::time::timeout(std::time::Duration::from_secs(20), read(&mut other, 2));
        assert_eq!(answer.await.expect("an answer"), [9, b'.']);
        world.played.handled.store(0, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_refused_request_ends_the_connection_after_what_was_promised() {
    let world = world(|_| {}).await;
    let mut client = world.connect().await;
    client
        .write_all(&request(PRODUCE, 1, 5, b'.'))
        .await
        .unwrap();
    client
        .write_all(&request(PRODUCE, 2, 0, b'r'))
        .await
        .unwrap();
    client
        .write_all(&request(PRODUCE, 3, 0, b'.'))
        .await
        .unwrap();
    world.handled(2).await;
    world.durable.send_replace(Position(5));
    assert_eq!(read(&mut client, 2).await, [1, b'.']);
    assert_end(&mut client).await;
    world.closed("refused").await;
}

#[tokio::test]
async fn an_answer_can_close_its_connection() {
    let world = world(|_| {}).await;
    let mut client = world.connect().await;
    client
        .write_all(&request(METADATA, 1, 0, b'c'))
        .await
        .unwrap();
    assert_eq!(read(&mut client, 2).await, [1, b'c']);
    assert_end(&mut client).await;
}

#[tokio::test]
async fn a_journal_that_closes_ends_answers_that_wait_for_it() {
    let world = world(|_| {}).await;
    let mut client = world.connect().await;
    client
        .write_all(&request(PRODUCE, 1, 5, b'.'))
        .await
        .unwrap();
    world.handled(1).await;
    drop(world.durable);
    assert_end(&mut client).await;
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_waiting_request() {
    let world = world(|_| {}).await;
    let mut client = world.connect().await;
    client.write_all(&request(FETCH, 1, 0, b'w')).await.unwrap();
    eventually(|| !world.played.seen.lock().is_empty()).await;
    drop(client);
    world.closed("client_while_waiting").await;
    assert_eq!(world.server.connections(), 0);
}

#[tokio::test]
async fn too_many_connections_are_closed_at_once() {
    let world = world(|config| config.net.max_connections_per_ip = 2).await;
    let mut first = world.connect().await;
    let mut second = world.connect().await;
    for client in [&mut first, &mut second] {
        client
            .write_all(&request(METADATA, 1, 0, b'.'))
            .await
            .unwrap();
        read(client, 2).await;
    }
    assert_end(&mut world.connect().await).await;
    drop(first);
    eventually(|| world.server.connections() == 1).await;
    let mut again = world.connect().await;
    again
        .write_all(&request(METADATA, 2, 0, b'.'))
        .await
        .unwrap();
    assert_eq!(read(&mut again, 2).await, [2, b'.']);
}

#[tokio::test]
async fn a_drain_finishes_what_is_under_way_and_cuts_what_only_waits() {
    let world = world(|_| {}).await;
    let mut idle = world.connect().await;
    let mut waiting = world.connect().await;
    let mut working = world.connect().await;
    waiting
        .write_all(&request(FETCH, 1, 0, b'w'))
        .await
        .unwrap();
    working
        .write_all(&request(PRODUCE, 2, 5, b'.'))
        .await
        .unwrap();
    eventually(|| world.played.seen.lock().len() == 2).await;
    eventually(|| world.server.connections() == 3).await;
    world.handled(1).await;
    let (cut, ()) = tokio::join!(world.server.drain(), async {
        assert_end(&mut idle).await;
        assert_end(&mut waiting).await;
        world.durable.send_replace(Position(5));
        assert_eq!(read(&mut working, 2).await, [2, b'.']);
        assert_end(&mut working).await;
    });
    assert_eq!((cut, world.server.connections()), (0, 0));
    assert!(TcpStream::connect(world.address).await.is_err());
}

#[tokio::test]
async fn a_drain_ends_in_time_whatever_a_handler_does() {
    let world =
        world(|config| config.net.drain_timeout = std::time::Duration::from_millis(50)).await;
    let mut client = world.connect().await;
    client
        .write_all(&request(METADATA, 1, 0, b'w'))
        .await
        .unwrap();
    eventually(|| !world.played.seen.lock().is_empty()).await;
    assert_eq!(world.server.drain().await, 1);
    assert_end(&mut client).await;
}

#[tokio::test]
async fn what_an_answer_holds_is_let_go_once_it_is_written() {
    static HELD: AtomicU64 = AtomicU64::new(0);
    struct Hold;
    impl Drop for Hold {
        fn drop(&mut self) {
            HELD.fetch_sub(1, Ordering::SeqCst);
        }
    }
    #[derive(Clone)]
    struct Holding;
    impl Sessions for Holding {
        type Session = Holding;
        fn responses(&self) -> Budget {
            Budget::new("responses", 1)
        }
        fn open(&self, _peer: &Peer) -> Holding {
            Holding
        }
    }
    impl Session for Holding {
        async fn call(&self, _: Bytes, _: Permit) -> Result<Answer, CloseReason> {
            HELD.fetch_add(1, Ordering::SeqCst);
            let parts = vec![Bytes::from_static(b"x")];
            let answer = Answer::new(Frame { parts }, Position(1));
            Ok(Answer {
                hold: Some(Box::new(Hold)),
                ..answer
            })
        }
    }
    let config = Config::defaults();
    let bound = bind(&Listener::plaintext("A", "127.0.0.1", 0), &config.net).unwrap();
    let address = bound.sockets[0].local_addr().unwrap();
    let durable = watch::Sender::new(Position(0));
    let metrics = Arc::new(Metrics::new());
    let _server = Server::start(
        vec![bound],
        Holding,
        &config,
        metrics,
        Durable::new(vec![durable.subscribe()]),
    );
    let mut client = TcpStream::connect(address).await.unwrap();
    client
        .write_all(&request(PRODUCE, 1, 0, b'.'))
        .await
        .unwrap();
    eventually(|| HELD.load(Ordering::SeqCst) == 1).await;
    durable.send_replace(Position(1));
    assert_eq!(read(&mut client, 1).await, b"x");
    eventually(|| HELD.load(Ordering::SeqCst) == 0).await;
}
