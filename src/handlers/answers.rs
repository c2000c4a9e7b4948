//! Pieces that the answers of several APIs share.

use kafka_protocol::messages::BrokerId;
use kafka_protocol::protocol::StrBytes;

use super::Connection;
pub use super::text::text;
use crate::broker::Broker;
use crate::catalog::configs::{ConfigDef, ConfigType, append};
use crate::catalog::{CatalogError, Change, Image, Topic};
use crate::protocol::error::ErrorCode;
use crate::repeats::LINES;
use crate::types::PartitionKey;

/// What an "authorized operations" field holds when nobody asked for it.
pub const OPERATIONS_NOT_ASKED: i32 = i32::MIN;
/// Every operation that exists on a topic, as bits: read, write, create, delete, alter, describe,
/// describe-configs, alter-configs.
pub const TOPIC_OPERATIONS: i32 = 0b1101_1111_1000;
/// Every operation that exists on the cluster, as bits: create, alter, describe, cluster-action,
/// describe-configs, alter-configs, idempotent-write, and the three of replication.
pub const CLUSTER_OPERATIONS: i32 = 0b1_1111_1010_0000;

/// Whether a topic with so many partitions has this one.
pub fn within(index: i32, partitions: u32) -> bool {
    u32::try_from(index).is_ok_and(|index| index < partitions)
}

/// Why (a part of) a request was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The error code.
    pub code: ErrorCode,
    /// What happened and what to do, for APIs that carry a message.
    pub message: String,
}

impl Refusal {
    /// A refusal with its message.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// The request contradicts itself.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidRequest, message)
    }

    /// The message for the wire.
    pub fn text(&self) -> Option<StrBytes> {
        Some(text(&self.message))
    }
}

/// Refuses what takes space for good while the disk is nearly full. What gives space back, or says
/// what may go (deletions, configs), does not ask.
pub fn require_room(broker: &Broker) -> Result<(), Refusal> {
    match broker.partitions.is_writable() {
        true => Ok(()),
        false => Err(Refusal::new(
            ErrorCode::KafkaStorageError,
            "the disk is nearly full; new topics and partitions are refused until there is room: \
             delete records or topics, or lower their retention",
        )),
    }
}

impl From<CatalogError> for Refusal {
    fn from(error: CatalogError) -> Self {
        Self::new(error.response_error(), error.to_string())
    }
}

/// The change, if there is room in memory for what it adds to topics and configs.
pub fn if_room(cx: &Connection, image: &Image, change: Change) -> Result<Change, Refusal> {
    let account = &cx.broker.budgets.topics;
    let added = u64::try_from(image.growth(&change)).unwrap_or(0);
    if added == 0 || image.bytes().saturating_add(added) <= account.limit() {
        return Ok(change);
    }
    account.deny(1);
    let text = format!(
        "topics and configs take as much memory as budget.topics.bytes allows ({} of {}); delete \
         topics, or raise the budget",
        image.bytes(),
        account.limit()
    );
    if LINES.allow("topics were refused more memory", None) {
        tracing::warn!(peer = %cx.peer, "a topic, partitions or configs were refused: {text}");
    }
    Err(Refusal::new(ErrorCode::PolicyViolation, text))
}

/// The index of a partition that a client named, if it can be one.
pub fn index(partition: i32) -> Option<u32> {
    u32::try_from(partition).ok()
}

/// A config's value as it is kept: numbers and texts without blanks around them, booleans in lower
/// case, lists without blanks and repetitions.
pub fn canonical(def: Option<&ConfigDef>, value: &str) -> String {
    let trimmed = value.trim();
    match def.map(|def| def.kind) {
        Some(ConfigType::List) => append("", trimmed),
        Some(ConfigType::Boolean) => trimmed.to_ascii_lowercase(),
        Some(ConfigType::Password) => value.to_owned(),
        _ => trimmed.to_owned(),
    }
}

/// A partition's leader epoch.
pub fn leader_epoch(cx: &Connection, topic: &Topic, index: u32) -> i32 {
    let key = PartitionKey {
        topic: topic.no,
        index,
    };
    cx.broker
        .partitions
        .get(key)
        .map_or(0, |partition| partition.bounds().leader_epoch)
}

/// The replicas of a partition as clients see them: those assigned by hand, else this node as many
/// times as replicas were asked for.
pub fn replicas(topic: &Topic, index: u32, node: i32) -> Vec<BrokerId> {
    match topic.manual_replicas(index) {
        Some(assigned) => assigned.iter().copied().map(BrokerId).collect(),
        None => vec![BrokerId(node); usize::try_from(topic.replication_factor.max(1)).unwrap_or(1)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::configs::{Scope, table};

    #[test]
    fn values_are_kept_in_one_form() {
        let topic = |name, value| canonical(table(Scope::Topic).get(name), value);
        assert_eq!(topic("retention.ms", " 5000 "), "5000");
        assert_eq!(topic("preallocate", "TRUE"), "true");
        assert_eq!(
            topic("cleanup.policy", " delete , compact,delete"),
            "delete,compact"
        );
        assert_eq!(topic("cleanup.policy", ""), "");
        assert_eq!(topic("no.such.config", " x "), "x");
    }
}
