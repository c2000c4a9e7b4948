//! The device fails while a start reads the footers of segment files.

use super::Scene;
use crate::sim::power::Disks;
use crate::sim::store::Store;
use crate::store::backend::faults::{Fault, Op, Rule};

/// A footer that cannot be read just now is not a damaged one: to serve without it would tell
/// readers that records are lost which are not.
#[test]
fn a_device_error_while_footers_are_read_keeps_the_store_from_starting() {
    let scene = Scene::new(1);
    scene.append(scene.key(0), 1000);
    scene.settle();
    scene.checkpoint();
    scene.world(|world| {
        let copy = world.disk().memory.kill();
        let disks = Disks::new(vec![copy], &world.clock, 1, || {});
        let rule = Rule::new(Op::Read, "segments", Fault::Eio).times(1);
        disks.iter().for_each(|disk| disk.faults.add(rule.clone()));
        let opened = Store::open(&disks, &world.clock, &world.options, || {});
        let reason = opened.err().expect("it must not open");
        assert!(reason.contains("cannot be read"), "{reason}");
        let again = Store::open(&disks, &world.clock, &world.options, || {});
        assert!(again.is_ok(), "the device is well again");
    });
}
