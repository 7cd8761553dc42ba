#![no_main]
//! Fuzz target: what a hostile aggregator does to a host, mostly in messages that follow the protocol. In: any bytes, from
//! which the types make the messages. Out: nothing; the agent may not panic, go below the host's floors, change what is no
//! lever, keep a knob or lose an event. Started by `fuzz/run.sh`.
use gleaner_test_support::generate::Entropy;
use gleaner_whole_system::hostile::{play, steps::steps};
use gleaner_wire::ProtocolVersion;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut entropy = Entropy::of_bytes(data);
    let version = ProtocolVersion::SUPPORTED[entropy.below(2)];
    let steps = steps(version, &mut entropy);
    let memory = std::path::Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let folder = tempfile::tempdir_in(parent).expect("a folder for the host's files");
    if let Err(error) = play(folder.path(), version, &steps) {
        panic!("the simulated host cannot be used: {error:#}");
    }
});
