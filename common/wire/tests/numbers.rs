//! Every number of every message, in both versions, is replaced by a value that no host has. Each is refused by its
//! field's name, or is one that is harmless with any value.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops where it fails")]

use std::collections::{BTreeMap, BTreeSet};

use gleaner_test_support::generate::{Altered, Entropy, Framed, OF_AGENTS, of_agent, of_aggregator};
use gleaner_wire::{FrameError, FromAgent, FromAggregator, Message, ProtocolVersion, Unknowns, decode};

/// Numbers that are taken although they look implausible, by the path to each. Whole ones that are shown, compared with one another, or bound a
/// wait that has bounds of its own; percentages of harm, which are negative where the foreground was faster.
const HARMLESS: [&str; 11] = [
    "event.high_percent",
    "event.knobs_restored",
    "event.low_percent",
    "event.mean_percent",
    "event.spare_cpus",
    "harm.foreground.low_percent",
    "harm.foreground.trials",
    "harm.workloads.harm.low_percent",
    "harm.workloads.harm.trials",
    "lease_ms",
    "volunteer.processes",
];

type Made = Option<Result<Framed, FrameError>>;

/// What became of the altered numbers, by the path to each.
#[derive(Default)]
struct Tally {
    refused: BTreeMap<String, BTreeSet<&'static str>>,
    taken: BTreeSet<String>,
}

fn alter<M: Message + std::fmt::Debug>(version: ProtocolVersion, made: Made, tally: &mut Tally) {
    // Not every variant can be said in each version, and not everything that is generated is valid.
    let Some(Ok(framed)) = made else { return };
    let read = |frame: &[u8]| decode::<M>(version, frame, &mut Unknowns::default());
    read(&framed.frame).expect("what is valid is taken");
    for altered in framed.altered() {
        let Altered { frame, path, number } = &altered;
        match read(frame) {
            Ok(_) => {
                assert!(HARMLESS.contains(&path.as_str()), "version {version}: {path} = {number} is taken");
                tally.taken.insert(path.clone());
            }
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains(altered.field()), "{path} = {number}: {error}");
                tally.refused.entry(path.clone()).or_default().insert(number);
            }
        }
    }
}

#[test]
fn no_number_is_taken_that_is_not_plausible() {
    for version in ProtocolVersion::SUPPORTED {
        let mut tally = Tally::default();
        for seed in 0..400 {
            for kind in 0..OF_AGENTS {
                alter::<FromAgent>(version, of_agent(kind, version, &mut Entropy::of_seed(seed)), &mut tally);
                alter::<FromAggregator>(version, of_aggregator(kind, version, &mut Entropy::of_seed(seed)), &mut tally);
            }
        }
        let (refused, taken) = (&tally.refused, &tally.taken);
        eprintln!("version {version}: {} numbers refused, {taken:?} harmless", refused.len());
        let all = |numbers: &[&str], path: &str| numbers.iter().all(|number| refused[path].contains(number));
        let floats = ["NaN", "inf", "-inf", "-1", "1.7e308", "1e16"];
        for path in [
            "interval_s",
            "machine.cpu_capacity",
            "machine.load_1min",
            "machine.disks.read",
            "workloads.instructions",
            "volunteer.cpu",
            "residual.cpu.expected",
            "residual.cpu.safe",
            "residual.lookahead_s",
            "residual.history_s",
            "event.reaction_ms",
            "event.again_in_s",
        ] {
            assert!(all(&floats, path), "version {version}: {path}: {:?}", refused.get(path));
        }
        for path in
            ["facts.memory", "machine.memory_total", "residual.memory.safe", "sequence", "at", "now", "incarnation"]
        {
            assert!(all(&["2^64-1", "2^63", "2^62"], path), "version {version}: {path}: {:?}", refused.get(path));
        }
        assert!(refused.contains_key("facts.cores"), "{:?}", refused.keys());
        assert!(refused.len() > 60, "{:?}", refused.keys());
    }
}
