//! Layout epochs that no longer fit in memory: one append-only file per topic, in blocks.
//!
//! A block stands for a run of epochs; what it says of them is the catalog's business. Where two
//! blocks speak of one epoch, the later one counts: the file may be ahead of a journal that lost
//! its end. `docs/formats.md` draws the bytes.

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::{Buf, BufMut};
use parking_lot::Mutex;

use crate::store::backend::{Disk, DiskFile};
use crate::types::TopicNo;

const FOLDER: &str = "lineage";
const FILE_MAGIC: &[u8; 8] = b"SGLINEAG";
const BLOCK_MAGIC: &[u8; 4] = b"SGLB";
const VERSION: u8 = 1;
const FILE_HEADER: usize = 20;
const BLOCK_HEADER: usize = 24;

/// The files of a data directory.
pub struct LineageStore {
    disk: Arc<dyn Disk>,
    ends: Mutex<BTreeMap<TopicNo, End>>,
}

/// Where a topic's file ends.
#[derive(Clone, Copy, Debug, Default)]
struct End {
    /// Where the next block goes.
    at: u64,
    /// The last epoch of the last block.
    through: u32,
}

/// A block whose header is sound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The epochs it stands for.
    pub epochs: RangeInclusive<u32>,
    payload: std::ops::Range<u64>,
    crc: u32,
}

/// What a file holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// Sound blocks, in file order.
    pub blocks: Vec<Block>,
    /// What lies between them and can't be read, in words.
    pub flaws: Vec<String>,
    /// The place behind the last sound block.
    end: u64,
}

impl LineageStore {
    /// Looks through the files on a disk.
    pub fn open(disk: Arc<dyn Disk>) -> io::Result<Self> {
        let store = Self {
            disk,
            ends: Mutex::default(),
        };
        for name in store.disk.list(FOLDER)? {
            let Some(no) = number(&name) else { continue };
            let scan = store.scan(no)?;
            let end = End {
                at: scan.end,
                through: scan.blocks.last().map_or(0, |block| *block.epochs.end()),
            };
            store.ends.lock().insert(no, end);
        }
        Ok(store)
    }

    /// The topics that have a file.
    pub fn topics(&self) -> Vec<TopicNo> {
        self.ends.lock().keys().copied().collect()
    }

    /// The last epoch that a topic's file speaks of; 0 for none.
    pub fn through(&self, no: TopicNo) -> u32 {
        self.ends.lock().get(&no).map_or(0, |end| end.through)
    }

    /// Appends a block and makes it durable.
    pub fn append(
        &self,
        no: TopicNo,
        epochs: RangeInclusive<u32>,
        payload: &[u8],
    ) -> io::Result<()> {
        let mut ends = self.ends.lock();
        let at = ends.get(&no).map_or(0, |end| end.at);
        let mut bytes = Vec::with_capacity(FILE_HEADER + BLOCK_HEADER + payload.len());
        if at == 0 {
            bytes.put_slice(&file_header(no));
        }
        bytes.put_slice(&block_header(&epochs, payload));
        bytes.put_slice(payload);
        let name = path(no);
        let file = match self.disk.open(&name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.disk.create_dir(FOLDER)?;
                self.disk.create(&name)?
            }
            other => other?,
        };
        // What a crash or a full disk left of an unfinished block.
        if file.len()? > at {
            file.set_len(at)?;
        }
        file.write_at(&bytes, at)?;
        file.sync_data()?;
        if at == 0 {
            self.disk.sync_dir(FOLDER)?;
            self.disk.sync_dir("")?;
        }
        let end = End {
            at: at + bytes.len() as u64,
            through: *epochs.end(),
        };
        ends.insert(no, end);
        Ok(())
    }

    /// Deletes a topic's file, if it has one.
    pub fn delete(&self, no: TopicNo) -> io::Result<()> {
        let mut ends = self.ends.lock();
        if ends.contains_key(&no) {
            match self.disk.delete(&path(no)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            ends.remove(&no);
        }
        Ok(())
    }

    /// Reads a topic's file but for the payloads. One that is not there holds nothing.
    pub fn scan(&self, no: TopicNo) -> io::Result<Scan> {
        let file = match self.disk.open(&path(no)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Scan::default()),
            other => other?,
        };
        let length = file.len()?;
        let mut scan = Scan::default();
        if let Some(flaw) = header_flaw(file.as_ref(), no, length)? {
            scan.flaws.push(flaw);
        }
        let mut at = FILE_HEADER as u64;
        while at < length {
            match block_at(file.as_ref(), at, length)? {
                Some(block) => {
                    at = block.payload.end;
                    scan.end = at;
                    scan.blocks.push(block);
                }
                None => {
                    let Some(next) = next_block(file.as_ref(), at + 1, length)? else {
                        break;
                    };
                    let what = format!("bytes {at} to {} of {} are damaged", next - 1, path(no));
                    scan.flaws.push(what);
                    at = next;
                }
            }
        }
        // A block that was being written when the machine stopped was not needed yet.
        if let Some(last) = scan.blocks.last()
            && self.payload(no, last)?.is_none()
        {
            scan.end = last.payload.start - BLOCK_HEADER as u64;
            scan.blocks.pop();
        }
        Ok(scan)
    }

    /// The payload of a block; `None` if its checksum does not match.
    pub fn payload(&self, no: TopicNo, block: &Block) -> io::Result<Option<Vec<u8>>> {
        let file = self.disk.open(&path(no))?;
        let length = (block.payload.end - block.payload.start) as usize;
        let mut bytes = vec![0; length];
        file.read_at(&mut bytes, block.payload.start)?;
        Ok((crc32c::crc32c(&bytes) == block.crc).then_some(bytes))
    }
}

