//! What `/metrics` shows. Counters that hot paths touch are fields of [`Metrics`]; values that
//! others keep anyway are read when somebody asks, through [`Metrics::sample`].

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit as Suffix};

use crate::budget::{Account, Budget, Unit};

/// The API of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ApiLabel {
    /// Kafka's name for it.
    pub api: &'static str,
}

/// Why something happened, as a short fixed word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReasonLabel {
    /// The word.
    pub reason: &'static str,
}

/// The process's metrics; every name starts with `shardgate_`.
pub struct Metrics {
    registry: Mutex<Registry>,
    samples: Arc<Mutex<Vec<Sample>>>,
    /// Requests handled, by API.
    pub requests: Family<ApiLabel, Counter>,
    /// Seconds from the last byte of a request to its answer being handed to the socket.
    pub request_seconds: Family<ApiLabel, Histogram>,
    /// Connections open now.
    pub connections: Gauge,
    /// Connections taken.
    pub connections_opened: Counter,
    /// Connections that ended, by reason.
    pub connections_closed: Family<ReasonLabel, Counter>,
    /// Bytes of request frames read.
    pub bytes_in: Counter,
    /// Bytes of answers written.
    pub bytes_out: Counter,
    /// Batches taken in by Produce.
    pub produced_batches: Counter,
    /// Records taken in by Produce.
    pub produced_records: Counter,
    /// Bytes of batches taken in by Produce.
    pub produced_bytes: Counter,
    /// Batches that an idempotent producer sent again: answered and not stored twice.
    pub duplicate_batches: Counter,
    /// Batches that Produce refused.
    pub refused_batches: Counter,
    /// Bytes of batches given out by Fetch.
    pub fetched_bytes: Counter,
    /// Fetches waiting for data now.
    pub fetches_waiting: Gauge,
}

/// How a sampled value behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleKind {
    /// Goes up and down.
    Gauge,
    /// Only goes up.
    Counter,
}

/// What happens when a budget is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// Others wait: the count is of those who do now.
    Waiting,
    /// Something kept makes room: the count is of what did.
    Evicted,
    /// What is new is refused: the count is of what was.
    Refused,
}

/// A named limit, as `/metrics` shows it.
pub struct Limit {
    /// Its name.
    pub name: &'static str,
    /// What is counted.
    pub unit: Unit,
    /// All of it.
    pub limit: Box<dyn Fn() -> u64 + Send + Sync>,
    /// How much is used.
    pub used: Box<dyn Fn() -> u64 + Send + Sync>,
    /// What happens when that is all.
    pub full: Full,
    /// How often it did, or how many wait.
    pub count: Box<dyn Fn() -> u64 + Send + Sync>,
}

struct Sample {
    name: &'static str,
    help: &'static str,
    kind: SampleKind,
    label: Option<(&'static str, String)>,
    read: Box<dyn Fn() -> f64 + Send + Sync>,
}

impl Metrics {
    /// All families, registered.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("shardgate");
        let samples: Arc<Mutex<Vec<Sample>>> = Arc::default();
        registry.register_collector(Box::new(Sampled(Arc::clone(&samples))));
        let r = &mut registry;
        let metrics = Self {
            requests: family(r, "requests", "Requests handled"),
            request_seconds: latency(r),
            connections: gauge(r, "connections", "Connections open now"),
            connections_opened: counter(r, "connections_opened", "Connections taken"),
            connections_closed: family(r, "connections_closed", "Connections that ended"),
            bytes_in: counter(r, "request_bytes", "Bytes of request frames read"),
            bytes_out: counter(r, "response_bytes", "Bytes of answers written"),
            produced_batches: counter(r, "produced_batches", "Batches taken in by Produce"),
            produced_records: counter(r, "produced_records", "Records taken in by Produce"),
            produced_bytes: counter(r, "produced_bytes", "Bytes of batches taken in by Produce"),
            duplicate_batches: counter(r, "duplicate_batches", "Batches sent again and not stored"),
            refused_batches: counter(r, "refused_batches", "Batches that Produce refused"),
            fetched_bytes: counter(r, "fetched_bytes", "Bytes of batches given out by Fetch"),
            fetches_waiting: gauge(r, "fetches_waiting", "Fetches waiting for data now"),
            registry: Mutex::new(Registry::default()),
            samples,
        };
        *metrics.registry.lock() = registry;
        metrics
    }

    /// Adds a family of one's own; the prefix comes by itself.
    pub fn register(&self, f: impl FnOnce(&mut Registry)) {
        f(&mut self.registry.lock());
    }

