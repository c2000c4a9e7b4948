//! Every partition and shard of this node, and the way to append to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use parking_lot::Mutex;

use crate::budget::Account;
use crate::catalog::settings::ShardLimits;
use crate::catalog::{Catalog, Topic};
use crate::clock::Clock;
use crate::partition::archive::Archive;
use crate::partition::directory::{Directories, Directory, Room};
use crate::partition::entries::encode_log_start;
use crate::partition::load::Traffic;
use crate::partition::log::Partition;
use crate::partition::moves::Moves;
use crate::partition::producer_budget::ProducerBudget;
use crate::partition::recovery::Fatal;
use crate::partition::reshape::Reshapes;
use crate::partition::routes::TopicShards;
use crate::partition::shard::{
    Appended, Now, PartitionSequence, Prepared, Refused, Shard, Standing,
};
use crate::shard::ShardSpan;
use crate::store::journal::{Entry, EntryKind};
use crate::store::lineage::LineageStore;
use crate::types::{Offset, PartitionKey, Place, ShardId, TopicNo};

/// How long a move of a shard lets appenders wait for a journal that does not answer. Then the shard
/// goes on in its old home.
pub const MOVE_PATIENCE: Duration = Duration::from_secs(10);

/// Bounds and intervals of the registry.
#[derive(Clone, Debug)]
pub struct RegistryOptions {
    /// Bytes of batches that may wait in the tail for their flush.
    pub tail_bytes: usize,
    /// Producers remembered per partition.
    pub producers_per_partition: usize,
    /// Memory of the producers remembered by all partitions.
    pub producer_bytes: u64,
    /// Idle time after which a producer is forgotten, in milliseconds.
    pub producer_expiration_ms: i64,
    /// Client writes are refused while the device has less than this free.
    pub reserve_bytes: u64,
    /// Bytes of segment reads under way on threads that may wait for the disk.
    pub read_bytes: u64,
    /// How long a move lets the appenders of a shard wait for a journal that does not answer.
    pub move_patience: Duration,
}

/// The registry.
pub struct Registry {
    pub(super) options: RegistryOptions,
    pub(crate) catalog: Arc<Catalog>,
    pub(super) clock: Arc<dyn Clock>,
    /// Wall and monotonic time when the process started.
    pub(super) started: (i64, Duration),
    pub(super) directories: Directories,
    pub(super) partitions: DashMap<PartitionKey, Arc<Partition>>,
    pub(super) topics: DashMap<TopicNo, Arc<TopicShards>>,
    pub(super) fatal: Fatal,
    pub(super) archive: Archive,
    pub(super) reshapes: Reshapes,
    pub(super) moves: Moves,
    /// Held while it is decided which of two files' sections counts.
    pub(super) superseding: Mutex<()>,
    pub(super) producers: ProducerBudget,
    /// Reads that met damage.
    pub(super) damaged_reads: AtomicU64,
}

impl Registry {
    /// An empty registry over these directories; recovery fills it.
    pub fn new(
        options: RegistryOptions,
        catalog: Arc<Catalog>,
        directories: Directories,
        clock: Arc<dyn Clock>,
        fatal: Fatal,
        lineage: LineageStore,
    ) -> Self {
        Self {
            started: (clock.wall_ms(), clock.monotonic()),
            producers: ProducerBudget {
                per_partition: options.producers_per_partition,
                account: Account::new(options.producer_bytes),
            },
            options,
            catalog,
            clock,
            fatal,
            archive: Archive::new(lineage),
            reshapes: Reshapes::default(),
            moves: Moves::default(),
            superseding: Mutex::default(),
            directories,
            partitions: DashMap::new(),
            topics: DashMap::new(),
            damaged_reads: AtomicU64::new(0),
        }
    }

    /// The directory whose journal holds the catalog.
    pub fn first(&self) -> &Arc<Directory> {
        self.directories.first()
    }

    /// The data directories.
    pub fn directories(&self) -> &Directories {
        &self.directories
    }

