//! What limits a topic, and whether a change of its shards helps. Pure.

use super::views::{ExplainView, ShardView, TopicView};

/// Share of its time from which a journal counts as the limit.
const BUSY: f64 = 0.8;
/// Share of a limit, or of the tail, from which it counts as reached.
const REACHED: f64 = 0.9;
/// Share of a shard's load in one partition from which the partition counts as the hot one.
const HOT: f64 = 0.8;

/// What a data directory carries.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DirectoryLoad {
    /// Its path.
    pub name: String,
    /// Part of the time that its journal spent in syncs, from 0 to 1.
    pub journal_busy: f64,
    /// Mean time of one sync, in milliseconds.
    pub sync_ms: f64,
    /// Part of its tail that is in use, from 0 to 1.
    pub tail_used: f64,
    /// Client writes are taken.
    pub writable: bool,
}

/// What limits a topic now, as far as its load and its directories show.
pub fn topic(view: &TopicView, directories: &[DirectoryLoad]) -> ExplainView {
    let mut observations: Vec<String> = view.shards.iter().filter_map(carried).collect();
    if observations.is_empty() {
        observations.push("no shard carries anything worth naming".to_owned());
    }
    let used = |directory: &&DirectoryLoad| {
        let here = |s: &ShardView| {
            s.now
                .as_ref()
                .is_some_and(|n| n.directory == directory.name)
        };
        view.shards.iter().any(here)
    };
    let used: Vec<&DirectoryLoad> = directories.iter().filter(used).collect();
    observations.extend(used.iter().map(|directory| {
        format!(
            "directory {}: its journal spends {} of the time in syncs of {:.1} ms, its tail is {} \
             full{}",
            directory.name,
            percent(directory.journal_busy),
            directory.sync_ms,
            percent(directory.tail_used),
            if directory.writable {
                ""
            } else {
                ", and its disk is nearly full"
            },
        )
    }));
    let verdict = used
        .iter()
        .find_map(|directory| of_directory(directory))
        .or_else(|| view.shards.iter().find_map(of_shard))
        .unwrap_or_else(|| {
            "Nothing here is at its limit: a split would change nothing that can be seen."
                .to_owned()
        });
    ExplainView {
        topic: view.topic.clone(),
        observations,
        verdict,
    }
}

fn carried(shard: &ShardView) -> Option<String> {
    let now = shard.now.as_ref()?;
    let (load, limit) = (now.load, now.write_limit);
    if load.bytes_in < 1.0 && load.bytes_out < 1.0 {
        return None;
    }
    let limit = match limit {
        0 => String::new(),
        limit => format!(
            ", {} of its write limit",
            percent(load.bytes_in / limit as f64)
        ),
    };
    let hot = now.busiest_partition.map_or_else(String::new, |busiest| {
        format!(
            "; {} of that in partition {}",
            percent(busiest.share),
            busiest.partition
        )
    });
    Some(format!(
        "shard {}: {:.0} bytes/s in{limit}, {:.0} bytes/s out{hot}",
        shard.id, load.bytes_in, load.bytes_out
    ))
}

fn of_directory(directory: &DirectoryLoad) -> Option<String> {
    if !directory.writable {
        return Some(format!(
            "The disk of {} is nearly full, so writes are refused. No split helps: free space, \
             delete records or topics, lower their retention, or move shards to another data \
             directory.",
            directory.name
        ));
    }
    let limit = match directory {
        d if d.journal_busy >= BUSY => "journal",
        d if d.tail_used >= REACHED => "disk",
        _ => return None,
    };
    Some(format!(
        "The {limit} of {} is the limit, and all its shards share it. No split helps: a \
         further directory on another device (log.dirs) takes the topics made after it is added.",
        directory.name
    ))
}

fn of_shard(shard: &ShardView) -> Option<String> {
    let now = shard.now.as_ref()?;
    let at = |load: f64, limit: u64| limit > 0 && load >= limit as f64 * REACHED;
    if !at(now.load.bytes_in, now.write_limit) && !at(now.load.bytes_out, now.read_limit) {
        return None;
    }
    let name = shard.id;
    Some(match (shard.slots, now.busiest_partition) {
        (0 | 1, _) => format!(
            "Shard {name} is at its limit and holds one partition. No split helps: add partitions \
             (an integer multiple of what there is keeps the order of keys traceable)."
        ),
        (_, Some(busiest)) if busiest.share >= HOT => format!(
            "Shard {name} is at its limit, {} of it in partition {}. A split (--at load) frees the \
             other partitions; that one needs more partitions.",
            percent(busiest.share),
            busiest.partition
        ),
        _ => format!(
            "Shard {name} is at its limit. A split (--at load) helps: each side has a limit of \
             its own."
        ),
    })
}

