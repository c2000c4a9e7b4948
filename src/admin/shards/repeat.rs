//! Changes that were done before: the same once more is answered as it was then, whatever became
//! of its shards since.

use std::borrow::Cow;
use std::io;

use axum::http::StatusCode;

use super::views::{ChangeRequest, ChangeView, ShardView};
use super::{Refusal, change};
use crate::broker::Broker;
use crate::catalog::{ReshapeError, Topic};
use crate::shard::{Layout, PastReshape, ShardState, cut};
use crate::types::{DirectoryId, ShardId};

/// The answer to a change that was done before; `to` is where a move was to go. A refusal if other
/// things became of its shards and only the disk knows them.
pub(super) fn done_before(
    broker: &Broker,
    topic: &Topic,
    request: &ChangeRequest,
    to: Option<DirectoryId>,
) -> Result<Option<ChangeView>, Refusal> {
    let ids: Vec<ShardId> = request.shards.iter().map(|id| ShardId(*id)).collect();
    let layout = remembering(broker, topic, &ids).map_err(|error| {
        let text = format!(
            "the lineage file of topic {} cannot be read: {error}",
            topic.name
        );
        Refusal(StatusCode::INTERNAL_SERVER_ERROR, text)
    })?;
    if let Some(past) = layout.past_reshape(&ids)
        && is_same(&past, request, to)
    {
        return Ok(Some(view(broker, topic, &layout, request, &past)));
    }
    let forgotten = |id: &&ShardId| topic.layout.shard(**id).is_none();
    let forgotten = ids.iter().find(forgotten).and_then(|id| layout.shard(*id));
    match forgotten {
        None => Ok(None),
        Some(span) => Err(Refusal::conflict(ReshapeError::Sealed {
            topic: topic.name.to_string(),
            shard: span.id,
            epoch: span.sealed.unwrap_or(0),
            children: span.children.clone(),
        })),
    }
}

/// The layout of a topic with the epochs that sealed these shards and those that came of them,
/// also where only the disk has them.
fn remembering<'a>(
    broker: &Broker,
    topic: &'a Topic,
    ids: &[ShardId],
) -> io::Result<Cow<'a, Layout>> {
    let mut layout = Cow::Borrowed(topic.layout.as_ref());
    let oldest = layout.history().first().map_or(0, |r| r.epoch);
    let read = |ids: &[ShardId]| broker.partitions.old_epochs_of(topic.no, oldest, ids);
    if ids.iter().all(|id| layout.shard(*id).is_some()) {
        return Ok(layout);
    }
    let mut older = read(ids)?;
    let children = older.iter().flat_map(|epoch| &epoch.sealed);
    let mut children: Vec<ShardId> = children.flat_map(|s| s.children.clone()).collect();
    children.retain(|id| layout.shard(*id).is_none());
    if !children.is_empty() {
        older.extend(read(&children)?);
        older.sort_by_key(|epoch| epoch.record.epoch);
        older.dedup_by_key(|epoch| epoch.record.epoch);
    }
    if !older.is_empty() {
        layout = Cow::Owned(layout.with_older(&older));
    }
    Ok(layout)
}

/// Whether a request for the same shards asks for what was done. Where the load of that time
/// decided, the number of parts must do.
fn is_same(past: &PastReshape, request: &ChangeRequest, to: Option<DirectoryId>) -> bool {
    let (slots, span) = (past.slots(), &past.span);
    let parts = |text: &str| change::number(text).ok();
    if let Some(to) = to {
        return past.sealed.len() == 1 && matches!(&past.opened[..], [one] if one.home == to);
    }
    let Some(at) = &request.at else {
        return past.sealed.len() > 1 && slots.len() == 1;
    };
    if past.sealed.len() != 1 {
        return false;
    }
    let cut = match at.split_once(':') {
        None if at == "load" => return slots.len() == 2,
        Some(("load", text)) => return parts(text) == Some(slots.len() as u32),
        None if at == "middle" => cut::evenly(span.slots, 2).ok(),
        Some(("even", text)) => parts(text).and_then(|n| cut::evenly(span.slots, n).ok()),
        Some(("slot", text)) => parts(text).and_then(|slot| cut::at_slot(span, slot).ok()),
        Some(("hash", text)) => {
            let hash = cut::parse_hash(text);
            hash.and_then(|hash| cut::at_hash(past.partitions, span, hash))
                .ok()
        }
        _ => None,
    };
    cut == Some(slots)
}

fn view(
    broker: &Broker,
    topic: &Topic,
    layout: &Layout,
    request: &ChangeRequest,
    past: &PastReshape,
) -> ChangeView {
    let replaced = past.opened.iter().any(|s| s.state == ShardState::Sealed);
    let verdict = match replaced {
        true => format!(
            "It was done before. Other shards have taken the place of some of these since: \
             `shardgate shards lineage {}` shows which.",
            topic.name
        ),
        false => "It was done before.".to_owned(),
    };
    let before = past.sealed.iter().map(|span| ShardView::of(layout, span));
    let after = past.opened.iter();
    ChangeView {
        topic: topic.name.to_string(),
        dry_run: request.dry_run,
        repeated: true,
        epoch: past.epoch,
        before: before.collect(),
        after: after
            .map(|span| match span.state {
                ShardState::Open => change::shown(broker, topic, span),
                ShardState::Sealed => ShardView::of(layout, span),
            })
            .collect(),
        verdict,
    }
}
