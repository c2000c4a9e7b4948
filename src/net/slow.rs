//! Requests that took long, with where the time went and what to do about it.

use std::net::SocketAddr;
use std::time::Duration;

use prometheus_client::metrics::histogram::Histogram;
use tokio::time::Instant;

use crate::handlers::shortened;
use crate::repeats::LINES;

/// Where a request's time went.
#[derive(Debug)]
pub struct Timing {
    /// Kafka's name of the API.
    pub api: &'static str,
    /// Where the time until its answer is counted.
    pub histogram: Histogram,
    /// When the request had arrived.
    pub started: Instant,
    /// Before that: waiting for a share of the request budget.
    pub memory: Duration,
    /// Before that: waiting for the answers before it on the connection.
    pub behind: Duration,
    /// In its handler.
    pub handled: Duration,
    /// Of that, what the client asked to wait, for records or for other members of its group.
    pub asked: Duration,
    /// When its answer was queued.
    pub queued: Instant,
    /// When the answer could leave, because what it shows was on disk.
    pub durable: Instant,
}

impl Timing {
    /// Counts a request whose answer was taken, and logs it if that took `limit` or longer.
    pub fn finish(
        self,
        limit: Option<Duration>,
        peer: SocketAddr,
        client: impl FnOnce() -> Option<String>,
    ) {
        let now = Instant::now();
        let counted = self.behind + (now - self.started);
        self.histogram.observe(counted.as_secs_f64());
        let Some(limit) = limit else { return };
        let took = self.took(now);
        if took < limit || !LINES.allow(self.about(), Some(peer.ip().to_canonical())) {
            return;
        }
        let phases = self.phases(now);
        let advice = phases
            .iter()
            .max_by_key(|(time, ..)| *time)
            .map_or("", |phase| phase.2);
        let spent = phases.map(|(time, what, _)| format!("{} ms {what}", time.as_millis()));
        tracing::warn!(
            api = self.api,
            %peer,
            client = client().as_deref().map(shortened),
            took_ms = took.as_millis(),
            "slow request (slow.request.ms={}): {}; {advice}",
            limit.as_millis(),
            spent.join(", "),
        );
    }

    /// All of its time except what the client asked to wait.
    fn took(&self, now: Instant) -> Duration {
        (self.memory + self.behind + (now - self.started)).saturating_sub(self.asked)
    }

    fn phases(&self, now: Instant) -> [(Duration, &'static str, &'static str); 5] {
        [
            (
                self.memory,
                "waiting for memory",
                "requests of all clients hold the whole budget: see budget.requests.bytes",
            ),
            (
                self.behind,
                "behind earlier answers of its connection",
                "its client should not put urgent requests behind slow ones on one connection",
            ),
            (
                self.handled.saturating_sub(self.asked),
                "in its handler",
                "look for a busy processor, slow reads from disk, or writes that wait for room \
                 (budget.tail.bytes)",
            ),
            (
                self.durable - self.queued,
                "until what it shows was on disk",
                "look at the disk: the journal's fdatasync decides how fast writes are answered",
            ),
            (
                now - self.durable,
                "until the client took the answer",
                "look at the network, or at a client that does not read its answers",
            ),
        ]
    }

    fn about(&self) -> &'static str {
        match self.api {
            "Fetch" => "slow Fetch",
            "Produce" => "slow Produce",
            _ => "slow request",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_client_asked_to_wait_does_not_count() {
        let (now, ms) = (Instant::now(), Duration::from_millis);
        let timing = Timing {
            api: "Fetch",
            histogram: Histogram::new([1.0]),
            started: now,
            memory: ms(5),
            behind: ms(10),
            handled: ms(700),
            asked: ms(500),
            queued: now + ms(700),
            durable: now + ms(720),
        };
        let end = now + ms(1_000);
        assert_eq!(timing.took(end), ms(515));
        let phases = timing.phases(end).map(|phase| phase.0);
        assert_eq!(phases, [ms(5), ms(10), ms(200), ms(20), ms(280)]);
        assert_eq!(phases.iter().sum::<Duration>(), timing.took(end));
    }
}
