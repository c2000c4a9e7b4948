//! HTTP on loopback: is it alive, is it ready, and the metrics.
//!
//! | path | answer |
//! |---|---|
//! | `/livez` | 200 as long as the process runs |
//! | `/readyz` | 200 once clients are served; 503 with the progress while the journal is replayed, and during the drain. Says where writes are refused, and with `?writes` answers 503 then |
//! | `/metrics` | Prometheus's text format |
//! | `/shards`, `/topics/…` | shards, in [`shards`] |

mod browser;
mod listener;
pub mod shards;
pub mod token;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use tokio::net::TcpListener;

use crate::metrics::{Metrics, SampleKind};

/// How far the gateway is, for whoever asks from outside.
#[derive(Debug, Default)]
pub struct Readiness {
    stage: AtomicU8,
    done_bytes: AtomicU64,
    total_bytes: AtomicU64,
}

/// What the gateway is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Opening the data directory.
    Starting,
    /// Reading the journal.
    Replaying,
    /// Serving clients.
    Ready,
    /// Going down.
    Draining,
}

impl Readiness {
    /// Shows how much of the journal is replayed.
    pub fn progress(&self, done: u64, total: u64) {
        self.done_bytes.store(done, Ordering::Relaxed);
        self.total_bytes.store(total, Ordering::Relaxed);
        self.enter(Stage::Replaying);
    }

    /// Says what the gateway does from now on.
    pub fn enter(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Release);
    }

    /// What the gateway is doing.
    pub fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Acquire) {
            0 => Stage::Starting,
            1 => Stage::Replaying,
            2 => Stage::Ready,
            _ => Stage::Draining,
        }
    }

    /// Adds the same to `/metrics`.
    pub fn watch(self: &Arc<Self>, metrics: &Metrics) {
        let (ready, done, total) = (Arc::clone(self), Arc::clone(self), Arc::clone(self));
        let gauge = SampleKind::Gauge;
        let is_ready = move || f64::from(u8::from(ready.stage() == Stage::Ready));
        metrics.sample("ready", "1 while clients are served", gauge, None, is_ready);
        metrics.sample(
            "replay_done_bytes",
            "Bytes of journal replayed at the start",
            gauge,
            None,
            move || done.done_bytes.load(Ordering::Relaxed) as f64,
        );
        metrics.sample(
            "replay_total_bytes",
            "Bytes of journal to replay at the start",
            gauge,
            None,
            move || total.total_bytes.load(Ordering::Relaxed) as f64,
        );
    }
}

#[derive(Serialize)]
struct Status {
    status: Stage,
    #[serde(skip_serializing_if = "Option::is_none")]
    replayed_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_bytes: Option<u64>,
    /// Client writes are taken by every data directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    writable: Option<bool>,
    /// Data directories that refuse client writes, because their disks are nearly full.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    full_directories: Vec<String>,
}

#[derive(Clone)]
struct Admin {
    metrics: Arc<Metrics>,
    readiness: Arc<Readiness>,
    store: shards::Slot,
}

/// Starts to answer on a loopback port and returns the port it got. Must run inside the runtime.
pub async fn serve(
    port: u16,
    metrics: Arc<Metrics>,
    readiness: Arc<Readiness>,
    store: shards::Slot,
) -> io::Result<u16> {
    let socket = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await?;
    let port = socket.local_addr()?.port();
    let socket = listener::Bounded::new(socket, &metrics);
    let routes = Router::new()
        .route("/livez", get(live))
        .route("/readyz", get(ready))
        .route("/metrics", get(show_metrics))
        .fallback(other)
        .with_state(Admin {
            metrics,
            readiness,
            store: Arc::clone(&store),
        })
        .merge(shards::routes(store))
        .layer(axum::middleware::from_fn(browser::refuse_pages));
    tokio::spawn(async move {
        if let Err(error) = axum::serve(socket, routes).await {
            tracing::error!(
                %error,
                "the admin port stopped: health, metrics and shards are not shown until a \
                 restart; clients are served"
            );
        }
    });
    Ok(port)
}

async fn live() -> Response {
    Json(serde_json::json!({ "status": "alive" })).into_response()
}

