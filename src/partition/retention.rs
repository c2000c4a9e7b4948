//! Which records a partition no longer keeps, decided from sizes and times alone.

use crate::types::Offset;

/// A run of records that goes as a whole: a segment section, or a batch in the tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The offset behind its last record.
    pub end: Offset,
    /// Its length.
    pub bytes: u64,
    /// Its newest record's timestamp in milliseconds.
    pub max_timestamp: i64,
}

/// `retention.ms` and `retention.bytes`; -1 keeps everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Age in milliseconds.
    pub retention_ms: i64,
    /// Bytes of one partition.
    pub retention_bytes: i64,
}

/// The new log start, if it moves. `runs` are in offset order and lie at or above `log_start`.
///
/// A run goes when it is older than allowed, or when the partition without it still holds the
/// allowed bytes; the first one that stays ends the walk. A timestamp in the future says nothing
/// of a run's age, or one such record would keep all that follows it for ever: the run goes when
/// one behind it is old.
pub fn new_log_start(
    log_start: Offset,
    runs: &[Run],
    limits: Limits,
    now_ms: i64,
) -> Option<Offset> {
    let mut start = log_start;
    let mut left: u64 = runs.iter().map(|run| run.bytes).sum();
    for run in runs {
        let old = limits.retention_ms >= 0
            && now_ms.saturating_sub(run.max_timestamp) > limits.retention_ms;
        let large = u64::try_from(limits.retention_bytes)
            .is_ok_and(|allowed| left.saturating_sub(run.bytes) >= allowed);
        let in_future = run.max_timestamp > now_ms;
        if !old && !large && !in_future {
            break;
        }
        if old || large {
            start = start.max(run.end);
        }
        left = left.saturating_sub(run.bytes);
    }
    (start > log_start).then_some(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs() -> Vec<Run> {
        (1..=5)
            .map(|n| Run {
                end: n * 10,
                bytes: 100,
                max_timestamp: n * 1000,
            })
            .collect()
    }

    #[test]
    fn by_time_the_old_ones_go() {
        let limits = Limits {
            retention_ms: 3000,
            retention_bytes: -1,
        };
        assert_eq!(new_log_start(0, &runs(), limits, 5500), Some(20));
        assert_eq!(new_log_start(0, &runs(), limits, 4000), None);
        assert_eq!(new_log_start(0, &runs(), limits, 1_000_000), Some(50));
    }

    #[test]
    fn a_timestamp_in_the_future_keeps_nothing_behind_it() {
        let mut runs = runs();
        runs[1].max_timestamp = 1_000_000_000;
        let limits = Limits {
            retention_ms: 3000,
            retention_bytes: -1,
        };
        assert_eq!(new_log_start(0, &runs, limits, 5500), Some(10));
        assert_eq!(new_log_start(0, &runs, limits, 6500), Some(30));
    }

    #[test]
    fn by_size_the_limit_stays_covered() {
        let limits = |retention_bytes| Limits {
            retention_ms: -1,
            retention_bytes,
        };
        assert_eq!(new_log_start(0, &runs(), limits(250), 0), Some(20));
        assert_eq!(new_log_start(0, &runs(), limits(500), 0), None);
        assert_eq!(new_log_start(0, &runs(), limits(0), 0), Some(50));
        assert_eq!(new_log_start(0, &runs(), limits(-1), 0), None);
    }

    #[test]
    fn a_young_run_in_front_keeps_the_older_ones_behind_it() {
        let mut runs = runs();
        runs[0].max_timestamp = 1_000_000;
        let limits = Limits {
            retention_ms: 10,
            retention_bytes: -1,
        };
        assert_eq!(new_log_start(0, &runs, limits, 1_000_000), None);
    }
}
