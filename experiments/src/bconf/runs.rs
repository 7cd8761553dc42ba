//! The applications of the experiments, where they run and with what load, who controls them, and what became of them.
//! In: a method, the applications, a seed. Out: each application's course, and means over the runs of an experiment.
//! Called by the experiment; `accuracy` uses its constants and helpers.

use gleaner_planner::balance::application::{Application, Observation, ObservedShare, Settings};
use gleaner_planner::balance::arbitration::{Demand, arbitrate};
use gleaner_planner::balance::{Resource, Share};
use gleaner_planner::policy::Policy;
use gleaner_types::units::{CoreShare, Fraction};

use crate::baselines::autocontrol::{self, AutoControl, partition};
use gleaner_simulator::random::Random;
use gleaner_simulator::service::{Disturbance, HostUse, Interval, Load, Service, ServiceSpec, Shares};

/// Mean response times that are wanted, in milliseconds.
pub(super) const TPCW_TARGET_MS: f64 = 100.0;
pub(super) const TPCC_TARGET_MS: f64 = 50.0;
/// Clients: of TPC-W with a constant load and under contention, and of every TPC-C.
pub(super) const TPCW_CLIENTS: f64 = 500.0;
const TPCW_CONTENDING: f64 = 550.0;
pub(super) const TPCC_CLIENTS: f64 = 100.0;
/// When the load of TPC-W changes, to how many clients, and from how many.
pub(super) const CHANGES: [(usize, f64); 2] = [(30, 500.0), (60, 300.0)];
const FIRST_CLIENTS: f64 = 300.0;
/// Intervals with the first shares before control begins: five minutes.
const WARM_UP: usize = 10;
/// Intervals under control: three changes' worth, as Fig. 4.6.
pub(super) const INTERVALS: usize = 90;
/// Of these, until a controller has found its shares from those that it began with.
pub(super) const FOUND: usize = 20;
/// Least share of anything, m_r, which the arbitrators do not take away either. Chosen.
const FLOOR: f64 = 0.01;
/// What AutoControl's arbitrator has of every resource of a host: the least shares of three tiers are kept back.
const AVAILABLE: f64 = 1.0 - 3.0 * FLOOR;
/// A change is over when the response stays this close to the target, as a part of it, for so many intervals. Chosen, as in
/// [`super::stfc`].
pub(super) const SETTLED: f64 = 0.25;
const SETTLED_INTERVALS: usize = 3;
/// How far the mean response may be above a target that counts as met, under contention.
pub(super) const MET: f64 = 0.1;

/// Where a tier runs and what it begins with, as parts of its host.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Placed {
    pub(super) host: usize,
    pub(super) cpu: f64,
    pub(super) disk: f64,
    /// Stays what it is.
    pub(super) memory: f64,
}

/// An application of a scenario.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Hosted {
    pub(super) name: &'static str,
    pub(super) spec: ServiceSpec,
    pub(super) target_ms: f64,
    pub(super) tiers: Vec<Placed>,
    /// Clients of every interval under control.
    pub(super) clients: Vec<f64>,
}

impl Hosted {
    /// What its tiers begin with: CPU and disk of each.
    pub(super) fn first_shares(&self) -> Vec<Share> {
        self.tiers.iter().flat_map(|tier| [Share::clamped(tier.cpu), Share::clamped(tier.disk)]).collect()
    }
}

fn tpcw(disturbance: Disturbance, clients: Vec<f64>, web_memory: f64) -> Hosted {
    let web = Placed { host: 1, cpu: 0.25, disk: 0.05, memory: web_memory };
    let database = Placed { host: 0, cpu: 0.6, disk: 0.4, memory: 0.25 };
    let spec = ServiceSpec { disturbance, ..ServiceSpec::tpcw() };
    Hosted { name: "tpcw", spec, target_ms: TPCW_TARGET_MS, tiers: vec![web, database], clients }
}

fn tpcc(disturbance: Disturbance, name: &'static str, placed: Placed, intervals: usize) -> Hosted {
    let (tiers, clients) = (vec![placed], vec![TPCC_CLIENTS; intervals]);
    let spec = ServiceSpec { disturbance, ..ServiceSpec::tpcc() };
    Hosted { name, spec, target_ms: TPCC_TARGET_MS, tiers, clients }
}

