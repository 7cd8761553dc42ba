//! The faults and their times. In: random numbers from the seed, before the run. Out: a list of faults, and the weather
//! of the network and the clocks. Called by [`crate::world`].

use crate::machine::Sensors;
use gleaner_simulator::random::Random;

/// Virtual time, in milliseconds since the beginning.
pub type Time = u64;

/// Faults end here; what can finish then finishes.
pub const CALM: Time = 60_000;

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    /// An agent is killed; its keeper, if it lives, restores the host after a moment.
    KillAgent {
        /// Which.
        host: usize,
        /// Until it is started again, in milliseconds.
        down: Time,
        /// The keeper is killed with it.
        keeper: bool,
    },
    /// An agent is stopped in an orderly way, and started again.
    StopAgent {
        /// Which.
        host: usize,
        /// For how long.
        down: Time,
    },
    /// An agent gets no CPU.
    FreezeAgent {
        /// Which.
        host: usize,
        /// For how long.
        long: Time,
    },
    /// The aggregator is killed.
    KillAggregator {
        /// Until it is started again.
        down: Time,
        /// Between deciding and sending.
        midway: bool,
    },
    /// The aggregator is stopped in an orderly way.
    StopAggregator {
        /// For how long.
        down: Time,
    },
    /// The aggregator gets no CPU.
    FreezeAggregator {
        /// For how long.
        long: Time,
    },
    /// A host is cut off.
    Cut {
        /// Which.
        host: usize,
        /// For how long.
        long: Time,
    },
    /// Everybody is cut off.
    CutAll {
        /// For how long.
        long: Time,
    },
    /// A machine's clock is set to another time, which its daemons see when they are started next.
    ClockStep {
        /// Which machine; the number of hosts is the aggregator's.
        machine: usize,
        /// By how much, in milliseconds.
        by: i64,
    },
    /// A machine's counters lie.
    Sensors {
        /// Whose.
        host: usize,
        /// How.
        how: Sensors,
        /// For how long.
        long: Time,
    },
    /// The aggregator's disk is full.
    FullAggregatorDisk {
        /// For how long.
        long: Time,
    },
    /// The agents' disk is full.
    FullAgentDisk {
        /// For how long.
        long: Time,
    },
    /// Somebody else writes a knob.
    Meddle {
        /// On which host.
        host: usize,
    },
    /// An operator holds a host.
    Hold {
        /// Which.
        host: usize,
        /// For how long.
        long: Time,
    },
    /// An operator takes the application away and applies it anew.
    Reapply,
}

impl Fault {
    /// Its kind, to count by.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::KillAgent { keeper: false, .. } => "agent killed",
            Self::KillAgent { keeper: true, .. } => "agent and keeper killed",
            Self::StopAgent { .. } => "agent stopped",
            Self::FreezeAgent { .. } => "agent frozen",
            Self::KillAggregator { midway: false, .. } => "aggregator killed",
            Self::KillAggregator { midway: true, .. } => "aggregator killed before sending",
            Self::StopAggregator { .. } => "aggregator stopped",
            Self::FreezeAggregator { .. } => "aggregator frozen",
            Self::Cut { .. } => "host cut off",
            Self::CutAll { .. } => "all hosts cut off",
            Self::ClockStep { .. } => "clock stepped",
            Self::Sensors { how: Sensors::Frozen, .. } => "counters frozen",
            Self::Sensors { how: Sensors::Backwards, .. } => "counters went back",
            Self::Sensors { how: Sensors::Huge, .. } => "counters absurd",
            Self::Sensors { .. } => "counters unreadable",
            Self::FullAggregatorDisk { .. } => "aggregator's disk full",
            Self::FullAgentDisk { .. } => "agents' disk full",
            Self::Meddle { .. } => "foreign write",
            Self::Hold { .. } => "host held by an operator",
            Self::Reapply => "application applied anew",
        }
    }
}

/// How a seed's network, engine and services behave all the time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weather {
    /// Longest delay of a message, in milliseconds.
    pub delay: Time,
    /// Part of messages lost although their connection lives.
    pub loss: f64,
    /// Part of messages that come twice.
    pub twice: f64,
    /// Part of messages that overtake others.
    pub overtaking: f64,
    /// Part of loops that are late, by up to 3 s.
    pub late: f64,
    /// Part of response times that are late, missing, absurd or plainly wrong.
    pub wrong_responses: f64,
    /// Part of an engine's reports that are plainly wrong.
    pub wrong_progress: f64,
    /// How much faster or slower each machine's clock runs, at most.
    pub drift: f64,
}

impl Weather {
    /// The weather of a seed: a third of them calm, so that every fault is also seen alone.
    pub fn draw(random: &mut Random) -> Self {
        let mut part = |most: f64| match random.below(3) {
            0 => 0.0,
            _ => random.uniform() * most,
        };
        Self {
            loss: part(0.1),
            twice: part(0.1),
            overtaking: part(0.1),
            late: part(0.1),
            wrong_responses: part(0.5),
            wrong_progress: part(0.3),
            drift: part(0.01),
            delay: [5, 50, 500][random.below(3)],
        }
    }

    /// No faults.
    #[must_use]
    pub const fn calm(self) -> Self {
        Self { loss: 0.0, twice: 0.0, overtaking: 0.0, late: 0.0, wrong_responses: 0.0, wrong_progress: 0.0, ..self }
    }
}

/// The faults of a seed with their times, in order.
pub fn draw(random: &mut Random, hosts: usize) -> Vec<(Time, Fault)> {
    let mut faults = Vec::new();
    let count = random.below(13);
    for _ in 0..count {
        let at = 3_000 + random.below(50_000) as Time;
        let host = random.below(hosts);
        let mut long = |most: usize| 100 + random.below(most) as Time;
        let (short, middling) = (long(3_000), long(15_000));
        let fault = match random.below(17) {
            0 | 1 => Fault::KillAgent { host, down: middling, keeper: random.below(4) == 0 },
            2 => Fault::StopAgent { host, down: middling },
            3 => Fault::FreezeAgent { host, long: middling },
            4 => Fault::KillAggregator { down: middling, midway: random.below(2) == 0 },
            5 => Fault::KillAggregator { down: short, midway: random.below(2) == 0 },
            6 => Fault::StopAggregator { down: middling },
            7 => Fault::FreezeAggregator { long: middling },
            8 | 9 => Fault::Cut { host, long: middling },
            10 => Fault::CutAll { long: middling },
            11 => {
                let by = [-3_600_000, -5_000, 5_000, 3_600_000][random.below(4)];
                Fault::ClockStep { machine: random.below(hosts + 1), by }
            }
            12 | 13 => {
                let how = [Sensors::Frozen, Sensors::Garbage, Sensors::Empty, Sensors::Backwards, Sensors::Huge];
                Fault::Sensors { host, how: how[random.below(how.len())], long: middling }
            }
            14 => match random.below(2) {
                0 => Fault::FullAggregatorDisk { long: middling },
                _ => Fault::FullAgentDisk { long: middling },
            },
            15 => match random.below(2) {
                0 => Fault::Meddle { host },
                _ => Fault::Reapply,
            },
            _ => Fault::Hold { host, long: middling },
        };
        faults.push((at, fault));
    }
    faults.sort_by_key(|(at, _)| *at);
    faults
}
