#![no_main]
//! Fuzz target: lines of the event log. In: any bytes. Out: nothing; no input may make it panic, and an event that was
//! read is written and read again as it was. Started by `fuzz/run.sh`.
use gleaner_types::event::EventRecord;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(record) = EventRecord::from_json_line(text) {
        // What was read can be written and read again.
        let line = record.to_json_line().expect("an event is a line");
        assert_eq!(EventRecord::from_json_line(&line).expect("our own line"), record);
    }
});
