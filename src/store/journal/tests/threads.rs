//! The journal with its real threads.

use super::*;
use crate::clock::SystemClock;
use crate::store::backend::disk::DiskDir;
use crate::store::backend::faults::{Fault, FaultDisk, Op, Rule};

fn no_fatal() -> Arc<dyn Fn(String) + Send + Sync> {
    Arc::new(|message| panic!("fatal: {message}"))
}

#[test]
fn many_appenders_then_a_clean_restart_on_a_real_disk() {
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(DiskDir::open_locked(dir.path()).unwrap());
    let recorder = Arc::new(Recorder::default());
    let journal = FileJournal::open(Arc::clone(&disk), options()).unwrap();
    let journal = journal.start(Arc::clone(&recorder) as Arc<dyn Sink>, no_fatal());
    let order = Mutex::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..300 {
                    let mut last = order.lock();
                    *last += 1;
                    let position = journal.append(entry(*last, 10 + (*last as usize * 37) % 3000));
                    assert_eq!(position.0, *last);
                }
            });
        }
    });
    journal.close();
    assert_eq!(journal.durable(), Position(1200));
    let stats = journal.stats();
    assert_eq!(
        (stats.entries, stats.queue_entries, stats.queue_bytes),
        (1200, 0, 0)
    );
    drop(journal);
    let groups = recorder.groups.lock();
    assert_eq!(groups.iter().map(|g| g.entries.len()).sum::<usize>(), 1200);
    let mut opened = FileJournal::open(disk, options()).unwrap();
    let payloads = replay(&mut opened, Position(0)).unwrap();
    let told: Vec<_> = groups
        .iter()
        .flat_map(|g| g.entries.iter().map(move |e| g.payload(e)))
        .collect();
    assert_eq!(payloads, told);
    for (at, bytes) in payloads.iter().enumerate() {
        let number = at as u64 + 1;
        assert_eq!(bytes, &payload(number, 10 + (number as usize * 37) % 3000));
    }
}

#[test]
fn an_error_is_fatal_once_and_nothing_is_acknowledged_after_it() {
    for op in [Op::Write, Op::Sync] {
        let disk = FaultDisk::new(Arc::new(MemoryDisk::new()), 1);
        let recorder = Arc::new(Recorder::default());
        let messages = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&messages);
        // Files are ready before the fault, so that it hits a group.
        let options = JournalOptions {
            file_bytes: 1 << 20,
            first_zero_bytes: 1 << 20,
            ..options()
        };
        let journal = FileJournal::open(Arc::new(disk.clone()), options).unwrap();
        let journal = journal.start(
            Arc::clone(&recorder) as Arc<dyn Sink>,
            Arc::new(move |message| to.lock().push(message)),
        );
        journal.append(entry(1, 100));
        wait_until("the first entry", || journal.durable() == Position(1));
        wait_until("a spare file", || journal.stats().spare_files == 1);
        disk.add(Rule::new(op, "journal/", Fault::Eio).times(1));
        for number in 2..50 {
            journal.append(entry(number, 100));
        }
        wait_until("the message", || !messages.lock().is_empty());
        for number in 50..60 {
            journal.append(entry(number, 100));
        }
        journal.close();
        assert_eq!(journal.durable(), Position(1));
        assert_eq!(recorder.groups.lock().len(), 1);
        let messages = messages.lock();
        assert_eq!(messages.len(), 1, "{messages:?}");
        assert!(
            messages[0].contains("nothing after this is acknowledged"),
            "{}",
            messages[0]
        );
    }
}

#[test]
fn no_space_for_a_spare_file_is_told_and_not_fatal() {
    let disk = FaultDisk::new(Arc::new(MemoryDisk::new()), 1);
    let journal = FileJournal::open(Arc::new(disk.clone()), options()).unwrap();
    disk.add(Rule::new(Op::Create, "journal/", Fault::Enospc));
    let journal = journal.start(Arc::new(Recorder::default()), no_fatal());
    wait_until("the shortage", || journal.stats().short_of_space);
    journal.append(entry(1, 100));
    wait_until("an entry in the first file", || {
        journal.durable() == Position(1)
    });
    for number in 2..=20 {
        journal.append(entry(number, 10_000));
    }
    wait_until("the first file to be full", || {
        journal.durable() >= Position(3)
    });
    disk.clear();
    wait_until("the rest, once there is space", || {
        journal.durable() == Position(20)
    });
    wait_until("the end of the shortage", || {
        !journal.stats().short_of_space
    });
    journal.close();
}

