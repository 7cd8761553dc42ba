//! Events in words. In: lines of the event log. Out: one harmless line for people each, times as times and durations as
//! durations; and the many events of the guard summed up, one a minute and host. Called by `gleaner events` and `gleaner top`.

use std::collections::BTreeMap;

use gleaner_types::event::{Event, EventRecord, EventSource};
use gleaner_types::job::Goal;
use gleaner_types::report::Absence;
use gleaner_types::text::counted;
use gleaner_types::time::Timestamp;
use gleaner_types::units::{CoreShare, Dollars};
use serde_json::{Map, Value as Json};

use crate::columns::EventLine;
use crate::format::{clean, goal, response_time, seconds};
use crate::states;

/// A line of the event log for people.
pub(crate) fn event(record: &EventRecord) -> String {
    let source = match &record.source {
        EventSource::Aggregator => "aggregator".to_owned(),
        EventSource::Agent { host, .. } => host.to_string(),
    };
    let name = record.event.name();
    let mut text = format!("{}  {:<12} {}", record.at, source, states::event(&name).paint(&name));
    match &record.event {
        Event::JobSized { decision } => {
            text.push_str(&format!("  job={} size={} ({})", decision.job, decision.size, clean(&decision.reason)));
        }
        Event::SharesMoved { decision } => {
            text.push_str(&format!("  application={} ({})", decision.application, clean(&decision.reason)));
        }
        event => {
            if let Ok(Json::Object(event)) = serde_json::to_value(event) {
                for (name, value) in event.into_iter().filter_map(|(_, fields)| fields.as_object().cloned()).flatten() {
                    field(&mut text, &name, value);
                }
            }
        }
    }
    text
}

/// One line of [`Guard`], or any other.
pub(crate) fn line(line: &EventLine, record: &EventRecord) -> String {
    match line.number("events") {
        Some(events) if matches!(record.event, Event::GuardActed { .. }) => {
            format!("{}  ({} in a minute)", event(record), counted(events, "event"))
        }
        _ => event(record),
    }
}

/// Adds a field in words; nothing where there is no value.
fn field(text: &mut String, name: &str, value: Json) {
    let parsed = |value: &Json| value.as_f64().unwrap_or(0.0);
    let (name, shown) = match (name, value) {
        (_, Json::Null) => return,
        // Of a job on hosts the engine tells with its first progress.
        ("tasks", value) if value == 0 => return,
        ("until" | "expires" | "through", Json::Number(ms)) => {
            (name, ms.as_u64().map_or_else(|| ms.to_string(), |ms| Timestamp(ms).to_string()))
        }
        ("foreground" | "allowance", value @ Json::Number(_)) => (name, CoreShare::clamped(parsed(&value)).to_string()),
        ("cost", value @ Json::Number(_)) => (name, Dollars::clamped(parsed(&value)).to_string()),
        ("goal", value) => {
            (name, serde_json::from_value::<Goal>(value.clone()).map_or_else(|_| value.to_string(), goal))
        }
        ("absent", value) => (
            name,
            serde_json::from_value::<Absence>(value.clone()).map_or_else(|_| value.to_string(), |own| own.to_string()),
        ),
        ("response", value) => {
            let response = serde_json::from_value(value.clone());
            (name, response.map_or_else(|_| value.to_string(), |own| response_time(&own)))
        }
        (_, value @ Json::Number(_)) => with_unit(name, &value),
        (_, Json::Object(fields)) => {
            for (inner, value) in fields {
                field(text, &format!("{name}.{inner}"), value);
            }
            return;
        }
        (_, Json::Array(items)) if items.is_empty() => return,
        (_, Json::Array(items)) => {
            let items: Vec<String> = items.iter().map(plain).collect();
            // Sentences have commas of their own.
            let gap = if items.iter().any(|item| item.contains(", ")) { "; " } else { ", " };
            (name, items.join(gap))
        }
        (_, value) => (name, plain(&value)),
    };
    text.push_str(&format!("  {}={}", clean(name), clean(&shown)));
}

/// A text, in quotes where a gap in it could be taken for the one between two fields: guests choose their names.
fn plain(value: &Json) -> String {
    let Some(text) = value.as_str().map(clean) else { return value.to_string() };
    // Other blanks than the space are as wide as two.
    let has_gap = text.contains("  ") || text.contains(|c: char| c.is_whitespace() && c != ' ');
    if has_gap { format!("{text:?}") } else { text }
}

