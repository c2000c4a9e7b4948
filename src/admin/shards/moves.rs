//! Moving a shard to another data directory: from what an operator asks for to a move, or to a plan
//! of one.

use std::path::Path;
use std::sync::Arc;

use super::views::{ChangeRequest, ChangeView, ShardNow, ShardView};
use super::{Refusal, change, look, repeat};
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
    let path = request.to_path.as_deref().unwrap_or(Path::new(to));
    let to = named(broker, to, path)?;
    if let Some(view) = repeat::done_before(broker, &topic, request, Some(to.id))? {
        return Ok(view);
    }
    let id = ShardId(*shard);
    let image = broker.catalog.image();
    let decision = image.move_shard(topic.no, id, to.id);
    let decision = decision.map_err(Refusal::conflict)?;
    let span = topic.layout.shard(id).ok_or_else(changed)?;
    let before = vec![change::shown(broker, &topic, span)];
    let mut view = ChangeView {
        topic: name.to_owned(),
        dry_run: request.dry_run,
        repeated: false,
        epoch: topic.layout.epoch() + 1,
        after: vec![planned(broker, &topic, span, to)],
        before,
        verdict: String::new(),
    };
    if let Decision::Done { epoch, opened } = decision {
        if opened != [id] {
            return Err(changed());
        }
        view.repeated = true;
        view.epoch = epoch;
        view.after = view.before.clone();
        view.verdict = format!("The shard is in {} already.", to.name);
        return Ok(view);
    }
    if !request.dry_run {
        let moved = broker.partitions.move_shard(topic.no, id, to.no);
        let moved = moved.map_err(Refusal::conflict)?;
        change::wait_durable(broker, &moved)?;
        if !moved.repeated {
            change::tell(name, request, &moved, Some(&to.name));
        }
        let topic = look::find(broker, name)?;
        let done = repeat::done_before(broker, &topic, request, Some(to.id))?;
        view = ChangeView {
            repeated: moved.repeated,
            before: view.before,
            ..done.ok_or_else(changed)?
        };
        if moved.repeated {
            return Ok(view);
        }
    }
    view.verdict = verdict(&view, &Destination::of(to));
    Ok(view)
}

/// Others change the topic at the same time.
fn changed() -> Refusal {
    Refusal::conflict("the topic was changed meanwhile: look at it again")
}

/// The data directory that `log.dirs` has by that name, or else the one at a path.
fn named<'a>(broker: &'a Broker, name: &str, path: &Path) -> Result<&'a Arc<Directory>, Refusal> {
    let directories = broker.partitions.directories();
    let at_path = || {
        let asked = path.canonicalize().ok()?;
        let is_it = |name: &str| {
            Path::new(name)
                .canonicalize()
                .is_ok_and(|path| path == asked)
        };
        directories.iter().find(|directory| is_it(&directory.name))
    };
    let mut all = directories.iter();
    let found = all
        .find(|directory| directory.name == name)
        .or_else(at_path);
    found.ok_or_else(|| {
        let names: Vec<_> = directories.iter().map(|d| d.name.as_str()).collect();
        Refusal::not_found(format!(
            "{name} is no data directory of this node: log.dirs has {}",
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

/// The directory that a move goes to.
struct Destination<'a> {
    name: &'a str,
    is_writable: bool,
    /// Bytes that copies may take.
    room: u64,
}

impl<'a> Destination<'a> {
    fn of(directory: &'a Directory) -> Self {
        Self {
            name: &directory.name,
            is_writable: directory.is_writable(),
            // Where the device does not tell, nothing speaks against the move.
            room: directory.spare_bytes().unwrap_or(u64::MAX),
        }
    }
}

fn verdict(view: &ChangeView, to: &Destination) -> String {
    let name = to.name;
    // Its files are served where they are, so a lack of room for copies is no reason to refuse.
    let room = |bytes| match bytes <= to.room {
        true => String::new(),
        false => format!(
            " {name} has no room for a copy of them above disk.reserve.bytes: what does not fit \
             stays in the directory it is in until there is. Free space in {name} or choose \
             another."
        ),
    };
    let shown = || view.after.iter().filter_map(|shard| shard.now.as_ref());
    if !view.dry_run {
        let elsewhere: u64 = shown().map(|now| now.bytes_elsewhere).sum();
        return match elsewhere {
            0 => "It takes writes there now, and nothing of it lies elsewhere.".to_owned(),
            bytes => format!(
                "It takes writes there now. {bytes} bytes of it lie in other directories, are read \
                 there, and are copied in the background: `shardgate shards list {}` shows what \
                 is left.{}",
                view.topic,
                room(bytes)
            ),
        };
    }
    let bytes: u64 = shown().map(|now| now.log_bytes).sum();
    let full = match to.is_writable {
        true => room(bytes),
        false => " That directory is nearly full and takes no shard now.".to_owned(),
    };
    format!(
        "Its writers would wait while what is not in segment files yet is flushed, which takes a \
         moment. The {bytes} bytes that it holds would be read where they are, and copied in the \
         background.{full}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_too_small_for_the_copy_is_told_before_and_after() {
        let now = ShardNow {
            log_bytes: 308,
            bytes_elsewhere: 300,
            ..ShardNow::default()
        };
        let after = vec![ShardView {
            now: Some(now),
            ..ShardView::default()
        }];
        let view = |dry_run| ChangeView {
            topic: "t".to_owned(),
            dry_run,
            repeated: false,
            epoch: 2,
            before: Vec::new(),
            after: after.clone(),
            verdict: String::new(),
        };
        let no_room = "/disk2 has no room for a copy of them above disk.reserve.bytes";
        let answer = |dry_run, room| {
            let to = Destination {
                name: "/disk2",
                is_writable: room > 0,
                room,
            };
            verdict(&view(dry_run), &to)
        };
        let told = |dry_run, room| answer(dry_run, room).contains(no_room);
        assert!(told(true, 307) && !told(true, 308));
        assert!(told(false, 299) && !told(false, 300));
        let full = answer(true, 0);
        assert!(full.contains("takes no shard now") && !full.contains(no_room));
    }
}