/// The name of a topic's file.
pub fn path(no: TopicNo) -> String {
    format!("{FOLDER}/{:010}.log", no.0)
}

fn number(name: &str) -> Option<TopicNo> {
    name.strip_suffix(".log")?.parse().ok().map(TopicNo)
}

/// magic, version u8, 3 zero bytes, topic u32, checksum u32 of what precedes it.
fn file_header(no: TopicNo) -> [u8; FILE_HEADER] {
    let mut bytes = [0; FILE_HEADER];
    let mut out = &mut bytes[..];
    out.put_slice(FILE_MAGIC);
    out.put_u8(VERSION);
    out.put_slice(&[0; 3]);
    out.put_u32_le(no.0);
    let crc = crc32c::crc32c(&bytes[..FILE_HEADER - 4]);
    bytes[FILE_HEADER - 4..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn header_flaw(file: &dyn DiskFile, no: TopicNo, length: u64) -> io::Result<Option<String>> {
    let mut bytes = [0; FILE_HEADER];
    if length < FILE_HEADER as u64 {
        return Ok(None);
    }
    file.read_at(&mut bytes, 0)?;
    if &bytes[..8] == FILE_MAGIC && bytes[8] > VERSION {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "{} is of version {}, this program reads up to {VERSION}: start the newer program",
                path(no),
                bytes[8]
            ),
        ));
    }
    Ok((bytes != file_header(no)).then(|| format!("the header of {} is damaged", path(no))))
}

