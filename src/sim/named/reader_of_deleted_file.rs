//! A reader is in the middle of a file when its last record is deleted.

use super::Scene;
use crate::partition::log::Source;
use crate::sim::check::segment_files;

#[test]
fn a_file_stays_until_its_last_reader_lets_go() {
    let scene = Scene::new(1);
    let key = scene.key(0);
    for _ in 0..5 {
        scene.append(key, 2000);
    }
    scene.settle();
    scene.flush();
    let files = || scene.world(|world| segment_files(&world.disk().memory));
    let file = files()[0];
    let partition = scene.world(|world| world.store().partition(key));
    let Source::Files(reading) = partition.cut(1, 100, true).source else {
        panic!("the records are in a file");
    };
    scene.world(|world| {
        let registry = &world.store().registry;
        registry.move_log_start(&partition, 5).expect("moved");
        world.store().settle();
    });
    scene.turn();
    assert_eq!(files(), [file], "a reader holds it");
    scene.world(|world| {
        let store = &world.store().registry.first().segments;
        let section = store.section(file, key).expect("readable").expect("there");
        let block = section.blocks().next().expect("a block");
        assert!(!store.read(file, block.range).expect("readable").is_empty());
    });
    drop(reading);
    scene.turn();
    assert!(files().is_empty(), "nobody holds it");
    scene.check();
}
