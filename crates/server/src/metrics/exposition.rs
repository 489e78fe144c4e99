//! Samples as text: OpenMetrics as the client library writes it, or Prometheus' older format, which differs
//! in few lines.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::names::{Kind, METRICS, Metric};

/// Names and values of labels.
pub type Labels = Vec<(&'static str, String)>;

/// A sample's value.
#[derive(Clone, PartialEq, Debug)]
enum Value {
    Number(f64),
    Count(u64),
    Histogram {
        sum: f64,
        /// Upper bound and how many are between it and the one before; the last bound is infinite.
        buckets: Vec<(f64, u64)>,
    },
}

/// The samples of one scrape.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    by_metric: BTreeMap<&'static str, Vec<(Labels, Value)>>,
    /// Two samples of the same name and labels would spoil the whole scrape.
    seen: BTreeSet<(&'static str, Labels)>,
}

impl Samples {
    /// A gauge that is known.
    pub fn gauge(&mut self, metric: Metric, labels: Labels, value: impl Into<f64>) {
        let value = value.into();
        if value.is_finite() {
            self.push(metric, labels, Value::Number(value));
        }
    }

    /// A gauge that may not be known: then there is no sample.
    pub fn gauge_if(&mut self, metric: Metric, labels: Labels, value: Option<f64>) {
        if let Some(value) = value {
            self.gauge(metric, labels, value);
        }
    }

    /// A counter of whole things.
    pub fn count(&mut self, metric: Metric, labels: Labels, value: u64) {
        self.push(metric, labels, Value::Count(value));
    }

    /// A counter of time.
    pub fn seconds(&mut self, metric: Metric, labels: Labels, value: f64) {
        if value.is_finite() && value >= 0.0 {
            self.push(metric, labels, Value::Number(value));
        }
    }

    /// A histogram; none before something was counted.
    pub fn histogram(
        &mut self,
        metric: Metric,
        labels: Labels,
        told: &exo_api::HistogramView,
        bounds: &[f64],
    ) {
        if told.counts.len() != bounds.len() + 1 || !told.sum_s.is_finite() {
            return;
        }
        let bounds = bounds.iter().copied().chain([f64::INFINITY]);
        let buckets = bounds.zip(told.counts.iter().copied()).collect();
        self.push(metric, labels, Value::Histogram { sum: told.sum_s, buckets });
    }

    fn push(&mut self, metric: Metric, labels: Labels, value: Value) {
        if self.seen.insert((metric.name, labels.clone())) {
            self.by_metric.entry(metric.name).or_default().push((labels, value));
        }
    }

    /// As OpenMetrics.
    pub fn open_metrics(self) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry)?;
        Ok(text)
    }

    /// As Prometheus' text format: a counter is described under the name of its samples, and nothing marks
    /// the end.
    pub fn prometheus(self) -> Result<String, fmt::Error> {
        let open = self.open_metrics()?;
        let counters = METRICS.iter().filter(|metric| metric.kind == Kind::Counter);
        let counters: BTreeMap<&str, String> =
            counters.map(|metric| (metric.name, metric.sample_name())).collect();
        let mut text = String::with_capacity(open.len());
        for line in open.lines() {
            if line == "# EOF" {
                continue;
            }
            let described = described(line);
            match described.and_then(|(word, name, rest)| Some((word, counters.get(name)?, rest))) {
                Some((word, name, rest)) => text.push_str(&format!("# {word} {name} {rest}\n")),
                None => {
                    text.push_str(line);
                    text.push('\n');
                }
            }
        }
        Ok(text)
    }
}

/// The word, name and rest of a line that describes a metric.
fn described(line: &str) -> Option<(&str, &str, &str)> {
    let mut parts = line.strip_prefix("# ")?.splitn(3, ' ');
    let word = parts.next().filter(|word| matches!(*word, "HELP" | "TYPE"))?;
    Some((word, parts.next()?, parts.next()?))
}

impl Collector for Samples {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for metric in METRICS {
            let Some(samples) = self.by_metric.get(metric.name) else { continue };
            let kind = match metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            let mut family = encoder.encode_descriptor(metric.name, metric.help, None, kind)?;
            for (labels, value) in samples {
                // A sample without labels is written without their braces.
                if labels.is_empty() {
                    write(&mut family, metric.kind, value)?;
                } else {
                    write(&mut family.encode_family(labels)?, metric.kind, value)?;
                }
            }
        }
        Ok(())
    }
}

fn write(encoder: &mut MetricEncoder<'_>, kind: Kind, value: &Value) -> fmt::Result {
    match (kind, value) {
        (Kind::Counter, Value::Number(value)) => encoder.encode_counter::<NoLabelSet, f64, f64>(value, None),
        (Kind::Counter, Value::Count(value)) => encoder.encode_counter::<NoLabelSet, u64, u64>(value, None),
        (_, Value::Number(value)) => encoder.encode_gauge(value),
        (_, Value::Count(value)) => encoder.encode_gauge(&(*value as f64)),
        (_, Value::Histogram { sum, buckets }) => {
            let count = buckets.iter().fold(0u64, |sum, (_, count)| sum.saturating_add(*count));
            encoder.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
        }
    }
}
