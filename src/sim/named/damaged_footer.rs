//! The footer of a segment file is damaged at rest, and the store starts.

use super::Scene;
use crate::partition::read::ReadFailure;
use crate::sim::check;

#[test]
fn a_reader_is_not_taken_past_a_file_that_cannot_be_read() {
    let scene = Scene::new(2);
    let (key, other) = (scene.key(0), scene.key(1));
    for _ in 0..3 {
        scene.append(key, 1000);
        scene.settle();
        scene.flush();
    }
    scene.append(other, 1000);
    scene.settle();
    scene.checkpoint();
    scene.world(|world| {
        let copy = world.disk().memory.kill();
        let mut names = copy.names();
        names.retain(|name| name.starts_with("segments"));
        let len = copy.contents(&names[1]).expect("it is there").len() as u64;
        assert!(copy.flip(&names[1], len - 30, 0x10));
        let store = check::open_copy(vec![copy], &world.clock, &world.options).expect("it opens");
        let read = |offset| check::read(&store, key, offset, 10_000);
        assert_eq!(read(0).expect("undamaged")[0].0, 0);
        assert!(
            matches!(read(1), Err(ReadFailure::Storage(_))),
            "never a later record"
        );
        assert_eq!(read(2).expect("undamaged")[0].0, 2);
        assert_eq!(
            check::check_copy(world, &store, true),
            1,
            "one partition is hurt"
        );
    });
}
