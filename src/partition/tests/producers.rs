//! The budget of idempotent producers, over all partitions.

use super::*;

const LIMIT: u64 = 64 << 10;

/// A store in which each producer has sent one batch, in turns to three partitions.
fn filled(producers: i64) -> (Store, Vec<PartitionKey>) {
    let store = Store::open_with(MemoryDisk::new(), LIMIT);
    store.create_topic("t", 3);
    store.sync();
    let topic = store.topic("t").expect("created");
    let keys: Vec<_> = (0..3)
        .map(|index| topic.partition(index).expect("a partition"))
        .collect();
    for id in 0..producers {
        send(&store, &keys, id, 0);
    }
    store.sync();
    (store, keys)
}

fn send(store: &Store, keys: &[PartitionKey], id: i64, sequence: i32) -> Appended {
    let key = keys[(id % 3) as usize];
    let payload = batch(id as u64, 1, 10, Some((id, sequence)));
    store.append(key, &payload).expect("appended")
}

fn known(store: &Store, keys: &[PartitionKey]) -> Vec<i64> {
    let mut ids = Vec::new();
    for key in keys {
        store.partition(*key).sequenced(|_, sequence| {
            ids.extend(
                sequence
                    .producers
                    .iter()
                    .flat_map(|p| p.iter())
                    .map(|(id, _)| id),
            );
        });
    }
    ids.sort_unstable();
    ids
}

/// What the account says is what is there.
fn check_account(store: &Store, keys: &[PartitionKey]) {
    let mut bytes = 0;
    for key in keys {
        store.partition(*key).sequenced(|_, sequence| {
            bytes += sequence.producers.as_ref().map_or(0, |p| p.bytes());
        });
    }
    assert_eq!(store.opened.registry.producers.account.used(), bytes);
}

#[test]
fn the_producers_idle_longest_are_forgotten_over_all_partitions() {
    let (store, keys) = filled(500);
    let registry = &store.opened.registry;
    assert!(registry.producers.account.excess() > 0);
    assert_eq!(
        known(&store, &keys).len(),
        500,
        "it is seen to in the background"
    );
    registry.bound_producers(store.opened.registry.first());
    assert!(registry.producers.account.used() <= LIMIT * 9 / 10 + 1_024);
    check_account(&store, &keys);
    let left = known(&store, &keys);
    let first = 500 - left.len() as i64;
    assert_eq!(
        left,
        (first..500).collect::<Vec<_>>(),
        "the newest are left"
    );
    assert_eq!(registry.producers.account.denied(), first as u64);
    // One that is known gets its original's offset, one that was forgotten is a new one's.
    assert!(send(&store, &keys, 499, 0).duplicate);
    assert!(!send(&store, &keys, 0, 17).duplicate);
    assert!(send(&store, &keys, 0, 17).duplicate);
    registry.bound_producers(store.opened.registry.first());
    assert_eq!(
        registry.producers.account.denied(),
        first as u64,
        "nothing was to be done"
    );
}

#[test]
fn a_producer_in_use_outlives_any_number_of_others() {
    let (store, keys) = filled(0);
    for id in 0..2_000 {
        send(&store, &keys, 1_000_000, id as i32);
        send(&store, &keys, id, 0);
        if id % 300 == 0 {
            store.sync();
            store
                .opened
                .registry
                .bound_producers(store.opened.registry.first());
        }
    }
    assert!(send(&store, &keys, 1_000_000, 1_999).duplicate);
    check_account(&store, &keys);
}

#[test]
fn far_beyond_the_budget_a_partition_pays_with_its_own() {
    let (store, keys) = filled(0);
    for id in 0..3_000 {
        send(&store, &keys, id, 0);
        // Producers whose batches are not durable stay in any case.
        if id % 50 == 0 {
            store.sync();
        }
    }
    let used = store.opened.registry.producers.account.used();
    assert!(used < LIMIT + LIMIT / 4 + 60 * 144 + 3 * 512, "{used}");
    check_account(&store, &keys);
}

#[test]
fn a_restart_counts_what_it_finds_and_keeps_to_the_budget_as_well() {
    let (mut store, keys) = filled(250);
    store.checkpoint();
    for id in 250..500 {
        send(&store, &keys, id, 0);
    }
    store.sync();
    store
        .opened
        .registry
        .bound_producers(store.opened.registry.first());
    let before = known(&store, &keys);
    let again = Store::open_with(store.disk.crash(1), LIMIT);
    check_account(&again, &keys);
    let found = known(&again, &keys);
    assert!(
        before.iter().all(|id| found.contains(id)),
        "it remembers as much and more"
    );
    again
        .opened
        .registry
        .bound_producers(again.opened.registry.first());
    assert_eq!(known(&again, &keys), before, "and comes to the same choice");
    for id in [499, before[0]] {
        assert!(send(&again, &keys, id, 0).duplicate);
    }
}

#[test]
fn a_deleted_topic_gives_back_what_its_producers_took() {
    let (store, keys) = filled(100);
    check_account(&store, &keys);
    assert!(store.opened.registry.producers.account.used() > 0);
    let topic = store.topic("t").expect("created");
    store.delete_topic(&topic);
    store.sync();
    assert_eq!(store.opened.registry.producers.account.used(), 0);
}
