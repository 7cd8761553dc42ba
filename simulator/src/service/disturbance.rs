//! What disturbs a service beside noise: pauses, neighbours on the hosts of its tiers, and shares that come into force late.
//! In: its constants, a seed. Out: by how much an interval is slower, and for how long the shares before are in force. Called
//! by [`super::Service`].

use gleaner_types::units::Fraction;
use serde::{Deserialize, Serialize};

use crate::random::Random;

/// Most of an interval that goes by before its shares are in force.
const MOST_DEAD: f64 = 0.5;

/// What disturbs a service. With all zero nothing does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Disturbance {
    /// Part of the time that the service is in a pause, such as a checkpoint or a collection of garbage.
    pub pause_part: f64,
    /// Mean length of a pause, in seconds. One that is shorter than an interval lasts one.
    pub pause_s: f64,
    /// How much longer a response takes in a pause, as a part of what it takes otherwise.
    pub pause_slowdown: f64,
    /// How much more CPU a request takes when neighbours use all of the host's, as a part of what it takes alone. Caches and
    /// memory bandwidth are shared, whatever the shares of CPU.
    pub cpu_neighbours: f64,
    /// How much longer a request takes on the disk when neighbours use all of the disk's bandwidth, as a part of what it takes
    /// alone.
    pub disk_neighbours: f64,
    /// Dead time: so long after the beginning of an interval, in seconds, the shares of the one before are in force, at most
    /// half of the interval.
    pub dead_s: f64,
}

impl Disturbance {
    /// Nothing but noise.
    pub const NONE: Self = Self {
        pause_part: 0.0,
        pause_s: 0.0,
        pause_slowdown: 0.0,
        cpu_neighbours: 0.0,
        disk_neighbours: 0.0,
        dead_s: 0.0,
    };

    /// As recorded on a PostgreSQL beside others (`benches/disturbance.sh`; `docs/services.md` has the record and what is
    /// uncertain of it).
    ///
    /// - Pauses: five of seven checkpoints made the response of an interval 1.54 to 2.67 times the median of those around it, 1.9
    ///   times on average; these are 5 of 63 intervals, each alone. A checkpoint came every ten intervals, as with PostgreSQL's
    ///   five minutes and intervals of 30 s.
    /// - CPU of neighbours: a transaction took 787 µs of CPU while others used 0.12 of the CPUs, and 870 µs once they used
    ///   0.88 of them: 0.14 for all.
    /// - Disk of neighbours: chosen as for the CPU. One that had a share and kept the disk busy for a fifth of the time was not
    ///   seen to slow anything down; writers without a share made synced writes take 1.1 to 2.0 times as long
    ///   (`docs/isolation.md`, a ceiling on disk traffic).
    /// - Dead time: the response followed a changed limit within a second, and a decision waits for the next tick, one a
    ///   second.
    pub const RECORDED: Self = Self {
        pause_part: 0.08,
        pause_s: 30.0,
        pause_slowdown: 0.9,
        cpu_neighbours: 0.14,
        disk_neighbours: 0.14,
        dead_s: 2.0,
    };

    /// How long the shares of the interval before are in force.
    pub(super) fn dead_s(&self, interval_s: f64) -> f64 {
        self.dead_s.clamp(0.0, MOST_DEAD * interval_s)
    }
}

/// What is used of a host, as parts of it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct HostUse {
    /// Of its cores.
    pub cpu: Fraction,
    /// Of its disk's bandwidth.
    pub disk: Fraction,
}

/// Whether a service is in a pause: a process of two states, whose stays have geometric lengths.
#[derive(Debug, Clone)]
pub(super) struct Pauses {
    random: Random,
    paused: bool,
}

impl Pauses {
    pub(super) fn new(random: Random) -> Self {
        Self { random, paused: false }
    }

