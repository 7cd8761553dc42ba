#![no_main]
//! Fuzz target: what sources of response times say. In: any bytes. Out: nothing; no input may make it panic. Started by
//! `fuzz/run.sh`.
libfuzzer_sys::fuzz_target!(|data: &[u8]| gleaner_aggregator::fuzzing::response_times(data));
