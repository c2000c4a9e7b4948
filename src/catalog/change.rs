//! Changes of the image: what the journal's catalog entries hold.

use bytes::Bytes;

use super::codec::{Configs, DecodeError, Reader, Writer};
use super::topic::Replicas;
use crate::types::{DirectoryId, Offset, ShardId, TopicId, TopicNo};

/// Version of the encoding. Version 1 has no homes: all shards are in the first directory.
const VERSION: u8 = 2;

/// A topic's birth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicCreated {
    /// Its number: the image's mark.
    pub no: TopicNo,
    /// Its id for clients.
    pub id: TopicId,
    /// Its name.
    pub name: String,
    /// Partitions.
    pub partitions: u32,
    /// Replicas asked for.
    pub replication_factor: i16,
    /// Manual assignment.
    pub replicas: Replicas,
    /// Configs set on it.
    pub configs: Configs,
    /// Id of its first shard: the image's mark. The others follow.
    pub first_shard: ShardId,
    /// How many shards it is born with.
    pub shards: u32,
    /// The directory of each shard, in slot order; empty if all are in the first.
    pub homes: Vec<DirectoryId>,
    /// When.
    pub at_ms: i64,
}

/// A change of the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A topic was created.
    TopicCreated(Box<TopicCreated>),
    /// A topic was deleted; its number and shard ids are never used again.
    TopicDeleted {
        /// Its number.
        no: TopicNo,
    },
    /// A topic has more partitions.
    PartitionsAdded {
        /// Its number.
        no: TopicNo,
        /// Partitions from now on.
        to: u32,
        /// Manual assignment of the new ones.
        replicas: Replicas,
        /// When.
        at_ms: i64,
    },
    /// A topic's configs are these and no others.
    TopicConfigsSet {
        /// Its number.
        no: TopicNo,
        /// All that are set.
        configs: Configs,
    },
    /// A broker's dynamic configs are these and no others.
    BrokerConfigsSet {
        /// The broker, or all.
        broker: Option<i32>,
        /// All that are set.
        configs: Configs,
    },
    /// A group's configs are these and no others.
    GroupConfigsSet {
        /// The group.
        group: String,
        /// All that are set.
        configs: Configs,
    },
    /// Producer ids below this one may be in use.
    ProducerIdsReserved {
        /// The first that is not.
        next: i64,
    },
    /// A topic's shards were replaced by others over the same slots.
    Reshaped(Box<Reshaped>),
}

/// A reshape: split, merge or move of shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reshaped {
    /// The topic's number.
    pub no: TopicNo,
    /// Shards that take no appends any more: neighbours, in slot order.
    pub sealed: Vec<ShardId>,
    /// Shards that took their place, with their numbers of slots, in slot order. Their ids are the
    /// image's next free ones.
    pub opened: Vec<(ShardId, u32)>,
    /// Directories of the opened shards, in slot order; empty if each stays where its slots were.
    pub homes: Vec<DirectoryId>,
    /// Offset of the first record that each of their partitions gets there, in slot order.
    pub starts: Vec<Offset>,
    /// When.
    pub at_ms: i64,
}

mod tag {
    pub(super) const TOPIC_CREATED: u8 = 1;
    pub(super) const TOPIC_DELETED: u8 = 2;
    pub(super) const PARTITIONS_ADDED: u8 = 3;
    pub(super) const TOPIC_CONFIGS_SET: u8 = 4;
    pub(super) const BROKER_CONFIGS_SET: u8 = 5;
    pub(super) const GROUP_CONFIGS_SET: u8 = 6;
    pub(super) const PRODUCER_IDS_RESERVED: u8 = 7;
    pub(super) const RESHAPED: u8 = 8;
}

impl Change {
    /// The bytes for a journal entry.
    pub fn encode(&self) -> Bytes {
        let mut w = Writer::new();
        w.u8(VERSION);
        match self {
            Self::TopicCreated(created) => encode_created(&mut w, created),
            Self::TopicDeleted { no } => {
                w.u8(tag::TOPIC_DELETED);
                w.uint(u64::from(no.0));
            }
            Self::PartitionsAdded {
                no,
                to,
                replicas,
                at_ms,
            } => {
                w.u8(tag::PARTITIONS_ADDED);
                w.uint(u64::from(no.0));
                w.uint(u64::from(*to));
                encode_replicas(&mut w, replicas);
                w.int(*at_ms);
            }
            Self::TopicConfigsSet { no, configs } => {
                w.u8(tag::TOPIC_CONFIGS_SET);
                w.uint(u64::from(no.0));
                w.configs(configs);
            }
            Self::BrokerConfigsSet { broker, configs } => {
                w.u8(tag::BROKER_CONFIGS_SET);
                encode_broker(&mut w, *broker);
                w.configs(configs);
            }
            Self::GroupConfigsSet { group, configs } => {
                w.u8(tag::GROUP_CONFIGS_SET);
                w.str(group);
                w.configs(configs);
            }
            Self::ProducerIdsReserved { next } => {
                w.u8(tag::PRODUCER_IDS_RESERVED);
                w.int(*next);
            }
            Self::Reshaped(reshaped) => encode_reshaped(&mut w, reshaped),
        }
        w.finish()
    }