/// Reads, deletions and retention are served also while a disk is full, and are what helps then:
/// so only who asks for writes is told 503.
async fn ready(State(admin): State<Admin>, Query(query): Query<Vec<(String, String)>>) -> Response {
    let stage = admin.readiness.stage();
    let full = match stage {
        Stage::Ready => admin.store.get().map(shards::Store::full_directories),
        _ => None,
    };
    let writable = full.as_ref().map(Vec::is_empty);
    let asks_for_writes = query.iter().any(|(name, _)| name == "writes");
    let code = match stage {
        Stage::Ready if !asks_for_writes || writable != Some(false) => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    let bytes =
        |count: &AtomicU64| (stage == Stage::Replaying).then(|| count.load(Ordering::Relaxed));
    let status = Status {
        status: stage,
        replayed_bytes: bytes(&admin.readiness.done_bytes),
        total_bytes: bytes(&admin.readiness.total_bytes),
        writable,
        full_directories: full.unwrap_or_default(),
    };
    (code, Json(status)).into_response()
}

async fn show_metrics(State(admin): State<Admin>) -> Response {
    const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match admin.metrics.render() {
        Ok(text) => ([(header::CONTENT_TYPE, TEXT)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn other() -> Response {
    let paths = [&["/livez", "/readyz", "/metrics"], &shards::PATHS[..]].concat();
    let paths = serde_json::json!({ "paths": paths });
    (StatusCode::NOT_FOUND, Json(paths)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    /// Who forgets to close connections can neither take the sockets that clients need nor keep
    /// others from asking.
    #[tokio::test]
    async fn one_connection_too_many_takes_the_place_of_an_idle_one_or_is_told_so() {
        let (metrics, readiness) = (Arc::new(Metrics::new()), Arc::new(Readiness::default()));
        let port = serve(0, metrics, readiness, shards::Slot::default());
        let port = port.await.unwrap();
        let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, port));
        let mut open = Vec::new();
        for _ in 0..listener::MOST {
            let mut socket = connect().await.unwrap();
            let request = "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n";
            socket.write_all(request.as_bytes()).await.unwrap();
            let mut first = [0; 12];
            socket.read_exact(&mut first).await.unwrap();
            assert_eq!(&first, b"HTTP/1.1 200");
            open.push(socket);
        }
        // They may be about to ask once more, for a second.
        while !ask(port, "/livez").await.starts_with("HTTP/1.1 200") {}
        let refused = loop {
            // This one has begun to ask.
            let mut socket = connect().await.unwrap();
            let begun = "GET /livez HTTP/1.1\r\n";
            socket.write_all(begun.as_bytes()).await.unwrap();
            open.push(socket);
            let answer = ask(port, "/livez").await;
            if answer.starts_with("HTTP/1.1 503") {
                break answer;
            }
        };
        assert!(refused.contains("at a time"), "{refused}");
        drop(open);
        let shown = loop {
            let answer = ask(port, "/metrics").await;
            if answer.starts_with("HTTP/1.1 200") {
                break answer;
            }
        };
        assert!(
            shown.contains("shardgate_admin_connections_refused_total"),
            "{shown}"
        );
    }

    async fn ask(port: u16, path: &str) -> String {
        ask_as(port, "localhost", path).await
    }

    async fn ask_as(port: u16, host: &str, path: &str) -> String {
        let mut socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port))
            .await
            .unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn ready_only_while_clients_are_served() {
        let (metrics, readiness) = (Arc::new(Metrics::new()), Arc::new(Readiness::default()));
        readiness.watch(&metrics);
        let slot = shards::Slot::default();
        let port = serve(0, metrics, Arc::clone(&readiness), slot)
            .await
            .unwrap();
        assert!(ask(port, "/livez").await.starts_with("HTTP/1.1 200"));
        let starting = ask(port, "/readyz").await;
        assert!(starting.starts_with("HTTP/1.1 503") && starting.contains("\"starting\""));
        readiness.progress(5, 20);
        let replaying = ask(port, "/readyz").await;
        assert!(replaying.starts_with("HTTP/1.1 503"), "{replaying}");
        assert!(
            replaying
                .ends_with("{\"status\":\"replaying\",\"replayed_bytes\":5,\"total_bytes\":20}"),
            "{replaying}"
        );
        assert!(
            ask(port, "/metrics")
                .await
                .contains("shardgate_replay_total_bytes 20")
        );
        readiness.enter(Stage::Ready);
        let ready = ask(port, "/readyz").await;
        assert!(ready.starts_with("HTTP/1.1 200") && ready.ends_with("{\"status\":\"ready\"}"));
        assert!(ask(port, "/metrics").await.contains("shardgate_ready 1"));
        readiness.enter(Stage::Draining);
        assert!(ask(port, "/readyz").await.starts_with("HTTP/1.1 503"));
        assert!(ask(port, "/other").await.contains("/readyz"));
        for path in ["/metrics", "/shards", "/other"] {
            let refused = ask_as(port, "rebound.example", path).await;
            assert!(refused.starts_with("HTTP/1.1 403"), "{path}: {refused}");
        }
    }
}
