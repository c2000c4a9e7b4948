//! From what a client wants to a change that fits the image, or a refusal.

use super::assignment;
use super::change::{Change, TopicCreated};
use super::codec::Configs;
use super::configs::{Scope, validate_all};
use super::error::CatalogError;
use super::image::Image;
use super::names;
use super::topic::{MAX_PARTITIONS, Topic};
use crate::shard::Layout;
use crate::types::{DirectoryId, TopicId, TopicNo};

/// Most partitions that one request may add to a topic.
pub const MAX_PARTITIONS_PER_REQUEST: u32 = 10_000;

/// A topic to be.
#[derive(Clone, Debug)]
pub struct NewTopic {
    /// Its name.
    pub name: String,
    /// A fresh random id.
    pub id: TopicId,
    /// Partitions; -1 for the default, as it must be with a manual assignment.
    pub partitions: i32,
    /// Replicas asked for; -1 for the default, as it must be with a manual assignment.
    pub replication_factor: i16,
    /// Partitions where the client leaves them to us.
    pub default_partitions: i32,
    /// Replicas where the client leaves them to us.
    pub default_replication_factor: i16,
    /// Manual assignment: partition and its replicas. Empty for none.
    pub assignments: Vec<(i32, Vec<i32>)>,
    /// Brokers that an assignment may name; `None` takes any.
    pub known_brokers: Option<Vec<i32>>,
    /// Configs to set.
    pub configs: Configs,
    /// Now, in milliseconds since the Unix epoch.
    pub at_ms: i64,
}

impl Default for NewTopic {
    fn default() -> Self {
        Self {
            name: String::new(),
            id: TopicId::nil(),
            partitions: -1,
            replication_factor: -1,
            default_partitions: 16,
            default_replication_factor: 1,
            assignments: Vec::new(),
            known_brokers: None,
            configs: Configs::new(),
            at_ms: 0,
        }
    }
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
        validate_all(Scope::Topic, &new.configs)?;
        let shape = Shape::of(new)?;
        if self.next_topic().0 == u32::MAX || self.topic_by_id(new.id).is_some() {
            let text = "No number or id is free for another topic.";
            return Err(CatalogError::PolicyViolation(text.to_owned()));
        }
        let Shape {
            partitions,
            replication_factor,
            manual,
        } = shape;
        let shards = self.settings(&new.configs).shard_count.clamp(1, partitions);
        Ok(Change::TopicCreated(Box::new(TopicCreated {
            no: self.next_topic(),
            id: new.id,
            name: name.clone(),
            partitions,
            replication_factor,
            replicas: (0..).zip(manual).collect(),
            configs: new.configs.clone(),
            first_shard: self.next_shard(),
            shards,
            homes: self.homes(name, partitions, shards),
            at_ms: new.at_ms,
        })))
    }

    /// Where the shards of a new topic live: each on the directory with the fewest partitions so
    /// far, the first of several. What the server itself keeps stays on the first.
    fn homes(&self, name: &str, partitions: u32, shards: u32) -> Vec<DirectoryId> {
        let directories = &self.environment().directories;
        if directories.len() < 2 || names::is_internal(name) {
            return Vec::new();
        }
        let taken = directories.iter().map(|home| self.partitions_in(*home));
        let mut taken: Vec<u64> = taken.collect();
        let mut homes = Vec::new();
        for slots in Layout::even_cut(partitions, shards) {
            if let Some(least) = (0..taken.len()).min_by_key(|at| taken[*at]) {
                taken[least] += u64::from(slots);
                homes.push(directories[least]);
            }
        }
        homes
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

    pub(super) fn known(&self, no: TopicNo) -> Result<&Topic, CatalogError> {
        let text = "This server does not host this topic-partition.";
        let unknown = || CatalogError::UnknownTopic(text.to_owned());
        self.topic_by_no(no).map(AsRef::as_ref).ok_or_else(unknown)
    }
}

/// Counts and assignment of a topic to be.
struct Shape {
    partitions: u32,
    replication_factor: i16,
    manual: Vec<Vec<i32>>,
}

impl Shape {
    fn of(new: &NewTopic) -> Result<Self, CatalogError> {
        if !new.assignments.is_empty() {
            return Self::of_assignment(new);
        }
        let replication_factor = match new.replication_factor {
            -1 => new.default_replication_factor,
            given => given,
        };
        if replication_factor <= 0 {
            return Err(CatalogError::InvalidReplicationFactor(
                "Replication factor must be larger than 0, or -1 to use the default value."
                    .to_owned(),
            ));
        }
        let partitions = match new.partitions {
            -1 => new.default_partitions,
            given => given,
        };
        let partitions = u32::try_from(partitions)
            .ok()
            .filter(|p| *p > 0)
            .ok_or_else(|| {
                let text = "Number of partitions was set to an invalid non-positive value.";
                CatalogError::InvalidPartitions(text.to_owned())
            })?;
        check_count(partitions, partitions)?;
        Ok(Self {
            partitions,
            replication_factor,
            manual: Vec::new(),
        })
    }

    fn of_assignment(new: &NewTopic) -> Result<Self, CatalogError> {
        for (given, what) in [
            (i32::from(new.replication_factor), "replication factor"),
            (new.partitions, "numPartitions"),
        ] {
            if given != -1 {
                return Err(CatalogError::InvalidRequest(format!(
                    "A manual partition assignment was specified, but {what} was not set to -1."
                )));
            }
        }
        let manual = assignment::check(&new.assignments, 0, new.known_brokers.as_deref())?;
        let partitions = u32::try_from(manual.len()).unwrap_or(u32::MAX);
        check_count(partitions, partitions)?;
        let factor = manual.first().map_or(0, Vec::len);
        let replication_factor = i16::try_from(factor).map_err(|_| {
            let text = "The manual partition assignment includes too many replicas.";
            CatalogError::InvalidReplicaAssignment(text.to_owned())
        })?;
        Ok(Self {
            partitions,
            replication_factor,
            manual,
        })
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
