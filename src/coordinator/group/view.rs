//! Questions about groups: DescribeGroups, ListGroups, OffsetFetch, and the coordinator's own
//! bookkeeping.

use bytes::Bytes;

use super::command::Name;
use super::offsets::TopicIdOf;
use super::record::{Commit, Record};
use super::session::State;
use super::{Group, Machine};
use crate::types::Position;

/// A group as DescribeGroups shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Its state.
    pub state: State,
    /// Its kind, empty if no member ever joined.
    pub protocol_type: Name,
    /// The strategy; empty unless the group is stable.
    pub protocol: Name,
    /// Its members.
    pub members: Vec<DescribedMember>,
}

/// A member as DescribeGroups shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedMember {
    /// Its id.
    pub id: Name,
    /// Its instance id, if it is static.
    pub instance_id: Option<Name>,
    /// The client's name of itself.
    pub client_id: Name,
    /// Where it connects from.
    pub client_host: Name,
    /// Its metadata; empty unless the group is stable.
    pub metadata: Bytes,
    /// What the leader gave it.
    pub assignment: Bytes,
}

/// A group as ListGroups shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub group: Name,
    /// Its kind, empty if no member ever joined.
    pub protocol_type: Name,
    /// Its state.
    pub state: State,
}

/// A topic's commits.
pub type TopicCommits = (Name, Vec<(i32, Option<Commit>)>);

/// How many groups there are in each state, and how many members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Groups without members.
    pub empty: u64,
    /// Groups whose members are joining.
    pub preparing: u64,
    /// Groups that wait for their leader's assignment.
    pub completing: u64,
    /// Groups at work.
    pub stable: u64,
    /// Members of all groups.
    pub members: u64,
    /// Commits of all groups.
    pub commits: u64,
}

impl Group {
    fn describe(&self) -> Description {
        let s = &self.session;
        let stable = s.state == State::Stable;
        let protocol = s.protocol.as_ref().filter(|_| stable);
        let member = |m: &std::sync::Arc<super::session::Member>| DescribedMember {
            id: m.id.clone(),
            instance_id: m.instance_id.clone(),
            client_id: m.client_id.clone(),
            client_host: m.client_host.clone(),
            metadata: m.metadata(protocol),
            assignment: m.assignment.clone(),
        };
        Description {
            state: s.state,
            protocol_type: s.protocol_type.clone().unwrap_or_default(),
            protocol: protocol.cloned().unwrap_or_default(),
            members: s.members.values().map(member).collect(),
        }
    }
}

impl Machine {
    /// A group's description and the position of its last change.
    pub fn describe(&self, group: &str) -> Option<(Description, Position)> {
        self.groups.get(group).map(|g| (g.describe(), g.changed))
    }

