//! The stored formats, against bytes that Apache Kafka 4.4 wrote.

use std::sync::Arc;

use super::super::offsets::subscription_topics;
use super::super::record::{Commit, GroupMetadata, Record, RecordError, StoredMember};
use super::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn commit() -> Commit {
    Commit {
        offset: 7,
        leader_epoch: -1,
        metadata: "meta".into(),
        commit_ms: 1_795_975_771_658,
        expire_ms: None,
        topic_id: TopicId::from_u128(0x05f1_797e_4a64_4cd4_96fd_b7c5_750d_e28a),
    }
}

#[test]
fn a_commit_is_written_as_kafka_writes_it() {
    let record = Record::Offset {
        group: "gg".into(),
        topic: "t".into(),
        partition: 0,
        value: Some(commit()),
    };
    let encoded = record.encode();
    assert_eq!(&encoded.key[..], hex("0001 0002 6767 0001 74 00000000"));
    let value = hex("0004 0000000000000007 ffffffff 05 6d657461 000001a2287f760a
         01 00 10 05f1797e4a644cd496fdb7c5750de28a");
    assert_eq!(encoded.value.as_deref(), Some(&value[..]));
    assert_eq!(
        Record::decode(&encoded.key, encoded.value.as_deref()),
        Ok(record)
    );
}

#[test]
fn older_commits_are_read() {
    let key = hex("0000 0002 6767 0001 74 00000003");
    let table = [
        (
            "0000 0000000000000007 0004 6d657461 000001a2287f760a",
            -1,
            None,
        ),
        (
            "0001 0000000000000007 0004 6d657461 000001a2287f760a 000001a2287f760b",
            -1,
            Some(1),
        ),
        (
            "0001 0000000000000007 0004 6d657461 000001a2287f760a ffffffffffffffff",
            -1,
            None,
        ),
        (
            "0002 0000000000000007 0004 6d657461 000001a2287f760a",
            -1,
            None,
        ),
        (
            "0003 0000000000000007 00000009 0004 6d657461 000001a2287f760a",
            9,
            None,
        ),
    ];
    for (value, leader_epoch, expires_after) in table {
        let expire_ms = expires_after.map(|ms: i64| 1_795_975_771_658 + ms);
        let topic_id = TopicId::nil();
        let value = hex(value);
        let record = Record::decode(&key, Some(&value)).unwrap();
        let commit = Commit {
            leader_epoch,
            expire_ms,
            topic_id,
            ..commit()
        };
        let Record::Offset {
            partition: 3,
            value: Some(read),
            ..
        } = record
        else {
            panic!("{record:?}")
        };
        assert_eq!(read, commit);
        assert!(read.is_of(Some(TOPIC)), "no id: whatever has the name");
    }
}

#[test]
fn a_commit_with_an_expiry_keeps_both_expiry_and_topic() {
    let value = Some(Commit {
        expire_ms: Some(5),
        ..commit()
    });
    let record = Record::Offset {
        group: "".into(),
        topic: "t".into(),
        partition: 1,
        value,
    };
    let encoded = record.encode();
    assert_eq!(
        Record::decode(&encoded.key, encoded.value.as_deref()),
        Ok(record)
    );
}

#[test]
fn a_group_is_written_as_kafka_writes_it() {
    let metadata = GroupMetadata {
        protocol_type: "consumer".into(),
        generation: 1,
        protocol: Some("range".into()),
        leader: Some("m".into()),
        state_ms: 2,
        members: vec![StoredMember {
            id: "m".into(),
            instance_id: Some("i".into()),
            client_id: "c".into(),
            client_host: "/h".into(),
            rebalance_timeout_ms: 3_000,
            session_timeout_ms: 10_000,
            subscription: Bytes::from_static(b"s"),
            assignment: Bytes::from_static(b"a"),
        }],
    };
    let record = Record::Group {
        group: "g".into(),
        value: Some(Arc::new(metadata)),
    };
    let encoded = record.encode();
    assert_eq!(&encoded.key[..], hex("0002 0001 67"));
    let value = hex(
        "0003 0008 636f6e73756d6572 00000001 0005 72616e6765 0001 6d 0000000000000002
         00000001 0001 6d 0001 69 0001 63 0002 2f68 00000bb8 00002710 00000001 73 00000001 61",
    );
    assert_eq!(encoded.value.as_deref(), Some(&value[..]));
    assert_eq!(
        Record::decode(&encoded.key, encoded.value.as_deref()),
        Ok(record)
    );
    let empty = Record::Group {
        group: "g".into(),
        value: Some(Arc::default()),
    }
    .encode();
    assert_eq!(
        empty.value.as_deref(),
        Some(&hex("0003 0000 00000000 ffff ffff 0000000000000000 00000000")[..])
    );
}

#[test]
fn what_cannot_be_read_is_an_error() {
    let good = Record::Offset {
        group: "g".into(),
        topic: "t".into(),
        partition: 0,
        value: Some(commit()),
    };
    let good = good.encode();
    let value = good.value.as_deref().unwrap();
    for cut in 0..value.len() {
        assert!(
            Record::decode(&good.key, Some(&value[..cut])).is_err(),
            "{cut}"
        );
    }
    for cut in 0..good.key.len() {
        assert_eq!(
            Record::decode(&good.key[..cut], None),
            Err(RecordError::Damaged)
        );
    }
    assert_eq!(
        Record::decode(&hex("0003 0001 67"), None),
        Err(RecordError::UnknownKey(3))
    );
    let newer = Record::decode(&good.key, Some(&hex("0005")));
    assert_eq!(newer, Err(RecordError::UnknownValue(5)));
    let many = hex("0003 0000 00000000 ffff ffff 0000000000000000 7fffffff");
    let decoded = Record::decode(&hex("0002 0001 67"), Some(&many));
    assert_eq!(decoded, Err(RecordError::Damaged));
}

#[test]
fn a_subscription_names_its_topics() {
    let topics = subscription_topics(&hex("0003 00000002 0001 61 0002 6263 ffffffff")).unwrap();
    assert_eq!(topics, ["a".into(), "bc".into()]);
    assert!(subscription_topics(b"meta").is_err());
    assert!(subscription_topics(&hex("0003 7fffffff 0001 61")).is_err());
}
