//! Several resources of several applications on several hosts (Wei, chapter 4): BConf against AutoControl on simulated
//! TPC-W and TPC-C, with enough for all, with a changing load, and with a little less than all ask for. In: options and
//! seeds. Out: the paper's figures, ours beside them. Called by `gleaner reproduce bconf`.
//!
//! The services are calibrated without any controller ([`gleaner_simulator::service`]); both methods meet the same
//! noise and begin with the same shares.

mod accuracy;
mod fair;
mod figures;
mod rivals;
mod runs;
mod sensitivity;
mod surge;

use std::path::{Path, PathBuf};

use self::accuracy::model_figures;
use self::fair::{Fair, fair_figures};
use self::figures::{Drawn, detail, figure, over};
pub use self::rivals::{Tried, tuning};
use self::runs::{
    CHANGES, Course, Experiment, Hosted, MET, Method, SETTLED, TPCC_TARGET_MS, TPCW_CLIENTS, TPCW_TARGET_MS,
    TierCourse, changing_clients, constant_clients, contended, enough, mean, run,
};
use self::sensitivity::sensitivity;
use self::surge::surge_figures;
use crate::{ReproduceError, Reproduction, Series};
use gleaner_simulator::service::{Disturbance, ServiceSpec};
use gleaner_simulator::traces::services::{bias_cloud, worldcup98};

/// Most intervals of a recorded load, and most runs of it.
const RECORDED_INTERVALS: usize = 240;
const RECORDED_RUNS: u64 = 5;

/// What to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Noise is this seed's and the following ones'.
    pub seed: u64,
    /// Runs of every experiment, over which figures are averaged.
    pub runs: u64,
    /// Seeds from 1 on, on which the settings of the other controllers are chosen.
    pub tuning_runs: u64,
    /// Seeds from 1 on, on which it is shown what each constant of the model does; with 0 it is not.
    pub sensitivity_runs: u64,
    /// Services have noise alone, and nothing else disturbs them.
    pub calm: bool,
    /// Folder of recorded traces.
    pub traces: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        // Seeds that nothing was tuned on; docs/services.md says which were used for what.
        Self { seed: 80_001, runs: 60, tuning_runs: 5, sensitivity_runs: 0, calm: true, traces: None }
    }
}

impl Options {
    fn disturbance(&self) -> Disturbance {
        if self.calm { Disturbance::NONE } else { Disturbance::RECORDED }
    }
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
    let experiment = |name: &'static str, hosted: Vec<Hosted>| {
        let (all, mut done) = (Method::ALL.len() * seeds.len(), 0);
        let mut with = |method| {
            let mut one = |seed: &u64| {
                done += 1;
                progress(name, done, all);
                run(method, &hosted, *seed)
            };
            (method, seeds.iter().map(&mut one).collect())
        };
        let runs = Method::ALL.into_iter().map(&mut with).collect();
        Experiment { name, hosted, runs }
    };
    let disturbance = options.disturbance();
    let constant = experiment("constant load", enough(disturbance, constant_clients()));
    let changing = experiment("changing load", enough(disturbance, changing_clients()));
    let contended = experiment("contention", contended(disturbance));
    let mut out = Reproduction::default();
    progress("accuracy of the models", 0, 1);
    model_figures(&mut out, disturbance, &seeds);
    stability_figures(&mut out, &constant, &changing);
    contention_figure(&mut out, &contended);
    progress("surges", 0, 1);
    surge_figures(&mut out, disturbance, &seeds);
    let fair = Fair { disturbance, seeds: &seeds, tuning_runs: options.tuning_runs };
    fair_figures(&mut out, [&constant, &changing, &contended], &fair, progress);
    for experiment in [&constant, &changing, &contended] {
        details(&mut out, experiment);
    }
    if options.sensitivity_runs > 0 {
        let constants = |at, all| progress("constants of the model", at, all);
        sensitivity(&mut out, disturbance, options.sensitivity_runs, &constants);
    }
    plots(&mut out, &constant, &changing, &contended);
    match &options.traces {
        Some(folder) => recorded(&mut out, folder, options, progress)?,
        None => out.skipped.push("recorded loads: no folder of traces is named".into()),
    }
    Ok(out)
}

