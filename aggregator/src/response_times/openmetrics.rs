//! Source `openmetrics`. In: a service's own exposition for Prometheus, in the text format 0.0.4 or OpenMetrics 1.0. Out: the
//! mean of a histogram or summary between two readings, from its `_sum` and `_count`. Called by [`super`].
//!
//! No server of Prometheus stands between, so nothing is averaged over a longer time than from one reading to the next.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gleaner_types::application::{Access, ResponseTime, TimeUnit};
use gleaner_types::text::duration;

use super::answer::{missing, quoted};
use super::error::{LONGEST_LABEL, LONGEST_METRIC, MOST_LABELS, SourceError};
use super::http::{Address, milliseconds};

/// Most of an exposition that is read. Chosen: some 80,000 samples.
const LONGEST_EXPOSITION: u64 = 8 << 20;
/// Most series of the metric that count. Chosen: a service has some hundred, and each is kept until the next reading.
const MOST_SERIES: usize = 10_000;
/// Both formats that are read, and before anything else.
const ACCEPT: &str = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";

/// Labels of one series.
type Labels = BTreeMap<String, String>;

/// What is read of an exposition.
#[derive(Debug)]
pub(super) struct Selection {
    pub(super) metric: String,
    /// A series counts that has all of these.
    pub(super) labels: Labels,
    /// A gauge of requests that are not answered yet.
    pub(super) in_flight: Option<String>,
    pub(super) unit: TimeUnit,
}

/// One exposition, and what the last reading found.
#[derive(Debug)]
pub(super) struct Openmetrics {
    exposition: Arc<Exposition>,
    last: Option<(Totals, Instant)>,
}

#[derive(Debug)]
pub(super) struct Exposition {
    address: Address,
    selection: Selection,
    interval: Duration,
}

/// All that was ever measured, by series.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Totals {
    series: BTreeMap<Labels, Observed>,
    in_flight: f64,
}

/// What one series says: the sum of its observations, in its unit, and their number.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Observed {
    sum: f64,
    count: f64,
}

/// An exposition does not say what was asked for. What the texts quote is shortened.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum ExpositionError {
    #[error("byte {0} is not UTF-8")]
    NotText(usize),
    #[error("line {line} is malformed: {text}")]
    Malformed { line: usize, text: String },
    #[error("line {line} is {text}; it must be a finite number from 0")]
    Value { line: usize, text: String },
    #[error("line {line} repeats an earlier one: {text}")]
    Twice { line: usize, text: String },
    #[error("there are more than {MOST_SERIES} series of {0}; ask for fewer by labels")]
    TooMany(String),
    #[error("there is no {0}_count")]
    NoMetric(String),
    #[error("a series of {0} has no _sum or no _count")]
    Half(String),
    #[error("no series of {0} has the labels asked for")]
    NoSuchLabels(String),
    #[error("there is no {0}, which was to say what is in flight")]
    NoInFlight(String),
}

impl Openmetrics {
    /// # Errors
    /// [`SourceError`]: the field that is wrong.
    pub(super) fn new(
        url: &str,
        access: &Access,
        selection: Selection,
        interval: Duration,
        time_limit: Duration,
    ) -> Result<Self, SourceError> {
        let address = Address::new(url, access, time_limit)?.accepting(ACCEPT);
        let is_metric = |name: &str| is_name(name, true) && name.len() <= LONGEST_METRIC;
        if !is_metric(&selection.metric) {
            return Err(SourceError::Metric { field: "metric", name: quoted(&selection.metric) });
        }
        if let Some(name) = selection.in_flight.as_deref().filter(|name| !is_metric(name)) {
            return Err(SourceError::Metric { field: "in_flight", name: quoted(name) });
        }
        let is_label = |(name, value): (&String, &String)| {
            is_name(name, false) && name.len() <= LONGEST_METRIC && value.len() <= LONGEST_LABEL
        };
        if selection.labels.len() > MOST_LABELS || !selection.labels.iter().all(is_label) {
            let odd = selection.labels.iter().find(|label| !is_label(*label));
            let shown = odd.map_or_else(
                || format!("a table of {}", selection.labels.len()),
                |(name, value)| format!("{} = {}", quoted(name), quoted(value)),
            );
            return Err(SourceError::Labels(shown));
        }
        Ok(Self { exposition: Arc::new(Exposition { address, selection, interval }), last: None })
    }

