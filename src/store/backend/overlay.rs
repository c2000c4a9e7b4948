//! A disk whose changes stay in memory: what lies below is read and never written.
//!
//! A check of a stopped data directory runs the very recovery that a start would run, on this.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Disk, DiskFile, Space};

const PAGE: u64 = 4096;

/// Changes over another disk.
pub struct Overlay {
    base: Arc<dyn Disk>,
    /// Files that were opened, made or removed (`None`) here.
    names: Mutex<BTreeMap<String, Option<Arc<OverlayFile>>>>,
}

impl Overlay {
    /// Without any change yet.
    pub fn new(base: Arc<dyn Disk>) -> Self {
        Self {
            base,
            names: Mutex::default(),
        }
    }

    fn find(&self, name: &str) -> io::Result<Arc<OverlayFile>> {
        let mut names = self.names.lock();
        match names.get(name) {
            Some(Some(file)) => Ok(Arc::clone(file)),
            Some(None) => Err(io::ErrorKind::NotFound.into()),
            None => {
                let base = self.base.open(name)?;
                let len = base.len()?;
                let file = Arc::new(OverlayFile {
                    base: Some(base),
                    state: Mutex::new(State {
                        len,
                        base_len: len,
                        pages: BTreeMap::new(),
                    }),
                });
                names.insert(name.to_owned(), Some(Arc::clone(&file)));
                Ok(file)
            }
        }
    }
}

impl Disk for Overlay {
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        match self.find(name) {
            Ok(_) => return Err(io::ErrorKind::AlreadyExists.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let file = Arc::new(OverlayFile {
            base: None,
            state: Mutex::default(),
        });
        self.names
            .lock()
            .insert(name.to_owned(), Some(Arc::clone(&file)));
        Ok(file)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.find(name)?)
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let names = self.names.lock();
        let here = |name: &String| match folder {
            "" => (!name.contains('/')).then(|| name.clone()),
            folder => {
                let rest = name.strip_prefix(folder)?.strip_prefix('/')?;
                (!rest.contains('/')).then(|| rest.to_owned())
            }
        };
        let mut listed = self.base.list(folder)?;
        let gone: Vec<String> = names
            .iter()
            .filter(|(_, file)| file.is_none())
            .filter_map(|(name, _)| here(name))
            .collect();
        listed.retain(|name| !gone.contains(name));
        listed.extend(
            names
                .iter()
                .filter(|(_, file)| file.is_some())
                .filter_map(|(name, _)| here(name)),
        );
        listed.sort_unstable();
        listed.dedup();
        Ok(listed)
    }

    fn folders(&self, folder: &str) -> io::Result<Vec<String>> {
        self.base.folders(folder)
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        self.find(name)?;
        self.names.lock().insert(name.to_owned(), None);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let file = self.find(from)?;
        let mut names = self.names.lock();
        names.insert(from.to_owned(), None);
        names.insert(to.to_owned(), Some(file));
        Ok(())
    }

    fn create_dir(&self, _folder: &str) -> io::Result<()> {
        Ok(())
    }

    fn sync_dir(&self, _folder: &str) -> io::Result<()> {
        Ok(())
    }

    fn space(&self) -> io::Result<Space> {
        self.base.space()
    }
}

struct OverlayFile {
    base: Option<Arc<dyn DiskFile>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    len: u64,
    /// Bytes of the file below that still show through.
    base_len: u64,
    pages: BTreeMap<u64, Box<[u8]>>,
}

impl OverlayFile {
    /// What the file below holds at a place that lies inside it, and zeros behind it.
    fn below(&self, base_len: u64, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let there = base_len.saturating_sub(offset).min(bytes.len() as u64) as usize;
        let (inside, behind) = bytes.split_at_mut(there);
        if let (Some(base), false) = (&self.base, inside.is_empty()) {
            base.read_at(inside, offset)?;
        }
        behind.fill(0);
        Ok(())
    }

