//! The records of `__consumer_offsets`, in Kafka's own formats.
//!
//! | key version | about | value versions read | written |
//! |---|---|---|---|
//! | 0, 1 | the commit of a group for a partition | 0–4 | 4, with the topic's id |
//! | 2 | a group: generation, protocol, members with their assignments | 0–3 | 3 |
//!
//! A commit that brings its own expiry (OffsetCommit 2 to 4) keeps it in a tagged field of ours,
//! so that it keeps the topic's id too; other readers skip the field.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use super::super::log::LogRecord;
use super::command::Name;
use crate::types::{Offset, TopicId};

/// Tag of the topic's id in a commit.
const TAG_TOPIC_ID: u32 = 0;
/// Tag of the expiry in a commit, out of the way of Kafka's own.
const TAG_EXPIRE: u32 = 8_000;

/// A change of one group that outlives a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Members and protocol of a group, or its end.
    Group {
        /// The group.
        group: Name,
        /// `None` for a tombstone.
        value: Option<Arc<GroupMetadata>>,
    },
    /// The commit of a partition, or its end.
    Offset {
        /// The group.
        group: Name,
        /// The topic's name.
        topic: Name,
        /// The partition.
        partition: i32,
        /// `None` for a tombstone.
        value: Option<Commit>,
    },
}

/// What is stored of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupMetadata {
    /// Empty until a member joined.
    pub protocol_type: Name,
    /// Counts completed rebalances.
    pub generation: i32,
    /// The strategy that was voted for.
    pub protocol: Option<Name>,
    /// The leader's member id.
    pub leader: Option<Name>,
    /// Wall time of the last change of state, −1 if unknown.
    pub state_ms: i64,
    /// Members in the order of their ids.
    pub members: Vec<StoredMember>,
}

/// What is stored of a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredMember {
    /// Its id.
    pub id: Name,
    /// Its instance id, if it is static.
    pub instance_id: Option<Name>,
    /// The client's name of itself.
    pub client_id: Name,
    /// Where it connected from.
    pub client_host: Name,
    /// How long it may take to join again.
    pub rebalance_timeout_ms: i32,
    /// Silence after which it is taken for dead.
    pub session_timeout_ms: i32,
    /// Its metadata for the chosen protocol.
    pub subscription: Bytes,
    /// What the leader gave it.
    pub assignment: Bytes,
}

/// A committed offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The next offset to read.
    pub offset: Offset,
    /// Leader epoch of the last record read, −1 if unknown.
    pub leader_epoch: i32,
    /// The client's own text.
    pub metadata: Name,
    /// Wall time of the commit.
    pub commit_ms: i64,
    /// When it goes, if the client said so.
    pub expire_ms: Option<i64>,
    /// The topic it belongs to; nil in records of systems that did not store it.
    pub topic_id: TopicId,
}

/// Why a record can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// A kind that the group coordinator has no use for.
    #[error("unknown key version {0}")]
    UnknownKey(i16),
    /// A newer value than this version of the gateway knows.
    #[error("unknown value version {0}")]
    UnknownValue(i16),
    /// Not what its version says.
    #[error("the record is damaged")]
    Damaged,
}

impl Record {
    /// The group it is about.
    pub fn group(&self) -> &Name {
        match self {
            Self::Group { group, .. } | Self::Offset { group, .. } => group,
        }
    }

    /// Whether it says that something is no more.
    pub fn is_tombstone(&self) -> bool {
        match self {
            Self::Group { value, .. } => value.is_none(),
            Self::Offset { value, .. } => value.is_none(),
        }
    }

    /// Key and value as they are stored.
    pub fn encode(&self) -> LogRecord {
        let mut key = BytesMut::new();
        match self {
            Self::Group { group, value } => {
                key.put_i16(2);
                put_string(&mut key, group);
                let value = value.as_deref().map(encode_group);
                LogRecord {
                    key: key.freeze(),
                    value,
                }
            }
            Self::Offset {
                group,
                topic,
                partition,
                value,
            } => {
                key.put_i16(1);
                put_string(&mut key, group);
                put_string(&mut key, topic);
                key.put_i32(*partition);
                let value = value.as_ref().map(encode_commit);
                LogRecord {
                    key: key.freeze(),
                    value,
                }
            }
        }
    }

