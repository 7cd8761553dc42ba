//! Metrics of a daemon. In: families of metrics as plain data, built by the daemon per request. Out: their text in the
//! OpenMetrics format, version 1.0.0, which [`crate::monitoring`] sends. Called by the daemons' own `metrics.rs`. This
//! module is the only one that knows the crate that writes it.
//!
//! A page is built on request; nothing is kept between two requests. A family without samples is still described, so
//! that a page always names every metric.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

/// Content type of a page, as OpenMetrics requires it.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Units a name may end with; OpenMetrics names the unit separately.
const UNITS: [&str; 5] = ["bytes", "cores", "dollars", "ratio", "seconds"];

/// Upper bounds of [`Durations`], in seconds; what is longer falls into the last, which has none. Chosen: from a sizing
/// decision of one host to a disk that hangs.
const BOUNDS_S: [f64; 8] = [0.000_1, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 5.0];

/// Labels of a sample: name and value.
type Labels = Vec<(&'static str, String)>;

/// How long something took, each time: a histogram.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Durations {
    counts: [u64; BOUNDS_S.len() + 1],
    sum_s: f64,
}

impl Durations {
    /// Takes one.
    pub fn observe(&mut self, duration: std::time::Duration) {
        let seconds = duration.as_secs_f64();
        let place = BOUNDS_S.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS_S.len());
        self.counts[place] += 1;
        self.sum_s += seconds;
    }

    /// How many were taken.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Value {
    Gauge(f64),
    Counter(u64),
    CounterOfSeconds(f64),
    Histogram(Durations),
    Info,
}

#[derive(Debug, Clone, PartialEq)]
struct Family {
    name: &'static str,
    help: &'static str,
    kind: MetricKind,
    samples: Vec<(Labels, Value)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MetricKind {
    Gauge,
    Counter,
    Histogram,
    Info,
}

/// Everything one scrape returns. Names must be unique on a page and follow OpenMetrics: the unit last, no `_total`
/// and no `_info`, which are added.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Page {
    families: Vec<Family>,
}

impl Page {
    /// A value that goes up and down; `None` where it is not known.
    pub fn gauge(&mut self, name: &'static str, help: &'static str, value: impl Into<Option<f64>>) {
        self.gauges(name, help, value.into().map(|value| (Vec::new(), value)));
    }

    /// The same for several things, distinguished by labels.
    pub fn gauges(&mut self, name: &'static str, help: &'static str, values: impl IntoIterator<Item = (Labels, f64)>) {
        let finite = values.into_iter().filter(|(_, value)| value.is_finite());
        let samples = finite.map(|(labels, value)| (labels, Value::Gauge(value))).collect();
        self.families.push(Family { name, help, kind: MetricKind::Gauge, samples });
    }

    /// A number of things that happened since the daemon started.
    pub fn counter(&mut self, name: &'static str, help: &'static str, count: u64) {
        self.counters(name, help, [(Vec::new(), count)]);
    }

    /// The same for several things, distinguished by labels.
    pub fn counters(
        &mut self,
        name: &'static str,
        help: &'static str,
        counts: impl IntoIterator<Item = (Labels, u64)>,
    ) {
        let samples = counts.into_iter().map(|(labels, count)| (labels, Value::Counter(count))).collect();
        self.families.push(Family { name, help, kind: MetricKind::Counter, samples });
    }

    /// Seconds that were spent since the daemon started.
    pub fn seconds(&mut self, name: &'static str, help: &'static str, seconds: f64) {
        let samples = vec![(Vec::new(), Value::CounterOfSeconds(seconds.max(0.0)))];
        self.families.push(Family { name, help, kind: MetricKind::Counter, samples });
    }

    /// How long something took.
    pub fn histogram(&mut self, name: &'static str, help: &'static str, durations: &Durations) {
        let samples = vec![(Vec::new(), Value::Histogram(durations.clone()))];
        self.families.push(Family { name, help, kind: MetricKind::Histogram, samples });
    }

    /// Facts as labels.
    pub fn info(&mut self, name: &'static str, help: &'static str, facts: Labels) {
        let samples = vec![(facts, Value::Info)];
        self.families.push(Family { name, help, kind: MetricKind::Info, samples });
    }

    /// The page as text. Label values are escaped; control characters in them are replaced, because they may come
    /// from names that guests choose.
    ///
    /// # Errors
    /// Never for pages of Gleaner's: the crate's error when a sample cannot be expressed.
    pub fn text(self) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in &self.families {
            family.encode(&mut encoder)?;
        }
        Ok(())
    }
}

