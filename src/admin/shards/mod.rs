//! Shards over the admin port. Looking needs nothing; changes need the token of the data directory.
//!
//! | request | answer |
//! |---|---|
//! | `GET /shards?brief=1` | the shards of all topics; if brief without load and size |
//! | `GET /topics/T/shards` | the shards of a topic with range, load and size |
//! | `GET /topics/T/lineage?partition=P&older=N` | its layout history, with so many epochs of those that only the disk has; the links of the partitions named |
//! | `GET /topics/T/locate?key=K&partitioner=N` | where clients send a key |
//! | `GET /topics/T/explain` | what limits the topic; looks on for a second |
//! | `GET /verify?deep=1` | whether the store agrees with itself; if deep with every checksum |
//! | `POST /topics/T/reshape` | splits, merges or moves shards ([`views::ChangeRequest`]) |

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::task::JoinError;

use self::views::{ChangeRequest, ErrorView};
use super::token;
use crate::broker::Broker;
use crate::partition::verify_live::verify_live;

mod change;
pub mod explain;
mod look;
mod moves;
mod repeat;
pub mod views;

/// The running gateway, as the admin port needs it.
pub struct Store {
    /// What the shards belong to.
    pub broker: Arc<Broker>,
    /// What changes have to carry.
    pub token: String,
}

impl Store {
    /// Paths of the data directories that refuse client writes.
    pub fn full_directories(&self) -> Vec<String> {
        let all = self.broker.partitions.directories().iter();
        let full = all.filter(|directory| !directory.is_writable());
        full.map(|directory| directory.name.clone()).collect()
    }
}

/// Filled once the gateway serves.
pub type Slot = Arc<OnceLock<Store>>;

/// A request that is not answered: why, and as which status.
struct Refusal(StatusCode, String);

impl Refusal {
    fn not_found(text: impl Into<String>) -> Self {
        Self(StatusCode::NOT_FOUND, text.into())
    }

    fn conflict(error: impl ToString) -> Self {
        Self(StatusCode::CONFLICT, error.to_string())
    }

    fn bad(error: impl ToString) -> Self {
        Self(StatusCode::BAD_REQUEST, error.to_string())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, Json(ErrorView { error: self.1 })).into_response()
    }
}

type Answer = Result<Response, Refusal>;

/// Looks at the store that run at once, and checks of all of it: the threads they run on are those
/// that clients' reads from disk need, too.
static LOOKS: Semaphore = Semaphore::const_new(4);
static CHECKS: Semaphore = Semaphore::const_new(1);

/// Changes of shards: a move may wait for flushes and journals, which those who look must not.
static CHANGES: Semaphore = Semaphore::const_new(4);

/// Epochs that only the disk has and that one answer shows at most.
const MOST_OLDER: usize = 10_000;

/// Paths that this module answers.
pub const PATHS: [&str; 7] = [
    "/shards",
    "/topics/{topic}/shards",
    "/topics/{topic}/lineage",
    "/topics/{topic}/locate",
    "/topics/{topic}/explain",
    "/topics/{topic}/reshape",
    "/verify",
];

/// The routes, which answer 503 until the slot is filled.
pub fn routes(slot: Slot) -> Router {
    Router::new()
        .route(PATHS[0], get(list_all))
        .route(PATHS[1], get(list))
        .route(PATHS[2], get(lineage))
        .route(PATHS[3], get(locate))
        .route(PATHS[4], get(explained))
        .route(PATHS[5], post(reshape))
        .route(PATHS[6], get(verify))
        .with_state(slot)
}

/// Runs a look at the store, which may wait for locks and add up many sizes, off the network
/// threads.
async fn blocking<T: Serialize + Send + 'static>(
    slot: Slot,
    look: impl FnOnce(&Store) -> Result<T, Refusal> + Send + 'static,
) -> Answer {
    blocking_in(&LOOKS, slot, look).await
}

async fn blocking_in<T: Serialize + Send + 'static>(
    turns: &'static Semaphore,
    slot: Slot,
    look: impl FnOnce(&Store) -> Result<T, Refusal> + Send + 'static,
) -> Answer {
    let run = move || {
        let store = slot.get().ok_or_else(not_ready)?;
        look(store).map(|view| Json(view).into_response())
    };
    match in_turn(turns, run).await {
        Ok(answer) => answer,
        Err(error) => Err(Refusal(
            StatusCode::INTERNAL_SERVER_ERROR,
            error.to_string(),
        )),
    }
}

