#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| gleaner_aggregator::fuzzing::response_times(data));