/// Whether a split into these shards helps, given the loads of the partitions in slot order.
pub fn split(shares: &[f64], hottest: Option<(u32, f64)>) -> String {
    let sides: Vec<String> = shares.iter().map(|share| percent(*share)).collect();
    let sides = sides.join(" / ");
    match hottest {
        None => "No load was seen in the last minute; the cut is as good as any.".to_owned(),
        Some((partition, share)) if share >= HOT => format!(
            "The sides carry {sides}. Partition {partition} alone has {}: a split frees its \
             neighbours from it and cannot divide it, only more partitions can.",
            percent(share)
        ),
        Some(_) => format!("The load is divided: the sides carry {sides} of it."),
    }
}

/// What to say of a merge of shards that take in `bytes_in` a second together.
pub fn merge(bytes_in: f64, write_limit: u64) -> String {
    let share = bytes_in / write_limit.max(1) as f64;
    match write_limit {
        0 => format!("The merged shard takes in {bytes_in:.0} bytes/s."),
        _ if share >= REACHED => format!(
            "The merged shard would be at {} of its write limit: its writers will be held back.",
            percent(share)
        ),
        _ => format!(
            "The merged shard is at {} of its write limit.",
            percent(share)
        ),
    }
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::shards::views::{BusiestPartition, ShardNow, TrafficView};

    fn shard(slots: u32, bytes_in: f64, limit: u64, share: f64) -> ShardView {
        let busiest = BusiestPartition {
            partition: 3,
            share,
        };
        let load = TrafficView {
            bytes_in,
            ..TrafficView::default()
        };
        let now = ShardNow {
            directory: "/data".to_owned(),
            load,
            write_limit: limit,
            busiest_partition: Some(busiest),
            ..ShardNow::default()
        };
        ShardView {
            id: 7,
            open: true,
            slots,
            now: Some(now),
            ..ShardView::default()
        }
    }

    fn verdict(shard: ShardView, directory: DirectoryLoad) -> String {
        let view = TopicView {
            topic: "t".to_owned(),
            shards: vec![shard],
            ..TopicView::default()
        };
        let explained = topic(
            &view,
            &[DirectoryLoad {
                name: "/data".to_owned(),
                ..directory
            }],
        );
        assert_eq!(explained.observations.len(), 2, "{explained:?}");
        explained.verdict
    }

    fn calm() -> DirectoryLoad {
        DirectoryLoad {
            writable: true,
            ..DirectoryLoad::default()
        }
    }

    #[test]
    fn what_all_shards_share_is_named_first() {
        let at_limit = || shard(4, 1000.0, 1000, 0.5);
        let busy = DirectoryLoad {
            journal_busy: 0.95,
            ..calm()
        };
        assert!(verdict(at_limit(), busy).contains("The journal of /data is the limit"));
        let full = DirectoryLoad {
            tail_used: 0.95,
            ..calm()
        };
        assert!(verdict(at_limit(), full).contains("The disk of /data is the limit"));
        let closed = DirectoryLoad {
            writable: false,
            ..calm()
        };
        assert!(verdict(at_limit(), closed).contains("nearly full"));
        let elsewhere = DirectoryLoad {
            name: "/other".to_owned(),
            journal_busy: 1.0,
            ..calm()
        };
        let view = TopicView {
            shards: vec![at_limit()],
            ..TopicView::default()
        };
        assert!(
            topic(&view, &[elsewhere])
                .verdict
                .contains("A split (--at load) helps")
        );
    }

    #[test]
    fn a_shard_at_its_limit_is_told_what_helps() {
        assert!(verdict(shard(4, 950.0, 1000, 0.5), calm()).contains("(--at load) helps"));
        assert!(verdict(shard(4, 950.0, 1000, 0.9), calm()).contains("90 % of it in partition 3"));
        assert!(verdict(shard(1, 950.0, 1000, 1.0), calm()).contains("No split helps: add"));
        assert!(verdict(shard(4, 500.0, 1000, 0.5), calm()).contains("Nothing here"));
        assert!(verdict(shard(4, 1e9, 0, 0.5), calm()).contains("Nothing here"));
    }

    #[test]
    fn a_planned_split_is_judged_by_its_sides() {
        assert!(split(&[0.0, 0.0], None).contains("No load"));
        assert!(
            split(&[0.45, 0.55], Some((1, 0.3))).contains("divided: the sides carry 45 % / 55 %")
        );
        assert!(split(&[0.9, 0.1], Some((1, 0.9))).contains("cannot divide it"));
        assert!(merge(10.0, 0).contains("10 bytes/s"));
        assert!(merge(10.0, 100).contains("at 10 % of"));
        assert!(merge(95.0, 100).contains("held back"));
    }
}