fn stability_figures(out: &mut Reproduction, constant: &Experiment, changing: &Experiment) {
    let of = |experiment: &Experiment, name| {
        let deviation = |method| experiment.deviation(method, name);
        format!("{name}: BConf {:.1} %, AutoControl {:.1} %", deviation(Method::BConf), deviation(Method::AutoControl))
    };
    let deviations =
        |experiment: &Experiment| Method::ALL.map(|method| experiment.by_run(method, "tpcw", Course::deviation));
    let [ours, theirs] = deviations(constant);
    let runs = ours.len();
    let gain = over(runs, |drawn| (drawn.of(&theirs) / drawn.of(&ours) - 1.0) * 100.0);
    // Of the first interval, which is not controlled, and of noise that no controller removes.
    let least = |method| {
        let later = |course: &Course| mean(course.relative[1..].iter().map(|y| (y - 1.0).powi(2))).sqrt() * 100.0;
        constant.mean(method, "tpcw", later)
    };
    let note = format!(
        "R(e) of AutoControl over BConf's, less one; {}; without the first interval {:.1} and {:.1} %, most of it noise that \
         no controller takes away; {}, {:.1} % better (paper 35.6)",
        of(constant, "tpcw"),
        least(Method::BConf),
        least(Method::AutoControl),
        of(constant, "tpcc1"),
        constant.gain("tpcc1")
    );
    out.figures.push(figure(
        "bconf.stability_gain_static",
        45.4,
        gain,
        "%",
        ("at least 45.4", gain.ours >= 45.4),
        note,
    ));

    let [ours, theirs] = deviations(changing);
    let times = over(runs, |drawn| drawn.of(&theirs) / drawn.of(&ours));
    let worst = |method| changing.courses(method, "tpcw").map(Course::deviation).fold(0.0, f64::max);
    let note = format!(
        "R(e) of AutoControl over BConf's, clients 300 → 500 → 300; {}; worst runs {:.0} and {:.0} %; BConf's is mostly of the \
         interval in which the load rises",
        of(changing, "tpcw"),
        worst(Method::BConf),
        worst(Method::AutoControl)
    );
    out.figures.push(figure(
        "bconf.stability_gain_dynamic",
        29.0,
        times,
        "times",
        ("at least 29", times.ours >= 29.0),
        note,
    ));

    let at = CHANGES[0].0;
    let settling = |method, above, below| changing.mean(method, "tpcw", |course| course.settling(at, above, below));
    let by_run = changing.by_run(Method::BConf, "tpcw", |course| course.settling(at, SETTLED, SETTLED));
    let ours = over(runs, |drawn| drawn.of(&by_run));
    let note = format!(
        "intervals after 300 → 500 clients until the response stays within {:.0} % of the target; until it is no slower {:.1}; \
         AutoControl {:.1} (paper 23)",
        SETTLED * 100.0,
        settling(Method::BConf, SETTLED, 1.0),
        settling(Method::AutoControl, SETTLED, SETTLED)
    );
    out.figures.push(figure("bconf.settling", 4.0, ours, "intervals", ("at most 4", ours.ours <= 4.0), note));

    let fall = |method| changing.by_run(method, "tpcw", |course| course.worst(CHANGES[1].0));
    let by_run = fall(Method::BConf);
    let ours = over(runs, |drawn| drawn.of(&by_run));
    let note = format!(
        "slowest interval over the target after 500 → 300 clients, mean over the runs; AutoControl {:.2}",
        mean(fall(Method::AutoControl))
    );
    out.figures.push(figure("bconf.fall_worst", None, ours, "of the target", ("at most 1.5", ours.ours <= 1.5), note));

    let saved = |experiment: &Experiment, name: &str| {
        let disk = |method| experiment.by_run(method, name, |course| course.database(|tier| tier.disk));
        let [ours, theirs] = Method::ALL.map(disk);
        move |drawn: &Drawn<'_>| (1.0 - drawn.of(&ours) / drawn.of(&theirs)) * 100.0
    };
    let both = [saved(constant, "tpcw"), saved(changing, "tpcw")];
    let ours = over(runs, |drawn| both.iter().map(|saved| saved(drawn)).fold(f64::INFINITY, f64::min));
    let [fixed, moved, of_tpcc] = [&both[0], &both[1], &saved(constant, "tpcc1")].map(|saved| over(runs, saved).ours);
    let note = format!(
        "share of the disk that the database of TPC-W holds less than with AutoControl: constant load {fixed:.1} %, changing \
         {moved:.1} %, the lesser counts; tpcc1 {of_tpcc:.1} % (paper 20 to 30)"
    );
    out.figures.push(figure("bconf.disk_saving", 50.0, ours, "%", ("at least 50", ours.ours >= 50.0), note));
}

