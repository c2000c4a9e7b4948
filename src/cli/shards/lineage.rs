//! A topic's layout over time as text: one column per layout epoch, one row per stretch of slots.
//! Pure.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::admin::shards::views::{ChainView, EpochView, EventView, LineageView, ShardView};

/// Epochs that are drawn at most, the newest ones.
const COLUMNS: usize = 12;

/// The lineage as a table of epochs and a map of shards.
pub fn text(view: &LineageView) -> String {
    let mut out = String::new();
    let count = view.partitions;
    let epoch = view.epochs.last().map_or(0, |e| e.epoch);
    let _ = writeln!(
        out,
        "topic {}, {count} partitions, layout epoch {epoch}\n",
        view.topic
    );
    for record in &view.epochs {
        let _ = writeln!(
            out,
            "epoch {:<5} {}  {}",
            record.epoch,
            time(record.at_ms),
            words(record)
        );
    }
    out.push('\n');
    out.push_str(&map(view));
    for chain in &view.chains {
        out.push_str(&links(chain));
    }
    out
}

/// The lineage as a graph for graphviz.
pub fn dot(view: &LineageView) -> String {
    let mut out = String::from("digraph lineage {\n  rankdir=LR;\n  node [shape=box];\n");
    for shard in &view.shards {
        let style = if shard.open { "bold" } else { "dashed" };
        let _ = writeln!(
            out,
            "  s{} [label=\"shard {}\\n[{}…,{}…)\\n{}\", style={style}];",
            shard.id,
            shard.id,
            short(&shard.begin),
            short(&shard.end),
            partitions(&shard.partitions),
        );
    }
    for shard in &view.shards {
        for child in &shard.children {
            let _ = writeln!(out, "  s{} -> s{child};", shard.id);
        }
    }
    out.push_str("}\n");
    out
}

fn words(record: &EpochView) -> String {
    match &record.event {
        EventView::Created { partitions } => format!("created with {partitions} partitions"),
        EventView::Grown { from, to } => format!("grown from {from} to {to} partitions"),
        EventView::Reshaped { sealed, opened } => {
            let verb = match (sealed.len(), opened.len()) {
                (1, 1) => "moved",
                (1, _) => "split",
                (_, 1) => "merged",
                _ => "reshaped",
            };
            format!("{verb} {} into {}", ids(sealed), ids(opened))
        }
    }
}

/// Shards by slots and epochs: a shard's id stands where it begins, bars where it goes on.
fn map(view: &LineageView) -> String {
    let mut starts: BTreeSet<u32> = view.shards.iter().map(|s| s.first_slot).collect();
    starts.insert(0);
    let mut ends: Vec<u32> = starts.iter().copied().skip(1).collect();
    ends.push(view.partitions);
    let rows: Vec<(u32, u32)> = starts.into_iter().zip(ends).collect();
    let drawn = view.epochs.len().saturating_sub(COLUMNS);
    let columns: Vec<&EpochView> = view.epochs.iter().skip(drawn).collect();

    let mut grid: Vec<Vec<String>> = vec![
        std::iter::once("hash range".to_owned())
            .chain(["partitions".to_owned()])
            .chain(columns.iter().map(|e| format!("e{}", e.epoch)))
            .collect(),
    ];
    for &(first, end) in &rows {
        let slots = view.slots.get(first as usize..end as usize).unwrap_or(&[]);
        let mut row = vec![edges(view, first, end), partitions(slots)];
        let mut before = None;
        for column in &columns {
            let shard = alive(&view.shards, first, column.epoch);
            row.push(cell(shard, before, first));
            before = shard.map(|s| s.id);
        }
        grid.push(row);
    }
    aligned(&grid)
}

fn cell(shard: Option<&ShardView>, before: Option<u64>, first: u32) -> String {
    match shard {
        Some(shard) if before == Some(shard.id) => "─".to_owned(),
        Some(shard) if shard.first_slot == first => shard.id.to_string(),
        Some(_) => "│".to_owned(),
        None => " ".to_owned(),
    }
}

/// The shard that held a slot once an epoch was made.
fn alive(shards: &[ShardView], slot: u32, epoch: u32) -> Option<&ShardView> {
    shards.iter().find(|s| {
        s.first_slot <= slot
            && slot < s.first_slot + s.slots
            && s.created_epoch <= epoch
            && s.sealed_epoch.is_none_or(|sealed| epoch < sealed)
    })
}

