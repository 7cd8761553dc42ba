//! Comparisons that are hard to win: against fixed shares at the same operating point, against the cheapest fixed shares
//! that meet the targets, against each other controller at its best setting, and against no control at all. In: the
//! experiments' runs, seeds. Out: figures. Called by the experiment.

use gleaner_planner::balance::Share;
use gleaner_planner::balance::application::{Observation, Request};
use gleaner_planner::policy::Policy;
use gleaner_simulator::service::{Disturbance, HostUse, Load, Noise, Service};
use gleaner_types::units::{CoreShare, Fraction};

use super::figures::{Drawn, detail, figure, median, over};
use super::rivals::{Rival, best};
use super::runs::{
    Control, Course, Experiment, FOUND, Hosted, INTERVALS, Method, SETTLED, TierCourse, given, mean, neighbours,
    run_with,
};
use super::surge::in_parts;
use crate::Reproduction;

/// Most that R(e) may be over that of fixed shares, and what is held over what the cheapest hold.
const MOST_OVER_FIXED: f64 = 1.2;
const MOST_OVER_CHEAPEST: f64 = 1.1;
/// A tenant is harmed whose slow intervals are more by so many percent of all.
const HARMED: f64 = 2.0;

/// Shares that stay what they are.
struct Fixed;

impl Policy for Fixed {
    fn request(&mut self, observed: &Observation, _: CoreShare) -> Request {
        let shares: Vec<Share> = observed.shares.iter().map(|share| share.share).collect();
        let gains = vec![0.0; shares.len()];
        Request::without_model(observed, shares, gains)
    }
}

fn fixed(shares: Vec<Vec<Share>>, hosted: &[Hosted], seed: u64) -> Vec<Course> {
    let policies = hosted.iter().map(|_| Box::new(Fixed) as Box<dyn Policy>).collect();
    run_with(Control::of(Method::BConf, policies), shares, hosted, seed)
}

/// Means of an application's shares from an interval on.
fn held(course: &Course, from: usize) -> Vec<f64> {
    let tiers = course.tiers.first().map_or(0, Vec::len);
    let of = |tier: usize| {
        let own = || course.tiers.iter().skip(from).map(move |tiers| tiers[tier]);
        [mean(own().map(|own| own.cpu)), mean(own().map(|own| own.disk))]
    };
    (0..tiers).flat_map(of).collect()
}

/// Response over the target with these shares beside these neighbours, without noise and pauses.
fn response(hosted: &Hosted, clients: f64, beside: &[HostUse], shares: &[f64]) -> f64 {
    let mut spec = hosted.spec.clone();
    spec.noise = Noise { speed_variation: 0.0, speed_correlation: 0.0, response_variation: 0.0 };
    spec.disturbance.pause_part = 0.0;
    let shares: Vec<Share> = shares.iter().map(|share| Share::clamped(*share)).collect();
    let given = given(&hosted.tiers, &shares);
    let seen = Service::new(spec, 1).step_beside(Load::Clients(clients), &given, beside, None);
    seen.response_ms.map_or(f64::INFINITY, |response_ms| response_ms / hosted.target_ms)
}

