//! The golden bytes of every message of every version: they must decode to the same message, and encode to the same
//! bytes, for ever.
//!
//! `golden/vN/NAME.bin` is a frame as version N sends it, `NAME.json` its content. With `GLEANER_WRITE_GOLDEN=1` the
//! files that are missing are written; an existing file is never changed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops where it fails")]

mod golden_samples;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use gleaner_wire::{
    FromAgent, FromAggregator, FromJoiner, Message, ProtocolVersion, ToJoiner, Unknowns, decode, encode,
};
use golden_samples::{Sample, of_version_1, of_version_2};
use serde_json::{Value, json};

fn encoded(version: ProtocolVersion, sample: &Sample) -> Vec<u8> {
    match sample {
        Sample::FromAgent(message) => encode(version, message),
        Sample::FromAggregator(message) => encode(version, message),
        Sample::FromJoiner(message) => encode(version, message),
        Sample::ToJoiner(message) => encode(version, message),
    }
    .unwrap()
}

fn whole<M: Message>(version: ProtocolVersion, bytes: &[u8]) -> M {
    let mut unknown = Unknowns::default();
    let (message, used) = decode(version, bytes, &mut unknown).unwrap().unwrap();
    assert_eq!((used, unknown), (bytes.len(), Unknowns::default()));
    message
}

/// The message of a file, by the direction in its name.
fn decoded(version: ProtocolVersion, name: &str, bytes: &[u8]) -> Sample {
    match name.split_once('.').unwrap().0 {
        "from_agent" => Sample::FromAgent(whole(version, bytes)),
        "from_aggregator" => Sample::FromAggregator(whole(version, bytes)),
        "from_joiner" => Sample::FromJoiner(whole(version, bytes)),
        "to_joiner" => Sample::ToJoiner(whole(version, bytes)),
        other => panic!("{other} is no direction"),
    }
}

fn readable(sample: &Sample) -> Value {
    match sample {
        Sample::FromAgent(FromAgent::Hello(hello)) => json!({ "hello": hello }),
        Sample::FromAgent(FromAgent::Report(report)) => json!({ "report": report }),
        Sample::FromAgent(FromAgent::Ack(ack)) => json!({ "ack": ack }),
        Sample::FromAgent(FromAgent::Events(events)) => json!({ "events": events.events }),
        Sample::FromAgent(FromAgent::Tasks(states)) => json!({ "tasks": states.states }),
        Sample::FromAgent(FromAgent::Guests(names)) if names.unmatched.is_empty() => json!({ "guests": names.guests }),
        Sample::FromAgent(FromAgent::Guests(names)) => json!({ "guests": names.guests, "unmatched": names.unmatched }),
        Sample::FromAgent(FromAgent::CertificateRequest(der)) => json!({ "certificate_request": der }),
        Sample::FromAggregator(FromAggregator::Welcome(welcome)) => json!({ "welcome": welcome }),
        Sample::FromAggregator(FromAggregator::Refused(reason)) => json!({ "refused": reason }),
        Sample::FromAggregator(FromAggregator::Command(command)) => json!({ "command": command }),
        Sample::FromAggregator(FromAggregator::EventsThrough(number)) => json!({ "events_through": number }),
        Sample::FromAggregator(FromAggregator::StandsBy(stands_by)) => json!({ "stands_by": stands_by }),
        Sample::FromAggregator(FromAggregator::TaskJob(job)) => json!({ "task_job": job }),
        Sample::FromAggregator(FromAggregator::Tasks(orders)) => json!({ "tasks": orders }),
        Sample::FromAggregator(FromAggregator::Certificate(pem)) => json!({ "certificate": pem }),
        Sample::FromAggregator(FromAggregator::CertificateRefused(reason)) => json!({ "certificate_refused": reason }),
        Sample::FromJoiner(FromJoiner::Join(request)) => json!({ "join": request }),
        Sample::ToJoiner(ToJoiner::Joined(pem)) => json!({ "joined": pem }),
        Sample::ToJoiner(ToJoiner::Refused(reason)) => json!({ "refused": reason }),
        unknown => panic!("{unknown:?} is no golden message"),
    }
}

/// What a message says in a version: the first says nothing of harm, and what was appended to a block is not there at its
/// default.
fn expected_json(version: ProtocolVersion, sample: &Sample) -> Value {
    let mut expected_json = readable(sample);
    if let Some(harm) = expected_json.pointer_mut("/report/harm").and_then(Value::as_object_mut) {
        for appended in ["protection", "scheduling_points", "cpi"] {
            if harm.get(appended) == Some(&Value::Null) {
                harm.remove(appended);
            }
        }
    }
    if let Some(workloads) = expected_json.pointer_mut("/report/workloads").and_then(Value::as_array_mut) {
        for workload in workloads.iter_mut().filter_map(Value::as_object_mut) {
            if workload.get("cache_occupancy") == Some(&Value::Null) {
                workload.remove("cache_occupancy");
            }
        }
    }
    if let Some(residual) = expected_json.pointer_mut("/report/residual").and_then(Value::as_object_mut)
        && residual.get("windows") == Some(&Value::Null)
    {
        residual.remove("windows");
    }
    if version == ProtocolVersion::V1
        && let Some(report) = expected_json.get_mut("report").and_then(Value::as_object_mut)
    {
        report.remove("harm");
    }
    expected_json
}

fn folder(version: ProtocolVersion) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(format!("v{version}"))
}

fn write_missing(version: ProtocolVersion, folder: &Path, samples: &[(String, Sample)]) {
    std::fs::create_dir_all(folder).unwrap();
    for (name, sample) in samples {
        let json = serde_json::to_string_pretty(&expected_json(version, sample)).unwrap() + "\n";
        for (file, content) in
            [(format!("{name}.bin"), encoded(version, sample)), (format!("{name}.json"), json.into_bytes())]
        {
            let file = folder.join(file);
            if !file.exists() {
                std::fs::write(file, content).unwrap();
            }
        }
    }
}

fn check(version: ProtocolVersion, samples: &[(String, Sample)]) {
    let folder = folder(version);
    if std::env::var_os("GLEANER_WRITE_GOLDEN").is_some() {
        write_missing(version, &folder, samples);
    }
    let files: BTreeSet<String> = std::fs::read_dir(&folder)
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str().unwrap().strip_suffix(".bin").map(str::to_owned))
        .collect();
    let names: BTreeSet<String> = samples.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(files, names, "one golden file for each message");
    for (name, expected) in samples {
        let bytes = std::fs::read(folder.join(format!("{name}.bin"))).unwrap();
        let message = decoded(version, name, &bytes);
        assert_eq!(&message, expected, "v{version}/{name}");
        assert_eq!(encoded(version, &message), bytes, "v{version}/{name} is sent as it was");
        let expected = std::fs::read_to_string(folder.join(format!("{name}.json"))).unwrap();
        let expected: Value = serde_json::from_str(&expected).unwrap();
        assert_eq!(expected_json(version, &message), expected, "v{version}/{name}");
    }
}

#[test]
fn version_1_is_understood_and_sent_as_ever() {
    check(ProtocolVersion::V1, &of_version_1());
}

#[test]
fn version_2_is_understood_and_sent_as_ever() {
    check(ProtocolVersion::V2, &of_version_2());
}
