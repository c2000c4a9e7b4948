//! A check of stopped data directories: every file by itself, then the store as a start would
//! find it. Nothing is written: recovery runs on an overlay that keeps its changes in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::catalog::{Environment, Image, Topic};
use crate::clock::SystemClock;
use crate::partition::log::{Bounds, Partition};
use crate::partition::recovery::{
    Opening, OpeningDirectory, Progress, Recovered, RecoveryError, recover,
};
use crate::partition::registry::{MOVE_PATIENCE, RegistryOptions};
use crate::partition::verify_batches::batches_flaw;
use crate::shard::{Layout, Link};
use crate::store::backend::Disk;
use crate::store::backend::overlay::Overlay;
use crate::store::checkpoint::CheckpointStore;
use crate::store::format::Format;
use crate::store::journal::{DamagedGroup, FileJournal, JournalOptions};
use crate::store::segment::{Damage, ReadError, SegmentStore, file_path};
use crate::types::{DirectoryNo, FileId, Offset, PartitionKey};

mod report;

pub use report::{Finding, Report};

pub(super) const RESTORE: &str =
    "stop the server and put the file back from a copy of this directory";
const JOURNAL_ADVICE: &str = "a start is refused or stops there; restore the whole directory from \
     a copy, or accept the loss of everything from there on with journal.truncate.corruption=true";
const CHECKPOINT_ADVICE: &str = "nothing is lost: a start uses the other checkpoint and the journal (a note says so if it \
     cannot); check the device, then start the server: the next checkpoints replace the damaged one";
const SEGMENT_ADVICE: &str = "these offsets answer KAFKA_STORAGE_ERROR, all others are served; put the file back from a \
     copy, or delete the records up to there (kafka-delete-records) to go on without them";
/// Nothing but the history is lost with a lineage file.
pub(super) const LINEAGE_ADVICE: &str = "records are not affected: only the topic's older layout history is \
                              incomplete; put the file back from a copy if you need it";
const MISMATCH_ADVICE: &str = "nothing in the directories was changed";
pub(super) const REPORT_ADVICE: &str = "keep a copy of the directory and report it";

/// A data directory to check.
pub struct Checked {
    /// Its disk, whose lock the caller holds.
    pub disk: Arc<dyn Disk>,
    /// Its format file.
    pub format: Format,
    /// What the operator calls it.
    pub name: String,
}

impl Checked {
    /// The directory as it is, with changes kept in memory.
    fn overlay(&self) -> Arc<dyn Disk> {
        Arc::new(Overlay::new(Arc::clone(&self.disk)))
    }
}

/// Checks the data directories of a node, the first one first.
pub fn verify(directories: &[Checked], environment: Environment, progress: Progress<'_>) -> Report {
    let mut report = Report::default();
    let mut sound = true;
    let mut files = Vec::new();
    for directory in directories {
        let before = report.clone();
        let checkpoint = check_checkpoint(&mut report, directory.overlay());
        let journal = check_journal(&mut report, directory.overlay(), &directory.format);
        sound &= checkpoint & journal;
        let segments = SegmentStore::new(directory.overlay(), 16 << 20);
        let prefix = match directories.len() {
            1 => String::new(),
            _ => format!("{}/", directory.name),
        };
        files.push(check_segment_files(&mut report, segments, prefix));
        if directories.len() > 1 {
            report.name_directory(&directory.name, &before);
        }
    }
    match open(directories, environment, progress) {
        Ok(store) => {
            let check = Check {
                report: &mut report,
                store: &store,
                files,
            };
            check.run();
        }
        Err(RecoveryError::Mismatch(why)) => {
            report.damage(
                None,
                format!("a start would be refused: {why}"),
                MISMATCH_ADVICE,
            );
        }
        Err(RecoveryError::Other(why)) => {
            if sound {
                report.damage(None, format!("a start would fail: {why}"), REPORT_ADVICE);
            } else {
                report
                    .notes
                    .push(format!("a start would be refused: {why}"));
            }
            for files in files {
                for (file, flaws) in &files.bad {
                    let found = flaws.iter().map(|flaw| files.finding(flaw, *file, None));
                    report.damage.extend(found);
                }
            }
        }
    }
    report
}

