//! One history for each fault that a careless store would have.

use std::sync::Arc;

use super::check;
use super::jobs::Sim;
use super::model::Sent;
use super::ops;
use super::power::End;
use super::store::Options;
use super::world::World;
use crate::store::journal::stepped::Stepped;
use crate::types::PartitionKey;

mod checkpoint_ahead;
mod clock_jumps_a_day;
mod damage_at_start;
mod damaged_footer;
mod directories;
mod duplicate_of_pending;
mod flipped_bit;
mod full_disk;
mod full_tail;
mod future_timestamp;
mod group_session;
mod killed_then_lost;
mod queued_in_reverse;
mod reader_of_deleted_file;
mod reshape;
mod short_file;
mod shown_too_early;
mod step_by_step;
mod stuck_sync;
mod torn_group;
mod trimmed_window;

/// A world without chance in it, and short ways to say what happens.
struct Scene {
    sim: Sim,
}

impl Scene {
    /// A store with a topic `a` of some partitions.
    fn new(partitions: i32) -> Self {
        Self::with(Options::default(), partitions, None)
    }

    fn with(options: Options, partitions: i32, config: Option<(&str, &str)>) -> Self {
        Self::seeded(1, options, partitions, config)
    }

    /// The seed decides what a power loss leaves of what was not synced.
    fn seeded(seed: u64, options: Options, partitions: i32, config: Option<(&str, &str)>) -> Self {
        let scene = Self {
            sim: Sim::new(seed, options),
        };
        scene.world(|world| {
            world.calm = true;
            world.alone = true;
            ops::topic_create::create(world, "a", partitions, config);
        });
        scene.settle();
        scene
    }

    fn world<T>(&self, f: impl FnOnce(&mut World) -> T) -> T {
        let mut world = self.sim.world.borrow_mut();
        world.follow();
        let done = f(&mut world);
        if world.is_up() {
            world.follow();
        }
        done
    }

    /// A partition of topic `a`.
    fn key(&self, index: i32) -> PartitionKey {
        self.world(|world| {
            let topic = Arc::clone(&world.store().topics()["a"]);
            topic.partition(index).expect("a partition")
        })
    }

    /// A batch that was not sent yet.
    fn batch(&self, bytes: usize, producer: Option<(i64, i32)>) -> Sent {
        self.world(|world| ops::append::batch(world, 1, bytes, producer))
    }

    /// Sends it. The model says what must come of it.
    fn send(&self, key: PartitionKey, sent: &Sent) {
        self.world(|world| ops::append::submit(world, key, sent));
    }

    /// Makes a batch and sends it.
    fn append(&self, key: PartitionKey, bytes: usize) -> Sent {
        let sent = self.batch(bytes, None);
        self.send(key, &sent);
        sent
    }

    fn producer_id(&self) -> i64 {
        let id = self.world(ops::producer_id::allocate);
        self.settle();
        id
    }

    /// Makes everything durable.
    fn settle(&self) {
        self.world(|world| world.store().settle());
        self.world(|world| check::visible(world));
    }

    /// Steps the journal until the group it works on is written, and not synced yet.
    fn write_only(&self) {
        self.world(|world| {
            let journal = Arc::clone(world.store().journal());
            let mut writes = world.disk().journal_writes();
            loop {
                let files = world.disk().memory.names().len();
                assert_ne!(journal.step(), Stepped::Idle, "nothing to write");
                let now = world.disk().journal_writes();
                // A next file is zeroed first, which is a write as well.
                if now > writes && world.disk().memory.names().len() == files {
                    return;
                }
                writes = now;
            }
        });
    }

    /// Lets the journal say of itself that it is synced, as it does when it was idle for a moment.
    fn go_idle(&self) {
        self.settle();
        self.world(|world| {
            let journal = Arc::clone(world.store().journal());
            while journal.step() != Stepped::Idle {}
            world.clock.advance(std::time::Duration::from_secs(1));
            while journal.step() != Stepped::Idle {}
            assert!(journal.is_marked());
        });
    }

    fn flush(&self) {
        self.sim
            .background(|worker| worker.flush().map_err(|e| e.to_string()));
        self.world(|world| world.follow());
    }

    fn checkpoint(&self) {
        self.sim
            .background(|worker| worker.checkpoint().map_err(|e| e.to_string()));
        self.world(|world| world.follow());
    }

    /// A turn of the background thread.
    fn turn(&self) {
        self.sim.background(|worker| worker.turn(false));
        self.world(|world| world.follow());
    }

    /// Ends the process, starts the next one, and compares all of it with the model.
    fn restart(&self, end: End) {
        let mut world = self.sim.world.borrow_mut();
        world.end(end);
        world.restart();
    }

    /// Compares every record, window, topic and commit with the model.
    fn check(&self) {
        self.world(|world| check::whole(world.store(), &world.model.durable, false));
    }
}