fn contention_figure(out: &mut Reproduction, contended: &Experiment) {
    let late = |method| {
        let one = |hosted: &Hosted| (hosted.name, contended.mean(method, hosted.name, Course::late));
        contended.hosted.iter().map(one).collect::<Vec<_>>()
    };
    let listed =
        |all: &[(&str, f64)]| all.iter().map(|(name, late)| format!("{name} {late:.2}")).collect::<Vec<_>>().join(", ");
    let ours = late(Method::BConf);
    let by_run = |hosted: &Hosted| contended.by_run(Method::BConf, hosted.name, Course::late);
    let by_run: Vec<Vec<f64>> = contended.hosted.iter().map(by_run).collect();
    let all_met = |drawn: &Drawn<'_>| f64::from(by_run.iter().all(|late| drawn.of(late) <= 1.0 + MET));
    let met = over(by_run.first().map_or(0, Vec::len), all_met);
    let part = |name: &str| contended.mean(Method::BConf, name, |course| mean(course.part.iter().copied()));
    let parts: Vec<(&str, f64)> = contended.hosted.iter().map(|hosted| (hosted.name, part(hosted.name))).collect();
    let note = format!(
        "1 if every mean response of the second half is within {:.0} % of its target; over the targets: {}; AutoControl: {}; \
         parts p_a: {}",
        MET * 100.0,
        listed(&ours),
        listed(&late(Method::AutoControl)),
        listed(&parts)
    );
    out.figures.push(figure("bconf.contention_met", 1.0, met, "", ("1", met.ours >= 1.0), note));
}

fn details(out: &mut Reproduction, experiment: &Experiment) {
    for hosted in &experiment.hosted {
        for method in Method::ALL {
            let of = |value: &dyn Fn(&Course) -> f64| experiment.mean(method, hosted.name, value);
            let rows: [(&'static str, f64, &'static str); 8] = [
                ("R(e)", of(&Course::deviation), "%"),
                ("mean response, second half", of(&Course::late), "of the target"),
                ("slower than 1.25 of the target", of(&Course::too_slow), "% of intervals"),
                ("CPU share of the database", of(&|course| course.database(|tier| tier.cpu)) * 100.0, "%"),
                ("CPU used of it", of(&|course| course.database(|tier| tier.cpu_used)) * 100.0, "%"),
                ("disk share of the database", of(&|course| course.database(|tier| tier.disk)) * 100.0, "%"),
                ("disk used of it", of(&|course| course.database(|tier| tier.disk_used)) * 100.0, "%"),
                ("part granted", of(&|course| mean(course.part.iter().copied())), ""),
            ];
            for (quantity, value, unit) in rows {
                detail(out, experiment.name, format!("{}, {}", hosted.name, method.name()), quantity, value, unit);
            }
        }
    }
}

const INTERVAL: &str = "control interval";
const RESPONSE: &str = "mean response time, ms";
const SHARE: &str = "share of the host, %";
const USED: &str = "used of the share, %";