/// Where the only tier of TPC-C runs where there is enough.
const fn roomy(host: usize) -> Placed {
    Placed { host, cpu: 0.15, disk: 0.5, memory: 0.5 }
}

/// Scenario (a): enough for all.
pub(super) fn enough(disturbance: Disturbance, clients: Vec<f64>) -> Vec<Hosted> {
    let intervals = clients.len();
    let tpcc = |name, host| tpcc(disturbance, name, roomy(host), intervals);
    vec![tpcw(disturbance, clients, 0.25), tpcc("tpcc1", 0), tpcc("tpcc2", 1)]
}

/// Memory for guests on the second host of scenario (b), in MB. The dissertation does not name it; with this one all need some
/// 97 % of the disk when they meet their targets, with the 4 GB of scenario (a) a quarter more than there is.
const SECOND_HOST_MB: f64 = 4_900.0;
/// The same where services are disturbed as recorded, so that all need some 97 % of the disk here too.
const DISTURBED_SECOND_HOST_MB: f64 = 5_100.0;

fn second_host_mb(disturbance: Disturbance) -> f64 {
    if disturbance == Disturbance::NONE { SECOND_HOST_MB } else { DISTURBED_SECOND_HOST_MB }
}

/// Scenario (b): CPU of the first host and disk of the second are about what all need together.
pub(super) fn contended(disturbance: Disturbance) -> Vec<Hosted> {
    let on_second = |name| {
        let placed = Placed { disk: 0.45, memory: 0.45, ..roomy(1) };
        let mut tpcc = tpcc(disturbance, name, placed, INTERVALS);
        tpcc.spec.tiers.iter_mut().for_each(|tier| tier.host.memory_mb = second_host_mb(disturbance));
        tpcc
    };
    let mut tpcw = tpcw(disturbance, vec![TPCW_CONTENDING; INTERVALS], 0.1);
    tpcw.spec.tiers[0].host.memory_mb = second_host_mb(disturbance);
    let on_first = tpcc(disturbance, "tpcc1", roomy(0), INTERVALS);
    vec![tpcw, on_first, on_second("tpcc2"), on_second("tpcc3")]
}

pub(super) fn constant_clients() -> Vec<f64> {
    vec![TPCW_CLIENTS; INTERVALS]
}

pub(super) fn changing_clients() -> Vec<f64> {
    let at =
        |interval| CHANGES.iter().rev().find(|(at, _)| interval >= *at).map_or(FIRST_CLIENTS, |(_, clients)| *clients);
    (0..INTERVALS).map(at).collect()
}

/// Who controls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    BConf,
    AutoControl,
}

impl Method {
    pub(super) const ALL: [Self; 2] = [Self::BConf, Self::AutoControl];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::BConf => "BConf",
            Self::AutoControl => "AutoControl",
        }
    }
}

/// Policies of all applications of a scenario.
pub(super) struct Control {
    method: Method,
    policies: Vec<Box<dyn Policy>>,
}

impl Control {
    pub(super) fn new(method: Method, applications: usize) -> Self {
        let policy = || -> Box<dyn Policy> {
            match method {
                Method::BConf => Box::new(Application::new(Settings::default())),
                Method::AutoControl => Box::new(AutoControl::new(autocontrol::Settings::default())),
            }
        };
        Self::of(method, (0..applications).map(|_| policy()).collect())
    }

    /// Policies of all applications, and whose arbitrator divides what they ask for.
    pub(super) fn of(method: Method, policies: Vec<Box<dyn Policy>>) -> Self {
        Self { method, policies }
    }

