//! A simulated service of several tiers on shared hosts, one control interval after the other. In: the load, and each
//! tier's shares of CPU, memory and disk. Out: response time, throughput and utilisation. Controllers are compared on it.
//!
//! Within an interval the service is a closed queueing network in equilibrium, solved by mean value analysis. From one
//! interval to the next it relaxes within one cycle of a client. `docs/services.md` has the model, its calibration and
//! what it leaves out.

mod disturbance;

use gleaner_types::units::Fraction;
use serde::{Deserialize, Serialize};

use self::disturbance::Pauses;
pub use self::disturbance::{Disturbance, HostUse};
use crate::random::Random;

/// Phases of an interval that differ in what a request needs. Chosen.
const PHASES: usize = 16;
/// Think time of the users behind an open rate of requests: long against any response that is worth having, so that the rate
/// hardly falls, and not endless, because users give up. Chosen.
const OPEN_THINK_S: f64 = 20.0;
/// Most clients that are solved for.
const MOST_CLIENTS: f64 = 100_000.0;
/// Least part of a resource that a tier is taken to have, so that nothing is divided by zero.
const LEAST_SHARE: f64 = 1e-4;
/// Part of the way that a queue goes towards its new length in one iteration.
const DAMPING: f64 = 0.5;
const MOST_ITERATIONS: usize = 2_000;

/// What a host has.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HostSpec {
    /// Cores.
    pub cores: f64,
    /// Memory for guests, in MB.
    pub memory_mb: f64,
    /// Disk bandwidth, in MB/s.
    pub disk_mb_s: f64,
}

/// One tier of a service, and the host it runs on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TierSpec {
    /// Its name.
    pub name: &'static str,
    /// Its host.
    pub host: HostSpec,
    /// CPU seconds of a request without any stall on memory, on a core of speed 1.
    pub cpu_s: f64,
    /// How much longer that takes when every reference misses the last-level cache, as a part of it.
    pub stall: f64,
    /// Memory in use without requests, in MB.
    pub working_set_mb: f64,
    /// Memory that a request in flight takes, in MB.
    pub request_mb: f64,
    /// Read by a request when nothing is in memory, in MB.
    pub read_mb: f64,
    /// Written by a request, in MB.
    pub write_mb: f64,
}

/// Noise of the service and of its measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Noise {
    /// Coefficient of variation of the hosts' speed.
    pub speed_variation: f64,
    /// Correlation of the speed from one interval to the next.
    pub speed_correlation: f64,
    /// Coefficient of variation of the measured mean response time.
    pub response_variation: f64,
}

/// A service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServiceSpec {
    /// Its name.
    pub name: &'static str,
    /// Tiers, each visited once by every request.
    pub tiers: Vec<TierSpec>,
    /// Mean think time of a client, in seconds.
    pub think_s: f64,
    /// Length of a control interval, in seconds.
    pub interval_s: f64,
    /// Coefficient of variation of what requests need between the phases of an interval.
    pub mix_variation: f64,
    /// Noise.
    pub noise: Noise,
    /// What disturbs it beside noise.
    pub disturbance: Disturbance,
}

/// The load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// This number of clients, who wait for an answer, think, and ask again.
    Clients(f64),
    /// This rate of requests a second, independent of the service.
    Rate(f64),
}

/// Parts of a host's resources that a tier may use.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Shares {
    /// Of its cores.
    pub cpu: Fraction,
    /// Of its memory.
    pub memory: Fraction,
    /// Of its disk's bandwidth.
    pub disk: Fraction,
}

/// What was measured of one tier over an interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TierInterval {
    /// Part of the CPU share that was used.
    pub cpu: Fraction,
    /// Part of the memory share that was in use.
    pub memory: Fraction,
    /// Part of the disk share that was used.
    pub disk: Fraction,
    /// Last-level cache misses per reference.
    pub llc_miss_rate: Fraction,
    /// Part of the time in which the CPU had nothing to do but to wait for the disk.
    pub iowait: Fraction,
}

/// What was measured over an interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Mean response time in milliseconds; `None` without requests.
    pub response_ms: Option<f64>,
    /// Requests answered a second.
    pub throughput: f64,
    /// Tiers, in the order of the specification.
    pub tiers: Vec<TierInterval>,
}

