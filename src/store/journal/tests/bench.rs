//! What the journal does on this machine's disk. Run by hand:
//! `cargo test --release --lib journal::tests::bench -- --ignored --nocapture`
//! (`JOURNAL_BENCH_DIR` says where; by default the directory for temporary files).

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::store::backend::disk::DiskDir;

const BYTES: u64 = 1 << 30;

struct Count(AtomicU64);

impl Sink for Count {
    fn commit(&self, group: Group) {
        self.0
            .fetch_add(group.entries.len() as u64, Ordering::Relaxed);
    }
}

fn place() -> tempfile::TempDir {
    match std::env::var_os("JOURNAL_BENCH_DIR") {
        Some(dir) => tempfile::tempdir_in(dir).unwrap(),
        None => tempfile::tempdir().unwrap(),
    }
}

fn start(disk: &Arc<dyn Disk>, options: &JournalOptions) -> Arc<FileJournal> {
    let mut opened = FileJournal::open(Arc::clone(disk), options.clone()).unwrap();
    opened
        .replay(Position(0), &mut |_| Ok(()), &|_, _| ())
        .unwrap();
    opened.start(
        Arc::new(Count(AtomicU64::new(0))),
        Arc::new(|m| panic!("{m}")),
    )
}

/// Appends `bytes` in entries of `len`, never more than `window` ahead of what is durable; the
/// sorted times from append to durable.
fn load(journal: &FileJournal, bytes: u64, len: usize, window: u64) -> (f64, Vec<Duration>) {
    let payload = Bytes::from(vec![7; len]);
    let begun = Instant::now();
    let (mut times, mut open) = (Vec::new(), std::collections::VecDeque::new());
    let mut sent = 0;
    while sent < bytes || !open.is_empty() {
        while sent < bytes && (open.len() as u64) < window {
            let entry = Entry {
                kind: EntryKind::Batch,
                key: PartitionKey::default(),
                payload: payload.clone(),
                fill: None,
                charge: 0,
            };
            open.push_back((journal.append(entry), Instant::now()));
            sent += len as u64;
        }
        let durable = journal.durable();
        while let Some((_, at)) = open.pop_front_if(|(position, _)| *position <= durable) {
            times.push(at.elapsed());
        }
        std::thread::yield_now();
    }
    times.sort_unstable();
    (begun.elapsed().as_secs_f64(), times)
}

#[test]
#[ignore = "measures the disk for a minute"]
fn appends_per_second() {
    let dir = place();
    let disk: Arc<dyn Disk> = Arc::new(DiskDir::open_locked(dir.path()).unwrap());
    let options = JournalOptions::new(STORE);
    let begun = Instant::now();
    let journal = start(&disk, &options);
    println!("first start: {:.1} ms", begun.elapsed().as_secs_f64() * 1e3);
    wait_until("a spare file", || journal.stats().spare_files > 0);
    println!("entry KiB  window  MB/s    groups/s  KiB/group  p50 ms  p99 ms  sync ms");
    let runs: [(usize, u64, u64); 7] = [
        (100, 1, 1 << 17),
        (16, 1, 8 << 20),
        (64, 1, 64 << 20),
        (64, 16, 256 << 20),
        (16, 256, 512 << 20),
        (1024, 8, BYTES),
        (64, 512, BYTES),
    ];
    for (len, window, bytes) in runs {
        let len = if len == 100 { 100 } else { len * 1024 };
        let before = journal.stats();
        let (seconds, times) = load(&journal, bytes, len, window);
        let after = journal.stats();
        let groups = (after.groups - before.groups) as f64;
        let syncs = (after.syncs - before.syncs).max(1) as f64;
        println!(
            "{:9.1} {:7} {:7.1} {:9.0} {:10.0} {:7.2} {:7.2} {:8.2}",
            len as f64 / 1024.0,
            window,
            bytes as f64 / seconds / 1e6,
            groups / seconds,
            bytes as f64 / groups / 1024.0,
            times[times.len() / 2].as_secs_f64() * 1e3,
            times[times.len() * 99 / 100].as_secs_f64() * 1e3,
            (after.sync_nanos_total - before.sync_nanos_total) as f64 / syncs / 1e6,
        );
        journal.trim(journal.durable());
    }
    println!("{:?}", journal.stats());
}

#[test]
#[ignore = "writes a gigabyte"]
fn replay_of_a_gigabyte() {
    for len in [1000, 64 * 1024, 1 << 20] {
        let dir = place();
        let disk: Arc<dyn Disk> = Arc::new(DiskDir::open_locked(dir.path()).unwrap());
        let options = JournalOptions::new(STORE);
        let journal = start(&disk, &options);
        load(&journal, BYTES, len, (4 << 20) / len as u64);
        journal.close();
        drop(journal);
        let begun = Instant::now();
        let mut opened = FileJournal::open(disk, options).unwrap();
        let open = begun.elapsed();
        let mut tail = 0;
        let keep = &mut |group: Group| {
            tail += group.buffer.len();
            Ok(())
        };
        let summary = opened.replay(Position(0), keep, &|_, _| ()).unwrap();
        println!(
            "{} groups of {} entries of {len} bytes: found in {:.3} s, replayed in {:.3} s",
            summary.groups,
            summary.entries / summary.groups,
            open.as_secs_f64(),
            (begun.elapsed() - open).as_secs_f64(),
        );
        assert!(tail as u64 >= BYTES);
    }
}
