//! The gate for client writes: closed while the disk is nearly full.
//!
//! It is looked at by bytes and not by time: at full speed a disk can fill within a second, and
//! the journal and the flush of what is in memory must still find room after the gate has closed.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::store::backend::{Disk, Space};

/// Bytes of appends after which the free space is looked at again.
const LOOK_EVERY: u64 = 4 << 20;

/// The gate.
pub(super) struct Gate {
    disk: Arc<dyn Disk>,
    reserve_bytes: u64,
    open: AtomicBool,
    /// The background work found no space for a file and tries again.
    work_is_short: AtomicBool,
    unlooked: AtomicU64,
    /// Names the directory if there are several.
    span: tracing::Span,
}

impl Gate {
    pub(super) fn new(disk: Arc<dyn Disk>, reserve_bytes: u64) -> Self {
        Self {
            disk,
            reserve_bytes,
            open: AtomicBool::new(true),
            work_is_short: AtomicBool::new(false),
            unlooked: AtomicU64::new(LOOK_EVERY),
            span: tracing::Span::current(),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Bytes free on the device; 0 where it does not tell.
    pub(super) fn free(&self) -> u64 {
        self.disk.space().map_or(0, |space| space.free)
    }

    /// Counts bytes about to be appended, and looks at the free space now and then.
    pub(super) fn count(&self, bytes: u64) {
        if self.unlooked.fetch_add(bytes, Ordering::Relaxed) + bytes >= LOOK_EVERY {
            // An error here is met again by the background thread, which can end the process.
            let _ = self.look();
        }
    }

    pub(super) fn space(&self) -> io::Result<Space> {
        self.disk.space()
    }

    /// Bytes that can be written without coming near the reserve.
    pub(super) fn spare_bytes(&self) -> io::Result<u64> {
        match self.is_open() {
            true => Ok(self.disk.space()?.free.saturating_sub(self.reserve_bytes)),
            false => Ok(0),
        }
    }

    /// Bytes that may be written in order to give more back, out of the reserve; half of it stays
    /// for the journal.
    pub(super) fn room_to_free(&self) -> io::Result<u64> {
        let free = self.disk.space()?.free;
        Ok(free.saturating_sub(self.reserve_bytes / 2))
    }

    /// Says whether the background work finds space for its files. Returns what it said before.
    pub(super) fn set_work_is_short(&self, short: bool) -> bool {
        let before = self.work_is_short.swap(short, Ordering::AcqRel);
        if short {
            self.open.store(false, Ordering::Release);
        }
        before
    }

    /// Looks at the free space and opens or closes the gate. It opens only with an eighth more
    /// than the reserve, so that it does not flap.
    pub(super) fn look(&self) -> io::Result<()> {
        self.unlooked.store(0, Ordering::Relaxed);
        let free = self.disk.space()?.free;
        let was = self.is_open();
        let needed = if was {
            self.reserve_bytes
        } else {
            self.reserve_bytes / 8 * 9
        };
        let open = free >= needed && !self.work_is_short.load(Ordering::Acquire);
        if self.open.swap(open, Ordering::AcqRel) == open {
            return Ok(());
        }
        let _named = self.span.enter();
        if open {
            tracing::info!(free, "the disk has room again: client writes are taken");
        } else {
            tracing::error!(
                free,
                reserve = self.reserve_bytes,
                "the disk is nearly full: client writes are refused until more than the reserve \
                 is free; reads, retention and deletion go on. Free space, delete records or \
                 topics, move shards to another data directory, or lower disk.reserve.bytes if the disk is small"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::backend::memory::MemoryDisk;

    #[test]
    fn it_closes_by_bytes_and_opens_with_some_to_spare() {
        let disk = MemoryDisk::new();
        disk.set_capacity(Some(100 << 20));
        let file = disk.create("f").unwrap();
        let gate = Gate::new(Arc::new(disk), 64 << 20);
        gate.count(1);
        assert!(gate.is_open());
        file.set_len(40 << 20).unwrap();
        gate.count(LOOK_EVERY - 1);
        assert!(gate.is_open(), "not looked at yet");
        gate.count(1);
        assert!(!gate.is_open());
        file.set_len(30 << 20).unwrap();
        gate.look().unwrap();
        assert!(!gate.is_open(), "70 MiB are not an eighth more than 64");
        file.set_len(20 << 20).unwrap();
        gate.look().unwrap();
        assert!(gate.is_open());
        gate.set_work_is_short(true);
        gate.look().unwrap();
        assert!(!gate.is_open());
        gate.set_work_is_short(false);
        gate.look().unwrap();
        assert!(gate.is_open());
    }
}
