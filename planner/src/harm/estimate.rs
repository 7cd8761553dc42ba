//! From trials to harm: a ratio estimator with a jackknife interval.
//! In: trials, each with the foreground's run and wait times of both sides, and what the CPU's counters say of them. Out: an
//! [`Estimate`]. Called by [`HarmTracker`](super::HarmTracker) for each workload and for all together.
//!
//! Work that needs `c` of CPU takes `c + w` where it waits `w` for a CPU, the disk or memory. With `R` as the wait per CPU time, summed over all
//! trials of a side, it takes `1 + R` per CPU time, and harm is `(1 + R with) / (1 + R without) - 1`: the extra wait per
//! CPU time, as a part of what the work takes anyway. Where the foreground never waits without the volunteer, that is the
//! extra wait per CPU time itself.
//!
//! A neighbour in the caches makes the same work take more CPU time, which is no wait. Cycles per instruction tell of it, as
//! CPI² has it (Zhang et al., "CPI²: CPU performance isolation for shared compute clusters", EuroSys 2013). With `C` as the
//! cycles per instruction, summed over all trials of a side, the CPU time per work grows by `C with / C without`. Where that
//! is known, harm is `(1 + R with) / (1 + R without) * (C with / C without) - 1`. Nothing counts twice: cycles are counted
//! only while a thread runs, and `R` is per CPU time, however much work was done in it.
//!
//! The interval is a jackknife over trials (Quenouille 1956, Tukey 1958): each is left out once. It is taken of the
//! logarithm, where a ratio of two such sums is nearly normal, with Student's t for the number of trials. Where waits are
//! sampled by looks, as on Xen, it is no narrower than the number of looks allows.

use std::collections::VecDeque;
use std::time::Duration;

use gleaner_types::absence::{Absence, Reason};
use gleaner_types::harm::HarmInterval;

/// Trials kept. Chosen: 25 minutes at the default share.
pub const MOST_TRIALS: usize = 128;
/// Fewest trials that say anything. Chosen: with fewer the interval is wider than twice the one of many.
pub const LEAST_TRIALS: u32 = 8;
/// Least CPU time of a side per trial, in ns: below it a workload is asleep. Chosen: 0.03 % of a core.
const LEAST_CPU_NS: f64 = 100_000.0;
/// The standard normal distribution's 97.5th percentile.
const Z: f64 = 1.959_963_985;

/// What the threads of a workload did in a window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunTime {
    /// Time on a CPU, in ns.
    pub cpu_ns: u64,
    /// Time waited for a CPU, and where it is known for the disk or memory, in ns.
    pub wait_ns: u64,
}

impl RunTime {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { cpu_ns: self.cpu_ns.saturating_add(other.cpu_ns), wait_ns: self.wait_ns.saturating_add(other.wait_ns) }
    }

    /// What came since an earlier reading; nothing where a counter went back.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns.saturating_sub(earlier.cpu_ns),
            wait_ns: self.wait_ns.saturating_sub(earlier.wait_ns),
        }
    }
}

/// What the CPU's counters say of a workload's threads over some time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Cycles in which one of them ran.
    pub cycles: u64,
    /// Instructions that they completed.
    pub instructions: u64,
}

impl Work {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            cycles: self.cycles.saturating_add(other.cycles),
            instructions: self.instructions.saturating_add(other.instructions),
        }
    }

    /// What came since an earlier reading; nothing where a counter went back.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            cycles: self.cycles.saturating_sub(earlier.cycles),
            instructions: self.instructions.saturating_sub(earlier.instructions),
        }
    }
}

/// The same in both windows of a trial.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Worked {
    /// In the window with the volunteer.
    pub with: Work,
    /// In the window without.
    pub without: Work,
}

impl Worked {
    fn plus(self, other: Self) -> Self {
        Self { with: self.with.plus(other.with), without: self.without.plus(other.without) }
    }
}

/// One trial of one workload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Comparison {
    /// In the window with the volunteer.
    pub with: RunTime,
    /// In the window without.
    pub without: RunTime,
    /// Where waits are sampled, the time that one look of one virtual CPU stands for, in ns; 0 where they are counted.
    pub look_ns: u64,
    /// What the CPU's counters say; `None` where they say nothing.
    pub worked: Option<Worked>,
}

impl Comparison {
    /// One whose waits were counted, not sampled.
    #[must_use]
    pub const fn counted(with: RunTime, without: RunTime) -> Self {
        Self { with, without, look_ns: 0, worked: None }
    }

    /// It used no CPU in either window.
    const fn is_idle(&self) -> bool {
        self.with.cpu_ns == 0 && self.without.cpu_ns == 0
    }

    /// Both together. What the counters say of one alone says nothing of both, unless the other used no CPU.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            with: self.with.plus(other.with),
            without: self.without.plus(other.without),
            look_ns: self.look_ns.max(other.look_ns),
            worked: match (self.worked, other.worked) {
                (Some(one), Some(another)) => Some(one.plus(another)),
                (Some(one), None) if other.is_idle() => Some(one),
                (None, Some(another)) if self.is_idle() => Some(another),
                _ => None,
            },
        }
    }
}