impl Interval {
    /// This one, which was a part of an interval, and what came after it, as one interval: means, in which requests count.
    fn then(&self, after: &Self, part: f64) -> Self {
        let (of_self, of_after) = (part * self.throughput, (1.0 - part) * after.throughput);
        let response_ms = match (self.response_ms, after.response_ms) {
            (Some(own_ms), Some(after_ms)) => Some((own_ms * of_self + after_ms * of_after) / (of_self + of_after)),
            (own_ms, after_ms) => after_ms.or(own_ms),
        };
        let tier = |(own, after): (&TierInterval, &TierInterval)| {
            let mean = |of: fn(&TierInterval) -> Fraction| {
                Fraction::clamped(part * of(own).value() + (1.0 - part) * of(after).value())
            };
            TierInterval {
                cpu: mean(|tier| tier.cpu),
                memory: mean(|tier| tier.memory),
                disk: mean(|tier| tier.disk),
                llc_miss_rate: mean(|tier| tier.llc_miss_rate),
                iowait: mean(|tier| tier.iowait),
            }
        };
        let tiers = self.tiers.iter().zip(&after.tiers).map(tier).collect();
        Self { response_ms, throughput: of_self + of_after, tiers }
    }
}

/// A service in operation.
#[derive(Debug, Clone)]
pub struct Service {
    spec: ServiceSpec,
    /// Multipliers of what a request needs, one for each phase; their mean is 1.
    phases: [f64; PHASES],
    speed: Random,
    response: Random,
    pauses: Pauses,
    /// Shares of the tiers at the end of the last interval; none before the first.
    in_force: Option<Vec<Shares>>,
    /// Deviation of the speed from 1, in standard deviations.
    drift: f64,
    /// Response time at the end of the last interval, in seconds.
    last_s: Option<f64>,
}

/// A tier under given shares, of which what a request needs depends on how many it is working on.
struct Loaded<'s> {
    tier: &'s TierSpec,
    /// Cores that the share amounts to, at their present speed.
    cores: f64,
    memory_mb: f64,
    disk_mb_s: f64,
}

impl<'s> Loaded<'s> {
    fn new(tier: &'s TierSpec, shares: Shares, speed: f64) -> Self {
        let share = |share: Fraction| share.value().clamp(LEAST_SHARE, 1.0);
        Self {
            tier,
            cores: share(shares.cpu) * tier.host.cores * speed,
            memory_mb: share(shares.memory) * tier.host.memory_mb,
            disk_mb_s: share(shares.disk) * tier.host.disk_mb_s,
        }
    }

    /// Slower by what neighbours use of the host.
    fn beside(mut self, neighbours: HostUse, disturbance: &Disturbance) -> Self {
        self.cores /= 1.0 + disturbance.cpu_neighbours.max(0.0) * neighbours.cpu.value();
        self.disk_mb_s /= 1.0 + disturbance.disk_neighbours.max(0.0) * neighbours.disk.value();
        self
    }

    /// Memory that is in use over the memory that there is.
    fn pressure(&self, in_flight: f64) -> f64 {
        (self.tier.working_set_mb + self.tier.request_mb * in_flight) / self.memory_mb
    }

    /// Misses per reference: half of them where the working set fits exactly.
    fn llc_miss_rate(&self, in_flight: f64) -> f64 {
        let pressure = self.pressure(in_flight);
        pressure / (1.0 + pressure)
    }

    /// CPU seconds of a request on one core.
    fn cpu_s(&self, in_flight: f64) -> f64 {
        self.tier.cpu_s * (1.0 + self.tier.stall * self.llc_miss_rate(in_flight))
    }

    /// Seconds of a request on the disk. Reuse falls off exponentially over the working set, so that a little memory holds the
    /// most used data.
    fn disk_s(&self, in_flight: f64) -> f64 {
        let not_in_memory = (-std::f64::consts::E / self.pressure(in_flight).max(1e-9)).exp();
        (self.tier.read_mb * not_in_memory + self.tier.write_mb) / self.disk_mb_s
    }
}

