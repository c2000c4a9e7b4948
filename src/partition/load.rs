//! What a partition and a shard carry: rates, the busiest second, and limits. Pure: time is given,
//! in milliseconds of a clock that goes on evenly.

use std::time::Duration;

use crate::catalog::settings::ShardLimits;

/// Seconds that a rate looks back over; older traffic fades out.
const MEMORY_SECONDS: f64 = 60.0;
/// Seconds that the busiest one is looked for in.
const WINDOW: usize = 60;
/// Longest that a client is held back at once, as Kafka's quota window allows.
const LONGEST_HOLD: Duration = Duration::from_secs(30);

/// Amounts of traffic, or rates of it a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Bytes of batches taken in.
    pub bytes_in: f64,
    /// Records taken in.
    pub records_in: f64,
    /// Bytes of batches given out.
    pub bytes_out: f64,
}

impl Traffic {
    /// Traffic of an append.
    pub fn written(bytes: usize, records: u64) -> Self {
        Self {
            bytes_in: bytes as f64,
            records_in: records as f64,
            bytes_out: 0.0,
        }
    }

    /// Traffic of a read.
    pub fn read(bytes: usize) -> Self {
        Self {
            bytes_out: bytes as f64,
            ..Self::default()
        }
    }

    /// Both together.
    pub fn plus(self, other: Self) -> Self {
        Self {
            bytes_in: self.bytes_in + other.bytes_in,
            records_in: self.records_in + other.records_in,
            bytes_out: self.bytes_out + other.bytes_out,
        }
    }

    fn times(self, factor: f64) -> Self {
        Self {
            bytes_in: self.bytes_in * factor,
            records_in: self.records_in * factor,
            bytes_out: self.bytes_out * factor,
        }
    }

    fn max(self, other: Self) -> Self {
        Self {
            bytes_in: self.bytes_in.max(other.bytes_in),
            records_in: self.records_in.max(other.records_in),
            bytes_out: self.bytes_out.max(other.bytes_out),
        }
    }
}

/// Rates over about the last minute: traffic counts for less the longer it is past.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    per_second: Traffic,
    at_ms: i64,
}

impl Rates {
    /// Counts traffic.
    pub fn add(&mut self, traffic: Traffic, now_ms: i64) {
        self.per_second = self.at(now_ms).plus(traffic.times(1.0 / MEMORY_SECONDS));
        self.at_ms = self.at_ms.max(now_ms);
    }

    /// The rates a second as of now.
    pub fn at(&self, now_ms: i64) -> Traffic {
        let passed = now_ms.saturating_sub(self.at_ms).max(0) as f64 / 1000.0;
        self.per_second.times((-passed / MEMORY_SECONDS).exp())
    }
}

/// The last minute second by second. Means hide bursts, so the busiest second is shown beside them.
#[derive(Clone, Debug)]
struct Seconds {
    buckets: [Traffic; WINDOW],
    newest: i64,
}

impl Seconds {
    fn advance(&mut self, second: i64) {
        let passed = second.saturating_sub(self.newest).clamp(0, WINDOW as i64);
        for step in 1..=passed {
            self.buckets[slot(second - passed + step)] = Traffic::default();
        }
        self.newest = self.newest.max(second);
    }

    fn add(&mut self, traffic: Traffic, second: i64) {
        self.advance(second);
        let bucket = &mut self.buckets[slot(self.newest)];
        *bucket = bucket.plus(traffic);
    }

    fn busiest(&mut self, second: i64) -> Traffic {
        self.advance(second);
        self.buckets
            .iter()
            .fold(Traffic::default(), |most, bucket| most.max(*bucket))
    }
}

fn slot(second: i64) -> usize {
    second.rem_euclid(WINDOW as i64) as usize
}

/// A limit in bytes a second, with one second's worth in hand.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// Bytes beyond what the limit allowed so far.
    debt: f64,
    at_ms: i64,
}

impl Bucket {
    /// Counts bytes against the limit (0 for none) and says how long their sender is to pause.
    fn charge(&mut self, bytes: u64, limit: u64, now_ms: i64) -> Duration {
        if limit == 0 {
            self.debt = 0.0;
            return Duration::ZERO;
        }
        let rate = limit as f64;
        let passed = now_ms.saturating_sub(self.at_ms).max(0) as f64 / 1000.0;
        self.debt = (self.debt - passed * rate).max(-rate) + bytes as f64;
        // Many clients can go over the limit together while each is held back. What they owe
        // beyond the longest hold would be asked of those who keep to the limit afterwards.
        self.debt = self.debt.min(rate * LONGEST_HOLD.as_secs_f64());
        self.at_ms = self.at_ms.max(now_ms);
        Duration::from_secs_f64((self.debt / rate).clamp(0.0, LONGEST_HOLD.as_secs_f64()))
    }
}

