//! Changing shards: from what an operator asks for to a reshape, or to a plan of one.

use std::sync::Arc;

use super::views::{ChangeRequest, ChangeView, ShardNow, ShardView, hex};
use super::{Refusal, explain, look, moves, repeat};
use crate::broker::Broker;
use crate::catalog::Topic;
use crate::partition::Reshaped;
use crate::repeats::NEWS;
use crate::shard::{HashRange, Layout, ShardSpan, ShardState, cut};
use crate::types::{PartitionKey, ShardId};

/// Splits, merges or moves shards of a topic; a dry run only says what would come of it.
pub(super) fn reshape(
    broker: &Broker,
    name: &str,
    request: &ChangeRequest,
) -> Result<ChangeView, Refusal> {
    if let Some(to) = &request.to {
        return moves::move_shard(broker, name, request, to);
    }
    let topic = look::find(broker, name)?;
    if let Some(view) = repeat::done_before(broker, &topic, request, None)? {
        return Ok(view);
    }
    let spans = named(&topic.layout, name, &request.shards)?;
    let parts = parts(broker, &topic, &spans, request)?;
    let before: Vec<ShardView> = spans
        .iter()
        .map(|span| shown(broker, &topic, span))
        .collect();
    let planned = planned(broker, &topic, &spans, &parts);
    let verdict = verdict(broker, &topic, request, &planned);
    let mut view = ChangeView {
        topic: name.to_owned(),
        dry_run: request.dry_run,
        repeated: false,
        epoch: topic.layout.epoch() + 1,
        before,
        after: planned,
        verdict,
    };
    let ids: Vec<ShardId> = request.shards.iter().map(|id| ShardId(*id)).collect();
    if request.dry_run {
        let image = broker.catalog.image();
        image
            .reshape_topic(topic.no, &ids, &parts)
            .map_err(Refusal::conflict)?;
        return Ok(view);
    }
    let done = broker
        .partitions
        .reshape(topic.no, &ids, &parts)
        .map_err(Refusal::conflict)?;
    wait_durable(broker, &done)?;
    tell(name, request, &done, None);
    for (shard, id) in view.after.iter_mut().zip(&done.opened) {
        shard.id = id.0;
        shard.created_epoch = done.epoch;
    }
    view.epoch = done.epoch;
    view.repeated = done.repeated;
    Ok(view)
}

/// What is told of a change must not be taken back.
pub(super) fn wait_durable(broker: &Broker, done: &Reshaped) -> Result<(), Refusal> {
    match broker.partitions.first().wait_durable(done.position) {
        true => Ok(()),
        false => Err(Refusal::conflict(
            "the journal has ended; look again after the next start",
        )),
    }
}

/// Tells what was done, and where a move led to. Programs may reshape many times a second.
pub(super) fn tell(topic: &str, request: &ChangeRequest, done: &Reshaped, to: Option<&str>) {
    let what = match to {
        None => "shards were reshaped",
        Some(_) => "a shard was moved to another data directory",
    };
    if NEWS.allow(what, None) {
        let opened: Vec<u64> = done.opened.iter().map(|id| id.0).collect();
        tracing::info!(
            topic, sealed = ?request.shards, opened = ?opened, epoch = done.epoch, directory = to,
            repeated = done.repeated, "{what}; clients go on as before"
        );
    }
}

/// The shards of those ids, in slot order.
fn named(layout: &Layout, topic: &str, ids: &[u64]) -> Result<Vec<Arc<ShardSpan>>, Refusal> {
    let known = layout.by_id();
    let find = |id: &u64| {
        let span = known.get(&ShardId(*id)).map(|span| Arc::clone(span));
        span.ok_or_else(|| {
            Refusal::not_found(format!(
                "topic {topic} has no shard {id}: `shardgate shards list {topic}` shows those it \
                 has"
            ))
        })
    };
    let mut spans = ids.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    spans.sort_by_key(|span| span.first_slot);
    match spans.is_empty() {
        true => Err(Refusal::bad("no shard is named")),
        false => Ok(spans),
    }
}

/// Slots of the shards to be.
fn parts(
    broker: &Broker,
    topic: &Topic,
    spans: &[Arc<ShardSpan>],
    request: &ChangeRequest,
) -> Result<Vec<u32>, Refusal> {
    let whole = || vec![spans.iter().map(|span| span.slots).sum()];
    match (&request.at, spans) {
        (None, [_, _, ..]) => Ok(whole()),
        (None, _) => Err(Refusal::bad(
            "one shard alone is split: say where to cut it",
        )),
        (Some(at), [span]) => cut_at(broker, topic, span, at),
        (Some(_), _) => Err(Refusal::bad("one shard is split at a time")),
    }
}

fn cut_at(broker: &Broker, topic: &Topic, span: &ShardSpan, at: &str) -> Result<Vec<u32>, Refusal> {
    let parts = match at.split_once(':') {
        None if at == "middle" => cut::evenly(span.slots, 2),
        None if at == "load" => cut::by_load(&loads(broker, topic, span), 2),
        Some(("even", parts)) => cut::evenly(span.slots, number(parts)?),
        Some(("load", parts)) => cut::by_load(&loads(broker, topic, span), number(parts)?),
        Some(("slot", slot)) => cut::at_slot(span, number(slot)?),
        Some(("hash", hash)) => cut::parse_hash(hash)
            .and_then(|hash| cut::at_hash(topic.layout.partitions(), span, hash)),
        _ => {
            return Err(Refusal::bad(format!(
                "{at} is no place to cut: take middle, load, slot:N, hash:HEX, even:N or load:N"
            )));
        }
    };
    parts.map_err(Refusal::conflict)
}

