#![no_main]
//! Fuzz target: frames of every message in both versions of the protocol, and join tokens. In: any bytes. Out: nothing;
//! no input may make it panic. Started by `fuzz/run.sh`.
use gleaner_net::join::JoinToken;
use gleaner_wire::{FromAgent, FromAggregator, FromJoiner, ProtocolVersion, ToJoiner, Unknowns, decode, versions_in_words};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut unknown = Unknowns::default();
    for version in ProtocolVersion::SUPPORTED {
        _ = decode::<FromAgent>(version, data, &mut unknown);
        _ = decode::<FromAggregator>(version, data, &mut unknown);
        _ = decode::<FromJoiner>(version, data, &mut unknown);
        _ = decode::<ToJoiner>(version, data, &mut unknown);
    }
    _ = versions_in_words(data);
    _ = std::str::from_utf8(data).map(JoinToken::from_text);
});