    /// The change in a journal entry.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(bytes);
        let version = r.version("a catalog change", VERSION)?;
        let change = match r.u8()? {
            tag::TOPIC_CREATED => Self::TopicCreated(Box::new(decode_created(&mut r, version)?)),
            tag::TOPIC_DELETED => Self::TopicDeleted {
                no: TopicNo(r.u32()?),
            },
            tag::PARTITIONS_ADDED => Self::PartitionsAdded {
                no: TopicNo(r.u32()?),
                to: r.u32()?,
                replicas: decode_replicas(&mut r)?,
                at_ms: r.int()?,
            },
            tag::TOPIC_CONFIGS_SET => Self::TopicConfigsSet {
                no: TopicNo(r.u32()?),
                configs: r.configs()?,
            },
            tag::BROKER_CONFIGS_SET => Self::BrokerConfigsSet {
                broker: decode_broker(&mut r)?,
                configs: r.configs()?,
            },
            tag::GROUP_CONFIGS_SET => Self::GroupConfigsSet {
                group: r.str()?.to_owned(),
                configs: r.configs()?,
            },
            tag::PRODUCER_IDS_RESERVED => Self::ProducerIdsReserved { next: r.int()? },
            tag::RESHAPED => Self::Reshaped(Box::new(decode_reshaped(&mut r, version)?)),
            _ => return Err(DecodeError::Damaged("an unknown kind of change")),
        };
        r.end()?;
        Ok(change)
    }
}

fn encode_created(w: &mut Writer, created: &TopicCreated) {
    w.u8(tag::TOPIC_CREATED);
    w.uint(u64::from(created.no.0));
    w.uuid(created.id);
    w.str(&created.name);
    w.uint(u64::from(created.partitions));
    w.int(i64::from(created.replication_factor));
    encode_replicas(w, &created.replicas);
    w.configs(&created.configs);
    w.uint(created.first_shard.0);
    w.uint(u64::from(created.shards));
    w.list(&created.homes, |w, home| encode_home(w, *home));
    w.int(created.at_ms);
}

fn decode_created(r: &mut Reader, version: u8) -> Result<TopicCreated, DecodeError> {
    Ok(TopicCreated {
        no: TopicNo(r.u32()?),
        id: r.uuid()?,
        name: r.str()?.to_owned(),
        partitions: r.u32()?,
        replication_factor: decode_factor(r)?,
        replicas: decode_replicas(r)?,
        configs: r.configs()?,
        first_shard: ShardId(r.uint()?),
        shards: r.u32()?,
        homes: match version {
            1 => Vec::new(),
            _ => r.list(decode_home)?,
        },
        at_ms: r.int()?,
    })
}

fn encode_reshaped(w: &mut Writer, reshaped: &Reshaped) {
    w.u8(tag::RESHAPED);
    w.uint(u64::from(reshaped.no.0));
    w.list(&reshaped.sealed, |w, id| w.uint(id.0));
    w.list(&reshaped.opened, |w, (id, slots)| {
        w.uint(id.0);
        w.uint(u64::from(*slots));
    });
    w.list(&reshaped.starts, |w, start| w.int(*start));
    w.int(reshaped.at_ms);
    w.list(&reshaped.homes, |w, home| encode_home(w, *home));
}

fn decode_reshaped(r: &mut Reader, version: u8) -> Result<Reshaped, DecodeError> {
    Ok(Reshaped {
        no: TopicNo(r.u32()?),
        sealed: r.list(|r| Ok(ShardId(r.uint()?)))?,
        opened: r.list(|r| Ok((ShardId(r.uint()?), r.u32()?)))?,
        starts: r.list(Reader::int)?,
        at_ms: r.int()?,
        homes: match version {
            1 => Vec::new(),
            _ => r.list(decode_home)?,
        },
    })
}

pub(super) fn decode_factor(r: &mut Reader) -> Result<i16, DecodeError> {
    i16::try_from(r.int()?).map_err(|_| DecodeError::Damaged("a replication factor is too large"))
}

pub(super) fn encode_home(w: &mut Writer, home: DirectoryId) {
    match home {
        DirectoryId::FIRST => w.u8(0),
        DirectoryId(id) => {
            w.u8(1);
            w.uuid(id);
        }
    }
}

pub(super) fn decode_home(r: &mut Reader) -> Result<DirectoryId, DecodeError> {
    match r.u8()? {
        0 => Ok(DirectoryId::FIRST),
        1 => Ok(DirectoryId(r.uuid()?)),
        _ => Err(DecodeError::Damaged(
            "a home is neither the first nor another",
        )),
    }
}

pub(super) fn encode_broker(w: &mut Writer, broker: Option<i32>) {
    match broker {
        None => w.u8(0),
        Some(id) => {
            w.u8(1);
            w.int(i64::from(id));
        }
    }
}

pub(super) fn decode_broker(r: &mut Reader) -> Result<Option<i32>, DecodeError> {
    match r.u8()? {
        0 => Ok(None),
        1 => Ok(Some(r.i32()?)),
        _ => Err(DecodeError::Damaged("a broker is neither one nor all")),
    }
}

pub(super) fn encode_replicas(w: &mut Writer, replicas: &Replicas) {
    w.uint(replicas.len() as u64);
    for (partition, ids) in replicas {
        w.uint(u64::from(*partition));
        w.list(ids, |w, id| w.int(i64::from(*id)));
    }
}

pub(super) fn decode_replicas(r: &mut Reader) -> Result<Replicas, DecodeError> {
    let pairs = r.list(|r| Ok((r.u32()?, r.list(Reader::i32)?)))?;
    Ok(pairs.into_iter().collect())
}