fn edges(view: &LineageView, first: u32, end: u32) -> String {
    let begin = view.shards.iter().find(|s| s.first_slot == first);
    let behind = view.shards.iter().find(|s| s.first_slot == end);
    format!(
        "[{}…,{}…)",
        short(begin.map_or("0000", |s| &s.begin)),
        short(behind.map_or("ffff", |s| &s.begin)),
    )
}

fn links(chain: &ChainView) -> String {
    let mut out = format!("\npartition {}", chain.partition);
    match chain.parent {
        Some(parent) => {
            let _ = write!(out, ", keys came from partition {parent}");
        }
        None if chain.parent_unknown => out.push_str(", keys may have been in any partition"),
        None => {}
    }
    out.push('\n');
    for (index, link) in chain.links.iter().enumerate() {
        let until = match chain.links.get(index + 1) {
            Some(next) => format!("{}", next.start - 1),
            None => "now".to_owned(),
        };
        let _ = writeln!(
            out,
            "  offsets {} to {until}: shard {}",
            link.start, link.shard
        );
    }
    out
}

/// Columns side by side, each as wide as its widest cell.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Numbers as ranges: `0-3, 7`; a long list is cut.
pub fn partitions(numbers: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let shown = runs
        .iter()
        .take(6)
        .map(|(first, last)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        });
    let mut text = shown.collect::<Vec<_>>().join(",");
    if runs.len() > 6 {
        let _ = write!(text, ",… ({})", numbers.len());
    }
    text
}

/// The first digits of a hash.
pub fn short(hash: &str) -> &str {
    hash.get(..8).unwrap_or(hash)
}

/// Ids in words.
pub fn ids(ids: &[u64]) -> String {
    ids.iter()
        .map(u64::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

/// A time as `2026-11-29T21:00:05Z`.
pub fn time(at_ms: i64) -> String {
    match jiff::Timestamp::from_millisecond(at_ms) {
        Ok(time) => format!("{time:.0}"),
        Err(_) => format!("{at_ms} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::Layout;
    use crate::types::ShardId;

    fn view() -> LineageView {
        let layout = Layout::create(4, &[ShardId(1)], 0).unwrap();
        let cut = [(ShardId(2), 2), (ShardId(3), 2)];
        let layout = layout
            .reshape(&[ShardId(1)], &cut, &[10; 4], 1_000)
            .unwrap();
        let both = [ShardId(2), ShardId(3)];
        let layout = layout
            .reshape(&both, &[(ShardId(4), 4)], &[25; 4], 2_000)
            .unwrap();
        LineageView::of("orders", &layout, &[1].into())
    }

    #[test]
    fn a_split_and_a_merge_are_drawn() {
        let expected = "\
topic orders, 4 partitions, layout epoch 3

epoch 1     1970-01-01T00:00:00Z  created with 4 partitions
epoch 2     1970-01-01T00:00:01Z  split 1 into 2, 3
epoch 3     1970-01-01T00:00:02Z  merged 2, 3 into 4

hash range             partitions  e1  e2  e3
[00000000…,80000000…)  0-1         1   2   4
[80000000…,ffff…)      2-3         │   3   │

partition 1
  offsets 0 to 9: shard 1
  offsets 10 to 24: shard 2
  offsets 25 to now: shard 4
";
        assert_eq!(text(&view()), expected);
    }

    #[test]
    fn the_graph_has_each_shard_and_each_descent() {
        let dot = dot(&view());
        for line in ["s1 -> s2;", "s1 -> s3;", "s2 -> s4;", "s3 -> s4;"] {
            assert!(dot.contains(line), "{dot}");
        }
        assert_eq!(dot.matches("label=").count(), 4);
        assert_eq!(dot.matches("style=bold").count(), 1);
    }

    #[test]
    fn times_and_partitions_read_well() {
        assert_eq!(time(1_709_164_800_000), "2024-02-29T00:00:00Z");
        assert_eq!(time(i64::MAX), "9223372036854775807 ms");
        assert_eq!(partitions(&[0, 1, 2, 7, 9, 10]), "0-2,7,9-10");
        assert_eq!(partitions(&[]), "");
        let odd: Vec<u32> = (0..20).map(|n| n * 2).collect();
        assert_eq!(partitions(&odd), "0,2,4,6,8,10,… (20)");
    }
}
