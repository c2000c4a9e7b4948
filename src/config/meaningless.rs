//! Kafka's keys that do nothing here, by the reason why. A key ending in `*` is a prefix.

struct Rule {
    reason: &'static str,
    keys: &'static [&'static str],
}

/// Why a Kafka key does nothing here; `None` for a key that Kafka does not have either.
pub fn reason(key: &str) -> Option<&'static str> {
    let fits = |pattern: &str| match pattern.strip_suffix('*') {
        Some(prefix) => key.starts_with(prefix),
        None => key == pattern,
    };
    RULES
        .iter()
        .find(|rule| rule.keys.iter().any(|p| fits(p)))
        .map(|rule| rule.reason)
}

static RULES: &[Rule] = &[
    Rule {
        reason: "nothing is encrypted, authenticated or authorized in this version; the key is \
                 not enforced",
        keys: &[
            "ssl.*",
            "sasl.*",
            "listener.name.*",
            "authorizer.*",
            "allow.everyone.if.no.acl.found",
            "super.users",
            "principal.builder.class",
            "security.*",
            "delegation.token.*",
            "password.encoder.*",
            "connections.max.reauth.ms",
            "connection.failed.authentication.delay.ms",
            "early.start.listeners",
        ],
    },
    Rule {
        reason: "there is no controller quorum and no ZooKeeper here",
        keys: &[
            "controller.quorum.*",
            "controller.quota.*",
            "controller.socket.*",
            "metadata.*",
            "zookeeper.*",
            "broker.heartbeat.interval.ms",
            "broker.session.timeout.ms",
            "broker.id.generation.enable",
            "reserved.broker.max.id",
            "initial.broker.registration.timeout.ms",
            "inter.broker.*",
            "control.plane.listener.name",
            "controlled.shutdown.*",
            "request.timeout.ms",
        ],
    },
    Rule {
        reason: "partitions have no replicas here; the journal makes them durable",
        keys: &[
            "replica.*",
            "num.replica.*",
            "replication.quota.*",
            "alter.log.dirs.*",
            "auto.leader.rebalance.enable",
            "leader.*",
            "unclean.leader.election.enable",
            "follower.replication.*",
            "follower.fetch.last.tiered.offset.enable",
            "cordoned.log.dirs",
        ],
    },
    Rule {
        reason: "there are no log segments, indexes or flushes of one partition here; topics keep \
                 and show the value",
        keys: &[
            "log.segment.*",
            "log.roll.*",
            "log.flush.*",
            "log.index.*",
            "log.preallocate",
            "log.dir.failure.timeout.ms",
            "log.initial.task.delay.ms",
            "num.recovery.threads.per.data.dir",
            "log.message.format.version",
            "log.message.downconversion.enable",
            "log.message.timestamp.difference.max.ms",
        ],
    },
    Rule {
        reason: "logs are not compacted in this version; topics keep and show the value",
        keys: &["log.cleaner.*"],
    },
    Rule {
        reason: "there is no second storage tier",
        keys: &[
            "remote.*",
            "rsm.config.*",
            "rlmm.config.*",
            "log.local.*",
            "log.remote.*",
        ],
    },
    Rule {
        reason: "threads follow the number of cores",
        keys: &[
            "num.network.threads",
            "num.io.threads",
            "background.threads",
        ],
    },
    Rule {
        reason: "requests are bounded in bytes, see budget.requests.bytes",
        keys: &["queued.max.requests", "max.request.partition.size.limit"],
    },
    Rule {
        reason: "there are no transactions in this version",
        keys: &[
            "transaction.*",
            "transactional.*",
            "add.partitions.to.txn.*",
        ],
    },
    Rule {
        reason: "only the classic group protocol is served in this version",
        keys: &[
            "group.consumer.*",
            "group.share.*",
            "group.streams.*",
            "share.*",
            "group.coordinator.rebalance.protocols",
            "errors.deadletterqueue.*",
        ],
    },
    Rule {
        reason: "the group coordinator writes and loads in its own way",
        keys: &[
            "group.coordinator.*",
            "offsets.commit.*",
            "offsets.load.buffer.size",
            "offsets.topic.compression.codec",
            "offsets.topic.segment.bytes",
        ],
    },
    Rule {
        reason: "there are no quotas in this version",
        keys: &[
            "quota.*",
            "client.quota.callback.class",
            "max.connection.creation.rate",
            "max.connections.per.ip.overrides",
        ],
    },
    Rule {
        reason: "metrics are served at /metrics on admin.port",
        keys: &[
            "metric.*",
            "metrics.*",
            "kafka.metrics.*",
            "telemetry.*",
            "auto.include.jmx.reporter",
        ],
    },
    Rule {
        reason: "there are no Java classes here to load",
        keys: &[
            "alter.config.policy.class.name",
            "create.topic.policy.class.name",
            "config.providers*",
        ],
    },
    Rule {
        reason: "an internal tuning of Apache Kafka without a counterpart here",
        keys: &[
            "fetch.purgatory.purge.interval.requests",
            "producer.purgatory.purge.interval.requests",
            "delete.records.purgatory.purge.interval.requests",
            "producer.id.expiration.check.interval.ms",
            "socket.connection.setup.timeout.*",
        ],
    },
    Rule {
        reason: "a key of Confluent's distribution",
        keys: &["confluent.*"],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::keys;

    #[test]
    fn keys_and_prefixes_are_found() {
        for key in [
            "ssl.keystore.location",
            "zookeeper.connect",
            "log.segment.bytes",
        ] {
            assert!(reason(key).is_some(), "{key}");
        }
        assert!(reason("num.partition").is_none());
    }

    #[test]
    fn no_key_with_an_effect_is_called_meaningless() {
        for key in keys::groups() {
            assert!(reason(key.name).is_none(), "{}", key.name);
        }
    }
}