/// One tier of a closed network in equilibrium.
#[derive(Debug, Clone, Copy, Default)]
struct TierEquilibrium {
    /// Requests queueing for and using CPU and disk.
    cpu_queue: f64,
    disk_queue: f64,
    /// Requests that are served at the speed of one core where there are more.
    delayed: f64,
    cpu: f64,
    disk: f64,
}

impl TierEquilibrium {
    fn in_flight(&self) -> f64 {
        self.cpu_queue + self.disk_queue + self.delayed
    }
}

struct Equilibrium {
    throughput: f64,
    tiers: Vec<TierEquilibrium>,
}

/// Approximate mean value analysis (Schweitzer and Bard) of a closed network in which what a request needs grows with the
/// requests in flight at its tier. `phase` multiplies what all of them need.
fn equilibrium(tiers: &[Loaded<'_>], phase: f64, think_s: f64, clients: f64) -> Equilibrium {
    let mut found = Equilibrium { throughput: 0.0, tiers: vec![TierEquilibrium::default(); tiers.len()] };
    // What an arriving client finds of a queue that it belongs to itself.
    let others = ((clients - 1.0) / clients).max(0.0);
    for _ in 0..MOST_ITERATIONS {
        let mut times = Vec::with_capacity(tiers.len());
        let mut response_s = 0.0;
        for (tier, at) in tiers.iter().zip(&found.tiers) {
            let in_flight = at.in_flight();
            let (one_core_s, disk_s) = (tier.cpu_s(in_flight) * phase, tier.disk_s(in_flight) * phase);
            // Several cores are one fast one and a delay, so that a request alone goes at the speed of one core
            // (Seidmann et al. 1987).
            let cpu_s = one_core_s / tier.cores;
            let delay_s = (one_core_s - cpu_s).max(0.0);
            let waited = (cpu_s * (1.0 + others * at.cpu_queue), disk_s * (1.0 + others * at.disk_queue));
            response_s += waited.0 + waited.1 + delay_s;
            times.push((waited, delay_s, cpu_s, disk_s));
        }
        let throughput = clients / (think_s + response_s);
        let mut moved = (throughput - found.throughput).abs() / throughput.max(f64::MIN_POSITIVE);
        for (at, (waited, delay_s, cpu_s, disk_s)) in found.tiers.iter_mut().zip(times) {
            let towards = |old: f64, new: f64| old + DAMPING * (new - old);
            moved = moved.max((throughput * waited.0 - at.cpu_queue).abs() / clients);
            *at = TierEquilibrium {
                cpu_queue: towards(at.cpu_queue, throughput * waited.0),
                disk_queue: towards(at.disk_queue, throughput * waited.1),
                delayed: towards(at.delayed, throughput * delay_s),
                cpu: (throughput * cpu_s).min(1.0),
                disk: (throughput * disk_s).min(1.0),
            };
        }
        found.throughput = throughput;
        if moved < 1e-9 {
            break;
        }
    }
    found
}

/// What a tier did over an interval, as means over its phases.
#[derive(Debug, Clone, Copy, Default)]
struct Means {
    cpu: f64,
    disk: f64,
    iowait: f64,
    in_flight: f64,
}

/// What all parts of an interval have in common.
struct Conditions<'n> {
    clients: f64,
    think_s: f64,
    /// The hosts' speed.
    speed: f64,
    /// Error of the measured response time, as a factor.
    measured: f64,
    /// How much longer a response takes because of a pause.
    slowdown: f64,
    /// What others use of the host of each tier.
    neighbours: &'n [HostUse],
}

/// A host of chapter 3: 24 logical CPUs, 32 GB.
const LARGE_HOST: HostSpec = HostSpec { cores: 24.0, memory_mb: 32_768.0, disk_mb_s: 100.0 };
/// A host of chapter 4: 8 cores, 8 GB of which the control domain has 4.
const SMALL_HOST: HostSpec = HostSpec { cores: 8.0, memory_mb: 4_096.0, disk_mb_s: 100.0 };
/// Noise after the recorded speed of cloud databases and the sampling error of a mean, see `docs/services.md`.
const NOISE: Noise = Noise { speed_variation: 0.024, speed_correlation: 0.76, response_variation: 0.035 };