/// A journal on a full disk whose first file is full, as well.
fn without_space(
    fatal: Arc<dyn Fn(String) + Send + Sync>,
) -> (FaultDisk, Arc<Recorder>, Arc<FileJournal>) {
    const PATIENCE: u32 = 2;
    let disk = FaultDisk::new(Arc::new(MemoryDisk::new()), 1);
    let opened = FileJournal::open(Arc::new(disk.clone()), options()).unwrap();
    disk.add(Rule::new(Op::Create, "journal/", Fault::Enospc));
    let writer = opened.into_writer(Arc::new(SystemClock::new()), PATIENCE);
    let recorder = Arc::new(Recorder::default());
    let journal = FileJournal::run(writer, Arc::clone(&recorder) as Arc<dyn Sink>, fatal);
    for number in 1..=20 {
        journal.append(entry(number, 10_000));
    }
    // The background thread makes some of them.
    wait_until("many attempts", || disk.hits() > 10 * u64::from(PATIENCE));
    assert!(journal.short_of_space());
    (disk, recorder, journal)
}

/// Others may fill a disk to the last byte. That ends nothing: it is waited for, however long.
#[test]
fn no_space_for_the_next_file_is_waited_for() {
    let (disk, recorder, journal) = without_space(no_fatal());
    assert!(journal.durable() < Position(20));
    assert_eq!(journal.appended(), Position(20));
    disk.clear();
    wait_until("the rest, once there is space", || {
        journal.durable() == Position(20)
    });
    assert!(!journal.short_of_space());
    let groups = recorder.groups.lock();
    assert_eq!(groups.iter().map(|g| g.entries.len()).sum::<usize>(), 20);
    drop(groups);
    journal.close();
}

/// Also for an entry that is larger than a journal file.
#[test]
fn no_space_for_a_large_entry_is_waited_for() {
    let memory = MemoryDisk::new();
    let journal = FileJournal::open(Arc::new(memory.clone()), options()).unwrap();
    let journal = journal.start(Arc::new(Recorder::default()), no_fatal());
    wait_until("a spare file", || journal.stats().spare_files == 1);
    memory.set_capacity(Some(200_000));
    journal.append(entry(1, 300_000));
    journal.append(entry(2, 10));
    wait_until("the shortage", || journal.short_of_space());
    assert_eq!(journal.durable(), Position(0));
    memory.set_capacity(None);
    wait_until("both, once there is space", || {
        journal.durable() == Position(2)
    });
    journal.close();
    let mut opened = FileJournal::open(Arc::new(memory), options()).unwrap();
    assert_eq!(replay(&mut opened, Position(0)).unwrap().len(), 2);
}

#[test]
fn a_journal_that_is_to_end_waits_for_space_no_longer_than_for_a_while() {
    let messages = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&messages);
    let (_disk, _, journal) = without_space(Arc::new(move |message| to.lock().push(message)));
    assert!(messages.lock().is_empty());
    journal.close();
    assert!(messages.lock()[0].contains("cannot open the next file"));
    assert!(journal.durable() < Position(20));
}

#[test]
fn a_full_disk_in_the_middle_of_a_spare_file_leaves_no_half_file() {
    let memory = MemoryDisk::new();
    memory.set_capacity(Some(80 * 1024));
    let journal = FileJournal::open(Arc::new(memory.clone()), options()).unwrap();
    let journal = journal.start(Arc::new(Recorder::default()), no_fatal());
    wait_until("the shortage", || journal.stats().short_of_space);
    journal.append(entry(1, 100));
    wait_until("the entry", || journal.durable() == Position(1));
    memory.set_capacity(None);
    wait_until("a spare file", || journal.stats().spare_files == 1);
    journal.close();
    let lens: Vec<_> = memory
        .names()
        .iter()
        .map(|n| memory.contents(n).unwrap().len())
        .collect();
    assert_eq!(lens, [32 * 1024, 64 * 1024]);
}

/// An idle journal gives its files back when they are not needed, and what it keeps for reuse goes
/// when the disk needs the space.
#[test]
fn below_the_reserve_all_spare_files_but_one_are_given_up() {
    let memory = MemoryDisk::new();
    memory.set_capacity(Some(2 << 20));
    let options = JournalOptions {
        reserve_bytes: 512 << 10,
        ..options()
    };
    let journal = FileJournal::open(Arc::new(memory.clone()), options).unwrap();
    let journal = journal.start(Arc::new(Recorder::default()), no_fatal());
    for number in 1..=60 {
        journal.append(entry(number, 10_000));
    }
    wait_until("the entries", || journal.durable() == Position(60));
    let spare = || journal.stats().spare_files;
    assert!(spare() <= 1, "no more than one is made ahead");
    journal.trim(Position(60));
    wait_until("the trimmed files", || journal.stats().files == 7);

    let other = memory.create("other").unwrap();
    other.set_len(1600 << 10).unwrap();
    wait_until("space", || journal.stats().files == 2);
    assert_eq!(spare(), 1);
    for number in 61..=80 {
        journal.append(entry(number, 10_000));
    }
    wait_until("the reserve to serve", || journal.durable() == Position(80));
    assert_eq!(spare(), 0, "nothing is made ahead out of the reserve");
    other.set_len(0).unwrap();
    wait_until("a spare file", || spare() == 1);
    journal.close();
}

