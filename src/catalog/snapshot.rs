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
use super::codec::{Configs, DecodeError, Reader, Writer};
use super::image::{Environment, Image};
use super::names;
use super::topic::{Replicas, Topic};
use crate::shard::{EpochEvent, EpochRecord, Layout, LayoutParts, ShardSpan, ShardState};
use crate::types::{DirectoryId, Position, ShardId, TopicId, TopicNo};

/// Version of the encoding. Version 1 had a topic's whole layout in one record, and no homes of
/// shards: all were in the first directory.
const VERSION: u8 = 2;

/// Size that a section stays below, unless one record is larger.
const SECTION_BYTES: usize = 1 << 20;
/// Size at which a record of epochs is closed and another begun.
const EPOCHS_BYTES: usize = 256 << 10;

mod tag {
    pub(super) const MARKS: u8 = 1;
    pub(super) const BROKER: u8 = 2;
    pub(super) const GROUP: u8 = 3;
    pub(super) const TOPIC: u8 = 4;
    pub(super) const EPOCHS: u8 = 5;
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
            for epochs in encode_history(topic) {
                sections.add(epochs);
            }
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
        let mut histories: BTreeMap<TopicNo, History> = BTreeMap::new();
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
                    tag::TOPIC => topics.push(Draft::decode(&mut record, version)?),
                    tag::EPOCHS if version > 1 => {
                        let no = TopicNo(record.u32()?);
                        let epochs = record.list(decode_epoch)?;
                        histories.entry(no).or_default().extend(epochs);
                    }
                    _ => return Err(DecodeError::Damaged("an unknown kind of record")),
                }
                record.end()?;
            }
        }
        image.broker_configs = Arc::new(brokers);
        for draft in topics {
            let history = histories.remove(&draft.no).unwrap_or_default();
            let topic = draft.finish(history, &image)?;
            image.put(topic);
        }
        image.resolve_all();
        image.bytes = image.weigh();
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

/// Epochs with the shards that each of them sealed.
type History = Vec<(EpochRecord, Vec<ShardSpan>)>;

fn encode_topic(w: &mut Writer, topic: &Topic) {
    w.uint(u64::from(topic.no.0));
    w.uuid(topic.id);
    w.str(&topic.name);
    w.int(i64::from(topic.replication_factor));
    w.int(topic.created_ms);
    w.configs(&topic.configs);
    encode_replicas(w, &topic.replicas);
    let parts = topic.layout.parts();
    // Neighbours differ by little, so differences take a byte each.
    let mut before = 0;
    w.list(&parts.slots, |w, partition| {
        w.int(i64::from(*partition) - before);
        before = i64::from(*partition);
    });
    w.list(&parts.counts, |w, count| w.uint(u64::from(*count)));
    w.list(&parts.open, |w, shard| encode_shard(w, shard));
}

/// A topic whose history may stand in later records.
struct Draft {
    no: TopicNo,
    id: TopicId,
    name: Arc<str>,
    replication_factor: i16,
    created_ms: i64,
    configs: Configs,
    replicas: Replicas,
    parts: LayoutParts,
}

impl Draft {
    fn decode(r: &mut Reader, version: u8) -> Result<Self, DecodeError> {
        Ok(Self {
            no: TopicNo(r.u32()?),
            id: r.uuid()?,
            name: Arc::from(r.str()?),
            replication_factor: decode_factor(r)?,
            created_ms: r.int()?,
            configs: r.configs()?,
            replicas: decode_replicas(r)?,
            parts: match version {
                1 => decode_layout_1(r)?,
                _ => LayoutParts {
                    slots: decode_slots(r)?.into(),
                    counts: r.list(Reader::u32)?.into(),
                    open: r.list(|r| Ok(Arc::new(decode_shard(r, ShardState::Open)?)))?,
                    sealed: Vec::new(),
                    history: Vec::new(),
                },
            },
        })
    }

    /// The topic, with its epochs in any order.
    fn finish(mut self, mut history: History, image: &Image) -> Result<Topic, DecodeError> {
        history.sort_by_key(|(record, _)| record.epoch);
        for (record, sealed) in history {
            self.parts.history.push(Arc::new(record));
            self.parts.sealed.extend(sealed.into_iter().map(Arc::new));
        }
        let layout = Layout::from_parts(self.parts)
            .map_err(|_| DecodeError::Damaged("a topic's layout breaks its rules"))?;
        Ok(Topic {
            no: self.no,
            id: self.id,
            partitions: layout.partitions(),
            replication_factor: self.replication_factor,
            internal: names::is_internal(&self.name),
            name: self.name,
            settings: image.settings(&Default::default()),
            configs: Arc::new(self.configs),
            layout: Arc::new(layout),
            replicas: Arc::new(self.replicas),
            created_ms: self.created_ms,
        })
    }
}

