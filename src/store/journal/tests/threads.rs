//! The journal with its real threads.

use super::*;
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
