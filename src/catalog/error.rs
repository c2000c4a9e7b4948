//! Why a change of the catalog was refused.

use kafka_protocol::error::ResponseError;
use thiserror::Error;

/// A refusal: its kind is the error code that clients get, its text the message beside it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CatalogError {
    /// A topic of that name is there.
    #[error("{0}")]
    TopicExists(String),
    /// No topic of that name or id.
    #[error("{0}")]
    UnknownTopic(String),
    /// No topic of that id.
    #[error("{0}")]
    UnknownTopicId(String),
    /// The name breaks a rule or would collide in metric names.
    #[error("{0}")]
    InvalidTopic(String),
    /// The partition count can't be.
    #[error("{0}")]
    InvalidPartitions(String),
    /// The replication factor can't be.
    #[error("{0}")]
    InvalidReplicationFactor(String),
    /// The manual assignment can't be.
    #[error("{0}")]
    InvalidReplicaAssignment(String),
    /// A config's name or value can't be.
    #[error("{0}")]
    InvalidConfig(String),
    /// The request contradicts itself.
    #[error("{0}")]
    InvalidRequest(String),
    /// More than a request may ask for.
    #[error("{0}")]
    PolicyViolation(String),
}

impl CatalogError {
    /// The error code for clients.
    pub fn response_error(&self) -> ResponseError {
        match self {
            Self::TopicExists(_) => ResponseError::TopicAlreadyExists,
            Self::UnknownTopic(_) => ResponseError::UnknownTopicOrPartition,
            Self::UnknownTopicId(_) => ResponseError::UnknownTopicId,
            Self::InvalidTopic(_) => ResponseError::InvalidTopicException,
            Self::InvalidPartitions(_) => ResponseError::InvalidPartitions,
            Self::InvalidReplicationFactor(_) => ResponseError::InvalidReplicationFactor,
            Self::InvalidReplicaAssignment(_) => ResponseError::InvalidReplicaAssignment,
            Self::InvalidConfig(_) => ResponseError::InvalidConfig,
            Self::InvalidRequest(_) => ResponseError::InvalidRequest,
            Self::PolicyViolation(_) => ResponseError::PolicyViolation,
        }
    }
}