fn open(
    directories: &[Checked],
    environment: Environment,
    progress: Progress<'_>,
) -> Result<Recovered, RecoveryError> {
    let options = RegistryOptions {
        tail_bytes: 1 << 20,
        producers_per_partition: usize::MAX,
        producer_bytes: u64::MAX,
        reserve_bytes: 0,
        read_bytes: 8 << 20,
        move_patience: MOVE_PATIENCE,
        producer_expiration_ms: i64::MAX,
    };
    let opening = Opening {
        registry: options,
        footer_bytes: 16 << 20,
        open_files: 16,
        // Directories are checked together or not at all.
        absent: Vec::new(),
        environment,
        clock: Arc::new(SystemClock::new()),
        fatal: Arc::new(|_| ()),
        join: None,
    };
    let directories = directories.iter().map(|directory| OpeningDirectory {
        disk: directory.overlay(),
        id: directory.format.directory_id(),
        name: directory.name.clone(),
        journal: JournalOptions::new(directory.format.store_id),
        is_new: false,
    });
    recover(directories.collect(), opening, progress)
}

fn check_checkpoint(report: &mut Report, disk: Arc<dyn Disk>) -> bool {
    match CheckpointStore::verify(disk) {
        Ok(found) => {
            report.checkpoint_roots += found.roots;
            report.checkpoint_sections += found.sections;
            let sound = found.damage.is_empty();
            for what in found.damage {
                let file = what
                    .split([' ', ':'])
                    .find(|word| word.starts_with("root-") || word.starts_with("section-"))
                    .map(|name| format!("checkpoint/{name}"));
                report.damage(file, what, CHECKPOINT_ADVICE);
            }
            sound
        }
        Err(error) => {
            report.damage(None, error, RESTORE);
            false
        }
    }
}

fn check_journal(report: &mut Report, disk: Arc<dyn Disk>, format: &Format) -> bool {
    let opened = FileJournal::open(disk, JournalOptions::new(format.store_id));
    let found = opened.and_then(|opened| {
        if let Some(cut) = opened.cut() {
            report.notes.push(format!("the next start will {cut}"));
        }
        opened.verify()
    });
    match found {
        Ok(found) => {
            report.journal_files += found.files;
            report.journal_groups += found.groups;
            report.journal_entries += found.entries;
            let words = |group: &DamagedGroup| {
                format!(
                    "{} is damaged at byte {}: {} (entries {} to {})",
                    group.file, group.place, group.why, group.first, group.last
                )
            };
            for group in &found.damage {
                report.damage(Some(group.file.clone()), words(group), JOURNAL_ADVICE);
            }
            for group in &found.unneeded {
                let note = format!("{}; nothing needs them any more", words(group));
                report.notes.push(note);
            }
            found.damage.is_empty()
        }
        Err(error) => {
            report.damage(error.file().map(str::to_owned), error, JOURNAL_ADVICE);
            false
        }
    }
}

/// Something wrong inside one segment file.
struct Flaw {
    range: Option<(PartitionKey, Offset, Offset)>,
    what: String,
}

impl From<Damage> for Flaw {
    fn from(damage: Damage) -> Self {
        Self {
            range: Some((damage.key, damage.start, damage.end)),
            what: damage.what,
        }
    }
}

impl Files {
    fn name(&self, file: FileId) -> String {
        format!("{}{}", self.prefix, file_path(file))
    }

    fn finding(&self, flaw: &Flaw, file: FileId, topic: Option<&Topic>) -> Finding {
        flaw.finding(self.name(file), topic)
    }
}

impl Flaw {
    fn finding(&self, name: String, topic: Option<&Topic>) -> Finding {
        let what = match self.range {
            Some((key, start, end)) => {
                let place = match topic {
                    Some(topic) => format!("{}-{}", topic.name, key.index),
                    None => format!("(topic number / partition) {key}"),
                };
                format!(
                    "{name}: offsets {start} to {} of {place}: {}",
                    end - 1,
                    self.what
                )
            }
            None => format!("{name}: {}", self.what),
        };
        Finding {
            file: Some(name),
            topic: topic.map(|topic| topic.name.to_string()),
            partition: self.range.map(|(key, ..)| key.index),
            first_offset: self.range.map(|(_, start, _)| start),
            last_offset: self.range.map(|(.., end)| end - 1),
            what,
            advice: SEGMENT_ADVICE.to_owned(),
        }
    }
}

/// What the check of the files one by one gives to that of the whole.
struct Files {
    segments: SegmentStore,
    /// What stands before the names of files when there are several directories.
    prefix: String,
    there: BTreeSet<FileId>,
    bad: BTreeMap<FileId, Vec<Flaw>>,
}

fn check_segment_files(report: &mut Report, segments: SegmentStore, prefix: String) -> Files {
    let mut files = Files {
        segments,
        prefix,
        there: BTreeSet::new(),
        bad: BTreeMap::new(),
    };
    match files.segments.list_files() {
        Ok(there) => files.there.extend(there),
        Err(error) => report.damage(
            Some("segments".to_owned()),
            format!("the folder of segment files cannot be listed: {error}"),
            "check the device and the folder's permissions",
        ),
    }
    report.segment_files += files.there.len();
    for &file in &files.there {
        let flaws = match files.segments.verify(file) {
            Ok(found) => {
                report.segment_bytes += found.bytes;
                found.damage.into_iter().map(Flaw::from).collect()
            }
            Err(error) => vec![Flaw {
                range: None,
                what: plain(&error),
            }],
        };
        if !flaws.is_empty() {
            files.bad.insert(file, flaws);
        }
    }
    files
}