    fn page<'a>(&self, state: &'a mut State, number: u64) -> io::Result<&'a mut [u8]> {
        if !state.pages.contains_key(&number) {
            let mut page = vec![0; PAGE as usize].into_boxed_slice();
            self.below(state.base_len, &mut page, number * PAGE)?;
            state.pages.insert(number, page);
        }
        let page = state.pages.get_mut(&number);
        page.map(|page| &mut page[..])
            .ok_or_else(|| io::Error::other("a page of the overlay is gone"))
    }
}

impl DiskFile for OverlayFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let within = (at % PAGE) as usize;
            let count = (PAGE as usize - within).min(bytes.len() - done);
            let page = self.page(&mut state, at / PAGE)?;
            page[within..within + count].copy_from_slice(&bytes[done..done + count]);
            done += count;
        }
        state.len = state.len.max(offset + bytes.len() as u64);
        Ok(())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let state = self.state.lock();
        let end = offset + bytes.len() as u64;
        if end > state.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.below(state.base_len, bytes, offset)?;
        let pages = state.pages.range(offset / PAGE..end.div_ceil(PAGE));
        for (number, page) in pages {
            let start = (number * PAGE).max(offset);
            let stop = ((number + 1) * PAGE).min(end);
            let from = (start - number * PAGE) as usize..(stop - number * PAGE) as usize;
            let to = (start - offset) as usize..(stop - offset) as usize;
            bytes[to].copy_from_slice(&page[from]);
        }
        Ok(())
    }

    fn read_cached_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn start_writeback(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        if len < state.len {
            let within = (len % PAGE) as usize;
            if within > 0 {
                self.page(&mut state, len / PAGE)?[within..].fill(0);
            }
            state.pages.split_off(&len.div_ceil(PAGE));
            state.base_len = state.base_len.min(len);
        }
        state.len = len;
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.state.lock().len)
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::MemoryDisk;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_change_above_and_stay_below() {
        let base = MemoryDisk::new();
        base.create_dir("a").unwrap();
        base.create("a/one").unwrap().write_at(b"1", 0).unwrap();
        base.create("a/two").unwrap().write_at(b"2", 0).unwrap();
        let above = Overlay::new(Arc::new(base.clone()));
        above.delete("a/one").unwrap();
        above.rename("a/two", "a/three").unwrap();
        above.create("a/four").unwrap();
        assert!(above.create("a/three").is_err());
        assert_eq!(above.list("a").unwrap(), ["four", "three"]);
        assert!(above.open("a/two").is_err());
        let mut byte = [0];
        above
            .open("a/three")
            .unwrap()
            .read_at(&mut byte, 0)
            .unwrap();
        assert_eq!(byte, *b"2");
        assert_eq!(base.list("a").unwrap(), ["one", "two"]);
    }

    proptest! {
        #[test]
        fn a_file_above_is_as_one_that_is_written_and_the_one_below_stays(
            first in prop::collection::vec(any::<u8>(), 0..20_000),
            steps in prop::collection::vec(
                (any::<bool>(), 0u64..20_000, prop::collection::vec(any::<u8>(), 1..9000)),
                1..8,
            ),
        ) {
            let base = MemoryDisk::new();
            base.create("f").unwrap().write_at(&first, 0).unwrap();
            let file = Overlay::new(Arc::new(base.clone())).open("f").unwrap();
            let mut model = first.clone();
            for (cut, at, bytes) in steps {
                if cut {
                    file.set_len(at).unwrap();
                    model.resize(at as usize, 0);
                } else {
                    file.write_at(&bytes, at).unwrap();
                    model.resize(model.len().max(at as usize + bytes.len()), 0);
                    model[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
                }
                prop_assert_eq!(file.len().unwrap(), model.len() as u64);
                let mut all = vec![9; model.len()];
                file.read_at(&mut all, 0).unwrap();
                prop_assert!(all == model);
            }
            prop_assert!(base.contents("f").unwrap() == first);
        }
    }
}