/// Figures 4.6 to 4.11, of the first run.
fn plots(out: &mut Reproduction, constant: &Experiment, changing: &Experiment, contended: &Experiment) {
    type Of<'a> = &'a dyn Fn(&Course) -> Vec<f64>;
    let mut add = |plot: &str, experiment: &Experiment, application: &str, what: &str, y, value: Of<'_>| {
        for method in Method::ALL {
            if let Some(course) = experiment.courses(method, application).next() {
                let points = value(course).into_iter().enumerate().map(|(at, value)| (at as f64, value)).collect();
                let name = format!("{}{what}", method.name());
                out.series.push(Series {
                    plot: plot.to_owned(),
                    name,
                    x: INTERVAL,
                    y,
                    points_only: false,
                    points,
                    band: Vec::new(),
                });
            }
        }
    };
    let response = |target_ms: f64| {
        move |course: &Course| course.relative.iter().map(|relative| relative * target_ms).collect::<Vec<_>>()
    };
    let database = |value: fn(&TierCourse) -> f64| {
        move |course: &Course| {
            course.tiers.iter().filter_map(|tiers| tiers.last()).map(|tier| value(tier) * 100.0).collect::<Vec<_>>()
        }
    };
    let (cpu, disk) = (database(|tier| tier.cpu), database(|tier| tier.disk));
    add("bconf-4.6a-tpcw-static", constant, "tpcw", "", RESPONSE, &response(TPCW_TARGET_MS));
    add("bconf-4.6b-tpcc1-static", constant, "tpcc1", "", RESPONSE, &response(TPCC_TARGET_MS));
    add("bconf-4.6c-tpcw-dynamic", changing, "tpcw", "", RESPONSE, &response(TPCW_TARGET_MS));
    add("bconf-4.7a-tpcc1-shares", constant, "tpcc1", ", CPU", SHARE, &cpu);
    add("bconf-4.7a-tpcc1-shares", constant, "tpcc1", ", disk", SHARE, &disk);
    add("bconf-4.7b-tpcc1-cpu", constant, "tpcc1", "", USED, &database(|tier| tier.cpu_used));
    add("bconf-4.7c-tpcc1-disk", constant, "tpcc1", "", USED, &database(|tier| tier.disk_used));
    add("bconf-4.8-tpcw-static-shares", constant, "tpcw", ", CPU", SHARE, &cpu);
    add("bconf-4.8-tpcw-static-shares", constant, "tpcw", ", disk", SHARE, &disk);
    add("bconf-4.9-tpcw-dynamic-shares", changing, "tpcw", ", CPU", SHARE, &cpu);
    add("bconf-4.9-tpcw-dynamic-shares", changing, "tpcw", ", disk", SHARE, &disk);
    add("bconf-4.11a-tpcw-contended", contended, "tpcw", "", RESPONSE, &response(TPCW_TARGET_MS));
    add("bconf-4.11b-tpcc1-contended", contended, "tpcc1", "", RESPONSE, &response(TPCC_TARGET_MS));
    for name in ["tpcw", "tpcc1"] {
        add("bconf-4.11c-contended-shares", contended, name, &format!(", {name} CPU"), SHARE, &cpu);
        add("bconf-4.11c-contended-shares", contended, name, &format!(", {name} disk"), SHARE, &disk);
    }
    // Fig. 4.10 has bars: static tpcw, static tpcc1, dynamic tpcw.
    for method in Method::ALL {
        let bars = [(constant, "tpcw"), (constant, "tpcc1"), (changing, "tpcw")];
        let points =
            bars.iter().enumerate().map(|(at, (experiment, name))| (at as f64, experiment.deviation(method, name)));
        out.series.push(Series {
            plot: "bconf-4.10-deviations".into(),
            name: method.name().into(),
            x: "static tpcw, static tpcc1, dynamic tpcw",
            y: "R(e), %",
            points_only: true,
            points: points.collect(),
            band: Vec::new(),
        });
    }
}