/// magic, length u32, first epoch u32, last epoch u32, checksum u32 of the payload, checksum u32
/// of what precedes it.
fn block_header(epochs: &RangeInclusive<u32>, payload: &[u8]) -> [u8; BLOCK_HEADER] {
    let mut bytes = [0; BLOCK_HEADER];
    let mut out = &mut bytes[..];
    out.put_slice(BLOCK_MAGIC);
    out.put_u32_le(u32::try_from(payload.len()).unwrap_or(u32::MAX));
    out.put_u32_le(*epochs.start());
    out.put_u32_le(*epochs.end());
    out.put_u32_le(crc32c::crc32c(payload));
    let crc = crc32c::crc32c(&bytes[..BLOCK_HEADER - 4]);
    bytes[BLOCK_HEADER - 4..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn block_at(file: &dyn DiskFile, at: u64, length: u64) -> io::Result<Option<Block>> {
    let start = at + BLOCK_HEADER as u64;
    if start > length {
        return Ok(None);
    }
    let mut bytes = [0; BLOCK_HEADER];
    file.read_at(&mut bytes, at)?;
    let crc = crc32c::crc32c(&bytes[..BLOCK_HEADER - 4]);
    let mut fields = &bytes[BLOCK_MAGIC.len()..];
    let end = start + u64::from(fields.get_u32_le());
    let (first, last) = (fields.get_u32_le(), fields.get_u32_le());
    let block = Block {
        epochs: first..=last,
        payload: start..end,
        crc: fields.get_u32_le(),
    };
    let sound = &bytes[..4] == BLOCK_MAGIC && fields.get_u32_le() == crc && end <= length;
    Ok(sound.then_some(block))
}

/// The first place from `at` on where a sound block starts.
fn next_block(file: &dyn DiskFile, at: u64, length: u64) -> io::Result<Option<u64>> {
    const WINDOW: u64 = 1 << 20;
    let mut from = at;
    while from + (BLOCK_HEADER as u64) <= length {
        // Windows overlap by a magic, so that none is missed between two of them.
        let end = length.min(from + WINDOW + 3);
        let mut bytes = vec![0; (end - from) as usize];
        file.read_at(&mut bytes, from)?;
        let found = bytes
            .windows(4)
            .enumerate()
            .filter(|(_, four)| four == BLOCK_MAGIC);
        for (offset, _) in found {
            let place = from + offset as u64;
            if block_at(file, place, length)?.is_some() {
                return Ok(Some(place));
            }
        }
        from += WINDOW;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::backend::memory::MemoryDisk;

    const NO: TopicNo = TopicNo(7);

    fn filled() -> (MemoryDisk, LineageStore) {
        let disk = MemoryDisk::new();
        let store = LineageStore::open(Arc::new(disk.clone())).unwrap();
        for n in 0..5u32 {
            let payload = vec![n as u8; 40 + n as usize];
            store
                .append(NO, n * 10 + 1..=n * 10 + 10, &payload)
                .unwrap();
        }
        (disk, store)
    }

    fn payloads(store: &LineageStore) -> Vec<Option<Vec<u8>>> {
        let scan = store.scan(NO).unwrap();
        let blocks = scan.blocks.iter();
        blocks.map(|b| store.payload(NO, b).unwrap()).collect()
    }

    #[test]
    fn blocks_come_back_after_a_crash_and_appends_go_on() {
        let (disk, _) = filled();
        let store = LineageStore::open(Arc::new(disk.crash(1))).unwrap();
        store.append(NO, 51..=52, b"more").unwrap();
        let got = payloads(&store);
        assert_eq!(got.len(), 6);
        assert_eq!(got[2], Some(vec![2; 42]));
        assert_eq!(got[5].as_deref(), Some(&b"more"[..]));
        let scan = store.scan(NO).unwrap();
        assert_eq!(
            (scan.blocks[5].epochs.clone(), scan.flaws.len()),
            (51..=52, 0)
        );
        assert_eq!(store.topics(), [NO]);
        store.delete(NO).unwrap();
        assert!(store.topics().is_empty() && payloads(&store).is_empty());
    }

    #[test]
    fn an_unfinished_block_is_cut_off_at_any_length() {
        let (disk, _) = filled();
        let length = disk.open(&path(NO)).unwrap().len().unwrap();
        for cut in 1..=(BLOCK_HEADER as u64 + 44) {
            let disk = disk.crash(2);
            disk.open(&path(NO)).unwrap().set_len(length - cut).unwrap();
            let store = LineageStore::open(Arc::new(disk)).unwrap();
            store.append(NO, 41..=50, b"again").unwrap();
            let got = payloads(&store);
            assert_eq!(got.len(), 5, "{cut} bytes short");
            assert_eq!(got[4].as_deref(), Some(&b"again"[..]));
        }
    }

    #[test]
    fn damage_costs_its_own_block_only() {
        let (disk, _) = filled();
        let length = disk.open(&path(NO)).unwrap().len().unwrap();
        let last = length - BLOCK_HEADER as u64 - 44;
        for at in 0..last {
            let disk = disk.crash(3);
            let file = disk.open(&path(NO)).unwrap();
            let mut byte = [0];
            file.read_at(&mut byte, at).unwrap();
            file.write_at(&[byte[0] ^ 0x55], at).unwrap();
            let Ok(store) = LineageStore::open(Arc::new(disk)) else {
                assert_eq!(at, 8, "only the version says that it is newer");
                continue;
            };
            let scan = store.scan(NO).unwrap();
            let whole = payloads(&store).iter().flatten().count();
            let in_header = at < FILE_HEADER as u64;
            assert_eq!(whole, if in_header { 5 } else { 4 }, "damage at {at}");
            assert!(scan.blocks.len() == 5 || !scan.flaws.is_empty());
            assert_eq!(scan.end, length, "nothing is cut off");
        }
    }
}