    /// What is asked, by a thread that may wait.
    pub(super) fn exposition(&self) -> Arc<Exposition> {
        Arc::clone(&self.exposition)
    }

    /// What was measured since the last reading.
    pub(super) fn take(&mut self, totals: Result<Totals, ResponseTime>, now: Instant) -> ResponseTime {
        let totals = match totals {
            Ok(totals) => totals,
            Err(time) => return time,
        };
        let Exposition { selection, interval, .. } = &*self.exposition;
        let time = match &self.last {
            None => missing("this is the first reading; the next one can tell what was between them"),
            // One reading that failed is bridged; a mean over more intervals is none of the last one.
            Some((_, at)) if now.duration_since(*at) > *interval * 5 / 2 => {
                missing(format!("the last reading was {} ago", duration(now.duration_since(*at).as_secs_f64())))
            }
            Some((last, _)) => between(last, &totals, selection.unit),
        };
        self.last = Some((totals, now));
        time
    }
}

impl Exposition {
    /// Asks. It waits for the answer, at most the time limit.
    ///
    /// # Errors
    /// What stands for no totals.
    pub(super) fn read(&self) -> Result<Totals, ResponseTime> {
        let answer = self.address.get(None, LONGEST_EXPOSITION)?;
        let body = answer.document(&self.address.name(), self.interval)?;
        totals(&body, &self.selection)
            .map_err(|error| missing(format!("the answer of {} is of no use: {error}", self.address.name())))
    }
}

/// What happened between two readings.
fn between(last: &Totals, totals: &Totals, unit: TimeUnit) -> ResponseTime {
    let (mut sum, mut count) = (0.0, 0.0);
    for (labels, now) in &totals.series {
        let before = last.series.get(labels).copied().unwrap_or_default();
        // A counter that went back began anew at 0, as a new series does. The sum alone may go back by a rounding.
        let began_anew = now.count < before.count || (now.count > before.count && now.sum < before.sum);
        let before = if began_anew { Observed::default() } else { before };
        if now.count > before.count {
            sum += now.sum - before.sum;
            count += now.count - before.count;
        }
    }
    if count > 0.0 {
        return ResponseTime::from_ms(sum / count * milliseconds(unit));
    }
    if totals.in_flight > 0.0 { ResponseTime::Stalled } else { ResponseTime::Idle }
}

/// The totals that an exposition holds. Lines of other metrics are not looked at.
fn totals(body: &[u8], selection: &Selection) -> Result<Totals, ExpositionError> {
    let text = std::str::from_utf8(body).map_err(|error| ExpositionError::NotText(error.valid_up_to()))?;
    let metric = selection.metric.as_str();
    let (mut sums, mut counts) = (BTreeMap::new(), BTreeMap::new());
    let (mut is_declared, mut has_series, mut in_flight) = (false, false, None);
    for (index, line) in text.lines().enumerate() {
        let (line, text) = (index + 1, line.trim());
        if let Some(comment) = text.strip_prefix('#') {
            let mut words = comment.split_ascii_whitespace();
            is_declared |= words.next() == Some("TYPE") && words.next() == Some(metric);
            continue;
        }
        let name = text.split(['{', ' ', '\t']).next().unwrap_or_default();
        let values = match name.strip_prefix(metric) {
            Some("_sum") => Some(&mut sums),
            Some("_count") => Some(&mut counts),
            _ if Some(name) == selection.in_flight.as_deref() => None,
            _ => continue,
        };
        let malformed = || ExpositionError::Malformed { line, text: quoted(text) };
        let (labels, rest) = labels(&text[name.len()..]).ok_or_else(malformed)?;
        // A timestamp and an exemplar may follow.
        let value = rest.split_ascii_whitespace().next().and_then(|value| value.parse::<f64>().ok());
        let value = value.ok_or_else(malformed)?;
        // A gauge need not have all the labels, but none with another value.
        let is_wanted = selection.labels.iter().all(|(name, value)| match labels.get(name) {
            Some(own) => own == value,
            None => values.is_none(),
        });
        has_series |= values.is_some();
        if values.is_none() {
            in_flight.get_or_insert(0.0);
        }
        if !is_wanted {
            continue;
        }
        if !(value.is_finite() && value >= 0.0) {
            return Err(ExpositionError::Value { line, text: quoted(text) });
        }
        match values {
            None => in_flight = Some(in_flight.unwrap_or(0.0) + value),
            Some(values) if values.len() >= MOST_SERIES => return Err(ExpositionError::TooMany(metric.to_owned())),
            Some(values) => {
                if values.insert(labels, value).is_some() {
                    return Err(ExpositionError::Twice { line, text: quoted(text) });
                }
            }
        }
    }
    // A service that declares the metric and has no series of it was asked nothing yet.
    if !has_series && !is_declared {
        return Err(ExpositionError::NoMetric(metric.to_owned()));
    }
    if has_series && sums.is_empty() && counts.is_empty() {
        return Err(ExpositionError::NoSuchLabels(metric.to_owned()));
    }
    if !sums.keys().eq(counts.keys()) {
        return Err(ExpositionError::Half(metric.to_owned()));
    }
    if let (None, Some(name)) = (in_flight, &selection.in_flight) {
        return Err(ExpositionError::NoInFlight(name.clone()));
    }
    let series = sums.into_iter().zip(counts).map(|((labels, sum), (_, count))| (labels, Observed { sum, count }));
    Ok(Totals { series: series.collect(), in_flight: in_flight.unwrap_or_default() })
}