    /// All groups, by name.
    pub fn list(&self) -> impl Iterator<Item = Listed> + '_ {
        self.groups.iter().map(|(name, g)| Listed {
            group: name.clone(),
            protocol_type: g.session.protocol_type.clone().unwrap_or_default(),
            state: g.session.state,
        })
    }

    /// The position of the last change of a group, if there is such a group.
    pub fn changed(&self, group: &str) -> Option<Position> {
        self.groups.get(group).map(|g| g.changed)
    }

    /// Names of all groups.
    pub fn names(&self) -> Vec<Name> {
        self.groups.keys().cloned().collect()
    }

    /// The commits asked for; those of a topic that is gone count as none.
    pub fn commits(
        &self,
        group: &str,
        topics: &[(Name, Vec<i32>)],
        topic_id: TopicIdOf,
    ) -> Vec<TopicCommits> {
        let offsets = self.groups.get(group).map(|g| &g.offsets);
        let of_topic = |(topic, partitions): &(Name, Vec<i32>)| {
            let id = topic_id(topic);
            let commits = offsets.and_then(|o| o.get(topic));
            let one = |p: &i32| {
                let commit = commits.and_then(|c| c.get(p)).filter(|c| c.is_of(id));
                (*p, commit.cloned())
            };
            (topic.clone(), partitions.iter().map(one).collect())
        };
        topics.iter().map(of_topic).collect()
    }

    /// All commits of a group, but for those of topics that are gone.
    pub fn all_commits(&self, group: &str, topic_id: TopicIdOf) -> Vec<TopicCommits> {
        let Some(group) = self.groups.get(group) else {
            return Vec::new();
        };
        let mut all = Vec::new();
        for (topic, partitions) in &group.offsets {
            let id = topic_id(topic);
            let live = partitions.iter().filter(|(_, c)| c.is_of(id));
            let live: Vec<_> = live.map(|(p, c)| (*p, Some(c.clone()))).collect();
            if !live.is_empty() {
                all.push((topic.clone(), live));
            }
        }
        all
    }

    /// Records that say what is stored of the groups after `from`, at least as many groups as
    /// make up `bytes`, and the last of those groups; `None` once there are no more.
    pub fn snapshot(&self, from: Option<&Name>, bytes: usize) -> Option<(Vec<Record>, Name)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let lower = from.map_or(Unbounded, |name| Excluded(name.clone()));
        let mut records = Vec::new();
        let mut last = None;
        let mut size = 0;
        for (name, group) in self.groups.range((lower, Unbounded)) {
            last = Some(name.clone());
            for record in group.records(name) {
                size += stored_size(&record);
                records.push(record);
            }
            if size >= bytes {
                break;
            }
        }
        last.map(|name| (records, name))
    }

    /// About how many bytes of log all groups take at least.
    pub fn stored_bytes(&self) -> u64 {
        let group = |(name, g): (&Name, &Group)| {
            g.records(name).map(|r| stored_size(&r) as u64).sum::<u64>()
        };
        self.groups.iter().map(group).sum()
    }

    /// Counts groups, members and commits.
    pub fn census(&self) -> Census {
        let mut census = Census::default();
        for group in self.groups.values() {
            match group.session.state {
                State::Empty => census.empty += 1,
                State::PreparingRebalance => census.preparing += 1,
                State::CompletingRebalance => census.completing += 1,
                State::Stable => census.stable += 1,
            }
            census.members += group.session.members.len() as u64;
            census.commits += group.offsets.values().map(|p| p.len() as u64).sum::<u64>();
        }
        census
    }
}

impl Group {
    /// The records that make up what is stored of it.
    pub fn records<'a>(&'a self, name: &'a Name) -> impl Iterator<Item = Record> + 'a {
        let metadata = self.stored.iter().map(|value| Record::Group {
            group: name.clone(),
            value: Some(value.clone()),
        });
        let commits = self.offsets.iter().flat_map(move |(topic, partitions)| {
            partitions
                .iter()
                .map(move |(partition, commit)| Record::Offset {
                    group: name.clone(),
                    topic: topic.clone(),
                    partition: *partition,
                    value: Some(commit.clone()),
                })
        });
        metadata.chain(commits)
    }
}

/// About how many bytes a record takes in the log.
pub(in crate::coordinator) fn stored_size(record: &Record) -> usize {
    const RECORD: usize = 12;
    match record {
        Record::Group { group, value } => {
            let member = |m: &super::record::StoredMember| {
                let names = m.id.len() + m.client_id.len() + m.client_host.len();
                names + m.subscription.len() + m.assignment.len() + 24
            };
            let members = value
                .iter()
                .flat_map(|v| &v.members)
                .map(member)
                .sum::<usize>();
            RECORD + 2 * group.len() + 40 + members
        }
        Record::Offset {
            group,
            topic,
            value,
            ..
        } => {
            let metadata = value.as_ref().map_or(0, |c| c.metadata.len() + 42);
            RECORD + group.len() + topic.len() + 10 + metadata
        }
    }
}
