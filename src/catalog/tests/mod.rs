//! Rules of the catalog as a whole.

mod replay;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::watch;
use uuid::Uuid;

use super::codec::{Configs, DecodeError};
use super::*;
use crate::store::journal::{Entry, EntryKind, Journal};
use crate::types::{DirectoryId, Position, ShardId, TopicNo};

pub(super) fn environment() -> Environment {
    Environment {
        node_id: 1,
        directories: directories(),
        ..Environment::default()
    }
}

fn directories() -> Vec<DirectoryId> {
    let others = [5, 9].map(|id| DirectoryId(Uuid::from_u128(id)));
    std::iter::once(DirectoryId::FIRST).chain(others).collect()
}

pub(super) fn new_topic(name: &str, id: u128, partitions: i32) -> NewTopic {
    NewTopic {
        name: name.to_owned(),
        id: Uuid::from_u128(id),
        partitions,
        replication_factor: 1,
        at_ms: 1_000,
        ..NewTopic::default()
    }
}

pub(super) fn configs(pairs: &[(&str, &str)]) -> Configs {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

/// Everything of an image that its encoding keeps, and what follows from it.
pub(super) fn same(a: &Image, b: &Image) {
    assert_eq!(a.encode(), b.encode());
    assert!(a.topics().eq(b.topics()));
    for topic in a.topics() {
        assert_eq!(b.topic_by_id(topic.id), Some(topic));
        assert_eq!(b.topic(&topic.name), Some(topic));
        assert_eq!(b.colliding(&topic.name), a.colliding(&topic.name));
    }
}

/// A journal that keeps entries and becomes durable when told.
pub(super) struct FakeJournal {
    entries: Mutex<Vec<Bytes>>,
    durable: watch::Sender<Position>,
}

impl FakeJournal {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            entries: Mutex::default(),
            durable: watch::Sender::new(Position(0)),
        })
    }

    pub(super) fn payloads(&self) -> Vec<(Position, Bytes)> {
        (1..)
            .map(Position)
            .zip(self.entries.lock().unwrap().iter().cloned())
            .collect()
    }
}

impl Journal for FakeJournal {
    fn append(&self, entry: Entry) -> Position {
        assert_eq!(entry.kind, EntryKind::Catalog);
        let mut entries = self.entries.lock().unwrap();
        entries.push(entry.payload);
        Position(entries.len() as u64)
    }

    fn durable(&self) -> Position {
        *self.durable.borrow()
    }

    fn subscribe(&self) -> watch::Receiver<Position> {
        self.durable.subscribe()
    }

    fn appended(&self) -> Position {
        Position(self.entries.lock().unwrap().len() as u64)
    }

    fn trim(&self, _through: Position) {}

    fn live_bytes(&self) -> u64 {
        0
    }

    fn close(&self) {}
}

#[test]
fn a_newer_version_is_refused_with_a_sentence() {
    let error = Change::decode(&[3, 7, 0]).unwrap_err();
    assert_eq!(
        error,
        DecodeError::Newer {
            what: "a catalog change",
            found: 3,
            known: 2
        }
    );
    assert!(error.to_string().contains("start the newer program"));
    assert!(Image::decode([&[3u8][..]], environment()).is_err());
    assert!(
        Image::decode([&[1u8][..]], environment()).is_err(),
        "without marks"
    );
}

#[test]
fn changes_that_do_not_fit_are_corruption() {
    let image = Image::empty(environment());
    let create = image.create_topic(&new_topic("a", 1, 1)).unwrap();
    let image = image.apply(&create, Position(1)).unwrap();
    assert!(image.apply(&create, Position(2)).is_err());
    assert!(
        image
            .apply(&Change::TopicDeleted { no: TopicNo(2) }, Position(2))
            .is_err()
    );
    let grow = |to| Change::PartitionsAdded {
        no: TopicNo(1),
        to,
        replicas: Replicas::new(),
        at_ms: 0,
    };
    assert!(image.apply(&grow(1), Position(2)).is_err());
    assert!(image.apply(&grow(u32::MAX), Position(2)).is_err());
    assert!(image.apply(&grow(2), Position(2)).is_ok());
}

