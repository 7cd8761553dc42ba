//! What a volunteer does to the foreground of a simulated host whose agent holds it by its harm (`guard.follow_harm`). In:
//! the posture in force and the foreground's CPU time. Out: when the next trial is, and what its counters say. Called by
//! [`crate::world`]. Kernels and noise are those of `gleaner_simulator::protection`.

use std::time::Duration;

use gleaner_planner::harm::{RunTime, Schedule, Trial};
use gleaner_planner::protecting::Posture;
use gleaner_simulator::protection::{Kernel, counted};
use gleaner_simulator::random::Random;

use crate::machine::Sensors;

/// The parts of the time in which volunteers are held to measure: large, to learn within a seed's minute.
const PAUSE_SHARES: [f64; 2] = [0.1, 0.2];
/// How many times as much as the kernel's harm a volunteer does.
const SEVERITIES: [f64; 3] = [1.0, 3.0, 10.0];

/// A host's kernel, and the trials on it.
#[derive(Debug)]
pub struct Harm {
    /// What its volunteer does to its foreground.
    pub kernel: Kernel,
    /// Part of the time in which it is held.
    pub pause_share: f64,
    severity: f64,
    schedule: Schedule,
    noise: Random,
}

impl Harm {
    /// The kernel of a host, or `None` in a quarter of the seeds, whose agents do not follow the harm.
    #[must_use]
    pub fn draw(seed: u64, host: usize) -> Option<Self> {
        if Random::part(seed, 1_000).below(4) == 0 {
            return None;
        }
        let mut random = Random::part(seed, 1_001 + host as u64);
        let kernel = Kernel::ALL[random.below(Kernel::ALL.len())];
        let pause_share = PAUSE_SHARES[random.below(PAUSE_SHARES.len())];
        let severity = SEVERITIES[random.below(SEVERITIES.len())];
        let schedule = Schedule::new(seed.wrapping_mul(31).wrapping_add(host as u64), pause_share);
        Some(Self { kernel, pause_share, severity, schedule, noise: random })
    }

    /// The next trial, with the volunteer held for this part of the time.
    pub fn next_trial(&mut self, pause_share: f64) -> Option<Trial> {
        self.schedule.set_pause_share(pause_share);
        self.schedule.next_trial()
    }

    /// What the counters of each workload say of a window, as far as they tell the truth.
    pub fn window(
        &mut self,
        demands: &[f64],
        sensors: Sensors,
        window: Duration,
        posture: Posture,
        cpus: u32,
    ) -> Vec<RunTime> {
        let harm = self.severity * self.kernel.harm_percent(posture, cpus);
        let of = |percent: &f64| match sensors {
            Sensors::Frozen => RunTime::default(),
            Sensors::Huge => RunTime { cpu_ns: u64::MAX / 2, wait_ns: u64::MAX },
            _ => counted(percent / 100.0 * window.as_secs_f64(), harm, &mut self.noise),
        };
        demands.iter().map(of).collect()
    }
}
