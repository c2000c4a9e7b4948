//! Simulated clients on simulated connections. Requests go as bytes through the real dispatch and
//! handlers, answers wait in a queue as a connection's do, and whatever is under way is lost when
//! the connection is: on its way, being handled, handled, or answered.
//!
//! [`asked`] has the requests, [`handled`] and [`produced`] compare what the server made of each
//! with the model;
//! [`producer`], [`member`] and [`reader`] are clients, which know only what they were answered.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use super::seen::Branch;
use super::world::World;
use crate::budget::{Budget, Permit};
use crate::clock::Clock;
use crate::config::Listener;
use crate::handlers::{self, Answer, ClientInfo, CloseReason, Connection};
use crate::store::journal::{Journal, SyncPolicy};
use crate::types::Place;

mod asked;
mod handled;
mod member;
mod produced;
mod producer;
mod reader;

use asked::{Asked, Request};
use kafka_protocol::messages::ApiKey;
pub(super) use member::{GROUPS, Member, run as take_part};
pub(super) use producer::{Producer, run as produce};
pub(super) use reader::{Reader, run as consume};

/// A connection.
pub(super) type LinkId = u64;

const PRODUCERS: usize = 2;
const MEMBERS: usize = 5;
const READERS: usize = 2;

/// A client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Producer(usize),
    Member(usize),
    Reader(usize),
}

type Handling = Pin<Box<dyn Future<Output = Result<Answer, CloseReason>>>>;

struct Link {
    /// `None` once the client is gone.
    who: Option<Who>,
    connection: Arc<Connection>,
    /// On their way to the server.
    sent: VecDeque<Request>,
    handling: Option<(Request, Handling)>,
    /// Handled; each answer waits for those before it and for its position.
    queue: VecDeque<(Request, Answer)>,
    /// On their way to the client.
    arriving: VecDeque<(Request, Bytes)>,
    /// Whether the client takes its answers.
    reads: bool,
}

/// What was told of one generation of a group.
#[derive(Clone, Debug, Default)]
struct Told {
    /// The members, if the leader heard of them.
    roster: Option<BTreeSet<String>>,
    /// The id of the member that leads.
    leader: String,
    joined: BTreeSet<String>,
    /// Who was told that a partition is its own.
    owners: BTreeMap<(String, i32), String>,
    synced: bool,
}

/// All clients and connections.
#[derive(Default)]
pub(super) struct Net {
    links: BTreeMap<LinkId, Link>,
    next_link: LinkId,
    correlation: i32,
    pub(super) producers: Vec<Producer>,
    pub(super) members: Vec<Member>,
    pub(super) readers: Vec<Reader>,
    /// Producer ids that a handler gave out.
    ids: BTreeSet<i64>,
    told: BTreeMap<(String, i32), Told>,
    /// Groups that went when nothing was left of them, counted.
    era: u64,
    /// The newest offsets that a commit was acknowledged for, by group, topic id and partition.
    acknowledged: BTreeMap<(String, uuid::Uuid, i32), i64>,
}

impl Net {
    pub(super) fn new() -> Self {
        Self {
            producers: (0..PRODUCERS).map(|_| Producer::default()).collect(),
            members: (0..MEMBERS).map(Member::new).collect(),
            readers: (0..READERS).map(|_| Reader::default()).collect(),
            ..Self::default()
        }
    }

    /// The process ended: no connection is left, and what was not durable is forgotten.
    pub(super) fn hang_up(&mut self) {
        self.links.clear();
        self.producers.iter_mut().for_each(Producer::cut);
        self.members.iter_mut().for_each(Member::cut);
        self.readers.iter_mut().for_each(Reader::cut);
        // A generation is stored with its assignment.
        self.told.retain(|_, told| told.synced);
    }

    /// A new process starts, and has given out no id from here on.
    pub(super) fn restart(&mut self, next_producer_id: i64, sync: SyncPolicy) {
        if sync != SyncPolicy::Always {
            // A power loss takes back what was told of groups, too.
            self.told.clear();
            self.acknowledged.clear();
        }
        self.ids.retain(|id| *id < next_producer_id);
        for id in self.producers.iter().filter_map(Producer::id) {
            assert!(
                id < next_producer_id,
                "{id} was told and is given out again"
            );
        }
    }

    /// Nothing is left of a group.
    pub(super) fn forget_group(&mut self, group: &str) {
        self.told.retain(|(of, _), _| of != group);
        self.era += 1;
    }