/// A number by the unit that its name ends with, and the name without it.
fn with_unit<'n>(name: &'n str, value: &Json) -> (&'n str, String) {
    let number = value.as_f64().unwrap_or(0.0);
    let short = |number: f64| if number.fract() == 0.0 { format!("{number:.0}") } else { format!("{number:.2}") };
    for (ending, words) in [
        ("_core_s", format!("{number:.1} core-seconds")),
        ("_s", seconds(number)),
        ("_ms", format!("{} ms", short(number))),
        ("_percent", format!("{} %", short(number))),
        ("_wh", format!("{} Wh", short(number))),
    ] {
        if let Some(name) = name.strip_suffix(ending) {
            return (name, words);
        }
    }
    (name, if value.is_f64() { short(number) } else { value.to_string() })
}

/// Sums up `guard_acted`, which a busy host sends every second, to one line a minute and host.
#[derive(Debug, Default)]
pub(crate) struct Guard {
    /// By the minute and the host.
    minutes: BTreeMap<(u64, String), EventLine>,
}

impl Guard {
    /// Takes a line. Gives what is to be shown now: it, unless it is the guard's, and minutes that are over.
    pub(crate) fn take(&mut self, line: EventLine) -> Vec<EventLine> {
        let Some(at_ms) = line.number("at_ms") else { return vec![line] };
        let minute = at_ms / 60_000;
        let mut shown = self.before(minute);
        match line.guard_of() {
            Some(host) => match self.minutes.entry((minute, host)) {
                std::collections::btree_map::Entry::Occupied(mut sum) => add(&mut sum.get_mut().fields, &line.fields),
                std::collections::btree_map::Entry::Vacant(place) => {
                    let mut first = line;
                    first.fields.insert("events".into(), 1.into());
                    place.insert(first);
                }
            },
            None => shown.push(line),
        }
        shown
    }

    /// The minutes that are over at a time; all of them at the end of time.
    pub(crate) fn over(&mut self, now: Timestamp) -> Vec<EventLine> {
        self.before(now.0 / 60_000)
    }

    fn before(&mut self, minute: u64) -> Vec<EventLine> {
        let later = self.minutes.split_off(&(minute, String::new()));
        std::mem::replace(&mut self.minutes, later).into_values().map(EventLine::rewritten).collect()
    }
}

/// Adds a guard's event to a minute's: counts are added, of demand and reaction the worst stays, of the allowance the last.
fn add(sum: &mut Map<String, Json>, more: &Map<String, Json>) {
    let count = |of: &Map<String, Json>, name: &str| of.get(name).and_then(Json::as_u64).unwrap_or(0);
    let number = |of: &Map<String, Json>, name: &str| of.get(name).and_then(Json::as_f64).unwrap_or(0.0);
    for name in ["shrinks", "freezes"] {
        sum.insert(name.into(), count(sum, name).saturating_add(count(more, name)).into());
    }
    for name in ["foreground", "reaction_ms"] {
        sum.insert(name.into(), number(sum, name).max(number(more, name)).into());
    }
    for name in ["time", "at_ms", "logged_ms", "incarnation", "sequence", "allowance"] {
        sum.extend(more.get(name).map(|value| (name.to_owned(), value.clone())));
    }
    sum.insert("events".into(), (count(sum, "events") + 1).into());
}

#[cfg(test)]
mod tests {
    use gleaner_types::application::ResponseTime;
    use gleaner_types::id::{ApplicationId, HostId, JobId, WorkloadId};
    use gleaner_types::report::AbsenceKind;

    use super::*;

    fn words(event: Event) -> String {
        let record = EventRecord { at: Timestamp(0), source: EventSource::Aggregator, event };
        anstream::adapter::strip_str(&self::event(&record)).to_string()
    }

