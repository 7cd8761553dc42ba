//! A surge of load, with and without relief between control intervals: 300 → 500 and 50 → 500 clients of TPC-W. In: seeds.
//! Out: figures. Called by the experiment.
//!
//! An interval is stepped in parts, so that the relief may come within it: two seconds after the CPU or the disk has been
//! strained for three, which the questions to the source and the command take. Both ways have the same noise.

use gleaner_planner::balance::application::Observation;
use gleaner_planner::balance::surge::{SLOW, STRAINED_S, is_strained, raised};
use gleaner_planner::balance::{Resource, Share};
use gleaner_simulator::random::Random;
use gleaner_simulator::service::{Disturbance, HostUse, Interval, Load, Service, TierInterval};
use gleaner_types::units::Fraction;

use super::figures::{figure, over};
use super::runs::{
    Control, Course, Hosted, INTERVALS, Method, TPCW_CLIENTS, enough, given, mean, neighbours, observed, used,
};
use crate::Reproduction;

/// Parts of an interval.
const PARTS: usize = 6;
/// Interval of the surge.
const AT: usize = 30;
/// Slower than this over the target counts as an interval of the surge, and the most that the worst may be.
const TOO_SLOW: f64 = 1.25;
const MOST_INTERVALS: f64 = 2.0;
/// Intervals that are looked at once the surge has first calmed, and how many of them may be too slow. Chosen: ten minutes, and
/// as many as of the surge itself.
const LATER: usize = 20;
const MOST_LATER: f64 = 2.0;
const MOST_WORST: f64 = 6.0;

fn clients(before: f64) -> Vec<f64> {
    (0..INTERVALS).map(|interval| if interval < AT { before } else { TPCW_CLIENTS }).collect()
}

/// The mean over parts of an interval, which requests have passed through as many as were answered.
fn whole(parts: &[Interval]) -> Interval {
    let answered: f64 = parts.iter().map(|part| part.throughput).sum();
    let times = parts.iter().filter_map(|part| Some(part.response_ms? * part.throughput));
    let count = parts.len().max(1) as f64;
    let mut whole =
        parts.last().cloned().unwrap_or_else(|| Interval { response_ms: None, throughput: 0.0, tiers: Vec::new() });
    whole.response_ms = (answered > 0.0).then(|| times.sum::<f64>() / answered);
    whole.throughput = answered / count;
    for (index, tier) in whole.tiers.iter_mut().enumerate() {
        let mean = |value: fn(&TierInterval) -> Fraction| {
            Fraction::clamped(parts.iter().map(|part| value(&part.tiers[index]).value()).sum::<f64>() / count)
        };
        (tier.cpu, tier.disk, tier.llc_miss_rate) =
            (mean(|tier| tier.cpu), mean(|tier| tier.disk), mean(|tier| tier.llc_miss_rate));
    }
    whole
}

/// Gives an application what is free on the hosts of its tiers.
fn relieve(application: usize, hosted: &[Hosted], shares: &mut [Vec<Share>]) {
    let places = |hosted: &Hosted| {
        hosted
            .tiers
            .iter()
            .flat_map(|tier| [(tier.host, Resource::Cpu), (tier.host, Resource::Disk)])
            .collect::<Vec<_>>()
    };
    let before = shares.to_vec();
    let on = |application: usize, place: (usize, Resource)| -> f64 {
        let own = places(&hosted[application]).into_iter().zip(&before[application]);
        own.filter(|(other, _)| *other == place).map(|(_, share)| share.part()).sum()
    };
    for (place, share) in places(&hosted[application]).into_iter().zip(&mut shares[application]) {
        let all = (0..hosted.len()).map(|other| on(other, place)).sum();
        *share = raised(*share, on(application, place), all, Share::clamped(1.0));
    }
}

/// TPC-W through a surge; `control` is made for as many applications as there are.
pub(super) fn course(
    disturbance: Disturbance,
    control: impl Fn(usize) -> Control,
    before: f64,
    relieves: bool,
    seed: u64,
) -> Course {
    let hosted = enough(disturbance, clients(before));
    in_parts(control(hosted.len()), hosted, relieves, seed)
}

