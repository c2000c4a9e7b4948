//! Requests whose lengths lie, against the guard and the typed decoders behind it.
//!
//! The decoders reserve memory for any array length they read, so without the guard nearly every
//! request here would end the process. The requests are made from the guard's own layouts: each
//! length, in every version of every API, is replaced by hostile ones. What the guard lets through
//! is decoded, and may not allocate more than the guard said.
//!
//! One test function, because allocations are counted for the whole process.

use std::alloc::System;

use bytes::Bytes;
use kafka_protocol::messages::{self, ApiKey};
use kafka_protocol::protocol::Decodable;
use shardgate::protocol::api::{ApiRow, ROWS};
use shardgate::protocol::guard::shape::{Field, Kind, Shape};
use shardgate::protocol::guard::{self, MAX_ELEMENTS};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// What an error message and the backtrace in it may take.
const ERROR_BYTES: usize = 64 << 10;

macro_rules! decoders {
    ($($api:ident: $request:ident,)*) => {
        fn decode(api: ApiKey, version: i16, mut body: Bytes) -> bool {
            match api {
                $(ApiKey::$api => messages::$request::decode(&mut body, version).is_ok(),)*
                other => panic!("{other:?} has a row but is not in this list"),
            }
        }
    };
}

decoders! {
    Produce: ProduceRequest,
    Fetch: FetchRequest,
    ListOffsets: ListOffsetsRequest,
    Metadata: MetadataRequest,
    OffsetCommit: OffsetCommitRequest,
    OffsetFetch: OffsetFetchRequest,
    FindCoordinator: FindCoordinatorRequest,
    JoinGroup: JoinGroupRequest,
    Heartbeat: HeartbeatRequest,
    LeaveGroup: LeaveGroupRequest,
    SyncGroup: SyncGroupRequest,
    DescribeGroups: DescribeGroupsRequest,
    ListGroups: ListGroupsRequest,
    ApiVersions: ApiVersionsRequest,
    CreateTopics: CreateTopicsRequest,
    DeleteTopics: DeleteTopicsRequest,
    DeleteRecords: DeleteRecordsRequest,
    InitProducerId: InitProducerIdRequest,
    OffsetForLeaderEpoch: OffsetForLeaderEpochRequest,
    DescribeConfigs: DescribeConfigsRequest,
    AlterConfigs: AlterConfigsRequest,
    DescribeLogDirs: DescribeLogDirsRequest,
    CreatePartitions: CreatePartitionsRequest,
    DeleteGroups: DeleteGroupsRequest,
    OffsetDelete: OffsetDeleteRequest,
    IncrementalAlterConfigs: IncrementalAlterConfigsRequest,
    DescribeCluster: DescribeClusterRequest,
    DescribeTopicPartitions: DescribeTopicPartitionsRequest,
}

/// How a length is written.
#[derive(Clone, Copy)]
enum Width {
    Short,
    Long,
    Compact,
}

/// A length in a request.
struct Place {
    field: &'static str,
    at: usize,
    width: Width,
}

/// A request made from its layout.
struct Request {
    version: i16,
    flexible: bool,
    /// Elements per array.
    elements: usize,
    /// Unknown tagged fields per struct, and whether known ones are there.
    tags: usize,
    out: Vec<u8>,
    places: Vec<Place>,
}

impl Request {
    fn new(shape: &Shape, version: i16, elements: usize, tags: usize) -> Self {
        let flexible = version >= shape.flexible;
        let (out, places) = (Vec::new(), Vec::new());
        let mut request = Self {
            version,
            flexible,
            elements,
            tags,
            out,
            places,
        };
        request.fields(shape.fields);
        request
    }

    fn fields(&mut self, fields: &'static [Field]) {
        let version = self.version;
        for field in fields.iter().filter(|f| f.in_body(version)) {
            self.value(field);
        }
        if self.flexible {
            self.tagged(fields);
        }
    }

    fn value(&mut self, field: &'static Field) {
        if field.array {
            self.length(field.name, Width::Long, self.elements);
            for _ in 0..self.elements {
                self.single(field.name, &field.kind, false);
            }
        } else {
            self.single(field.name, &field.kind, field.nullable.has(self.version));
        }
    }

    fn single(&mut self, name: &'static str, kind: &'static Kind, nullable: bool) {
        match kind {
            Kind::Fixed(width) => self.out.extend(std::iter::repeat_n(1, *width)),
            Kind::Str => {
                self.length(name, Width::Short, 2);
                self.out.extend_from_slice(b"ab");
            }
            Kind::Blob => {
                self.length(name, Width::Long, 3);
                self.out.extend_from_slice(b"xyz");
            }
            Kind::Struct(fields) => {
                if nullable {
                    self.out.push(1);
                }
                self.fields(fields);
            }
        }
    }

