//! Entries for the fuzz targets: parsers of input from operators, agents, engines, sources of response times, etcd and
//! stored files. In: any bytes, or frames and documents made of them. Out: nothing; nothing may panic. Called by
//! `fuzz/fuzz_targets`.

use crate::{applications, engine, journal, response_times, standby};
use gleaner_api::{Request, SubmitCluster};
use gleaner_types::application::ApplicationSpec;
use gleaner_wire::ProtocolVersion;

/// Requests of the local API.
pub fn requests(data: &[u8]) {
    if let Ok(Request::Apply(spec)) = serde_json::from_slice(data) {
        _ = applications::check(&spec, std::iter::empty());
    }
    if let Ok(submit) = serde_json::from_slice::<SubmitCluster>(data)
        && let Ok(job) = "job".parse()
    {
        engine::fuzz_submission(&job, &submit);
    }
}

/// What an operator applies: an application, in JSON as it arrives.
pub fn application(spec: &ApplicationSpec) {
    _ = applications::check(spec, std::iter::empty());
}

/// Records of the journal, and what the controller makes of them.
pub fn journal(data: &[u8]) {
    journal::fuzz(data);
}

/// What engines say, and records of tasks.
pub fn engines(data: &[u8]) {
    engine::fuzz(data);
}

/// Frames of an agent, in a version of the protocol: the server's decoding and checks, what the controller makes of them,
/// and what operators and monitoring are then told.
pub fn agent(version: ProtocolVersion, frames: &[Vec<u8>]) {
    crate::server::hostile::take_all(version, frames);
}

/// What sources of response times say.
pub fn response_times(data: &[u8]) {
    response_times::fuzz(data);
}

/// Answers of etcd, and a state from it.
pub fn etcd(data: &[u8]) {
    standby::fuzz(data);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use gleaner_daemon::config::Source;
    use gleaner_test_support::generate::{Entropy, of_agent};
    use gleaner_test_support::kept::replay;

    use super::*;

    #[test]
    fn kept_inputs_and_mutations_of_them_make_nothing_panic() {
        replay("requests", requests);
        replay("journal", journal);
        replay("engines", engines);
        replay("response_times", response_times);
        replay("etcd", etcd);
        replay("config", |data| {
            let text = String::from_utf8_lossy(data);
            _ = crate::config::Config::from_source(&Source::from_text(Path::new("kept.toml"), &text));
        });
        replay("documents", |data| {
            if let Ok(spec) = serde_json::from_slice(data) {
                application(&spec);
            }
        });
        replay("agents", |data| {
            let mut entropy = Entropy::of_bytes(data);
            let version = ProtocolVersion::SUPPORTED[entropy.below(2)];
            let mut frames = Vec::new();
            while entropy.is_left() && frames.len() < 16 {
                let kind = entropy.below(256);
                if let Some(Ok(framed)) = of_agent(kind, version, &mut entropy) {
                    frames.push(framed.altered_by(&mut entropy));
                }
            }
            agent(version, &frames);
        });
    }
}
