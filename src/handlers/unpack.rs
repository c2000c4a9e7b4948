//! Opening a producer's batch without keeping others waiting: what comes out of a few compressed
//! bytes may take seconds to look at.

use bytes::Bytes;

use crate::broker::HandlerBudgets;
use crate::budget::Permit;
use crate::catalog::settings::{Compression, TopicSettings};
use crate::protocol::batch::{self, BatchError, BatchView, Opened, Rules};
use crate::protocol::compression::{Codec, CompressionError, working_memory};

/// Decompressed bytes that a network thread looks at itself. Batches of which more comes out take
/// turns on other threads.
const AT_ONCE: u64 = 4 << 20;
/// The same if they are to be compressed anew, which is ten times the work and more.
const COMPRESSED_AT_ONCE: u64 = 256 << 10;

/// A batch to be opened.
#[derive(Clone)]
pub struct Packed {
    /// One whole batch that passed [`batch::validate`].
    pub payload: Bytes,
    /// What is asked of its records.
    pub rules: Rules,
    /// The codec and level that it is to be stored with, if that is not its own.
    pub target: Option<(Codec, Option<i32>)>,
    /// Most bytes it may have when it was compressed anew.
    pub most_bytes: u64,
}

impl Packed {
    /// Opens the batch, and compresses it anew if that is wanted and nothing is wrong with it.
    pub async fn open(self, budgets: &HandlerBudgets) -> Result<(Opened, Bytes), BatchError> {
        let codec = BatchView::first(&self.payload)?.info.codec()?;
        let mut memory = working_memory(codec, &self.payload);
        if self.target.is_some() {
            memory += self.most_bytes;
        }
        let share = budgets.decompression.acquire(memory).await;
        let full = self.rules.decompressed_limit;
        let view = BatchView::first(&self.payload)?;
        let short = Rules {
            decompressed_limit: full.min(AT_ONCE),
            ..self.rules.clone()
        };
        let opened = match batch::open(&view, &short) {
            Err(BatchError::Compression(CompressionError::TooLarge(_))) if full > AT_ONCE => {
                return self.open_elsewhere(budgets, share).await;
            }
            other => other?,
        };
        match self.target {
            Some(_) if opened.records_bytes > COMPRESSED_AT_ONCE => {
                self.open_elsewhere(budgets, share).await
            }
            _ => self.finish(opened),
        }
    }

    async fn open_elsewhere(
        self,
        budgets: &HandlerBudgets,
        share: Permit,
    ) -> Result<(Opened, Bytes), BatchError> {
        let turn = budgets.long_decompressions.acquire(1).await;
        let work = move || {
            // Held by the work, which goes on when the client leaves.
            let _held = (share, turn);
            let view = BatchView::first(&self.payload)?;
            let opened = batch::open(&view, &self.rules)?;
            self.finish(opened)
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(done) => done,
            Err(_) => Err(BatchError::Header("looking at its records was cut off")),
        }
    }

    fn finish(&self, opened: Opened) -> Result<(Opened, Bytes), BatchError> {
        let payload = match self.target.filter(|_| opened.flaws.is_empty()) {
            Some((codec, level)) => {
                let view = BatchView::first(&self.payload)?;
                let limit = self.rules.decompressed_limit;
                batch::recompress(&view, codec, level, limit, self.most_bytes)?.into()
            }
            None => self.payload.clone(),
        };
        Ok((opened, payload))
    }
}

