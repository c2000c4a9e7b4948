//! The budget of all groups together.

use super::tests::*;
use super::*;

fn settings() -> Settings {
    Settings {
        memory_bytes: 64 << 10,
        ..Settings::default()
    }
}

#[tokio::test(start_paused = true)]
async fn groups_of_all_partitions_share_one_budget_also_after_a_restart() {
    let world = World::new(settings()).ready().await;
    let mut taken = 0;
    for n in 0..200 {
        if world.commit(&format!("g{n}"), 0, 5).value.is_none() {
            taken += 1;
        }
    }
    assert!((10..100).contains(&taken), "{taken}");
    let memory = &world.groups.memory;
    assert!(memory.used() <= memory.limit());
    assert_eq!(memory.denied(), 200 - taken);
    assert_eq!(world.groups.stats().census.commits, taken);
    assert_eq!(
        world.commit("g0", 0, 6).value,
        None,
        "what is there is kept up to date"
    );
    let used = memory.used();

    let world = world.restarted(settings()).await;
    assert_eq!(world.groups.memory.used(), used);
    let refused = world.commit("another", 0, 1).value;
    assert_eq!(refused, Some(ResponseError::PolicyViolation));
    assert_eq!(world.committed("g0"), Some(6));

    for n in 0..200 {
        let _ = world.groups.delete(format!("g{n}").into());
    }
    assert_eq!(world.groups.memory.used(), 0);
    assert_eq!(world.commit("another", 0, 1).value, None);
}

#[tokio::test(start_paused = true)]
async fn what_is_loaded_beyond_the_budget_is_served() {
    let world = World::new(Settings::default()).ready().await;
    for n in 0..200 {
        assert_eq!(world.commit(&format!("g{n}"), 0, 5).value, None);
    }
    let world = world.restarted(settings()).await;
    let memory = &world.groups.memory;
    assert!(memory.excess() > memory.limit());
    assert_eq!(world.committed("g199"), Some(5));
    assert_eq!(world.commit("g199", 0, 6).value, None);
    assert!(world.commit("g199", 1, 6).value.is_some());
}
