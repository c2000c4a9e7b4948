//! The image: everything the catalog knows at one position. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use thiserror::Error;

use super::change::{Change, Reshaped, TopicCreated};
use super::codec::Configs;
use super::configs::{ConfigSource, Layers};
use super::cow::CowMap;
use super::names;
use super::settings::TopicSettings;
use super::topic::{MAX_PARTITIONS, Replicas, Topic};
use crate::shard::Layout;
use crate::types::{DirectoryId, Position, ShardId, TopicId, TopicNo};

/// What the image depends on besides its changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// This broker's id.
    pub node_id: i32,
    /// Configs that the process started with, under Kafka's names.
    pub fixed: Configs,
    /// The data directories that new topics are spread over, the first one first; empty for that
    /// one alone.
    pub directories: Vec<DirectoryId>,
}

static NONE: Configs = Configs::new();

/// A change that does not fit the image: the journal and the image disagree.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("a catalog change does not fit what was replayed before it: {0}")]
pub struct Misfit(pub String);

/// What is known about a topic's number.
#[derive(Clone, Copy, Debug)]
pub enum TopicLookup<'a> {
    /// The topic is there.
    Live(&'a Arc<Topic>),
    /// It was, and is deleted.
    Deleted,
    /// No topic ever had it: the entry that names it is damage.
    Never,
}

/// The catalog at one position. A copy costs a few reference counts.
#[derive(Clone, Debug)]
pub struct Image {
    pub(super) version: u64,
    pub(super) position: Position,
    pub(super) topics: CowMap<TopicNo, Arc<Topic>>,
    names: CowMap<Arc<str>, TopicNo>,
    ids: CowMap<TopicId, TopicNo>,
    /// Names with `.` or `_`, as metrics show them.
    metric_names: CowMap<String, TopicNo>,
    pub(super) broker_configs: Arc<BTreeMap<Option<i32>, Configs>>,
    pub(super) group_configs: CowMap<String, Arc<Configs>>,
    /// Partitions of the open shards of each directory that has any.
    homed: Arc<BTreeMap<DirectoryId, u64>>,
    pub(super) next_topic: u32,
    pub(super) next_shard: u64,
    pub(super) next_producer_id: i64,
    /// About what topics and configs take in memory.
    pub(super) bytes: u64,
    environment: Arc<Environment>,
    /// Values in force for a topic with no configs of its own.
    default_settings: Arc<TopicSettings>,
}

impl Image {
    /// An image without topics.
    pub fn empty(environment: Environment) -> Self {
        let fixed = &environment.fixed;
        let layers = Layers {
            own: None,
            broker: &NONE,
            cluster: &NONE,
            fixed,
        };
        let default_settings = Arc::new(TopicSettings::resolve(&layers));
        Self {
            version: 0,
            position: Position(0),
            topics: CowMap::default(),
            names: CowMap::default(),
            ids: CowMap::default(),
            metric_names: CowMap::default(),
            broker_configs: Arc::default(),
            group_configs: CowMap::default(),
            homed: Arc::default(),
            next_topic: 1,
            next_shard: 1,
            next_producer_id: 0,
            bytes: 0,
            default_settings,
            environment: Arc::new(environment),
        }
    }

    /// How many changes led here.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Journal position of the last change.
    pub fn position(&self) -> Position {
        self.position
    }

    /// The topic of that name.
    pub fn topic(&self, name: &str) -> Option<&Arc<Topic>> {
        self.topics.get(self.names.get(name)?)
    }

    /// The topic of that id.
    pub fn topic_by_id(&self, id: TopicId) -> Option<&Arc<Topic>> {
        self.topics.get(self.ids.get(&id)?)
    }

    /// The topic of that number.
    pub fn topic_by_no(&self, no: TopicNo) -> Option<&Arc<Topic>> {
        self.topics.get(&no)
    }

