//! Tests of the journal as a whole.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use uuid::Uuid;

use super::*;
use crate::store::backend::Disk;
use crate::store::backend::memory::MemoryDisk;
use crate::types::TopicNo;

mod bench;
mod crash;
mod damage;
mod stopped;
mod threads;
mod world;

const STORE: Uuid = Uuid::from_u128(0x5157);

/// Small files and groups, so that little data goes through every path.
fn options() -> JournalOptions {
    JournalOptions {
        file_bytes: 64 * 1024,
        first_zero_bytes: 32 * 1024,
        max_group: 16 * 1024,
        ..JournalOptions::new(STORE)
    }
}

/// An entry whose payload follows from its number.
fn entry(number: u64, len: usize) -> Entry {
    let key = PartitionKey {
        topic: TopicNo(number as u32 % 7),
        index: number as u32 % 3,
    };
    let payload = payload(number, len);
    Entry {
        kind: EntryKind::Batch,
        key,
        payload,
        fill: None,
        charge: len as u32,
    }
}

fn payload(number: u64, len: usize) -> Bytes {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend((8..len.max(8)).map(|at| (number as usize * 31 + at * 7) as u8));
    Bytes::from(bytes)
}

/// Collects the payloads that replay delivers, checked against their positions.
fn replay(opened: &mut Opened, after: Position) -> Result<Vec<Bytes>, JournalError> {
    let mut payloads = Vec::new();
    let mut next = None;
    opened.replay(
        after,
        &mut |group| {
            assert_eq!(group.charge, 0);
            for entry in &group.entries {
                if let Some(next) = next.replace(entry.position.0 + 1) {
                    assert_eq!(next, entry.position.0, "positions continue");
                } else {
                    assert!(entry.position.0 <= after.0 + 1, "nothing is left out");
                }
                if entry.position > after {
                    payloads.push(group.payload(entry));
                }
            }
            assert_eq!(group.last, group.entries.last().unwrap().position);
            Ok(())
        },
        &|done, total| assert!(done <= total),
    )?;
    Ok(payloads)
}

/// Remembers what it is told.
#[derive(Default)]
struct Recorder {
    groups: Mutex<Vec<Group>>,
}

impl Sink for Recorder {
    fn commit(&self, group: Group) {
        self.groups.lock().push(group);
    }
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "no sign of: {what}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}
