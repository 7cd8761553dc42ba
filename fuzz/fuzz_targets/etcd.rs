#![no_main]
//! Fuzz target: what etcd answers, and a state of the aggregator from it. In: any bytes. Out: nothing; no input may
//! make it panic. Started by `fuzz/run.sh`.
libfuzzer_sys::fuzz_target!(|data: &[u8]| gleaner_aggregator::fuzzing::etcd(data));