    fn tagged(&mut self, fields: &'static [Field]) {
        let known = |f: &&Field| {
            f.tag
                .is_some_and(|(_, versions)| versions.has(self.version))
        };
        let known: Vec<_> = fields
            .iter()
            .filter(known)
            .filter(|_| self.tags > 0)
            .collect();
        self.raw("number of tagged fields", known.len() + self.tags);
        for field in known {
            let (tag, _) = field
                .tag
                .unwrap_or_else(|| unreachable!("only tagged ones are left"));
            self.out.push(tag as u8);
            let mut value = Self {
                out: Vec::new(),
                places: Vec::new(),
                ..*self
            };
            value.value(field);
            self.raw("length of a known tagged field", value.out.len());
            let from = self.out.len();
            self.places.extend(value.places.into_iter().map(|p| Place {
                at: p.at + from,
                ..p
            }));
            self.out.extend_from_slice(&value.out);
        }
        for tag in 0..self.tags {
            self.out.push(100 + tag as u8);
            self.raw("length of an unknown tagged field", 1);
            self.out.push(7);
        }
    }

    /// A length that null shares its place with.
    fn length(&mut self, field: &'static str, width: Width, length: usize) {
        if self.flexible {
            return self.raw(field, length + 1);
        }
        self.places.push(Place {
            field,
            at: self.out.len(),
            width,
        });
        match width {
            Width::Short => self.out.extend_from_slice(&(length as i16).to_be_bytes()),
            Width::Long | Width::Compact => {
                self.out.extend_from_slice(&(length as i32).to_be_bytes());
            }
        }
    }

    /// A variable-length number; the ones here fit two bytes.
    fn raw(&mut self, field: &'static str, value: usize) {
        self.places.push(Place {
            field,
            at: self.out.len(),
            width: Width::Compact,
        });
        if value >= 0x80 {
            self.out.push((value & 0x7f) as u8 | 0x80);
        }
        self.out.push(if value >= 0x80 {
            (value >> 7) as u8
        } else {
            value as u8
        });
    }

    /// The request with the length at `place` replaced, once for each hostile length.
    fn mutants(&self, place: &Place) -> Vec<Vec<u8>> {
        let numbers = [
            0,
            1,
            3,
            100,
            0xffff,
            0x10000,
            0xff_ffff,
            i32::MAX,
            -1,
            -2,
            i32::MIN,
        ];
        let (old, new): (usize, Vec<Vec<u8>>) = match place.width {
            Width::Short => (
                2,
                numbers
                    .iter()
                    .map(|&n| (n as i16).to_be_bytes().into())
                    .collect(),
            ),
            Width::Long => (4, numbers.iter().map(|n| n.to_be_bytes().into()).collect()),
            Width::Compact => {
                let old = if self.out[place.at] & 0x80 == 0 { 1 } else { 2 };
                let mut new: Vec<_> = numbers
                    .iter()
                    .map(|&n| compact(n.cast_unsigned()))
                    .collect();
                new.push(vec![0xff; 5]);
                new.push(vec![0xff; 11]);
                (old, new)
            }
        };
        let rest = &self.out[place.at + old..];
        new.into_iter()
            .map(|n| [&self.out[..place.at], &n, rest].concat())
            .collect()
    }
}

