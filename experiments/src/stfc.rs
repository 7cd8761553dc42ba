//! One resource by response time (Wei, chapter 3): self-tuning fuzzy control against three other controllers on a
//! simulated online shop, with a constant load, with a changing one, and with recorded loads and machine speeds. In:
//! options and seeds. Out: the paper's figures, ours beside them. Called by `gleaner reproduce stfc`.
//!
//! The service is calibrated without any controller ([`gleaner_simulator::service`]); all controllers meet the same
//! noise.

use std::path::{Path, PathBuf};

use gleaner_planner::single_resource::{Observed, SingleResource, Stfc};
use gleaner_types::units::{CoreShare, Fraction};

use crate::baselines::adaptive_pi::AdaptivePi;
use crate::baselines::arma::{Arma, Output};
use crate::baselines::kalman::Kalman;
use crate::{Detail, Figure, ReproduceError, Reproduction, Series};
use gleaner_simulator::random::Random;
use gleaner_simulator::service::{Interval, Load, Service, ServiceSpec, Shares};
use gleaner_simulator::traces::services::{Benchmark, azure_noise, bias_cloud, worldcup98};

/// Mean response time that is wanted, in milliseconds.
const TARGET_MS: f64 = 1_000.0;
/// Cap of the database's VM at the start, and its bounds, in percent of one core. The floor is chosen.
const START: f64 = 600.0;
const FLOOR: f64 = 50.0;
const CEILING: f64 = 1_600.0;
/// Logical CPUs of a host.
const HOST_CPUS: f64 = 24.0;
/// Intervals of the constant load. The dissertation names no number; chosen.
const STATIC_INTERVALS: usize = 120;
/// Intervals of the changing one: 90 minutes of 30 s.
const DYNAMIC_INTERVALS: usize = 180;
/// Most intervals of a recorded load, the clients that its peak stands for, and most runs of it.
const RECORDED_INTERVALS: usize = 240;
const RECORDED_PEAK: f64 = 300.0;
const RECORDED_RUNS: u64 = 5;
/// When the load changes, and to how many clients.
const CHANGES: [(usize, f64); 4] = [(60, 200.0), (90, 300.0), (120, 200.0), (150, 100.0)];
const FIRST_CLIENTS: f64 = 100.0;
/// A change is over when the response stays this close to the target, as a part of it, for so many intervals: five
/// standard deviations of the noise. Chosen; the dissertation draws the line by hand.
const SETTLED: f64 = 0.25;
/// A narrower band, to show how much the answer depends on it.
const NARROW: f64 = 0.2;
const SETTLED_INTERVALS: usize = 3;

/// What to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Noise is this seed's and the following ones'.
    pub seed: u64,
    /// Runs of every experiment, over which figures are averaged.
    pub runs: u64,
    /// Folder of recorded traces.
    pub traces: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: 2_001, runs: 60, traces: None }
    }
}

/// Who controls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Controller {
    Stfc,
    Kalman,
    /// With the gain it has for utilisation.
    AdaptivePi,
    /// Of the response time, as in chapter 3.
    Arma,
    /// With a gain that suits this service.
    TunedPi,
    /// Of the reciprocal of the response time, as in chapter 4.
    ReciprocalArma,
}

impl Controller {
    /// Those of the dissertation.
    const COMPARED: [Self; 4] = [Self::Stfc, Self::Kalman, Self::AdaptivePi, Self::Arma];
    const ALL: [Self; 6] =
        [Self::Stfc, Self::Kalman, Self::AdaptivePi, Self::Arma, Self::TunedPi, Self::ReciprocalArma];

