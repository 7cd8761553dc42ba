//! A few seeds of the whole system, on every change; ten thousand run in CI (`.ci/run`).
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use gleaner_whole_system::world;

const SEEDS: std::ops::Range<u64> = 100_000..100_060;

fn folder() -> tempfile::TempDir {
    let memory = std::path::Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

#[test]
fn every_rule_holds_under_faults() {
    println!("seeds {SEEDS:?}");
    for seed in SEEDS {
        let folder = folder();
        let outcome = world::run(seed, folder.path(), false).unwrap();
        assert!(outcome.checks > 500, "seed {seed} checked next to nothing");
        assert!(
            outcome.breaches.is_empty(),
            "seed {seed}: {}\nagain: cargo run -p gleaner-whole-system -- --seed {seed}",
            outcome.breaches.join("\n")
        );
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    for seed in SEEDS.take(3) {
        let (one, other) = (folder(), folder());
        let one = world::run(seed, one.path(), false).unwrap();
        let other = world::run(seed, other.path(), false).unwrap();
        assert_eq!((one.digest, one.lasted, one.checks), (other.digest, other.lasted, other.checks), "seed {seed}");
    }
}
