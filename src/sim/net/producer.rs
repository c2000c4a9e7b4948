//! An idempotent producer: up to five requests under way, and whatever failed or got no answer is
//! sent again, in order, on a new connection if need be.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use kafka_protocol::messages::{InitProducerIdResponse, ProduceResponse};

use super::asked::{Asked, Part, Request, error_of};
use super::{LinkId, Who, open, send};
use crate::protocol::error::ErrorCode;
use crate::sim::model::Sent;
use crate::sim::ops::append;
use crate::sim::seen::Branch;
use crate::sim::world::World;
use crate::store::journal::SyncPolicy;
use crate::types::{Offset, TopicId};

/// Batches of a partition, and requests, that may be under way.
const IN_FLIGHT: usize = 5;

/// A producer.
#[derive(Default)]
pub(in crate::sim) struct Producer {
    link: Option<LinkId>,
    id: Option<i64>,
    /// Requests without an answer.
    waiting: usize,
    streams: BTreeMap<(TopicId, u32), Stream>,
}

/// What goes to one partition.
#[derive(Default)]
struct Stream {
    next: i32,
    queue: VecDeque<Unacked>,
    /// Where the newest acknowledged batch is.
    acked: Option<Offset>,
}

struct Unacked {
    sent: Sent,
    under_way: bool,
    tries: u32,
    /// One behind it is acknowledged: it was stored when a retry of it was refused.
    overtaken: bool,
}

impl Stream {
    /// The next batch to send: the first one that is not under way, unless one behind it is.
    fn ready(&mut self) -> Option<&mut Unacked> {
        let at = self.queue.iter().position(|batch| !batch.under_way)?;
        if self.queue.range(at..).any(|batch| batch.under_way) {
            return None;
        }
        self.queue.get_mut(at)
    }

    fn first(&self) -> Option<i32> {
        self.queue.front().map(Unacked::sequence)
    }
}

impl Unacked {
    fn sequence(&self) -> i32 {
        self.sent.producer.map_or(0, |(_, first)| first)
    }
}

impl Producer {
    /// Its connection is gone.
    pub(super) fn cut(&mut self) {
        (self.link, self.waiting) = (None, 0);
        for batch in self.streams.values_mut().flat_map(|s| &mut s.queue) {
            batch.under_way = false;
        }
    }

    /// The id that it was told.
    pub(super) fn id(&self) -> Option<i64> {
        self.id
    }

    /// Whether everything it sent was acknowledged.
    pub(super) fn is_done(&self) -> bool {
        self.streams.values().all(|stream| stream.queue.is_empty())
    }
}

/// The producer makes something new, or goes on with what it has.
pub(in crate::sim) fn run(world: &mut World) {
    let i = world.random.below(world.net.producers.len() as u64) as usize;
    if world.random.one_in(2) {
        make(world, i);
    }
    go_on(world, i);
}

/// Sends what can be sent.
pub(in crate::sim) fn go_on(world: &mut World, i: usize) {
    let producer = &world.net.producers[i];
    let link = match producer.link {
        Some(link) => link,
        None => {
            let link = open(world, Who::Producer(i));
            world.net.producers[i].link = Some(link);
            link
        }
    };
    let producer = &mut world.net.producers[i];
    if producer.id.is_none() {
        if producer.waiting == 0 {
            producer.waiting = 1;
            send(world, link, Asked::ProducerId);
        }
        return;
    }
    if producer.waiting >= IN_FLIGHT {
        return;
    }
    let mut parts = Vec::new();
    let mut again = 0;
    for ((topic, index), stream) in &mut producer.streams {
        if parts.len() < 3
            && let Some(batch) = stream.ready()
        {
            batch.under_way = true;
            again += u64::from(batch.tries > 0);
            batch.tries += 1;
            parts.push(Part::new(*topic, *index, batch.sent.clone()));
        }
    }
    if again > 0 {
        world.seen.note(Branch::SentAgain);
    }
    if !parts.is_empty() {
        world.net.producers[i].waiting += 1;
        send(world, link, Asked::Produce(parts));
    }
}

/// A new batch for some partition that the producer knows of.
fn make(world: &mut World, i: usize) {
    let topics: Vec<_> = world.model.durable.topics.values().cloned().collect();
    let Some(topic) = world.random.pick(&topics).cloned() else {
        return;
    };
    let index = world.random.below(u64::from(topic.partitions)) as u32;
    let producer = &mut world.net.producers[i];
    let Some(id) = producer.id else { return };
    let stream = producer.streams.entry((topic.id, index)).or_default();
    // Any sequence may be a producer's first: a second batch must not come before the first one.
    let most = if stream.acked.is_some() { IN_FLIGHT } else { 1 };
    if stream.queue.len() >= most {
        return;
    }
    let first = stream.next;
    let records = 1 + world.random.below(3) as i32;
    let bytes = world.random.below(900) as usize;
    let codec = append::codec(world);
    let sent = append::compressed(world, records, bytes, Some((id, first)), codec);
    let streams = &mut world.net.producers[i].streams;
    if let Some(stream) = streams.get_mut(&(topic.id, index)) {
        stream.next = first + records;
        stream.queue.push_back(Unacked {
            sent,
            under_way: false,
            tries: 0,
            overtaken: false,
        });
    }
}