    const fn name(self) -> &'static str {
        match self {
            Self::Stfc => "STFC",
            Self::Kalman => "Kalman",
            Self::AdaptivePi => "adaptive PI",
            Self::Arma => "ARMA",
            Self::TunedPi => "adaptive PI, gain 0.5",
            Self::ReciprocalArma => "ARMA, reciprocal",
        }
    }

    fn fresh(self) -> Box<dyn SingleResource> {
        match self {
            Self::Stfc => Box::new(Stfc::default()),
            Self::Kalman => Box::new(Kalman::default()),
            Self::AdaptivePi => Box::new(AdaptivePi::default()),
            Self::Arma => Box::new(Arma::new(Output::Response)),
            // Half of what meets the target at once where twice the capacity is half the response.
            Self::TunedPi => Box::new(AdaptivePi::new(0.5)),
            Self::ReciprocalArma => Box::new(Arma::new(Output::Reciprocal)),
        }
    }
}

/// Relative response times (y/r) and allocations, in percent of one core, over the intervals of a run.
#[derive(Debug, Clone, Default, PartialEq)]
struct Run {
    relative: Vec<f64>,
    allocation: Vec<f64>,
}

/// What every interval asks of the service: its load, and the hosts' speed where it is recorded.
type Demand = Vec<(Load, Option<f64>)>;

fn run(controller: Controller, demand: &Demand, seed: u64) -> Run {
    let mut service = Service::new(ServiceSpec::browsing(), seed);
    let mut controller = controller.fresh();
    let mut allocation = CoreShare::clamped(START);
    let mut run = Run::default();
    for &(load, speed) in demand {
        let seen = service.step(load, &shares(allocation), speed);
        run.relative.push(seen.response_ms.map_or(f64::NAN, |response_ms| response_ms / TARGET_MS));
        run.allocation.push(allocation.percent());
        allocation = controller.next(&observed(allocation, &seen));
    }
    run
}

fn shares(allocation: CoreShare) -> [Shares; 2] {
    let part = Fraction::clamped;
    [
        // Front end: 8 cores and 4 of 32 GB. Database: 2 GB.
        Shares { cpu: part(8.0 / HOST_CPUS), memory: part(4.0 / 32.0), disk: part(0.5) },
        Shares { cpu: part(allocation.cores() / HOST_CPUS), memory: part(2.0 / 32.0), disk: part(0.5) },
    ]
}

fn observed(allocation: CoreShare, seen: &Interval) -> Observed {
    Observed {
        allocation,
        response_ms: seen.response_ms,
        utilisation: seen.tiers.last().map(|tier| tier.cpu),
        target_ms: TARGET_MS,
        floor: CoreShare::clamped(FLOOR),
        ceiling: CoreShare::clamped(CEILING),
    }
}

fn constant_load() -> Demand {
    vec![(Load::Clients(200.0), None); STATIC_INTERVALS]
}

fn changing_load() -> Demand {
    let clients =
        |interval| CHANGES.iter().rev().find(|(at, _)| interval >= *at).map_or(FIRST_CLIENTS, |(_, clients)| *clients);
    (0..DYNAMIC_INTERVALS).map(|interval| (Load::Clients(clients(interval)), None)).collect()
}

fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, count) = values.into_iter().fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / count
}

impl Run {
    /// R(e) of Eq. 3.6 in percent, with the error as it is, not clamped.
    fn deviation(&self) -> f64 {
        mean(self.relative.iter().map(|relative| (relative - 1.0).powi(2))).sqrt() * 100.0
    }

    /// Intervals from each change of the load until the response has settled, at most until the next change.
    fn settling(&self) -> [f64; 4] {
        self.settling_within(SETTLED)
    }

    fn settling_within(&self, band: f64) -> [f64; 4] {
        CHANGES.map(|(at, _)| {
            let after = &self.relative[at..at + 30];
            let settled = |window: &[f64]| window.iter().all(|relative| (relative - 1.0).abs() <= band);
            after.windows(SETTLED_INTERVALS).position(settled).unwrap_or(after.len()) as f64
        })
    }

    /// How far the response goes past the target to the other side after each change, in percent of the target.
    fn overshoot(&self) -> [f64; 4] {
        CHANGES.map(|(at, clients)| {
            let grew = clients > self.clients_before(at);
            let past = |relative: &f64| if grew { 1.0 - relative } else { relative - 1.0 };
            self.relative[at..at + 30].iter().map(past).fold(0.0, f64::max) * 100.0
        })
    }