    /// Reads a key and a value.
    pub fn decode(key: &[u8], value: Option<&[u8]>) -> Result<Self, RecordError> {
        let mut k = Reader(key);
        match k.i16()? {
            0 | 1 => {
                let (group, topic, partition) = (k.string()?, k.string()?, k.i32()?);
                let value = value.map(decode_commit).transpose()?;
                Ok(Self::Offset {
                    group,
                    topic,
                    partition,
                    value,
                })
            }
            2 => {
                let group = k.string()?;
                let value = value.map(decode_group).transpose()?.map(Arc::new);
                Ok(Self::Group { group, value })
            }
            other => Err(RecordError::UnknownKey(other)),
        }
    }
}

fn encode_commit(commit: &Commit) -> Bytes {
    let mut b = BytesMut::with_capacity(64 + commit.metadata.len());
    b.put_i16(4);
    b.put_i64(commit.offset);
    b.put_i32(commit.leader_epoch);
    put_varint(&mut b, commit.metadata.len() as u32 + 1);
    b.put_slice(commit.metadata.as_bytes());
    b.put_i64(commit.commit_ms);
    let with_id = !commit.topic_id.is_nil();
    put_varint(
        &mut b,
        u32::from(with_id) + u32::from(commit.expire_ms.is_some()),
    );
    if with_id {
        put_varint(&mut b, TAG_TOPIC_ID);
        put_varint(&mut b, 16);
        b.put_slice(commit.topic_id.as_bytes());
    }
    if let Some(expire) = commit.expire_ms {
        put_varint(&mut b, TAG_EXPIRE);
        put_varint(&mut b, 8);
        b.put_i64(expire);
    }
    b.freeze()
}

fn decode_commit(value: &[u8]) -> Result<Commit, RecordError> {
    let mut r = Reader(value);
    let version = r.i16()?;
    if !(0..=4).contains(&version) {
        return Err(RecordError::UnknownValue(version));
    }
    let offset = r.i64()?;
    let leader_epoch = if version >= 3 { r.i32()? } else { -1 };
    let metadata = if version >= 4 {
        r.compact_string()?
    } else {
        r.string()?
    };
    let commit_ms = r.i64()?;
    let expire = if version == 1 { r.i64()? } else { -1 };
    let mut commit = Commit {
        offset,
        leader_epoch,
        metadata,
        commit_ms,
        expire_ms: (expire >= 0).then_some(expire),
        topic_id: TopicId::nil(),
    };
    if version >= 4 {
        for _ in 0..r.varint()? {
            let (tag, size) = (r.varint()?, r.varint()?);
            let mut field = Reader(r.take(size as usize)?);
            match tag {
                TAG_TOPIC_ID => {
                    let id = field.take(16)?;
                    commit.topic_id = TopicId::from_slice(id).map_err(|_| RecordError::Damaged)?;
                }
                TAG_EXPIRE => commit.expire_ms = Some(field.i64()?),
                _ => {}
            }
        }
    }
    Ok(commit)
}

fn encode_group(group: &GroupMetadata) -> Bytes {
    let mut b = BytesMut::with_capacity(64 + 160 * group.members.len());
    b.put_i16(3);
    put_string(&mut b, &group.protocol_type);
    b.put_i32(group.generation);
    put_nullable(&mut b, group.protocol.as_deref());
    put_nullable(&mut b, group.leader.as_deref());
    b.put_i64(group.state_ms);
    b.put_i32(group.members.len() as i32);
    for member in &group.members {
        put_string(&mut b, &member.id);
        put_nullable(&mut b, member.instance_id.as_deref());
        put_string(&mut b, &member.client_id);
        put_string(&mut b, &member.client_host);
        b.put_i32(member.rebalance_timeout_ms);
        b.put_i32(member.session_timeout_ms);
        put_bytes(&mut b, &member.subscription);
        put_bytes(&mut b, &member.assignment);
    }
    b.freeze()
}

