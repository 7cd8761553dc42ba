#![no_main]
use std::path::Path;

use gleaner_agent::config::Config;
use gleaner_common::config::Source;
use gleaner_common::event::EventRecord;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    _ = Config::from_source(&Source::from_text(Path::new("fuzz.toml"), text));
    _ = EventRecord::from_json_line(text);
});
