#![no_main]
use gleaner_net::join::JoinToken;
use gleaner_wire::{FromAgent, FromAggregator, FromJoiner, ToJoiner, decode};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    _ = decode::<FromAgent>(data);
    _ = decode::<FromAggregator>(data);
    _ = decode::<FromJoiner>(data);
    _ = decode::<ToJoiner>(data);
    _ = std::str::from_utf8(data).map(JoinToken::from_text);
});