fn decode_group(value: &[u8]) -> Result<GroupMetadata, RecordError> {
    let mut r = Reader(value);
    let version = r.i16()?;
    if !(0..=3).contains(&version) {
        return Err(RecordError::UnknownValue(version));
    }
    let mut group = GroupMetadata {
        protocol_type: r.string()?,
        generation: r.i32()?,
        protocol: r.nullable()?,
        leader: r.nullable()?,
        state_ms: if version >= 2 { r.i64()? } else { -1 },
        members: Vec::new(),
    };
    for _ in 0..r.i32()? {
        let id = r.string()?;
        let instance_id = if version >= 3 { r.nullable()? } else { None };
        let (client_id, client_host) = (r.string()?, r.string()?);
        let first = r.i32()?;
        let session_timeout_ms = if version >= 1 { r.i32()? } else { first };
        group.members.push(StoredMember {
            id,
            instance_id,
            client_id,
            client_host,
            rebalance_timeout_ms: first,
            session_timeout_ms,
            subscription: r.bytes()?,
            assignment: r.bytes()?,
        });
    }
    group.members.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(group)
}

fn put_string(b: &mut BytesMut, s: &str) {
    // Names come out of requests whose own length field has 16 bits, or were made from two of
    // them; what is too long for the format is cut rather than written with a wrong length.
    let mut len = s.len().min(i16::MAX as usize);
    while !s.is_char_boundary(len) {
        len -= 1;
    }
    b.put_i16(len as i16);
    b.put_slice(&s.as_bytes()[..len]);
}

fn put_nullable(b: &mut BytesMut, s: Option<&str>) {
    match s {
        Some(s) => put_string(b, s),
        None => b.put_i16(-1),
    }
}

fn put_bytes(b: &mut BytesMut, bytes: &[u8]) {
    b.put_i32(bytes.len() as i32);
    b.put_slice(bytes);
}

fn put_varint(b: &mut BytesMut, mut n: u32) {
    while n >= 0x80 {
        b.put_u8(n as u8 | 0x80);
        n >>= 7;
    }
    b.put_u8(n as u8);
}

/// Takes fields off the front of some bytes, never past their end.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, n: usize) -> Result<&'a [u8], RecordError> {
        let (head, rest) = self.0.split_at_checked(n).ok_or(RecordError::Damaged)?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], RecordError> {
        let (head, rest) = self
            .0
            .split_first_chunk::<N>()
            .ok_or(RecordError::Damaged)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(super) fn i16(&mut self) -> Result<i16, RecordError> {
        Ok(i16::from_be_bytes(self.array()?))
    }

    pub(super) fn i32(&mut self) -> Result<i32, RecordError> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    fn i64(&mut self) -> Result<i64, RecordError> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    fn varint(&mut self) -> Result<u32, RecordError> {
        let mut n = 0u32;
        for shift in [0, 7, 14, 21, 28] {
            let [byte] = self.array::<1>()?;
            n |= u32::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(n);
            }
        }
        Err(RecordError::Damaged)
    }

    fn text(&mut self, len: usize) -> Result<Name, RecordError> {
        if len == 0 {
            // Shared: most commits come without a text.
            return Ok(Name::default());
        }
        let bytes = self.take(len)?;
        std::str::from_utf8(bytes)
            .map(Name::from)
            .map_err(|_| RecordError::Damaged)
    }

    pub(super) fn string(&mut self) -> Result<Name, RecordError> {
        self.nullable()?.ok_or(RecordError::Damaged)
    }

    fn nullable(&mut self) -> Result<Option<Name>, RecordError> {
        match self.i16()? {
            -1 => Ok(None),
            len => {
                let len = usize::try_from(len).map_err(|_| RecordError::Damaged)?;
                self.text(len).map(Some)
            }
        }
    }

    fn compact_string(&mut self) -> Result<Name, RecordError> {
        let len = self.varint()?.checked_sub(1).ok_or(RecordError::Damaged)?;
        self.text(len as usize)
    }

    fn bytes(&mut self) -> Result<Bytes, RecordError> {
        let len = usize::try_from(self.i32()?).map_err(|_| RecordError::Damaged)?;
        self.take(len).map(Bytes::copy_from_slice)
    }
}
