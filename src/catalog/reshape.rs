//! From the shards that an operator wants to a reshape that fits the image, or a refusal.

use std::collections::BTreeMap;
use std::sync::Arc;

use thiserror::Error;

use super::change::{Change, Reshaped};
use super::image::Image;
use super::topic::Topic;
use crate::shard::{Layout, ShardSpan, ShardState};
use crate::types::{DirectoryId, Offset, PartitionKey, ShardId, TopicNo};

/// Why a reshape was refused. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReshapeError {
    /// The topic is not there.
    #[error("the topic does not exist (any more)")]
    UnknownTopic,
    /// No shard is named, or one twice.
    #[error("a reshape replaces at least one shard, and each shard is named once")]
    BadNames,
    /// No such shard.
    #[error("topic {topic} has no shard {}: `shardgate shards list` shows those it has", shard.0)]
    UnknownShard {
        /// The topic's name.
        topic: String,
        /// The shard.
        shard: ShardId,
    },
    /// A shard that was replaced before.
    #[error("shard {} of topic {topic} is sealed since epoch {epoch}; its slots belong to shards {}",
        shard.0, listed(children))]
    Sealed {
        /// The topic's name.
        topic: String,
        /// The shard.
        shard: ShardId,
        /// Layout epoch of its seal.
        epoch: u32,
        /// The shards that took its slots then.
        children: Vec<ShardId>,
    },
    /// Shards that do not stand side by side.
    #[error(
        "shards {} of topic {topic} are no neighbours: only a run of adjacent shards can be \
        replaced",
        listed(shards)
    )]
    NotAdjacent {
        /// The topic's name.
        topic: String,
        /// The shards, in slot order.
        shards: Vec<ShardId>,
    },
    /// Slots that do not add up.
    #[error(
        "the new shards of topic {topic} have {got} slots together, the old ones have {have}; \
        each new shard needs at least one"
    )]
    DoesNotCover {
        /// The topic's name.
        topic: String,
        /// Slots of the old shards.
        have: u32,
        /// Slots of the new ones together.
        got: u64,
    },
    /// Shards that cannot be merged where they are.
    #[error(
        "shards {} of topic {topic} are in different data directories: move them to one first",
        listed(shards)
    )]
    DifferentHomes {
        /// The topic's name.
        topic: String,
        /// The shards, in slot order.
        shards: Vec<ShardId>,
    },
    /// Internal topics do not move.
    #[error(
        "the internal topic {topic} stays in the first data directory, where topics and configs are"
    )]
    Internal {
        /// The topic's name.
        topic: String,
    },
    /// A move of one of the shards is under way.
    #[error(
        "shard {} of topic {topic} is being moved to another data directory: try again when that \
        is done", shard.0
    )]
    Moving {
        /// The topic's name.
        topic: String,
        /// The shard.
        shard: ShardId,
    },
    /// A move that came to nothing.
    #[error("shard {} of topic {topic} stays where it was: {why}", shard.0)]
    NotMoved {
        /// The topic's name.
        topic: String,
        /// The shard.
        shard: ShardId,
        /// What was in the way, and what to do.
        why: String,
    },
    /// No place for the journal entry.
    #[error("the disk is nearly full: free some space or delete records, then try again")]
    NoSpace,
    /// The process is about to end.
    #[error(
        "a journal has ended, and the process will: its log says why; look again after the next start"
    )]
    JournalEnded,
}

fn listed(shards: &[ShardId]) -> String {
    let ids: Vec<String> = shards.iter().map(|id| id.0.to_string()).collect();
    ids.join(", ")
}

/// What becomes of a wish to reshape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Exactly this was done before.
    Done {
        /// The layout epoch that it made.
        epoch: u32,
        /// The shards that it opened, in slot order.
        opened: Vec<ShardId>,
    },
    /// It can be done.
    Plan(Plan),
}

/// A reshape that lacks only the offsets at which its new shards take over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The topic's number.
    pub no: TopicNo,
    /// Shards to seal, in slot order.
    pub sealed: Vec<ShardId>,
    /// Shards to open, with their numbers of slots, in slot order.
    pub opened: Vec<(ShardId, u32)>,
    /// The partitions that move, in slot order.
    pub partitions: Vec<u32>,
    /// The layout epoch that it will make.
    pub epoch: u32,
    /// Directories of the opened shards; empty if each stays where its slots were.
    pub homes: Vec<DirectoryId>,
}