/// Tomcat and what is in front of it: little of everything.
const fn front_end(host: HostSpec, cpu_s: f64) -> TierSpec {
    TierSpec {
        name: "front end",
        host,
        cpu_s,
        stall: 0.5,
        working_set_mb: 500.0,
        request_mb: 5.0,
        read_mb: 0.0,
        write_mb: 0.001,
    }
}

impl ServiceSpec {
    /// The shop of Wei, chapter 3: browsing mix, a front end and a database on hosts of their own, of which the database is
    /// the bottleneck.
    #[must_use]
    pub fn browsing() -> Self {
        let database = TierSpec {
            name: "database",
            host: LARGE_HOST,
            cpu_s: 0.0597,
            stall: 0.5,
            working_set_mb: 800.0,
            request_mb: 10.0,
            read_mb: 0.5,
            write_mb: 0.01,
        };
        Self {
            name: "browsing",
            tiers: vec![front_end(LARGE_HOST, 0.010), database],
            think_s: 1.0,
            interval_s: 30.0,
            mix_variation: 0.7,
            noise: NOISE,
            disturbance: Disturbance::NONE,
        }
    }

    /// TPC-W of Wei, chapter 4: a front end and a database, hungry for CPU.
    #[must_use]
    pub fn tpcw() -> Self {
        let database = TierSpec {
            name: "database",
            host: SMALL_HOST,
            cpu_s: 0.0090,
            stall: 0.5,
            working_set_mb: 800.0,
            request_mb: 2.0,
            read_mb: 0.3,
            write_mb: 0.004,
        };
        Self {
            name: "tpcw",
            tiers: vec![front_end(SMALL_HOST, 0.002), database],
            think_s: 1.0,
            interval_s: 30.0,
            mix_variation: 0.4,
            noise: NOISE,
            disturbance: Disturbance::NONE,
        }
    }

    /// TPC-C of Wei, chapter 4: one tier that needs little CPU, much memory and disk.
    #[must_use]
    pub fn tpcc() -> Self {
        let database = TierSpec {
            name: "database",
            host: SMALL_HOST,
            cpu_s: 0.00278,
            stall: 0.5,
            working_set_mb: 3_000.0,
            request_mb: 2.0,
            read_mb: 1.7,
            write_mb: 0.1,
        };
        Self {
            name: "tpcc",
            tiers: vec![database],
            think_s: 1.0,
            interval_s: 30.0,
            mix_variation: 0.4,
            noise: NOISE,
            disturbance: Disturbance::NONE,
        }
    }
}

/// Multipliers with mean 1 and this coefficient of variation: the middles of equally likely parts of a log-normal
/// distribution.
fn phases(variation: f64) -> [f64; PHASES] {
    /// Normal quantiles of (i + 1/2) / 16 from the median up; the lower half mirrors them.
    const QUANTILES: [f64; PHASES / 2] =
        [0.078412, 0.237202, 0.402250, 0.579132, 0.776422, 1.009990, 1.318011, 1.862732];
    let deviation = (1.0 + variation * variation).ln().sqrt();
    let mut values = [0.0; PHASES];
    for (pair, quantile) in values.chunks_exact_mut(2).zip(QUANTILES) {
        pair[0] = (deviation * quantile).exp();
        pair[1] = (-deviation * quantile).exp();
    }
    let mean = values.iter().sum::<f64>() / PHASES as f64;
    values.map(|value| value / mean)
}

impl Service {
    /// A service before its first request. Equal seeds give equal noise, whatever the shares.
    #[must_use]
    pub fn new(spec: ServiceSpec, seed: u64) -> Self {
        let mut speed = Random::part(seed, 1);
        let drift = speed.normal();
        Self {
            phases: phases(spec.mix_variation),
            speed,
            response: Random::part(seed, 2),
            pauses: Pauses::new(Random::part(seed, 3)),
            in_force: None,
            drift,
            last_s: None,
            spec,
        }
    }

    /// Its description.
    #[must_use]
    pub fn spec(&self) -> &ServiceSpec {
        &self.spec
    }