/// The first application of several in scenario (a), with relief of surges between control intervals or without.
pub(super) fn in_parts(mut control: Control, mut hosted: Vec<Hosted>, relieves: bool, seed: u64) -> Course {
    let seeds = &mut Random::part(seed, 6);
    for own in &mut hosted {
        own.spec.interval_s /= PARTS as f64;
        // A sixth of the requests have an error of their mean that is √6 as large.
        own.spec.noise.response_variation *= (PARTS as f64).sqrt();
    }
    let part_s = hosted[0].spec.interval_s;
    let mut services: Vec<Service> = hosted.iter().map(|own| Service::new(own.spec.clone(), seeds.seed())).collect();
    let mut shares: Vec<Vec<Share>> = hosted.iter().map(Hosted::first_shares).collect();
    let mut course = Course::default();
    // CPU and disk used in the last interval, as parts of the hosts.
    let mut last: Vec<Option<Vec<f64>>> = vec![None; hosted.len()];
    // By all in the last part, by which they disturb each other in the next one.
    let mut last_part: Vec<Vec<HostUse>> = vec![Vec::new(); hosted.len()];
    for interval in 0..hosted[0].clients.len() {
        let mut seen: Vec<Vec<Interval>> = vec![Vec::new(); hosted.len()];
        let mut all = Vec::new();
        let mut relieved = vec![false; hosted.len()];
        for part_index in 0..PARTS {
            let mut parts = Vec::with_capacity(hosted.len());
            for (at, (own, service)) in hosted.iter().zip(&mut services).enumerate() {
                let (load, beside) = (Load::Clients(own.clients[interval]), neighbours(&hosted, &last_part, at));
                parts.push(service.step_beside(load, &given(&own.tiers, &shares[at]), &beside, None));
            }
            all.extend(parts.first().cloned());
            last_part = used(&parts, &shares);
            seen.iter_mut().zip(parts).for_each(|(seen, part)| seen.push(part));
            for at in 0..hosted.len() {
                let Some(part) = seen[at].last() else { continue };
                let slow = part.response_ms.is_none_or(|response_ms| response_ms > SLOW * hosted[at].target_ms);
                let used = part.tiers.iter().flat_map(|tier| [tier.cpu, tier.disk]);
                let strained = used.enumerate().any(|(index, used)| {
                    let last = last[at].as_ref().map(|last| last[index] / shares[at][index].part().max(1e-9));
                    is_strained(used.value(), last)
                });
                // In the last part the balancer is as fast.
                let in_time = part_index + 1 < PARTS;
                if relieves && in_time && !relieved[at] && slow && strained && part_s >= STRAINED_S {
                    relieved[at] = true;
                    relieve(at, &hosted, &mut shares);
                    // The two seconds after the strain are its dead time.
                    services[at].put_in_force(&given(&hosted[at].tiers, &shares[at]));
                    // What was before says nothing of the larger shares.
                    seen[at].clear();
                }
            }
        }
        let response = whole(&all).response_ms.map_or(f64::NAN, |response_ms| response_ms / hosted[0].target_ms);
        course.relative.push(response);
        for (last, (seen, shares)) in last.iter_mut().zip(seen.iter().zip(&shares)) {
            let tiers = whole(seen).tiers;
            let used = tiers.iter().flat_map(|tier| [tier.cpu, tier.disk]);
            *last = Some(used.zip(shares).map(|(used, share)| used.value() * share.part()).collect());
        }
        let observations: Vec<_> = hosted
            .iter()
            .zip(&seen)
            .zip(&shares)
            .zip(&relieved)
            .map(|(((own, seen), shares), relieved)| {
                let seen = observed(own.target_ms, shares, &whole(seen));
                // As the controller has it: those are answered first that waited before the relief.
                Observation { mean_ms: seen.mean_ms.filter(|_| !relieved), ..seen }
            })
            .collect();
        shares = control.step(&hosted, &observations).0;
    }
    course
}

/// Intervals from the surge until a few in a row are fast enough. Later ones are slow by chance, as with a constant load.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small count")]
fn ended(course: &Course) -> usize {
    course.settling(AT, TOO_SLOW - 1.0, 1.0) as usize
}

fn slow_in(relative: &[f64]) -> f64 {
    relative.iter().filter(|own| **own > TOO_SLOW).count() as f64
}

