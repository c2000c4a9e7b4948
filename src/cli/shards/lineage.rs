//! A topic's layout over time as text: one column per layout epoch, one row per stretch of slots.
//! Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::admin::shards::views::{ChainView, EpochView, EventView, LineageView, ShardView};

/// Epochs that are drawn side by side.
const COLUMNS: usize = 12;

/// The lineage as a table of epochs and a map of shards: of the newest epochs or of all that are
/// there.
pub fn text(view: &LineageView, all: bool) -> String {
    let mut out = String::new();
    let count = view.partitions;
    let epoch = view.epochs.last().map_or(0, |e| e.epoch);
    let _ = writeln!(
        out,
        "topic {}, {count} partitions, layout epoch {epoch}\n",
        view.topic
    );
    if view.older_epochs > 0 {
        let _ = writeln!(out, "{}", left_out(view));
    }
    for record in &view.epochs {
        let _ = writeln!(
            out,
            "epoch {:<5} {}  {}",
            record.epoch,
            time(record.at_ms),
            words(view, record)
        );
    }
    let bands = view.epochs.rchunks(COLUMNS).rev();
    let hidden = match all {
        true => 0,
        false => bands.len().saturating_sub(1),
    };
    if hidden > 0 {
        let _ = writeln!(
            out,
            "\nthe last {COLUMNS} of {} epochs; --all draws the others, too",
            view.epochs.len()
        );
    }
    for band in bands.skip(hidden) {
        out.push('\n');
        out.push_str(&map(view, band));
    }
    for chain in &view.chains {
        out.push_str(&links(chain));
    }
    out
}

/// How many epochs are not here, and how to see them.
fn left_out(view: &LineageView) -> String {
    format!(
        "epochs 1 to {} and the shards that they sealed are not shown: they are on the disk, and \
         --older {} shows them",
        view.older_epochs, view.older_epochs
    )
}

/// The lineage as a graph for graphviz.
pub fn dot(view: &LineageView) -> String {
    let mut out = String::from("digraph lineage {\n  rankdir=LR;\n  node [shape=box];\n");
    if view.older_epochs > 0 {
        let _ = writeln!(out, "  label=\"{}\";", left_out(view));
    }
    let homes: BTreeSet<_> = view.shards.iter().map(|shard| &shard.home).collect();
    for shard in &view.shards {
        let style = if shard.open { "bold" } else { "dashed" };
        let home = match &shard.home {
            Some(home) if homes.len() > 1 => format!("\\n{}", quoted(home)),
            _ => String::new(),
        };
        let _ = writeln!(
            out,
            "  s{} [label=\"shard {}\\n[{}…,{}…)\\n{}{home}\", style={style}];",
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

/// A path within quotes.
fn quoted(path: &str) -> String {
    path.replace('\\', r"\\").replace('"', "\\\"")
}

/// Where a move led to, if an epoch is one.
fn moved_to<'a>(view: &'a LineageView, sealed: &[u64], opened: &[u64]) -> Option<&'a str> {
    let ([_], [id]) = (sealed, opened) else {
        return None;
    };
    let shard = view.shards.iter().find(|shard| shard.id == *id);
    shard?.home.as_deref()
}

fn words(view: &LineageView, record: &EpochView) -> String {
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
            let words = format!("{verb} {} into {}", ids(sealed), ids(opened));
            match moved_to(view, sealed, opened) {
                Some(home) => format!("{words} in {home}"),
                None => words,
            }
        }
    }
}

/// Shards by slots and some epochs: a shard's id stands where it begins, bars where it goes on.
fn map(view: &LineageView, columns: &[EpochView]) -> String {
    let from = columns.first().map_or(0, |e| e.epoch);
    let to = columns.last().map_or(0, |e| e.epoch);
    let mut shards: Vec<&ShardView> = view.shards.iter().collect();
    shards.retain(|s| s.created_epoch <= to && s.sealed_epoch.is_none_or(|sealed| from < sealed));
    shards.sort_by_key(|s| s.first_slot);
    let begins: BTreeMap<u32, &str> = shards
        .iter()
        .map(|s| (s.first_slot, &s.begin[..]))
        .collect();
    let starts: BTreeSet<u32> = begins.keys().copied().chain([0]).collect();
    let ends = starts.iter().skip(1).copied().chain([view.partitions]);

    let mut grid: Vec<Vec<String>> = Vec::new();
    for (&first, end) in starts.iter().zip(ends) {
        let slots = view.slots.get(first as usize..end as usize).unwrap_or(&[]);
        let begin = begins.get(&first).copied().unwrap_or("0000");
        let behind = begins.get(&end).copied().unwrap_or("ffff");
        let range = format!("[{}…,{}…)", short(begin), short(behind));
        grid.push(vec![range, partitions(slots)]);
    }
    let mut before: Vec<Option<u64>> = vec![None; grid.len()];
    for column in columns {
        let alive: Vec<&&ShardView> = shards
            .iter()
            .filter(|s| is_alive(s, column.epoch))
            .collect();
        for ((row, before), &first) in grid.iter_mut().zip(&mut before).zip(&starts) {
            let behind = alive.partition_point(|s| s.first_slot <= first);
            let shard = behind.checked_sub(1).and_then(|at| alive.get(at));
            let shard = shard.filter(|s| first < s.first_slot + s.slots);
            row.push(cell(shard, *before, first));
            *before = shard.map(|s| s.id);
        }
    }
    let names = ["hash range".to_owned(), "partitions".to_owned()].into_iter();
    let names = names.chain(columns.iter().map(|e| format!("e{}", e.epoch)));
    grid.insert(0, names.collect());
    aligned(&grid)
}