    /// Shares of every application, in the order of what was seen, and the part of its request that each got.
    pub(super) fn step(&mut self, hosted: &[Hosted], seen: &[Observation]) -> (Vec<Vec<Share>>, Vec<f64>) {
        let request = |(policy, seen): (&mut Box<dyn Policy>, &Observation)| {
            // Neither counts in cores.
            let request = policy.request(seen, CoreShare::ZERO);
            (request.shares, request.gains)
        };
        let requests: Vec<(Vec<Share>, Vec<f64>)> = self.policies.iter_mut().zip(seen).map(request).collect();
        let mut demands = Vec::new();
        for (application, (((wanted, gains), hosted), seen)) in requests.iter().zip(hosted).zip(seen).enumerate() {
            let places = hosted.tiers.iter().flat_map(|tier| [(tier.host, Resource::Cpu), (tier.host, Resource::Disk)]);
            for ((((host, resource), wanted), gain), seen) in places.zip(wanted).zip(gains).zip(&seen.shares) {
                let (floor, in_use) = (Share::clamped(FLOOR), seen.in_use());
                demands.push(Demand { application, host, resource, wanted: *wanted, floor, in_use, gain: *gain });
            }
        }
        let (granted, parts) = match self.method {
            Method::BConf => {
                let grants = arbitrate(&demands, |_, _| 1.0);
                (grants.shares, grants.parts)
            }
            Method::AutoControl => {
                // It knows no floors: they are kept back from what it arbitrates.
                let shares = partition(&demands, AVAILABLE).into_iter();
                (shares.map(|share| Share::clamped(share.part().max(FLOOR))).collect(), vec![1.0; hosted.len()])
            }
        };
        let mut granted = granted.into_iter();
        let shares = requests.iter().map(|(wanted, _)| granted.by_ref().take(wanted.len()).collect()).collect();
        (shares, parts)
    }
}

/// A tier in an interval: shares, and the parts of them that were used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct TierCourse {
    pub(super) cpu: f64,
    pub(super) disk: f64,
    pub(super) cpu_used: f64,
    pub(super) disk_used: f64,
}

/// What became of one application in a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Course {
    /// Response time over the target, of every interval under control.
    pub(super) relative: Vec<f64>,
    /// Tiers of every interval.
    pub(super) tiers: Vec<Vec<TierCourse>>,
    /// Part of its request that was granted.
    pub(super) part: Vec<f64>,
}

pub(super) fn given(tiers: &[Placed], shares: &[Share]) -> Vec<Shares> {
    let part = |share: Option<&Share>| Fraction::clamped(share.map_or(0.0, |share| share.part()));
    let one = |(placed, shares): (&Placed, &[Share])| Shares {
        cpu: part(shares.first()),
        memory: Fraction::clamped(placed.memory),
        disk: part(shares.get(1)),
    };
    tiers.iter().zip(shares.chunks(2)).map(one).collect()
}

pub(super) fn observed(target_ms: f64, shares: &[Share], seen: &Interval) -> Observation {
    let used = seen.tiers.iter().flat_map(|tier| [(Resource::Cpu, tier.cpu), (Resource::Disk, tier.disk)]);
    let share = |((resource, used), share): ((Resource, Fraction), &Share)| ObservedShare {
        resource,
        share: *share,
        utilisation: Some(used),
        floor: Share::clamped(FLOOR),
        ceiling: Share::clamped(1.0),
    };
    Observation {
        target_ms,
        mean_ms: seen.response_ms,
        unanswered: 0,
        // Of the database, which is the last tier.
        miss_rate: seen.tiers.last().map(|tier| tier.llc_miss_rate),
        shares: used.zip(shares).map(share).collect(),
    }
}

/// What the tiers of each application used of their hosts in an interval with these shares.
pub(super) fn used(seen: &[Interval], shares: &[Vec<Share>]) -> Vec<Vec<HostUse>> {
    let tier = |(shares, tier): (&[Share], &gleaner_simulator::service::TierInterval)| {
        let of = |index: usize, part: Fraction| {
            Fraction::clamped(shares.get(index).map_or(0.0, |share| share.part()) * part.value())
        };
        HostUse { cpu: of(0, tier.cpu), disk: of(1, tier.disk) }
    };
    seen.iter().zip(shares).map(|(seen, shares)| shares.chunks(2).zip(&seen.tiers).map(tier).collect()).collect()
}

