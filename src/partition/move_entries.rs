//! Journal entries about moves of shards between data directories, as bytes.
//!
//! None of them changes anything alone: a move is done when its reshape is in the first directory's
//! journal.

use bytes::{Buf, BufMut, Bytes};

use crate::partition::checkpoint::{get_producers, producers_of, put_producers};
use crate::partition::producer_state::Producer;
use crate::partition::shard::PartitionSequence;
use crate::types::{DirectoryId, ShardId};

const VERSION: u8 = 1;
/// Producers in one entry, so that it stays below a MiB.
const PRODUCERS: usize = 4096;

mod tag {
    pub(super) const SEAL: u8 = 1;
    pub(super) const GIVEN_UP: u8 = 2;
    pub(super) const HAND_OVER: u8 = 3;
    pub(super) const MORE_PRODUCERS: u8 = 4;
}

/// A step of a move. The entry's key names the topic and, of a hand-over, the partition.
#[derive(Clone, Debug, PartialEq)]
pub enum MoveEntry {
    /// In the old home: the shard takes no appends while it is handed over. A start that finds it
    /// open there still carries the move out.
    Seal {
        /// The shard.
        shard: ShardId,
        /// Where it goes.
        to: DirectoryId,
    },
    /// In the old home: the shard goes on there.
    GivenUp {
        /// The shard.
        shard: ShardId,
    },
    /// In the new home: what is known of a partition. What this journal says of it before does not
    /// count.
    HandOver(Box<PartitionSequence>),
    /// In the new home: further producers of the partition handed over last.
    MoreProducers(Box<PartitionSequence>),
}

impl MoveEntry {
    /// version u8, kind u8, then: shard u64 and directory 16 bytes; or shard u64; or next offset
    /// i64, log start i64, leader epoch i32 and producers as in a checkpoint; or these alone.
    pub fn encode(&self) -> Bytes {
        let mut out = vec![VERSION];
        match self {
            Self::Seal { shard, to } => {
                out.put_u8(tag::SEAL);
                out.put_u64(shard.0);
                out.put_slice(to.0.as_bytes());
            }
            Self::GivenUp { shard } => {
                out.put_u8(tag::GIVEN_UP);
                out.put_u64(shard.0);
            }
            Self::HandOver(sequence) => return encode_hand_over(sequence).swap_remove(0),
            Self::MoreProducers(sequence) => put_more(&mut out, &producers_of(sequence)),
        }
        out.into()
    }

    /// Reads what [`MoveEntry::encode`] or [`encode_hand_over`] wrote.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, String> {
        let version = bytes.try_get_u8().map_err(short)?;
        if version != VERSION {
            return Err(format!(
                "an entry about a move has version {version}, this build reads {VERSION}"
            ));
        }
        let entry = match bytes.try_get_u8().map_err(short)? {
            tag::SEAL => {
                let shard = ShardId(bytes.try_get_u64().map_err(short)?);
                let mut id = [0; 16];
                bytes.try_copy_to_slice(&mut id).map_err(short)?;
                let to = DirectoryId(uuid::Uuid::from_bytes(id));
                Self::Seal { shard, to }
            }
            tag::GIVEN_UP => Self::GivenUp {
                shard: ShardId(bytes.try_get_u64().map_err(short)?),
            },
            tag::HAND_OVER => {
                let mut sequence = PartitionSequence {
                    next_offset: bytes.try_get_i64().map_err(short)?,
                    log_start: bytes.try_get_i64().map_err(short)?,
                    leader_epoch: bytes.try_get_i32().map_err(short)?,
                    ..PartitionSequence::default()
                };
                get_producers(&mut bytes, &mut sequence).map_err(short)?;
                Self::HandOver(Box::new(sequence))
            }
            tag::MORE_PRODUCERS => {
                let mut sequence = PartitionSequence::default();
                get_producers(&mut bytes, &mut sequence).map_err(short)?;
                Self::MoreProducers(Box::new(sequence))
            }
            kind => return Err(format!("an entry about a move is of unknown kind {kind}")),
        };
        match bytes.is_empty() {
            true => Ok(entry),
            false => Err("an entry about a move is too long".to_owned()),
        }
    }
}

