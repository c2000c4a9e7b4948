//! The coordinator's log over real partitions of `__consumer_offsets`.

use std::sync::Arc;

use bytes::Bytes;
use uuid::Uuid;

use crate::catalog::{Catalog, CatalogError, NewTopic, Topic};
use crate::clock::Clock;
use crate::config::GroupConfig;
use crate::coordinator::log::{
    AppendError, Appended, CoordinatorLog, LoadError, LogRecord, Topics,
};
use crate::partition::shard::Stamping;
use crate::partition::{Partition, Prepared, Registry};
use crate::protocol::batch::{BatchBuilder, BatchInfo, BatchView, Batches, Records};
use crate::types::{Offset, Position, TopicId};

/// The topic that keeps groups and their offsets. As all internal ones it lives in the first
/// directory, so that a position says all.
pub const OFFSETS_TOPIC: &str = "__consumer_offsets";

/// Bytes read at a time while a partition is loaded.
const LOAD_STEP: usize = 1 << 20;

/// Batches up to this size are appended whatever `max.message.bytes` says.
const LEAST_LIMIT: usize = 1 << 20;

/// `__consumer_offsets` in this store.
pub struct PartitionLog {
    partitions: Arc<Registry>,
    catalog: Arc<Catalog>,
    clock: Arc<dyn Clock>,
    config: GroupConfig,
}

impl PartitionLog {
    /// The log over these partitions; the topic is made when the first group needs it.
    pub fn new(
        partitions: Arc<Registry>,
        catalog: Arc<Catalog>,
        clock: Arc<dyn Clock>,
        config: GroupConfig,
    ) -> Self {
        Self {
            partitions,
            catalog,
            clock,
            config,
        }
    }

    fn topic(&self) -> Option<Arc<Topic>> {
        self.catalog.image().topic(OFFSETS_TOPIC).cloned()
    }

    /// The topic, made if it is not there. Waits for one sync of the journal the first time.
    fn topic_or_create(&self) -> Result<Arc<Topic>, AppendError> {
        if let Some(topic) = self.topic() {
            return Ok(topic);
        }
        let new = NewTopic {
            name: OFFSETS_TOPIC.into(),
            id: Uuid::new_v4(),
            partitions: self.config.offsets_topic_partitions,
            replication_factor: self.config.offsets_topic_replication_factor,
            configs: [
                ("cleanup.policy", "compact"),
                ("compression.type", "producer"),
                ("segment.bytes", "104857600"),
            ]
            .map(|(key, value)| (key.to_string(), value.to_string()))
            .into(),
            at_ms: self.clock.wall_ms(),
            ..NewTopic::default()
        };
        let position = match self.catalog.propose(|image| image.create_topic(&new)) {
            Ok(position) => position,
            // Somebody else was first; it is durable no later than what is sequenced now.
            Err(CatalogError::TopicExists(_)) => self.catalog.sequenced().position(),
            Err(error) => return Err(AppendError::Unavailable(error.to_string())),
        };
        if !self.partitions.first().wait_durable(position) {
            return Err(AppendError::Unavailable("the journal has ended".into()));
        }
        self.topic()
            .ok_or_else(|| AppendError::Unavailable("the topic was deleted".into()))
    }

    fn partition(&self, topic: &Topic, index: i32) -> Option<Arc<Partition>> {
        topic
            .partition(index)
            .and_then(|key| self.partitions.get(key))
    }
}

impl CoordinatorLog for PartitionLog {
    fn partitions(&self) -> i32 {
        self.topic()
            .map_or(self.config.offsets_topic_partitions, |topic| {
                i32::try_from(topic.partitions).unwrap_or(i32::MAX)
            })
    }

