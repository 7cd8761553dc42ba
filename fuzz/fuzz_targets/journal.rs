#![no_main]
//! Fuzz target: records of the journal, and what the controller makes of them. In: any bytes. Out: nothing; no input
//! may make it panic. Started by `fuzz/run.sh`.
libfuzzer_sys::fuzz_target!(|data: &[u8]| gleaner_aggregator::fuzzing::journal(data));
