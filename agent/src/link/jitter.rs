//! Pauses that differ from agent to agent. In: a pause. Out: one somewhat shorter. Called by the link and the renewal.

use std::time::Duration;

/// Between half and all of a pause, so that a fleet does not come back as one.
pub(super) fn jittered(pause: Duration) -> Duration {
    use std::hash::{BuildHasher, Hasher, RandomState};
    // Fresh RandomState keys are random; this needs no better randomness and no further crate.
    let random = RandomState::new().build_hasher().finish();
    pause.mul_f64(0.5 + 0.5 * (random as f64 / u64::MAX as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_jittered_within_bounds() {
        let pauses: Vec<_> = (0..200).map(|_| jittered(Duration::from_secs(10))).collect();
        assert!(pauses.iter().all(|p| (Duration::from_secs(5)..=Duration::from_secs(10)).contains(p)));
        assert!(pauses.iter().max() > pauses.iter().min());
    }
}
