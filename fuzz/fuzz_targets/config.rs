#![no_main]
//! Fuzz target: the config files of both daemons. In: any bytes. Out: nothing; no input may make it panic. Started by
//! `fuzz/run.sh`.
use std::path::Path;

use gleaner_daemon::config::Source;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let source = Source::from_text(Path::new("fuzz.toml"), text);
    _ = gleaner_agent::config::Config::from_source(&source);
    _ = gleaner_aggregator::config::Config::from_source(&source);
});
