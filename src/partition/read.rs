//! Reading records back: from the tail's buffers, or from segment files with every batch checked.

use std::sync::Arc;

use bytes::Bytes;

use crate::partition::figures::Figures;
use crate::partition::log::{Bounds, Partition, Source};
use crate::partition::registry::Registry;
use crate::partition::shard::{FileList, SegmentFile};
use crate::protocol::batch::BatchView;
use crate::repeats::LINES;
use crate::store::segment::{Block, ReadError, SectionMeta};
use crate::types::{FileId, Offset, PartitionKey};

/// Records of one partition for one answer.
pub struct Read {
    /// The partition's borders when the read began.
    pub bounds: Bounds,
    /// Whole batches in offset order; neighbours may share a slice.
    pub slices: Vec<Bytes>,
    /// Their length together.
    pub bytes: usize,
}

/// Why a partition cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadFailure {
    /// OFFSET_OUT_OF_RANGE.
    #[error("the offset is outside the log")]
    OutOfRange(Bounds),
    /// The topic is deleted.
    #[error("the topic is deleted")]
    Deleted,
    /// KAFKA_STORAGE_ERROR: these records cannot be served, others can.
    #[error("{0}")]
    Storage(String),
}

impl Registry {
    /// Reads up to `max_bytes` of whole batches from the one that holds `offset` on. With
    /// `whole_first` the first batch comes even when it alone is larger.
    pub async fn read(
        self: &Arc<Self>,
        partition: &Partition,
        offset: Offset,
        max_bytes: usize,
        whole_first: bool,
    ) -> Result<Read, ReadFailure> {
        let cut = partition.cut(offset, max_bytes, whole_first);
        if max_bytes == 0 && !whole_first && matches!(cut.source, Source::Files(_)) {
            return Ok(Read {
                bounds: cut.bounds,
                slices: Vec::new(),
                bytes: 0,
            });
        }
        let mut read = Read {
            bounds: cut.bounds,
            slices: Vec::new(),
            bytes: 0,
        };
        let mut source = cut.source;
        let mut next = offset;
        loop {
            let files = match source {
                Source::Deleted => return Err(ReadFailure::Deleted),
                Source::OutOfRange if next == offset => {
                    return Err(ReadFailure::OutOfRange(read.bounds));
                }
                Source::OutOfRange | Source::End => return Ok(read),
                Source::Tail(slices) => {
                    read.bytes += slices.iter().map(Bytes::len).sum::<usize>();
                    read.slices.extend(slices);
                    return Ok(read);
                }
                Source::Files(files) => files,
            };
            let left = max_bytes.saturating_sub(read.bytes);
            let whole = whole_first && read.slices.is_empty();
            let piece = self
                .read_files(&files, partition.key, next, left, whole)
                .await;
            let piece = match piece {
                Ok(Some(piece)) => piece,
                Ok(None) => return Ok(read),
                // What lies before the damage is served; the next read meets it first.
                Err(ReadFailure::Storage(_)) if !read.slices.is_empty() => return Ok(read),
                Err(failure) => return Err(failure),
            };
            read.bytes += piece.bytes.len();
            read.slices.push(piece.bytes);
            if read.bytes >= max_bytes || piece.full || piece.next >= read.bounds.high_watermark {
                return Ok(read);
            }
            next = piece.next;
            source = partition.cut(next, max_bytes - read.bytes, false).source;
        }
    }

    /// Reads about `max_bytes` on this thread, waiting for the disk: whole batches from the one
    /// that holds `offset` on, none at the end.
    pub fn read_blocking(
        &self,
        partition: &Partition,
        offset: Offset,
        max_bytes: usize,
    ) -> Result<Vec<Bytes>, ReadFailure> {
        let cut = partition.cut(offset, max_bytes, true);
        let files = match cut.source {
            Source::Deleted => return Err(ReadFailure::Deleted),
            Source::OutOfRange => return Err(ReadFailure::OutOfRange(cut.bounds)),
            Source::End => return Ok(Vec::new()),
            Source::Tail(slices) => return Ok(slices),
            Source::Files(files) => files,
        };
        let key = partition.key;
        let (file, section) = find(&files, key, offset).ok_or_else(|| not_found(key, offset))?;
        let want = Want {
            key,
            offset,
            section,
            max_bytes,
            whole_first: true,
        };
        let piece = self.storage(read_section(self, file, &want, false), key)?;
        Ok(piece.into_iter().map(|piece| piece.bytes).collect())
    }

