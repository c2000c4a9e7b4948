//! What clients and the machine do, one operation per file.

use super::jobs::Sim;
use super::world::World;
use super::{check, net};
use crate::types::PartitionKey;

pub(super) mod append;
mod clock;
pub(super) mod commit;
mod compact;
mod configs;
mod damage;
mod delete_group;
pub(super) mod delete_records;
pub(super) mod disk_fault;
pub(super) mod disk_full;
mod disk_slow;
pub(super) mod disk_stuck;
mod end;
mod fetch_offsets;
mod flush;
mod list_offsets;
mod maintain;
pub(super) mod move_shard;
mod probe;
pub(super) mod producer_id;
pub(super) mod read;
pub(super) mod reshape;
mod retry;
mod stop;
pub(super) mod topic_create;
pub(super) mod topic_delete;
mod topic_grow;

/// Names of topics and groups: few, so that they meet.
pub(super) const TOPICS: [&str; 4] = ["a", "b", "c", "d"];
pub(super) const GROUPS: [&str; 3] = ["g0", "g1", "g2"];

type Op = fn(&mut World);

/// What clients do, and the journal: how often, name, operation.
const FOREGROUND: [(u64, &str, Op); 23] = [
    (300, "journal", World::journal_step),
    (180, "append", append::run),
    (50, "retry", retry::run),
    (60, "read", read::run),
    (10, "list offsets", list_offsets::run),
    (16, "delete records", delete_records::run),
    (14, "create topic", topic_create::run),
    (6, "delete topic", topic_delete::run),
    (6, "grow topic", topic_grow::run),
    (30, "reshape", reshape::run),
    (40, "commit", commit::run),
    (24, "fetch offsets", fetch_offsets::run),
    (4, "delete group", delete_group::run),
    (8, "producer id", producer_id::run),
    (4, "configs", configs::run),
    (4, "compact group log", compact::run),
    (30, "time passes", clock::pass),
    (2, "clock jump", clock::jump),
    (220, "network", net::run),
    (60, "producer", net::produce),
    (120, "member", net::take_part),
    (24, "reader", net::consume),
    (12, "cut", net::cut),
];

/// What goes wrong, and looks at what would.
const FAULTS: [(u64, &str, Op); 8] = [
    (10, "end", end::now),
    (16, "end soon", end::soon),
    (3, "disk fault", disk_fault::run),
    (4, "disk full", disk_full::run),
    (3, "slow disk", disk_slow::run),
    (5, "stuck disk", disk_stuck::run),
    (12, "probe", probe::run),
    (6, "damage", damage::run),
];

type Job = fn(&Sim);

/// Background jobs: they run in the middle of everything else.
const JOBS: [(u64, &str, Job); 6] = [
    (30, "maintenance", maintain::run),
    (12, "flush", flush::run),
    (4, "checkpoint", flush::checkpoint),
    (10, "merge", Sim::merge),
    (10, "move", move_shard::run),
    (1, "stop", stop::run),
];

fn total<T>(table: &[(u64, &str, T)]) -> u64 {
    table.iter().map(|(weight, ..)| weight).sum()
}

fn pick<T: Copy>(table: &[(u64, &'static str, T)], mut at: u64) -> (&'static str, T) {
    for (weight, name, op) in table {
        if at < *weight {
            return (name, *op);
        }
        at -= weight;
    }
    panic!("a choice beyond its table")
}

/// One thing that a client or the journal does, followed by a look at all that is visible.
pub(super) fn foreground(world: &mut World) -> &'static str {
    let at = world.random.below(total(&FOREGROUND));
    let (name, op) = pick(&FOREGROUND, at);
    run(world, op);
    name
}

fn run(world: &mut World, op: Op) {
    world.follow();
    op(world);
    if world.is_up() {
        world.follow();
        check::visible(world);
    }
}

/// One step of a history.
pub(super) fn step(sim: &Sim, number: u64) {
    let (clients, faults, jobs) = (total(&FOREGROUND), total(&FAULTS), total(&JOBS));
    let mut world = sim.world.borrow_mut();
    let at = world.random.below(clients + faults + jobs);
    let name = if at < clients {
        foreground(&mut world)
    } else if at < clients + faults {
        let (name, op) = pick(&FAULTS, at - clients);
        run(&mut world, op);
        name
    } else {
        drop(world);
        let (name, job) = pick(&JOBS, at - clients - faults);
        job(sim);
        world = sim.world.borrow_mut();
        name
    };
    disk_full::tick(&mut world);
    disk_stuck::tick(&mut world);
    world.note(number, name);
    if !world.is_up() {
        end::note(&mut world);
        world.restart();
        world.note(number, "restart");
    }
}

/// A partition that clients know of, if there is one.
pub(super) fn any_partition(world: &mut World) -> Option<PartitionKey> {
    let keys: Vec<_> = world.model.durable.logs.keys().copied().collect();
    world.random.pick(&keys).copied()
}

/// A topic that clients know of, if there is one.
pub(super) fn any_topic(world: &mut World) -> Option<String> {
    let names: Vec<_> = world.model.durable.topics.keys().cloned().collect();
    world.random.pick(&names).cloned()
}
