//! Moving a shard to another data directory: from what an operator asks for to a move, or to a plan
//! of one.

use std::path::Path;
use std::sync::Arc;

use super::views::{ChangeRequest, ChangeView, ShardNow, ShardView};
use super::{Refusal, change, look};
use crate::broker::Broker;
use crate::catalog::{Decision, Topic};
use crate::partition::directory::Directory;
use crate::shard::ShardSpan;
use crate::types::ShardId;

/// Moves a shard of a topic; a dry run only says what would come of it.
pub(super) fn move_shard(
    broker: &Broker,
    name: &str,
    request: &ChangeRequest,
    to: &str,
) -> Result<ChangeView, Refusal> {
    let topic = look::find(broker, name)?;
    let ([shard], None) = (&request.shards[..], &request.at) else {
        return Err(Refusal::bad(
            "one shard is moved at a time, and it is not cut",
        ));
    };
    let to = named(broker, to)?;
    let image = broker.catalog.image();
    let decision = image.move_shard(topic.no, ShardId(*shard), to.id);
    let span = topic.layout.shard(ShardId(*shard)).cloned();
    let (Some(span), Ok(decision)) = (span, &decision) else {
        let error = decision.err().map_or_else(String::new, |e| e.to_string());
        return Err(Refusal::conflict(error));
    };
    let mut view = ChangeView {
        topic: name.to_owned(),
        dry_run: request.dry_run,
        repeated: matches!(decision, Decision::Done { .. }),
        epoch: topic.layout.epoch() + 1,
        before: vec![change::shown(broker, &topic, &span)],
        after: vec![planned(broker, &topic, &span, to)],
        verdict: String::new(),
    };
    view.verdict = verdict(&view, to);
    if request.dry_run {
        if let Decision::Done { epoch, opened } = decision {
            view.done(*epoch, opened);
        }
        return Ok(view);
    }
    let done = broker
        .partitions
        .move_shard(topic.no, ShardId(*shard), to.no)
        .map_err(Refusal::conflict)?;
    if !broker.partitions.first().wait_durable(done.position) {
        return Err(Refusal::conflict(
            "the journal has ended; look again after the next start",
        ));
    }
    change::tell(name, request, &done);
    view.done(done.epoch, &done.opened);
    view.repeated = done.repeated;
    Ok(view)
}

impl ChangeView {
    fn done(&mut self, epoch: u32, opened: &[ShardId]) {
        self.epoch = epoch;
        for (shard, id) in self.after.iter_mut().zip(opened) {
            shard.id = id.0;
            shard.created_epoch = epoch;
        }
    }
}

/// The data directory of that path: as `log.dirs` has it, or another path to it.
fn named<'a>(broker: &'a Broker, path: &str) -> Result<&'a Arc<Directory>, Refusal> {
    let directories = broker.partitions.directories();
    let whole = |path: &str| Path::new(path).canonicalize().ok();
    let asked = whole(path);
    let mut all = directories.iter();
    let found = all.find(|directory| {
        directory.name == path || (asked.is_some() && whole(&directory.name) == asked)
    });
    found.ok_or_else(|| {
        let names: Vec<_> = directories.iter().map(|d| d.name.as_str()).collect();
        Refusal::not_found(format!(
            "{path} is no data directory of this node: log.dirs has {}",
            names.join(", ")
        ))
    })
}

/// The shard that comes of it.
fn planned(broker: &Broker, topic: &Topic, span: &ShardSpan, to: &Directory) -> ShardView {
    let carried = look::carried(broker, topic, topic.layout.partitions_of(span));
    ShardView {
        id: 0,
        open: true,
        parents: vec![span.id.0],
        children: Vec::new(),
        created_epoch: topic.layout.epoch() + 1,
        sealed_epoch: None,
        now: Some(ShardNow {
            directory: to.name.clone(),
            ..carried
        }),
        ..ShardView::of(&topic.layout, span)
    }
}

fn verdict(view: &ChangeView, to: &Directory) -> String {
    if view.repeated {
        return format!("The shard is in {} or went on from there.", to.name);
    }
    let bytes = view.after.iter().filter_map(|shard| shard.now.as_ref());
    let bytes: u64 = bytes.map(|now| now.log_bytes).sum();
    let full = match to.is_writable() {
        true => "",
        false => " That directory is nearly full and takes no shard now.",
    };
    format!(
        "Its writers wait while what is not in segment files yet is flushed, which takes a moment. \
         Its files hold {bytes} bytes, are read where they are, and are copied in the \
         background.{full}"
    )
}
