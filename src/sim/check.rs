//! Checkers: what must hold while the store runs, and after each start.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::clock::SimClock;
use super::ends::Ends;
use super::model::{CommitKey, CommitState, Log, Remembered, State};
use super::net;
use super::ops::GROUPS;
use super::power::Disks;
use super::store::{Options, Store};
use super::world::World;
use crate::partition::read::ReadFailure;
use crate::partition::shard::SegmentFile;
use crate::partition::verify_live::verify_live;
use crate::protocol::batch::Batches;
use crate::store::backend::Disk;
use crate::store::backend::memory::MemoryDisk;
use crate::store::checkpoint::CheckpointStore;
use crate::types::{DirectoryNo, FileId, Offset, PartitionKey};

/// What readers see at any moment: durable state, all of it, and nothing else.
pub(super) fn visible(world: &World) {
    let (store, durable) = (world.store(), &world.model.durable);
    topics(store, durable);
    for (key, log) in &durable.logs {
        let bounds = store.partition(*key).bounds();
        let (start, end) = (bounds.log_start, bounds.high_watermark);
        assert_eq!((start, end), (log.log_start, log.next), "borders of {key}");
    }
}

/// Everything, right after a start.
pub(super) fn recovered(world: &World) {
    whole(world.store(), &world.model.durable, false);
    files(world);
}

/// Segment lists: each shard has the files that hold a section of its partitions, all of them and
/// no other, and each is on the disk.
pub(super) fn files(world: &World) {
    let store = world.store();
    let files = store.homes.iter().flat_map(|home| home.directory.files());
    let all: Vec<_> = files.collect();
    let there = files_on_disk(world);
    for file in &all {
        assert!(there.contains(&named(file)), "{:?} is missing", named(file));
    }
    for (name, topic) in &world.model.durable.topics {
        let lists = store.registry.lists(topic.no);
        let ids = lists.iter().map(|(id, _)| *id);
        let open = topic.lineage.open.iter().map(|(id, _)| *id);
        assert!(ids.eq(open), "shards of {name} that are read");
        for (id, list) in &lists {
            let mine = |file: &&Arc<SegmentFile>| {
                file.meta.sections.iter().any(|section| {
                    section.key.topic == topic.no
                        && topic.lineage.shard_of(section.key.index) == *id
                })
            };
            let expected: BTreeSet<_> = all.iter().filter(mine).map(named).collect();
            let found: BTreeSet<_> = list.iter().map(named).collect();
            assert_eq!(found, expected, "files of {id:?} of {name}");
        }
    }
    let report = verify_live(&store.registry, false);
    assert!(report.damage.is_empty(), "{:?}", report.damage);
}

/// A segment file and the directory that it lies in.
type InDirectory = (DirectoryNo, FileId);

fn named(file: &Arc<SegmentFile>) -> InDirectory {
    (file.directory, file.meta.file)
}

/// The segment files on all disks.
pub(super) fn files_on_disk(world: &World) -> BTreeSet<InDirectory> {
    let disks = world.disks.numbers().zip(world.disks.iter());
    let files = disks.flat_map(|(no, disk)| {
        let files = segment_files(&disk.memory).into_iter();
        files.map(move |file| (no, file))
    });
    files.collect()
}

/// I4: what is sequenced now goes to the shard that is open, and not to one that was sealed.
pub(super) fn routed(world: &World, key: PartitionKey) {
    let topics = &world.model.sequenced.topics;
    let topic = topics.values().find(|topic| topic.no == key.topic);
    let expected = topic.map(|topic| topic.lineage.shard_of(key.index));
    let shard = world.store().partition(key).shard();
    let home = shard.as_ref().map(|shard| shard.home.no);
    let shard = shard.map(|shard| shard.id);
    assert_eq!(shard, expected, "the shard of {key}");
    let expected = topic.map(|topic| topic.lineage.home_of(key.index));
    assert_eq!(home, expected, "the directory of {key}");
}