impl Plan {
    /// The key of one of the topic's partitions.
    pub fn key(&self, index: u32) -> PartitionKey {
        let topic = self.no;
        PartitionKey { topic, index }
    }

    /// The change, given the next offset of each of [`Plan::partitions`].
    pub fn change(&self, starts: Vec<Offset>, at_ms: i64) -> Change {
        Change::Reshaped(Box::new(Reshaped {
            no: self.no,
            sealed: self.sealed.clone(),
            opened: self.opened.clone(),
            homes: self.homes.clone(),
            starts,
            at_ms,
        }))
    }
}

impl Image {
    /// Replaces open neighbours of a topic, named in any order, by shards with these numbers of
    /// slots. What was done before is answered as it was then, so that repeating it is safe.
    pub fn reshape_topic(
        &self,
        no: TopicNo,
        shards: &[ShardId],
        slots: &[u32],
    ) -> Result<Decision, ReshapeError> {
        let topic = self.topic_by_no(no).ok_or(ReshapeError::UnknownTopic)?;
        let layout = &topic.layout;
        // The catalog's lock is held.
        let known = layout.by_id();
        let mut sealed = shards.to_vec();
        sealed.sort_by_key(|id| known.get(id).map_or(u32::MAX, |s| s.first_slot));
        if sealed.is_empty() || sealed.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(ReshapeError::BadNames);
        }
        if let Some(done) = done_before(layout, &known, &sealed, slots) {
            return Ok(done);
        }
        let run = open_run(topic, &known, &sealed)?;
        let have = run.1 - run.0;
        let got = slots.iter().map(|n| u64::from(*n)).sum();
        if got != u64::from(have) || slots.contains(&0) {
            let topic = topic.name.to_string();
            return Err(ReshapeError::DoesNotCover { topic, have, got });
        }
        let ids = (self.next_shard().0..).map(ShardId);
        let range = run.0 as usize..run.1 as usize;
        Ok(Decision::Plan(Plan {
            no,
            sealed,
            opened: ids.zip(slots.iter().copied()).collect(),
            partitions: layout.slots().get(range).unwrap_or(&[]).to_vec(),
            epoch: layout.epoch() + 1,
            homes: Vec::new(),
        }))
    }

    /// Replaces an open shard by one over the same slots in another data directory. One that is
    /// there already is answered as moved, and so is one that was moved there before.
    pub fn move_shard(
        &self,
        no: TopicNo,
        shard: ShardId,
        to: DirectoryId,
    ) -> Result<Decision, ReshapeError> {
        let topic = self.topic_by_no(no).ok_or(ReshapeError::UnknownTopic)?;
        let (layout, name) = (&topic.layout, || topic.name.to_string());
        if topic.internal {
            return Err(ReshapeError::Internal { topic: name() });
        }
        let span = layout.shard(shard).ok_or_else(|| {
            let topic = name();
            ReshapeError::UnknownShard { topic, shard }
        })?;
        if let Some(epoch) = span.sealed {
            let children = span.children.clone();
            let home = match &children[..] {
                [child] => layout.shard(*child).filter(|c| c.parents == [shard]),
                _ => None,
            };
            return match home.is_some_and(|child| child.home == to) {
                true => Ok(Decision::Done {
                    epoch,
                    opened: children,
                }),
                false => Err(ReshapeError::Sealed {
                    topic: name(),
                    shard,
                    epoch,
                    children,
                }),
            };
        }
        if span.home == to {
            return Ok(Decision::Done {
                epoch: span.created,
                opened: vec![shard],
            });
        }
        Ok(Decision::Plan(Plan {
            no,
            sealed: vec![shard],
            opened: vec![(self.next_shard(), span.slots)],
            partitions: layout.partitions_of(span).to_vec(),
            epoch: layout.epoch() + 1,
            homes: vec![to],
        }))
    }
}