/// What trials say.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Estimate {
    /// The harm.
    Known(HarmInterval),
    /// Too few for an interval; how many there are.
    TooFewTrials(u32),
    /// The workload used too little CPU.
    TooLittleActivity,
}

impl Estimate {
    /// As a reading: the harm, or why it is not known.
    ///
    /// # Errors
    /// The reason.
    pub fn known(self) -> Result<HarmInterval, Absence> {
        match self {
            Self::Known(harm) => Ok(harm),
            Self::TooFewTrials(taken) => {
                Err(Absence::because(Reason::MoreTrialsNeeded { taken, needed: LEAST_TRIALS }))
            }
            Self::TooLittleActivity => Err(Absence::because(Reason::TooLittleActivity)),
        }
    }
}

/// The last trials of a workload, at most [`MOST_TRIALS`].
#[derive(Debug, Clone, Default)]
pub struct Trials(VecDeque<(Duration, Comparison)>);

/// Sums over trials.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    with: [f64; 2],
    without: [f64; 2],
    look: f64,
    /// Cycles and instructions.
    worked_with: [f64; 2],
    worked_without: [f64; 2],
}

impl Sums {
    fn add(&mut self, one: &Comparison, sign: f64) {
        for (sums, side) in [(&mut self.with, one.with), (&mut self.without, one.without)] {
            sums[0] += sign * side.cpu_ns as f64;
            sums[1] += sign * side.wait_ns as f64;
        }
        self.look += sign * one.look_ns as f64;
        let Some(worked) = one.worked else { return };
        for (sums, side) in [(&mut self.worked_with, worked.with), (&mut self.worked_without, worked.without)] {
            sums[0] += sign * side.cycles as f64;
            sums[1] += sign * side.instructions as f64;
        }
    }

    /// Logarithm of the ratio of cycles per instruction with the volunteer and without; `None` where a side did nothing.
    fn log_cpi(&self) -> Option<f64> {
        let per_instruction = |[cycles, instructions]: [f64; 2]| {
            (cycles >= 1.0 && instructions >= 1.0).then(|| (cycles / instructions).ln())
        };
        Some(per_instruction(self.worked_with)? - per_instruction(self.worked_without)?)
    }

    /// Logarithm of the ratio of what CPU time takes with its waits, with the volunteer and without; `None` where a side used
    /// no CPU.
    fn log_waits(&self) -> Option<f64> {
        let per_cpu = |[cpu, wait]: [f64; 2]| (cpu >= 1.0).then(|| (wait.max(0.0) / cpu).ln_1p());
        Some(per_cpu(self.with)? - per_cpu(self.without)?)
    }

    /// The variance of that logarithm by the sampling of waits alone: the number of looks that met a wait is at least as
    /// uncertain as a Poisson count, and one more than was met stands for those that no look met.
    fn sampling_variance(&self, trials: f64) -> f64 {
        let look = self.look / trials;
        let of = |[cpu, wait]: [f64; 2]| look * (wait.max(0.0) + look) / (cpu + wait.max(0.0)).powi(2);
        if look > 0.0 { of(self.with) + of(self.without) } else { 0.0 }
    }
}

impl Trials {
    /// Adds one, taken at `at` on any clock that does not go back; the oldest gives way.
    pub fn add(&mut self, at: Duration, trial: Comparison) {
        if self.0.len() >= MOST_TRIALS {
            self.0.pop_front();
        }
        self.0.push_back((at, trial));
    }

    /// Drops those older than `earliest`.
    pub fn forget_before(&mut self, earliest: Duration) {
        while self.0.front().is_some_and(|(at, _)| *at < earliest) {
            self.0.pop_front();
        }
    }

    /// There is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The harm by these trials: by waits, and by cycles per instruction where these are known.
    #[must_use]
    pub fn estimate(&self) -> Estimate {
        match self.cpi() {
            Estimate::Known(_) => self.jackknife(|_| true, |sums| Some(sums.log_waits()? + sums.log_cpi()?)),
            _ => self.jackknife(|_| true, Sums::log_waits),
        }
    }

    /// The part of it by cycles per instruction, of the trials in which they were counted.
    #[must_use]
    pub fn cpi(&self) -> Estimate {
        self.jackknife(|trial| trial.worked.is_some(), Sums::log_cpi)
    }