/// Files that are in the lists of several shards of one topic.
pub(super) fn shared_files(world: &World) -> BTreeSet<InDirectory> {
    let mut shared = BTreeSet::new();
    for topic in world.model.durable.topics.values() {
        let lists = world.store().registry.lists(topic.no);
        let mut seen = BTreeSet::new();
        for file in lists.iter().flat_map(|(_, list)| list.iter()) {
            if !seen.insert(named(file)) {
                shared.insert(named(file));
            }
        }
    }
    shared
}

/// After a while without faults: a file is there if and only if a list names it.
pub(super) fn no_file_is_left(world: &World) {
    files(world);
    assert_eq!(
        files_on_disk(world),
        listed_files(world),
        "files on the disk, and in lists"
    );
}

/// Whether that is so by now.
pub(super) fn is_no_file_left(world: &World) -> bool {
    files_on_disk(world) == listed_files(world)
}

fn listed_files(world: &World) -> BTreeSet<InDirectory> {
    let registry = &world.store().registry;
    let image = world.store().catalog.image();
    let lists = image.topics().flat_map(|topic| registry.lists(topic.no));
    lists
        .flat_map(|(_, list)| list.iter().map(named).collect::<Vec<_>>())
        .collect()
}

/// Compares a store with a state. With `damaged`, records may be refused, but never be wrong.
/// Says how many partitions were refused.
pub(super) fn whole(store: &Store, state: &State, damaged: bool) -> usize {
    let mut refused = 0;
    topics(store, state);
    for (key, log) in &state.logs {
        let bounds = store.partition(*key).bounds();
        let (start, end) = (bounds.log_start, bounds.high_watermark);
        assert_eq!((start, end), (log.log_start, log.next), "borders of {key}");
        let link = state.last_link(*key).unwrap_or(0);
        assert!(link <= end, "the lineage of {key} starts behind its end");
        match records(store, *key, log) {
            Ok(()) => {}
            Err(reason) if damaged => {
                assert!(!reason.is_empty());
                refused += 1;
            }
            Err(reason) => panic!("{key} cannot be read: {reason}"),
        }
        producers(store, *key, log);
    }
    let next = store.catalog.image().next_producer_id();
    assert_eq!(next, state.next_producer_id, "producer ids");
    if !damaged || !store.groups.is_loading() {
        commits(store, state);
    }
    refused
}

fn topics(store: &Store, state: &State) {
    let found = store.topics();
    let names: Vec<_> = found.keys().collect();
    assert_eq!(names, state.topics.keys().collect::<Vec<_>>(), "topics");
    for (name, topic) in &state.topics {
        let found = &found[name];
        assert_eq!(
            (found.no, found.id, found.partitions),
            (topic.no, topic.id, topic.partitions),
            "topic {name}"
        );
        topic.lineage.is(&found.layout, name);
    }
}

fn records(store: &Store, key: PartitionKey, log: &Log) -> Result<(), String> {
    let mut expected = log.from(log.log_start);
    let mut offset = log.log_start;
    while offset < log.next {
        let read = read(store, key, offset, 8 << 10).map_err(|e| e.to_string())?;
        assert!(!read.is_empty(), "{key} is empty at {offset}");
        for (base, batch) in read {
            let (sent_base, sent) = expected.next().expect("no more than was sent");
            assert_eq!(base, sent_base, "{key}: offsets are dense");
            assert!(sent.is(&batch), "{key}: wrong bytes at {base}");
            offset = base + i64::from(sent.records);
        }
    }
    assert_eq!(
        expected.next().map(|(base, _)| base),
        None,
        "{key} is short"
    );
    Ok(())
}

/// Reads batches from the one that holds an offset on.
pub(super) fn read(
    store: &Store,
    key: PartitionKey,
    offset: Offset,
    max_bytes: usize,
) -> Result<Vec<(Offset, Vec<u8>)>, ReadFailure> {
    let partition = store.partition(key);
    let slices = store
        .registry
        .read_blocking(&partition, offset, max_bytes)?;
    let mut batches = Vec::new();
    for batch in slices.iter().flat_map(|slice| Batches::new(slice)) {
        let batch = batch.expect("a whole batch");
        batch.check_crc().expect("an undamaged batch");
        batches.push((batch.info.base_offset, batch.bytes.to_vec()));
    }
    Ok(batches)
}