    async fn read_files(
        self: &Arc<Self>,
        files: &FileList,
        key: PartitionKey,
        offset: Offset,
        max_bytes: usize,
        whole_first: bool,
    ) -> Result<Option<Piece>, ReadFailure> {
        let (file, section) = find(files, key, offset).ok_or_else(|| not_found(key, offset))?;
        let file = Arc::clone(file);
        let want = Want {
            key,
            offset,
            section,
            max_bytes,
            whole_first,
        };
        match read_section(self, &file, &want, true) {
            Err(ReadError::WouldBlock) => {}
            other => return self.storage(other, key),
        }
        let directory = self.directories.get(file.directory);
        let _share = directory.reads.acquire(max_bytes as u64).await;
        let registry = Arc::clone(self);
        let task =
            tokio::task::spawn_blocking(move || read_section(&registry, &file, &want, false));
        match task.await {
            Ok(result) => self.storage(result, key),
            Err(error) => Err(ReadFailure::Storage(format!(
                "the read was cut off: {error}"
            ))),
        }
    }
}

/// A run of whole batches out of one file.
struct Piece {
    bytes: Bytes,
    /// The offset behind its last record.
    next: Offset,
    /// There is more in this section, which did not fit.
    full: bool,
}

#[derive(Clone, Copy)]
struct Want {
    key: PartitionKey,
    offset: Offset,
    section: SectionMeta,
    max_bytes: usize,
    whole_first: bool,
}

fn not_found(key: PartitionKey, offset: Offset) -> ReadFailure {
    if LINES.allow("an offset is in no file", None) {
        tracing::error!(
            partition = %key, offset,
            "no segment file and no tail holds this offset although it is within the log; it \
             cannot be served, everything else can: run `shardgate verify --live`"
        );
    }
    ReadFailure::Storage("the offset is in no file".into())
}

/// The section that holds `offset`. A later one will not do: what lies between is in a file that
/// cannot be read, and a reader must hear of that rather than be taken past it.
fn find(
    files: &FileList,
    key: PartitionKey,
    offset: Offset,
) -> Option<(&Arc<SegmentFile>, SectionMeta)> {
    files.iter().rev().find_map(|file| {
        let section = file.meta.section(key)?;
        let holds = (section.start..section.end).contains(&offset);
        holds.then_some((file, *section))
    })
}

fn read_section(
    registry: &Registry,
    file: &SegmentFile,
    want: &Want,
    cached: bool,
) -> Result<Option<Piece>, ReadError> {
    let id = file.meta.file;
    let store = &registry.directories.get(file.directory).segments;
    let section = if cached {
        store.section_cached(id, want.key)?
    } else {
        store.section(id, want.key)?
    };
    let Some(section) = section else {
        return Err(ReadError::Damaged {
            file: id,
            what: "a listed section is missing".into(),
        });
    };
    let mut budget = want.max_bytes as u64;
    loop {
        let blocks = section.blocks_from(want.offset, budget);
        let (Some(first), Some(last)) = (blocks.first(), blocks.last()) else {
            return Err(not_in_section(id, want.offset));
        };
        let range = first.range.start..last.range.end;
        let at_end = range.end == section.end_position();
        let asked = range.end - range.start;
        let bytes = if cached {
            store.try_read_cached(id, range)?
        } else {
            store.read(id, range)?
        };
        // A batch's own checksum leaves out its first bytes, the base offset among them; the
        // block's covers all. What lies before a damaged block is served.
        let (sound, damage) = sound_bytes(&bytes, &blocks);
        match walk(&bytes[..sound], want) {
            Walk::Found {
                from,
                to,
                next,
                more,
            } => {
                let piece = Piece {
                    bytes: bytes.slice(from..to),
                    next,
                    full: more || !at_end || damage.is_some(),
                };
                return Ok(Some(piece));
            }
            Walk::TooLarge => return Ok(None),
            Walk::Damaged(what) => return Err(ReadError::Damaged { file: id, what }),
            Walk::NeedMore => match damage {
                Some(block) => {
                    let what = format!(
                        "the checksum of offsets {} to {} of partition {} does not match",
                        block.start,
                        block.end - 1,
                        want.key
                    );
                    return Err(ReadError::Damaged { file: id, what });
                }
                None if at_end => return Err(not_in_section(id, want.offset)),
                None => budget = (asked * 2).max(1 << 20),
            },
        }
    }
}