fn decode_slots(r: &mut Reader) -> Result<Vec<u32>, DecodeError> {
    let mut before = 0i64;
    r.list(|r| {
        before = before.wrapping_add(r.int()?);
        u32::try_from(before).map_err(|_| DecodeError::Damaged("a slot is out of range"))
    })
}

/// A layout as version 1 has it, which knew no reshapes.
fn decode_layout_1(r: &mut Reader) -> Result<LayoutParts, DecodeError> {
    let slots = decode_slots(r)?;
    let count = u32::try_from(slots.len());
    let count = count.map_err(|_| DecodeError::Damaged("too many slots"))?;
    let open = r.list(|r| {
        let shard = decode_shard_1(r, count)?;
        Ok(Arc::new(shard))
    })?;
    let (sealed, links) = (r.uint()?, r.uint()?);
    let history = r.list(|r| Ok(Arc::new(decode_record(r)?)))?;
    let mut counts = vec![0];
    for record in &history {
        match record.event {
            EpochEvent::Created { partitions } => counts = vec![partitions],
            EpochEvent::Grown { from, to } => {
                if counts == [0] {
                    counts.push(from);
                }
                counts.push(to);
            }
            EpochEvent::Reshaped { .. } => {}
        }
    }
    if sealed > 0 || links > 0 {
        return Err(DecodeError::Damaged("version 1 has no sealed shards"));
    }
    Ok(LayoutParts {
        slots: slots.into(),
        open,
        sealed: Vec::new(),
        counts: counts.into(),
        history,
    })
}

fn decode_shard_1(r: &mut Reader, born: u32) -> Result<ShardSpan, DecodeError> {
    Ok(ShardSpan {
        id: ShardId(r.uint()?),
        first_slot: r.u32()?,
        slots: r.u32()?,
        state: ShardState::Open,
        parents: decode_ids(r)?,
        children: decode_ids(r)?,
        created: r.u32()?,
        sealed: Some(r.u32()?).filter(|epoch| *epoch > 0),
        home: DirectoryId::FIRST,
        born,
        starts: Arc::default(),
    })
}

/// The history in records that each stay near [`EPOCHS_BYTES`].
fn encode_history(topic: &Topic) -> Vec<Writer> {
    let parts = topic.layout.parts();
    let mut sealed = parts.sealed.iter().peekable();
    let mut records = Vec::new();
    let (mut epochs, mut count) = (Writer::new(), 0);
    for record in &parts.history {
        let mut of_epoch = Vec::new();
        while let Some(shard) = sealed.next_if(|s| s.sealed <= Some(record.epoch)) {
            of_epoch.push(shard.as_ref());
        }
        encode_epoch(&mut epochs, record, &of_epoch);
        count += 1;
        if epochs.len() >= EPOCHS_BYTES {
            records.push(epochs_record(topic.no, count, std::mem::take(&mut epochs)));
            count = 0;
        }
    }
    if count > 0 {
        records.push(epochs_record(topic.no, count, epochs));
    }
    records
}

fn epochs_record(no: TopicNo, count: u64, epochs: Writer) -> Writer {
    let mut w = Writer::new();
    w.u8(tag::EPOCHS);
    w.uint(u64::from(no.0));
    w.uint(count);
    w.raw(&epochs.finish());
    w
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
    w.uint(u64::from(shard.born));
    w.list(&shard.starts, |w, start| w.int(*start));
}

fn decode_shard(r: &mut Reader, state: ShardState) -> Result<ShardSpan, DecodeError> {
    Ok(ShardSpan {
        id: ShardId(r.uint()?),
        first_slot: r.u32()?,
        slots: r.u32()?,
        state,
        parents: decode_ids(r)?,
        children: decode_ids(r)?,
        created: r.u32()?,
        sealed: Some(r.u32()?).filter(|epoch| *epoch > 0),
        home: decode_home(r)?,
        born: r.u32()?,
        starts: r.list(Reader::int)?.into(),
    })
}

fn decode_ids(r: &mut Reader) -> Result<Vec<ShardId>, DecodeError> {
    r.list(|r| Ok(ShardId(r.uint()?)))
}

/// An epoch and the shards that it sealed, as the checkpoint and the archive keep them.
pub fn encode_epoch(w: &mut Writer, record: &EpochRecord, sealed: &[&ShardSpan]) {
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
    w.list(sealed, |w, shard| encode_shard(w, shard));
}

/// Reads what [`encode_epoch`] wrote.
pub fn decode_epoch(r: &mut Reader) -> Result<(EpochRecord, Vec<ShardSpan>), DecodeError> {
    let record = decode_record(r)?;
    let sealed = r.list(|r| decode_shard(r, ShardState::Sealed))?;
    Ok((record, sealed))
}

fn decode_record(r: &mut Reader) -> Result<EpochRecord, DecodeError> {
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
            sealed: decode_ids(r)?,
            opened: decode_ids(r)?,
        },
        _ => return Err(DecodeError::Damaged("an unknown layout event")),
    };
    Ok(EpochRecord {
        epoch,
        at_ms,
        event,
    })
}
