use super::*;
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};

const PRODUCE: i16 = 0;
const METADATA: i16 = 3;

fn limits() -> ReadLimits {
    ReadLimits {
        max_bytes: 100 << 20,
        max_idle: Duration::from_secs(600),
        frame_timeout: Duration::from_secs(30),
        requests: Budget::new("requests", 16 << 20),
        small_requests: Budget::new("small_requests", 4 << 20),
    }
}

/// A client's socket and a reader at its other end.
async fn reader(limits: ReadLimits) -> (TcpStream, FrameReader, OwnedWriteHalf) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    let (server, _) = listener.accept().await.unwrap();
    let (read, write) = server.into_split();
    (client, FrameReader::new(read, limits), write)
}

impl FrameReader {
    async fn next(&mut self) -> Result<Frame, ReadError> {
        let begun = self.begin().await?;
        self.finish(begun).await
    }
}

fn header(length: i32, api: i16) -> Vec<u8> {
    let mut out = length.to_be_bytes().to_vec();
    out.extend_from_slice(&api.to_be_bytes());
    out
}

/// A frame of `size` bytes, the ones behind the API's key counting up.
fn frame(size: usize, api: i16) -> Vec<u8> {
    let mut out = header(i32::try_from(size).unwrap(), api);
    out.extend((0..size - 2).map(|i| i as u8));
    out
}

#[tokio::test]
async fn frames_of_all_sizes_come_out_as_they_went_in() {
    let (mut client, mut reader, _write) = reader(limits()).await;
    let sizes = [
        2,
        8,
        100,
        4_095,
        8_187,
        8_188,
        8_189,
        8_192,
        70_000,
        1 << 20,
        5_000_000,
        9,
    ];
    let sender = tokio::spawn(async move {
        let all: Vec<u8> = sizes
            .iter()
            .flat_map(|size| frame(*size, PRODUCE))
            .collect();
        client.write_all(&all).await.unwrap();
        client
    });
    for size in sizes {
        let got = reader.next().await.unwrap();
        assert_eq!(got.bytes, frame(size, PRODUCE)[4..], "{size}");
        assert_eq!(got.row.api, ApiKey::Produce);
    }
    drop(sender.await.unwrap());
    assert!(matches!(reader.next().await, Err(ReadError::Closed)));
}