    fn any_link(&self, random: &mut super::random::Random) -> Option<LinkId> {
        let ids: Vec<_> = self.links.keys().copied().collect();
        random.pick(&ids).copied()
    }

    /// Whether nothing is under way on any connection.
    pub(super) fn is_quiet(&self) -> bool {
        self.links.values().all(Link::is_empty) && self.producers.iter().all(Producer::is_done)
    }
}

impl Link {
    fn is_empty(&self) -> bool {
        let parked = self
            .handling
            .as_ref()
            .is_some_and(|(request, _)| handlers::parks(request.api));
        self.sent.is_empty()
            && (self.handling.is_none() || parked)
            && self.queue.is_empty()
            && self.arriving.is_empty()
    }
}

/// A connection from a client to the process that runs now.
fn open(world: &mut World, who: Who) -> LinkId {
    let id = world.net.next_link;
    world.net.next_link += 1;
    let connection = Arc::new(Connection {
        id,
        broker: Arc::clone(&world.store().broker),
        decoded: Budget::new("decoded_requests", 1 << 20),
        listener: Arc::new(Listener::plaintext("PLAINTEXT", "127.0.0.1", 9092)),
        peer: ([127, 0, 0, 1], 40_000).into(),
        client: parking_lot::Mutex::new(ClientInfo::default()),
    });
    let link = Link {
        who: Some(who),
        connection,
        sent: VecDeque::new(),
        handling: None,
        queue: VecDeque::new(),
        arriving: VecDeque::new(),
        reads: true,
    };
    world.net.links.insert(id, link);
    id
}

fn send(world: &mut World, id: LinkId, asked: Asked) {
    world.net.correlation += 1;
    let request = Request::new(asked, world.net.correlation);
    let link = world.net.links.get_mut(&id).expect("an open connection");
    link.sent.push_back(request);
}

/// Something moves on some connections.
pub(super) fn run(world: &mut World) {
    world.store().groups.serve_due();
    let ids: Vec<_> = world.net.links.keys().copied().collect();
    for id in ids {
        if world.is_up() && !world.random.one_in(3) {
            exchange(world, id);
        }
    }
}

/// Nothing goes wrong any more: whatever producers have is acknowledged, and every answer leaves.
pub(super) fn settle(world: &mut World) {
    for _ in 0..100 {
        for i in 0..world.net.producers.len() {
            producer::go_on(world, i);
        }
        pump(world);
        world.store().settle();
        world.follow();
        if world.net.is_quiet() {
            return;
        }
    }
    panic!("a producer was not answered, or an answer never left");
}

/// Moves all connections on.
fn pump(world: &mut World) {
    let ids: Vec<_> = world.net.links.keys().copied().collect();
    for id in ids {
        if let Some(link) = world.net.links.get_mut(&id) {
            link.reads = true;
        }
        exchange(world, id);
    }
}

fn exchange(world: &mut World, id: LinkId) {
    let Some(mut link) = world.net.links.remove(&id) else {
        return;
    };
    if world.calm || !world.random.one_in(4) {
        handle(world, &mut link);
    }
    if !world.is_up() {
        return;
    }
    world.follow();
    if !link.reads && world.random.one_in(6) {
        link.reads = true;
    }
    leave(world, &mut link);
    let mut arrived = None;
    if world.calm || !world.random.one_in(3) {
        arrived = link.arriving.pop_front();
    }
    let who = link.who;
    if who.is_none() {
        link.arriving.clear();
    }
    if who.is_some() || !link.is_empty() {
        world.net.links.insert(id, link);
    }
    let (Some(who), Some((request, frame))) = (who, arrived) else {
        return;
    };
    match who {
        Who::Producer(i) => producer::answered(world, i, &request, &frame),
        Who::Member(i) if world.net.members[i].is_on(id) => {
            member::answered(world, i, &request, &frame);
        }
        // The process that asked is gone, or has another connection by now.
        Who::Member(_) => {}
        Who::Reader(i) => reader::answered(world, i, &request),
    }
}

