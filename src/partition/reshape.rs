//! Reshape: shards of a topic replaced by others over the same slots, while clients run.
//!
//! One journal entry, sequenced under the catalog's lock and those of the old shards. What was
//! appended before it has its place in front of the entry; what comes after goes to the new shards.
//! Nobody waits for anything but these locks, and no byte is moved: a shard is a lock and a list of
//! files, and what a partition knows of its offsets and producers stays with the partition.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Unit;

use crate::catalog::{self, Decision, Plan, ReshapeError, Sequencer};
use crate::metrics::{Metrics, SampleKind};
use crate::partition::log::Partition;
use crate::partition::registry::Registry;
use crate::partition::routes::TopicShards;
use crate::partition::shard::{Shard, Standing};
use crate::types::{Offset, Position, ShardId, TopicNo};

/// Counts of reshapes since the start.
pub(super) struct Reshapes {
    splits: AtomicU64,
    merges: AtomicU64,
    moves: AtomicU64,
    /// Seconds for which one held the catalog's lock and those of its shards.
    lock_seconds: Histogram,
}

impl Default for Reshapes {
    fn default() -> Self {
        // The goal is 5 ms.
        const BUCKETS: [f64; 8] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.025, 0.1];
        Self {
            splits: AtomicU64::new(0),
            merges: AtomicU64::new(0),
            moves: AtomicU64::new(0),
            lock_seconds: Histogram::new(BUCKETS),
        }
    }
}

impl Reshapes {
    pub(super) fn note(&self, plan: &Plan, locked: Duration) {
        let kind = match plan.opened.len().cmp(&plan.sealed.len()) {
            Ordering::Greater => &self.splits,
            Ordering::Less => &self.merges,
            Ordering::Equal => &self.moves,
        };
        kind.fetch_add(1, Relaxed);
        self.lock_seconds.observe(locked.as_secs_f64());
    }
}

/// A reshape that is sequenced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reshaped {
    /// The layout epoch that it made.
    pub epoch: u32,
    /// The shards that it opened, in slot order.
    pub opened: Vec<ShardId>,
    /// An answer that shows it leaves when this is durable.
    pub position: Position,
    /// It was done before; nothing has changed.
    pub repeated: bool,
}

impl Registry {
    /// Replaces adjacent open shards of a topic by new ones with these numbers of slots, in slot
    /// order. A repetition of what was done before answers as it did then.
    pub fn reshape(
        &self,
        topic: TopicNo,
        sealed: &[ShardId],
        opened: &[u32],
    ) -> Result<Reshaped, ReshapeError> {
        if !self.is_writable() || self.archive.is_behind() {
            return Err(ReshapeError::NoSpace);
        }
        let shards = self.topic_shards(topic).ok_or(ReshapeError::UnknownTopic)?;
        // Looked up before the locks are taken: there may be thousands.
        let ahead = self.catalog.sequenced();
        let (moving, elsewhere) = match ahead.reshape_topic(topic, sealed, opened)? {
            Decision::Plan(plan) => {
                let moving = self.moving(&plan);
                let elsewhere = self.ends_elsewhere(&shards, &plan, &moving)?;
                (moving, elsewhere)
            }
            Decision::Done { .. } => (Vec::new(), None),
        };
        let at_ms = self.clock.wall_ms();
        let mut catalog = self.catalog.lock();
        let locked = Instant::now();
        let plan = match catalog.image().reshape_topic(topic, sealed, opened)? {
            Decision::Plan(plan) => plan,
            Decision::Done { epoch, opened } => {
                return Ok(Reshaped {
                    epoch,
                    opened,
                    // The last change that is sequenced stands at or behind that reshape.
                    position: catalog.image().position(),
                    repeated: true,
                });
            }
        };
        let moving = match catalog.image().version() == ahead.version() {
            true => moving,
            false => self.moving(&plan),
        };
        let ends = elsewhere.as_ref();
        let position = self.sequence_reshape(&mut catalog, &shards, &plan, &moving, ends, at_ms)?;
        drop(catalog);
        self.reshapes.note(&plan, locked.elapsed());
        let Plan { epoch, opened, .. } = plan;
        Ok(Reshaped {
            epoch,
            opened: opened.into_iter().map(|(id, _)| id).collect(),
            position,
            repeated: false,
        })
    }

    /// The partitions that a plan is about, as far as they are made.
    pub(super) fn moving(&self, plan: &Plan) -> Vec<Option<Arc<Partition>>> {
        let keys = plan.partitions.iter().map(|index| plan.key(*index));
        keys.map(|key| self.get(key)).collect()
    }

    /// Where the partitions of a plan end on stable storage, if they live in another directory than
    /// the first: records in another journal may be lost after the reshape's entry is safe, and a
    /// link must not start behind the end. Waits for the device, so that this holds with an interval
    /// as sync policy, too. A partition that is not among them was made since, and has no link yet.
    fn ends_elsewhere(
        &self,
        shards: &TopicShards,
        plan: &Plan,
        moving: &[Option<Arc<Partition>>],
    ) -> Result<Option<BTreeMap<u32, Offset>>, ReshapeError> {
        let routes = shards.routes();
        let mut old = routes.open().iter();
        let old = old.find(|shard| plan.sealed.contains(&shard.id));
        let Some(old) = old.filter(|shard| shard.home.no != self.first().no) else {
            return Ok(None);
        };
        let ends = moving.iter().flatten();
        let ends = ends.map(|partition| (partition.key.index, partition.bounds().high_watermark));
        let ends = ends.collect();
        match old.home.journal().is_some_and(|journal| journal.sync()) {
            true => Ok(Some(ends)),
            false => Err(ReshapeError::JournalEnded),
        }
    }