    /// By the trials that count, the harm of which `log_ratio` is the logarithm.
    fn jackknife(&self, counts: impl Fn(&Comparison) -> bool, log_ratio: impl Fn(&Sums) -> Option<f64>) -> Estimate {
        let trials: Vec<&Comparison> = self.0.iter().map(|(_, trial)| trial).filter(|trial| counts(trial)).collect();
        let count = u32::try_from(trials.len()).unwrap_or(u32::MAX);
        if count < LEAST_TRIALS {
            return Estimate::TooFewTrials(count);
        }
        let mut sums = Sums::default();
        for trial in &trials {
            sums.add(trial, 1.0);
        }
        let n = f64::from(count);
        if sums.with[0].min(sums.without[0]) < n * LEAST_CPU_NS {
            return Estimate::TooLittleActivity;
        }
        let left_out = trials.iter().map(|trial| {
            let mut without_it = sums;
            without_it.add(trial, -1.0);
            log_ratio(&without_it)
        });
        // One trial has all the activity: nothing is known of its spread.
        let Some(left_out) = left_out.collect::<Option<Vec<f64>>>() else { return Estimate::TooLittleActivity };
        let Some(whole) = log_ratio(&sums) else { return Estimate::TooLittleActivity };
        let mean = left_out.iter().sum::<f64>() / n;
        let variance = left_out.iter().map(|one| (one - mean).powi(2)).sum::<f64>() * (n - 1.0) / n;
        // Trials in which hardly any look met a wait are alike by chance.
        let variance = variance.max(sums.sampling_variance(n));
        let margin = student(n - 1.0) * variance.sqrt();
        let percent = |log: f64| log.exp_m1() * 100.0;
        match HarmInterval::new(percent(whole), percent(whole - margin), percent(whole + margin), count) {
            Ok(harm) => Estimate::Known(harm),
            // Sums of nanoseconds are finite; only a spread beyond all numbers ends here.
            Err(_) => Estimate::TooLittleActivity,
        }
    }
}

/// The 97.5th percentile of Student's t with `freedom` degrees of freedom, by the first terms of its expansion
/// (Abramowitz and Stegun 26.7.5): within 0.1 % from 7 on.
fn student(freedom: f64) -> f64 {
    let (z3, z5, z7) = (Z.powi(3), Z.powi(5), Z.powi(7));
    Z + (z3 + Z) / (4.0 * freedom)
        + (5.0 * z5 + 16.0 * z3 + 3.0 * Z) / (96.0 * freedom.powi(2))
        + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * Z) / (384.0 * freedom.powi(3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampled_waits_that_no_look_met_leave_an_interval() {
        let side = RunTime { cpu_ns: 300_000_000, wait_ns: 0 };
        let trials = |look_ns: u64, count: u64| {
            let mut trials = Trials::default();
            for second in 0..count {
                trials.add(Duration::from_secs(second), Comparison { look_ns, ..Comparison::counted(side, side) });
            }
            match trials.estimate() {
                Estimate::Known(harm) => harm,
                other => panic!("{other:?}"),
            }
        };
        let counted = trials(0, 8);
        assert_eq!((counted.low_percent, counted.high_percent), (0.0, 0.0));
        // 10 ms a look beside 2.4 s of CPU a side: 2.36 * sqrt(2) * 10 / 2400 = 1.4 %.
        let sampled = trials(10_000_000, 8);
        assert!((sampled.high_percent - 1.40).abs() < 0.02 && sampled.mean_percent == 0.0, "{sampled:?}");
        assert!(trials(10_000_000, 80).high_percent < 0.15, "it falls with the number of looks");
    }

    /// A domain of one virtual CPU that works and waits by turns, met at drawn moments.
    #[test]
    fn the_interval_of_sampled_waits_contains_the_truth() {
        use rand_chacha::ChaCha8Rng;
        use rand_chacha::rand_core::{RngCore, SeedableRng};
        const LOOK_NS: u64 = 10_000_000;
        let mut random = ChaCha8Rng::seed_from_u64(7);
        for wait_permille in [2, 20, 200] {
            let mut contained = 0;
            for _ in 0..200 {
                let mut trials = Trials::default();
                for second in 0..24 {
                    // 35 looks a window; it waits at so many of 1,000 moments beside the volunteer, and at none without.
                    let met = (0..35).filter(|_| random.next_u32() % 1_000 < wait_permille).count() as u64;
                    let cpu_ns = 350_000_000 - 350_000 * u64::from(wait_permille);
                    let with = RunTime { cpu_ns, wait_ns: met * LOOK_NS };
                    let without = RunTime { cpu_ns: 350_000_000, wait_ns: 0 };
                    let trial = Comparison { look_ns: LOOK_NS, ..Comparison::counted(with, without) };
                    trials.add(Duration::from_secs(second), trial);
                }
                let truth = 100.0 * f64::from(wait_permille) / f64::from(1_000 - wait_permille);
                let Estimate::Known(harm) = trials.estimate() else { panic!() };
                contained += u32::from((harm.low_percent..=harm.high_percent).contains(&truth));
            }
            assert!(contained >= 180, "{contained} of 200 at {wait_permille} of 1,000");
        }
    }

    #[test]
    fn students_t_is_the_tables() {
        for (freedom, t) in [(7.0, 2.3646), (10.0, 2.2281), (30.0, 2.0423), (127.0, 1.9788)] {
            assert!((student(freedom) / t - 1.0).abs() < 1e-3, "{freedom}: {}", student(freedom));
        }
    }
}