/// The shares of the least sum that meet the target without noise: from `begin`, one share is made smaller and another as much
/// larger as the target needs, as long as that saves something.
fn cheapest(hosted: &Hosted, clients: f64, beside: &[HostUse], begin: &[f64]) -> Vec<f64> {
    const LEAST: f64 = 0.01;
    const HALVINGS: u32 = 30;
    // The least that one share may be with the others as they are.
    let needed = |shares: &[f64], index: usize| {
        let (mut low, mut high) = (LEAST, 1.0);
        let with = |value: f64| {
            let mut shares = shares.to_vec();
            shares[index] = value;
            response(hosted, clients, beside, &shares)
        };
        (with(high) <= 1.0).then(|| {
            for _ in 0..HALVINGS {
                let middle = f64::midpoint(low, high);
                if with(middle) <= 1.0 { high = middle } else { low = middle }
            }
            high
        })
    };
    let mut best = begin.to_vec();
    // What is met with room is first cut, and what is missed raised, all alike.
    let scaled = |factor: f64| begin.iter().map(|share| (share * factor).clamp(LEAST, 1.0)).collect::<Vec<_>>();
    let (mut low, mut high) = (0.1, 10.0);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if response(hosted, clients, beside, &scaled(middle)) <= 1.0 { high = middle } else { low = middle }
    }
    best.clone_from(&scaled(high));
    let mut step = 0.3;
    while step > 0.005 {
        let mut moved = false;
        for smaller in 0..best.len() {
            for larger in (0..best.len()).filter(|larger| *larger != smaller) {
                let mut tried = best.clone();
                tried[smaller] = (tried[smaller] * (1.0 - step)).max(LEAST);
                let Some(needed) = needed(&tried, larger) else { continue };
                tried[larger] = needed;
                if tried.iter().sum::<f64>() < best.iter().sum::<f64>() - 1e-6 {
                    (best, moved) = (tried, true);
                }
            }
        }
        if !moved {
            step /= 2.0;
        }
    }
    best
}

/// What the comparisons are made with.
pub(super) struct Fair<'s> {
    /// What disturbs the services.
    pub(super) disturbance: Disturbance,
    /// Seeds of the experiments' runs.
    pub(super) seeds: &'s [u64],
    /// Seeds from 1 on, on which the settings of the other controllers are chosen.
    pub(super) tuning_runs: u64,
}

pub(super) fn fair_figures(
    out: &mut Reproduction,
    [constant, changing, contended]: [&Experiment; 3],
    fair: &Fair<'_>,
    progress: &(dyn Fn(&str, usize, usize) + Sync),
) {
    let Fair { disturbance, seeds, tuning_runs } = *fair;
    over_fixed(out, constant, seeds);
    over_cheapest(out, constant);
    let rivals = best(out, disturbance, tuning_runs, &|at, all| progress("settings of others", at, all));
    progress("other controllers", 0, rivals.len());
    let own = [constant, changing].map(|experiment| Own::of(&experiment.hosted, seeds));
    let mut ratios = Vec::new();
    for (at, rival) in rivals.iter().copied().enumerate() {
        progress("other controllers", at, rivals.len());
        let both = [(constant, &own[0]), (changing, &own[1])];
        ratios.push((rival.name(), both.map(|(experiment, own)| against(out, experiment, own, rival, seeds))));
    }
    let least =
        |of: &dyn Fn(&Ratios) -> f64| ratios.iter().flat_map(|(_, both)| both).map(of).fold(f64::INFINITY, f64::min);
    let ours = over(seeds.len(), |drawn| least(&|ratios| drawn.median(&ratios.relieved)));
    let listed = ratios.iter().map(|(name, both)| {
        let [constant, changing] = both.each_ref().map(|ratios| median(ratios.relieved.clone()));
        format!("{name} {constant:.2} and {changing:.2}")
    });
    let note = format!(
        "R(e) of TPC-W without the first {FOUND} intervals over that of BConf with its relief of surges, same noise, median over \
         {} seeds, constant and changing load, each controller at its best settings on seeds 1 to {tuning_runs}; the least counts: {}; BConf \
         without relief: {:.2}; of means over the seeds, not medians: {:.2}",
        seeds.len(),
        listed.collect::<Vec<_>>().join(", "),
        least(&|ratios| median(ratios.alone.clone())),
        least(&|ratios| mean(ratios.relieved.iter().copied()))
    );
    let target = ("at least 1", ours.ours >= 1.0);
    out.figures.push(figure("bconf.best_baseline_ratio", None, ours, "times", target, note));
    harmed(out, [constant, changing, contended], seeds);
}

/// R(e) of another controller over ours, of each seed.
struct Ratios {
    /// Over BConf's with relief of surges, as it is shipped.
    relieved: Vec<f64>,
    /// Over BConf's without.
    alone: Vec<f64>,
}