    /// Gives a reshape its place in the journal and leads appends to the new shards, all under the
    /// locks of the old ones. While a shard is on its way elsewhere, only its move may do so.
    pub(super) fn sequence_reshape(
        &self,
        catalog: &mut Sequencer<'_>,
        shards: &TopicShards,
        plan: &Plan,
        moving: &[Option<Arc<Partition>>],
        elsewhere: Option<&BTreeMap<u32, Offset>>,
        at_ms: i64,
    ) -> Result<Position, ReshapeError> {
        let routes = shards.routes();
        let sealed: BTreeSet<_> = plan.sealed.iter().collect();
        let old = routes.open().iter();
        let old: Vec<_> = old.filter(|s| sealed.contains(&s.id)).collect();
        let mut locks: Vec<_> = old.iter().map(|shard| shard.lock()).collect();
        let is_move = !plan.homes.is_empty();
        let mut standings = old.iter().zip(&locks);
        let other = standings.find(|(_, s)| matches!(***s, Standing::Waiting(_)) != is_move);
        if let Some((shard, _)) = other {
            let topic = catalog.image().topic_by_no(plan.no);
            return Err(ReshapeError::Moving {
                topic: topic.map_or_else(String::new, |topic| topic.name.to_string()),
                shard: shard.id,
            });
        }
        let next = |partition: &Partition| match elsewhere {
            None => partition.next_offset(),
            Some(ends) => ends.get(&partition.key.index).copied().unwrap_or(0),
        };
        // One that was not there may have been made meanwhile. One that is not there now has no
        // record yet, and gets its first one in its new shard.
        let starts = moving.iter().zip(&plan.partitions);
        let starts = starts.map(|(partition, index)| match partition {
            Some(partition) => next(partition),
            None => self.get(plan.key(*index)).map_or(0, |p| next(&p)),
        });
        let position = catalog.sequence(&plan.change(starts.collect(), at_ms));
        if let Some(topic) = catalog.image().topic_by_no(plan.no) {
            let opened = plan.opened.iter().map(|(id, _)| *id);
            let moved: Vec<_> = opened.filter(|_| is_move).collect();
            shards.reroute(&topic.layout, &self.directories, &moved);
        }
        for standing in &mut locks {
            standing.set(Standing::Moved);
        }
        Ok(position)
    }

    /// Readers follow a reshape that is durable and published; in recovery appends do, too. Shards
    /// that it opened in another directory take appends from here on.
    pub(super) fn follow_reshape(&self, reshaped: &catalog::Reshaped, in_recovery: bool) {
        let no = reshaped.no;
        let image = self.catalog.image();
        let (Some(topic), Some(shards)) = (image.topic_by_no(no), self.topic_shards(no)) else {
            return;
        };
        shards.relist(&topic.layout);
        if in_recovery {
            let _catalog = self.catalog.lock();
            shards.reroute(&topic.layout, &self.directories, &[]);
        }
        if reshaped.homes.is_empty() {
            return;
        }
        let opened = |shard: &&Arc<Shard>| reshaped.opened.iter().any(|(id, _)| *id == shard.id);
        for shard in shards.routes().open().iter().filter(opened) {
            let mut standing = shard.lock();
            if matches!(*standing, Standing::Waiting(_)) {
                standing.set(Standing::Open);
            }
        }
    }

    /// Shows on `/metrics` what was reshaped.
    pub(super) fn watch_reshapes(self: &Arc<Self>, metrics: &Metrics) {
        type Count = fn(&Reshapes) -> &AtomicU64;
        let kinds: [(&str, Count); 3] = [
            ("split", |r| &r.splits),
            ("merge", |r| &r.merges),
            ("move", |r| &r.moves),
        ];
        for (kind, count) in kinds {
            let registry = Arc::clone(self);
            let help = "Reshapes of shards, by kind";
            let label = Some(("kind", kind));
            metrics.sample("reshapes", help, SampleKind::Counter, label, move || {
                count(&registry.reshapes).load(Relaxed) as f64
            });
        }
        let registry = Arc::clone(self);
        let help = "Open shards of all topics";
        metrics.sample("open_shards", help, SampleKind::Gauge, None, move || {
            let image = registry.catalog.image();
            let shards = image.topics().map(|topic| topic.layout.shards().len());
            shards.sum::<usize>() as f64
        });
        let registry = Arc::clone(self);
        let help = "Moves of shards that came to nothing after the shard's appenders had to wait";
        metrics.sample(
            "moves_given_up",
            help,
            SampleKind::Counter,
            None,
            move || registry.moves.given_up() as f64,
        );
        let seconds = self.moves.wait_seconds.clone();
        metrics.register(|r| {
            r.register_with_unit(
                "move_wait",
                "Time for which a move of a shard made its appenders wait",
                Unit::Seconds,
                seconds,
            );
        });
        let seconds = self.reshapes.lock_seconds.clone();
        metrics.register(|r| {
            r.register_with_unit(
                "reshape_lock",
                "Time for which a reshape held the catalog's lock and those of its shards",
                Unit::Seconds,
                seconds,
            );
        });
    }
}