impl Family {
    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let unit = UNITS.iter().find(|unit| self.name.strip_suffix(**unit).is_some_and(|rest| rest.ends_with('_')));
        let name = unit.map_or(self.name, |unit| &self.name[..self.name.len() - unit.len() - 1]);
        let unit = unit.map(|unit| Unit::Other((*unit).to_owned()));
        let kind = match self.kind {
            MetricKind::Gauge => MetricType::Gauge,
            MetricKind::Counter => MetricType::Counter,
            MetricKind::Histogram => MetricType::Histogram,
            MetricKind::Info => MetricType::Info,
        };
        let mut described = encoder.encode_descriptor(name, self.help, unit.as_ref(), kind)?;
        for (labels, value) in &self.samples {
            let labels: Vec<(&str, String)> = labels.iter().map(|(name, value)| (*name, harmless(value))).collect();
            match (value, labels.is_empty()) {
                (Value::Info, _) => described.encode_info(&labels)?,
                // An empty set of labels would be written as `{}`.
                (value, true) => sample(&mut described, value)?,
                (value, false) => sample(&mut described.encode_family(&labels)?, value)?,
            }
        }
        Ok(())
    }
}

fn sample(encoder: &mut MetricEncoder<'_>, value: &Value) -> fmt::Result {
    match value {
        Value::Gauge(value) => encoder.encode_gauge(value),
        Value::Counter(count) => encoder.encode_counter::<NoLabelSet, _, f64>(count, None),
        Value::CounterOfSeconds(seconds) => encoder.encode_counter::<NoLabelSet, _, f64>(seconds, None),
        Value::Histogram(durations) => {
            let bounds = BOUNDS_S.into_iter().chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(durations.counts).collect();
            encoder.encode_histogram::<NoLabelSet>(durations.sum_s, durations.count(), &buckets, None)
        }
        Value::Info => Ok(()),
    }
}

fn harmless(value: &str) -> String {
    value.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_page_in_the_words_of_the_format() {
        let mut page = Page::default();
        page.gauge("gleaner_allowance_cores", "Most it may use.", 1.5);
        page.gauge("gleaner_unknown", "Not known now.", None);
        page.gauges("gleaner_odd", "What is no number is left out.", [(Vec::new(), f64::NAN)]);
        page.counters("gleaner_events", "Events.", [(vec![("kind", "a".to_owned())], 7)]);
        page.seconds("gleaner_busy_seconds", "Busy.", 0.5);
        let mut took = Durations::default();
        for ms in [0, 3, 9_000] {
            took.observe(Duration::from_millis(ms));
        }
        page.histogram("gleaner_step_seconds", "Steps.", &took);
        page.info("gleaner_build", "Build.", vec![("version", "1".to_owned())]);
        let text = page.text().unwrap();
        let wanted = [
            "# HELP gleaner_allowance_cores Most it may use.\n# TYPE gleaner_allowance_cores gauge\n# UNIT gleaner_allowance_cores cores\ngleaner_allowance_cores 1.5\n",
            "# TYPE gleaner_unknown gauge\n# HELP gleaner_odd",
            "# TYPE gleaner_odd gauge\n# HELP gleaner_events",
            "# TYPE gleaner_events counter\ngleaner_events_total{kind=\"a\"} 7\n",
            "gleaner_busy_seconds_total 0.5\n",
            "gleaner_step_seconds_count 3\n",
            "gleaner_step_seconds_bucket{le=\"0.0001\"} 1\n",
            "gleaner_step_seconds_bucket{le=\"0.005\"} 2\n",
            "gleaner_step_seconds_bucket{le=\"+Inf\"} 3\n",
            "# TYPE gleaner_build info\ngleaner_build_info{version=\"1\"} 1\n",
        ];
        for part in wanted {
            assert!(text.contains(part), "{part}\nnot in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn names_that_others_chose_stay_in_their_quotes() {
        let hostile = "a\"} 1\nother{x=\"\\\u{1b}[2J";
        let mut page = Page::default();
        page.gauges("gleaner_x", "X.", [(vec![("name", hostile.to_owned())], 1.0)]);
        let text = page.text().unwrap();
        assert!(text.contains(r#"gleaner_x{name="a\"} 1?other{x=\"\\?[2J"} 1.0"#), "{text}");
        assert_eq!(text.lines().filter(|line| !line.starts_with('#')).count(), 1, "{text}");
    }
}