#[test]
fn names_are_checked_and_kept_apart() {
    let catalog = Catalog::in_memory(Image::empty(environment()));
    let create =
        |name: &str, id: u128| catalog.propose(|image| image.create_topic(&new_topic(name, id, 1)));
    create("a.b", 1).unwrap();
    let refused = |name: &str| create(name, 2).unwrap_err();
    assert_eq!(
        refused("a.b"),
        CatalogError::TopicExists("Topic 'a.b' already exists.".to_owned())
    );
    assert_eq!(
        refused("a_b"),
        CatalogError::InvalidTopic("Topic 'a_b' collides with existing topic: a.b".to_owned())
    );
    let long = "x".repeat(250);
    for name in ["", ".", "..", "a b", "a/b", "ä", "a\n", long.as_str()] {
        assert!(
            matches!(refused(name), CatalogError::InvalidTopic(_)),
            "{name:?}"
        );
    }
    create(&"x".repeat(249), 3).unwrap();
    create("a-b", 4).unwrap();
    // A deleted topic frees its name for others at once.
    let no = catalog.image().topic("a.b").unwrap().no;
    catalog.propose(|image| image.delete_topic(no)).unwrap();
    create("a_b", 5).unwrap();
    assert!(matches!(catalog.image().lookup(no), TopicLookup::Deleted));
}

#[test]
fn shapes_are_checked() {
    let image = Image::empty(environment());
    let base = || new_topic("t", 1, -1);
    let kind = |new: NewTopic| image.create_topic(&new).unwrap_err();
    assert!(matches!(
        kind(new_topic("t", 1, 0)),
        CatalogError::InvalidPartitions(_)
    ));
    assert!(matches!(
        kind(new_topic("t", 1, -2)),
        CatalogError::InvalidPartitions(_)
    ));
    assert!(matches!(
        kind(new_topic("t", 1, 20_000)),
        CatalogError::PolicyViolation(_)
    ));
    let factor = |f| {
        kind(NewTopic {
            replication_factor: f,
            ..base()
        })
    };
    assert!(matches!(
        factor(0),
        CatalogError::InvalidReplicationFactor(_)
    ));
    assert!(matches!(
        factor(-2),
        CatalogError::InvalidReplicationFactor(_)
    ));
    let manual = |assignments: &[(i32, &[i32])]| NewTopic {
        replication_factor: -1,
        assignments: assignments.iter().map(|(p, r)| (*p, r.to_vec())).collect(),
        known_brokers: Some(vec![1, 2]),
        ..base()
    };
    for bad in [
        manual(&[(2, &[1])]),
        manual(&[(0, &[1]), (0, &[1])]),
        manual(&[(0, &[])]),
        manual(&[(0, &[1, 1])]),
        manual(&[(0, &[78])]),
        manual(&[(0, &[1]), (1, &[1, 2])]),
    ] {
        assert!(matches!(
            kind(bad),
            CatalogError::InvalidReplicaAssignment(_)
        ));
    }
    let counted = NewTopic {
        partitions: 1,
        ..manual(&[(0, &[1])])
    };
    assert!(matches!(kind(counted), CatalogError::InvalidRequest(_)));
    let good = image
        .create_topic(&manual(&[(1, &[2, 1]), (0, &[1, 2])]))
        .unwrap();
    let image = image.apply(&good, Position(1)).unwrap();
    let topic = image.topic("t").unwrap();
    assert_eq!((topic.partitions, topic.replication_factor), (2, 2));
    assert_eq!(topic.manual_replicas(1), Some(&[2, 1][..]));
    assert_eq!(topic.partition(1).map(|k| k.index), Some(1));
    assert_eq!((topic.partition(2), topic.partition(-1)), (None, None));
}

