//! Answers about shards as text. Pure.

use std::fmt::Write as _;

use super::lineage::{aligned, ids, partitions, short};
use crate::admin::shards::views::{ChangeView, ExplainView, LocateView, ShardView, TopicView};

/// The shards of a topic as a table.
pub fn topic(view: &TopicView) -> String {
    let mut out = format!(
        "topic {}, {} partitions, layout epoch {}{}\n\n",
        view.topic,
        view.partitions,
        view.epoch,
        if view.lineage_exact {
            ""
        } else {
            ", lineage broken by a growth that was no multiple"
        },
    );
    out.push_str(&table(&view.shards));
    out
}

/// The shards of all topics.
pub fn topics(views: &[TopicView]) -> String {
    let texts: Vec<String> = views.iter().map(topic).collect();
    match texts.is_empty() {
        true => "there are no topics\n".to_owned(),
        false => texts.join("\n"),
    }
}

fn table(shards: &[ShardView]) -> String {
    let names = [
        "shard",
        "hash range",
        "slots",
        "partitions",
        "in/s",
        "records/s",
        "out/s",
        "busiest s",
        "log",
        "directory",
    ];
    let mut rows = vec![names.map(str::to_owned).to_vec()];
    rows.extend(shards.iter().map(row));
    let mut out = aligned(&rows);
    for shard in shards {
        let elsewhere = shard.now.as_ref().map_or(0, |now| now.bytes_elsewhere);
        if elsewhere > 0 && shard.id != 0 {
            let _ = writeln!(
                out,
                "shard {}: {} of its log lie in other data directories and are copied in the \
                 background",
                shard.id,
                bytes(elsewhere as f64)
            );
        }
    }
    out
}

fn row(shard: &ShardView) -> Vec<String> {
    let last_slot = shard.first_slot + shard.slots.saturating_sub(1);
    let mut row = vec![
        match shard.id {
            0 => "new".to_owned(),
            id => id.to_string(),
        },
        format!("[{}…,{}…)", short(&shard.begin), short(&shard.end)),
        format!("{}-{last_slot}", shard.first_slot),
        partitions(&shard.partitions),
    ];
    if let Some(now) = &shard.now {
        row.extend([
            bytes(now.load.bytes_in),
            format!("{:.0}", now.load.records_in),
            bytes(now.load.bytes_out),
            bytes(now.busiest_second.bytes_in),
            bytes(now.log_bytes as f64),
            now.directory.clone(),
        ]);
    }
    row
}

/// What a change did, or would do.
pub fn change(view: &ChangeView) -> String {
    let mut out = String::new();
    let state = match (view.dry_run, view.repeated) {
        (true, false) => "would be (nothing was changed)",
        (_, true) => "were put in their place before; nothing was changed now",
        (false, false) => "are in their place now",
    };
    let old: Vec<u64> = view.before.iter().map(|s| s.id).collect();
    let _ = writeln!(
        out,
        "topic {}: shard {} and what comes of it\n",
        view.topic,
        ids(&old)
    );
    out.push_str(&table(&view.before));
    let _ = writeln!(out, "\nthese {state}, layout epoch {}:\n", view.epoch);
    out.push_str(&table(&view.after));
    let _ = writeln!(out, "\n{}", view.verdict);
    out
}

/// Where a key goes.
pub fn places(view: &LocateView) -> String {
    let names = ["partition", "shard", "hash range", "partitioner", "clients"];
    let mut rows = vec![names.map(str::to_owned).to_vec()];
    rows.extend(view.places.iter().map(|place| {
        vec![
            place.partition.to_string(),
            place.shard.to_string(),
            format!("[{}…,{}…)", short(&place.begin), short(&place.end)),
            place.partitioner.clone(),
            place.clients.clone(),
        ]
    }));
    aligned(&rows)
}

/// What limits a topic.
pub fn explain(view: &ExplainView) -> String {
    let mut out = format!("topic {}\n\n", view.topic);
    for line in &view.observations {
        let _ = writeln!(out, "- {line}");
    }
    let _ = writeln!(out, "\n{}", view.verdict);
    out
}

/// Bytes in the largest unit that keeps them above one.
pub fn bytes(count: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut count, mut unit) = (count, 0);
    while count >= 1024.0 && unit + 1 < UNITS.len() {
        count /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{count:.0} B"),
        _ => format!("{count:.1} {}", UNITS[unit]),
    }
}
