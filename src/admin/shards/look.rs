//! Looking at shards: layout, load and sizes as views.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;

use super::Refusal;
use super::explain::{self, DirectoryLoad};
use super::views::{
    BusiestPartition, ExplainView, LineageView, LocateView, PlaceView, ShardNow, ShardView,
    TopicView, hex,
};
use crate::broker::Broker;
use crate::catalog::Topic;
use crate::partition::load::Traffic;
use crate::partition::shard::Shard;
use crate::shard::partitioner::Partitioner;
use crate::shard::{Forgotten, ShardSpan};
use crate::types::PartitionKey;

/// How long an explanation watches the journals.
pub(super) const WATCH: Duration = Duration::from_secs(1);

/// Slots of forgotten shards in one answer: a few MiB.
const MOST_OLDER_SLOTS: u64 = 1 << 19;

/// A topic by its name.
pub(super) fn find(broker: &Broker, name: &str) -> Result<Arc<Topic>, Refusal> {
    let image = broker.catalog.image();
    image.topic(name).cloned().ok_or_else(|| {
        Refusal::not_found(format!(
            "topic {name} does not exist: `shardgate shards list` shows all"
        ))
    })
}

pub(super) fn all(broker: &Broker, brief: bool) -> Vec<TopicView> {
    let image = broker.catalog.image();
    image
        .topics()
        .map(|topic| of(broker, topic, brief))
        .collect()
}

pub(super) fn topic(broker: &Broker, name: &str) -> Result<TopicView, Refusal> {
    Ok(of(broker, &*find(broker, name)?, false))
}

fn of(broker: &Broker, topic: &Topic, brief: bool) -> TopicView {
    let layout = &topic.layout;
    let view = |span: &Arc<ShardSpan>| match brief {
        true => ShardView::of(layout, span),
        false => open_shard(broker, topic, span),
    };
    TopicView {
        topic: topic.name.to_string(),
        partitions: layout.partitions(),
        epoch: layout.epoch(),
        lineage_exact: layout.lineage_exact(),
        shards: layout.shards().iter().map(view).collect(),
    }
}

/// An open shard with what it carries and holds.
pub(super) fn open_shard(broker: &Broker, topic: &Topic, span: &ShardSpan) -> ShardView {
    let mut now = carried(broker, topic, topic.layout.partitions_of(span));
    if let Some(shard) = running(broker, topic, span) {
        now.directory = broker.directory_path(shard.home.no);
        now.busiest_second = broker.partitions.busiest_second_of(&shard).into();
    }
    ShardView {
        now: Some(now),
        ..ShardView::of(&topic.layout, span)
    }
}

/// An open shard of a layout as it runs. A reshape may have replaced it since the layout was looked
/// at.
pub(super) fn running(broker: &Broker, topic: &Topic, span: &ShardSpan) -> Option<Arc<Shard>> {
    let index = *topic.layout.partitions_of(span).first()?;
    let key = PartitionKey {
        topic: topic.no,
        index,
    };
    broker.partitions.shard(key, span.id)
}

/// What some partitions carry and hold together.
pub(super) fn carried(broker: &Broker, topic: &Topic, partitions: &[u32]) -> ShardNow {
    let (mut load, mut log_bytes, mut bytes_elsewhere) = (Traffic::default(), 0, 0);
    let mut busiest: Option<(u32, f64)> = None;
    for &index in partitions {
        let key = PartitionKey {
            topic: topic.no,
            index,
        };
        let Some(partition) = broker.partitions.get(key) else {
            continue;
        };
        let own = broker.partitions.load_of(&partition);
        load = load.plus(own);
        log_bytes += partition.size_bytes();
        bytes_elsewhere += partition.bytes_elsewhere();
        if own.bytes_in > busiest.map_or(0.0, |(_, most)| most) {
            busiest = Some((index, own.bytes_in));
        }
    }
    // Less than a byte a second is what a load of an hour ago has faded to.
    let busiest = busiest.filter(|_| load.bytes_in >= 1.0);
    ShardNow {
        log_bytes,
        bytes_elsewhere,
        load: load.into(),
        write_limit: topic.settings.shard_limits.write,
        read_limit: topic.settings.shard_limits.read,
        busiest_partition: busiest.map(|(partition, bytes)| BusiestPartition {
            partition,
            share: bytes / load.bytes_in,
        }),
        ..ShardNow::default()
    }
}

