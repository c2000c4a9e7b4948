//! A consumer that reads from anywhere, now and then without taking its answers.

use kafka_protocol::messages::FetchRequest;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};

use super::asked::{Asked, Request};
use super::{LinkId, Who, open, send};
use crate::sim::world::World;

/// A consumer.
#[derive(Default)]
pub(in crate::sim) struct Reader {
    link: Option<LinkId>,
    waits: bool,
}

impl Reader {
    pub(super) fn cut(&mut self) {
        (self.link, self.waits) = (None, false);
    }
}

pub(in crate::sim) fn run(world: &mut World) {
    let i = world.random.below(world.net.readers.len() as u64) as usize;
    if world.net.readers[i].waits {
        return;
    }
    let topics: Vec<_> = world.model.durable.topics.values().cloned().collect();
    let mut asked = Vec::new();
    for _ in 0..=world.random.below(2) {
        let Some(topic) = world.random.pick(&topics) else {
            return;
        };
        let index = world.random.below(u64::from(topic.partitions)) as u32;
        let Some(key) = world.model.durable.partition(topic.id, index) else {
            return;
        };
        let log = &world.model.durable.logs[&key];
        let span = (log.next - log.log_start + 3) as u64;
        let offset = log.log_start - 1 + world.random.below(span) as i64;
        let partition = FetchPartition::default()
            .with_partition(index as i32)
            .with_fetch_offset(offset)
            .with_partition_max_bytes(1 + world.random.below(8 << 10) as i32);
        let one = FetchTopic::default()
            .with_topic_id(topic.id)
            .with_partitions(vec![partition]);
        if !asked
            .iter()
            .any(|other: &FetchTopic| other.topic_id == topic.id)
        {
            asked.push(one);
        }
    }
    let request = FetchRequest::default()
        .with_max_wait_ms([0, 300, 3_000][world.random.below(3) as usize])
        .with_min_bytes(1 + world.random.below(2_000) as i32)
        .with_max_bytes(1 << 20)
        .with_session_epoch(-1)
        .with_topics(asked);
    let link = match world.net.readers[i].link {
        Some(link) => link,
        None => open(world, Who::Reader(i)),
    };
    let slow = world.random.one_in(4);
    if let Some(open) = world.net.links.get_mut(&link) {
        open.reads &= !slow;
    }
    let reader = &mut world.net.readers[i];
    (reader.link, reader.waits) = (Some(link), true);
    send(world, link, Asked::Fetch(request));
}

pub(super) fn answered(world: &mut World, i: usize, _request: &Request) {
    world.net.readers[i].waits = false;
}