    /// Adds a value that is read whenever somebody asks. Samples of one name belong together and
    /// are told apart by their label.
    pub fn sample(
        &self,
        name: &'static str,
        help: &'static str,
        kind: SampleKind,
        label: Option<(&'static str, &str)>,
        read: impl Fn() -> f64 + Send + Sync + 'static,
    ) {
        let label = label.map(|(key, value)| (key, value.to_owned()));
        let mut samples = self.samples.lock();
        // Kept sorted, so that a family's samples are neighbours.
        let at = samples.partition_point(|s| s.name <= name);
        samples.insert(
            at,
            Sample {
                name,
                help,
                kind,
                label,
                read: Box::new(read),
            },
        );
    }

    /// Shows a budget's use, limit and queue.
    pub fn watch_budget(&self, budget: &Budget) {
        self.watch_budgets(budget.name(), std::slice::from_ref(budget));
    }

    /// Shows the use, limit and queue of budgets of one unit that count as one.
    pub fn watch_budgets(&self, name: &'static str, budgets: &[Budget]) {
        let [all, used, waiting] = [(); 3].map(|()| budgets.to_vec());
        self.watch_limit(Limit {
            name,
            unit: budgets.first().map_or(Unit::Bytes, Budget::unit),
            limit: Box::new(move || all.iter().map(Budget::limit).sum()),
            used: Box::new(move || used.iter().map(Budget::used).sum()),
            full: Full::Waiting,
            count: Box::new(move || waiting.iter().map(|b| b.waiting() as u64).sum()),
        });
    }

    /// Shows an account's use and limit, and what it turned away.
    pub fn watch_account(&self, name: &'static str, unit: Unit, full: Full, account: &Account) {
        let (all, used, denied) = (account.clone(), account.clone(), account.clone());
        self.watch_limit(Limit {
            name,
            unit,
            limit: Box::new(move || all.limit()),
            used: Box::new(move || used.used()),
            full,
            count: Box::new(move || denied.denied()),
        });
    }

    /// Shows a limit under the names that all budgets share; docs/operations.md has a table of
    /// them.
    pub fn watch_limit(&self, limit: Limit) {
        let label = Some(("budget", limit.name));
        let gauge = SampleKind::Gauge;
        let (used, most) = match limit.unit {
            Unit::Bytes => ("budget_used_bytes", "budget_limit_bytes"),
            Unit::Items => ("budget_used_items", "budget_limit_items"),
        };
        let read = limit.used;
        let help = "How much of a budget is used now";
        self.sample(used, help, gauge, label, move || read() as f64);
        let all = limit.limit;
        self.sample(most, "A budget in all", gauge, label, move || all() as f64);
        let (name, help, kind) = match limit.full {
            Full::Waiting => ("budget_waiting", "Who waits for a share of a budget", gauge),
            Full::Evicted => (
                "budget_evicted",
                "What had to make room in a budget",
                SampleKind::Counter,
            ),
            Full::Refused => (
                "budget_refused",
                "What found no room in a budget",
                SampleKind::Counter,
            ),
        };
        let count = limit.count;
        self.sample(name, help, kind, label, move || count() as f64);
    }

    /// Everything in Prometheus's text format.
    pub fn render(&self) -> Result<String, fmt::Error> {
        let mut out = String::new();
        prometheus_client::encoding::text::encode(&mut out, &self.registry.lock())?;
        Ok(out)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

fn counter(registry: &mut Registry, name: &str, help: &str) -> Counter {
    let metric = Counter::<u64, AtomicU64>::default();
    registry.register(name, help, metric.clone());
    metric
}

fn gauge(registry: &mut Registry, name: &str, help: &str) -> Gauge {
    let metric = Gauge::default();
    registry.register(name, help, metric.clone());
    metric
}

fn family<L>(registry: &mut Registry, name: &str, help: &str) -> Family<L, Counter>
where
    L: EncodeLabelSet + fmt::Debug + Clone + Eq + std::hash::Hash + Send + Sync + 'static,
{
    let metric = Family::<L, Counter>::default();
    registry.register(name, help, metric.clone());
    metric
}

fn latency(registry: &mut Registry) -> Family<ApiLabel, Histogram> {
    // From a cached answer to a fetch that waits for its default half second and more.
    const BUCKETS: [f64; 9] = [0.0005, 0.001, 0.0025, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0];
    let metric = Family::<ApiLabel, Histogram>::new_with_constructor(|| Histogram::new(BUCKETS));
    registry.register_with_unit(
        "request",
        "Time from a request's last byte until its answer goes to the socket",
        Suffix::Seconds,
        metric.clone(),
    );
    metric
}

struct Sampled(Arc<Mutex<Vec<Sample>>>);

impl fmt::Debug for Sampled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sampled")
    }
}

impl Collector for Sampled {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let samples = self.0.lock();
        for group in samples.chunk_by(|a, b| a.name == b.name) {
            let Some(first) = group.first() else { continue };
            let kind = match first.kind {
                SampleKind::Gauge => prometheus_client::metrics::MetricType::Gauge,
                SampleKind::Counter => prometheus_client::metrics::MetricType::Counter,
            };
            let mut family = encoder.encode_descriptor(first.name, first.help, None, kind)?;
            for sample in group {
                let value = (sample.read)();
                let labels: Vec<(&str, &str)> =
                    sample.label.iter().map(|(k, v)| (*k, v.as_str())).collect();
                let encoder = family.encode_family(&labels)?;
                match sample.kind {
                    SampleKind::Gauge => ConstGauge::new(value).encode(encoder)?,
                    SampleKind::Counter => ConstCounter::new(value).encode(encoder)?,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_and_samples_are_shown_with_names_and_labels() {
        let metrics = Metrics::new();
        metrics
            .requests
            .get_or_create(&ApiLabel { api: "Produce" })
            .inc();
        metrics.watch_budget(&Budget::new("requests", 7));
        metrics.watch_budget(&Budget::new("responses", 8));
        metrics.sample("things", "Things", SampleKind::Counter, None, || 3.0);
        let text = metrics.render().unwrap();
        for line in [
            "shardgate_requests_total{api=\"Produce\"} 1",
            "shardgate_budget_limit_bytes{budget=\"requests\"} 7",
            "shardgate_budget_limit_bytes{budget=\"responses\"} 8",
            "shardgate_things_total 3",
            "shardgate_connections 0",
        ] {
            assert!(text.lines().any(|l| l.starts_with(line)), "{line}\n{text}");
        }
        assert_eq!(
            text.matches("# TYPE shardgate_budget_limit_bytes").count(),
            1,
            "{text}"
        );
    }
}