    #[test]
    fn events_are_one_harmless_line() {
        let line = words(Event::HostLost { host: HostId::new("h1").unwrap(), reason: "a\u{1b}[2Jb\nc".into() });
        assert_eq!(line, "1970-01-01T00:00:00.000Z  aggregator   host_lost  host=h1  reason=a?[2Jb?c");
        for (name, shown) in
            [("web 1", "web 1"), ("a  host=h2", "\"a  host=h2\""), ("a\u{a0}\u{a0}b", r#""a\u{a0}\u{a0}b""#)]
        {
            let line = words(Event::WorkloadVanished { workload: WorkloadId::from_untrusted(name) });
            assert!(line.ends_with(&format!("  workload={shown}")), "{line}");
        }
    }

    #[test]
    fn times_are_times_and_durations_are_durations() {
        let host = HostId::new("h1").unwrap();
        let held = words(Event::HostHeld { host, until: Some(Timestamp(1_795_132_799_123)) });
        assert!(held.ends_with("host=h1  until=2026-11-19T23:59:59.123Z"), "{held}");
        let job = JobId::new("j").unwrap();
        let profiling = words(Event::JobProfiling { job: job.clone(), period_s: 90.0 });
        assert!(profiling.ends_with("job=j  period=1 min 30 s"), "{profiling}");
        let submitted =
            words(Event::JobSubmitted { job, user: None, goal: Goal::Deadline { within_s: 3_600.0 }, tasks: 7 });
        assert!(submitted.contains("goal=within 1 h 00 min") && submitted.contains("tasks=7"), "{submitted}");
        let job = JobId::new("j").unwrap();
        let cluster = words(Event::JobSubmitted { job, user: None, goal: Goal::Energy, tasks: 0 });
        assert!(!cluster.contains("tasks"), "{cluster}");
        let application = ApplicationId::new("shop").unwrap();
        let changed =
            words(Event::ResponseTimeChanged { application, response: ResponseTime::Mean { mean_ms: 12.345 } });
        assert!(changed.ends_with("application=shop  response=12.3 ms"), "{changed}");
        let absent = Some(Absence::described(AbsenceKind::NotYet, "it takes two samples"));
        let sensor = words(Event::SensorChanged { sensor: "perf".into(), absent });
        assert!(sensor.contains("absent=not available, because it takes two samples"), "{sensor}");
    }

    fn guard(host: &str, at_ms: u64, shrinks: u64, reaction_ms: f64) -> EventLine {
        let source = EventSource::Agent { host: HostId::new(host).unwrap(), incarnation: 1, sequence: at_ms };
        let (foreground, allowance) = (CoreShare::clamped(150.0), CoreShare::clamped(50.0));
        let event = Event::GuardActed { foreground, allowance, shrinks, freezes: 1, reaction_ms };
        let record = EventRecord { at: Timestamp(at_ms), source, event };
        EventLine::parse(record.to_json_line().unwrap()).unwrap()
    }

    fn shown(lines: &[EventLine]) -> Vec<String> {
        let in_words = |own: &EventLine| line(own, &EventRecord::from_json_line(&own.line).unwrap());
        lines.iter().map(|own| anstream::adapter::strip_str(&in_words(own)).to_string()).collect()
    }

    #[test]
    fn the_guards_events_are_one_line_a_minute_and_host() {
        let mut sums = Guard::default();
        for (host, at_ms, shrinks, reaction_ms) in
            [("h1", 1_000, 2, 10.0), ("h2", 1_500, 1, 7.0), ("h1", 59_000, 3, 4.0)]
        {
            assert!(sums.take(guard(host, at_ms, shrinks, reaction_ms)).is_empty());
        }
        let started = r#"{"at_ms":59500,"format":1,"source":"aggregator","event":"aggregator_stopped"}"#;
        let other = sums.take(EventLine::parse(started.to_owned()).unwrap());
        assert_eq!(shown(&other), ["1970-01-01T00:00:59.500Z  aggregator   aggregator_stopped"], "at once");
        assert_eq!(
            shown(&sums.take(guard("h1", 60_000, 1, 1.0))),
            [
                "1970-01-01T00:00:59.000Z  h1           guard_acted  allowance=50 %  foreground=150 %  freezes=2  \
                 reaction=10 ms  shrinks=5  (2 events in a minute)",
                "1970-01-01T00:00:01.500Z  h2           guard_acted  allowance=50 %  foreground=150 %  freezes=1  \
                 reaction=7 ms  shrinks=1  (1 event in a minute)",
            ]
        );
        assert!(sums.over(Timestamp(119_999)).is_empty());
        assert_eq!(sums.over(Timestamp(120_000)).len(), 1);
        assert!(sums.over(Timestamp(u64::MAX)).is_empty());
    }
}
