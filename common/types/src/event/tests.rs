//! Tests of events: every one is a line that is read again, and is described in docs/events.md.

use super::*;

#[test]
fn a_line_reads_back_as_the_same_record() {
    let records = [
        EventRecord {
            at: Timestamp(1_795_132_799_123),
            source: EventSource::Aggregator,
            event: Event::AggregatorStopped {},
        },
        EventRecord {
            at: Timestamp(7),
            source: EventSource::Agent { host: HostId::new("h1").unwrap(), incarnation: 3, sequence: 9 },
            event: Event::ForeignWrite { knob: "cpu.max".into(), expected: "1".into(), found: "2".into() },
        },
    ];
    for record in records {
        let line = record.to_json_line().unwrap();
        assert!(!line.contains('\n'));
        assert_eq!(EventRecord::from_json_line(&line).unwrap(), record, "{line}");
    }
}

#[test]
fn a_line_says_when_it_was_logged_if_that_is_not_its_own_time() {
    let own = EventRecord { at: Timestamp(7), source: EventSource::Aggregator, event: Event::AggregatorStopped {} };
    let source = EventSource::Agent { host: HostId::new("h1").unwrap(), incarnation: 3, sequence: 9 };
    let agents = EventRecord { source, ..own.clone() };
    for (record, logged, says) in [(&own, 7, false), (&own, 8, true), (&agents, 7, true), (&agents, 8, true)] {
        let line = record.to_logged_line(Timestamp(logged)).unwrap();
        assert_eq!(line.contains("\"logged_ms\""), says, "{line}");
        assert_eq!(EventStamp::from_json_line(&line).unwrap().logged, Some(Timestamp(logged)), "{line}");
        assert_eq!(EventRecord::from_json_line(&line).unwrap(), *record, "{line}");
    }
    assert_eq!(EventStamp::from_json_line(&agents.to_json_line().unwrap()).unwrap().logged, None);
}

#[test]
fn a_line_is_harmless_whatever_a_peer_says() {
    let reason = "\u{9b}2J\u{202e}\u{2028}\n\u{1b}[31m".to_owned();
    let event = Event::HostLost { host: HostId::new("h1").unwrap(), reason };
    let record = EventRecord { at: Timestamp(7), source: EventSource::Aggregator, event };
    let line = record.to_json_line().unwrap();
    assert!(line.chars().all(crate::text::is_harmless), "{line:?}");
    assert_eq!(EventRecord::from_json_line(&line).unwrap(), record);
}

#[test]
fn no_event_field_hides_a_field_of_the_record() {
    // `host` and `job` are event fields; the record's own names must stay apart from them.
    let event = Event::HostLost { host: HostId::new("h1").unwrap(), reason: "silent".into() };
    let record = EventRecord { at: Timestamp(7), source: EventSource::Aggregator, event };
    let line = record.to_json_line().unwrap();
    let value: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(value["event"], "host_lost");
    assert_eq!(value["host"], "h1");
    assert_eq!(value["source"], "aggregator");
}

/// The names by which serde knows the variants: an unknown one makes it list them all.
fn names() -> Vec<String> {
    let error = serde_json::from_str::<Event>(r#"{"no_such_event":{}}"#).unwrap_err().to_string();
    let list = error.split_once("expected one of ").unwrap().1;
    list.split('`')
        .filter(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
        .map(str::to_owned)
        .filter(|w| !w.is_empty())
        .collect()
}

#[test]
fn every_event_is_documented() {
    let docs = include_str!("../../../../docs/events.md");
    let names = names();
    assert!(names.len() > 25, "{names:?}");
    for name in names {
        assert!(docs.contains(&format!("| `{name}` |")), "docs/events.md does not describe {name}");
    }
}

#[test]
fn a_newer_versions_fields_are_left_out_and_its_events_have_a_stamp() {
    let known = r#"{"at_ms":5,"format":1,"source":"aggregator","event":"aggregator_stopped","why":["tidy"]}"#;
    let record = EventRecord::from_json_line(known).unwrap();
    let newer = known.replace("\"format\":1", "\"format\":7");
    assert!(matches!(EventStamp::from_json_line(&newer), Err(EventLineError::Newer(format)) if format.is_newer()));
    assert_eq!((record.at, record.event), (Timestamp(5), Event::AggregatorStopped {}));
    let new = r#"{"at_ms":6,"source":"agent","agent":"h1","incarnation":2,"sequence":3,"event":"host_dreams","of":1}"#;
    assert!(EventRecord::from_json_line(new).is_err());
    let source = EventSource::Agent { host: HostId::new("h1").unwrap(), incarnation: 2, sequence: 3 };
    assert_eq!(EventStamp::from_json_line(new).unwrap(), EventStamp { at: Timestamp(6), logged: None, source });
    for bad in ["", "[]", "{}", r#"{"at_ms":1,"source":"aggregator"}"#] {
        assert!(EventStamp::from_json_line(bad).is_err(), "{bad}");
    }
}

#[test]
fn refuses_what_is_not_an_event() {
    let nonsense = r#"{"at_ms":1,"source":"aggregator","event":"nonsense"}"#;
    for bad in ["", "[]", "{}", r#"{"at_ms":1,"source":"aggregator"}"#, nonsense] {
        assert!(EventRecord::from_json_line(bad).is_err(), "{bad}");
    }
}