/// What the others use of the hosts of an application's tiers.
pub(super) fn neighbours(hosted: &[Hosted], used: &[Vec<HostUse>], application: usize) -> Vec<HostUse> {
    let on = |host: usize, of: fn(&HostUse) -> Fraction| {
        let others = hosted.iter().zip(used).enumerate().filter(|(other, _)| *other != application);
        let tiers = others.flat_map(|(_, (hosted, used))| hosted.tiers.iter().zip(used));
        Fraction::clamped(tiers.filter(|(tier, _)| tier.host == host).map(|(_, used)| of(used).value()).sum())
    };
    let beside = |tier: &Placed| HostUse { cpu: on(tier.host, |used| used.cpu), disk: on(tier.host, |used| used.disk) };
    hosted[application].tiers.iter().map(beside).collect()
}

pub(super) fn run(method: Method, hosted: &[Hosted], seed: u64) -> Vec<Course> {
    let first = hosted.iter().map(Hosted::first_shares).collect();
    run_with(Control::new(method, hosted.len()), first, hosted, seed)
}

/// `shares` are those of the warm-up and of the first interval.
pub(super) fn run_with(mut control: Control, mut shares: Vec<Vec<Share>>, hosted: &[Hosted], seed: u64) -> Vec<Course> {
    let seeds = &mut Random::part(seed, 4);
    let mut services: Vec<Service> =
        hosted.iter().map(|hosted| Service::new(hosted.spec.clone(), seeds.seed())).collect();
    let mut courses = vec![Course::default(); hosted.len()];
    // By all in the last interval, by which they disturb each other in the next one.
    let mut last: Vec<Vec<HostUse>> = vec![Vec::new(); hosted.len()];
    let intervals = hosted.iter().map(|hosted| hosted.clients.len()).min().unwrap_or(0);
    for interval in 0..WARM_UP + intervals {
        let at = interval.saturating_sub(WARM_UP);
        let mut seen = Vec::with_capacity(hosted.len());
        for (application, (service, shares)) in services.iter_mut().zip(&shares).enumerate() {
            let (load, beside) =
                (Load::Clients(hosted[application].clients[at]), neighbours(hosted, &last, application));
            seen.push(service.step_beside(load, &given(&hosted[application].tiers, shares), &beside, None));
        }
        last = used(&seen, &shares);
        if interval < WARM_UP {
            continue;
        }
        for (((course, seen), hosted), shares) in courses.iter_mut().zip(&seen).zip(hosted).zip(&shares) {
            course.relative.push(seen.response_ms.map_or(f64::NAN, |response_ms| response_ms / hosted.target_ms));
            let tier = |(shares, used): (&[Share], &gleaner_simulator::service::TierInterval)| TierCourse {
                cpu: shares.first().map_or(0.0, |share| share.part()),
                disk: shares.get(1).map_or(0.0, |share| share.part()),
                cpu_used: used.cpu.value(),
                disk_used: used.disk.value(),
            };
            course.tiers.push(shares.chunks(2).zip(&seen.tiers).map(tier).collect());
        }
        let observations: Vec<Observation> = hosted
            .iter()
            .zip(&seen)
            .zip(&shares)
            .map(|((hosted, seen), shares)| observed(hosted.target_ms, shares, seen))
            .collect();
        let (next, parts) = control.step(hosted, &observations);
        courses.iter_mut().zip(parts).for_each(|(course, part)| course.part.push(part));
        shares = next;
    }
    courses
}

pub(super) fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, count) = values.into_iter().fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / count
}

impl Course {
    /// R(e) of Eq. 4.15 in percent, with the error of the response time as it is.
    pub(super) fn deviation(&self) -> f64 {
        self.deviation_from(0)
    }

    /// R(e) of the intervals from one on.
    pub(super) fn deviation_from(&self, from: usize) -> f64 {
        mean(self.relative.iter().skip(from).map(|relative| (relative - 1.0).powi(2))).sqrt() * 100.0
    }

    /// Intervals from a change of the load until the response stays within a part above and one below the target, at most
    /// until the next change.
    pub(super) fn settling(&self, at: usize, above: f64, below: f64) -> f64 {
        let after = &self.relative[at.min(self.relative.len())..(at + 30).min(self.relative.len())];
        let inside = |relative: &f64| (1.0 - below..=1.0 + above).contains(relative);
        let settled = |window: &[f64]| window.iter().all(inside);
        after.windows(SETTLED_INTERVALS).position(settled).unwrap_or(after.len()) as f64
    }