/// Recorded loads as clients of TPC-W in scenario (a), whose peak is [`TPCW_CLIENTS`] of them.
fn recorded(
    out: &mut Reproduction,
    folder: &Path,
    options: &Options,
    progress: &(dyn Fn(&str, usize, usize) + Sync),
) -> Result<(), ReproduceError> {
    for part in ["worldcup98", "bias-cloud"] {
        if !folder.join(part).is_dir() {
            out.skipped.push(format!("recorded loads: {} is not there", folder.join(part).display()));
            return Ok(());
        }
    }
    let clients = |rates: &[f64]| -> Vec<f64> {
        let peak = rates.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        rates.iter().map(|rate| rate / peak * TPCW_CLIENTS).collect()
    };
    let cup = worldcup98(folder)?;
    // The hours around the busiest minute, every minute for two intervals.
    let (rates, half) = (cup.averaged(1), RECORDED_INTERVALS / 4);
    let busiest = rates.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(at, _)| at);
    let around = &rates[busiest.saturating_sub(half)..(busiest + half).min(rates.len())];
    let mut loads = vec![(cup.name, clients(&around.iter().flat_map(|rate| [*rate, *rate]).collect::<Vec<_>>()))];
    for load in bias_cloud(folder)? {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small positive quotient")]
        let every = (ServiceSpec::tpcw().interval_s / load.step_s) as usize;
        let mut rates = load.averaged(every);
        rates.truncate(RECORDED_INTERVALS);
        loads.push((load.name, clients(&rates)));
    }
    let all = loads.len();
    for (index, (name, clients)) in loads.into_iter().enumerate() {
        progress("recorded loads", index, all);
        let hosted = enough(options.disturbance(), clients);
        for method in Method::ALL {
            let seeds = (0..options.runs.clamp(1, RECORDED_RUNS)).map(|number| options.seed.wrapping_add(number));
            let runs: Vec<Course> = seeds.filter_map(|seed| run(method, &hosted, seed).into_iter().next()).collect();
            let case = || format!("{name}, {}", method.name());
            let of = |value: fn(&Course) -> f64| mean(runs.iter().map(value));
            detail(out, "recorded load", case(), "R(e) of tpcw", of(Course::deviation), "%");
            detail(
                out,
                "recorded load",
                case(),
                "slower than 1.25 of the target",
                of(Course::too_slow),
                "% of intervals",
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_dissertation_found() {
        // Of two runs the ratios to fixed shares are chance.
        let options = Options { seed: 301, runs: 4, tuning_runs: 1, ..Options::default() };
        let disturbed = Options { calm: false, ..Options::default() };
        assert_eq!([options.disturbance(), disturbed.disturbance()], [Disturbance::NONE, Disturbance::RECORDED]);
        let found = reproduce(&options, &|_, _, _| {}).unwrap();
        let ids: Vec<&str> = found.figures.iter().map(|figure| figure.id).collect();
        let wanted = [
            "bconf.mape_gray",
            "bconf.mape_black",
            "bconf.stability_gain_static",
            "bconf.stability_gain_dynamic",
            "bconf.settling",
            "bconf.fall_worst",
            "bconf.disk_saving",
            "bconf.contention_met",
            "bconf.surge_intervals",
            "bconf.surge_worst",
            "bconf.surge_later",
            "bconf.static_floor_ratio",
            "bconf.held_over_cheapest",
            "bconf.best_baseline_ratio",
            "bconf.harmed",
        ];
        assert_eq!(ids, wanted);
        let is_measured = |figure: &crate::Figure| {
            figure.ours.is_some() && figure.median.is_some() && figure.interval.is_some_and(|[low, high]| low <= high)
        };
        assert!(found.figures.iter().all(is_measured), "{:?}", found.figures);
        let missed = ["bconf.stability_gain_static", "bconf.stability_gain_dynamic", "bconf.disk_saving"];
        assert!(
            found.figures.iter().all(|figure| figure.holds || missed.contains(&figure.id)),
            "more than what docs/services.md calls missed: {:?}",
            found.figures
        );
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
        assert!(out.details.iter().all(|detail| detail.value.is_finite()), "{:?}", out.details);
    }
}
