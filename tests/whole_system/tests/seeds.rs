//! A few seeds of the whole system, on every change; a thousand run in `cargo xtask ci`, ten thousand by `cargo xtask
//! seeds`.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::path::{Path, PathBuf};

use gleaner_whole_system::world;

const SEEDS: std::ops::Range<u64> = 100_000..100_060;

fn folder() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}

#[test]
fn every_rule_holds_under_faults() {
    println!("seeds {SEEDS:?}");
    let (mut tried, mut changed, mut tightened) = (0, 0, 0);
    for seed in SEEDS {
        let outcome = world::run(seed, &folder(), false).unwrap();
        assert!(outcome.checks > 500, "seed {seed} checked next to nothing");
        changed += u32::from(outcome.followed.changes > 0);
        tightened += u32::from(outcome.followed.tightened > 0);
        match outcome.untried.is_empty() {
            true => tried += 1,
            false => println!("seed {seed}: {}", outcome.untried.join(", ")),
        }
        assert!(
            outcome.breaches.is_empty(),
            "seed {seed}: {}\nagain: cargo run -p gleaner-whole-system -- --seed {seed}",
            outcome.breaches.join("\n")
        );
    }
    println!("{tried} seeds had limits and a volunteer in force, and every kind of knob written and put back");
    println!("harm changed a posture in {changed} seeds, and tightened one in {tightened}");
    assert!(tightened >= 4, "in {tightened} of 60 seeds alone a posture was tightened");
    assert!(tried >= 42, "in {tried} of 60 seeds alone something was tried");
}

/// The event log to the letter included, in whatever folder.
#[test]
fn equal_seeds_give_equal_runs() {
    let other_folder = tempfile::tempdir_in(folder()).unwrap();
    for seed in SEEDS.take(20) {
        let one = world::run(seed, &folder(), false).unwrap();
        let other = world::run(seed, other_folder.path(), false).unwrap();
        assert_eq!((one.digest, one.lasted, one.checks), (other.digest, other.lasted, other.checks), "seed {seed}");
        assert_eq!(one.followed, other.followed, "seed {seed}");
    }
}