fn compact(mut value: u32) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 0x80 {
        out.push((value as u8) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

/// What `f` gives, and the bytes that it allocates. The counter counts all threads, and that of the
/// test harness allocates now and then: what goes beyond `limit` counts if it comes again.
fn allocated<T>(limit: usize, f: impl Fn() -> T) -> (T, usize) {
    let once = || {
        let before = Region::new(ALLOCATOR);
        let given = f();
        (given, before.change().bytes_allocated)
    };
    let first = once();
    match first.1 > limit {
        true => (first.0, first.1.min(once().1).min(once().1)),
        false => first,
    }
}

#[derive(Default)]
struct Tally {
    requests: usize,
    accepted: usize,
    most: usize,
    most_per_element: usize,
}

impl Tally {
    /// Runs one body through the guard and, if it passes, through the decoder.
    fn run(&mut self, row: &ApiRow, version: i16, body: Vec<u8>, what: &str) -> bool {
        self.requests += 1;
        let (checked, guarded) = allocated(0, || guard::check(row, version, &body));
        assert_eq!(
            guarded, 0,
            "the guard itself allocates for {} {version} {what}",
            row.name
        );
        let Ok(checked) = checked else { return false };
        self.accepted += 1;
        let body = Bytes::from(body);
        let limit = checked.decoded_bytes() + ERROR_BYTES;
        let (decoded, allocated) = allocated(limit, || decode(row.api, version, body.clone()));
        assert!(
            allocated <= limit,
            "{} {version}, {what}: decoding {} elements allocated {allocated}, limit {limit}",
            row.name,
            checked.elements,
        );
        self.most = self.most.max(allocated);
        if checked.elements > 1000 {
            self.most_per_element = self.most_per_element.max(allocated / checked.elements);
        }
        decoded
    }
}

fn layouts() -> impl Iterator<Item = (&'static ApiRow, &'static Shape, i16)> {
    ROWS.iter().flat_map(|row| {
        let shape = guard::shape_of(row.key).unwrap_or_else(|| panic!("{} has none", row.name));
        (row.decode_min..=row.max).map(move |version| (row, shape, version))
    })
}

fn hostile_lengths(tally: &mut Tally) {
    let mut lengths = 0;
    for (row, shape, version) in layouts() {
        let request = Request::new(shape, version, 2, 2);
        let good = tally.run(row, version, request.out.clone(), "unchanged");
        assert!(
            good,
            "{} {version}: what the layout makes is refused",
            row.name
        );
        for place in &request.places {
            lengths += 1;
            for mutant in request.mutants(place) {
                tally.run(row, version, mutant, place.field);
            }
        }
        for end in 0..request.out.len() {
            let cut = tally.run(row, version, request.out[..end].to_vec(), "cut off");
            assert!(!cut, "{} {version} decodes from {end} bytes", row.name);
        }
    }
    assert!(lengths > 1000, "only {lengths} lengths were tried");
}

/// Random damage, several bytes at a time; the seed is fixed.
fn random_damage(tally: &mut Tally) {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize
    };
    for (row, shape, version) in layouts() {
        let request = Request::new(shape, version, 3, 1);
        for _ in 0..200 {
            let mut body = request.out.clone();
            for _ in 0..1 + random() % 4 {
                let at = random() % body.len().max(1);
                if let Some(byte) = body.get_mut(at) {
                    *byte = if random() % 2 == 0 {
                        0xff
                    } else {
                        random() as u8
                    };
                }
            }
            tally.run(row, version, body, "random damage");
        }
    }
}

/// As many of the smallest elements as the budget allows, at every array; then each of them with
/// an unknown tagged field.
fn amplification(tally: &mut Tally) {
    for (row, shape, version) in layouts() {
        let flexible = version >= shape.flexible;
        for field in shape
            .fields
            .iter()
            .filter(|f| f.array && f.in_body(version))
        {
            for tags in 0..=usize::from(flexible) {
                let count = MAX_ELEMENTS / (1 + tags);
                let mut element = Request::new(
                    &Shape {
                        key: 0,
                        flexible: shape.flexible,
                        fields: &[],
                    },
                    version,
                    0,
                    tags,
                );
                element.out.clear();
                element.single(field.name, &field.kind, false);
                let mut request = Request {
                    elements: 0,
                    tags: 0,
                    ..Request::new(shape, version, 0, 0)
                };
                request.out.clear();
                for other in shape.fields.iter().filter(|f| f.in_body(version)) {
                    if !std::ptr::eq(other, field) {
                        request.value(other);
                    } else if flexible {
                        request.out.extend(compact(count as u32 + 1));
                        request.out.extend(element.out.repeat(count));
                    } else {
                        request.out.extend((count as i32).to_be_bytes());
                        request.out.extend(element.out.repeat(count));
                    }
                }
                if flexible {
                    request.out.push(0);
                }
                tally.run(row, version, request.out, field.name);
            }
        }
    }
}

#[test]
fn decoding_allocates_no_more_than_the_guard_allows() {
    let mut tally = Tally::default();
    hostile_lengths(&mut tally);
    random_damage(&mut tally);
    amplification(&mut tally);
    println!(
        "{} requests, {} past the guard, at most {} bytes allocated by one and {} per element",
        tally.requests, tally.accepted, tally.most, tally.most_per_element
    );
    assert!(tally.accepted > 1000 && tally.requests > 5 * tally.accepted / 4);
    assert!(tally.most < 48 << 20);
}