/// Runs something that blocks when it has its turn, which it keeps also when nobody waits for it
/// any more.
async fn in_turn<T: Send + 'static>(
    turns: &'static Semaphore,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let turn = turns.acquire().await;
    let run = move || {
        let _turn = turn;
        run()
    };
    tokio::task::spawn_blocking(run).await
}

fn not_ready() -> Refusal {
    Refusal(
        StatusCode::SERVICE_UNAVAILABLE,
        "the gateway is not ready yet: ask again once /readyz answers 200".to_owned(),
    )
}

async fn list_all(State(slot): State<Slot>, Query(query): Query<Vec<(String, String)>>) -> Answer {
    let brief = query.iter().any(|(name, _)| name == "brief");
    blocking(slot, move |store| Ok(look::all(&store.broker, brief))).await
}

async fn list(State(slot): State<Slot>, Path(topic): Path<String>) -> Answer {
    blocking(slot, move |store| look::topic(&store.broker, &topic)).await
}

async fn lineage(
    State(slot): State<Slot>,
    Path(topic): Path<String>,
    Query(query): Query<Vec<(String, String)>>,
) -> Answer {
    blocking(slot, move |store| {
        let asked = query.iter().filter(|(name, _)| name == "partition");
        let partitions: Result<BTreeSet<u32>, _> = asked.map(|(_, value)| value.parse()).collect();
        let partitions = partitions.map_err(|_| Refusal::bad("partition is no number"))?;
        let older = query.iter().find(|(name, _)| name == "older");
        let older = older.map_or(Ok(0), |(_, value)| value.parse());
        let older = older.map_err(|_| Refusal::bad("older is no number"))?;
        look::lineage(&store.broker, &topic, &partitions, older.min(MOST_OLDER))
    })
    .await
}

async fn locate(
    State(slot): State<Slot>,
    Path(topic): Path<String>,
    Query(query): Query<Vec<(String, String)>>,
) -> Answer {
    blocking(slot, move |store| {
        let of = |name: &str| {
            query
                .iter()
                .find(|(n, _)| n == name)
                .map(|(_, value)| value.as_str())
        };
        let key = of("key").ok_or_else(|| Refusal::bad("the key is missing: ?key=K"))?;
        look::locate(&store.broker, &topic, key.as_bytes(), of("partitioner"))
    })
    .await
}

async fn explained(State(slot): State<Slot>, Path(topic): Path<String>) -> Answer {
    let store = slot.get().ok_or_else(not_ready)?;
    let before = look::syncs(&store.broker);
    tokio::time::sleep(look::WATCH).await;
    blocking(slot, move |store| {
        look::explained(&store.broker, &topic, &before)
    })
    .await
}

async fn verify(State(slot): State<Slot>, Query(query): Query<Vec<(String, String)>>) -> Answer {
    let deep = query.iter().any(|(name, _)| name == "deep");
    blocking_in(&CHECKS, slot, move |store| {
        Ok(verify_live(&store.broker.partitions, deep))
    })
    .await
}

async fn reshape(
    State(slot): State<Slot>,
    Path(topic): Path<String>,
    headers: HeaderMap,
    body: String,
) -> Answer {
    blocking_in(&CHANGES, slot, move |store| {
        let given = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok());
        if !token::grants(&store.token, given) {
            return Err(Refusal(
                StatusCode::UNAUTHORIZED,
                "a change needs the token in the file admin.token of the data directory, sent as \
                 Authorization: Bearer TOKEN"
                    .to_owned(),
            ));
        }
        let request: ChangeRequest = serde_json::from_str(&body).map_err(Refusal::bad)?;
        change::reshape(&store.broker, &topic, &request)
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    /// Clients' reads from disk wait for the same threads.
    #[tokio::test]
    async fn however_many_ask_few_look_at_once() {
        static TURNS: Semaphore = Semaphore::const_new(2);
        static RUNNING: AtomicUsize = AtomicUsize::new(0);
        static MOST: AtomicUsize = AtomicUsize::new(0);
        let looks = (0..30).map(|_| {
            tokio::spawn(in_turn(&TURNS, || {
                MOST.fetch_max(RUNNING.fetch_add(1, SeqCst) + 1, SeqCst);
                std::thread::sleep(std::time::Duration::from_millis(2));
                RUNNING.fetch_sub(1, SeqCst);
            }))
        });
        for look in looks.collect::<Vec<_>>() {
            look.await.unwrap().unwrap();
        }
        assert_eq!(MOST.load(SeqCst), 2);
    }
}