/// R(e) of TPC-W of each seed under BConf, with and without relief of surges.
struct Own {
    relieved: Vec<f64>,
    alone: Vec<f64>,
}

impl Own {
    fn of(hosted: &[Hosted], seeds: &[u64]) -> Self {
        let of = |relieves: bool| {
            let run = |seed: &u64| {
                let control = Control::new(Method::BConf, hosted.len());
                in_parts(control, hosted.to_vec(), relieves, *seed).deviation_from(FOUND)
            };
            seeds.iter().map(run).collect()
        };
        Self { relieved: of(true), alone: of(false) }
    }
}

fn against(out: &mut Reproduction, experiment: &Experiment, own: &Own, rival: Rival, seeds: &[u64]) -> Ratios {
    let of = |seed: &u64| rival.run(&experiment.hosted, *seed).deviation_from(FOUND);
    let others: Vec<f64> = seeds.iter().map(of).collect();
    let case = || format!("tpcw, {}", rival.name());
    detail(out, experiment.name, case(), "R(e) at its best setting, median", median(others.clone()), "%");
    detail(out, experiment.name, case(), "R(e) at its best setting, mean", mean(others.iter().copied()), "%");
    let ratio = |own: &[f64]| others.iter().zip(own).map(|(other, own)| other / own).collect();
    Ratios { relieved: ratio(&own.relieved), alone: ratio(&own.alone) }
}

fn over_fixed(out: &mut Reproduction, constant: &Experiment, seeds: &[u64]) {
    let names: Vec<&str> = constant.hosted.iter().map(|hosted| hosted.name).collect();
    let mut ratios = vec![Vec::new(); names.len()];
    for (run, seed) in seeds.iter().enumerate() {
        let own: Vec<&Course> =
            names.iter().filter_map(|name| constant.courses(Method::BConf, name).nth(run)).collect();
        let shares = |course: &&Course| held(course, FOUND).into_iter().map(Share::clamped).collect();
        let same = fixed(own.iter().map(shares).collect(), &constant.hosted, *seed);
        for ((ratios, own), same) in ratios.iter_mut().zip(&own).zip(&same) {
            ratios.push(own.deviation_from(FOUND) / same.deviation_from(FOUND));
        }
    }
    let ours = over(seeds.len(), |drawn| ratios.iter().map(|by_run| drawn.median(by_run)).fold(0.0, f64::max));
    let listed = names.iter().zip(&ratios).map(|(name, by_run)| {
        format!("{name} {:.2} (mean {:.2})", median(by_run.clone()), mean(by_run.iter().copied()))
    });
    let note = format!(
        "R(e) from interval {FOUND} on over that of shares fixed at what BConf held on average, same noise, median over the \
         seeds, the most of: {}",
        listed.collect::<Vec<_>>().join(", ")
    );
    let target = ("at most 1.2", ours.ours <= MOST_OVER_FIXED);
    out.figures.push(figure("bconf.static_floor_ratio", None, ours, "times", target, note));
}

/// What the tiers of an application use of their hosts with BConf from the middle on.
fn used_on_average(experiment: &Experiment, hosted: &Hosted) -> Vec<HostUse> {
    let of = |tier: usize, value: fn(&TierCourse) -> f64| {
        let courses = experiment.courses(Method::BConf, hosted.name);
        let tiers = courses.flat_map(|course| course.tiers.iter().skip(INTERVALS / 2));
        Fraction::clamped(mean(tiers.map(|tiers| value(&tiers[tier]))))
    };
    let own = |tier| HostUse {
        cpu: of(tier, |tier| tier.cpu * tier.cpu_used),
        disk: of(tier, |tier| tier.disk * tier.disk_used),
    };
    (0..hosted.tiers.len()).map(own).collect()
}