    /// How much longer a response takes in the next interval, as a part of what it takes otherwise.
    pub(super) fn slowdown(&mut self, disturbance: &Disturbance, interval_s: f64) -> f64 {
        let part = disturbance.pause_part.clamp(0.0, 0.5);
        let ends = (interval_s / disturbance.pause_s.max(interval_s)).clamp(0.0, 1.0);
        // As many begin as end, in the long run.
        let begins = ends * part / (1.0 - part);
        // Drawn whether it is needed or not, as noise is. It is above 0.
        let drawn = self.random.uniform();
        self.paused = if self.paused { drawn > ends } else { drawn <= begins };
        if self.paused { disturbance.pause_slowdown } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::{Interval, Load, Service, ServiceSpec, Shares};

    const LOAD: Load = Load::Clients(100.0);

    fn shares(cpu: f64, disk: f64) -> [Shares; 1] {
        let [cpu, memory, disk] = [cpu, 0.5, disk].map(Fraction::clamped);
        [Shares { cpu, memory, disk }]
    }

    /// A neighbour that uses this much of the host.
    fn neighbour(cpu: f64, disk: f64) -> [HostUse; 1] {
        let [cpu, disk] = [cpu, disk].map(Fraction::clamped);
        [HostUse { cpu, disk }]
    }

    /// TPC-C without noise.
    fn still(disturbance: Disturbance) -> Service {
        let mut spec = ServiceSpec { disturbance, ..ServiceSpec::tpcc() };
        (spec.noise.speed_variation, spec.noise.response_variation) = (0.0, 0.0);
        Service::new(spec, 1)
    }

    fn response(interval: &Interval) -> f64 {
        interval.response_ms.unwrap()
    }

    const DIFFERENT: [(f64, f64); 5] = [(0.15, 0.5), (0.15, 0.5), (0.08, 0.6), (0.08, 0.4), (0.2, 0.7)];

    #[test]
    fn with_nothing_a_service_is_what_it_was_before_there_were_disturbances() {
        // Computed from the model of that version.
        const BEFORE: [(f64, f64); 5] = [
            (58.678_764_704_607, 94.246_313_749_138),
            (59.661_254_804_186, 94.240_730_690_198),
            (43.742_990_057_250, 95.754_151_673_269),
            (130.907_998_687_019, 88.969_201_593_013),
            (25.064_991_002_720, 97.561_316_741_758),
        ];
        let mut service = Service::new(ServiceSpec::tpcc(), 7);
        assert_eq!(service.spec().disturbance, Disturbance::NONE);
        for ((cpu, disk), (response_ms, throughput)) in DIFFERENT.into_iter().zip(BEFORE) {
            let seen = service.step_beside(LOAD, &shares(cpu, disk), &neighbour(1.0, 1.0), None);
            assert!((response(&seen) / response_ms - 1.0).abs() < 1e-6, "{} is not {response_ms}", response(&seen));
            assert!((seen.throughput / throughput - 1.0).abs() < 1e-6, "{} is not {throughput}", seen.throughput);
        }
    }

    #[test]
    fn noise_stays_the_same_whatever_disturbs() {
        let pauses = Disturbance { pause_part: 0.5, pause_s: 60.0, ..Disturbance::NONE };
        let mut both = [Disturbance::NONE, pauses]
            .map(|disturbance| Service::new(ServiceSpec { disturbance, ..ServiceSpec::tpcc() }, 7));
        for (cpu, disk) in DIFFERENT {
            let [calm, paused] = both.each_mut().map(|service| service.step(LOAD, &shares(cpu, disk), None));
            assert_eq!(calm, paused);
        }
    }

    #[test]
    fn pauses_are_as_often_as_long_and_as_slow_as_they_should() {
        let disturbance = Disturbance { pause_part: 0.1, pause_s: 90.0, pause_slowdown: 1.0, ..Disturbance::NONE };
        let mut pauses = Pauses::new(Random::part(5, 3));
        let slow: Vec<f64> = (0..100_000).map(|_| pauses.slowdown(&disturbance, 30.0)).collect();
        let part = slow.iter().sum::<f64>() / 100_000.0;
        let begun = slow.windows(2).filter(|pair| pair[0] < pair[1]).count() as f64;
        let length = slow.iter().sum::<f64>() / begun;
        assert!((part - 0.1).abs() < 0.01 && (length - 3.0).abs() < 0.2, "{part} {length}");

        let mut service = still(Disturbance { pause_part: 0.5, ..disturbance });
        let times: Vec<f64> = (0..50).map(|_| response(&service.step(LOAD, &shares(0.15, 0.5), None))).collect();
        let least = times.iter().copied().fold(f64::INFINITY, f64::min);
        let is_either = |time: &f64| (time / least - 1.0).abs() < 1e-9 || (time / least - 2.0).abs() < 1e-9;
        assert!(times.iter().all(is_either) && times.iter().any(|time| time / least > 1.5), "{times:?}");
    }

    #[test]
    fn a_pause_that_is_shorter_than_an_interval_lasts_one() {
        let disturbance = Disturbance { pause_part: 0.1, pause_s: 1.0, pause_slowdown: 1.0, ..Disturbance::NONE };
        let mut pauses = Pauses::new(Random::part(5, 3));
        let slow: Vec<f64> = (0..100_000).map(|_| pauses.slowdown(&disturbance, 30.0)).collect();
        assert!((slow.iter().sum::<f64>() / 100_000.0 - 0.1).abs() < 0.01);
        assert!(slow.windows(2).all(|pair| pair[0] + pair[1] < 1.5));
    }

    #[test]
    fn neighbours_slow_down_by_what_they_use() {
        let disturbance = Disturbance { cpu_neighbours: 0.3, disk_neighbours: 0.3, ..Disturbance::NONE };
        let shares = shares(0.15, 0.5);
        let of = |cpu, disk| still(disturbance).step_beside(LOAD, &shares, &neighbour(cpu, disk), None);
        let (alone, none) = (of(0.0, 0.0), still(Disturbance::NONE).step(LOAD, &shares, None));
        assert_eq!(alone, none, "without neighbours there is nothing");
        let (half, all) = (of(0.0, 0.5), of(1.0, 1.0));
        assert!(response(&half) > 1.1 * response(&alone) && response(&all) > 1.1 * response(&half));
        // It needs more of its shares.
        assert!(half.tiers[0].disk > alone.tiers[0].disk && all.tiers[0].cpu > alone.tiers[0].cpu);
    }

    #[test]
    fn shares_come_into_force_late_and_only_where_they_change() {
        let disturbance = Disturbance { dead_s: 6.0, ..Disturbance::NONE };
        let (little, much) = (shares(0.15, 0.35), shares(0.15, 0.7));
        let of = |disturbance| {
            let mut service = still(disturbance);
            [little, little, much, much].map(|shares| response(&service.step(LOAD, &shares, None)))
        };
        let (late, at_once) = (of(disturbance), of(Disturbance::NONE));
        assert!(late[..2].iter().zip(at_once).all(|(late, at_once)| (late - at_once).abs() < 1e-9));
        let fifth = at_once[2] + 0.2 * (at_once[1] - at_once[2]);
        assert!(late[2] > at_once[2] && (late[2] / fifth - 1.0).abs() < 0.2, "{late:?} {at_once:?}");
        assert!((late[3] / at_once[3] - 1.0).abs() < 1e-3, "{late:?} {at_once:?}");

        let mut service = still(disturbance);
        service.step(LOAD, &little, None);
        service.put_in_force(&much);
        let mut other = still(Disturbance::NONE);
        other.step(LOAD, &little, None);
        assert_eq!(service.step(LOAD, &much, None), other.step(LOAD, &much, None), "its dead time was counted");
    }

    #[test]
    fn odd_disturbances_and_no_load() {
        let odd = Disturbance {
            pause_part: f64::NAN,
            pause_s: -1.0,
            pause_slowdown: 1.0,
            cpu_neighbours: -5.0,
            disk_neighbours: -5.0,
            dead_s: 1e9,
        };
        let mut service = still(odd);
        for (cpu, disk) in DIFFERENT {
            let seen = service.step_beside(LOAD, &shares(cpu, disk), &neighbour(1.0, 1.0), None);
            assert!(response(&seen).is_finite() && seen.throughput > 0.0, "{seen:?}");
        }
        assert_eq!(service.step(Load::Clients(0.0), &shares(0.1, 0.1), None).response_ms, None);
        assert!(response(&service.step(LOAD, &shares(0.2, 0.6), None)).is_finite());
    }
}
