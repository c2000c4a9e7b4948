//! Replay, checkpoint and encodings, under random wishes.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use proptest::prelude::*;

use super::{FakeJournal, configs, environment, new_topic, same};
use crate::catalog::codec::Configs;
use crate::catalog::*;
use crate::store::journal::Journal;
use crate::types::{Position, TopicNo};

fn name() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "b.c", "b_c", "d-e", "f", "__consumer_offsets"])
        .prop_map(str::to_owned)
}

fn some_configs() -> impl Strategy<Value = Configs> {
    let pair = prop::sample::select(vec![
        ("retention.ms", "1000"),
        ("cleanup.policy", "compact"),
        ("shard.count", "2"),
        ("max.message.bytes", "77"),
    ]);
    prop::collection::vec(pair, 0..3).prop_map(|pairs| configs(&pairs))
}

/// What somebody may ask of the catalog.
#[derive(Clone, Debug)]
enum Wish {
    Create {
        name: String,
        id: u128,
        partitions: i32,
        configs: Configs,
    },
    CreateManual {
        name: String,
        id: u128,
        replicas: Vec<(i32, Vec<i32>)>,
    },
    Delete(String),
    Grow {
        name: String,
        to: i32,
        assigned: bool,
    },
    TopicConfigs(String, Configs),
    BrokerConfigs(Option<i32>, u32),
    GroupConfigs(String, bool),
    ProducerIds,
    Reshape {
        name: String,
        first: usize,
        count: usize,
        cut: u32,
    },
}

fn wish() -> impl Strategy<Value = Wish> {
    prop_oneof![
        4 => (name(), any::<u128>(), 1i32..40, some_configs()).prop_map(
            |(name, id, partitions, configs)| Wish::Create { name, id, partitions, configs }
        ),
        1 => (name(), any::<u128>(), 1i32..4).prop_map(|(name, id, count)| {
            let replicas = (0..count).rev().map(|p| (p, vec![p + 1, 9])).collect();
            Wish::CreateManual { name, id, replicas }
        }),
        2 => name().prop_map(Wish::Delete),
        2 => (name(), 1i32..90, any::<bool>())
            .prop_map(|(name, to, assigned)| Wish::Grow { name, to, assigned }),
        2 => (name(), some_configs()).prop_map(|(name, configs)| Wish::TopicConfigs(name, configs)),
        1 => (prop::option::of(0i32..3), 0u32..3).prop_map(|(b, n)| Wish::BrokerConfigs(b, n)),
        1 => (name(), any::<bool>()).prop_map(|(group, set)| Wish::GroupConfigs(group, set)),
        1 => Just(Wish::ProducerIds),
        4 => (name(), any::<usize>(), 1usize..3, any::<u32>())
            .prop_map(|(name, first, count, cut)| Wish::Reshape { name, first, count, cut }),
    ]
}

fn grant(image: &Image, wish: &Wish) -> Result<Change, CatalogError> {
    let no = |name: &str| image.topic(name).map_or(TopicNo(0), |t| t.no);
    match wish {
        Wish::Create {
            name,
            id,
            partitions,
            configs,
        } => {
            let new = new_topic(name, *id, *partitions);
            image.create_topic(&NewTopic {
                configs: configs.clone(),
                ..new
            })
        }
        Wish::CreateManual { name, id, replicas } => image.create_topic(&NewTopic {
            replication_factor: -1,
            assignments: replicas.clone(),
            ..new_topic(name, *id, -1)
        }),
        Wish::Delete(name) => image.delete_topic(no(name)),
        Wish::Grow { name, to, assigned } => {
            let have = image.topic(name).map_or(0, |t| t.partitions as i32);
            let factor = image
                .topic(name)
                .map_or(0, |t| i32::from(t.replication_factor));
            let added = if *assigned { (to - have).max(0) } else { 0 };
            let assignments = vec![(0..factor).collect(); added as usize];
            image.add_partitions(no(name), *to, &assignments, None, 2_000)
        }
        Wish::TopicConfigs(name, configs) => image.set_topic_configs(no(name), configs.clone()),
        Wish::BrokerConfigs(broker, n) => {
            let all = [("log.retention.ms", "9"), ("log.cleanup.policy", "compact")];
            image.set_broker_configs(*broker, configs(&all[..*n as usize]))
        }
        Wish::GroupConfigs(group, set) => {
            let all = [("consumer.session.timeout.ms", "50000")];
            image.set_group_configs(group, configs(&all[..usize::from(*set)]))
        }
        Wish::ProducerIds => Ok(Change::ProducerIdsReserved {
            next: image.next_producer_id() + 1000,
        }),
        Wish::Reshape {
            name,
            first,
            count,
            cut,
        } => reshape(image, no(name), *first, *count, *cut),
    }
}

/// Some neighbours replaced by two shards, or by one.
fn reshape(
    image: &Image,
    no: TopicNo,
    first: usize,
    count: usize,
    cut: u32,
) -> Result<Change, CatalogError> {
    let refused = |e: ReshapeError| CatalogError::InvalidRequest(e.to_string());
    let topic = image.topic_by_no(no).ok_or(ReshapeError::UnknownTopic);
    let shards = topic.map_err(refused)?.layout.shards();
    let from = &shards[first % shards.len()..];
    let run: Vec<_> = from
        .iter()
        .take_while(|shard| shard.home == from[0].home)
        .take(count)
        .collect();
    let slots: u32 = run.iter().map(|s| s.slots).sum();
    let left = cut % slots;
    let parts = [left, slots - left];
    let sealed: Vec<_> = run.iter().map(|s| s.id).collect();
    match image.reshape_topic(no, &sealed, &parts[usize::from(left == 0)..]) {
        Ok(Decision::Plan(plan)) => {
            let starts = plan.partitions.iter().map(|p| i64::from(p * plan.epoch));
            Ok(plan.change(starts.collect(), 3_000))
        }
        other => panic!("open neighbours can be replaced: {other:?}"),
    }
}

