#![no_main]
//! Fuzz target: the agent's parser of what the helper for Xen answers. In: any bytes. Out: nothing; no input may make
//! it panic. Started by `fuzz/run.sh`.
libfuzzer_sys::fuzz_target!(|data: &[u8]| gleaner_agent::fuzzing::xen(data));