fn short(_: bytes::TryGetError) -> String {
    "an entry about a move is cut short".to_owned()
}

fn put_more(out: &mut Vec<u8>, producers: &[(i64, &Producer)]) {
    out.put_u8(tag::MORE_PRODUCERS);
    put_producers(out, producers);
}

/// The entries that hand a partition over: one, and more of them for many producers.
pub fn encode_hand_over(sequence: &PartitionSequence) -> Vec<Bytes> {
    let producers = producers_of(sequence);
    let (first, rest) = producers.split_at(producers.len().min(PRODUCERS));
    let mut out = vec![VERSION, tag::HAND_OVER];
    out.put_i64(sequence.next_offset);
    out.put_i64(sequence.log_start);
    out.put_i32(sequence.leader_epoch);
    put_producers(&mut out, first);
    let more = rest.chunks(PRODUCERS).map(|producers| {
        let mut out = vec![VERSION];
        put_more(&mut out, producers);
        Bytes::from(out)
    });
    std::iter::once(Bytes::from(out)).chain(more).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::producer_state::WindowBatch;
    use crate::types::Position;

    fn sequence(producers: i64) -> PartitionSequence {
        let mut sequence = PartitionSequence {
            next_offset: 900,
            log_start: 7,
            leader_epoch: 3,
            ..PartitionSequence::default()
        };
        for id in 0..producers {
            let batch = WindowBatch {
                first_sequence: 5,
                last_sequence: 9,
                base_offset: id,
                timestamp: 11,
                position: Position(4),
            };
            let producer = Producer {
                epoch: 2,
                last_used_ms: id,
                window: vec![batch; 5],
            };
            let all = sequence.producers.get_or_insert_default();
            all.restore(id, producer);
        }
        sequence
    }

    #[test]
    fn a_hand_over_of_many_producers_comes_in_entries_of_less_than_a_mib() {
        for producers in [0, 1, PRODUCERS as i64, PRODUCERS as i64 * 2 + 1] {
            let sent = sequence(producers);
            let entries = encode_hand_over(&sent);
            assert_eq!(
                entries.len(),
                (producers as usize).div_ceil(PRODUCERS).max(1)
            );
            assert!(entries.iter().all(|entry| entry.len() < 1 << 20));
            let mut got = PartitionSequence::default();
            for (n, entry) in entries.iter().enumerate() {
                match MoveEntry::decode(entry).unwrap() {
                    MoveEntry::HandOver(first) if n == 0 => got = *first,
                    MoveEntry::MoreProducers(more) if n > 0 => {
                        for (id, producer) in producers_of(&more) {
                            let all = got.producers.get_or_insert_default();
                            all.restore(id, producer.clone());
                        }
                    }
                    other => panic!("entry {n} is {other:?}"),
                }
            }
            assert_eq!(got, sent);
        }
    }

    #[test]
    fn entries_come_back_as_written_and_no_piece_of_one_is_taken_for_one() {
        let to = DirectoryId(uuid::Uuid::from_u128(77));
        let shard = ShardId(5);
        for entry in [
            MoveEntry::Seal { shard, to },
            MoveEntry::GivenUp { shard },
            MoveEntry::HandOver(Box::new(sequence(2))),
            MoveEntry::MoreProducers(Box::new(PartitionSequence {
                producers: sequence(1).producers,
                ..PartitionSequence::default()
            })),
        ] {
            let bytes = entry.encode();
            assert_eq!(MoveEntry::decode(&bytes), Ok(entry));
            for cut in 0..bytes.len() {
                assert!(MoveEntry::decode(&bytes[..cut]).is_err());
            }
            let longer = [&bytes[..], &[0]].concat();
            assert!(MoveEntry::decode(&longer).is_err());
        }
        assert!(
            MoveEntry::decode(&[2, 1])
                .unwrap_err()
                .contains("version 2")
        );
    }
}
