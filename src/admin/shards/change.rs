//! Changing shards: from what an operator asks for to a reshape, or to a plan of one.

use std::sync::Arc;

use super::views::{ChangeRequest, ChangeView, ShardNow, ShardView, hex};
use super::{Refusal, explain, look, repeat};
use crate::broker::Broker;
use crate::catalog::Topic;
use crate::shard::{HashRange, Layout, ShardSpan, cut};
use crate::types::{PartitionKey, ShardId};

/// Splits or merges shards of a topic; a dry run only says what would come of it.
pub(super) fn reshape(
    broker: &Broker,
    name: &str,
    request: &ChangeRequest,
) -> Result<ChangeView, Refusal> {
    let topic = look::find(broker, name)?;
    if let Some(view) = repeat::done_before(broker, &topic, request)? {
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
    if !broker.partitions.first().wait_durable(done.position) {
        return Err(Refusal::conflict(
            "the journal has ended; look again after the next start",
        ));
    }
    let opened: Vec<u64> = done.opened.iter().map(|id| id.0).collect();
    tracing::info!(
        topic = name, sealed = ?request.shards, opened = ?opened, epoch = done.epoch,
        repeated = done.repeated, "shards were reshaped; clients go on as before"
    );
    for (shard, id) in view.after.iter_mut().zip(&done.opened) {
        shard.id = id.0;
        shard.created_epoch = done.epoch;
    }
    view.epoch = done.epoch;
    view.repeated = done.repeated;
    Ok(view)
}

/// The shards of those ids, in slot order.
fn named(layout: &Layout, topic: &str, ids: &[u64]) -> Result<Vec<Arc<ShardSpan>>, Refusal> {
    let find = |id: &u64| {
        layout.shard(ShardId(*id)).cloned().ok_or_else(|| {
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
    match topic.layout.shards().iter().any(|open| open.id == span.id) {
        true => look::open_shard(broker, topic, span),
        false => ShardView::of(&topic.layout, span),
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
        .and_then(|span| broker.partitions.shard(topic.no, span.id));
    let directory = home.map_or_else(String::new, |shard| broker.directory_path(shard.home.no));
    let mut first_slot = spans.first().map_or(0, |span| span.first_slot);
    let mut views = Vec::with_capacity(parts.len());
    for &slots in parts {
        let range = HashRange::of_slots(first_slot, slots, layout.partitions());
        let (begin, end) = hex(range);
        let inside = first_slot as usize..(first_slot + slots) as usize;
        let partitions = layout.slots().get(inside).unwrap_or(&[]);
        let shares = |span: &&Arc<ShardSpan>| {
            span.first_slot < first_slot + slots && first_slot < span.end_slot()
        };
        let carried = look::carried(broker, topic, partitions);
        views.push(ShardView {
            id: 0,
            open: true,
            begin,
            end,
            first_slot,
            slots,
            partitions: partitions.to_vec(),
            parents: spans.iter().filter(shares).map(|span| span.id.0).collect(),
            children: Vec::new(),
            created_epoch: layout.epoch() + 1,
            sealed_epoch: None,
            now: Some(ShardNow {
                directory: directory.clone(),
                ..carried
            }),
        });
        first_slot += slots;
    }
    views
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