/// Handles one request, or goes on with it. Anything but a Produce waits until every answer before
/// it has left.
fn handle(world: &mut World, link: &mut Link) {
    if link.handling.is_none() {
        let free = |r: &Request| r.api == ApiKey::Produce || link.queue.is_empty();
        if !link.sent.front().is_some_and(free) {
            return;
        }
        let Some(request) = link.sent.pop_front() else {
            return;
        };
        let (connection, frame) = (Arc::clone(&link.connection), request.frame.clone());
        let handling: Handling =
            Box::pin(async move { handlers::dispatch(&connection, frame, Permit::empty()).await });
        link.handling = Some((request, handling));
    }
    let Some((mut request, mut handling)) = link.handling.take() else {
        return;
    };
    if link.who.is_none() && handlers::parks(request.api) {
        return;
    }
    world.follow();
    request.notice(&world.model.durable, world.clock.wall_ms());
    if let Asked::Produce(parts) = &mut request.asked {
        produced::expect(world, parts);
    }
    let before = world.store().journal().appended();
    let outcome = poll(world, &mut handling);
    if !world.is_up() {
        return;
    }
    let appended = world.take_appended();
    if let Asked::Produce(parts) = &mut request.asked {
        produced::landed(world, parts, &appended);
    }
    match outcome {
        Poll::Pending => {
            request.polls += 1;
            link.handling = Some((request, handling));
        }
        Poll::Ready(Err(reason)) => panic!("{:?} ended its connection: {reason}", request.api),
        Poll::Ready(Ok(answer)) => {
            handled::compare(world, &request, &answer, before, &appended);
            let durable = world.store().durable();
            if !durable.covers(&answer.after) {
                world.seen.note(Branch::AnswerHeld);
            }
            let held = |place: &Place| !durable.covers(&(*place).into());
            if answer.after.iter().filter(held).count() > 1 {
                world.seen.note(Branch::AnswerOfTwoJournals);
            }
            request.era = world.net.era;
            link.queue.push_back((request, answer));
        }
    }
}

/// Polls a handler. Reads that wait for the disk go to a thread; what it finds is waited for here,
/// so that a run depends on no thread's pace.
fn poll(world: &World, handling: &mut Handling) -> Poll<Result<Answer, CloseReason>> {
    let mut context = Context::from_waker(Waker::noop());
    world.advance_timers();
    loop {
        let before = world.disks.figures();
        let polled = {
            let _inside = world.runtime.enter();
            handling.as_mut().poll(&mut context)
        };
        if polled.is_ready() {
            return polled;
        }
        let idle = async { tokio::task::spawn_blocking(|| ()).await };
        world.runtime.block_on(idle).expect("nothing to fail");
        if world.disks.figures() == before {
            return Poll::Pending;
        }
    }
}

/// Lets answers go that have their turn and are durable.
fn leave(world: &mut World, link: &mut Link) {
    let durable = world.store().durable();
    while link.reads
        && let Some((_, answer)) = link.queue.front()
        && durable.covers(&answer.after)
    {
        let Some((request, answer)) = link.queue.pop_front() else {
            return;
        };
        world.shown.raise_to(answer.after.iter());
        let frame = answer.frame.map(|frame| frame.parts.concat());
        link.arriving
            .push_back((request, frame.unwrap_or_default().into()));
    }
    if !link.reads && world.store().broker.budgets.responses.used() > 0 {
        world.seen.note(Branch::SlowReader);
    }
}

/// A connection is lost. The server may hear of it at once, or handle what has reached it.
pub(super) fn cut(world: &mut World) {
    let Some(id) = world.net.any_link(&mut world.random) else {
        return;
    };
    let Some(mut link) = world.net.links.remove(&id) else {
        return;
    };
    let Some(who) = link.who.take() else { return };
    if !link.sent.is_empty() {
        world.seen.note(Branch::RequestLost);
    }
    if !link.queue.is_empty() || !link.arriving.is_empty() {
        world.seen.note(Branch::AnswerLost);
    }
    if world.random.one_in(2) {
        let on_its_way = world.random.below(link.sent.len() as u64 + 1);
        link.sent.truncate(on_its_way as usize);
        // A commit that is handled after a later one of the same member takes it back, in Kafka
        // too; that is the client's doing.
        link.sent
            .retain(|request| request.api != ApiKey::OffsetCommit);
        link.arriving.clear();
        link.reads = true;
        world.net.links.insert(id, link);
    }
    match who {
        Who::Producer(i) => world.net.producers[i].cut(),
        Who::Member(i) => world.net.members[i].cut(),
        Who::Reader(i) => world.net.readers[i].cut(),
    }
}

impl World {
    /// Brings timers of handlers up to the simulated clock.
    fn advance_timers(&self) {
        let now = self.clock.monotonic();
        let by = now.saturating_sub(self.timers_at.replace(now));
        if !by.is_zero() {
            self.runtime
                .block_on(async { tokio::time::advance(by).await });
        }
    }
}
