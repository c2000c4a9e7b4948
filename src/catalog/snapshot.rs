//! The image as bytes, for the checkpoint.
//!
//! Section 0 holds the marks and the configs of brokers and groups; topics follow, as many per
//! section as fit. Each section begins with a version byte and is a run of tagged records.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::change::{
    decode_broker, decode_factor, decode_home, decode_replicas, encode_broker, encode_home,
    encode_replicas,
};
use super::codec::{DecodeError, Reader, Writer};
use super::image::{Environment, Image};
use super::names;
use super::topic::Topic;
use crate::shard::{EpochEvent, EpochRecord, Layout, LayoutParts, Link, ShardSpan, ShardState};
use crate::types::{DirectoryId, Position, ShardId, TopicNo};

/// Version of the encoding. Version 1 has no homes of shards: all are in the first directory.
const VERSION: u8 = 2;

/// Size that a section stays below, unless one record is larger.
const SECTION_BYTES: usize = 1 << 20;

mod tag {
    pub(super) const MARKS: u8 = 1;
    pub(super) const BROKER: u8 = 2;
    pub(super) const GROUP: u8 = 3;
    pub(super) const TOPIC: u8 = 4;
}

impl Image {
    /// The image in sections of at most 1 MiB, always the same for the same image.
    pub fn encode(&self) -> Vec<Bytes> {
        let mut sections = Sections::default();
        let mut marks = Writer::new();
        marks.u8(tag::MARKS);
        marks.uint(self.version);
        marks.uint(self.position.0);
        marks.uint(u64::from(self.next_topic));
        marks.uint(self.next_shard);
        marks.int(self.next_producer_id);
        sections.add(marks);
        for (broker, configs) in self.broker_configs.iter() {
            let mut w = Writer::new();
            w.u8(tag::BROKER);
            encode_broker(&mut w, *broker);
            w.configs(configs);
            sections.add(w);
        }
        for (group, configs) in self.groups_with_configs() {
            let mut w = Writer::new();
            w.u8(tag::GROUP);
            w.str(group);
            w.configs(configs);
            sections.add(w);
        }
        for topic in self.topics_by_no() {
            let mut w = Writer::new();
            w.u8(tag::TOPIC);
            encode_topic(&mut w, topic);
            sections.add(w);
        }
        sections.finish()
    }

    /// The image in those sections, in any order.
    pub fn decode<'a>(
        sections: impl IntoIterator<Item = &'a [u8]>,
        environment: Environment,
    ) -> Result<Self, DecodeError> {
        let mut image = Self::empty(environment);
        let mut marked = false;
        let mut brokers = BTreeMap::new();
        let mut topics = Vec::new();
        for section in sections {
            let mut r = Reader::new(section);
            let version = r.version("a catalog section", VERSION)?;
            while !r.is_empty() {
                let mut record = Reader::new(r.blob()?);
                match record.u8()? {
                    tag::MARKS => {
                        marked = true;
                        image.version = record.uint()?;
                        image.position = Position(record.uint()?);
                        image.next_topic = record.u32()?;
                        image.next_shard = record.uint()?;
                        image.next_producer_id = record.int()?;
                    }
                    tag::BROKER => {
                        brokers.insert(decode_broker(&mut record)?, record.configs()?);
                    }
                    tag::GROUP => {
                        let group = record.str()?.to_owned();
                        image
                            .group_configs
                            .insert(group, Arc::new(record.configs()?));
                    }
                    tag::TOPIC => topics.push(decode_topic(&mut record, &image, version)?),
                    _ => return Err(DecodeError::Damaged("an unknown kind of record")),
                }
                record.end()?;
            }
        }
        image.broker_configs = Arc::new(brokers);
        for topic in topics {
            image.put(topic);
        }
        image.resolve_all();
        if !marked || image.topics_by_no().any(|topic| !image.marks_cover(topic)) {
            return Err(DecodeError::Damaged(
                "the marks are missing or below a topic",
            ));
        }
        Ok(image)
    }
}

impl Image {
    /// Whether the marks say that the topic's number and shards are given out.
    fn marks_cover(&self, topic: &Topic) -> bool {
        let parts = topic.layout.parts();
        topic.no.0 > 0
            && topic.no.0 < self.next_topic
            && parts
                .open
                .iter()
                .chain(&parts.sealed)
                .all(|s| s.id.0 < self.next_shard)
    }
}

/// Records on their way into sections.
#[derive(Default)]
struct Sections {
    done: Vec<Bytes>,
    current: Option<Writer>,
}

impl Sections {
    fn add(&mut self, record: Writer) {
        let record = record.finish();
        let full = |w: &Writer| w.len() + record.len() + 10 > SECTION_BYTES;
        if self.current.as_ref().is_some_and(full) {
            self.done.extend(self.current.take().map(Writer::finish));
        }
        let current = self.current.get_or_insert_with(|| {
            let mut w = Writer::new();
            w.u8(VERSION);
            w
        });
        current.blob(&record);
    }

    fn finish(mut self) -> Vec<Bytes> {
        self.done.extend(self.current.map(Writer::finish));
        self.done
    }
}

