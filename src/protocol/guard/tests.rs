//! The guard on single requests; tests/hostile_bytes.rs tries every length of every version.

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::*;
use kafka_protocol::protocol::Encodable;

use super::super::api;
use super::*;

fn body(request: &impl Encodable, version: i16) -> Bytes {
    let mut out = BytesMut::new();
    request.encode(&mut out, version).unwrap();
    out.freeze()
}

fn run(api: ApiKey, version: i16, body: &[u8]) -> Result<Checked, GuardReason> {
    let row = api::lookup(api as i16).unwrap();
    check(row, version, body).map_err(|e| e.reason)
}

fn passed(elements: usize) -> Result<Checked, GuardReason> {
    Ok(Checked {
        elements,
        odd: false,
    })
}

#[test]
fn every_row_has_a_layout() {
    for row in api::ROWS {
        assert_eq!(shape_of(row.key).unwrap().key, row.key);
        // The crate agrees on where headers and bodies become flexible.
        let flexible = shape_of(row.key).unwrap().flexible;
        for version in row.decode_min..=row.max {
            let header = row.api.request_header_version(version);
            assert_eq!(header >= 2, version >= flexible, "{} {version}", row.name);
        }
    }
}

#[test]
fn what_the_crate_encodes_passes() {
    use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
    use kafka_protocol::protocol::StrBytes;
    let topic = MetadataRequestTopic::default()
        .with_name(Some(StrBytes::from_static_str("orders").into()))
        .with_unknown_tagged_field(9, Bytes::from_static(b"xyz"));
    let request = MetadataRequest::default().with_topics(Some(vec![topic; 3]));
    let old = body(&request, 3);
    assert_eq!(run(ApiKey::Metadata, 3, &old), passed(3));
    let new = body(&request, 12);
    assert_eq!(run(ApiKey::Metadata, 12, &new), passed(6));
    let trailing = [&new[..], b"more"].concat();
    assert_eq!(run(ApiKey::Metadata, 12, &trailing), passed(6));
    for end in 0..new.len() {
        assert!(run(ApiKey::Metadata, 12, &new[..end]).is_err(), "{end}");
    }
}

#[test]
fn lengths_beyond_the_bytes_are_refused() {
    let huge = [0x7f, 0xff, 0xff, 0xff];
    assert_eq!(
        run(ApiKey::Metadata, 1, &huge),
        Err(GuardReason::Length(0x7fff_ffff))
    );
    let compact = [0xff, 0xff, 0xff, 0xff, 0x0f];
    assert_eq!(
        run(ApiKey::Metadata, 9, &compact),
        Err(GuardReason::Length(0xffff_fffe))
    );
    assert_eq!(
        run(ApiKey::Metadata, 9, &[0xff; 6]),
        Err(GuardReason::Varint)
    );
    assert_eq!(run(ApiKey::Metadata, 0, &[0xff; 4]), Err(GuardReason::Null));
    assert_eq!(run(ApiKey::Metadata, 1, &[0xff; 4]), passed(0));
}

#[test]
fn elements_share_one_budget() {
    let mut out = vec![0, 0x01, 0x86, 0xa1];
    out.extend(std::iter::repeat_n(0u8, 2 * 100_001));
    assert_eq!(
        run(ApiKey::DescribeGroups, 0, &out),
        Err(GuardReason::Budget)
    );
    out[3] = 0xa0;
    assert_eq!(run(ApiKey::DescribeGroups, 0, &out), passed(100_000));
}

#[test]
fn a_known_tag_must_be_as_long_as_it_says() {
    let request = FetchRequest::default().with_cluster_id(Some(
        kafka_protocol::protocol::StrBytes::from_static_str("abc"),
    ));
    let good = body(&request, 12);
    assert_eq!(run(ApiKey::Fetch, 12, &good), passed(1));
    let at = good.len() - 5;
    assert_eq!(&good[at - 1..], &[0, 4, 4, b'a', b'b', b'c']);
    let mut long = good.to_vec();
    long[at] = 5;
    long.push(b'd');
    assert_eq!(run(ApiKey::Fetch, 12, &long), Err(GuardReason::TagLength));
}

#[test]
fn optional_structs_are_there_or_not() {
    let request = DescribeTopicPartitionsRequest::default();
    let good = body(&request, 0);
    assert!(run(ApiKey::DescribeTopicPartitions, 0, &good).is_ok());
    let at = good.iter().position(|&b| b == 0xff).unwrap();
    let mut odd = good.to_vec();
    odd[at] = 2;
    assert_eq!(
        run(ApiKey::DescribeTopicPartitions, 0, &odd),
        Err(GuardReason::Presence)
    );
}

#[test]
fn every_negative_length_is_null() {
    let row = api::lookup(ApiKey::Metadata as i16).unwrap();
    let odd = (-5i32).to_be_bytes();
    let checked = check(row, 1, &odd).unwrap();
    assert!(checked.odd);
    assert_eq!(plain(row, 1, &odd).unwrap(), [0xff; 4]);
    // A name that may not be null is still refused.
    let name = [&1i32.to_be_bytes()[..], &(-7i16).to_be_bytes()].concat();
    assert_eq!(run(ApiKey::Metadata, 1, &name), Err(GuardReason::Null));

    let row = api::lookup(ApiKey::Produce as i16).unwrap();
    let mut produce = body(&ProduceRequest::default().with_acks(-1), 3).to_vec();
    produce[..2].copy_from_slice(&(-9i16).to_be_bytes());
    assert!(check(row, 3, &produce).unwrap().odd);
    let mended = plain(row, 3, &produce).unwrap();
    assert_eq!(
        (&mended[..2], &mended[2..]),
        (&[0xff; 2][..], &produce[2..])
    );
}

#[test]
fn broken_text_is_mended_in_place() {
    use kafka_protocol::protocol::{Decodable, StrBytes};
    let row = api::lookup(ApiKey::Fetch as i16).unwrap();
    let topic =
        fetch_request::FetchTopic::default().with_topic(StrBytes::from_static_str("topic").into());
    let request = FetchRequest::default()
        .with_cluster_id(Some(StrBytes::from_static_str("cluster")))
        .with_topics(vec![topic])
        .with_rack_id(StrBytes::from_static_str("rack"));
    let mut broken = body(&request, 12).to_vec();
    assert!(!check(row, 12, &broken).unwrap().odd);
    for (text, at) in [("topic", 4), ("rack", 1), ("cluster", 0)] {
        let found = broken
            .windows(text.len())
            .position(|w| w == text.as_bytes());
        broken[found.unwrap() + at] = 0xe2;
    }
    assert!(check(row, 12, &broken).unwrap().odd);
    let mut mended = Bytes::from(plain(row, 12, &broken).unwrap());
    let request = FetchRequest::decode(&mut mended, 12).unwrap();
    assert_eq!(request.topics[0].topic.as_str(), "topi?");
    assert_eq!(request.rack_id.as_str(), "r?ck");
    assert_eq!(request.cluster_id.as_deref(), Some("?luster"));
}

#[test]
fn much_broken_text_is_mended_in_one_pass() {
    let mut text = [b'a', 0xff, 0xe2, 0x82].repeat(1 << 20);
    mend(&mut text);
    assert_eq!(text, b"a???".repeat(1 << 20));
}
