//! The golden bytes of every message of every version: what was sent once is understood for ever, and sent alike.
//!
//! `golden/vN/NAME.bin` is a frame as version N sends it, `NAME.json` what it says. With `GLEANER_WRITE_GOLDEN=1` the
//! files that are missing are written; one that is there is never changed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops where it fails")]

mod golden_samples;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use gleaner_wire::{FromAgent, FromAggregator, FromJoiner, ToJoiner, decode, encode};
use golden_samples::{Sample, of_version_1};
use serde_json::{Value, json};

fn encoded(sample: &Sample) -> Vec<u8> {
    match sample {
        Sample::FromAgent(message) => encode(message),
        Sample::FromAggregator(message) => encode(message),
        Sample::FromJoiner(message) => encode(message),
        Sample::ToJoiner(message) => encode(message),
    }
    .unwrap()
}

/// The message of a file, by the direction in its name.
fn decoded(name: &str, bytes: &[u8]) -> Sample {
    fn whole<M>(decoded: Option<(M, usize)>, bytes: &[u8]) -> M {
        let (message, used) = decoded.unwrap();
        assert_eq!(used, bytes.len());
        message
    }
    match name.split_once('.').unwrap().0 {
        "from_agent" => Sample::FromAgent(whole(decode::<FromAgent>(bytes).unwrap(), bytes)),
        "from_aggregator" => Sample::FromAggregator(whole(decode::<FromAggregator>(bytes).unwrap(), bytes)),
        "from_joiner" => Sample::FromJoiner(whole(decode::<FromJoiner>(bytes).unwrap(), bytes)),
        "to_joiner" => Sample::ToJoiner(whole(decode::<ToJoiner>(bytes).unwrap(), bytes)),
        other => panic!("{other} is no direction"),
    }
}

fn readable(sample: &Sample) -> Value {
    match sample {
        Sample::FromAgent(FromAgent::Hello(hello)) => json!({ "hello": hello }),
        Sample::FromAgent(FromAgent::Report(report)) => json!({ "report": report }),
        Sample::FromAgent(FromAgent::Ack(ack)) => json!({ "ack": ack }),
        Sample::FromAgent(FromAgent::Events(events)) => json!({ "events": events.events }),
        Sample::FromAgent(FromAgent::CertificateRequest(der)) => json!({ "certificate_request": der }),
        Sample::FromAggregator(FromAggregator::Welcome(welcome)) => json!({ "welcome": welcome }),
        Sample::FromAggregator(FromAggregator::Refused(reason)) => json!({ "refused": reason }),
        Sample::FromAggregator(FromAggregator::Command(command)) => json!({ "command": command }),
        Sample::FromAggregator(FromAggregator::EventsThrough(number)) => json!({ "events_through": number }),
        Sample::FromAggregator(FromAggregator::StandsBy(stands_by)) => json!({ "stands_by": stands_by }),
        Sample::FromAggregator(FromAggregator::Certificate(pem)) => json!({ "certificate": pem }),
        Sample::FromAggregator(FromAggregator::CertificateRefused(reason)) => json!({ "certificate_refused": reason }),
        Sample::FromJoiner(FromJoiner::Join(request)) => json!({ "join": request }),
        Sample::ToJoiner(ToJoiner::Joined(pem)) => json!({ "joined": pem }),
        Sample::ToJoiner(ToJoiner::Refused(reason)) => json!({ "refused": reason }),
    }
}

fn folder(version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(version)
}

fn write_missing(folder: &Path, samples: &[(String, Sample)]) {
    std::fs::create_dir_all(folder).unwrap();
    for (name, sample) in samples {
        let json = serde_json::to_string_pretty(&readable(sample)).unwrap() + "\n";
        for (file, content) in [(format!("{name}.bin"), encoded(sample)), (format!("{name}.json"), json.into_bytes())] {
            let file = folder.join(file);
            if !file.exists() {
                std::fs::write(file, content).unwrap();
            }
        }
    }
}

fn check(version: &str, samples: &[(String, Sample)]) {
    let folder = folder(version);
    if std::env::var_os("GLEANER_WRITE_GOLDEN").is_some() {
        write_missing(&folder, samples);
    }
    let files: BTreeSet<String> = std::fs::read_dir(&folder)
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str().unwrap().strip_suffix(".bin").map(str::to_owned))
        .collect();
    let names: BTreeSet<String> = samples.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(files, names, "one golden file for each message");
    for (name, expected) in samples {
        let bytes = std::fs::read(folder.join(format!("{name}.bin"))).unwrap();
        let message = decoded(name, &bytes);
        assert_eq!(&message, expected, "{version}/{name}");
        assert_eq!(encoded(&message), bytes, "{version}/{name} is sent as it was");
        let said = std::fs::read_to_string(folder.join(format!("{name}.json"))).unwrap();
        let said: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(readable(&message), said, "{version}/{name}");
    }
}

#[test]
fn version_1_is_understood_and_sent_as_ever() {
    check("v1", &of_version_1());
}
