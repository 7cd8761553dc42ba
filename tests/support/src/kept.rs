//! Kept inputs of the fuzz targets (`fuzz/seeds`), run again in ordinary tests. In: a target's name and its entry. Out: a panic
//! where an input makes the entry panic. Called by the tests of the crates that have entries.

use std::path::Path;

use crate::generate::Entropy;
use crate::lab;

/// Mutations of each kept input. Chosen: together they take seconds.
const MUTATIONS: u64 = 100;
/// Longest input, as for the fuzz targets.
const LONGEST: usize = 4096;

/// Runs every kept input of a target, and mutations of it: the same in each run. In a booted host, which has no repository, there
/// are none; the machine that booted it runs them.
pub fn replay(target: &str, mut entry: impl FnMut(&[u8])) {
    if lab::inside() {
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    for file in files {
        let input = std::fs::read(&file).unwrap();
        for seed in 0..MUTATIONS {
            let mutated = if seed == 0 { input.clone() } else { mutated(&input, seed) };
            let run = std::panic::AssertUnwindSafe(|| entry(&mutated));
            if let Err(panic) = std::panic::catch_unwind(run) {
                eprintln!("{}, mutation {seed}: {:?}", file.display(), String::from_utf8_lossy(&mutated));
                std::panic::resume_unwind(panic);
            }
        }
    }
}

/// The input with a few bytes changed, left out, repeated or put elsewhere.
fn mutated(input: &[u8], seed: u64) -> Vec<u8> {
    let mut entropy = Entropy::of_seed(seed);
    let mut bytes = input.to_vec();
    for _ in 0..=entropy.below(4) {
        // One draw has 256 choices at most.
        let at = (256 * entropy.below(256) + entropy.below(256)) % (bytes.len() + 1);
        let to = (at + entropy.below(32)).min(bytes.len());
        match entropy.below(5) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..to)),
            2 => bytes.splice(at..at, bytes[at..to].to_vec()).for_each(drop),
            3 => bytes[at..to].iter_mut().for_each(|byte| *byte = any_byte(&mut entropy)),
            _ => bytes.extend((0..entropy.below(16)).map(|_| any_byte(&mut entropy))),
        }
    }
    bytes.truncate(LONGEST);
    bytes
}

fn any_byte(entropy: &mut Entropy<'_>) -> u8 {
    u8::try_from(entropy.below(256)).unwrap_or_default()
}