/// Settings never lag behind what they follow from, and no number is given out twice.
fn holds_the_rules(image: &Image) {
    let mut shards = BTreeSet::new();
    for topic in image.topics() {
        assert_eq!(topic.settings, image.settings(&topic.configs));
        assert_eq!(topic.partitions, topic.layout.partitions());
        assert!(topic.no < image.next_topic());
        for shard in topic.layout.shards() {
            assert!(shard.id < image.next_shard() && shards.insert(shard.id));
        }
    }
    assert_eq!(image.bytes(), image.weigh(), "growth adds up");
    assert!(matches!(image.lookup(TopicNo(0)), TopicLookup::Never));
    assert!(matches!(
        image.lookup(image.next_topic()),
        TopicLookup::Never
    ));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn replay_and_checkpoint_give_the_live_image(
        wishes in prop::collection::vec(wish(), 0..40),
        cut in any::<prop::sample::Index>(),
        lag in 1usize..5,
    ) {
        let journal = FakeJournal::new();
        let live = Catalog::new(Image::empty(environment()));
        live.attach(Arc::clone(&journal) as Arc<dyn Journal>);
        let versions = live.subscribe();
        let mut images = vec![live.image()];
        let mut applied = 0;
        let mut catch_up = |to: usize| {
            let payloads = journal.payloads();
            for (position, payload) in payloads.iter().take(to).skip(applied) {
                live.apply_durable(*position, &Change::decode(payload).unwrap()).unwrap();
                images.push(live.image());
            }
            applied = applied.max(to);
        };
        for wish in &wishes {
            let before = live.sequenced();
            match live.propose(|image| grant(image, wish)) {
                Ok(position) => {
                    prop_assert_eq!(live.sequenced().position(), position);
                    prop_assert_eq!(live.sequenced().version(), before.version() + 1);
                    prop_assert!(live.sequenced().next_topic() >= before.next_topic());
                }
                Err(_) => prop_assert!(Arc::ptr_eq(&live.sequenced(), &before)),
            }
            holds_the_rules(&live.sequenced());
            catch_up(journal.payloads().len().saturating_sub(lag));
        }
        let payloads = journal.payloads();
        catch_up(payloads.len());
        let last = live.image();
        prop_assert!(Arc::ptr_eq(&last, &live.sequenced()));
        prop_assert_eq!(*versions.borrow(), payloads.len() as u64);

        // A checkpoint taken anywhere, and the whole journal after it.
        let captured = cut.get(&images);
        let sections = captured.encode();
        prop_assert!(sections.iter().all(|s| s.len() <= 1 << 20));
        let parts = sections.iter().rev().map(AsRef::as_ref);
        let loaded = Image::decode(parts, environment()).unwrap();
        same(captured, &loaded);
        holds_the_rules(&loaded);
        let replayed = Catalog::new(loaded);
        for (position, payload) in &payloads {
            replayed.apply_durable(*position, &Change::decode(payload).unwrap()).unwrap();
        }
        same(&replayed.image(), &last);
        prop_assert!(Arc::ptr_eq(&replayed.image(), &replayed.sequenced()));
        for no in 1..last.next_topic().0 {
            prop_assert!(!matches!(last.lookup(TopicNo(no)), TopicLookup::Never));
        }
    }

    #[test]
    fn changes_survive_their_encoding(wishes in prop::collection::vec(wish(), 1..30)) {
        let mut image = Image::empty(environment());
        for wish in &wishes {
            let Ok(change) = grant(&image, wish) else { continue };
            let bytes = change.encode();
            prop_assert_eq!(Change::decode(&bytes), Ok(change.clone()));
            for end in 0..bytes.len() {
                prop_assert!(Change::decode(&bytes[..end]).is_err());
            }
            image = image.apply(&change, Position(1)).unwrap();
        }
    }

    #[test]
    fn arbitrary_bytes_are_refused_calmly(mut bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let _ = Change::decode(&bytes);
        let _ = Image::decode([bytes.as_slice()], environment());
        if let Some(first) = bytes.first_mut() {
            *first = *first % 2 + 1;
        }
        if let Ok(change) = Change::decode(&bytes) {
            let _ = Image::empty(environment()).apply(&change, Position(1));
        }
        let _ = Image::decode([bytes.as_slice()], environment());
    }

    #[test]
    fn a_damaged_checkpoint_is_refused_or_whole(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        static SECTION: OnceLock<Vec<u8>> = OnceLock::new();
        let section = SECTION.get_or_init(|| {
            let mut image = Image::empty(environment());
            for (i, name) in ["a", "b.c", "d"].into_iter().enumerate() {
                let new = new_topic(name, i as u128 + 1, 6);
                let change = image.create_topic(&new).unwrap();
                image = image.apply(&change, Position(1)).unwrap();
            }
            let change = image.add_partitions(TopicNo(1), 9, &[], None, 3).unwrap();
            image = image.apply(&change, Position(4)).unwrap();
            for cut in [1, 2, 5, 0] {
                let change = reshape(&image, TopicNo(1), 0, 2, cut).unwrap();
                image = image.apply(&change, Position(5)).unwrap();
            }
            image.encode()[0].to_vec()
        });
        let mut bytes = section.clone();
        for (at, value) in flips {
            *at.get_mut(&mut bytes) = value;
        }
        if let Ok(image) = Image::decode([bytes.as_slice()], environment()) {
            for topic in image.topics() {
                for partition in 0..topic.partitions {
                    prop_assert!(topic.shard_of(partition).is_some());
                }
            }
        }
    }
}
