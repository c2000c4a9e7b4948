//! Whether stored batches can be read to the last record, whatever they are compressed with.

use std::ops::ControlFlow;

use crate::protocol::batch::{self, Batches};
use crate::types::Offset;

/// More than this is not decompressed of one batch. It is never in memory as a whole.
const DECOMPRESSED: u64 = 4 << 30;

/// What is wrong with the batches of a block, if anything: checksums, order, and every record.
pub(super) fn batches_flaw(
    bytes: &[u8],
    start: Offset,
    end: Offset,
    count: &mut u64,
) -> Option<String> {
    let mut next = start;
    for batch in Batches::new(bytes) {
        let view = match batch {
            Ok(view) => view,
            Err(error) => return Some(format!("a batch cannot be read: {error}")),
        };
        *count += 1;
        let base = view.info.base_offset;
        if let Err(error) = view.check_crc() {
            return Some(format!("the batch at offset {base} is damaged: {error}"));
        }
        if let Err(error) = batch::walk(&view, DECOMPRESSED, &mut |_| ControlFlow::Continue(())) {
            return Some(format!(
                "the records of the batch at offset {base} are unreadable: {error}"
            ));
        }
        if base < next {
            return Some(format!(
                "a batch at offset {base} comes behind offset {next}"
            ));
        }
        next = view.info.last_offset() + 1;
    }
    (next > end).then(|| format!("its last batch ends at {next}, the index says {end}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::batch::{BatchBuilder, compute_crc};
    use crate::protocol::compression::Codec;

    /// A batch's checksum covers the compressed bytes: it says nothing of what they hold.
    #[test]
    fn records_that_do_not_decompress_are_damage_under_a_right_checksum() {
        for codec in [
            Codec::None,
            Codec::Gzip,
            Codec::Snappy,
            Codec::Lz4,
            Codec::Zstd,
        ] {
            let mut builder = BatchBuilder::new().codec(codec, None);
            for n in 0..50 {
                builder.push(
                    7,
                    Some(b"key"),
                    Some(format!("value {n}").repeat(9).as_bytes()),
                );
            }
            let good = builder.build().unwrap().to_vec();
            assert_eq!(batches_flaw(&good, 0, 50, &mut 0), None, "{codec:?}");
            let mut found = 0;
            for at in (61..good.len()).step_by(7) {
                let mut bad = good.clone();
                bad[at] ^= 0xff;
                let crc = compute_crc(&bad);
                bad[17..21].copy_from_slice(&crc.to_be_bytes());
                let flaw = batches_flaw(&bad, 0, 50, &mut 0);
                found +=
                    usize::from(flaw.is_some_and(|what| what.contains("offset 0 are unreadable")));
            }
            assert!(found > 0, "{codec:?}");
        }
    }
}
