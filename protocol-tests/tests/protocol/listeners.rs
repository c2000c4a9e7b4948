//! Where the server listens and what it tells clients to connect to.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use kafka_protocol::messages::MetadataRequest;
use protocol_tests::calls::*;
use protocol_tests::server::{Server, binary, free_port};
use protocol_tests::wire::Wire;
use protocol_tests::{foreign, wait_for};

/// (host, port, node id) of every broker in Metadata.
fn brokers(address: &str) -> Vec<(String, i32, i32)> {
    let request = MetadataRequest::default().with_topics(Some(vec![]));
    let answer = Wire::connect(address).call(9, &request);
    answer
        .brokers
        .iter()
        .map(|b| (b.host.to_string(), b.port, b.node_id.0))
        .collect()
}

/// A process that ends with its test, however that ends.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn each_listener_advertises_its_own_address() {
    if foreign().is_some() {
        return;
    }
    let (first, second) = (free_port(), free_port());
    let ipv6 = TcpListener::bind("[::1]:0").is_ok();
    let host = if ipv6 { "[::1]" } else { "127.0.0.1" };
    let listeners = format!("listeners=ONE://127.0.0.1:{first},TWO://{host}:{second}");
    let server = Server::on_port(
        first,
        &[
            &listeners,
            "advertised.listeners=ONE://one.example:1111,TWO://[2001:db8::7]:2222",
            "listener.security.protocol.map=ONE:PLAINTEXT,TWO:PLAINTEXT",
            "node.id=7",
        ],
    );
    assert_eq!(
        brokers(&server.address()),
        [("one.example".to_owned(), 1111, 7)]
    );
    let second = brokers(&format!("{host}:{second}"));
    assert_eq!(
        second,
        [("2001:db8::7".to_owned(), 2222, 7)],
        "IPv6 without brackets"
    );
}

#[test]
fn a_users_server_properties_is_read_as_it_is() {
    if foreign().is_some() {
        return;
    }
    let home = tempfile::tempdir().expect("temp dir");
    let (port, controller) = (free_port(), free_port());
    let data = home.path().join("data");
    let properties = format!(
        "# as Kafka ships it\n\
         process.roles=broker,controller\n\
         node.id=3\n\
         controller.quorum.bootstrap.servers=localhost:{controller}\n\
         listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n\
         inter.broker.listener.name=PLAINTEXT\n\
         controller.listener.names=CONTROLLER\n\
         listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n\
         num.network.threads=3\n\
         num.partitions=5\n\
         offsets.topic.replication.factor=1\n\
         log.retention.hours=168\n\
         log.segment.bytes=1073741824\n\
         log.dirs={}\n",
        data.display()
    );
    let file = home.path().join("server.properties");
    std::fs::write(&file, properties).expect("write");
    let process = Command::new(binary())
        .args(["--set", "admin.port=0", "--config"])
        .arg(&file)
        .current_dir(home.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("start the server");
    let _process = Process(process);
    let address = format!("127.0.0.1:{port}");
    wait_for("the server listens", || {
        std::net::TcpStream::connect(&address).ok()
    });
    let told = brokers(&address);
    let mut wire = Wire::connect(&address);
    let name = protocol_tests::unique("defaults");
    let created = create_topic(&mut wire, &name, -1, &[]);
    await_topic(&mut wire, &name, 5);
    let partitions = describe_topic(&mut wire, &name).partitions.len();
    let controller_is_silent = std::net::TcpStream::connect(("127.0.0.1", controller)).is_err();
    assert_eq!(told, [("127.0.0.1".to_owned(), i32::from(port), 3)]);
    assert_eq!((created, partitions), (0, 5));
    assert!(controller_is_silent, "the controller's listener is skipped");
    assert!(
        data.join("format").exists(),
        "the data lies where the file says"
    );
}

#[test]
fn a_plaintext_listener_for_other_machines_wants_an_explicit_word() {
    if foreign().is_some() {
        return;
    }
    let home = tempfile::tempdir().expect("temp dir");
    let refused = Command::new(binary())
        .args([
            "--set",
            "listeners=PLAINTEXT://0.0.0.0:0",
            "--set",
            "admin.port=0",
        ])
        .current_dir(home.path())
        .stdin(Stdio::null())
        .output()
        .expect("start the server");
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        said.contains("allow.insecure.listeners"),
        "it says how to allow it: {said}"
    );
}