#[test]
fn what_queues_up_behind_a_sync_goes_in_one_group() {
    let disk = FaultDisk::new(Arc::new(MemoryDisk::new()), 1);
    let recorder = Arc::new(Recorder::default());
    let options = JournalOptions {
        first_zero_bytes: 64 * 1024,
        ..options()
    };
    let journal = FileJournal::open(Arc::new(disk.clone()), options).unwrap();
    let journal = journal.start(Arc::clone(&recorder) as Arc<dyn Sink>, no_fatal());
    wait_until("a spare file", || journal.stats().spare_files == 1);
    disk.add(Rule::new(Op::Sync, "journal/", Fault::Stall).times(1));
    let mut durable = journal.subscribe();
    journal.append(entry(1, 100));
    wait_until("the sync", || disk.stalled() == 1);
    for number in 2..=50 {
        journal.append(entry(number, 100));
    }
    assert_eq!(journal.durable(), Position(0));
    assert_eq!(journal.appended(), Position(50));
    assert_eq!(journal.stats().queue_entries, 49);
    disk.clear();
    wait_until("all of it", || journal.durable() == Position(50));
    let groups: Vec<_> = recorder
        .groups
        .lock()
        .iter()
        .map(|g| g.entries.len())
        .collect();
    assert_eq!(groups, [1, 49]);
    assert_eq!(recorder.groups.lock()[1].charge, 4900);
    assert!(durable.has_changed().unwrap());
    assert_eq!(*durable.borrow_and_update(), Position(50));
}

#[test]
fn with_an_interval_entries_count_once_written_and_sync_makes_them_safe() {
    let memory = MemoryDisk::new();
    let disk = FaultDisk::new(Arc::new(memory.clone()), 1);
    let sync = SyncPolicy::Interval(Duration::from_secs(3600));
    let options = JournalOptions {
        sync,
        first_zero_bytes: 64 * 1024,
        ..options()
    };
    let journal = FileJournal::open(Arc::new(disk.clone()), options.clone()).unwrap();
    let journal = journal.start(Arc::new(Recorder::default()), no_fatal());
    for number in 1..=10 {
        journal.append(entry(number, 100));
    }
    wait_until("the write", || journal.durable() == Position(10));
    let kept = |seed| {
        let disk = Arc::new(memory.crash(seed));
        let mut opened = FileJournal::open(disk, options.clone()).unwrap();
        replay(&mut opened, Position(0)).unwrap().len()
    };
    assert!(
        (0..40).any(|seed| kept(seed) < 10),
        "a power cut may take it back"
    );
    journal.sync();
    assert!((0..40).all(|seed| kept(seed) == 10));
    disk.add(Rule::new(Op::Sync, "journal/", Fault::Stall));
    journal.append(entry(11, 100));
    wait_until("the write", || journal.durable() == Position(11));
    disk.clear();
    journal.close();
    assert!((0..40).all(|seed| kept(seed) == 11), "closing syncs");
}

#[test]
fn trimmed_files_are_used_again_and_live_bytes_fall() {
    let memory = MemoryDisk::new();
    let options = JournalOptions {
        file_bytes: 1 << 20,
        first_zero_bytes: 1 << 20,
        ..options()
    };
    let journal = FileJournal::open(Arc::new(memory.clone()), options.clone()).unwrap();
    let journal = journal.start(Arc::new(Recorder::default()), no_fatal());
    for number in 1..=600 {
        let position = journal.append(entry(number, 20_000));
        if number % 50 == 0 {
            wait_until("the entries", || journal.durable() == position);
            journal.trim(Position(number - 10));
        }
    }
    let stats = journal.stats();
    assert!(
        stats.bytes > 12_000_000 && stats.live_bytes < 3 << 20,
        "{stats:?}"
    );
    wait_until("files to be given back", || journal.stats().files <= 8);
    journal.close();
    drop(journal);
    let mut opened = FileJournal::open(Arc::new(memory), options).unwrap();
    assert_eq!(replay(&mut opened, Position(590)).unwrap().len(), 10);
}

#[test]
fn a_panic_in_the_sink_is_fatal() {
    struct Panics;
    impl Sink for Panics {
        fn commit(&self, _group: Group) {
            panic!("a defect in the sink (part of a test)");
        }
    }
    let messages = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&messages);
    let journal = FileJournal::open(Arc::new(MemoryDisk::new()), options()).unwrap();
    let journal = journal.start(Arc::new(Panics), Arc::new(move |m| to.lock().push(m)));
    journal.append(entry(1, 10));
    wait_until("the message", || !messages.lock().is_empty());
    assert!(
        messages.lock()[0].contains("the thread journal"),
        "whichever of them told it"
    );
    assert_eq!(journal.durable(), Position(0));
    journal.close();
}
