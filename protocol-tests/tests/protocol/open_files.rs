//! Clients that take every connection there is do not take the files that the store needs.

use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use protocol_tests::batch::Batch;
use protocol_tests::calls::*;
use protocol_tests::server::{binary, free_port};
use protocol_tests::wire::Wire;
use protocol_tests::{foreign, wait_for};

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_flood_of_connections_leaves_the_store_its_files() {
    if foreign().is_some() {
        return;
    }
    let home = tempfile::tempdir().expect("temp dir");
    let address = format!("127.0.0.1:{}", free_port());
    let mut command = Command::new("sh");
    command
        .args(["-c", r#"ulimit -n 120; exec "$0" "$@""#])
        .arg(binary());
    command
        .arg("--set")
        .arg(format!("listeners=PLAINTEXT://{address}"));
    command
        .arg("--set")
        .arg(format!("log.dirs={}", home.path().join("data").display()));
    command.args([
        "--set",
        "admin.port=0",
        "--set",
        "budget.tail.bytes=4194304",
    ]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = Ended(command.spawn().expect("start the server"));
    let mut wire = wait_for("the server listens", || {
        TcpStream::connect(&address)
            .ok()
            .map(|_| Wire::connect(&address))
    });
    let topic = new_topic(&mut wire, 4, &[]);
    let flood: Vec<_> = (0..300)
        .filter_map(|_| TcpStream::connect(&address).ok())
        .collect();
    let value = "x".repeat(100_000);
    // Enough for several flushes, each of which makes files.
    for number in 0..150 {
        let batch = Batch::of(&[&value]);
        assert_eq!(produce(&mut wire, &topic, number % 4, &batch).error_code, 0);
    }
    assert!(
        server.0.try_wait().expect("the server").is_none(),
        "the server ended"
    );
    drop(flood);
    wait_for("there is room for others again", || {
        let mut other = Wire::connect(&address);
        let request = kafka_protocol::messages::ApiVersionsRequest::default();
        other.try_call(0, &request).ok()
    });
}
