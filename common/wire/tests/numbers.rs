//! Every number of every message, in both versions, is replaced by a value that no host has. Each is refused by its
//! field's name, or is one that is harmless with any value.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops where it fails")]

use std::collections::{BTreeMap, BTreeSet};

use gleaner_test_support::generate::{
    Altered, Choice, Entropy, Framed, OF_AGENTS, OF_AGGREGATORS, choices_of_agent, choices_of_aggregator, of_agent,
    of_aggregator,
};
use gleaner_wire::{FrameError, FromAgent, FromAggregator, Message, ProtocolVersion, Unknowns, decode};

/// Numbers that are taken although they look implausible, by the path to each. Whole ones that are shown, compared with one another, or bound a
/// wait that has bounds of its own; which task it is; users, of whom the one number that is none is refused when the task is started; percentages of harm, which are negative where the foreground was faster.
const HARMLESS: [&str; 22] = [
    "event.high_percent",
    "event.knobs_restored",
    "event.low_percent",
    "event.mean_percent",
    "event.spare_cpus",
    "guests.pid",
    "harm.cpi.foreground.low_percent",
    "harm.cpi.foreground.trials",
    "harm.cpi.workloads.harm.low_percent",
    "harm.cpi.workloads.harm.trials",
    "harm.foreground.low_percent",
    "harm.foreground.trials",
    "harm.workloads.harm.low_percent",
    "harm.workloads.harm.trials",
    "lease_ms",
    "orders.attempt.task",
    "orders.desired.attempt",
    "states.attempt.task",
    "tasks",
    "user.gid",
    "user.uid",
    "volunteer.processes",
];

type Made = Option<Result<Framed, FrameError>>;

/// What became of the altered numbers, by the path to each.
#[derive(Default)]
struct Tally {
    refused: BTreeMap<String, BTreeSet<&'static str>>,
    taken: BTreeSet<String>,
    wrong: BTreeSet<String>,
}

impl Tally {
    /// A message has numbers that were not altered yet; all paths go to `all`.
    fn lacks(&self, made: &Made, all: &mut BTreeSet<String>) -> bool {
        let Some(Ok(framed)) = made else { return false };
        all.extend(framed.paths().map(str::to_owned));
        framed.paths().any(|path| !self.refused.contains_key(path) && !self.taken.contains(path))
    }
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
                if !HARMLESS.contains(&path.as_str()) {
                    tally.wrong.insert(format!("version {version}: {path} = {number} is taken"));
                }
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

/// Seeds of which everything comes that a message can hold.
const SEEDS: u64 = 18_000;

/// Seeds whose messages are altered.
const ALTERED: u64 = 600;

/// Everything that a message can hold is made by some seed, whether a version can say it or not.
#[test]
fn every_variant_and_every_optional_field_is_made() {
    let mut made: BTreeMap<String, (&[&str], BTreeSet<&str>)> = BTreeMap::new();
    let mut count = |message: &str, choices: Option<Vec<Choice>>| {
        for Choice { path, all, chosen } in choices.into_iter().flatten() {
            made.entry(format!("{message}: {path}")).or_insert((all, BTreeSet::new())).1.insert(chosen);
        }
    };
    for seed in 0..SEEDS {
        for kind in 0..OF_AGENTS {
            count(&format!("agent's {kind}"), choices_of_agent(kind, &mut Entropy::of_seed(seed)));
        }
        for kind in 0..OF_AGGREGATORS {
            count(&format!("aggregator's {kind}"), choices_of_aggregator(kind, &mut Entropy::of_seed(seed)));
        }
    }
    let missing = |(path, (all, chosen)): (&String, &(&[&str], BTreeSet<&str>))| {
        let missing: Vec<&str> = all.iter().copied().filter(|name| !chosen.contains(name)).collect();
        (!missing.is_empty()).then(|| format!("{path}: {missing:?}"))
    };
    let missing: Vec<String> = made.iter().filter_map(missing).collect();
    assert!(missing.is_empty(), "never made:\n{}", missing.join("\n"));
}

#[test]
fn no_number_is_taken_that_is_not_plausible() {
    for version in ProtocolVersion::SUPPORTED {
        let mut tally = Tally::default();
        for seed in 0..ALTERED {
            for kind in 0..OF_AGENTS {
                alter::<FromAgent>(version, of_agent(kind, version, &mut Entropy::of_seed(seed)), &mut tally);
            }
            for kind in 0..OF_AGGREGATORS {
                alter::<FromAggregator>(version, of_aggregator(kind, version, &mut Entropy::of_seed(seed)), &mut tally);
            }
        }
        // What is rarely in a message: where a number was not altered so far, that message is. An older version leaves out what
        // came later.
        let mut all = BTreeSet::new();
        for seed in (0..SEEDS).filter(|_| version == ProtocolVersion::CURRENT) {
            let entropy = || Entropy::of_seed(seed);
            for kind in 0..OF_AGENTS {
                if tally.lacks(&of_agent(kind, version, &mut entropy()), &mut all) {
                    alter::<FromAgent>(version, of_agent(kind, version, &mut entropy()), &mut tally);
                }
            }
            for kind in 0..OF_AGGREGATORS {
                if tally.lacks(&of_aggregator(kind, version, &mut entropy()), &mut all) {
                    alter::<FromAggregator>(version, of_aggregator(kind, version, &mut entropy()), &mut tally);
                }
            }
        }
        assert!(tally.wrong.is_empty(), "{:#?}", tally.wrong);
        let (refused, taken) = (&tally.refused, &tally.taken);
        all.retain(|path| !refused.contains_key(path) && !taken.contains(path));
        assert!(all.is_empty(), "version {version}: never altered: {all:#?}");
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