    fn append(
        &self,
        partition: i32,
        records: Vec<LogRecord>,
        timestamp_ms: i64,
    ) -> Result<Appended, AppendError> {
        if !self.partitions.is_writable() {
            return Err(AppendError::NoSpace);
        }
        let topic = self.topic_or_create()?;
        let unavailable = |text: &str| AppendError::Unavailable(text.to_string());
        let partition = self
            .partition(&topic, partition)
            .ok_or_else(|| unavailable("it does not exist"))?;
        let mut builder = BatchBuilder::new();
        for record in &records {
            builder.push(timestamp_ms, Some(&record.key), record.value.as_deref());
        }
        let payload = builder
            .build()
            .map_err(|error| unavailable(&error.to_string()))?;
        // A small limit is meant for clients' records, not for the coordinator's batches.
        if payload.len() > (topic.settings.max_message_bytes as usize).max(LEAST_LIMIT) {
            return Err(AppendError::TooLarge);
        }
        let info = BatchInfo::read(&payload).map_err(|error| unavailable(&error.to_string()))?;
        let batch = Prepared {
            last_offset_delta: info.last_offset_delta,
            max_timestamp: info.max_timestamp,
            claim: None,
            stamping: Stamping::Keep,
            charge: 0,
            payload,
        };
        // Without a share of the tail's budget: small, and heartbeats must pass under overload.
        let appended = self
            .partitions
            .append(&partition, batch, None)
            .map_err(|_| unavailable("the topic is deleted"))?;
        Ok(Appended {
            position: appended.place.position,
            base_offset: appended.base_offset,
        })
    }

    fn load(
        &self,
        partition: i32,
        each: &mut dyn FnMut(Offset, Bytes, Option<Bytes>),
    ) -> Result<(), LoadError> {
        let Some(topic) = self.topic() else {
            return Ok(());
        };
        let Some(partition) = self.partition(&topic, partition) else {
            return Ok(());
        };
        let failed = |text: String| LoadError(format!("{OFFSETS_TOPIC} {}: {text}", partition.key));
        let mut offset = partition.bounds().log_start;
        loop {
            let slices = self
                .partitions
                .read_blocking(&partition, offset, LOAD_STEP)
                .map_err(|error| failed(error.to_string()))?;
            if slices.is_empty() {
                return Ok(());
            }
            for batch in slices.iter().flat_map(|slice| Batches::new(slice)) {
                let batch = batch.map_err(|error| failed(error.to_string()))?;
                visit(&batch, offset, each).map_err(failed)?;
                offset = batch.info.last_offset() + 1;
            }
        }
    }

    fn log_bytes(&self, partition: i32) -> u64 {
        let Some(topic) = self.topic() else { return 0 };
        self.partition(&topic, partition)
            .map_or(0, |partition| partition.size_bytes())
    }

    fn move_log_start(&self, partition: i32, offset: Offset) -> Result<Position, AppendError> {
        let gone = || AppendError::Unavailable("the topic does not exist".into());
        let topic = self.topic().ok_or_else(gone)?;
        let partition = self.partition(&topic, partition).ok_or_else(gone)?;
        let (_, place) = self
            .partitions
            .move_log_start(&partition, offset)
            .map_err(|_| gone())?;
        Ok(place.position)
    }
}

fn visit(
    batch: &BatchView<'_>,
    from: Offset,
    each: &mut dyn FnMut(Offset, Bytes, Option<Bytes>),
) -> Result<(), String> {
    for record in Records::new(&batch.info, batch.payload()) {
        let record = record.map_err(|error| error.to_string())?;
        if record.offset >= from
            && let Some(key) = record.key
        {
            let value = record.value.map(Bytes::copy_from_slice);
            each(record.offset, Bytes::copy_from_slice(key), value);
        }
    }
    Ok(())
}

/// Topic ids out of the catalog's durable image.
pub struct CatalogTopics(pub Arc<Catalog>);

impl Topics for CatalogTopics {
    fn topic_id(&self, name: &str) -> Option<TopicId> {
        self.0.peek().topic(name).map(|topic| topic.id)
    }
}
