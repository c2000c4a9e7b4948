//! Reshape: what clients must not notice, and what must survive it.

use super::*;
use crate::catalog::ReshapeError;
use crate::partition::Reshaped;
use crate::types::ShardId;

impl Store {
    fn shards(&self, topic: &Topic) -> Vec<(ShardId, u32)> {
        let image = self.opened.catalog.sequenced();
        let layout = &image.topic_by_no(topic.no).expect("it is there").layout;
        layout.shards().iter().map(|s| (s.id, s.slots)).collect()
    }

    fn reshape(&self, topic: &Topic, sealed: &[u64], opened: &[u32]) -> Reshaped {
        self.try_reshape(topic, sealed, opened).expect("a reshape")
    }

    fn try_reshape(
        &self,
        topic: &Topic,
        sealed: &[u64],
        opened: &[u32],
    ) -> Result<Reshaped, ReshapeError> {
        let sealed: Vec<_> = sealed.iter().map(|id| ShardId(*id)).collect();
        self.opened.registry.reshape(topic.no, &sealed, opened)
    }

    fn with_topic(partitions: i32) -> (Self, Arc<Topic>) {
        let store = Self::open(MemoryDisk::new());
        store.create_topic("t", partitions);
        store.sync();
        let topic = store.topic("t").expect("created");
        (store, topic)
    }
}

fn ids(shards: &[(ShardId, u32)]) -> Vec<u64> {
    shards.iter().map(|(id, _)| id.0).collect()
}

#[test]
fn a_split_and_a_merge_keep_offsets_records_and_duplicates() {
    let (store, topic) = Store::with_topic(4);
    let keys: Vec<_> = (0..4).map(|i| topic.partition(i).expect("one")).collect();
    let send = |round: u64| {
        for (n, key) in (0..).zip(&keys) {
            let payload = batch(round * 10 + n, 2, 50, Some((7, round as i32 * 2)));
            let appended = store.append(*key, &payload).expect("appended");
            assert_eq!(appended.base_offset, round as i64 * 2);
            let again = store.append(*key, &payload).expect("answered");
            assert_eq!(
                (again.base_offset, again.duplicate),
                (round as i64 * 2, true)
            );
        }
    };
    send(0);
    let split = store.reshape(&topic, &[1], &[1, 3]);
    assert_eq!(
        (split.epoch, &split.opened[..]),
        (2, &[ShardId(2), ShardId(3)][..])
    );
    send(1);
    store.sync();
    store.flush();
    let merged = store.reshape(&topic, &[3, 2], &[4]);
    assert_eq!(merged.opened, [ShardId(4)]);
    send(2);
    store.sync();
    // What was sent in an earlier shard is known in the later ones.
    let first = batch(0, 2, 50, Some((7, 0)));
    let again = store.append(keys[0], &first).expect("answered");
    assert_eq!((again.base_offset, again.duplicate), (0, true));
    let check = |store: &Store| {
        for key in &keys {
            let bases: Vec<_> = store.read_all(*key).iter().map(|(base, _)| *base).collect();
            assert_eq!(bases, [0, 2, 4]);
        }
        assert_eq!(ids(&store.shards(&topic)), [4]);
    };
    check(&store);
    let disk = store.disk.crash(1);
    store.opened.directories[0].journal.close();
    check(&Store::open(disk));
}

#[test]
fn a_repetition_answers_the_same_and_what_does_not_fit_is_refused() {
    let (store, topic) = Store::with_topic(4);
    let first = store.reshape(&topic, &[1], &[2, 2]);
    let again = store.reshape(&topic, &[1], &[2, 2]);
    assert_eq!((again.epoch, &again.opened), (first.epoch, &first.opened));
    assert!(again.repeated && again.position >= first.position);
    let refused = |sealed: &[u64], opened: &[u32]| {
        store
            .try_reshape(&topic, sealed, opened)
            .expect_err("it does not fit")
    };
    assert!(matches!(
        refused(&[1], &[1, 3]),
        ReshapeError::Sealed { .. }
    ));
    assert!(matches!(
        refused(&[9], &[1]),
        ReshapeError::UnknownShard { .. }
    ));
    assert!(matches!(
        refused(&[2], &[1, 2]),
        ReshapeError::DoesNotCover { .. }
    ));
    assert!(matches!(
        refused(&[2], &[0, 2]),
        ReshapeError::DoesNotCover { .. }
    ));
    assert_eq!(refused(&[], &[]), ReshapeError::BadNames);
    assert_eq!(refused(&[2, 2], &[4]), ReshapeError::BadNames);
    store.reshape(&topic, &[2], &[1, 1]);
    assert!(matches!(
        refused(&[4, 3], &[3]),
        ReshapeError::NotAdjacent { .. }
    ));
    store.delete_topic(&topic);
    assert_eq!(refused(&[4, 5], &[2]), ReshapeError::UnknownTopic);
}
