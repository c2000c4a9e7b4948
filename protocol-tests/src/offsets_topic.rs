//! What `__consumer_offsets` says, read the way that monitors of groups read it: by the schemas that
//! Kafka publishes (GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue), with
//! a decoder that shares nothing with the server.

use crate::calls::*;
use crate::wire::Wire;

/// The topic.
pub const TOPIC: &str = "__consumer_offsets";

/// A record about one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// Members and generation, or the group's end.
    Group(Option<Group>),
    /// The commit of a topic's partition, or its end.
    Commit(String, i32, Option<Commit>),
}

/// GroupMetadataValue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// `consumer`, `connect`, …
    pub protocol_type: String,
    /// Counts rebalances.
    pub generation: i32,
    /// The protocol that was voted for.
    pub protocol: Option<String>,
    /// Member id of the leader.
    pub leader: Option<String>,
    /// When the state changed last.
    pub state_ms: i64,
    /// The members.
    pub members: Vec<Member>,
}

/// A member of a GroupMetadataValue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub id: String,
    /// `group.instance.id`
    pub instance_id: Option<String>,
    /// `client.id`
    pub client_id: String,
    /// Where it connected from.
    pub client_host: String,
    /// Milliseconds that it may take to join again.
    pub rebalance_timeout_ms: i32,
    /// Milliseconds of silence after which it is out.
    pub session_timeout_ms: i32,
    /// Its metadata for the protocol.
    pub subscription: Vec<u8>,
    /// What the leader gave it.
    pub assignment: Vec<u8>,
}

/// OffsetCommitValue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// The next offset to read.
    pub offset: i64,
    /// -1 if unknown.
    pub leader_epoch: i32,
    /// The client's text.
    pub metadata: String,
    /// When it was made.
    pub commit_ms: i64,
    /// The topic's id, from version 4 on.
    pub topic_id: Option<uuid::Uuid>,
}

/// The partition of the topic that a group's records are in.
pub fn partition_of(group: &str, partitions: i32) -> i32 {
    let hash = group
        .chars()
        .fold(0i32, |hash, c| hash.wrapping_mul(31).wrapping_add(c as i32));
    hash.checked_abs().unwrap_or(0) % partitions
}

/// All that the topic says about a group, oldest first.
pub fn facts(wire: &mut Wire, group: &str) -> Vec<Fact> {
    let partitions = describe_topic(wire, TOPIC).partitions.len() as i32;
    let partition = partition_of(group, partitions);
    let mut from = list_offsets(wire, TOPIC, partition, -2).offset;
    let mut found = Vec::new();
    loop {
        let fetched = fetch(wire, TOPIC, partition, Wanted::from(from));
        assert_eq!(fetched.error_code, 0, "fetch from {from}");
        let bytes = fetched.records.unwrap_or_default();
        let mut batches = Bytes(&bytes);
        let before = from;
        while !batches.0.is_empty() {
            from = batch(&mut batches, group, &mut found);
        }
        if from == before || from >= fetched.high_watermark {
            return found;
        }
    }
}

/// Reads one uncompressed batch; where the next one starts.
fn batch(bytes: &mut Bytes, group: &str, found: &mut Vec<Fact>) -> i64 {
    let base = bytes.i64();
    let length = bytes.i32() as usize;
    let mut b = Bytes(bytes.take(length));
    b.take(4 + 1 + 4);
    assert_eq!(b.i16() & 0x7, 0, "compressed");
    let last = b.i32();
    b.take(8 + 8 + 8 + 2 + 4);
    for _ in 0..b.i32() {
        let length = b.varint() as usize;
        let mut record = Bytes(b.take(length));
        record.take(1);
        record.varint();
        record.varint();
        let key = record.varint_bytes();
        let value = record.varint_bytes();
        found.extend(fact(key.expect("a key"), value, group));
    }
    base + i64::from(last) + 1
}

fn fact(key: &[u8], value: Option<&[u8]>, group: &str) -> Option<Fact> {
    let mut key = Bytes(key);
    let version = key.i16();
    let named = key.string()?;
    let fact = match version {
        0 | 1 => {
            let topic = key.string().expect("a topic");
            Fact::Commit(topic, key.i32(), value.map(commit))
        }
        2 => Fact::Group(value.map(group_metadata)),
        _ => return None,
    };
    assert!(key.0.is_empty(), "bytes behind a key");
    (named == group).then_some(fact)
}

fn commit(value: &[u8]) -> Commit {
    let mut b = Bytes(value);
    let version = b.i16();
    assert!((3..=4).contains(&version), "OffsetCommitValue {version}");
    let (offset, leader_epoch) = (b.i64(), b.i32());
    let metadata = match version {
        3 => b.string().expect("metadata"),
        _ => b.compact_string().expect("metadata"),
    };
    let commit_ms = b.i64();
    let mut topic_id = None;
    for _ in 0..if version >= 4 { b.uvarint() } else { 0 } {
        let (tag, length) = (b.uvarint(), b.uvarint());
        let field = b.take(length as usize);
        if tag == 0 {
            topic_id = Some(uuid::Uuid::from_slice(field).expect("16 bytes"));
        }
    }
    assert!(b.0.is_empty(), "bytes behind a commit");
    Commit {
        offset,
        leader_epoch,
        metadata,
        commit_ms,
        topic_id,
    }
}

fn group_metadata(value: &[u8]) -> Group {
    let mut b = Bytes(value);
    assert_eq!(b.i16(), 3, "GroupMetadataValue");
    let mut group = Group {
        protocol_type: b.string().expect("a protocol type"),
        generation: b.i32(),
        protocol: b.string(),
        leader: b.string(),
        state_ms: b.i64(),
        members: Vec::new(),
    };
    for _ in 0..b.i32() {
        group.members.push(Member {
            id: b.string().expect("a member id"),
            instance_id: b.string(),
            client_id: b.string().expect("a client id"),
            client_host: b.string().expect("a host"),
            rebalance_timeout_ms: b.i32(),
            session_timeout_ms: b.i32(),
            subscription: b.bytes(),
            assignment: b.bytes(),
        });
    }
    assert!(b.0.is_empty(), "bytes behind a group");
    group
}

/// Takes fields off the front.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(count);
        self.0 = rest;
        head
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        self.take(N).try_into().expect("as many bytes")
    }

    fn i16(&mut self) -> i16 {
        i16::from_be_bytes(self.array())
    }

    fn i32(&mut self) -> i32 {
        i32::from_be_bytes(self.array())
    }

    fn i64(&mut self) -> i64 {
        i64::from_be_bytes(self.array())
    }

    fn uvarint(&mut self) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = self.take(1)[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }

    /// Zigzag, as in records.
    fn varint(&mut self) -> i64 {
        let raw = self.uvarint();
        (raw >> 1) as i64 ^ -((raw & 1) as i64)
    }

    fn varint_bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.varint();
        (length >= 0).then(|| self.take(length as usize))
    }

    fn string(&mut self) -> Option<String> {
        let length = self.i16();
        (length >= 0).then(|| utf8(self.take(length as usize)))
    }

    fn compact_string(&mut self) -> Option<String> {
        let length = self.uvarint();
        (length > 0).then(|| utf8(self.take(length as usize - 1)))
    }

    fn bytes(&mut self) -> Vec<u8> {
        let length = self.i32() as usize;
        self.take(length).to_vec()
    }
}

fn utf8(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}
