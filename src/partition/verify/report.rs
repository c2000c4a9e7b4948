//! What a check looked at, and what it found.

use serde::{Deserialize, Serialize};

use crate::catalog::Topic;
use crate::types::Offset;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The file, relative to the data directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The topic that is affected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// The partition that is affected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<u32>,
    /// The first offset in doubt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_offset: Option<Offset>,
    /// The last offset in doubt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_offset: Option<Offset>,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub advice: String,
}

/// What was looked at, and what was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Journal files with groups.
    pub journal_files: u64,
    /// Groups in them.
    pub journal_groups: u64,
    /// Entries in those.
    pub journal_entries: u64,
    /// Checkpoint roots.
    pub checkpoint_roots: usize,
    /// Checkpoint sections.
    pub checkpoint_sections: usize,
    /// Segment files.
    pub segment_files: usize,
    /// Bytes of them.
    pub segment_bytes: u64,
    /// Topics.
    pub topics: usize,
    /// Partitions.
    pub partitions: usize,
    /// Record batches whose checksums, offsets and records were checked.
    pub batches: u64,
    /// What is as it may be after a crash, and is put in order by the next start.
    pub notes: Vec<String>,
    /// What is wrong. Empty for a clean directory.
    pub damage: Vec<Finding>,
}

impl Report {
    /// Says in which directory everything was found that an earlier report does not have.
    pub(in crate::partition) fn name_directory(&mut self, name: &str, behind: &Self) {
        for finding in self.damage.iter_mut().skip(behind.damage.len()) {
            finding.what = format!("{name}: {}", finding.what);
            if let Some(file) = &mut finding.file {
                *file = format!("{name}/{file}");
            }
        }
        for note in self.notes.iter_mut().skip(behind.notes.len()) {
            *note = format!("{name}: {note}");
        }
    }

    /// Notes something that is wrong with a partition, and with which of its offsets (the end is
    /// exclusive) if that is known.
    pub(in crate::partition) fn partition_damage(
        &mut self,
        topic: &Topic,
        index: u32,
        range: Option<(Offset, Offset)>,
        what: &str,
        advice: &str,
    ) {
        self.damage.push(Finding {
            file: None,
            topic: Some(topic.name.to_string()),
            partition: Some(index),
            first_offset: range.map(|(start, _)| start),
            last_offset: range.map(|(_, end)| end - 1),
            what: format!("{}-{index}: {what}", topic.name),
            advice: advice.to_owned(),
        });
    }

    /// Notes something that is wrong with no offsets of its own.
    pub fn damage(&mut self, file: Option<String>, what: impl ToString, advice: &str) {
        self.damage.push(Finding {
            file,
            topic: None,
            partition: None,
            first_offset: None,
            last_offset: None,
            what: what.to_string(),
            advice: advice.to_owned(),
        });
    }
}