fn plain(error: &ReadError) -> String {
    match error {
        ReadError::Damaged { what, .. } => format!("the file cannot be read at all: {what}"),
        other => other.to_string(),
    }
}

struct Check<'a> {
    report: &'a mut Report,
    store: &'a Recovered,
    /// Of each directory.
    files: Vec<Files>,
}

impl Check<'_> {
    fn run(mut self) {
        let image = self.store.catalog.image();
        let directories = self.store.registry.directories();
        for (directory, files) in directories.iter().zip(std::mem::take(&mut self.files)) {
            self.check_files(&image, &directory.listed_files(), &files);
            self.files.push(files);
        }
        for topic in image.topics() {
            self.report.topics += 1;
            self.check_layout(topic);
            for index in 0..topic.partitions {
                self.report.partitions += 1;
                self.check_partition(topic, index);
            }
        }
    }

    /// The segment files of one directory against the lists.
    fn check_files(&mut self, image: &Image, listed: &BTreeSet<FileId>, files: &Files) {
        for file in listed.difference(&files.there) {
            let flaw = Flaw {
                range: None,
                what: "the file is missing".to_owned(),
            };
            self.report.damage.push(files.finding(&flaw, *file, None));
        }
        for (file, flaws) in &files.bad {
            for flaw in flaws {
                let topic = flaw
                    .range
                    .and_then(|(key, ..)| image.topic_by_no(key.topic));
                let finding = files.finding(flaw, *file, topic.map(AsRef::as_ref));
                if listed.contains(file) {
                    self.report.damage.push(finding);
                } else {
                    self.report.notes.push(format!(
                        "{}; no list names the file, and the next start removes it",
                        finding.what
                    ));
                }
            }
        }
        let unnamed = files.there.difference(listed);
        for file in unnamed.filter(|file| !files.bad.contains_key(file)) {
            self.report.notes.push(format!(
                "{}: no list names the file; the next start removes it",
                files.name(*file)
            ));
        }
    }

    fn check_layout(&mut self, topic: &Topic) {
        if let Some(wrong) = layout_flaw(topic) {
            let what = format!("topic {}: {wrong}", topic.name);
            self.report.damage(None, what, REPORT_ADVICE);
        }
        for flaw in self.store.registry.lineage_flaws(topic.no) {
            let what = format!("topic {}: {flaw}", topic.name);
            self.report.damage(None, what, LINEAGE_ADVICE);
        }
    }

    fn check_partition(&mut self, topic: &Topic, index: u32) {
        let key = PartitionKey {
            topic: topic.no,
            index,
        };
        let Some(partition) = self.store.registry.get(key) else {
            self.flaw(topic, key, None, "the partition is in no shard".to_owned());
            return;
        };
        let (bounds, pieces) = pieces(&partition, false);
        for gap in gaps(bounds, &pieces) {
            let compacted = topic.settings.cleanup_compact;
            if !(compacted && gap.missing) {
                self.flaw(topic, key, Some((gap.start, gap.end)), gap.words());
            }
        }
        let next = partition.sequenced(|_, sequence| sequence.next_offset);
        if next != bounds.high_watermark {
            let what = format!(
                "the next offset is {next} and the high watermark {}",
                bounds.high_watermark
            );
            self.flaw(topic, key, None, what);
        }
        for piece in pieces {
            if let Some((directory, file)) = piece.file {
                self.check_section(topic, key, directory, file);
            }
        }
        let in_journal: Vec<_> = partition.search(|_, _, tail| {
            tail.iter()
                .map(|batch| (batch.base, batch.last + 1, batch.payload.clone()))
                .collect()
        });
        for (start, end, bytes) in in_journal {
            if let Some(what) = batches_flaw(&bytes, start, end, &mut self.report.batches) {
                self.flaw(
                    topic,
                    key,
                    Some((start, end)),
                    format!("in the journal: {what}"),
                );
            }
        }
    }

    /// Every batch of a section: its checksum, and that offsets go on without a hole.
    fn check_section(
        &mut self,
        topic: &Topic,
        key: PartitionKey,
        directory: DirectoryNo,
        file: FileId,
    ) {
        let files = self.files.get(usize::from(directory.0));
        let Some(files) = files.filter(|files| files.there.contains(&file)) else {
            return;
        };
        let Ok(Some(section)) = files.segments.section(file, key) else {
            return;
        };
        for block in section.blocks() {
            let Ok(bytes) = files.segments.read(file, block.range.clone()) else {
                continue;
            };
            // Bytes that fail the block's checksum were reported with the file.
            if crc32c::crc32c(&bytes) != block.crc {
                continue;
            }
            let flaw = batches_flaw(&bytes, block.start, block.end, &mut self.report.batches);
            if let Some(what) = flaw {
                let range = Some((key, block.start, block.end));
                let finding = files.finding(&Flaw { range, what }, file, Some(topic));
                self.report.damage.push(finding);
            }
        }
    }

    fn flaw(
        &mut self,
        topic: &Topic,
        key: PartitionKey,
        range: Option<(Offset, Offset)>,
        what: String,
    ) {
        self.report
            .partition_damage(topic, key.index, range, &what, SEGMENT_ADVICE);
    }
}

