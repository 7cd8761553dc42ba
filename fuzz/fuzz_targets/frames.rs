#![no_main]
use gleaner_common::wire::{FromAgent, FromAggregator, decode};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    _ = decode::<FromAgent>(data);
    _ = decode::<FromAggregator>(data);
});
