//! The APIs this server answers: one row each. ApiVersions, the guard, the frame caps and
//! docs/compatibility.md all derive from these rows.
//!
//! A version is offered when both the `kafka_protocol` decoder and Apache Kafka 4.x know it. The
//! crate's own `valid_versions()` is not used: it lists versions that its decoders refuse.

use kafka_protocol::messages::ApiKey;

/// Largest request frame of an API that carries lists, but no payload.
const SMALL: usize = 1 << 20;
/// Largest request frame of an API whose requests grow with the number of partitions or members.
const MEDIUM: usize = 4 << 20;
/// Largest Produce frame: Kafka's `socket.request.max.bytes`.
const PAYLOAD: usize = 100 << 20;

/// Largest frame of any API before a connection has logged in.
pub const MAX_FRAME_BEFORE_LOGIN: usize = 64 << 10;
/// Largest frame of any API: what a frame reader may accept before it knows the API.
pub const MAX_FRAME: usize = PAYLOAD;

/// One API.
#[derive(Debug)]
pub struct ApiRow {
    /// Its number on the wire.
    pub key: i16,
    /// The same as the crate's type.
    pub api: ApiKey,
    /// Kafka's name for it.
    pub name: &'static str,
    /// First version offered to clients.
    pub min: i16,
    /// Last version offered to clients.
    pub max: i16,
    /// Last version that Apache Kafka 4.4 offers; what lies beyond `max` is not in our decoders.
    pub kafka_max: i16,
    /// First version whose body is read. It differs from `min` for Produce only.
    pub decode_min: i16,
    /// Largest frame accepted, without the 4 bytes of its length.
    pub max_frame_bytes: usize,
    /// Whether a connection may use it before it has logged in.
    pub before_login: bool,
    /// What users should know beyond the versions.
    pub note: &'static str,
}

impl ApiRow {
    /// Whether clients are told that `version` works.
    pub fn offers(&self, version: i16) -> bool {
        (self.min..=self.max).contains(&version)
    }

    /// Whether requests of `version` can be decoded.
    pub fn decodes(&self, version: i16) -> bool {
        (self.decode_min..=self.max).contains(&version)
    }

    const fn kafka(mut self, last: i16) -> Self {
        self.kafka_max = last;
        self
    }

    /// Whether a version outside the range gets an answer instead of a closed connection.
    pub fn answers_any_version(&self) -> bool {
        self.api == ApiKey::ApiVersions
    }
}

const fn row(api: ApiKey, name: &'static str, versions: (i16, i16), cap: usize) -> ApiRow {
    ApiRow {
        key: api as i16,
        api,
        name,
        min: versions.0,
        max: versions.1,
        kafka_max: versions.1,
        decode_min: versions.0,
        max_frame_bytes: cap,
        before_login: false,
        note: "",
    }
}

/// All rows, by key.
pub static ROWS: &[ApiRow] = &[
    ApiRow {
        decode_min: 3,
        note: "0-2 are offered because older clients switch features off without them; using one \
               ends the connection, as in Apache Kafka 4",
        ..row(ApiKey::Produce, "Produce", (0, 13), PAYLOAD)
    },
    row(ApiKey::Fetch, "Fetch", (4, 18), MEDIUM),
    row(ApiKey::ListOffsets, "ListOffsets", (1, 10), MEDIUM).kafka(11),
    row(ApiKey::Metadata, "Metadata", (0, 13), SMALL),
    row(ApiKey::OffsetCommit, "OffsetCommit", (2, 9), MEDIUM).kafka(10),
    row(ApiKey::OffsetFetch, "OffsetFetch", (1, 9), MEDIUM).kafka(10),
    row(ApiKey::FindCoordinator, "FindCoordinator", (0, 6), SMALL),
    row(ApiKey::JoinGroup, "JoinGroup", (0, 9), SMALL),
    row(ApiKey::Heartbeat, "Heartbeat", (0, 4), SMALL),
    row(ApiKey::LeaveGroup, "LeaveGroup", (0, 5), SMALL),
    row(ApiKey::SyncGroup, "SyncGroup", (0, 5), MEDIUM),
    row(ApiKey::DescribeGroups, "DescribeGroups", (0, 6), SMALL),
    row(ApiKey::ListGroups, "ListGroups", (0, 5), SMALL),
    ApiRow {
        before_login: true,
        note: "a version above the range is answered in version 0 with error 35",
        ..row(ApiKey::ApiVersions, "ApiVersions", (0, 4), SMALL).kafka(5)
    },
    row(ApiKey::CreateTopics, "CreateTopics", (2, 7), MEDIUM),
    row(ApiKey::DeleteTopics, "DeleteTopics", (1, 6), SMALL),
    row(ApiKey::DeleteRecords, "DeleteRecords", (0, 2), SMALL),
    ApiRow {
        note: "idempotent producers; a transactional id is refused",
        ..row(ApiKey::InitProducerId, "InitProducerId", (0, 5), SMALL)
    },
    row(
        ApiKey::OffsetForLeaderEpoch,
        "OffsetForLeaderEpoch",
        (2, 4),
        MEDIUM,
    ),
    row(ApiKey::DescribeConfigs, "DescribeConfigs", (1, 4), SMALL),
    row(ApiKey::AlterConfigs, "AlterConfigs", (0, 2), SMALL),
    row(ApiKey::DescribeLogDirs, "DescribeLogDirs", (1, 4), SMALL).kafka(5),
    row(ApiKey::CreatePartitions, "CreatePartitions", (0, 3), SMALL),
    row(ApiKey::DeleteGroups, "DeleteGroups", (0, 2), SMALL).kafka(3),
    row(
        ApiKey::IncrementalAlterConfigs,
        "IncrementalAlterConfigs",
        (0, 1),
        SMALL,
    ),
    row(ApiKey::OffsetDelete, "OffsetDelete", (0, 0), MEDIUM),
    row(ApiKey::DescribeCluster, "DescribeCluster", (0, 2), SMALL),
    row(
        ApiKey::DescribeTopicPartitions,
        "DescribeTopicPartitions",
        (0, 0),
        SMALL,
    ),
];

/// The row of an API, if this server answers it.
pub fn lookup(key: i16) -> Option<&'static ApiRow> {
    ROWS.binary_search_by_key(&key, |row| row.key)
        .ok()
        .and_then(|at| ROWS.get(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_and_found() {
        assert!(ROWS.windows(2).all(|pair| pair[0].key < pair[1].key));
        for row in ROWS {
            assert_eq!(lookup(row.key).map(|r| r.name), Some(row.name));
            assert_eq!(format!("{:?}", row.api), row.name);
            assert!(row.max_frame_bytes <= MAX_FRAME);
        }
        assert!(lookup(-1).is_none() && lookup(4).is_none() && lookup(i16::MAX).is_none());
    }
}