/// The codec and level that a topic's `compression.type` wants for a batch in `codec`, if another.
pub fn target(codec: Codec, settings: &TopicSettings) -> Option<(Codec, Option<i32>)> {
    let wanted = match settings.compression {
        Compression::Producer => return None,
        Compression::Uncompressed => (Codec::None, None),
        Compression::Gzip(level) => (Codec::Gzip, Some(level)),
        Compression::Snappy => (Codec::Snappy, None),
        Compression::Lz4(level) => (Codec::Lz4, Some(level)),
        Compression::Zstd(level) => (Codec::Zstd, Some(level)),
    };
    (wanted.0 != codec).then_some(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use crate::protocol::batch::{BatchBuilder, TimestampType};

    fn budgets() -> HandlerBudgets {
        HandlerBudgets {
            responses: Budget::new("responses", 1 << 20),
            decompression: Budget::new("decompression", 64 << 20),
            long_decompressions: Budget::of_items("long_decompressions", 2),
            fetch_waiters: crate::budget::Account::new(1),
            topics: crate::budget::Account::new(1),
        }
    }

    fn packed(codec: Codec, bytes: usize) -> Packed {
        let mut builder = BatchBuilder::new().codec(codec, None);
        builder.push(1, None, Some(&vec![b'x'; bytes]));
        Packed {
            payload: builder.build().unwrap(),
            rules: Rules {
                keys_required: false,
                timestamp_type: TimestampType::CreateTime,
                timestamps: i64::MIN..=i64::MAX,
                decompressed_limit: 32 << 20,
                record_limit: u64::MAX,
            },
            target: None,
            most_bytes: 1 << 20,
        }
    }

    #[tokio::test]
    async fn batches_of_which_much_comes_out_take_turns_and_hold_up_nobody_else() {
        let budgets = budgets();
        let all_turns = budgets.long_decompressions.acquire(2).await;
        let mut bombs = Vec::new();
        for codec in [Codec::Gzip, Codec::Lz4, Codec::Zstd] {
            let (bomb, budgets) = (packed(codec, 5 << 20), budgets.clone());
            bombs.push(tokio::spawn(async move { bomb.open(&budgets).await }));
        }
        while budgets.long_decompressions.waiting() < bombs.len() {
            tokio::task::yield_now().await;
        }
        for codec in Codec::ALL {
            let (opened, _) = packed(codec, 1 << 20).open(&budgets).await.unwrap();
            assert!(opened.records_bytes > 1 << 20, "{codec:?}");
        }
        assert!(bombs.iter().all(|bomb| !bomb.is_finished()));
        drop(all_turns);
        for bomb in bombs {
            assert!(bomb.await.unwrap().unwrap().0.records_bytes > 5 << 20);
        }
        assert_eq!(budgets.long_decompressions.used(), 0);
        assert_eq!(budgets.decompression.used(), 0);
    }

    #[tokio::test]
    async fn more_than_the_limit_is_refused_whoever_looks() {
        let budgets = budgets();
        for (bytes, limit) in [(1 << 20, 1 << 20), (5 << 20, 1 << 20), (6 << 20, 5 << 20)] {
            for codec in [Codec::Gzip, Codec::Lz4, Codec::Zstd] {
                let mut bomb = packed(codec, bytes);
                bomb.rules.decompressed_limit = limit;
                let refused = bomb.open(&budgets).await.unwrap_err();
                let too_large = CompressionError::TooLarge(limit);
                assert_eq!(
                    refused.to_string(),
                    too_large.to_string(),
                    "{codec:?} {bytes}"
                );
            }
        }
    }

    #[tokio::test]
    async fn a_batch_compressed_anew_keeps_to_its_own_limit() {
        let budgets = budgets();
        for bytes in [1_000, 1 << 20, 5 << 20] {
            for target in Codec::ALL {
                let mut batch = packed(Codec::Zstd, bytes);
                batch.target = Some((target, None));
                let fits = target != Codec::None || bytes < 1 << 20;
                match batch.open(&budgets).await {
                    Ok((_, payload)) => {
                        assert!(fits, "{target:?} {bytes}");
                        let info = batch::validate(&payload).unwrap();
                        assert_eq!(info.codec().unwrap(), target);
                    }
                    Err(error) => {
                        assert!(!fits, "{target:?} {bytes}: {error}");
                        let too_large = CompressionError::TooLarge(0).to_string();
                        assert_eq!(error.to_string()[..9], too_large[..9]);
                    }
                }
            }
        }
    }
}