pub(super) fn answered(world: &mut World, i: usize, request: &Request, frame: &Bytes) {
    let producer = &mut world.net.producers[i];
    producer.waiting -= 1;
    match &request.asked {
        Asked::ProducerId => {
            let response: InitProducerIdResponse = request.decode(frame);
            assert_eq!(response.error_code, 0);
            producer.id = Some(response.producer_id.0);
        }
        Asked::Produce(parts) => {
            let response: ProduceResponse = request.decode(frame);
            let results = response
                .responses
                .iter()
                .flat_map(|t| &t.partition_responses);
            for (part, result) in parts.iter().zip(results) {
                settled(world, i, part, result.error_code, result.base_offset);
            }
        }
        other => panic!("a producer does not ask {other:?}"),
    }
}

/// What became of one batch.
fn settled(world: &mut World, i: usize, part: &Part, code: i16, base: Offset) {
    let at_risk = world.options.sync != SyncPolicy::Always;
    let producer = &mut world.net.producers[i];
    let Some((id, sequence)) = part.sent.producer else {
        return;
    };
    if producer.id != Some(id) {
        return;
    }
    let place = (part.topic, part.index);
    let Some(stream) = producer.streams.get_mut(&place) else {
        return;
    };
    let is_first = stream.first() == Some(sequence);
    let at = stream.queue.iter().position(|b| b.sequence() == sequence);
    let at = at.expect("a batch is answered once");
    stream.queue[at].under_way = false;
    match error_of(code) {
        None => {
            let batch = stream.queue.remove(at).expect("found before");
            let behind = stream.acked.is_none_or(|last| last < base);
            assert!(behind || batch.overtaken || at_risk, "later, and behind");
            stream.acked = stream.acked.max(Some(base));
            let overtaken = stream.queue.range_mut(..at);
            let overtaken: Vec<i32> = overtaken
                .map(|before| {
                    before.overtaken = true;
                    before.sequence()
                })
                .collect();
            for before in overtaken {
                assert!(is_stored(world, part, id, before), "acknowledged in order");
            }
            acknowledged(world, part, base);
        }
        // Its topic is deleted, or will be unless a crash takes the deletion back.
        Some(ErrorCode::UnknownTopicOrPartition | ErrorCode::UnknownTopicId) => {
            start_over(world, i);
        }
        Some(ErrorCode::KafkaStorageError) => {}
        Some(ErrorCode::OutOfOrderSequenceNumber) if !is_first => {}
        Some(ErrorCode::OutOfOrderSequenceNumber) if at_risk => {
            // A crash took acknowledged batches: the producer starts over.
            start_over(world, i);
        }
        // The clock was set back; its producer gives the batch up, and its sequence with it.
        Some(ErrorCode::InvalidTimestamp) => start_over(world, i),
        Some(code) => panic!("batch {sequence} of producer {id} for {place:?}: error {code}"),
    }
}

/// A producer takes a new id, and with it new sequences.
fn start_over(world: &mut World, i: usize) {
    let producer = &mut world.net.producers[i];
    producer.id = None;
    producer.streams.clear();
    world.seen.note(Branch::ProducerStartedOver);
}

/// Whether a batch before an acknowledged one is stored, too: it was, before a retry of it was
/// refused.
fn is_stored(world: &World, part: &Part, id: i64, sequence: i32) -> bool {
    let durable = &world.model.durable;
    let log = durable.partition(part.topic, part.index);
    let window = log.and_then(|key| durable.logs[&key].producers.get(&id));
    window.is_none_or(|window| window.iter().any(|batch| batch.first == sequence))
}

/// An acknowledged batch is durable where its producer was told, unless it was deleted since.
fn acknowledged(world: &World, part: &Part, base: Offset) {
    let durable = &world.model.durable;
    let Some(key) = durable.partition(part.topic, part.index) else {
        return;
    };
    let log = &durable.logs[&key];
    if base < log.log_start {
        return;
    }
    let kept = log.batches.get(&base).expect("acknowledged and there");
    assert_eq!(kept.payload, part.sent.payload, "{key} at {base}");
}