/// What a shard carries. Nothing is allocated for one without traffic.
#[derive(Debug, Default)]
pub struct Flow {
    seconds: Option<Box<Seconds>>,
    write: Bucket,
    read: Bucket,
}

impl Flow {
    /// Counts traffic against the limits; whoever sent or fetched it is to pause for so long.
    pub fn count(&mut self, traffic: Traffic, limits: ShardLimits, now_ms: i64) -> Duration {
        let second = now_ms.div_euclid(1000);
        let seconds = self.seconds.get_or_insert_with(|| {
            Box::new(Seconds {
                buckets: [Traffic::default(); WINDOW],
                newest: second,
            })
        });
        seconds.add(traffic, second);
        let write = match traffic.bytes_in > 0.0 {
            true => self
                .write
                .charge(traffic.bytes_in as u64, limits.write, now_ms),
            false => Duration::ZERO,
        };
        let read = match traffic.bytes_out > 0.0 {
            true => self
                .read
                .charge(traffic.bytes_out as u64, limits.read, now_ms),
            false => Duration::ZERO,
        };
        write.max(read)
    }

    /// The most of each kind in one second of the last minute.
    pub fn busiest(&mut self, now_ms: i64) -> Traffic {
        match &mut self.seconds {
            Some(seconds) => seconds.busiest(now_ms.div_euclid(1000)),
            None => Traffic::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_stream_shows_its_rate_and_fades_when_it_ends() {
        let mut rates = Rates::default();
        for tick in 0..6000 {
            rates.add(Traffic::written(100, 2), tick * 100);
        }
        let now = rates.at(600_000);
        assert!((now.bytes_in - 1000.0).abs() < 10.0, "{now:?}");
        assert!((now.records_in - 20.0).abs() < 0.2, "{now:?}");
        assert_eq!(now.bytes_out, 0.0);
        assert!(rates.at(660_000).bytes_in < 400.0);
        assert!(rates.at(1_200_000).bytes_in < 0.1);
    }

    #[test]
    fn the_busiest_second_is_remembered_for_a_minute() {
        let mut flow = Flow::default();
        assert_eq!(flow.busiest(5), Traffic::default());
        flow.count(Traffic::written(700, 1), ShardLimits::default(), 1_000);
        flow.count(Traffic::written(300, 1), ShardLimits::default(), 1_999);
        flow.count(Traffic::read(50), ShardLimits::default(), 30_000);
        let most = flow.busiest(60_999);
        assert_eq!((most.bytes_in, most.bytes_out), (1000.0, 50.0));
        let most = flow.busiest(61_000);
        assert_eq!((most.bytes_in, most.bytes_out), (0.0, 50.0));
        assert_eq!(flow.busiest(10_000_000), Traffic::default());
    }

    #[test]
    fn a_limit_lets_through_what_it_says() {
        let limits = ShardLimits {
            write: 1000,
            read: 0,
        };
        let (mut flow, mut now, mut sent) = (Flow::default(), 1_000_000, 0);
        while now < 1_060_000 {
            let pause = flow.count(Traffic::written(500, 1), limits, now);
            sent += 500;
            now += 10 + pause.as_millis() as i64;
        }
        // A minute's worth and the second in hand.
        assert!((60_000..=62_000).contains(&sent), "{sent}");
        assert_eq!(
            flow.count(Traffic::read(1 << 30), limits, now),
            Duration::ZERO
        );
    }

    #[test]
    fn one_huge_batch_holds_its_sender_back_for_a_bounded_time() {
        let mut flow = Flow::default();
        let limits = ShardLimits { write: 1, read: 0 };
        assert_eq!(
            flow.count(Traffic::written(1 << 30, 1), limits, 0),
            LONGEST_HOLD
        );
    }

    #[test]
    fn what_many_clients_went_over_together_is_forgotten_soon_after() {
        let mut flow = Flow::default();
        let limits = ShardLimits {
            write: 1000,
            read: 1000,
        };
        for client in 0..100 {
            let pause = flow.count(Traffic::written(10_000, 1), limits, client);
            assert!(pause <= LONGEST_HOLD);
        }
        let later = 100 + LONGEST_HOLD.as_millis() as i64;
        let pause = flow.count(Traffic::written(100, 1), limits, later);
        assert!(pause <= Duration::from_millis(100), "{pause:?}");
    }

    #[test]
    fn a_clock_that_steps_back_breaks_nothing() {
        let mut flow = Flow::default();
        let limits = ShardLimits {
            write: 1000,
            read: 1000,
        };
        flow.count(Traffic::written(500, 1), limits, 100_000);
        assert_eq!(
            flow.count(Traffic::written(500, 1), limits, 10_000),
            Duration::ZERO
        );
        assert!(flow.count(Traffic::written(500, 1), limits, 100_000) > Duration::ZERO);
        assert!(flow.busiest(0).bytes_in > 0.0);
    }
}