/// Labels in braces, if there are any, and what follows them; `None` if they are malformed.
fn labels(text: &str) -> Option<(Labels, &str)> {
    let mut labels = Labels::new();
    let Some(mut rest) = text.trim_start().strip_prefix('{') else { return Some((labels, text)) };
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, after) = rest.split_once('=')?;
        let (value, after) = label_value(after.trim_start().strip_prefix('"')?)?;
        if labels.insert(name.trim_end().to_owned(), value).is_some() {
            return None;
        }
        rest = after.trim_start();
        if !rest.starts_with('}') {
            rest = rest.strip_prefix(',')?;
        }
    }
}

/// A value up to its closing quote, and what follows that.
fn label_value(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match characters.next()?.1 {
                'n' => value.push('\n'),
                escaped => value.push(escaped),
            },
            plain => value.push(plain),
        }
    }
    None
}

/// A name as the formats have it: of a metric with colons, of a label without.
fn is_name(name: &str, of_metric: bool) -> bool {
    let is_begin = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_' || (of_metric && byte == b':');
    let mut bytes = name.bytes();
    bytes.next().is_some_and(is_begin) && bytes.all(|byte| is_begin(byte) || byte.is_ascii_digit())
}

/// The parser of an exposition, for the fuzz targets.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn fuzz(data: &[u8]) {
    let selection = Selection {
        metric: "m".to_owned(),
        labels: Labels::new(),
        in_flight: Some("g".to_owned()),
        unit: TimeUnit::Seconds,
    };
    if let Ok(read) = totals(data, &selection) {
        _ = between(&Totals::default(), &read, selection.unit);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn selection(labels: &[(&str, &str)]) -> Selection {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Selection { metric: "wait_seconds".to_owned(), labels, in_flight: None, unit: TimeUnit::Seconds }
    }

    fn read(text: &str, labels: &[(&str, &str)]) -> Totals {
        totals(text.as_bytes(), &selection(labels)).unwrap()
    }

    fn mean(last: &str, now: &str, labels: &[(&str, &str)]) -> ResponseTime {
        between(&read(last, labels), &read(now, labels), TimeUnit::Seconds)
    }

    /// A histogram as Prometheus' client for Python has it, in the text format.
    const FIRST: &str = "# HELP wait_seconds Time\n# TYPE wait_seconds histogram\n\
        wait_seconds_bucket{le=\"0.1\",path=\"/a\"} 1.0\nwait_seconds_bucket{le=\"+Inf\",path=\"/a\"} 2.0\n\
        wait_seconds_count{path=\"/a\"} 2.0\nwait_seconds_sum{path=\"/a\"} 1.5\n\
        wait_seconds_count{path=\"/b\"} 10.0\nwait_seconds_sum{path=\"/b\"} 1.0\n\
        wait_seconds_other 1e3\nmy_wait_seconds_sum 7\n";

    #[test]
    fn the_mean_is_of_what_ended_between_two_readings() {
        // 4 of /a took 2 s together, 6 of /b 0.5 s, and 1 of a new path 0.5 s.
        let now = "wait_seconds_count{path=\"/a\"} 6\nwait_seconds_sum{path=\"/a\"} 3.5\n\
            wait_seconds_count{path=\"/b\"} 16\nwait_seconds_sum{path=\"/b\"} 1.5 1795000000000\n\
            wait_seconds_count{path=\"/c\"} 1\nwait_seconds_sum{path=\"/c\"} 0.5 # {id=\"7\"} 0.5\n# EOF\n";
        let ResponseTime::Mean { mean_ms } = mean(FIRST, now, &[]) else { panic!() };
        assert!((mean_ms - 3_000.0 / 11.0).abs() < 1e-9, "{mean_ms}");
        assert_eq!(mean(FIRST, now, &[("path", "/a")]), ResponseTime::Mean { mean_ms: 500.0 });
        assert_eq!(mean(FIRST, FIRST, &[]), ResponseTime::Idle);
    }

    #[test]
    fn a_counter_that_went_back_began_anew() {
        let of = |sum, count| format!("wait_seconds_count {count}\nwait_seconds_sum {sum}\n");
        for (now, expected) in [
            (of("0.5", 1), ResponseTime::Mean { mean_ms: 500.0 }),
            // More requests than before, in less time: after a restart.
            (of("3", 12), ResponseTime::Mean { mean_ms: 250.0 }),
            (of("0", 0), ResponseTime::Idle),
            // A sum of several workers' sums, added in another order.
            (of("3.9999999999999996", 10), ResponseTime::Idle),
        ] {
            assert_eq!(mean(&of("4", 10), &now, &[]), expected, "{now}");
        }
    }

    #[test]
    fn what_has_no_requests_is_idle_and_what_holds_some_is_stalled() {
        let declared = "# TYPE wait_seconds summary\n";
        assert_eq!(mean(declared, declared, &[]), ResponseTime::Idle);
        let flying = |count| {
            let text = format!("{FIRST}busy{{worker=\"1\"}} {count}\nbusy{{worker=\"2\"}} 0\n");
            let selection = Selection { in_flight: Some("busy".to_owned()), ..selection(&[("path", "/a")]) };
            totals(text.as_bytes(), &selection).unwrap()
        };
        assert_eq!(between(&flying(0), &flying(3), TimeUnit::Seconds), ResponseTime::Stalled);
        assert_eq!(between(&flying(3), &flying(0), TimeUnit::Seconds), ResponseTime::Idle);
        // Of a gauge by path, what flies on another path says nothing of this one.
        let by_path = |path: &str| {
            let text = format!("{FIRST}busy{{path=\"{path}\"}} 1\n");
            let selection = Selection { in_flight: Some("busy".to_owned()), ..selection(&[("path", "/a")]) };
            totals(text.as_bytes(), &selection).unwrap()
        };
        assert_eq!(between(&flying(0), &by_path("/b"), TimeUnit::Seconds), ResponseTime::Idle);
        assert_eq!(between(&flying(0), &by_path("/a"), TimeUnit::Seconds), ResponseTime::Stalled);
    }

    #[test]
    fn a_flood_of_series_is_refused() {
        let line =
            |number: usize| format!("wait_seconds_sum{{id=\"{number}\"}} 1\nwait_seconds_count{{id=\"{number}\"}} 1\n");
        let flood = |lines: usize| (0..lines).map(line).collect::<String>();
        assert_eq!(read(&flood(MOST_SERIES), &[]).series.len(), MOST_SERIES);
        let more = flood(MOST_SERIES + 1);
        assert_eq!(totals(more.as_bytes(), &selection(&[])), Err(ExpositionError::TooMany("wait_seconds".to_owned())));
        assert_eq!(read(&more, &[("id", "7")]).series.len(), 1, "what was not asked for does not count");
    }

    #[test]
    fn units_and_escapes_are_read() {
        let text = |sum| {
            format!(
                "wait_seconds_sum{{ a = \"x\\\"}}\\n\\\\\" , }} {sum}\nwait_seconds_count{{a=\"x\\\"}}\\n\\\\\"}} {sum}"
            )
        };
        let (last, now) = (read(&text(1), &[]), read(&text(2), &[("a", "x\"}\n\\")]));
        assert_eq!(between(&last, &now, TimeUnit::Microseconds), ResponseTime::Mean { mean_ms: 1e-3 });
        assert_eq!(between(&last, &now, TimeUnit::Milliseconds), ResponseTime::Mean { mean_ms: 1.0 });
    }

    #[test]
    fn what_cannot_be_used_is_said() {
        let with = |line: &str| format!("{FIRST}{line}\n");
        for (text, labels, part) in [
            (String::new(), &[][..], "there is no wait_seconds_count"),
            ("<html>".to_owned(), &[], "there is no wait_seconds_count"),
            (with("wait_seconds_sum NaN"), &[], "line 11 is `wait_seconds_sum NaN`; it must be a finite number from 0"),
            (with("wait_seconds_sum -1"), &[], "finite number"),
            (with("wait_seconds_sum{x=\"1\"} +Inf"), &[], "finite number"),
            (with("wait_seconds_sum fast"), &[], "line 11 is malformed: `wait_seconds_sum fast`"),
            (with("wait_seconds_sum"), &[], "malformed"),
            (with("wait_seconds_sum{a=\"1\""), &[], "malformed"),
            (with("wait_seconds_sum{a=1} 2"), &[], "malformed"),
            (with("wait_seconds_sum{a=\"1\",a=\"2\"} 2"), &[], "malformed"),
            (with("wait_seconds_sum{path=\"/a\"} 2"), &[], "line 11 repeats an earlier one"),
            (with("wait_seconds_sum 2"), &[], "a series of wait_seconds has no _sum or no _count"),
            (FIRST.to_owned(), &[("path", "/c")], "no series of wait_seconds has the labels asked for"),
        ] {
            let error = totals(text.as_bytes(), &selection(labels)).unwrap_err().to_string();
            assert!(error.contains(part), "{part}: {error}");
        }
        assert_eq!(totals(b"wait\xff", &selection(&[])), Err(ExpositionError::NotText(4)));
        let gauge = Selection { in_flight: Some("busy".to_owned()), ..selection(&[]) };
        assert_eq!(totals(FIRST.as_bytes(), &gauge), Err(ExpositionError::NoInFlight("busy".to_owned())));
        // Of what was not asked for, nothing matters.
        read(&with("wait_seconds_sum{path=\"/c\"} NaN"), &[("path", "/a")]);
    }

    #[test]
    fn readings_far_apart_tell_nothing_of_the_last_interval() {
        let interval = Duration::from_secs(30);
        let access = Access::default();
        let mut source = Openmetrics::new("http://h/metrics", &access, selection(&[]), interval, interval).unwrap();
        let (begin, totals) = (Instant::now(), || Ok(read(FIRST, &[])));
        let reason = |time: ResponseTime| match time {
            ResponseTime::Missing { reason } => reason,
            other => panic!("{other:?}"),
        };
        assert!(reason(source.take(totals(), begin)).contains("first reading"));
        assert_eq!(source.take(totals(), begin + interval), ResponseTime::Idle);
        assert_eq!(reason(source.take(Err(missing("gone")), begin + interval * 2)), "gone");
        assert_eq!(source.take(totals(), begin + interval * 3), ResponseTime::Idle, "one failure is bridged");
        assert_eq!(reason(source.take(totals(), begin + interval * 6)), "the last reading was 1 min 30 s ago");
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "([mg](_sum|_count)?[{}=\",a1 \\\\.eN-]{0,12}\n?){0,8}|.{0,99}") {
            fuzz(text.as_bytes());
        }

        #[test]
        fn a_mean_is_of_what_was_added(
            before in (0.0..1e6_f64, 0_u32..1_000_000), mean_s in 1e-3..100.0_f64, more in 1_u32..100_000,
        ) {
            let text = |sum: f64, count: u32| format!("wait_seconds_sum {sum}\nwait_seconds_count {count}");
            let last = text(before.0, before.1);
            let now = text(before.0 + mean_s * f64::from(more), before.1 + more);
            let ResponseTime::Mean { mean_ms } = mean(&last, &now, &[]) else { panic!() };
            prop_assert!((mean_ms / 1e3 / mean_s - 1.0).abs() < 1e-3, "{mean_ms} and {mean_s}");
        }
    }
}