/// The shards in memory by id.
type Known<'a> = BTreeMap<ShardId, &'a Arc<ShardSpan>>;

/// First slot and end of a run of open shards.
fn open_run(topic: &Topic, known: &Known, shards: &[ShardId]) -> Result<(u32, u32), ReshapeError> {
    let name = || topic.name.to_string();
    let home = shards
        .first()
        .and_then(|first| known.get(first))
        .map(|first| first.home);
    let mut run: Option<(u32, u32)> = None;
    for &shard in shards {
        let span = known
            .get(&shard)
            .ok_or_else(|| ReshapeError::UnknownShard {
                topic: name(),
                shard,
            })?;
        if span.state == ShardState::Sealed {
            return Err(ReshapeError::Sealed {
                topic: name(),
                shard,
                epoch: span.sealed.unwrap_or(0),
                children: span.children.clone(),
            });
        }
        if home != Some(span.home) {
            return Err(ReshapeError::DifferentHomes {
                topic: name(),
                shards: shards.to_vec(),
            });
        }
        run = match run {
            None => Some((span.first_slot, span.end_slot())),
            Some((first, end)) if end == span.first_slot => Some((first, span.end_slot())),
            Some(_) => {
                return Err(ReshapeError::NotAdjacent {
                    topic: name(),
                    shards: shards.to_vec(),
                });
            }
        };
    }
    run.ok_or(ReshapeError::BadNames)
}

/// The epoch in which exactly these shards were replaced by ones of these sizes.
fn done_before(
    layout: &Layout,
    known: &Known,
    sealed: &[ShardId],
    slots: &[u32],
) -> Option<Decision> {
    let epoch = known.get(sealed.first()?)?.sealed?;
    let (_, was, opened) = layout.reshape_of(epoch)?;
    let opened_as = |slots_of: fn(&ShardSpan) -> u32| {
        let sizes = opened.iter().map(|id| known.get(id).map(|s| slots_of(s)));
        sizes.eq(slots.iter().map(|n| Some(*n)))
    };
    // A growth since has cut each slot into more.
    let same = was == sealed && (opened_as(|s| s.slots) || opened_as(ShardSpan::slots_at_birth));
    same.then(|| Decision::Done {
        epoch,
        opened: opened.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::catalog::{Environment, NewTopic};
    use crate::types::Position;

    /// Decided while the catalog's lock is held, for which every acknowledgement may wait.
    #[test]
    fn ten_thousand_shards_are_merged_and_split_again_without_delay() {
        const SHARDS: u32 = 10_000;
        let image = Image::empty(Environment::default());
        let new = NewTopic {
            name: "t".to_owned(),
            partitions: SHARDS as i32,
            replication_factor: 1,
            configs: [("shard.count".to_owned(), SHARDS.to_string())].into(),
            ..NewTopic::default()
        };
        let created = image.create_topic(&new).unwrap();
        let mut image = image.apply(&created, Position(1)).unwrap();
        let no = image.topic("t").unwrap().no;
        // In no order, as they may be named.
        let all = |image: &Image| -> Vec<ShardId> {
            let shards = image.topic("t").unwrap().layout.shards().iter();
            let mut ids: Vec<_> = shards.map(|shard| shard.id).collect();
            ids.sort_by_key(|id| id.0 * 7_919 % u64::from(SHARDS));
            ids
        };
        for (position, slots) in [(2, vec![SHARDS]), (3, vec![1; SHARDS as usize])] {
            let sealed = all(&image);
            let begun = Instant::now();
            let Decision::Plan(plan) = image.reshape_topic(no, &sealed, &slots).unwrap() else {
                panic!("it was not done before");
            };
            let change = plan.change(vec![0; SHARDS as usize], 0);
            image = image.apply(&change, Position(position)).unwrap();
            // Without optimization it takes 15 s if each shard is looked for among all.
            assert!(
                begun.elapsed() < Duration::from_secs(2),
                "{:?}",
                begun.elapsed()
            );
            assert_eq!(all(&image).len(), slots.len());
            let again = image.reshape_topic(no, &sealed, &slots).unwrap();
            assert!(matches!(again, Decision::Done { .. }));
        }
    }
}