/// What is wrong with a topic's layout, if anything.
pub(super) fn layout_flaw(topic: &Topic) -> Option<String> {
    let layout = &topic.layout;
    match Layout::from_parts(layout.parts().clone()) {
        Err(error) => Some(error.to_string()),
        Ok(_) if layout.partitions() != topic.partitions => Some(format!(
            "its layout has {} slots for {} partitions",
            layout.partitions(),
            topic.partitions
        )),
        Ok(_) => lineage_flaw(layout),
    }
}

/// What is to be said of a damaged section of a segment file.
pub(super) fn section_finding(file: FileId, damage: Damage, image: &Image) -> Finding {
    let flaw = Flaw::from(damage);
    let topic = flaw
        .range
        .and_then(|(key, ..)| image.topic_by_no(key.topic));
    flaw.finding(file_path(file), topic.map(|topic| &**topic))
}

fn lineage_flaw(layout: &Layout) -> Option<String> {
    let wrong = |(partition, links): &(u32, Vec<Link>)| {
        let rising = links.windows(2).all(|pair| pair[0].start < pair[1].start);
        let current = links.last().map(|link| link.shard) == layout.shard_of(*partition);
        !(rising && current)
    };
    let (partition, _) = (0..).zip(layout.all_links()).find(wrong)?;
    Some(format!(
        "the lineage of partition {partition} does not lead to its shard"
    ))
}

/// Consecutive offsets that lie in one place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    start: Offset,
    end: Offset,
    /// `None` for the journal.
    file: Option<(DirectoryNo, FileId)>,
}

/// A partition's records, in offset order; with those that do not count because another file has
/// them, too, if `all`.
pub(super) fn pieces(partition: &Partition, all: bool) -> (Bounds, Vec<Piece>) {
    partition.search(|bounds, files, tail| {
        let sections = files.iter().filter_map(|file| {
            let section = match all {
                true => file.meta.section(partition.key),
                false => file.section(partition.key),
            }?;
            Some(Piece {
                start: section.start,
                end: section.end,
                file: Some((file.directory, file.meta.file)),
            })
        });
        let batches = tail.iter().map(|batch| Piece {
            start: batch.base,
            end: batch.last + 1,
            file: None,
        });
        let mut pieces: Vec<Piece> = sections
            .chain(batches)
            .filter(|piece| piece.end > bounds.log_start)
            .collect();
        pieces.sort_by_key(|piece| (piece.start, piece.end));
        (bounds, pieces)
    })
}

/// Offsets that are nowhere, or in two places.
pub(super) struct Gap {
    pub(super) start: Offset,
    pub(super) end: Offset,
    /// Nowhere; else in two places.
    pub(super) missing: bool,
}

impl Gap {
    pub(super) fn words(&self) -> String {
        let (start, last) = (self.start, self.end - 1);
        if self.missing {
            format!("offsets {start} to {last} are in no readable file and not in the journal")
        } else {
            format!("offsets {start} to {last} are there twice")
        }
    }
}

pub(super) fn gaps(bounds: Bounds, pieces: &[Piece]) -> Vec<Gap> {
    let mut found = Vec::new();
    let mut next = bounds.log_start;
    let mut first = true;
    for piece in pieces {
        if piece.start != next && !(first && piece.start < next) {
            let missing = piece.start > next;
            found.push(Gap {
                start: next.min(piece.start),
                end: next.max(piece.start).min(piece.end.max(next)),
                missing,
            });
        }
        first = false;
        next = next.max(piece.end);
    }
    if next != bounds.high_watermark {
        found.push(Gap {
            start: next.min(bounds.high_watermark),
            end: next.max(bounds.high_watermark),
            missing: next < bounds.high_watermark,
        });
    }
    found
}