#[test]
fn configs_change_bit_by_bit() {
    let catalog = Catalog::in_memory(Image::empty(environment()));
    catalog
        .propose(|image| image.create_topic(&new_topic("t", 1, 1)))
        .unwrap();
    let alter = |ops: &[(&str, AlterOp, Option<&str>)]| {
        let changes: Vec<Alteration> = ops
            .iter()
            .map(|(name, op, value)| Alteration {
                name: (*name).to_owned(),
                op: *op,
                value: value.map(str::to_owned),
            })
            .collect();
        catalog.propose(|image| {
            image.alter_topic_configs(image.topic("t").expect("created above"), &changes)
        })
    };
    let text = |ops: &[_]| alter(ops).unwrap_err().to_string();
    let policy = || {
        catalog
            .image()
            .topic("t")
            .unwrap()
            .configs
            .get("cleanup.policy")
            .cloned()
    };
    alter(&[("cleanup.policy", AlterOp::Append, Some("compact"))]).unwrap();
    assert_eq!(policy().as_deref(), Some("delete,compact"));
    alter(&[("cleanup.policy", AlterOp::Subtract, Some("delete"))]).unwrap();
    let settings = Arc::clone(&catalog.image().topic("t").unwrap().settings);
    assert!(settings.cleanup_compact && !settings.cleanup_delete);
    alter(&[
        ("cleanup.policy", AlterOp::Delete, None),
        ("no.such", AlterOp::Delete, None),
    ])
    .unwrap();
    assert_eq!(policy(), None);
    assert_eq!(
        text(&[("retention.ms", AlterOp::Append, Some("1"))]),
        "Can't APPEND to key retention.ms because its type is not LIST."
    );
    assert_eq!(
        text(&[("retention.ms", AlterOp::Set, None)]),
        "Null value not supported for : retention.ms"
    );
    let twice = ("retention.ms", AlterOp::Set, Some("1"));
    assert_eq!(text(&[twice, twice]), "Error due to duplicate config keys");
    assert_eq!(AlterOp::from_wire(3), Some(AlterOp::Subtract));
    assert_eq!(AlterOp::from_wire(9), None);
}

#[test]
fn broker_configs_reach_topics_and_only_dynamic_ones_change() {
    let fixed = configs(&[("message.max.bytes", "500")]);
    let image = Image::empty(Environment {
        node_id: 1,
        fixed,
        ..Environment::default()
    });
    let catalog = Catalog::in_memory(image);
    catalog
        .propose(|image| image.create_topic(&new_topic("t", 1, 1)))
        .unwrap();
    let limit = || {
        catalog
            .image()
            .topic("t")
            .unwrap()
            .settings
            .max_message_bytes
    };
    assert_eq!(limit(), 500);
    let set = |broker, pairs: &[(&str, &str)]| {
        catalog.propose(|image| image.set_broker_configs(broker, configs(pairs)))
    };
    set(None, &[("message.max.bytes", "600")]).unwrap();
    assert_eq!(limit(), 600);
    set(Some(2), &[("message.max.bytes", "650")]).unwrap();
    assert_eq!(limit(), 600);
    set(Some(1), &[("message.max.bytes", "700")]).unwrap();
    assert_eq!(limit(), 700);
    let image = catalog.image();
    assert_eq!(image.describe_broker_default(None).len(), 2);
    assert_eq!(
        image.broker_value("message.max.bytes").as_deref(),
        Some("700")
    );
    set(Some(1), &[]).unwrap();
    assert_eq!(limit(), 600);
    assert_eq!(
        set(Some(1), &[("log.dirs", "/x")]).unwrap_err(),
        CatalogError::InvalidRequest(
            "Cannot update these configs dynamically: [log.dirs]".to_owned()
        )
    );
    assert!(set(None, &[("ssl.keystore.type", "PEM")]).is_err());
    assert!(set(Some(1), &[("no.such", "1")]).is_err());
    let group = catalog.propose(|image| {
        image.set_group_configs("g", configs(&[("consumer.session.timeout.ms", "50000")]))
    });
    group.unwrap();
    let value = catalog
        .image()
        .group_value("g", "consumer.session.timeout.ms");
    assert_eq!(value.as_deref(), Some("50000"));
}