/// Slow intervals of those in which it should be over: a surge that calms and comes back is not over.
pub(super) fn slow_again(course: &Course) -> f64 {
    let from = (AT + ended(course)).min(course.relative.len());
    slow_in(&course.relative[from..(from + LATER).min(course.relative.len())])
}

/// The slowest interval of the surge, against the target.
pub(super) fn worst(course: &Course) -> f64 {
    course.worst(AT)
}

pub(super) fn surge_figures(out: &mut Reproduction, disturbance: Disturbance, seeds: &[u64]) {
    let slow = |course: &Course| slow_in(&course.relative[AT..AT + ended(course)]);
    let later = |course: &Course| slow_in(&course.relative[AT + ended(course)..]);
    let runs = |before: f64, relieves: bool| -> Vec<Course> {
        let control = |applications| Control::new(Method::BConf, applications);
        seeds.iter().map(|seed| course(disturbance, control, before, relieves, *seed)).collect()
    };
    let of = |runs: &[Course], value: &dyn Fn(&Course) -> f64| mean(runs.iter().map(value));
    let by_run = |runs: &[Course], value: &dyn Fn(&Course) -> f64| runs.iter().map(value).collect::<Vec<f64>>();
    // Of each surge, of each run.
    let (mut intervals, mut worsts, mut again, mut notes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for before in [300.0, 50.0] {
        let (without, with) = (runs(before, false), runs(before, true));
        intervals.push(by_run(&with, &slow));
        worsts.push(by_run(&with, &worst));
        again.push(by_run(&with, &slow_again));
        let (own, own_worst) = (of(&with, &slow), of(&with, &worst));
        notes.push(format!(
            "{before} → {TPCW_CLIENTS} clients: {own:.2} intervals above {TOO_SLOW} of the target until three in a row are not, \
             {:.2} of the {LATER} after that and {:.2} of all later ones, worst {own_worst:.2}, R(e) {:.0} %; without relief \
             {:.2}, {:.2}, {:.2}, {:.2}, {:.0} %",
            of(&with, &slow_again),
            of(&with, &later),
            of(&with, &Course::deviation),
            of(&without, &slow),
            of(&without, &slow_again),
            of(&without, &later),
            of(&without, &worst),
            of(&without, &Course::deviation),
        ));
    }
    let steady = runs(TPCW_CLIENTS, true);
    notes.push(format!(
        "without a surge {:.2} of as many intervals are above",
        of(&steady, &|c| slow_in(&c.relative[AT..]))
    ));
    let note = notes.join("; ");
    // Of the surge in which it is the most.
    let most = |of_surges: &[Vec<f64>]| {
        over(seeds.len(), |drawn| of_surges.iter().map(|by_run| drawn.of(by_run)).fold(0.0, f64::max))
    };
    let (intervals, slowest, again) = (most(&intervals), most(&worsts), most(&again));
    let target = ("at most 2", intervals.ours <= MOST_INTERVALS);
    out.figures.push(figure("bconf.surge_intervals", None, intervals, "intervals", target, note.clone()));
    let target = ("at most 6", slowest.ours <= MOST_WORST);
    out.figures.push(figure("bconf.surge_worst", None, slowest, "of the target", target, note.clone()));
    let target = ("at most 2", again.ours <= MOST_LATER);
    out.figures.push(figure("bconf.surge_later", None, again, "intervals", target, note));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calm at first, and slow again as soon as nobody counts.
    #[test]
    fn a_surge_that_comes_back_counts() {
        let mut relative = vec![1.0; INTERVALS];
        relative[AT..AT + 2].fill(3.0);
        relative[AT + 6..AT + 9].fill(1.5);
        // The last interval that counts, and the first that does not.
        relative[AT + 21..AT + 23].fill(1.3);
        let course = Course { relative, ..Course::default() };
        assert_eq!(ended(&course), 2);
        assert!((slow_again(&course) - 4.0).abs() < 1e-12, "{}", slow_again(&course));
        let calm = Course { relative: vec![1.2; INTERVALS], ..Course::default() };
        assert!(slow_again(&calm).abs() < 1e-12);
        let never = Course { relative: vec![2.0; INTERVALS], ..Course::default() };
        assert!((slow_again(&never) - 20.0).abs() < 1e-12);
    }
}