    /// A partition whose topic's creation is durable.
    pub fn get(&self, key: PartitionKey) -> Option<Arc<Partition>> {
        self.partitions.get(&key).map(|p| Arc::clone(&p))
    }

    /// Whether the catalog and the internal topics take writes: false while the first directory's
    /// disk is nearly full.
    pub fn is_writable(&self) -> bool {
        self.first().is_writable()
    }

    /// How many partitions there are.
    pub fn partition_count(&self) -> usize {
        self.partitions.len()
    }

    /// Sequences a batch: it has its offsets and its place in the journal when this returns.
    pub fn append(
        &self,
        partition: &Partition,
        mut batch: Prepared,
        room: Option<&mut Room>,
    ) -> Result<Appended, Refused> {
        let shard = partition.shard().ok_or(Refused::Sealed)?;
        shard.home.gate.count(batch.payload.len() as u64);
        let (now, producers) = (self.now(), &self.producers);
        let had_room = producers.account.excess() == 0;
        let result = partition.appending(|shard, sequence| {
            let home = &shard.home;
            if let Some(room) = room {
                batch.charge = room.take(batch.payload.len() + ENTRY_OVERHEAD);
            }
            let held = batch.charge;
            let result = sequence.append(partition.key, batch, now, producers, home);
            if !matches!(&result, Ok(appended) if !appended.duplicate) {
                home.give_back(u64::from(held));
            }
            result
        });
        if had_room && producers.account.excess() > 0 {
            shard.home.wake.raise();
        }
        result
    }

    /// Counts what was written to or read from a partition; whoever did is to pause for so long,
    /// so that the limits of its shard hold.
    pub fn count(&self, partition: &Partition, traffic: Traffic) -> Duration {
        let now = self.now().steady_ms;
        partition.count(traffic, now);
        let image = self.catalog.peek();
        let topic = image.topic_by_no(partition.key.topic);
        let limits = topic.map_or_else(ShardLimits::default, |topic| topic.settings.shard_limits);
        let shard = partition.shard();
        shard.map_or(Duration::ZERO, |shard| shard.count(traffic, limits, now))
    }

    /// Where the records of a partition begin; behind all of them if it is deleted.
    pub(super) fn log_start_of(&self, key: PartitionKey) -> Offset {
        let partition = self.get(key);
        partition.map_or(Offset::MAX, |partition| partition.bounds().log_start)
    }

    /// The open shard of that id, if that is where appends to this partition of its go.
    pub fn shard(&self, partition: PartitionKey, id: ShardId) -> Option<Arc<Shard>> {
        let shards = self.topic_shards(partition.topic)?;
        shards.route(partition.index).filter(|shard| shard.id == id)
    }

    /// What a partition carries a second, averaged over about the last minute.
    pub fn load_of(&self, partition: &Partition) -> Traffic {
        partition.load(self.now().steady_ms)
    }

    /// The most of each kind of traffic of a shard in one second of the last minute.
    pub fn busiest_second_of(&self, shard: &Shard) -> Traffic {
        shard.busiest_second(self.now().steady_ms)
    }

    pub(super) fn now(&self) -> Now {
        let passed = self.clock.monotonic().saturating_sub(self.started.1);
        let passed = i64::try_from(passed.as_millis()).unwrap_or(i64::MAX);
        Now {
            wall_ms: self.clock.wall_ms(),
            steady_ms: self.started.0.saturating_add(passed),
        }
    }

    /// Sequences a move of the log start up to `offset`, which must not lie beyond the high
    /// watermark. A lower offset than the present log start changes nothing. Returns the log start
    /// and the place that an answer waits for.
    pub fn move_log_start(
        &self,
        partition: &Partition,
        offset: Offset,
    ) -> Result<(Offset, Place), Refused> {
        partition.appending(|shard, sequence| {
            let journal = shard.home.journal().ok_or(Refused::Sealed)?;
            if offset > sequence.log_start {
                sequence.log_start = offset;
                sequence.last_position = journal.append(Entry {
                    kind: EntryKind::LogStart,
                    key: partition.key,
                    payload: encode_log_start(offset),
                    fill: None,
                    charge: 0,
                });
            }
            let place = Place {
                directory: shard.home.no,
                position: sequence.last_position,
            };
            Ok((sequence.log_start, place))
        })
    }

