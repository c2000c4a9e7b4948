//! A check of a running store: that layouts, lineage, borders, segment lists and files agree with
//! one another. Nothing is changed, and nothing waits for it.

use std::collections::BTreeSet;

use crate::catalog::{Image, Topic};
use crate::partition::directory::Directory;
use crate::partition::registry::Registry;
use crate::partition::verify::{self, LINEAGE_ADVICE, REPORT_ADVICE, RESTORE, Report};
use crate::store::segment::file_path;
use crate::types::PartitionKey;

/// Checks the store as it is now. `deep` reads every segment file and checks its checksums.
pub fn verify_live(registry: &Registry, deep: bool) -> Report {
    let mut report = Report::default();
    let directories = registry.directories();
    let image = registry.catalog.image();
    for directory in directories.iter() {
        let before = report.clone();
        check_files(&mut report, directory, &image, deep);
        if directories.are_several() {
            report.name_directory(&directory.name, &before);
        }
    }
    for topic in image.topics() {
        report.topics += 1;
        if let Some(wrong) = verify::layout_flaw(topic) {
            report.damage(
                None,
                format!("topic {}: {wrong}", topic.name),
                REPORT_ADVICE,
            );
        }
        let flaws = registry.lineage_flaws(topic.no).into_iter();
        for flaw in flaws.filter(|_| is_there(registry, topic)) {
            let what = format!("topic {}: {flaw}", topic.name);
            report.damage(None, what, LINEAGE_ADVICE);
        }
        for index in 0..topic.partitions {
            report.partitions += 1;
            check_partition(&mut report, registry, topic, index);
        }
    }
    report
}

fn check_files(report: &mut Report, directory: &Directory, image: &Image, deep: bool) {
    // A file may leave the lists and be deleted at any moment: one that is listed before and after
    // the folder was looked at has to be in it.
    let before = directory.listed_files();
    let there: BTreeSet<_> = match directory.segments.list_files() {
        Ok(there) => there.into_iter().collect(),
        Err(error) => {
            let what = format!("the folder of segment files cannot be listed: {error}");
            let advice = "check the device and the folder's permissions";
            return report.damage(Some("segments".to_owned()), what, advice);
        }
    };
    let after = directory.listed_files();
    report.segment_files += after.len();
    for file in before
        .intersection(&after)
        .filter(|file| !there.contains(file))
    {
        let name = file_path(*file);
        report.damage(
            Some(name.clone()),
            format!("{name}: the file is missing"),
            RESTORE,
        );
    }
    for file in after.iter().filter(|_| deep) {
        // Held while it is read, so that it is not deleted under the reader.
        let Some(_held) = directory.listed_file(*file) else {
            continue;
        };
        match directory.segments.verify(*file) {
            Ok(found) => {
                report.segment_bytes += found.bytes;
                for damage in found.damage {
                    report
                        .damage
                        .push(verify::section_finding(*file, damage, image));
                }
            }
            Err(error) => report.damage(Some(file_path(*file)), error, RESTORE),
        }
    }
}

fn check_partition(report: &mut Report, registry: &Registry, topic: &Topic, index: u32) {
    let key = PartitionKey {
        topic: topic.no,
        index,
    };
    let mut wrong = Vec::new();
    match registry.get(key) {
        None => wrong.push("the partition is in no shard".to_owned()),
        Some(partition) => {
            let (bounds, pieces) = verify::pieces(&partition, true);
            let next = partition.sequenced(|_, sequence| sequence.next_offset);
            let order = [
                bounds.log_start,
                bounds.last_stable,
                bounds.high_watermark,
                next,
            ];
            if !order.is_sorted() {
                wrong.push(format!(
                    "log start, last stable offset, high watermark and next offset do not rise: \
                     {order:?}"
                ));
            }
            // For a moment of each flush and merge records are in two places, and that is fine.
            let gaps = verify::gaps(bounds, &pieces);
            let told = gaps
                .iter()
                .filter(|gap| gap.missing && !topic.settings.cleanup_compact);
            wrong.extend(told.map(verify::Gap::words));
        }
    }
    for what in wrong.into_iter().filter(|_| is_there(registry, topic)) {
        report.partition_damage(topic, index, None, &what, REPORT_ADVICE);
    }
}

/// What belongs to a topic goes when its deletion is durable, also while it is looked at.
fn is_there(registry: &Registry, topic: &Topic) -> bool {
    registry.catalog.image().topic_by_no(topic.no).is_some()
}
