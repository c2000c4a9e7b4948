//! OffsetFetch: shows what is sequenced, and waits for it to be durable.

use crate::sim::check::shown_commits;
use crate::sim::model::CommitKey;
use crate::sim::ops::GROUPS;
use crate::sim::seen::Branch;
use crate::sim::world::World;

pub(in crate::sim) fn run(world: &mut World) {
    let group = GROUPS[world.random.below(GROUPS.len() as u64) as usize];
    let store = world.store();
    let after = store.groups.all_commits(group).expect("loaded").after;
    let of_group = |key: &CommitKey| key.0 == group;
    let mut shown = shown_commits(store);
    shown.retain(|key, _| of_group(key));
    // Topics are shown as they are durable, commits as they are sequenced.
    let model = &world.model;
    let mut expected = model.sequenced.shown_commits(&model.durable.topics);
    expected.retain(|key, _| of_group(key));
    assert_eq!(shown, expected, "commits of {group}");
    let all = model.sequenced.commits.keys().filter(|key| of_group(key));
    if all.count() > expected.len() {
        world.seen.note(Branch::CommitOfDeletedTopic);
    }
    let changed = world.model.commit_changed.iter();
    let truth = changed.filter(|(key, _)| of_group(key)).map(|(_, at)| *at);
    if let Some(truth) = truth.max() {
        world.answer(after, truth);
    }
}