fn encode_topic(w: &mut Writer, topic: &Topic) {
    w.uint(u64::from(topic.no.0));
    w.uuid(topic.id);
    w.str(&topic.name);
    w.int(i64::from(topic.replication_factor));
    w.int(topic.created_ms);
    w.configs(&topic.configs);
    encode_replicas(w, &topic.replicas);
    encode_layout(w, topic.layout.parts());
}

fn decode_topic(r: &mut Reader, image: &Image, version: u8) -> Result<Topic, DecodeError> {
    let no = TopicNo(r.u32()?);
    let id = r.uuid()?;
    let name = r.str()?;
    let replication_factor = decode_factor(r)?;
    let created_ms = r.int()?;
    let configs = r.configs()?;
    let replicas = decode_replicas(r)?;
    let layout = Layout::from_parts(decode_layout(r, version)?)
        .map_err(|_| DecodeError::Damaged("a topic's layout breaks its rules"))?;
    Ok(Topic {
        no,
        id,
        name: Arc::from(name),
        partitions: layout.partitions(),
        replication_factor,
        internal: names::is_internal(name),
        settings: image.settings(&Default::default()),
        configs: Arc::new(configs),
        layout: Arc::new(layout),
        replicas: Arc::new(replicas),
        created_ms,
    })
}

fn encode_layout(w: &mut Writer, parts: &LayoutParts) {
    // Neighbours differ by little, so differences take a byte each.
    let mut before = 0;
    w.list(&parts.slots, |w, partition| {
        w.int(i64::from(*partition) - before);
        before = i64::from(*partition);
    });
    w.list(&parts.open, encode_shard);
    w.list(&parts.sealed, encode_shard);
    w.uint(parts.links.len() as u64);
    for (partition, links) in &parts.links {
        w.uint(u64::from(*partition));
        w.list(links, |w, link| {
            w.uint(link.shard.0);
            w.int(link.start);
        });
    }
    w.list(&parts.history, encode_epoch);
}

fn decode_layout(r: &mut Reader, version: u8) -> Result<LayoutParts, DecodeError> {
    let mut before = 0i64;
    let slots = r.list(|r| {
        before = before.wrapping_add(r.int()?);
        u32::try_from(before).map_err(|_| DecodeError::Damaged("a slot is out of range"))
    })?;
    let open = r.list(|r| decode_shard(r, ShardState::Open, version))?;
    let sealed = r.list(|r| decode_shard(r, ShardState::Sealed, version))?;
    let link = |r: &mut Reader| {
        Ok(Link {
            shard: ShardId(r.uint()?),
            start: r.int()?,
        })
    };
    let links = r
        .list(|r| Ok((r.u32()?, r.list(link)?)))?
        .into_iter()
        .collect();
    let history = r.list(decode_epoch)?;
    Ok(LayoutParts {
        slots,
        open,
        sealed,
        links,
        history,
    })
}

fn encode_shard(w: &mut Writer, shard: &ShardSpan) {
    w.uint(shard.id.0);
    w.uint(u64::from(shard.first_slot));
    w.uint(u64::from(shard.slots));
    w.list(&shard.parents, |w, id| w.uint(id.0));
    w.list(&shard.children, |w, id| w.uint(id.0));
    w.uint(u64::from(shard.created));
    w.uint(u64::from(shard.sealed.unwrap_or(0)));
    encode_home(w, shard.home);
}

fn decode_shard(r: &mut Reader, state: ShardState, version: u8) -> Result<ShardSpan, DecodeError> {
    let ids = |r: &mut Reader| r.list(|r| Ok(ShardId(r.uint()?)));
    Ok(ShardSpan {
        id: ShardId(r.uint()?),
        first_slot: r.u32()?,
        slots: r.u32()?,
        state,
        parents: ids(r)?,
        children: ids(r)?,
        created: r.u32()?,
        sealed: Some(r.u32()?).filter(|epoch| *epoch > 0),
        home: match version {
            1 => DirectoryId::FIRST,
            _ => decode_home(r)?,
        },
    })
}

fn encode_epoch(w: &mut Writer, record: &EpochRecord) {
    w.uint(u64::from(record.epoch));
    w.int(record.at_ms);
    match &record.event {
        EpochEvent::Created { partitions } => {
            w.u8(1);
            w.uint(u64::from(*partitions));
        }
        EpochEvent::Grown { from, to } => {
            w.u8(2);
            w.uint(u64::from(*from));
            w.uint(u64::from(*to));
        }
        EpochEvent::Reshaped { sealed, opened } => {
            w.u8(3);
            w.list(sealed, |w, id| w.uint(id.0));
            w.list(opened, |w, id| w.uint(id.0));
        }
    }
}

fn decode_epoch(r: &mut Reader) -> Result<EpochRecord, DecodeError> {
    let ids = |r: &mut Reader| r.list(|r| Ok(ShardId(r.uint()?)));
    let epoch = r.u32()?;
    let at_ms = r.int()?;
    let event = match r.u8()? {
        1 => EpochEvent::Created {
            partitions: r.u32()?,
        },
        2 => EpochEvent::Grown {
            from: r.u32()?,
            to: r.u32()?,
        },
        3 => EpochEvent::Reshaped {
            sealed: ids(r)?,
            opened: ids(r)?,
        },
        _ => return Err(DecodeError::Damaged("an unknown layout event")),
    };
    Ok(EpochRecord {
        epoch,
        at_ms,
        event,
    })
}