    /// Serves one interval of a service without neighbours. `shares` are the tiers', in order; a tier without any gets almost
    /// nothing. `speed` is the hosts' recorded speed in this interval, against 1; without it the speed wanders by itself.
    pub fn step(&mut self, load: Load, shares: &[Shares], speed: Option<f64>) -> Interval {
        self.step_beside(load, shares, &[], speed)
    }

    /// The same beside others: `neighbours` is what they use of the host of each tier, in order.
    pub fn step_beside(
        &mut self,
        load: Load,
        shares: &[Shares],
        neighbours: &[HostUse],
        speed: Option<f64>,
    ) -> Interval {
        let Noise { speed_variation, speed_correlation, response_variation } = self.spec.noise;
        // Drawn whether they are needed or not, so that runs with equal seeds stay comparable.
        let correlation = speed_correlation.clamp(0.0, 1.0);
        self.drift = correlation * self.drift + (1.0 - correlation * correlation).sqrt() * self.speed.normal();
        let measured = self.response.around_one(response_variation);
        let interval_s = self.spec.interval_s;
        let slowdown = self.pauses.slowdown(&self.spec.disturbance, interval_s);
        let speed = speed.unwrap_or(1.0 + speed_variation * self.drift).max(0.1);

        let (clients, think_s) = match load {
            Load::Clients(clients) => (clients, self.spec.think_s),
            Load::Rate(rate) => (rate * OPEN_THINK_S, OPEN_THINK_S),
        };
        let clients = if clients.is_finite() { clients.clamp(0.0, MOST_CLIENTS) } else { 0.0 };
        let conditions = Conditions { clients, think_s, speed, measured, slowdown, neighbours };
        let before = self.in_force.replace(shares.to_vec()).filter(|before| before != shares);
        let dead_s = self.spec.disturbance.dead_s(interval_s);
        match before.filter(|_| dead_s > 0.0) {
            None => self.serve(&conditions, shares, interval_s),
            Some(before) => {
                let late = self.serve(&conditions, &before, dead_s);
                let rest = self.serve(&conditions, shares, interval_s - dead_s);
                late.then(&rest, dead_s / interval_s)
            }
        }
    }

    /// Shares of the tiers that the next interval begins with, where their dead time has gone by already.
    pub fn put_in_force(&mut self, shares: &[Shares]) {
        self.in_force = Some(shares.to_vec());
    }