    /// Mean over the intervals of something of the last tier, the database.
    pub(super) fn database(&self, value: impl Fn(&TierCourse) -> f64) -> f64 {
        mean(self.tiers.iter().filter_map(|tiers| tiers.last().map(&value)))
    }

    /// How often the response was slower than the target by more than what counts as settled, in percent.
    pub(super) fn too_slow(&self) -> f64 {
        mean(self.relative.iter().map(|relative| f64::from(*relative > 1.0 + SETTLED))) * 100.0
    }

    /// The slowest interval from one on, against the target.
    pub(super) fn worst(&self, from: usize) -> f64 {
        self.relative.iter().skip(from).copied().fold(0.0, f64::max)
    }

    /// Mean response over the second half, against the target.
    pub(super) fn late(&self) -> f64 {
        mean(self.relative[self.relative.len() / 2..].iter().copied())
    }
}

/// All runs of a scenario: for each method, for each run, for each application.
pub(super) struct Experiment {
    pub(super) name: &'static str,
    pub(super) hosted: Vec<Hosted>,
    pub(super) runs: Vec<(Method, Vec<Vec<Course>>)>,
}

impl Experiment {
    /// Mean over the runs of one method of something of one application; there is always one of each.
    pub(super) fn mean(&self, method: Method, name: &str, value: impl Fn(&Course) -> f64) -> f64 {
        mean(self.courses(method, name).map(value))
    }

    /// Something of one application, of each run of one method.
    pub(super) fn by_run(&self, method: Method, name: &str, value: impl Fn(&Course) -> f64) -> Vec<f64> {
        self.courses(method, name).map(value).collect()
    }

    pub(super) fn courses(&self, method: Method, name: &str) -> impl Iterator<Item = &Course> {
        let position = self.hosted.iter().position(|hosted| hosted.name == name);
        let runs = self.runs.iter().filter(move |(other, _)| *other == method).flat_map(|(_, runs)| runs);
        runs.filter_map(move |run| run.get(position?))
    }

    pub(super) fn deviation(&self, method: Method, name: &str) -> f64 {
        self.mean(method, name, Course::deviation)
    }