fn producers(store: &Store, key: PartitionKey, log: &Log) {
    let partition = store.partition(key);
    let kept: BTreeMap<i64, Vec<Remembered>> = partition.sequenced(|_, sequence| {
        let producers = sequence.producers.iter().flat_map(|p| p.iter());
        producers
            .map(|(id, producer)| {
                let window = producer.window.iter().map(|batch| Remembered {
                    first: batch.first_sequence,
                    last: batch.last_sequence,
                    base: batch.base_offset,
                    position: batch.position,
                });
                (id, window.collect())
            })
            .collect()
    });
    let expected: BTreeMap<i64, Vec<Remembered>> = log
        .producers
        .iter()
        .map(|(id, window)| (*id, window.iter().copied().collect()))
        .collect();
    assert_eq!(kept, expected, "producer windows of {key}");
}

/// All commits of all groups, as OffsetFetch shows them.
pub(super) fn shown_commits(store: &Store) -> BTreeMap<CommitKey, CommitState> {
    let mut all = BTreeMap::new();
    for group in GROUPS.into_iter().chain(net::GROUPS) {
        let held = store.groups.all_commits(group).expect("groups are loaded");
        for (topic, partitions) in held.value {
            for (partition, commit) in partitions {
                let Some(commit) = commit else { continue };
                let state = CommitState {
                    offset: commit.offset,
                    metadata: commit.metadata.to_string(),
                    topic_id: commit.topic_id,
                };
                all.insert((group.to_string(), topic.to_string(), partition), state);
            }
        }
    }
    all
}

fn commits(store: &Store, state: &State) {
    assert_eq!(
        shown_commits(store),
        state.shown_commits(&state.topics),
        "commits"
    );
}

/// A second process on copies of the disks; the first one knows nothing of it.
pub(super) fn open_copy(
    copies: Vec<MemoryDisk>,
    clock: &Arc<SimClock>,
    options: &Options,
) -> Result<Store, String> {
    let disks = Disks::new(copies, clock, 1, || {});
    Store::open(&disks, clock, options, || {})
}

/// Opens what a power loss right now would leave, and checks it.
pub(super) fn probe_power_loss(world: &mut World, least: &Ends) {
    let mut copies = Vec::new();
    for directory in world.disks.numbers() {
        let seed = world.random.next();
        let copy = world.disks.of(directory).memory.crash(seed);
        copy.set_capacity(None);
        copies.push(copy);
    }
    let store = open_copy(copies, &world.clock, &world.options).expect("it opens after a crash");
    let last = store.last();
    assert!(
        last.reaches(least),
        "a power loss takes {least:?} back to {last:?}"
    );
    check_copy(world, &store, false);
}

/// Compares a store on copies of the disks with the model. Says how many partitions were refused.
pub(super) fn check_copy(world: &World, store: &Store, damaged: bool) -> usize {
    let mut model = world.model.clone();
    model.restart(&store.last());
    whole(store, &model.durable, damaged)
}

/// Whether no file of the checkpoint is damaged.
pub(super) fn checkpoint_is_sound(disk: &MemoryDisk) -> bool {
    let found = CheckpointStore::verify(Arc::new(disk.clone())).expect("it can be read");
    found.damage.is_empty()
}

/// The segment files on a disk.
pub(super) fn segment_files(disk: &MemoryDisk) -> Vec<FileId> {
    let names = disk.list("segments").unwrap_or_default();
    names.iter().filter_map(|name| file_number(name)).collect()
}

fn file_number(name: &str) -> Option<FileId> {
    let digits: String = name
        .chars()
        .take_while(char::is_ascii_alphanumeric)
        .collect();
    digits.parse().ok().map(FileId)
}