    fn clients_before(&self, at: usize) -> f64 {
        CHANGES.iter().rev().find(|(earlier, _)| *earlier < at).map_or(FIRST_CLIENTS, |(_, clients)| *clients)
    }

    /// How often the response was slower than the target by more than what counts as settled, in percent.
    fn too_slow(&self) -> f64 {
        mean(self.relative.iter().map(|relative| f64::from(*relative > 1.0 + SETTLED))) * 100.0
    }
}

/// All runs of an experiment with one controller.
struct Runs {
    controller: Controller,
    runs: Vec<Run>,
}

impl Runs {
    fn mean(&self, value: impl Fn(&Run) -> f64) -> f64 {
        mean(self.runs.iter().map(value))
    }
}

/// Of one controller; there is always one of each.
fn of(all: &[Runs], controller: Controller, value: impl Fn(&Run) -> f64) -> f64 {
    all.iter().find(|runs| runs.controller == controller).map_or(f64::NAN, |runs| runs.mean(value))
}

fn median(all: &[Runs], controller: Controller, value: impl Fn(&Run) -> f64) -> f64 {
    let runs = all.iter().find(|runs| runs.controller == controller);
    let mut values: Vec<f64> = runs.iter().flat_map(|runs| runs.runs.iter().map(&value)).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Runs everything. `progress` is told the stage, and how many of its runs are done.
///
/// # Errors
/// [`ReproduceError::Trace`] for a trace that is there and cannot be read.
pub fn reproduce(
    options: &Options,
    progress: &(dyn Fn(&str, usize, usize) + Sync),
) -> Result<Reproduction, ReproduceError> {
    let seeds: Vec<u64> = (0..options.runs.max(1)).map(|run| options.seed.wrapping_add(run)).collect();
    let experiment = |name: &str, demand: &Demand| -> Vec<Runs> {
        let all = Controller::ALL.len() * seeds.len();
        let mut done = 0;
        let mut with = |controller| {
            let mut one = |seed: &u64| {
                done += 1;
                progress(name, done, all);
                run(controller, demand, *seed)
            };
            Runs { controller, runs: seeds.iter().map(&mut one).collect() }
        };
        Controller::ALL.into_iter().map(&mut with).collect()
    };
    let constant = experiment("constant load", &constant_load());
    let changing = experiment("changing load", &changing_load());
    let mut out = Reproduction::default();
    static_figures(&mut out, &constant);
    dynamic_figures(&mut out, &changing);
    details(&mut out, &constant, &changing);
    progress("accuracy of the ARMA model", 0, 1);
    accuracy(&mut out, &seeds);
    plots(&mut out, &constant, &changing);
    match &options.traces {
        Some(folder) => recorded(&mut out, folder, options, progress)?,
        None => out.skipped.push("recorded loads and machine speeds: no folder of traces is named".into()),
    }
    Ok(out)
}

fn static_figures(out: &mut Reproduction, constant: &[Runs]) {
    let deviation = |controller| of(constant, controller, Run::deviation);
    let (stfc, kalman) = (deviation(Controller::Stfc), deviation(Controller::Kalman));
    let (pi, arma) = (deviation(Controller::AdaptivePi), deviation(Controller::Arma));
    let (tuned, reciprocal) = (deviation(Controller::TunedPi), deviation(Controller::ReciprocalArma));
    let note =
        format!("R(e) of Eq. 3.6, 200 clients, {STATIC_INTERVALS} intervals from 6 cores, {} runs", runs(constant));
    out.figures.push(Figure::new("stfc.static_r", Some(7.4), stfc, "%", ("at most 7.4", stfc <= 7.4), note));
    let note = "Kalman filter on utilisation, same runs".to_owned();
    out.figures.push(Figure::new("stfc.kalman_static_r", Some(8.63), kalman, "%", ("above STFC", kalman > stfc), note));
    let note = format!(
        "adaptive PI with the gain it has for utilisation, same runs; with one that suits this service {tuned:.2} %"
    );
    out.figures.push(Figure::new("stfc.pi_static_r", Some(37.23), pi, "%", ("above Kalman", pi > kalman), note));
    let note = format!(
        "ARMA of the response time, same runs: few bad ones make it, the median is {:.2} %; of its reciprocal {reciprocal:.2} %",
        median(constant, Controller::Arma, Run::deviation)
    );
    out.figures.push(Figure::new("stfc.arma_static_r", Some(48.0), arma, "%", ("above adaptive PI", arma > pi), note));
}

fn dynamic_figures(out: &mut Reproduction, changing: &[Runs]) {
    let others = |value: &dyn Fn(&Run) -> f64| {
        let other = |controller: &Controller| format!("{} {:.1}", controller.name(), of(changing, *controller, value));
        Controller::ALL[1..].iter().map(other).collect::<Vec<_>>().join(", ")
    };
    let deviation = of(changing, Controller::Stfc, Run::deviation);
    let note =
        format!("R(e), clients 100 → 200 → 300 → 200 → 100; others: {} (paper: ARMA 166)", others(&Run::deviation));
    out.figures.push(Figure::new(
        "stfc.dynamic_r",
        Some(27.0),
        deviation,
        "%",
        ("at most 27", deviation <= 27.0),
        note,
    ));

    let settling = |run: &Run| mean(run.settling());
    let ours = of(changing, Controller::Stfc, settling);
    let note = format!(
        "intervals from a change of the load until the response stays within {:.0} % of the target (within {:.0} %: {:.1}); \
         others: {}",
        SETTLED * 100.0,
        NARROW * 100.0,
        of(changing, Controller::Stfc, |run| mean(run.settling_within(NARROW))),
        others(&settling)
    );
    out.figures.push(Figure::new("stfc.settling", Some(4.0), ours, "intervals", ("at most 4", ours <= 4.0), note));

    let overshoot = |run: &Run| mean(run.overshoot());
    let ours = of(changing, Controller::Stfc, overshoot);
    // Who does not get to the target within ten intervals does not get past it either.
    let settles = |controller: &&Controller| of(changing, **controller, settling) <= 10.0;
    let least = Controller::ALL[1..].iter().filter(settles).map(|other| of(changing, *other, overshoot));
    let least = least.fold(f64::INFINITY, f64::min);
    let note = format!(
        "how far the response goes past the target after a change; least of those who settle within 10 intervals; others: {}",
        others(&overshoot)
    );
    out.figures.push(Figure::new("stfc.overshoot", None, ours, "%", ("smallest", ours < least), note));
}

fn runs(all: &[Runs]) -> usize {
    all.first().map_or(0, |runs| runs.runs.len())
}

fn detail(
    out: &mut Reproduction,
    experiment: &str,
    case: String,
    quantity: &'static str,
    value: f64,
    unit: &'static str,
) {
    out.details.push(Detail { experiment: experiment.to_owned(), case, quantity, value, unit });
}

fn details(out: &mut Reproduction, constant: &[Runs], changing: &[Runs]) {
    let cores = |run: &Run| mean(run.allocation.iter().copied()) / 100.0;
    for (name, experiment) in [("constant load", constant), ("changing load", changing)] {
        for runs in experiment {
            let case = || runs.controller.name().to_owned();
            detail(out, name, case(), "R(e)", runs.mean(Run::deviation), "%");
            let worst = runs.runs.iter().map(Run::deviation).fold(0.0, f64::max);
            detail(out, name, case(), "R(e) of the worst run", worst, "%");
            detail(out, name, case(), "slower than 1.25 s", runs.mean(Run::too_slow), "% of intervals");
            detail(out, name, case(), "mean allocation", runs.mean(cores), "cores");
        }
    }
    for runs in changing {
        for (change, (at, clients)) in CHANGES.into_iter().enumerate() {
            let case = || format!("{}, to {clients} clients at {at}", runs.controller.name());
            detail(out, "changes", case(), "settling", runs.mean(|run| run.settling()[change]), "intervals");
            detail(out, "changes", case(), "overshoot", runs.mean(|run| run.overshoot()[change]), "%");
        }
    }
}

/// How well the ARMA model predicts while the cap moves between 500 and 1600 (§3.4.1, Fig. 3.5): no controller has a part in
/// it, so the service is calibrated on it.
fn accuracy(out: &mut Reproduction, seeds: &[u64]) {
    const INTERVALS: usize = 150;
    const LEAST: f64 = 500.0;
    type Step = fn(&mut Random) -> f64;
    let steps: [(&str, Step); 4] = [
        ("32", |_| 32.0),
        ("64", |_| 64.0),
        ("-160 to 160", |random| -160.0 + 320.0 * random.uniform()),
        ("-220 to 420", |random| -220.0 + 640.0 * random.uniform()),
    ];
    for (output, name) in [(Output::Response, "response"), (Output::Reciprocal, "reciprocal")] {
        for (size, step) in steps {
            let error = seeds.iter().map(|seed| {
                let mut service = Service::new(ServiceSpec::browsing(), *seed);
                let (mut random, mut arma) = (Random::part(*seed, 3), Arma::new(output));
                let (mut cap, mut direction, mut errors) = (LEAST, 1.0, Vec::new());
                for _ in 0..INTERVALS {
                    let allocation = CoreShare::clamped(cap);
                    let predicted = arma.predict(allocation, CoreShare::clamped(CEILING));
                    let seen = observed(allocation, &service.step(Load::Clients(200.0), &shares(allocation), None));
                    if let (Some(predicted), Some(relative)) = (predicted, seen.relative_response()) {
                        errors.push((predicted / relative - 1.0).abs());
                    }
                    arma.next(&seen);
                    // Up and down again between the bounds.
                    cap += direction * step(&mut random);
                    if !(LEAST..=CEILING).contains(&cap) {
                        direction = if cap > CEILING { -1.0 } else { 1.0 };
                        cap = cap.clamp(LEAST, CEILING);
                    }
                }
                mean(errors)
            });
            let case = format!("{name}, steps of {size}");
            detail(out, "ARMA accuracy", case, "mean relative error", mean(error) * 100.0, "%");
        }
    }
}

fn curve(plot: &str, name: &str, y: &'static str, points: Vec<(f64, f64)>) -> Series {
    Series {
        plot: plot.to_owned(),
        name: name.to_owned(),
        x: "control interval",
        y,
        points_only: false,
        points,
        band: Vec::new(),
    }
}

const RESPONSE: &str = "mean response time, s";
const ALLOCATION: &str = "allocation, cores";

fn plots(out: &mut Reproduction, constant: &[Runs], changing: &[Runs]) {
    let numbered = |values: &[f64], unit: f64| -> Vec<(f64, f64)> {
        values.iter().enumerate().map(|(at, value)| (at as f64, value / unit)).collect()
    };
    let first = |all: &[Runs], value: &dyn Fn(&Run) -> Vec<(f64, f64)>| -> Vec<(&'static str, Vec<(f64, f64)>)> {
        let compared = all.iter().filter(|runs| Controller::COMPARED.contains(&runs.controller));
        compared.filter_map(|runs| Some((runs.controller.name(), value(runs.runs.first()?)))).collect()
    };
    for (name, points) in first(constant, &|run| numbered(&run.relative, 1.0)) {
        out.series.push(curve("stfc-static", name, RESPONSE, points));
    }
    for (name, points) in first(changing, &|run| numbered(&run.relative, 1.0)) {
        out.series.push(curve("stfc-dynamic", name, RESPONSE, points));
    }
    for (name, points) in first(changing, &|run| numbered(&run.allocation, 100.0)) {
        out.series.push(curve("stfc-dynamic-allocation", name, ALLOCATION, points));
    }
    // Fig. 3.7: from five intervals before the first change to fifteen after it.
    let at = CHANGES[0].0;
    for (name, points) in first(changing, &|run| numbered(&run.relative[at - 5..at + 15], 1.0)) {
        let x = "control interval, change at 5";
        out.series.push(Series { x, ..curve("stfc-settling", name, RESPONSE, points) });
    }
}

/// Clients per control interval after a recorded rate, whose peak is [`RECORDED_PEAK`] of them.
fn clients(rates: &[f64]) -> Vec<f64> {
    let peak = rates.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    rates.iter().map(|rate| rate / peak * RECORDED_PEAK).collect()
}

/// Recorded loads on machines with the recorded speed of databases in a cloud. Recorded speeds are minutes apart and are
/// taken one per interval, which makes them change faster than they did.
fn recorded(
    out: &mut Reproduction,
    folder: &Path,
    options: &Options,
    progress: &(dyn Fn(&str, usize, usize) + Sync),
) -> Result<(), ReproduceError> {
    let (mut loads, interval_s) = (Vec::new(), ServiceSpec::browsing().interval_s);
    for part in ["worldcup98", "bias-cloud", "azure"] {
        if !folder.join(part).is_dir() {
            out.skipped
                .push(format!("recorded loads and machine speeds: {} is not there", folder.join(part).display()));
            return Ok(());
        }
    }
    let cup = worldcup98(folder)?;
    // The hours around the busiest minute, every minute for two intervals.
    let (rates, half) = (cup.averaged(1), RECORDED_INTERVALS / 4);
    let busiest = rates.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(at, _)| at);
    let around = &rates[busiest.saturating_sub(half)..(busiest + half).min(rates.len())];
    loads.push((cup.name, clients(&around.iter().flat_map(|rate| [*rate, *rate]).collect::<Vec<_>>())));
    for load in bias_cloud(folder)? {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small positive quotient")]
        let every = (interval_s / load.step_s) as usize;
        let mut rates = load.averaged(every);
        rates.truncate(RECORDED_INTERVALS);
        loads.push((load.name, clients(&rates)));
    }
    let machines = azure_noise(folder, Benchmark::Postgres)?;
    let all = loads.len();
    for (index, (name, clients)) in loads.into_iter().enumerate() {
        progress("recorded loads", index, all);
        for controller in Controller::ALL {
            let with = |number: u64| {
                let speeds = machines.get(usize::try_from(number).unwrap_or(0) % machines.len().max(1));
                let mut speeds = speeds.into_iter().flat_map(|machine| machine.factors.iter().copied().cycle());
                let demand = clients.iter().map(|clients| (Load::Clients(*clients), speeds.next())).collect();
                run(controller, &demand, options.seed.wrapping_add(number))
            };
            let runs = Runs { controller, runs: (0..options.runs.clamp(1, RECORDED_RUNS)).map(with).collect() };
            let case = || format!("{name}, {}", controller.name());
            detail(out, "recorded load and speed", case(), "R(e)", runs.mean(Run::deviation), "%");
            detail(
                out,
                "recorded load and speed",
                case(),
                "slower than 1.25 s",
                runs.mean(Run::too_slow),
                "% of intervals",
            );
            let cores = |run: &Run| mean(run.allocation.iter().copied()) / 100.0;
            detail(out, "recorded load and speed", case(), "mean allocation", runs.mean(cores), "cores");
            if index == 0
                && Controller::COMPARED.contains(&controller)
                && let Some(run) = runs.runs.first()
            {
                let points = run.relative.iter().enumerate().map(|(at, value)| (at as f64, *value)).collect();
                out.series.push(curve("stfc-recorded", controller.name(), RESPONSE, points));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_run(relative: Vec<f64>) -> Run {
        Run { allocation: vec![START; relative.len()], relative }
    }

    #[test]
    fn eq_3_6_by_hand() {
        // Errors 0.1, −0.2 and 3, which is not clamped: sqrt((0.01 + 0.04 + 9) / 3).
        let deviation = a_run(vec![0.9, 1.2, 4.0]).deviation();
        assert!((deviation - (9.05_f64 / 3.0).sqrt() * 100.0).abs() < 1e-9);
    }

    #[test]
    fn settling_and_overshoot_by_hand() {
        let mut relative = vec![1.0; DYNAMIC_INTERVALS];
        relative[60..64].copy_from_slice(&[3.0, 1.5, 0.7, 1.1]);
        relative[120..123].copy_from_slice(&[0.4, 1.3, 1.0]);
        relative[150..].fill(0.5);
        let run = a_run(relative);
        assert_eq!(run.settling().map(|intervals| intervals.to_string()), ["3", "0", "2", "30"]);
        let wanted = [30.0, 0.0, 30.0, 0.0];
        assert!(
            run.overshoot().iter().zip(wanted).all(|(got, want)| (got - want).abs() < 1e-9),
            "{:?}",
            run.overshoot()
        );
    }

    #[test]
    fn loads() {
        let load = changing_load();
        let at = |interval: usize| load[interval].0;
        assert_eq!((load.len(), at(0), at(59)), (180, Load::Clients(100.0), Load::Clients(100.0)));
        assert_eq!((at(60), at(90), at(120)), (Load::Clients(200.0), Load::Clients(300.0), Load::Clients(200.0)));
        assert_eq!(at(179), Load::Clients(100.0));
        assert_eq!(clients(&[10.0, 5.0, 0.0]), [300.0, 150.0, 0.0]);
    }

    fn goes_on<C>(mut controller: C)
    where
        C: SingleResource + serde::Serialize + serde::de::DeserializeOwned,
    {
        let mut service = Service::new(ServiceSpec::browsing(), 9);
        let mut allocation = CoreShare::clamped(START);
        for interval in 0..40 {
            let seen = observed(allocation, &service.step(Load::Clients(200.0), &shares(allocation), None));
            let text = serde_json::to_string(&controller).unwrap();
            let mut restarted: C = serde_json::from_str(&text).unwrap();
            allocation = controller.next(&seen);
            assert_eq!(restarted.next(&seen), allocation, "interval {interval}");
        }
    }

    #[test]
    fn after_a_restart_controllers_go_on() {
        goes_on(Stfc::default());
        goes_on(Kalman::default());
        goes_on(AdaptivePi::default());
        goes_on(Arma::new(Output::Response));
    }

    #[test]
    fn what_the_dissertation_found() {
        let options = Options { seed: 301, runs: 4, traces: None };
        let found = reproduce(&options, &|_, _, _| {}).unwrap();
        let ids: Vec<&str> = found.figures.iter().map(|figure| figure.id).collect();
        let wanted = [
            "stfc.static_r",
            "stfc.kalman_static_r",
            "stfc.pi_static_r",
            "stfc.arma_static_r",
            "stfc.dynamic_r",
            "stfc.settling",
            "stfc.overshoot",
        ];
        assert_eq!(ids, wanted);
        for figure in found
            .figures
            .iter()
            .filter(|figure| ["stfc.static_r", "stfc.dynamic_r", "stfc.settling"].contains(&figure.id))
        {
            assert!(figure.holds, "{figure:?}");
        }
        assert_eq!(found, reproduce(&options, &|_, _, _| {}).unwrap(), "equal seeds, equal runs");
    }

    #[test]
    fn recorded_loads_where_there_are_some() {
        let Some(folder) = std::env::var_os("GLEANER_TRACES") else {
            _ = std::io::Write::write_all(
                &mut std::io::stderr(),
                b"SKIPPED: recorded_loads_where_there_are_some: GLEANER_TRACES names no folder of traces\n",
            );
            return;
        };
        let mut out = Reproduction::default();
        let options = Options { runs: 1, ..Options::default() };
        recorded(&mut out, Path::new(&folder), &options, &|_, _, _| {}).unwrap();
        assert!(
            out.skipped.is_empty() && out.details.iter().all(|detail| detail.value.is_finite()),
            "{:?}",
            out.skipped
        );
    }
}