#[test]
fn producer_ids_are_reserved_in_blocks_before_use() {
    let journal = FakeJournal::new();
    let catalog = Catalog::new(Image::empty(environment()));
    catalog.attach(Arc::clone(&journal) as Arc<dyn Journal>);
    let given: Vec<_> = (0..1001).map(|_| catalog.allocate_producer_id()).collect();
    assert!(given.iter().map(|g| g.0).eq(0..1001));
    assert_eq!(
        (given[0].1, given[999].1, given[1000].1),
        (Position(1), Position(1), Position(2))
    );
    for (position, payload) in journal.payloads() {
        catalog
            .apply_durable(position, &Change::decode(&payload).unwrap())
            .unwrap();
    }
    let after = Catalog::in_memory(catalog.image().as_ref().clone());
    assert_eq!(after.allocate_producer_id().0, 2000);
}

#[test]
fn guards_are_held_until_the_change_has_its_place() {
    let journal = FakeJournal::new();
    let catalog = Catalog::new(Image::empty(environment()));
    catalog.attach(Arc::clone(&journal) as Arc<dyn Journal>);
    catalog
        .propose(|image| image.create_topic(&new_topic("t", 1, 1)))
        .unwrap();
    let shard = parking_lot::Mutex::new(());
    let mut sequencer = catalog.lock();
    let change = sequencer.image().delete_topic(TopicNo(1)).unwrap();
    let guard = shard.lock();
    let position = sequencer.sequence(&change);
    drop(sequencer);
    assert!(shard.try_lock().is_none());
    assert_eq!(journal.appended(), position);
    drop(guard);
    // Sequenced, but not shown before it is durable.
    assert!(catalog.sequenced().topic("t").is_none());
    assert_eq!(catalog.image().version(), 0);
    let payloads = journal.payloads();
    let wrong = Change::decode(&payloads[1].1).unwrap();
    assert!(
        catalog.apply_durable(Position(2), &wrong).is_err(),
        "out of order"
    );
}

#[test]
fn thousands_of_topics_are_created_quickly_and_fit_in_sections() {
    let catalog = Catalog::in_memory(Image::empty(environment()));
    let start = Instant::now();
    for i in 0..5_000u128 {
        let name = format!("topic.{i}");
        let create = |image: &Image| image.create_topic(&new_topic(&name, i + 1, 16));
        catalog.propose(create).unwrap();
    }
    let took = start.elapsed();
    assert!(took < Duration::from_secs(5), "5 000 topics took {took:?}");
    println!("5 000 topics: {took:?}");
    let image = catalog.image();
    assert_eq!(image.topic_count(), 5_000);
    assert_eq!(image.next_shard(), ShardId(5_001));
    let start = Instant::now();
    let sections = image.encode();
    println!("{} sections, {:?}", sections.len(), start.elapsed());
    assert!(sections.iter().all(|s| s.len() <= 1 << 20));
    let start = Instant::now();
    let loaded = Image::decode(sections.iter().map(AsRef::as_ref), environment()).unwrap();
    println!("loaded in {:?}", start.elapsed());
    same(&image, &loaded);
}

#[test]
fn new_topics_go_where_the_fewest_partitions_are() {
    let mut image = Image::empty(environment());
    let mut create = |name: &str, id, partitions, shards: &str| {
        let mut new = new_topic(name, id, partitions);
        new.configs
            .insert("shard.count".to_owned(), shards.to_owned());
        let change = image.create_topic(&new).unwrap();
        image = image.apply(&change, Position(id as u64)).unwrap();
        let topic = image.topic(name).unwrap();
        let homes = topic.layout.shards().iter().map(|shard| shard.home);
        let known = directories();
        homes
            .map(|home| known.iter().position(|d| *d == home).unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(create("a", 1, 4, "1"), [0]);
    assert_eq!(create("b", 2, 6, "1"), [1]);
    assert_eq!(create("c", 3, 9, "3"), [2, 2, 0]);
    assert_eq!(create("d", 4, 2, "2"), [1, 2]);
    assert_eq!(create("__consumer_offsets", 5, 50, "2"), [0, 0]);
}
