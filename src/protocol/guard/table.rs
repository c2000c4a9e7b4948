//! Request layouts, one per API. Printed by generate.py: change that, not this.

use super::shape::Kind::{Blob, Fixed, Str, Struct};
use super::shape::{LAST, Shape, field};

/// All layouts, by key.
#[rustfmt::skip]
pub(super) static SHAPES: &[Shape] = &[
    // Produce
    Shape { key: 0, flexible: 9, fields: &[
        field("TransactionalId", Str, 3, LAST).nullable(3, LAST),
        field("Acks", Fixed(2), 0, LAST),
        field("TimeoutMs", Fixed(4), 0, LAST),
        field("TopicData", Struct(&[
            field("Name", Str, 0, 12),
            field("TopicId", Fixed(16), 13, LAST),
            field("PartitionData", Struct(&[
                field("Index", Fixed(4), 0, LAST),
                field("Records", Blob, 0, LAST).nullable(0, LAST),
            ]), 0, LAST).array(),
        ]), 0, LAST).array(),
    ] },
    // Fetch
    Shape { key: 1, flexible: 12, fields: &[
        field("ClusterId", Str, 12, LAST).nullable(12, LAST).tagged(0, 12, LAST),
        field("ReplicaId", Fixed(4), 0, 14),
        field("ReplicaState", Struct(&[
            field("ReplicaId", Fixed(4), 15, LAST),
            field("ReplicaEpoch", Fixed(8), 15, LAST),
        ]), 15, LAST).tagged(1, 15, LAST),
        field("MaxWaitMs", Fixed(4), 0, LAST),
        field("MinBytes", Fixed(4), 0, LAST),
        field("MaxBytes", Fixed(4), 3, LAST),
        field("IsolationLevel", Fixed(1), 4, LAST),
        field("SessionId", Fixed(4), 7, LAST),
        field("SessionEpoch", Fixed(4), 7, LAST),
        field("Topics", Struct(&[
            field("Topic", Str, 0, 12),
            field("TopicId", Fixed(16), 13, LAST),
            field("Partitions", Struct(&[
                field("Partition", Fixed(4), 0, LAST),
                field("CurrentLeaderEpoch", Fixed(4), 9, LAST),
                field("FetchOffset", Fixed(8), 0, LAST),
                field("LastFetchedEpoch", Fixed(4), 12, LAST),
                field("LogStartOffset", Fixed(8), 5, LAST),
                field("PartitionMaxBytes", Fixed(4), 0, LAST),
                field("ReplicaDirectoryId", Fixed(16), 17, LAST).tagged(0, 17, LAST),
                field("HighWatermark", Fixed(8), 18, LAST).tagged(1, 18, LAST),
            ]), 0, LAST).array(),
        ]), 0, LAST).array(),
        field("ForgottenTopicsData", Struct(&[
            field("Topic", Str, 7, 12),
            field("TopicId", Fixed(16), 13, LAST),
            field("Partitions", Fixed(4), 7, LAST).array(),
        ]), 7, LAST).array(),
        field("RackId", Str, 11, LAST),
    ] },
    // ListOffsets
    Shape { key: 2, flexible: 6, fields: &[
        field("ReplicaId", Fixed(4), 0, LAST),
        field("IsolationLevel", Fixed(1), 2, LAST),
        field("Topics", Struct(&[
            field("Name", Str, 0, LAST),
            field("Partitions", Struct(&[
                field("PartitionIndex", Fixed(4), 0, LAST),
                field("CurrentLeaderEpoch", Fixed(4), 4, LAST),
                field("Timestamp", Fixed(8), 0, LAST),
            ]), 0, LAST).array(),
        ]), 0, LAST).array(),
        field("TimeoutMs", Fixed(4), 10, LAST),
    ] },
    // Metadata
    Shape { key: 3, flexible: 9, fields: &[
        field("Topics", Struct(&[
            field("TopicId", Fixed(16), 10, LAST),
            field("Name", Str, 0, LAST).nullable(10, LAST),
        ]), 0, LAST).array().nullable(1, LAST),
        field("AllowAutoTopicCreation", Fixed(1), 4, LAST),
        field("IncludeClusterAuthorizedOperations", Fixed(1), 8, 10),
        field("IncludeTopicAuthorizedOperations", Fixed(1), 8, LAST),
    ] },
    // OffsetCommit
    Shape { key: 8, flexible: 8, fields: &[
        field("GroupId", Str, 0, LAST),
        field("GenerationIdOrMemberEpoch", Fixed(4), 1, LAST),
        field("MemberId", Str, 1, LAST),
        field("GroupInstanceId", Str, 7, LAST).nullable(7, LAST),
        field("RetentionTimeMs", Fixed(8), 2, 4),
        field("Topics", Struct(&[
            field("Name", Str, 0, 9),
            field("TopicId", Fixed(16), 10, LAST),
            field("Partitions", Struct(&[
                field("PartitionIndex", Fixed(4), 0, LAST),
                field("CommittedOffset", Fixed(8), 0, LAST),
                field("CommittedLeaderEpoch", Fixed(4), 6, LAST),
                field("CommittedMetadata", Str, 0, LAST).nullable(0, LAST),
            ]), 0, LAST).array(),
        ]), 0, LAST).array(),
    ] },
    // OffsetFetch
    Shape { key: 9, flexible: 6, fields: &[
        field("GroupId", Str, 0, 7),
        field("Topics", Struct(&[
            field("Name", Str, 0, 7),
            field("PartitionIndexes", Fixed(4), 0, 7).array(),
        ]), 0, 7).array().nullable(2, 7),
        field("Groups", Struct(&[
            field("GroupId", Str, 8, LAST),
            field("MemberId", Str, 9, LAST).nullable(9, LAST),
            field("MemberEpoch", Fixed(4), 9, LAST),
            field("Topics", Struct(&[
                field("Name", Str, 8, 9),
                field("TopicId", Fixed(16), 10, LAST),
                field("PartitionIndexes", Fixed(4), 8, LAST).array(),
            ]), 8, LAST).array().nullable(8, LAST),
        ]), 8, LAST).array(),
        field("RequireStable", Fixed(1), 7, LAST),
    ] },
    // FindCoordinator
    Shape { key: 10, flexible: 3, fields: &[
        field("Key", Str, 0, 3),
        field("KeyType", Fixed(1), 1, LAST),
        field("CoordinatorKeys", Str, 4, LAST).array(),
    ] },
    // JoinGroup
    Shape { key: 11, flexible: 6, fields: &[
        field("GroupId", Str, 0, LAST),
        field("SessionTimeoutMs", Fixed(4), 0, LAST),
        field("RebalanceTimeoutMs", Fixed(4), 1, LAST),
        field("MemberId", Str, 0, LAST),
        field("GroupInstanceId", Str, 5, LAST).nullable(5, LAST),
        field("ProtocolType", Str, 0, LAST),
        field("Protocols", Struct(&[
            field("Name", Str, 0, LAST),
            field("Metadata", Blob, 0, LAST),
        ]), 0, LAST).array(),
        field("Reason", Str, 8, LAST).nullable(8, LAST),
    ] },
    // Heartbeat
    Shape { key: 12, flexible: 4, fields: &[
        field("GroupId", Str, 0, LAST),
        field("GenerationId", Fixed(4), 0, LAST),
        field("MemberId", Str, 0, LAST),
        field("GroupInstanceId", Str, 3, LAST).nullable(3, LAST),
    ] },
    // LeaveGroup
    Shape { key: 13, flexible: 4, fields: &[
        field("GroupId", Str, 0, LAST),
        field("MemberId", Str, 0, 2),
        field("Members", Struct(&[
            field("MemberId", Str, 3, LAST),
            field("GroupInstanceId", Str, 3, LAST).nullable(3, LAST),
            field("Reason", Str, 5, LAST).nullable(5, LAST),
        ]), 3, LAST).array(),
    ] },
    // SyncGroup
    Shape { key: 14, flexible: 4, fields: &[
        field("GroupId", Str, 0, LAST),
        field("GenerationId", Fixed(4), 0, LAST),
        field("MemberId", Str, 0, LAST),
        field("GroupInstanceId", Str, 3, LAST).nullable(3, LAST),
        field("ProtocolType", Str, 5, LAST).nullable(5, LAST),
        field("ProtocolName", Str, 5, LAST).nullable(5, LAST),
        field("Assignments", Struct(&[
            field("MemberId", Str, 0, LAST),
            field("Assignment", Blob, 0, LAST),
        ]), 0, LAST).array(),
    ] },
    // DescribeGroups
    Shape { key: 15, flexible: 5, fields: &[
        field("Groups", Str, 0, LAST).array(),
        field("IncludeAuthorizedOperations", Fixed(1), 3, LAST),
    ] },
    // ListGroups
    Shape { key: 16, flexible: 3, fields: &[
        field("StatesFilter", Str, 4, LAST).array(),
        field("TypesFilter", Str, 5, LAST).array(),
    ] },
    // ApiVersions
    Shape { key: 18, flexible: 3, fields: &[
        field("ClientSoftwareName", Str, 3, LAST),
        field("ClientSoftwareVersion", Str, 3, LAST),
    ] },
    // CreateTopics
    Shape { key: 19, flexible: 5, fields: &[
        field("Topics", Struct(&[
            field("Name", Str, 0, LAST),
            field("NumPartitions", Fixed(4), 0, LAST),
            field("ReplicationFactor", Fixed(2), 0, LAST),
            field("Assignments", Struct(&[
                field("PartitionIndex", Fixed(4), 0, LAST),
                field("BrokerIds", Fixed(4), 0, LAST).array(),
            ]), 0, LAST).array(),
            field("Configs", Struct(&[
                field("Name", Str, 0, LAST),
                field("Value", Str, 0, LAST).nullable(0, LAST),
            ]), 0, LAST).array(),
        ]), 0, LAST).array(),
        field("timeoutMs", Fixed(4), 0, LAST),
        field("validateOnly", Fixed(1), 1, LAST),
    ] },
    // DeleteTopics
    Shape { key: 20, flexible: 4, fields: &[
        field("Topics", Struct(&[
            field("Name", Str, 6, LAST).nullable(6, LAST),
            field("TopicId", Fixed(16), 6, LAST),
        ]), 6, LAST).array(),
        field("TopicNames", Str, 0, 5).array(),
        field("TimeoutMs", Fixed(4), 0, LAST),
    ] },
    // DeleteRecords
    Shape { key: 21, flexible: 2, fields: &[
        field("Topics", Struct(&[
            field("Name", Str, 0, LAST),
            field("Partitions", Struct(&[
                field("PartitionIndex", Fixed(4), 0, LAST),
                field("Offset", Fixed(8), 0, LAST),
            ]), 0, LAST).array(),
        ]), 0, LAST).array(),
        field("TimeoutMs", Fixed(4), 0, LAST),
    ] },
    // InitProducerId
    Shape { key: 22, flexible: 2, fields: &[
        field("TransactionalId", Str, 0, LAST).nullable(0, LAST),
        field("TransactionTimeoutMs", Fixed(4), 0, LAST),
        field("ProducerId", Fixed(8), 3, LAST),
        field("ProducerEpoch", Fixed(2), 3, LAST),
        field("Enable2Pc", Fixed(1), 6, LAST),
        field("KeepPreparedTxn", Fixed(1), 6, LAST),
    ] },
    // OffsetForLeaderEpoch
    Shape { key: 23, flexible: 4, fields: &[
        field("ReplicaId", Fixed(4), 3, LAST),
        field("Topics", Struct(&[
            field("Topic", Str, 0, LAST),
            field("Partitions", Struct(&[
                field("Partition", Fixed(4), 0, LAST),
                field("CurrentLeaderEpoch", Fixed(4), 2, LAST),
                field("LeaderEpoch", Fixed(4), 0, LAST),
            ]), 0, LAST).array(),
        ]), 0, LAST).array(),
    ] },
    // DescribeConfigs
    Shape { key: 32, flexible: 4, fields: &[
        field("Resources", Struct(&[
            field("ResourceType", Fixed(1), 0, LAST),
            field("ResourceName", Str, 0, LAST),
            field("ConfigurationKeys", Str, 0, LAST).array().nullable(0, LAST),
        ]), 0, LAST).array(),
        field("IncludeSynonyms", Fixed(1), 1, LAST),
        field("IncludeDocumentation", Fixed(1), 3, LAST),
    ] },
    // AlterConfigs
    Shape { key: 33, flexible: 2, fields: &[
        field("Resources", Struct(&[
            field("ResourceType", Fixed(1), 0, LAST),
            field("ResourceName", Str, 0, LAST),
            field("Configs", Struct(&[
                field("Name", Str, 0, LAST),
                field("Value", Str, 0, LAST).nullable(0, LAST),
            ]), 0, LAST).array(),
        ]), 0, LAST).array(),
        field("ValidateOnly", Fixed(1), 0, LAST),
    ] },
    // DescribeLogDirs
    Shape { key: 35, flexible: 2, fields: &[
        field("Topics", Struct(&[
            field("Topic", Str, 0, LAST),
            field("Partitions", Fixed(4), 0, LAST).array(),
        ]), 0, LAST).array().nullable(0, LAST),
    ] },
    // CreatePartitions
    Shape { key: 37, flexible: 2, fields: &[
        field("Topics", Struct(&[
            field("Name", Str, 0, LAST),
            field("Count", Fixed(4), 0, LAST),
            field("Assignments", Struct(&[
                field("BrokerIds", Fixed(4), 0, LAST).array(),
            ]), 0, LAST).array().nullable(0, LAST),
        ]), 0, LAST).array(),
        field("TimeoutMs", Fixed(4), 0, LAST),
        field("ValidateOnly", Fixed(1), 0, LAST),
    ] },
    // DeleteGroups
    Shape { key: 42, flexible: 2, fields: &[
        field("GroupsNames", Str, 0, LAST).array(),
    ] },
    // IncrementalAlterConfigs
    Shape { key: 44, flexible: 1, fields: &[
        field("Resources", Struct(&[
            field("ResourceType", Fixed(1), 0, LAST),
            field("ResourceName", Str, 0, LAST),
            field("Configs", Struct(&[
                field("Name", Str, 0, LAST),
                field("ConfigOperation", Fixed(1), 0, LAST),
                field("Value", Str, 0, LAST).nullable(0, LAST),
            ]), 0, LAST).array(),
        ]), 0, LAST).array(),
        field("ValidateOnly", Fixed(1), 0, LAST),
    ] },
    // OffsetDelete
    Shape { key: 47, flexible: 1, fields: &[
        field("GroupId", Str, 0, LAST),
        field("Topics", Struct(&[
            field("Name", Str, 0, LAST),
            field("Partitions", Struct(&[
                field("PartitionIndex", Fixed(4), 0, LAST),
            ]), 0, LAST).array(),
        ]), 0, LAST).array(),
    ] },
    // DescribeCluster
    Shape { key: 60, flexible: 0, fields: &[
        field("IncludeClusterAuthorizedOperations", Fixed(1), 0, LAST),
        field("EndpointType", Fixed(1), 1, LAST),
        field("IncludeFencedBrokers", Fixed(1), 2, LAST),
    ] },
    // DescribeTopicPartitions
    Shape { key: 75, flexible: 0, fields: &[
        field("Topics", Struct(&[
            field("Name", Str, 0, LAST),
        ]), 0, LAST).array(),
        field("ResponsePartitionLimit", Fixed(4), 0, LAST),
        field("Cursor", Struct(&[
            field("TopicName", Str, 0, LAST),
            field("PartitionIndex", Fixed(4), 0, LAST),
        ]), 0, LAST).nullable(0, LAST),
    ] },
];