#[tokio::test]
async fn single_bytes_make_a_frame() {
    let (mut client, mut reader, _write) = reader(limits()).await;
    client.set_nodelay(true).unwrap();
    let sender = tokio::spawn(async move {
        for byte in frame(300, METADATA) {
            client.write_all(&[byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
        client
    });
    assert_eq!(
        reader.next().await.unwrap().bytes,
        frame(300, METADATA)[4..]
    );
    drop(sender.await.unwrap());
}

#[tokio::test]
async fn hostile_lengths_end_it_before_anything_is_reserved() {
    for length in [-1, i32::MIN, i32::MAX, (100 << 20) + 1] {
        let (mut client, mut reader, _write) = reader(limits()).await;
        client.write_all(&header(length, PRODUCE)).await.unwrap();
        let error = reader.next().await.unwrap_err();
        assert!(
            matches!(error, ReadError::Length { .. }),
            "{length}: {error}"
        );
        assert!(error.to_string().contains(&length.to_string()), "{error}");
        assert!(reader.buffer.capacity() <= 2 * READ_BYTES);
    }
}

#[tokio::test]
async fn other_protocols_are_named() {
    for (bytes, name) in [
        (&b"GET / HTTP/1.1\r\n"[..], "HTTP"),
        (&[0x16, 3, 1, 2, 0, 1], "TLS"),
    ] {
        let (mut client, mut reader, _write) = reader(limits()).await;
        client.write_all(bytes).await.unwrap();
        let text = reader.next().await.unwrap_err().to_string();
        assert!(text.contains(name), "{text}");
    }
}

#[tokio::test]
async fn each_api_has_its_bound() {
    let (mut client, mut reader, _write) = reader(limits()).await;
    let most = api::lookup(METADATA).unwrap().max_frame_bytes;
    client
        .write_all(&header(i32::try_from(most).unwrap() + 1, METADATA))
        .await
        .unwrap();
    let text = reader.next().await.unwrap_err().to_string();
    assert!(
        text.contains("for Metadata") && text.contains(&most.to_string()),
        "{text}"
    );
}

#[tokio::test]
async fn unknown_apis_and_empty_frames_end_it() {
    for bytes in [
        header(10, 9_999),
        header(10, -1),
        vec![0; 4],
        vec![0, 0, 0, 1, 0],
    ] {
        let (mut client, mut reader, _write) = reader(limits()).await;
        client.write_all(&bytes).await.unwrap();
        let error = reader.next().await.unwrap_err();
        assert!(
            matches!(error, ReadError::UnknownApi(_)),
            "{bytes:?}: {error}"
        );
    }
}

#[tokio::test]
async fn memory_follows_the_bytes_that_came() {
    assert_eq!(next_capacity(0, 100 << 20), 64 << 10);
    assert_eq!(next_capacity(0, 10_000), 10_000);
    assert_eq!(next_capacity(64 << 10, 100 << 20), 1 << 20);
    assert_eq!(next_capacity(1 << 20, 100 << 20), 4 << 20);
    assert_eq!(next_capacity(64 << 20, 100 << 20), 100 << 20);
    for size in [64 << 10, 1 << 20, 100 << 20] {
        let mut came = 0;
        while came < size {
            let next = next_capacity(came, size);
            assert!(next > came && next <= (came * 16).max(64 << 10));
            came = next;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_never_ends_is_given_up() {
    let (mut client, mut reader, _write) = reader(limits()).await;
    client.write_all(&frame(100, PRODUCE)[..50]).await.unwrap();
    assert!(matches!(reader.next().await, Err(ReadError::Slow)));
    // Also a large one, which is read elsewhere, and which gives its share back.
    let limits = limits();
    let budget = limits.requests.clone();
    let (mut client, mut reader, _write) = super::tests::reader(limits).await;
    client
        .write_all(&frame(1 << 20, PRODUCE)[..10_000])
        .await
        .unwrap();
    assert!(matches!(reader.next().await, Err(ReadError::Slow)));
    assert_eq!(budget.used(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed() {
    let (_client, mut reader, _write) = reader(limits()).await;
    assert!(matches!(reader.next().await, Err(ReadError::Idle)));
}

#[tokio::test]
async fn a_client_that_leaves_within_a_frame_is_told_apart() {
    let (mut client, mut reader, _write) = reader(limits()).await;
    client
        .write_all(&frame(100_000, PRODUCE)[..50_000])
        .await
        .unwrap();
    drop(client);
    assert!(matches!(reader.next().await, Err(ReadError::ClosedWithin)));
}

#[tokio::test]
async fn heartbeats_pass_while_produce_requests_use_up_the_budget() {
    let limits = limits();
    let all = limits.requests.acquire(limits.requests.limit()).await;
    let (mut produce, mut produce_reader, _w1) = reader(limits.clone()).await;
    let (mut other, mut other_reader, _w2) = reader(limits.clone()).await;
    produce.write_all(&frame(100, PRODUCE)).await.unwrap();
    other.write_all(&frame(100, METADATA)).await.unwrap();
    let waits = tokio::spawn(async move { produce_reader.next().await });
    assert_eq!(other_reader.next().await.unwrap().row.name, "Metadata");
    while limits.requests.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    assert!(!waits.is_finished());
    drop(all);
    let frame = waits.await.unwrap().unwrap();
    assert_eq!(frame.permit.bytes(), 100);
    assert_eq!(limits.requests.used(), 100);
    drop(frame);
    assert_eq!(limits.requests.used(), 0);
}

async fn a_slow_frame_is_cut_off_once_others_wait(trickle: Option<Duration>) {
    let limits = ReadLimits {
        requests: Budget::new("requests", 1 << 20),
        ..limits()
    };
    let (mut slow, mut slow_reader, _w1) = reader(limits.clone()).await;
    let (mut quick, mut quick_reader, _w2) = reader(limits.clone()).await;
    slow.write_all(&frame(2 << 20, PRODUCE)[..10_000])
        .await
        .unwrap();
    tokio::spawn(async move {
        match trickle {
            Some(pause) => {
                while slow.write_all(&[0]).await.is_ok() {
                    tokio::time::sleep(pause).await;
                }
            }
            None => std::future::pending().await,
        }
    });
    let slow_end = tokio::spawn(async move { slow_reader.next().await.map(drop) });
    while limits.requests.used() == 0 {
        tokio::task::yield_now().await;
    }
    quick.write_all(&frame(50_000, PRODUCE)).await.unwrap();
    assert_eq!(quick_reader.next().await.unwrap().bytes.len(), 50_000);
    assert!(matches!(slow_end.await.unwrap(), Err(ReadError::Stalled)));
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_stands_still_loses_its_share_to_those_who_wait() {
    a_slow_frame_is_cut_off_once_others_wait(None).await;
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_trickles_loses_its_share_to_those_who_wait() {
    a_slow_frame_is_cut_off_once_others_wait(Some(Duration::from_millis(500))).await;
}

#[tokio::test]
async fn small_frames_that_stand_still_keep_nobody_waiting() {
    let limits = ReadLimits {
        small_requests: Budget::new("small_requests", 16 << 10),
        ..limits()
    };
    let mut stalled = Vec::new();
    for size in [100, 4_000, SHARING_FRAME, SHARING_FRAME, SHARING_FRAME] {
        let (mut client, mut reader, write) = reader(limits.clone()).await;
        let bytes = frame(size, METADATA);
        client.write_all(&bytes[..bytes.len() - 1]).await.unwrap();
        let read = tokio::spawn(async move { reader.next().await.map(drop) });
        stalled.push((client, read, write));
    }
    let (mut client, mut reader, _write) = reader(limits.clone()).await;
    for _ in 0..100 {
        let whole = frame(SHARING_FRAME, METADATA);
        client.write_all(&whole).await.unwrap();
        assert_eq!(reader.next().await.unwrap().bytes, whole[4..]);
        assert_eq!(
            limits.small_requests.used(),
            0,
            "an unfinished one has a share"
        );
    }
    for (mut client, read, _write) in stalled {
        assert!(!read.is_finished());
        client.write_all(&[0]).await.unwrap();
        read.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn gone_resolves_only_when_the_client_left() {
    let (mut client, mut reader, _write) = reader(limits()).await;
    {
        let gone = reader.gone();
        tokio::pin!(gone);
        assert!(futures_ready(&mut gone).await.is_none());
        drop(client.shutdown().await);
        gone.await;
    }
}

/// Polls once.
async fn futures_ready<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    std::future::poll_fn(|cx| {
        std::task::Poll::Ready(match std::pin::Pin::new(&mut *future).poll(cx) {
            std::task::Poll::Ready(out) => Some(out),
            std::task::Poll::Pending => None,
        })
    })
    .await
}
