//! Koordinator's CPU suppression of best-effort work, for comparison. In: what the machine has, and what it and the
//! antagonist use. Out: the CFS quota for `BE = total × 65 % − what all others use` (koordlet's `CPUSuppress` with
//! `cfsQuota`, and its defaults). [`crate::cell`] calls it, and sets the quota, once a second. Pure.

/// Share of the machine that may be in use. Koordinator's default.
pub const THRESHOLD: f64 = 0.65;
/// Share of the machine that an antagonist under a fixed quota, or ceiling, may use. Chosen: the loosest that left a foreground
/// undisturbed on each of the kernels on which it was tried by hand.
pub const FIXED_SHARE: f64 = 0.75;
/// Period of the quota in microseconds. The kernel's default, which Koordinator leaves.
pub const PERIOD_US: u64 = 100_000;
/// The least quota in microseconds; Koordinator's.
const LEAST_US: f64 = 2_000.0;

/// The quota in microseconds for the next second, by what was used in the last: all of it and the antagonist's part, in cores.
#[must_use]
pub fn quota_us(cpus: usize, used_cores: f64, antagonist_cores: f64) -> u64 {
    let others = (used_cores - antagonist_cores).max(0.0);
    let cores = cpus as f64 * THRESHOLD - others;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive, at most some hundred CPUs")]
    let quota = (cores * PERIOD_US as f64).max(LEAST_US) as u64;
    quota
}

/// The fixed quota in microseconds.
#[must_use]
pub fn fixed_quota_us(cpus: usize) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive, at most some hundred CPUs")]
    let quota = (cpus as f64 * FIXED_SHARE * PERIOD_US as f64) as u64;
    quota
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn total_use_stays_at_the_threshold() {
        // Four CPUs, of which 2.6 may be used; others use 1.1.
        assert_eq!(quota_us(4, 3.1, 2.0), 150_000);
        assert_eq!(quota_us(4, 4.0, 0.0), 2_000);
        assert_eq!(quota_us(4, 0.0, 1.0), 260_000);
        assert_eq!(fixed_quota_us(2), 150_000);
    }
}
