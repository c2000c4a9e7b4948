//! About what groups take in memory, so that all of them together can be bounded.

use super::Machine;
use super::command::{Change, Command, Decision, Name, Token};
use super::record::{Commit, GroupMetadata};
use super::session::{Member, Session};
use super::{Group, answer};
use kafka_protocol::error::ResponseError;

/// A group of which nothing is known but its name.
const GROUP: u64 = 640;
/// A topic in a group's commits, with the map of its partitions.
const TOPIC: u64 = 768;
/// A commit in that map.
const COMMIT: u64 = 128;
/// A member, stored and in its session.
const MEMBER: u64 = 640;
/// A name or some bytes in a place of their own.
const PIECE: u64 = 64;

/// By how much groups may grow now, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// For what is new: a group, a member, the first commit of a partition.
    pub new: u64,
    /// For what is there and becomes larger. More than the other, so that those who are at work
    /// can go on when no more can come.
    pub more: u64,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            new: u64::MAX,
            more: u64::MAX,
        }
    }
}

fn piece(length: usize) -> u64 {
    PIECE + length as u64
}

/// A group by its name alone.
pub(super) fn group(name: &str) -> u64 {
    GROUP + 2 * name.len() as u64
}

/// A topic without commits.
pub(super) fn topic(name: &str) -> u64 {
    TOPIC + name.len() as u64
}

/// A commit.
pub(super) fn commit(commit: &Commit) -> u64 {
    match commit.metadata.len() {
        0 => COMMIT,
        length => COMMIT + piece(length),
    }
}

fn member(m: &Member) -> u64 {
    let names = 2 * m.id.len() + m.client_id.len() + m.client_host.len();
    let instance = m.instance_id.as_ref().map_or(0, |id| piece(2 * id.len()));
    let protocols = m
        .protocols
        .iter()
        .map(|(name, metadata)| piece(name.len() + metadata.len()));
    MEMBER + names as u64 + instance + protocols.sum::<u64>() + piece(m.assignment.len())
}

/// A session.
pub(super) fn session(s: &Session) -> u64 {
    let members: u64 = s.members.values().map(|m| member(m)).sum();
    let pending: u64 = s.pending_joins.keys().map(|id| piece(id.len())).sum();
    members + pending
}

/// What is stored of the members beyond what their session holds: a group that was read back
/// shares nothing between the two, one at work all that is long.
fn stored(metadata: &GroupMetadata) -> u64 {
    PIECE * metadata.members.len() as u64
}

impl Group {
    /// About what it takes in memory.
    pub fn bytes(&self, name: &str) -> u64 {
        group(name) + self.offset_bytes + self.member_bytes
    }

    /// Counts members anew.
    pub(super) fn weigh_members(&mut self) {
        self.member_bytes = session(&self.session) + self.stored.as_deref().map_or(0, stored);
    }
}

impl Machine {
    /// About what all groups take in memory.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes a change of a group's weight into the sum.
    pub(super) fn recount(&mut self, name: &Name) {
        if let Some(group) = self.groups.get_mut(name) {
            let now = group.bytes(name);
            self.bytes = self.bytes + now - group.counted;
            group.counted = now;
        }
    }

    /// The decision, or a refusal if the group's members would take more than there is room for.
    pub(super) fn if_room(&self, command: &Command, token: Token, decision: Decision) -> Decision {
        let Change::Session(after) = &decision.change else {
            return decision;
        };
        let known = self.groups.get(&decision.group);
        let before = known.map_or(0, |g| session(&g.session));
        let mut growth = session(after).saturating_sub(before);
        let is_member = |id: &Name| known.is_some_and(|g| g.session.members.contains_key(id));
        let room = match command {
            Command::Join { request, .. } if !is_member(&request.member_id) => {
                if known.is_none() {
                    growth += group(&decision.group);
                }
                self.room.new
            }
            _ => self.room.more,
        };
        if growth == 0 || growth <= room {
            return decision;
        }
        Decision {
            turned_away: 1,
            ..answer(command, token, ResponseError::GroupMaxSizeReached)
        }
    }
}

/// What a group takes, counted from what is in it.
#[cfg(test)]
pub(super) fn weighed(name: &str, g: &Group) -> u64 {
    let of_topic = |(name, partitions): (&Name, &std::collections::BTreeMap<i32, Commit>)| {
        topic(name) + partitions.values().map(commit).sum::<u64>()
    };
    let offsets: u64 = g.offsets.iter().map(of_topic).sum();
    group(name) + offsets + session(&g.session) + g.stored.as_deref().map_or(0, stored)
}