    /// What is known about that number.
    pub fn lookup(&self, no: TopicNo) -> TopicLookup<'_> {
        match self.topics.get(&no) {
            Some(topic) => TopicLookup::Live(topic),
            None if no.0 > 0 && no.0 < self.next_topic => TopicLookup::Deleted,
            None => TopicLookup::Never,
        }
    }

    /// All topics, by name.
    pub fn topics(&self) -> impl Iterator<Item = &Arc<Topic>> {
        self.names.iter().filter_map(|(_, no)| self.topics.get(no))
    }

    /// All topics, by number.
    pub fn topics_by_no(&self) -> impl Iterator<Item = &Arc<Topic>> {
        self.topics.iter().map(|(_, topic)| topic)
    }

    /// How many topics there are.
    pub fn topic_count(&self) -> usize {
        self.topics.len()
    }

    /// The topic that a new one of that name would be mixed up with in metrics.
    pub fn colliding(&self, name: &str) -> Option<&Arc<Topic>> {
        self.topics
            .get(self.metric_names.get(&names::metric_name(name))?)
    }

    /// Dynamic configs of a broker, or of all.
    pub fn broker_configs(&self, broker: Option<i32>) -> &Configs {
        self.broker_configs.get(&broker).unwrap_or(&NONE)
    }

    /// Configs of a group.
    pub fn group_configs(&self, group: &str) -> Option<&Arc<Configs>> {
        self.group_configs.get(group)
    }

    /// The groups that have configs, by name.
    pub fn groups_with_configs(&self) -> impl Iterator<Item = (&str, &Arc<Configs>)> {
        self.group_configs
            .iter()
            .map(|(group, configs)| (group.as_str(), configs))
    }

    /// The number that the next topic gets.
    pub fn next_topic(&self) -> TopicNo {
        TopicNo(self.next_topic)
    }

    /// The id that the next shard gets.
    pub fn next_shard(&self) -> ShardId {
        ShardId(self.next_shard)
    }

    /// The first producer id that was never reserved.
    pub fn next_producer_id(&self) -> i64 {
        self.next_producer_id
    }

    /// What the image depends on besides its changes.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// The layers of values for this broker, with a topic's or group's own on top.
    pub fn layers<'a>(&'a self, own: Option<(&'a Configs, ConfigSource)>) -> Layers<'a> {
        Layers {
            own,
            broker: self.broker_configs(Some(self.environment.node_id)),
            cluster: self.broker_configs(None),
            fixed: &self.environment.fixed,
        }
    }

    /// Values in force for a topic with these configs.
    pub fn settings(&self, configs: &Configs) -> Arc<TopicSettings> {
        if configs.is_empty() {
            return Arc::clone(&self.default_settings);
        }
        let layers = self.layers(Some((configs, ConfigSource::Topic)));
        Arc::new(TopicSettings::resolve(&layers))
    }

    /// The image after a change that stands at `position`.
    pub fn apply(&self, change: &Change, position: Position) -> Result<Self, Misfit> {
        let mut next = self.clone();
        next.version += 1;
        next.position = position;
        next.bytes = next.bytes.saturating_add_signed(self.growth(change));
        match change {
            Change::TopicCreated(created) => next.create(created)?,
            Change::TopicDeleted { no } => next.delete(*no)?,
            Change::PartitionsAdded {
                no,
                to,
                replicas,
                at_ms,
            } => {
                next.grow(*no, *to, replicas, *at_ms)?;
            }
            Change::TopicConfigsSet { no, configs } => {
                let mut topic = next.expect(*no)?.as_ref().clone();
                topic.settings = next.settings(configs);
                topic.configs = Arc::new(configs.clone());
                next.topics.insert(*no, Arc::new(topic));
            }
            Change::BrokerConfigsSet { broker, configs } => {
                let all = Arc::make_mut(&mut next.broker_configs);
                if configs.is_empty() {
                    all.remove(broker);
                } else {
                    all.insert(*broker, configs.clone());
                }
                next.resolve_all();
            }
            Change::GroupConfigsSet { group, configs } => {
                if configs.is_empty() {
                    next.group_configs.remove(group);
                } else {
                    next.group_configs
                        .insert(group.clone(), Arc::new(configs.clone()));
                }
            }
            Change::ProducerIdsReserved { next: id } => {
                next.next_producer_id = next.next_producer_id.max(*id);
            }
            Change::Reshaped(reshaped) => next.reshape(reshaped)?,
        }
        Ok(next)
    }

    fn expect(&self, no: TopicNo) -> Result<&Arc<Topic>, Misfit> {
        self.topics
            .get(&no)
            .ok_or_else(|| Misfit(format!("there is no topic number {}", no.0)))
    }

    fn create(&mut self, created: &TopicCreated) -> Result<(), Misfit> {
        let name = created.name.as_str();
        if created.no.0 != self.next_topic || created.first_shard.0 != self.next_shard {
            let text = format!("topic {name} has another number or shard than the next free one");
            return Err(Misfit(text));
        }
        if self.names.get(name).is_some() || self.ids.get(&created.id).is_some() {
            return Err(Misfit(format!(
                "there is a topic {name} or one of its id already"
            )));
        }
        let shards = u64::from(created.shards);
        let after = created.first_shard.0.saturating_add(shards);
        let counts = created.shards <= created.partitions && created.partitions <= MAX_PARTITIONS;
        let homes = created.homes.is_empty() || created.homes.len() as u64 == shards;
        if !counts || !homes || created.no.0 == u32::MAX {
            return Err(Misfit(format!("topic {name} has no layout")));
        }
        let ids: Vec<ShardId> = (created.first_shard.0..after).map(ShardId).collect();
        let layout = Layout::create(created.partitions, &ids, created.at_ms)
            .map_err(|e| Misfit(format!("topic {name} has no layout: {e}")))?
            .with_homes(ids.iter().copied().zip(created.homes.iter().copied()));
        let topic = Topic {
            no: created.no,
            id: created.id,
            name: Arc::from(name),
            partitions: created.partitions,
            replication_factor: created.replication_factor,
            internal: names::is_internal(name),
            settings: self.settings(&created.configs),
            configs: Arc::new(created.configs.clone()),
            layout: Arc::new(layout),
            replicas: Arc::new(created.replicas.clone()),
            created_ms: created.at_ms,
        };
        self.next_topic = created.no.0 + 1;
        self.next_shard = after;
        self.put(topic);
        Ok(())
    }

    /// How many partitions live in a directory.
    pub fn partitions_in(&self, home: DirectoryId) -> u64 {
        self.homed.get(&home).copied().unwrap_or(0)
    }

    /// Counts the partitions of a topic for their directories, or no longer.
    fn count_homes(&mut self, layout: &Layout, there: bool) {
        let homed = Arc::make_mut(&mut self.homed);
        for shard in layout.shards() {
            let partitions = homed.entry(shard.home).or_default();
            *partitions = match there {
                true => partitions.saturating_add(u64::from(shard.slots)),
                false => partitions.saturating_sub(u64::from(shard.slots)),
            };
            if *partitions == 0 {
                homed.remove(&shard.home);
            }
        }
    }

    /// Puts a topic with another layout in the place of what it was.
    fn relayout(&mut self, topic: Topic) {
        if let Some(before) = self.topics.get(&topic.no).cloned() {
            self.count_homes(&before.layout, false);
        }
        self.count_homes(&topic.layout, true);
        self.topics.insert(topic.no, Arc::new(topic));
    }

    /// Takes a topic into every index.
    pub(super) fn put(&mut self, topic: Topic) {
        self.count_homes(&topic.layout, true);
        self.names.insert(Arc::clone(&topic.name), topic.no);
        self.ids.insert(topic.id, topic.no);
        if topic.name.contains(['.', '_']) {
            self.metric_names
                .insert(names::metric_name(&topic.name), topic.no);
        }
        self.topics.insert(topic.no, Arc::new(topic));
    }

    fn delete(&mut self, no: TopicNo) -> Result<(), Misfit> {
        let topic = Arc::clone(self.expect(no)?);
        self.count_homes(&topic.layout, false);
        self.topics.remove(&no);
        self.names.remove(topic.name.as_ref());
        self.ids.remove(&topic.id);
        self.metric_names.remove(&names::metric_name(&topic.name));
        Ok(())
    }

    fn grow(&mut self, no: TopicNo, to: u32, new: &Replicas, at_ms: i64) -> Result<(), Misfit> {
        let mut topic = self.expect(no)?.as_ref().clone();
        if to > MAX_PARTITIONS {
            return Err(Misfit(format!(
                "topic {} can't have {to} partitions",
                topic.name
            )));
        }
        let layout = topic.layout.grow(to, at_ms);
        let layout = layout.map_err(|e| Misfit(format!("topic {}: {e}", topic.name)))?;
        topic.layout = Arc::new(layout);
        topic.partitions = to;
        if !new.is_empty() {
            Arc::make_mut(&mut topic.replicas).extend(new.iter().map(|(p, r)| (*p, r.clone())));
        }
        self.relayout(topic);
        Ok(())
    }

    fn reshape(&mut self, change: &Reshaped) -> Result<(), Misfit> {
        let mut topic = self.expect(change.no)?.as_ref().clone();
        let free = (self.next_shard..).zip(&change.opened);
        if free.clone().any(|(next, (id, _))| id.0 != next) {
            let text = format!(
                "a new shard of topic {} is not the next free one",
                topic.name
            );
            return Err(Misfit(text));
        }
        let layout =
            topic
                .layout
                .reshape(&change.sealed, &change.opened, &change.starts, change.at_ms);
        let layout = layout.map_err(|e| Misfit(format!("topic {}: {e}", topic.name)))?;
        if !change.homes.is_empty() && change.homes.len() != change.opened.len() {
            return Err(Misfit(format!(
                "topic {}: not each new shard has a home",
                topic.name
            )));
        }
        let homes = change
            .opened
            .iter()
            .map(|(id, _)| *id)
            .zip(change.homes.iter().copied());
        topic.layout = Arc::new(layout.with_homes(homes));
        self.next_shard = self.next_shard.saturating_add(change.opened.len() as u64);
        self.relayout(topic);
        Ok(())
    }

    /// Works all values in force out again, after a change under the topics' own configs.
    pub(super) fn resolve_all(&mut self) {
        let settings = TopicSettings::resolve(&self.layers(None));
        self.default_settings = Arc::new(settings);
        let resolved: Vec<Topic> = self
            .topics_by_no()
            .map(|t| Topic {
                settings: self.settings(&t.configs),
                ..t.as_ref().clone()
            })
            .collect();
        for topic in resolved {
            self.topics.insert(topic.no, Arc::new(topic));
        }
    }
}
