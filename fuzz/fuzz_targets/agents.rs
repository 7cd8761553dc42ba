#![no_main]
//! Fuzz target: messages of an agent that follow the protocol, with any numbers in them. In: any bytes, from which the
//! types make the messages. Out: nothing; no input may make it panic. Started by `fuzz/run.sh`.
use gleaner_test_support::generate::{Entropy, of_agent};
use gleaner_wire::ProtocolVersion;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut entropy = Entropy::of_bytes(data);
    let version = ProtocolVersion::SUPPORTED[entropy.below(2)];
    let mut frames = Vec::new();
    while entropy.is_left() && frames.len() < 16 {
        let kind = entropy.below(256);
        if let Some(Ok(framed)) = of_agent(kind, version, &mut entropy) {
            frames.push(framed.altered_by(&mut entropy));
        }
    }
    gleaner_aggregator::fuzzing::agent(version, &frames);
});