pub(super) fn number(text: &str) -> Result<u32, Refusal> {
    text.parse()
        .map_err(|_| Refusal::bad(format!("{text} is no whole number")))
}

/// Bytes a second in and out of each partition of a shard, in slot order.
fn loads(broker: &Broker, topic: &Topic, span: &ShardSpan) -> Vec<u64> {
    let of = |index: &u32| {
        let key = PartitionKey {
            topic: topic.no,
            index: *index,
        };
        let partition = broker.partitions.get(key)?;
        let load = broker.partitions.load_of(&partition);
        Some((load.bytes_in + load.bytes_out) as u64)
    };
    let partitions = topic.layout.partitions_of(span).iter();
    partitions.map(|index| of(index).unwrap_or(0)).collect()
}

/// A shard, with what it carries if it is open.
pub(super) fn shown(broker: &Broker, topic: &Topic, span: &ShardSpan) -> ShardView {
    match span.state {
        ShardState::Open => look::open_shard(broker, topic, span),
        ShardState::Sealed => ShardView::of(&topic.layout, span),
    }
}

/// The shards that come of it, with what their partitions carry and hold now.
fn planned(
    broker: &Broker,
    topic: &Topic,
    spans: &[Arc<ShardSpan>],
    parts: &[u32],
) -> Vec<ShardView> {
    let layout = &topic.layout;
    let home = spans
        .first()
        .and_then(|span| look::running(broker, topic, span));
    let directory = home.map_or_else(String::new, |shard| broker.directory_path(shard.home.no));
    let mut first_slot = spans.first().map_or(0, |span| span.first_slot);
    let mut views = Vec::with_capacity(parts.len());
    for &slots in parts {
        let range = HashRange::of_slots(first_slot, slots, layout.partitions());
        let (begin, end) = hex(range);
        let inside = first_slot as usize..(first_slot + slots) as usize;
        let partitions = layout.slots().get(inside).unwrap_or(&[]);
        let parents = overlapping(spans, first_slot, first_slot + slots).iter();
        let carried = look::carried(broker, topic, partitions);
        views.push(ShardView {
            id: 0,
            open: true,
            begin,
            end,
            first_slot,
            slots,
            partitions: partitions.to_vec(),
            parents: parents.map(|span| span.id.0).collect(),
            children: Vec::new(),
            created_epoch: layout.epoch() + 1,
            sealed_epoch: None,
            home: None,
            now: Some(ShardNow {
                directory: directory.clone(),
                ..carried
            }),
        });
        first_slot += slots;
    }
    views
}

/// Of shards in slot order those that have one of these slots.
fn overlapping(spans: &[Arc<ShardSpan>], first: u32, end: u32) -> &[Arc<ShardSpan>] {
    let from = spans.partition_point(|span| span.end_slot() <= first);
    let to = spans.partition_point(|span| span.first_slot < end);
    spans.get(from..to).unwrap_or(&[])
}

fn verdict(
    broker: &Broker,
    topic: &Topic,
    request: &ChangeRequest,
    planned: &[ShardView],
) -> String {
    let bytes_in: Vec<f64> = planned
        .iter()
        .map(|shard| shard.now.as_ref().map_or(0.0, |now| now.load.bytes_in))
        .collect();
    let total: f64 = bytes_in.iter().sum();
    if request.at.is_none() {
        return explain::merge(total, topic.settings.shard_limits.write);
    }
    let partitions: Vec<u32> = planned.iter().flat_map(|s| s.partitions.clone()).collect();
    let whole = look::carried(broker, topic, &partitions);
    let shares: Vec<f64> = bytes_in
        .iter()
        .map(|bytes| bytes / total.max(1.0))
        .collect();
    let hottest = whole
        .busiest_partition
        .map(|busiest| (busiest.partition, busiest.share));
    explain::split(&shares, hottest)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// All shards of a large topic may be named in one merge.
    #[test]
    fn forty_thousand_shards_are_found_without_looking_for_each_among_all() {
        const SHARDS: u32 = 40_000;
        let ids: Vec<ShardId> = (1..=u64::from(SHARDS)).map(ShardId).collect();
        let layout = Layout::create(SHARDS, &ids, 0).unwrap();
        let reversed: Vec<u64> = ids.iter().rev().map(|id| id.0).collect();
        let begun = Instant::now();
        let Ok(spans) = named(&layout, "t", &reversed) else {
            panic!("they are there");
        };
        assert!(spans.iter().map(|span| span.id).eq(ids));
        for slot in 0..SHARDS {
            let parents = overlapping(&spans, slot, slot + 1);
            assert!(parents.iter().map(|span| span.first_slot).eq([slot]));
        }
        // Without optimization it takes more than 10 s if each is looked for among all.
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(3), "{took:?}");
        assert!(named(&layout, "t", &[7, 50_000]).is_err());
        assert!(overlapping(&spans, 5, 5).is_empty());
    }
}