fn over_cheapest(out: &mut Reproduction, constant: &Experiment) {
    // Of each tenant, of each run.
    let (mut ratios, mut notes) = (Vec::new(), Vec::new());
    // What all use on average, by which they disturb each other.
    let used: Vec<Vec<HostUse>> = constant.hosted.iter().map(|hosted| used_on_average(constant, hosted)).collect();
    for (application, hosted) in constant.hosted.iter().enumerate() {
        // From the middle on, so that what it began with does not count.
        let all_held = |course: &Course| held(course, INTERVALS / 2).iter().sum::<f64>();
        let own = constant.by_run(Method::BConf, hosted.name, all_held);
        let other = median(constant.by_run(Method::AutoControl, hosted.name, all_held));
        let begin: Vec<f64> = hosted.first_shares().iter().map(|share| share.part()).collect();
        let clients = hosted.clients.first().copied().unwrap_or(0.0);
        let beside = neighbours(&constant.hosted, &used, application);
        let cheapest = cheapest(hosted, clients, &beside, &begin);
        let sum: f64 = cheapest.iter().sum();
        let by_run: Vec<f64> = own.iter().map(|own| own / sum).collect();
        let listed = cheapest.iter().map(|share| format!("{:.0}", share * 100.0)).collect::<Vec<_>>().join(" ");
        notes.push(format!(
            "{} {:.2} (mean {:.2}; AutoControl {:.2}; cheapest, CPU and disk of each tier: {listed} %)",
            hosted.name,
            median(by_run.clone()),
            mean(by_run.iter().copied()),
            other / sum
        ));
        ratios.push(by_run);
    }
    let runs = ratios.first().map_or(0, Vec::len);
    let worst = over(runs, |drawn| ratios.iter().map(|by_run| drawn.median(by_run)).fold(0.0, f64::max));
    let note = format!(
        "sum of the shares of CPU and disk held from interval {} on, over that of the cheapest fixed shares that meet the target \
         without noise and pauses, the most of: {}",
        INTERVALS / 2,
        notes.join(", ")
    );
    let target = ("at most 1.1", worst.ours <= MOST_OVER_CHEAPEST);
    out.figures.push(figure("bconf.held_over_cheapest", None, worst, "times", target, note));
}

/// Tenants that have more slow intervals than with the shares that they began with.
fn harmed(out: &mut Reproduction, experiments: [&Experiment; 3], seeds: &[u64]) {
    // Of each tenant: intervals of each run that are slow with each method, and without control.
    let (mut tenants, mut notes) = (Vec::new(), Vec::new());
    for experiment in experiments {
        let first = || experiment.hosted.iter().map(Hosted::first_shares).collect();
        let without: Vec<Vec<Course>> = seeds.iter().map(|seed| fixed(first(), &experiment.hosted, *seed)).collect();
        for (index, hosted) in experiment.hosted.iter().enumerate() {
            let slow: Vec<f64> = without.iter().map(|run| run[index].too_slow()).collect();
            let own = Method::ALL.map(|method| experiment.by_run(method, hosted.name, Course::too_slow));
            let [of_ours, of_none] = [&own[0], &slow].map(|by_run| mean(by_run.iter().copied()));
            if of_ours > of_none + HARMED {
                notes.push(format!("{}, {}: {of_ours:.1} against {of_none:.1} %", experiment.name, hosted.name));
            }
            tenants.push((own, slow));
        }
    }
    let harmed = |method: usize| {
        let is_harmed = |drawn: &Drawn<'_>, (own, slow): &([Vec<f64>; 2], Vec<f64>)| {
            drawn.of(&own[method]) > drawn.of(slow) + HARMED
        };
        over(seeds.len(), |drawn| tenants.iter().map(|tenant| f64::from(is_harmed(drawn, tenant))).sum())
    };
    let [ours, autocontrol] = [0, 1].map(harmed);
    let note = format!(
        "tenants of all three scenarios whose intervals slower than {} of the target are more by {HARMED} % of all than with the \
         shares that they began with; AutoControl {:.0}; {}",
        1.0 + SETTLED,
        autocontrol.ours,
        if notes.is_empty() { "none".to_owned() } else { notes.join(", ") }
    );
    out.figures.push(figure("bconf.harmed", None, ours, "tenants", ("0", ours.ours < 1.0), note));
}