    /// How much better BConf is, in percent of its own R(e), as §4.7.1 compares errors.
    pub(super) fn gain(&self, name: &str) -> f64 {
        (self.deviation(Method::AutoControl, name) / self.deviation(Method::BConf, name) - 1.0) * 100.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gleaner_simulator::service::TierInterval;

    fn course(relative: Vec<f64>) -> Course {
        Course { relative, ..Course::default() }
    }

    #[test]
    fn eq_4_15_and_settling_by_hand() {
        // Errors 0.1, −0.2 and 3: sqrt((0.01 + 0.04 + 9) / 3).
        assert!((course(vec![1.1, 0.8, 4.0]).deviation() - (9.05_f64 / 3.0).sqrt() * 100.0).abs() < 1e-9);
        let mut relative = vec![1.0; INTERVALS];
        relative[30..34].copy_from_slice(&[3.0, 1.5, 0.5, 1.1]);
        let course = course(relative);
        assert!(
            (course.settling(30, 0.25, 0.25) - 3.0).abs() < 1e-9 && (course.settling(30, 0.25, 1.0) - 2.0).abs() < 1e-9
        );
        assert!((course.settling(60, 0.25, 0.25)).abs() < 1e-9);
    }

    fn host_use(cpu: f64, disk: f64) -> HostUse {
        HostUse { cpu: Fraction::clamped(cpu), disk: Fraction::clamped(disk) }
    }

    #[test]
    fn neighbours_are_the_others_on_the_same_host() {
        let of_tpcw = vec![host_use(0.25, 0.0), host_use(0.5, 0.25)];
        let used = [of_tpcw.clone(), vec![host_use(0.125, 0.5)], vec![host_use(0.0, 0.25)]];
        let beside = |application| neighbours(&enough(Disturbance::NONE, constant_clients()), &used, application);
        assert_eq!(beside(0), [host_use(0.0, 0.25), host_use(0.125, 0.5)], "front end, database");
        assert_eq!([beside(1), beside(2)], [[host_use(0.5, 0.25)], [host_use(0.25, 0.0)]]);
        // Two of one host.
        let used = [of_tpcw, vec![host_use(0.0, 0.0)], vec![host_use(0.125, 0.5)], vec![host_use(0.25, 0.25)]];
        assert_eq!(neighbours(&contended(Disturbance::NONE), &used, 0)[0], host_use(0.375, 0.75));
    }

    #[test]
    fn what_is_used_is_a_part_of_the_share() {
        let half = Fraction::clamped(0.5);
        let tier = TierInterval { cpu: half, memory: half, disk: half, llc_miss_rate: half, iowait: half };
        let seen = [Interval { response_ms: None, throughput: 0.0, tiers: vec![tier] }];
        let found = used(&seen, &[vec![Share::clamped(0.5), Share::clamped(0.25)]]);
        assert_eq!(found, [[host_use(0.25, 0.125)]]);
    }

    #[test]
    fn disturbances_slow_down_and_are_the_seed_s() {
        let first = |disturbance| {
            let hosted = enough(disturbance, constant_clients());
            let courses = run(Method::BConf, &hosted, 5);
            assert_eq!(run(Method::BConf, &hosted, 5), courses);
            courses[0].relative[0]
        };
        assert!(first(Disturbance::RECORDED) > first(Disturbance::NONE), "its neighbours use the disk and the CPU");
    }

    #[test]
    fn loads() {
        let clients = changing_clients();
        assert_eq!((clients.len(), clients[29], clients[30]), (90, 300.0, 500.0));
        assert_eq!((clients[59], clients[60], clients[89]), (500.0, 300.0, 300.0));
    }

    /// Mean response of a TPC-C of the second host of scenario (b) over its target, without noise of the machine.
    fn second_host(disturbance: Disturbance, disk: f64) -> f64 {
        let mut tpcc = contended(disturbance).swap_remove(2);
        tpcc.spec.noise.response_variation = 0.0;
        tpcc.spec.disturbance.pause_part = 0.0;
        let shares = [Share::clamped(0.15), Share::clamped(disk)];
        // The other uses some 30 % of the disk.
        let beside = [host_use(0.1, 0.3)];
        let (load, given) = (Load::Clients(TPCC_CLIENTS), given(&tpcc.tiers, &shares));
        let seen = Service::new(tpcc.spec, 1).step_beside(load, &given, &beside, Some(1.0));
        seen.response_ms.unwrap() / TPCC_TARGET_MS * (1.0 + disturbance.pause_part * disturbance.pause_slowdown)
    }

    #[test]
    fn the_disk_of_the_second_host_is_about_what_all_need() {
        // Two of them and the front end, which needs a hundredth.
        for disturbance in [Disturbance::NONE, Disturbance::RECORDED] {
            let [with_half, with_less] = [0.49, 0.46].map(|disk| second_host(disturbance, disk));
            assert!(with_half < 1.0 && with_less > 1.0, "{disturbance:?}: {with_half} {with_less}");
        }
    }

    #[test]
    fn a_short_run_holds_its_targets_and_hosts_give_no_more_than_they_have() {
        let hosted = contended(Disturbance::NONE);
        let courses = run(Method::BConf, &hosted, 11);
        for (hosted, course) in hosted.iter().zip(&courses) {
            assert!((0.85..1.0 + MET).contains(&course.late()), "{}: {}", hosted.name, course.late());
        }
        for method in Method::ALL {
            let courses = run(method, &hosted, 12);
            // What it begins with may be more.
            for interval in 1..INTERVALS {
                let (mut cpu, mut disk) = ([0.0; 2], [0.0; 2]);
                for (hosted, course) in hosted.iter().zip(&courses) {
                    for (placed, tier) in hosted.tiers.iter().zip(&course.tiers[interval]) {
                        cpu[placed.host] += tier.cpu;
                        disk[placed.host] += tier.disk;
                    }
                }
                assert!(cpu.iter().chain(&disk).all(|sum| *sum <= 1.0 + 1e-9), "{interval}: {cpu:?} {disk:?}");
            }
        }
    }
}