fn not_in_section(file: FileId, offset: Offset) -> ReadError {
    let what = format!("offset {offset} is not in its section");
    ReadError::Damaged { file, what }
}

/// How many bytes lie before the first block whose checksum does not match, and that block.
fn sound_bytes<'a>(bytes: &[u8], blocks: &'a [Block]) -> (usize, Option<&'a Block>) {
    let mut sound = 0;
    for block in blocks {
        let end = sound + (block.range.end - block.range.start) as usize;
        match bytes.get(sound..end) {
            Some(part) if crc32c::crc32c(part) == block.crc => sound = end,
            _ => return (sound, Some(block)),
        }
    }
    (sound, None)
}

enum Walk {
    /// Whole batches at `from..to`.
    Found {
        from: usize,
        to: usize,
        next: Offset,
        more: bool,
    },
    /// The first batch is larger than allowed.
    TooLarge,
    /// The wanted batch is not wholly in these bytes.
    NeedMore,
    /// A batch does not check out.
    Damaged(String),
}

/// Finds the wanted run of batches in whole blocks and checks that offsets rise.
fn walk(bytes: &[u8], want: &Want) -> Walk {
    let (mut position, mut next) = (0, want.section.start);
    let mut found: Option<(usize, usize, Offset)> = None;
    while position < bytes.len() {
        let view = match BatchView::first(&bytes[position..]) {
            Ok(view) => view,
            Err(error) => return Walk::Damaged(error.to_string()),
        };
        let (base, last) = (view.info.base_offset, view.info.last_offset());
        let end = position + view.bytes.len();
        if last < want.offset {
            (position, next) = (end, last + 1);
            continue;
        }
        if base < next {
            return Walk::Damaged(format!("the batch at offset {base} goes back below {next}"));
        }
        let from = found.map_or(position, |(from, ..)| from);
        if end - from > want.max_bytes && !(found.is_none() && want.whole_first) {
            return match found {
                Some((from, to, next)) => Walk::Found {
                    from,
                    to,
                    next,
                    more: true,
                },
                None => Walk::TooLarge,
            };
        }
        next = last + 1;
        found = Some((from, end, next));
        position = end;
    }
    match found {
        Some((from, to, next)) => Walk::Found {
            from,
            to,
            next,
            more: false,
        },
        None => Walk::NeedMore,
    }
}

impl Registry {
    /// Tells of a failed read. Damage costs its own records; a failing device ends the process, as
    /// nothing it said lately can be trusted.
    pub(super) fn storage<T>(
        &self,
        result: Result<T, ReadError>,
        key: PartitionKey,
    ) -> Result<T, ReadFailure> {
        result.map_err(|error| {
            if let ReadError::Io { source, .. } = &error
                && source.raw_os_error().is_some()
            {
                (self.fatal)(format!("partition {key} cannot be read: {error}"));
            }
            self.tell_of_damage(key, &error);
            ReadFailure::Storage(error.to_string())
        })
    }

    /// Counts a read that met damage and logs it, but not each time that a client tries again.
    fn tell_of_damage(&self, key: PartitionKey, error: &ReadError) {
        Figures::add(&self.damaged_reads, 1);
        if LINES.allow("stored records cannot be served", None) {
            let image = self.catalog.image();
            let topic = image.topic_by_no(key.topic);
            let shard = topic.and_then(|t| t.layout.shard(t.layout.shard_of(key.index)?));
            let home = shard.map(|shard| self.directories.home(shard.home));
            tracing::error!(
                topic = topic.map(|topic| &*topic.name),
                partition = key.index,
                directory = home.map(|home| &*home.name),
                %error,
                "stored records cannot be served"
            );
        }
    }
}