    /// Seals a topic, so that no append follows. The caller holds the catalog's lock, sequences the
    /// topic's deletion next, and nothing can stop it from doing so.
    pub fn seal_topic(&self, topic: &Topic) {
        if let Some(shards) = self.topic_shards(topic.no) {
            for shard in shards.routes().open() {
                shard.lock().set(Standing::Deleted);
            }
        }
    }

    /// The shards of a topic whose creation is durable.
    pub(super) fn topic_shards(&self, no: TopicNo) -> Option<Arc<TopicShards>> {
        self.topics.get(&no).map(|shards| Arc::clone(&shards))
    }

    /// Makes room for a topic's partitions from `first` on. Called in journal order, before the
    /// topic is published; appends follow what is sequenced by now, which may be further.
    pub(super) fn create_partitions(&self, topic: &Topic, first: u32) {
        let shards = self.follow_growth(topic);
        for index in first..topic.partitions {
            let key = PartitionKey {
                topic: topic.no,
                index,
            };
            let sequence = PartitionSequence::default();
            let partition = Partition::new(key, topic.id, Arc::clone(&shards), sequence);
            self.partitions.insert(key, Arc::new(partition));
        }
    }

    /// The run-time shards of a topic that is new or has grown.
    pub(super) fn follow_growth(&self, topic: &Topic) -> Arc<TopicShards> {
        let catalog = self.catalog.lock();
        let ahead = catalog.image().topic_by_no(topic.no);
        let newest = ahead
            .map(|ahead| &ahead.layout)
            .filter(|layout| layout.epoch() > topic.layout.epoch())
            .unwrap_or(&topic.layout);
        if let Some(shards) = self.topic_shards(topic.no) {
            shards.reroute(newest, &self.directories, &[]);
            shards.relist(&topic.layout);
            return shards;
        }
        let deleted = ahead.is_none() && catalog.image().next_topic() > topic.no;
        let standing = match deleted {
            true => Standing::Deleted,
            false => Standing::Open,
        };
        let make = |span: &ShardSpan| {
            let home = Arc::clone(self.directories.home(span.home));
            Shard::new(span.id, home, standing.clone())
        };
        let shards = TopicShards::new(
            topic.no,
            newest,
            make,
            &topic.layout,
            self.catalog.next_producer_id(),
        );
        let shards = Arc::new(shards);
        self.topics.insert(topic.no, Arc::clone(&shards));
        shards
    }

    /// The list of each shard of a topic, in slot order, for simulations.
    #[cfg(test)]
    pub(crate) fn lists(
        &self,
        no: TopicNo,
    ) -> Vec<(ShardId, Arc<crate::partition::shard::FileList>)> {
        self.topic_shards(no).map_or_else(Vec::new, |t| t.lists())
    }

    /// Takes a topic out. Called in journal order.
    pub(super) fn drop_topic(&self, topic: &Topic) {
        self.seal_topic(topic);
        for index in 0..topic.partitions {
            let key = PartitionKey {
                topic: topic.no,
                index,
            };
            if let Some((_, partition)) = self.partitions.remove(&key) {
                partition.sequenced(|_, sequence| self.producers.forget_all(sequence));
                partition.publish_deletion();
            }
        }
        self.topics.remove(&topic.no);
        for directory in self.directories.iter() {
            directory.garbage.store(true, Ordering::Release);
            directory.wake.raise();
        }
    }
}

/// Tail bytes that an entry costs beyond its payload.
pub const ENTRY_OVERHEAD: usize = 64;
