//! Stores of earlier releases, kept in `protocol-tests/golden`: this release reads each of them.
//!
//! A new version of a format gets a store of its own:
//! `GOLDEN_TO=protocol-tests/golden/v4 cargo test -p protocol-tests golden::make -- --ignored`

use std::path::{Path, PathBuf};

use protocol_tests::{Server, foreign, golden};

fn stores() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden")
}

fn reads(version: &str, more: fn(&Server)) {
    reads_from(&stores().join(version), None, more);
}

/// Reads a store whose first directory is `from`, and whose second one is `second`.
fn reads_from(from: &Path, second: Option<&Path>, more: fn(&Server)) {
    if foreign().is_some() {
        return;
    }
    let mut server = Server::stopped(golden::TIMELESS);
    golden::copy_whole(from, &server.data());
    if let Some(second) = second {
        golden::copy_whole(second, &server.data().with_file_name("second"));
        server.set("log.dirs=data,second");
    }
    let (code, text) = server.verify(&[]);
    assert_eq!(code, 0, "{text}");
    server.start_again();
    golden::check(&server.address());
    more(&server);
    // What was read is written anew, and read once more.
    assert!(server.terminate());
    server.start_again();
    golden::check(&server.address());
    more(&server);
    assert!(server.terminate());
    let (code, text) = server.verify(&[]);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn version_1_is_read() {
    reads("v1", |_| {});
}

/// With shards that were split and merged.
#[test]
fn version_2_is_read() {
    reads("v2", golden::check_lineage);
}

/// In two directories, with shards that were moved there, and one of them back.
#[test]
fn version_3_is_read() {
    let store = stores().join("v3");
    reads_from(&store.join("data"), Some(&store.join("second")), |server| {
        golden::check_lineage(server);
        let (_, text) = server.http("/topics/stamped/shards");
        assert!(text.contains(r#""directory":"second""#), "{text}");
    });
}

#[test]
#[ignore = "writes the store that the tests above read"]
fn make() {
    let to = std::env::var("GOLDEN_TO").expect("GOLDEN_TO names the folder to write");
    let to = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(to);
    assert!(!to.exists(), "{} is there already", to.display());
    let mut server = Server::calm(golden::TIMELESS);
    golden::fill_with_moves(&mut server);
    for name in ["data", "second"] {
        golden::copy_compact(&server.data().with_file_name(name), &to.join(name));
    }
}
