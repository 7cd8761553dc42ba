#![no_main]
//! Fuzz target: the agent's parsers of what device-mapper answers, and of dm-ioband's tables. In: any bytes. Out:
//! nothing; no input may make it panic. Started by `fuzz/run.sh`.
libfuzzer_sys::fuzz_target!(|data: &[u8]| gleaner_agent::fuzzing::device_mapper(data));