    /// Serves a part of an interval, or all of it.
    fn serve(&mut self, conditions: &Conditions<'_>, shares: &[Shares], for_s: f64) -> Interval {
        let Conditions { clients, think_s, speed, measured, slowdown, neighbours } = *conditions;
        let nothing = Shares { cpu: Fraction::ZERO, memory: Fraction::ZERO, disk: Fraction::ZERO };
        let shares = shares.iter().copied().chain(std::iter::repeat(nothing));
        let neighbours = neighbours.iter().copied().chain(std::iter::repeat(HostUse::default()));
        let loaded =
            |((tier, shares), neighbours)| Loaded::new(tier, shares, speed).beside(neighbours, &self.spec.disturbance);
        let tiers: Vec<Loaded<'_>> = self.spec.tiers.iter().zip(shares).zip(neighbours).map(loaded).collect();

        // Means over the phases, which last equally long.
        let (mut throughput, mut in_flight) = (0.0, 0.0);
        let mut means = vec![Means::default(); tiers.len()];
        for phase in self.phases.iter().filter(|_| clients > 0.0) {
            let found = equilibrium(&tiers, *phase, think_s, clients);
            throughput += found.throughput / PHASES as f64;
            for (mean, at) in means.iter_mut().zip(&found.tiers) {
                mean.cpu += at.cpu / PHASES as f64;
                mean.disk += at.disk / PHASES as f64;
                mean.iowait += (1.0 - at.cpu) * at.disk / PHASES as f64;
                mean.in_flight += at.in_flight() / PHASES as f64;
                in_flight += at.in_flight() / PHASES as f64;
            }
        }
        let measured_tier = |(tier, mean): (&Loaded<'_>, &Means)| TierInterval {
            cpu: Fraction::clamped(mean.cpu),
            memory: Fraction::clamped(tier.pressure(mean.in_flight).min(1.0)),
            disk: Fraction::clamped(mean.disk),
            llc_miss_rate: Fraction::clamped(tier.llc_miss_rate(mean.in_flight)),
            iowait: Fraction::clamped(mean.iowait),
        };
        let tiers = tiers.iter().zip(&means).map(measured_tier).collect();
        if throughput <= 0.0 {
            self.last_s = None;
            return Interval { response_ms: None, throughput: 0.0, tiers };
        }

        // Little's law.
        let steady_s = in_flight / throughput;
        let before_s = self.last_s.unwrap_or(steady_s);
        // Earlier queues are worked off within one cycle of a client.
        let round_s = think_s + steady_s.max(before_s);
        let rounds = for_s / round_s;
        let left = (-rounds).exp();
        self.last_s = Some(steady_s + (before_s - steady_s) * left);
        let mean_s = (steady_s + (before_s - steady_s) * (1.0 - left) / rounds) * (1.0 + slowdown);
        let throughput = clients / (think_s + mean_s);
        Interval { response_ms: Some(mean_s * measured * 1_000.0), throughput, tiers }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(cpu: f64, memory: f64, disk: f64) -> Shares {
        Shares { cpu: Fraction::clamped(cpu), memory: Fraction::clamped(memory), disk: Fraction::clamped(disk) }
    }

    fn still(mut spec: ServiceSpec) -> ServiceSpec {
        spec.noise = Noise { speed_variation: 0.0, speed_correlation: 0.0, response_variation: 0.0 };
        spec
    }

    fn once(spec: ServiceSpec, clients: f64, shares: &[Shares]) -> Interval {
        Service::new(still(spec), 1).step(Load::Clients(clients), shares, None)
    }

    fn browsing(clients: f64, cap_percent: f64) -> Interval {
        let parts = [shares(8.0 / 24.0, 0.125, 0.5), shares(cap_percent / 2_400.0, 0.0625, 0.5)];
        once(ServiceSpec::browsing(), clients, &parts)
    }

    fn response(interval: &Interval) -> f64 {
        interval.response_ms.unwrap()
    }

    fn near(got: f64, want: f64, part: f64) {
        assert!((got - want).abs() <= part * want, "{got} is not within {part} of {want}");
    }

    #[test]
    fn calibration_of_chapter_3() {
        // 5 to 6 cores are one second for 200 clients, at 96 % of the CPU; the database is the bottleneck.
        let there = browsing(200.0, 550.0);
        near(response(&there), 1_000.0, 0.01);
        near(there.tiers[1].cpu.value(), 0.96, 0.005);
        assert!(there.tiers[0].cpu.value() < 0.2 && there.tiers[1].disk.value() < 0.2);
        assert!(response(&browsing(200.0, 440.0)) > 1_350.0 && response(&browsing(200.0, 660.0)) < 760.0);
        // What is possible for 100 and 300 clients within the bounds.
        assert!(response(&browsing(100.0, 300.0)) < 1_000.0 && response(&browsing(300.0, 1_000.0)) < 1_000.0);
    }

    #[test]
    fn calibration_of_chapter_4() {
        near(response(&once(ServiceSpec::tpcw(), 500.0, &[shares(0.8, 0.25, 0.16); 2])), 100.0, 0.02);
        let tpcc = |cpu, memory| response(&once(ServiceSpec::tpcc(), 100.0, &[shares(cpu, memory, 0.6)]));
        near(tpcc(0.07, 0.5), 50.0, 0.02);
        near(tpcc(0.06, 1.0), 50.0, 0.02);
        assert!(tpcc(0.06, 0.5) > 60.0, "CPU is the bottleneck there");
    }

    #[test]
    fn a_single_queue_is_the_textbooks() {
        // One station of 0.1 s, 1 s of thinking, 3 clients, by exact mean value analysis: R = 0.1, 0.10909…, 0.1196…;
        // the approximation is a little above.
        let tier = TierSpec { stall: 0.0, write_mb: 0.0, ..front_end(HostSpec { cores: 1.0, ..SMALL_HOST }, 0.1) };
        let tier = Loaded::new(&tier, shares(1.0, 1.0, 1.0), 1.0);
        let time = |clients| {
            let found = equilibrium(std::slice::from_ref(&tier), 1.0, 1.0, clients);
            found.tiers[0].in_flight() / found.throughput
        };
        near(time(1.0), 0.1, 1e-6);
        near(time(3.0), 0.119_608, 0.02);
        // Far beyond saturation: N·D − Z.
        near(time(100.0), 9.0, 2e-3);
    }

    #[test]
    fn more_of_anything_is_never_slower() {
        for (spec, clients) in [(ServiceSpec::tpcw(), 500.0), (ServiceSpec::tpcc(), 100.0)] {
            let time = |cpu: f64, memory: f64, disk: f64, clients: f64| {
                response(&once(spec.clone(), clients, &[shares(cpu, memory, disk); 2]))
            };
            for (less, more) in [(0.2, 0.3), (0.4, 0.5), (0.7, 0.9)] {
                assert!(time(more, 0.5, 0.5, clients) <= time(less, 0.5, 0.5, clients) + 1e-6);
                assert!(time(0.5, more, 0.5, clients) <= time(0.5, less, 0.5, clients) + 1e-6);
                assert!(time(0.5, 0.5, more, clients) <= time(0.5, 0.5, less, clients) + 1e-6);
                assert!(time(0.5, 0.5, 0.5, clients * less) <= time(0.5, 0.5, 0.5, clients * more) + 1e-6);
            }
            let misses = |memory| once(spec.clone(), clients, &[shares(0.5, memory, 0.5); 2]).tiers[0].llc_miss_rate;
            assert!(misses(0.2) > misses(0.4));
        }
    }

    #[test]
    fn queues_take_their_time() {
        let mut service = Service::new(still(ServiceSpec::browsing()), 1);
        let parts = |cap: f64| [shares(8.0 / 24.0, 0.125, 0.5), shares(cap / 2_400.0, 0.0625, 0.5)];
        let slow = response(&service.step(Load::Clients(300.0), &parts(200.0), None));
        let after = response(&service.step(Load::Clients(300.0), &parts(850.0), None));
        let later = response(&service.step(Load::Clients(300.0), &parts(850.0), None));
        assert!(slow > 5_000.0 && after > 1.3 * later && after < slow, "{slow} {after} {later}");
    }

    #[test]
    fn odd_loads_and_shares() {
        let mut service = Service::new(ServiceSpec::browsing(), 1);
        let idle = service.step(Load::Clients(0.0), &[], None);
        assert_eq!((idle.response_ms, idle.throughput, idle.tiers.len()), (None, 0.0, 2));
        assert_eq!(service.step(Load::Clients(f64::NAN), &[], Some(f64::NAN)).response_ms, None);
        let starved = service.step(Load::Clients(1e9), &[], Some(0.0));
        assert!(response(&starved).is_finite() && starved.throughput >= 0.0);
        let open = |rate| {
            let parts = [shares(8.0 / 24.0, 0.125, 0.5), shares(550.0 / 2_400.0, 0.0625, 0.5)];
            Service::new(still(ServiceSpec::browsing()), 1).step(Load::Rate(rate), &parts, None)
        };
        near(open(30.0).throughput, 30.0, 0.05);
        assert!(response(&open(120.0)) > 5.0 * response(&open(30.0)));
    }

    #[test]
    fn noise() {
        let mut service = Service::new(ServiceSpec::browsing(), 7);
        let parts = [shares(8.0 / 24.0, 0.125, 0.5), shares(550.0 / 2_400.0, 0.0625, 0.5)];
        let times: Vec<f64> =
            (0..2_000).map(|_| response(&service.step(Load::Clients(200.0), &parts, None)) / 1_000.0).collect();
        let deviation = (times.iter().map(|time| (time - 1.0).powi(2)).sum::<f64>() / 2_000.0).sqrt();
        assert!((0.04..0.07).contains(&deviation), "{deviation}");
        let speeds = |seed| Service::new(ServiceSpec::browsing(), seed).step(Load::Clients(200.0), &parts, None);
        assert_eq!(speeds(3), speeds(3));
        assert_ne!(speeds(3), speeds(4));
    }
}
