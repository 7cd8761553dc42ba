#![no_main]
//! Fuzz target: the agent's parsers of cgroup files. In: any bytes. Out: nothing; no input may make it panic. Started
//! by `fuzz/run.sh`.
libfuzzer_sys::fuzz_target!(|data: &[u8]| gleaner_agent::fuzzing::cgroup_files(data));
