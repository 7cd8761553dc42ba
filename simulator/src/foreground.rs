//! Foreground sessions. In: a seed, and the statistics of measured sessions (RHIC §5.1: mean CPU, mean height and mean
//! length of bursts). Out: bursty CPU demand of interactive users, per second. Simulations and the demo replay it.
//!
//! A session alternates between bursts and pauses of geometrically distributed length. The height of a burst is
//! exponential around its mean, cut at the whole machine. The frequency of bursts follows from the mean CPU.

use serde::{Deserialize, Serialize};

use crate::random::Random;

/// What a user works with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Session {
    /// Numerical computing.
    Matlab,
    /// Picture editing.
    Photoshop,
    /// Text and tables.
    Office,
    /// Editing and compiling programs.
    Development,
}

/// Statistics of a session, in percent of one machine and seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SessionStatistics {
    /// Mean CPU.
    pub cpu_mean_percent: f64,
    /// Mean CPU within a burst.
    pub burst_height_percent: f64,
    /// Mean length of a burst.
    pub burst_length_s: f64,
    /// Mean and standard deviation of how long a user stays.
    pub reservation_s: (f64, f64),
}

impl Session {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Matlab, Self::Photoshop, Self::Office, Self::Development];

    /// The measured statistics.
    #[must_use]
    pub const fn statistics(self) -> SessionStatistics {
        let (cpu_mean_percent, burst_height_percent, burst_length_s, minutes) = match self {
            Self::Matlab => (19.8, 39.9, 6.9, (93.0, 90.0)),
            Self::Photoshop => (7.0, 25.8, 2.0, (74.0, 79.0)),
            Self::Office => (2.8, 31.0, 1.3, (70.0, 91.0)),
            Self::Development => (22.5, 27.7, 47.4, (120.0, 99.0)),
        };
        let reservation_s = (minutes.0 * 60.0, minutes.1 * 60.0);
        SessionStatistics { cpu_mean_percent, burst_height_percent, burst_length_s, reservation_s }
    }
}

/// Demand of a session, second by second, without end.
#[derive(Debug, Clone)]
pub struct SessionTrace {
    statistics: SessionStatistics,
    random: Random,
    /// Height of the present burst.
    burst_percent: Option<f64>,
}

impl SessionTrace {
    /// A trace; the same session and seed give the same one.
    #[must_use]
    pub fn new(session: Session, seed: u64) -> Self {
        let mut trace = Self { statistics: session.statistics(), random: Random::new(seed), burst_percent: None };
        // Begins in the state it is in on average.
        if trace.random.uniform() < trace.duty() {
            trace.burst_percent = Some(trace.height());
        }
        trace
    }

    /// Share of the time spent in bursts.
    fn duty(&self) -> f64 {
        self.statistics.cpu_mean_percent / self.statistics.burst_height_percent
    }

    /// Height of a burst: exponential, cut at 100 %. The mean before the cut is raised so that the mean
    /// after it is the measured one.
    fn height(&mut self) -> f64 {
        let scale = uncut_mean(self.statistics.burst_height_percent);
        (-self.random.uniform().ln() * scale).min(100.0)
    }
}

/// The mean m of an exponential whose values cut at 100 have mean `cut`: m (1 − e^(−100/m)) = cut, by bisection.
fn uncut_mean(cut: f64) -> f64 {
    let (mut low, mut high) = (cut, 1e4);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if middle * (1.0 - (-100.0 / middle).exp()) < cut { low = middle } else { high = middle }
    }
    low
}

impl Iterator for SessionTrace {
    type Item = f64;

    /// CPU of the next second, in percent of the machine.
    fn next(&mut self) -> Option<f64> {
        let duty = self.duty();
        // Bursts and pauses end with a fixed probability each second; the pauses' mean length makes the duty right.
        let burst_ends = 1.0 / self.statistics.burst_length_s;
        let pause_ends = burst_ends * duty / (1.0 - duty);
        let now = self.burst_percent;
        let chance = self.random.uniform();
        self.burst_percent = match now {
            Some(_) if chance < burst_ends => None,
            Some(height) => Some(height),
            None if chance < pause_ends => Some(self.height()),
            None => None,
        };
        Some(now.unwrap_or(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_run_statistics_are_those_measured() {
        for session in Session::ALL {
            let (want, seconds) = (session.statistics(), 2_000_000);
            let trace: Vec<f64> = SessionTrace::new(session, 7).take(seconds).collect();
            let mean = trace.iter().sum::<f64>() / seconds as f64;
            let busy = trace.iter().filter(|cpu| **cpu > 0.0).count() as f64;
            // Two bursts never touch: between them is at least one idle second.
            let bursts = trace.windows(2).filter(|pair| pair[0] == 0.0 && pair[1] > 0.0).count() as f64;
            let near = |what: &str, got: f64, want: f64| {
                assert!((got / want - 1.0).abs() < 0.05, "{session:?}: {what} is {got}, measured {want}");
            };
            near("mean", mean, want.cpu_mean_percent);
            near("burst length", busy / bursts, want.burst_length_s);
            near("burst height", trace.iter().sum::<f64>() / busy, want.burst_height_percent);
        }
    }

    #[test]
    fn a_seed_gives_one_trace() {
        let take = |seed| SessionTrace::new(Session::Office, seed).take(500).collect::<Vec<_>>();
        assert_eq!(take(1), take(1));
        assert_ne!(take(1), take(2));
    }
}
