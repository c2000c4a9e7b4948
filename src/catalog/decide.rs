//! From what a client wants to a change that fits the image, or a refusal.

use super::assignment;
use super::change::{Change, TopicCreated};
use super::codec::Configs;
use super::configs::{Scope, validate_all};
use super::error::CatalogError;
use super::image::Image;
use super::names;
use super::topic::Topic;
use crate::types::{TopicId, TopicNo};

/// Most partitions that one request may add to a topic.
pub const MAX_PARTITIONS_PER_REQUEST: u32 = 10_000;

/// Most partitions of a topic.
pub const MAX_PARTITIONS: u32 = 100_000;

/// A topic to be.
#[derive(Clone, Debug, Default)]
pub struct NewTopic {
    /// Its name.
    pub name: String,
    /// A fresh random id.
    pub id: TopicId,
    /// Partitions, with the broker's default filled in. Ignored with a manual assignment.
    pub partitions: i32,
    /// Replicas asked for, with the broker's default filled in. Ignored with a manual assignment.
    pub replication_factor: i16,
    /// Manual assignment: partition and its replicas. Empty for none.
    pub assignments: Vec<(i32, Vec<i32>)>,
    /// Brokers that an assignment may name; `None` takes any.
    pub known_brokers: Option<Vec<i32>>,
    /// Configs to set.
    pub configs: Configs,
    /// Now, in milliseconds since the Unix epoch.
    pub at_ms: i64,
}

impl Image {
    /// The creation of a topic.
    pub fn create_topic(&self, new: &NewTopic) -> Result<Change, CatalogError> {
        let name = &new.name;
        names::validate(name)?;
        if self.topic(name).is_some() {
            return Err(CatalogError::TopicExists(format!(
                "Topic '{name}' already exists."
            )));
        }
        if name.contains(['.', '_'])
            && let Some(other) = self.colliding(name)
        {
            return Err(CatalogError::InvalidTopic(format!(
                "Topic '{name}' collides with existing topic: {}",
                other.name
            )));
        }
        let mut partitions = new.partitions;
        let mut replication_factor = new.replication_factor;
        let manual = assignment::check(&new.assignments, 0, new.known_brokers.as_deref())?;
        if let Some(first) = manual.first() {
            partitions = i32::try_from(manual.len()).unwrap_or(i32::MAX);
            replication_factor = i16::try_from(first.len()).unwrap_or(i16::MAX);
        }
        if replication_factor <= 0 {
            return Err(CatalogError::InvalidReplicationFactor(
                "Replication factor must be larger than 0, or -1 to use the default value."
                    .to_owned(),
            ));
        }
        let partitions = u32::try_from(partitions)
            .ok()
            .filter(|p| *p > 0)
            .ok_or_else(|| {
                let text = "Number of partitions was set to an invalid non-positive value.";
                CatalogError::InvalidPartitions(text.to_owned())
            })?;
        check_count(partitions, partitions)?;
        validate_all(Scope::Topic, &new.configs)?;
        Ok(Change::TopicCreated(Box::new(TopicCreated {
            no: self.next_topic(),
            id: new.id,
            name: name.clone(),
            partitions,
            replication_factor,
            replicas: (0..).zip(manual).collect(),
            configs: new.configs.clone(),
            first_shard: self.next_shard(),
            shards: self.settings(&new.configs).shard_count.clamp(1, partitions),
            at_ms: new.at_ms,
        })))
    }

    /// The deletion of a topic.
    pub fn delete_topic(&self, no: TopicNo) -> Result<Change, CatalogError> {
        self.known(no)?;
        Ok(Change::TopicDeleted { no })
    }

    /// The growth of a topic to `to` partitions. `assignments` are the replicas of the new ones,
    /// or empty; `known_brokers` as in [`NewTopic`].
    pub fn add_partitions(
        &self,
        no: TopicNo,
        to: i32,
        assignments: &[Vec<i32>],
        known_brokers: Option<&[i32]>,
        at_ms: i64,
    ) -> Result<Change, CatalogError> {
        let topic = self.known(no)?;
        let have = topic.partitions;
        if i64::from(to) == i64::from(have) {
            let text = format!("Topic already has {have} partition(s).");
            return Err(CatalogError::InvalidPartitions(text));
        }
        let to = u32::try_from(to).ok().filter(|to| *to > have).ok_or_else(|| {
            CatalogError::InvalidPartitions(format!(
                "The topic {} currently has {have} partition(s); {to} would not be an increase.",
                topic.name
            ))
        })?;
        let added = to - have;
        if !assignments.is_empty() && assignments.len() as u64 != u64::from(added) {
            return Err(CatalogError::InvalidReplicaAssignment(format!(
                "Attempted to add {added} additional partition(s), but only {} assignment(s) were \
                 specified.",
                assignments.len()
            )));
        }
        for replicas in assignments {
            assignment::check_replicas(replicas, known_brokers)?;
            if replicas.len() as u64 != topic.replication_factor.max(0) as u64 {
                return Err(CatalogError::InvalidReplicaAssignment(format!(
                    "The manual partition assignment includes a partition with {} replica(s), but \
                     this is not consistent with previous partitions, which have {} replica(s).",
                    replicas.len(),
                    topic.replication_factor
                )));
            }
        }
        check_count(added, to)?;
        let replicas = (have..).zip(assignments.iter().cloned()).collect();
        Ok(Change::PartitionsAdded {
            no,
            to,
            replicas,
            at_ms,
        })
    }

    /// A topic's configs become these and no others.
    pub fn set_topic_configs(&self, no: TopicNo, configs: Configs) -> Result<Change, CatalogError> {
        self.known(no)?;
        validate_all(Scope::Topic, &configs)?;
        Ok(Change::TopicConfigsSet { no, configs })
    }

    fn known(&self, no: TopicNo) -> Result<&Topic, CatalogError> {
        let text = "This server does not host this topic-partition.";
        let unknown = || CatalogError::UnknownTopic(text.to_owned());
        self.topic_by_no(no).map(AsRef::as_ref).ok_or_else(unknown)
    }
}

fn check_count(added: u32, total: u32) -> Result<(), CatalogError> {
    if added > MAX_PARTITIONS_PER_REQUEST {
        let text = "Excessively large number of partitions per request.";
        return Err(CatalogError::PolicyViolation(text.to_owned()));
    }
    if total > MAX_PARTITIONS {
        let text = format!("A topic can have at most {MAX_PARTITIONS} partitions.");
        return Err(CatalogError::InvalidPartitions(text));
    }
    Ok(())
}