pub(super) fn lineage(
    broker: &Broker,
    name: &str,
    partitions: &BTreeSet<u32>,
    older: usize,
) -> Result<LineageView, Refusal> {
    let topic = find(broker, name)?;
    let count = topic.layout.partitions();
    if let Some(partition) = partitions.iter().find(|p| **p >= count) {
        return Err(Refusal::not_found(format!(
            "topic {name} has no partition {partition}: its partitions are 0 to {}",
            count.saturating_sub(1)
        )));
    }
    let layout = &topic.layout;
    let home = |id| {
        let mut all = broker.partitions.directories().iter();
        let found = all.find(|directory| directory.id == id);
        // One that shards were moved out of may be gone.
        found.map_or_else(|| format!("store.id={}", id.0), |d| d.name.clone())
    };
    if older == 0 {
        return Ok(LineageView::of(name, layout, partitions, &home));
    }
    let oldest = layout.history().first().map_or(0, |record| record.epoch);
    let old = broker.partitions.old_epochs(topic.no, oldest, older);
    let old = old.map_err(|error| {
        let text = format!("the lineage file of topic {name} cannot be read: {error}");
        Refusal(StatusCode::INTERNAL_SERVER_ERROR, text)
    })?;
    let layout = layout.with_older(newest(&old));
    Ok(LineageView::of(name, &layout, partitions, &home))
}

/// The newest of these epochs, as far as one answer may have the slots of the shards they sealed.
fn newest(epochs: &[Forgotten]) -> &[Forgotten] {
    let mut slots = 0;
    let fits = |epoch: &&Forgotten| {
        slots += epoch
            .sealed
            .iter()
            .map(|shard| u64::from(shard.slots))
            .sum::<u64>();
        slots <= MOST_OLDER_SLOTS
    };
    let count = epochs.iter().rev().take_while(fits).count();
    epochs.get(epochs.len() - count..).unwrap_or(&[])
}

pub(super) fn locate(
    broker: &Broker,
    name: &str,
    key: &[u8],
    partitioner: Option<&str>,
) -> Result<LocateView, Refusal> {
    let topic = find(broker, name)?;
    let layout = &topic.layout;
    let partitioners = match partitioner {
        None | Some("auto") => Partitioner::ALL.to_vec(),
        Some(name) => vec![Partitioner::named(name).ok_or_else(|| {
            let names = Partitioner::ALL.map(Partitioner::name).join(", ");
            Refusal::bad(format!(
                "partitioner {name} is not known: take auto, {names}"
            ))
        })?],
    };
    let place = |partitioner: Partitioner| {
        let partition = partitioner.partition(key, layout.partitions());
        let (begin, end) = hex(layout.range_of_partition(partition)?);
        Some(PlaceView {
            partitioner: partitioner.name().to_owned(),
            clients: partitioner.clients().to_owned(),
            partition,
            shard: layout.shard_of(partition)?.0,
            begin,
            end,
        })
    };
    Ok(LocateView {
        topic: name.to_owned(),
        places: partitioners.into_iter().filter_map(place).collect(),
    })
}

/// How many syncs each journal has made, and the nanoseconds that they took.
pub(super) fn syncs(broker: &Broker) -> Vec<(u64, u64)> {
    let directories = broker.partitions.directories().iter();
    let journals = directories.filter_map(|directory| directory.journal());
    let stats = journals.map(|journal| journal.stats());
    stats
        .map(|stats| (stats.syncs, stats.sync_nanos_total))
        .collect()
}

/// What limits the topic; `before` is what [`syncs`] said a [`WATCH`] ago.
pub(super) fn explained(
    broker: &Broker,
    name: &str,
    before: &[(u64, u64)],
) -> Result<ExplainView, Refusal> {
    let directories = broker.partitions.directories();
    let after = syncs(broker);
    let loads: Vec<DirectoryLoad> = directories
        .iter()
        .zip(before.iter().zip(&after))
        .map(|(directory, (before, after))| {
            let nanos = after.1.saturating_sub(before.1) as f64;
            let count = after.0.saturating_sub(before.0).max(1) as f64;
            let limit = directory.tail_limit.max(1) as f64;
            DirectoryLoad {
                name: broker.directory_path(directory.no),
                journal_busy: nanos / WATCH.as_nanos() as f64,
                sync_ms: nanos / count / 1e6,
                tail_used: 1.0 - directory.free_tail_bytes() as f64 / limit,
                writable: directory.is_writable(),
            }
        })
        .collect();
    Ok(explain::topic(&topic(broker, name)?, &loads))
}