fn cell(shard: Option<&&&ShardView>, before: Option<u64>, first: u32) -> String {
    match shard {
        Some(shard) if before == Some(shard.id) => "─".to_owned(),
        Some(shard) if shard.first_slot == first => shard.id.to_string(),
        Some(_) => "│".to_owned(),
        None => " ".to_owned(),
    }
}

/// Whether a shard was open once an epoch was made.
fn is_alive(shard: &ShardView, epoch: u32) -> bool {
    shard.created_epoch <= epoch && shard.sealed_epoch.is_none_or(|sealed| epoch < sealed)
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
    use crate::types::{DirectoryId, ShardId};

    fn home(id: DirectoryId) -> String {
        format!("/disk{} \"a\"", id.0.as_u128())
    }

    #[test]
    fn a_move_names_the_directory() {
        let to = DirectoryId(uuid::Uuid::from_u128(2));
        let layout = Layout::create(4, &[ShardId(1)], 0).unwrap();
        let layout = layout
            .reshape(&[ShardId(1)], &[(ShardId(2), 4)], &[10; 4], 1_000)
            .unwrap()
            .with_homes([(ShardId(2), to)].into_iter());
        let view = LineageView::of("t", &layout, &BTreeSet::new(), &home);
        let told = text(&view, false);
        assert!(told.contains("moved 1 into 2 in /disk2 \"a\"\n"), "{told}");
        let graph = dot(&view);
        for label in [
            r#"\n0-3\n/disk0 \"a\"", style=dashed"#,
            r#"\n0-3\n/disk2 \"a\"", style=bold"#,
        ] {
            assert!(graph.contains(label), "{graph}");
        }
        let json = serde_json::to_value(&view).unwrap();
        assert_eq!(json["shards"][0]["home"], home(DirectoryId::FIRST));
    }

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
        LineageView::of("orders", &layout, &[1].into(), &home)
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
        assert_eq!(text(&view(), false), expected);
    }

    /// Split and merged in turns, and all forgotten but the last epoch, or all there.
    fn long() -> (LineageView, LineageView) {
        let mut layout = Layout::create(2, &[ShardId(1)], 0).unwrap();
        let mut next = 2..;
        let mut id = || ShardId(next.next().unwrap());
        let mut older = Vec::new();
        for _ in 0..7 {
            let last: Vec<ShardId> = layout.shards().iter().map(|s| s.id).collect();
            let cut = [(id(), 1), (id(), 1)];
            let split = layout.reshape(&last, &cut, &[0; 2], 0).unwrap();
            let both = [cut[0].0, cut[1].0];
            layout = split.reshape(&both, &[(id(), 2)], &[0; 2], 0).unwrap();
        }
        let whole = layout.clone();
        let mut parts = layout.parts().clone();
        parts.history.drain(..14);
        parts.sealed.drain(..19);
        let layout = Layout::from_parts(parts).unwrap();
        older.extend(whole.forgotten(&layout));
        assert_eq!(layout.with_older(&older), whole);
        let of = |layout| LineageView::of("t", layout, &BTreeSet::new(), &home);
        (of(&layout), of(&layout.with_older(&older)))
    }

    #[test]
    fn what_is_not_drawn_is_told() {
        let (short, whole) = long();
        assert_eq!((short.older_epochs, whole.older_epochs), (14, 0));
        let note = "epochs 1 to 14 and the shards that they sealed are not shown: they are on the \
                    disk, and --older 14 shows them";
        assert!(text(&short, false).contains(note) && dot(&short).contains(note));
        let newest = text(&whole, false);
        assert!(!newest.contains("are not shown") && !dot(&whole).contains("are not shown"));
        assert!(
            newest.contains("the last 12 of 15 epochs; --all draws"),
            "{newest}"
        );
        let all = text(&whole, true);
        let map = "
hash range             partitions  e1  e2  e3
[00000000…,80000000…)  0           1   2   4
[80000000…,ffff…)      1           │   3   │

hash range             partitions  e4  e5  e6";
        assert!(all.contains(map) && !all.contains("--all"), "{all}");
        assert_eq!(dot(&whole).matches(" -> ").count(), 4 * 7);
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
