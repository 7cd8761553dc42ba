//! Filling the gaps between reservations (CHISim: Kang, Zhen, Keahey, "Yin and Yang: Balancing Cloud Computing and HTC Workloads"). In: options, a
//! seed, the recorded leases of Chameleon where there are some. Out: the paper's figures, ours beside them.
//!
//! The leases and hosts are those that CHISim simulated, from March to July 2018, read as it read them; the jobs are drawn, as theirs are not
//! among our traces. Forecasters and preemption policies are the paper's, and least core hours used beside them. No constant was chosen by a figure
//! of the reported trace.

mod jobs;
mod plant;
mod played;
mod rows;

use std::path::PathBuf;

use gleaner_planner::reservations::fill::Filling;
use gleaner_planner::reservations::forecast::{Forecaster, Scale};
use gleaner_planner::reservations::learnt::Learnt;
use gleaner_planner::reservations::preemption::Preemption;
use gleaner_planner::reservations::surviving::Surviving;
use gleaner_simulator::leases::{CloudSize, generate};
use gleaner_simulator::traces::leases::chameleon;

use self::plant::{Setting, play};
use self::played::{Cell, Played};
use crate::{ReproduceError, Reproduction};

/// What to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Jobs and chance are this seed's. Seed 1 was looked at while the code was written, on later leases than the reported ones.
    pub seed: u64,
    /// The forecasters of predictive filling.
    pub forecasters: Vec<Forecaster>,
    /// The preemption policies of greedy and predictive filling.
    pub preemptions: Vec<Preemption>,
    /// How wrong estimates of run times are in further runs of ours (coefficients of variation).
    pub estimate_errors: Vec<f64>,
    /// Folder of recorded traces; without the leases of Chameleon in it a cloud is generated.
    pub traces: Option<PathBuf>,
    /// Size of a generated cloud.
    pub size: CloudSize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 1_001,
            forecasters: Forecaster::ALL.map(|(_, forecaster)| forecaster).to_vec(),
            preemptions: Preemption::ALL.map(|(_, preemption)| preemption).to_vec(),
            estimate_errors: vec![1.0 / 3.0, 1.0],
            traces: None,
            size: CloudSize::PAPER,
        }
    }
}

/// Runs everything. `progress` is told the stage, and how many of its runs are done.
///
/// # Errors
/// A recorded trace that is there and cannot be read.
pub fn reproduce(
    options: &Options,
    progress: &(dyn Fn(&str, usize, usize) + Sync),
) -> Result<Reproduction, ReproduceError> {
    let mut out = Reproduction::default();
    let recorded = options.traces.as_ref().filter(|folder| folder.join("chisim-chameleon").is_dir());
    let trace = match recorded {
        Some(folder) => chameleon(folder)?,
        None => {
            out.skipped.push("the recorded leases of Chameleon: no folder of traces has chisim-chameleon; the figures are of a generated cloud".to_owned());
            generate(options.seed, options.size)
        }
    };
    let forecasters = &options.forecasters;
    let all = options.preemptions.len() * (1 + forecasters.len()) + 2 + options.estimate_errors.len();
    let mut done = 0;
    let mut learnt = Learnt::default();
    let mut run = |filling: Filling, estimate_error: f64, leases_only: bool| {
        let setting = Setting { trace: &trace, filling, seed: options.seed, estimate_error, leases_only };
        let outcome = play(setting, &mut learnt);
        done += 1;
        progress("filling gaps", done, all);
        outcome
    };
    let leases = run(Filling::Greedy(Preemption::Random), 0.0, true);
    let mut greedy = Vec::new();
    let mut predictive = Vec::new();
    for (policy, preemption) in Preemption::ALL.into_iter().filter(|(_, own)| options.preemptions.contains(own)) {
        let outcome = run(Filling::Greedy(preemption), 0.0, false);
        greedy.push(Cell { forecaster: None, preemption, name: format!("greedy, {policy}"), outcome });
        for (word, forecaster) in Forecaster::ALL.into_iter().filter(|(_, own)| forecasters.contains(own)) {
            let filling = Filling::Predictive { forecaster, preemption, scale: Scale::PAPER };
            let outcome = run(filling, 0.0, false);
            let name = format!("{}, {policy}", rows::name(word));
            predictive.push(Cell { forecaster: Some(forecaster), preemption, name, outcome });
        }
    }
    let surviving = Filling::Surviving(Surviving::default());
    let ours = run(surviving, 0.0, false);
    let wrong = options.estimate_errors.iter().map(|&error| (error, run(surviving, error, false))).collect();
    let generated = recorded.is_none();
    rows::rows(
        &mut out,
        &Played {
            generated,
            seed: options.seed,
            trace,
            leases,
            greedy,
            predictive,
            ours,
            ours_with_wrong_estimates: wrong,
        },
        forecasters,
    );
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tenth of the cloud for three weeks, seed 1.
    fn small() -> Options {
        Options { seed: 1, size: CloudSize { hosts: 27, days: 21 }, ..Options::default() }
    }

    fn value(found: &Reproduction, id: &str) -> f64 {
        found.figures.iter().find(|figure| figure.id == id).and_then(|figure| figure.ours).unwrap()
    }

    #[test]
    fn a_generated_cloud_has_every_figure_and_says_that_it_is_generated() {
        let found = reproduce(&small(), &|_, _, _| {}).unwrap();
        assert!(found.figures.iter().all(|figure| figure.ours.is_some() && figure.id.starts_with("chisim.generated.")));
        assert_eq!(found.figures.len(), 13);
        assert!(found.skipped[0].contains("generated"));
        let median = || {
            let options = Options { forecasters: vec![Forecaster::RollingMedian], ..small() };
            reproduce(&options, &|_, _, _| {}).unwrap()
        };
        assert_eq!(median(), median(), "the same seed, the same figures");
        assert!(value(&found, "chisim.generated.utilisation_filled") > 90.0);
        let one = Options { forecasters: vec![Forecaster::RollingMean], ..small() };
        let one = reproduce(&one, &|_, _, _| {}).unwrap();
        let others = ["chisim.generated.sudden_median", "chisim.generated.sudden_lstm"];
        assert!(one.figures.iter().all(|figure| !others.contains(&figure.id)));
    }

    #[test]
    fn a_week_is_plotted_of_ours_and_of_the_best_cell() {
        let options = Options { forecasters: vec![Forecaster::RollingMedian], ..small() };
        let found = reproduce(&options, &|_, _, _| {}).unwrap();
        let names: Vec<(&str, &str)> =
            found.series.iter().map(|series| (series.plot.as_str(), series.name.as_str())).collect();
        let curves = ["nodes", "leased", "filled", "preempted in the hour"];
        let expected: Vec<(&str, &str)> = ["chisim-week-ours", "chisim-week-paper"]
            .into_iter()
            .flat_map(|plot| curves.map(|name| (plot, name)))
            .collect();
        assert_eq!(names, expected);
        let hosts = f64::from(options.size.hosts);
        for plot in found.series.chunks(curves.len()) {
            for series in plot {
                assert_eq!(series.points.len(), 168, "the hours of a week: {}", series.name);
                let is_in_range =
                    |&(day, nodes): &(f64, f64)| (14.0..21.0).contains(&day) && (0.0..=hosts).contains(&nodes);
                assert!(series.points.iter().all(is_in_range), "{}: {:?}", series.name, series.points);
                // All hosts of a generated cloud are there all the time; everything else comes and goes.
                let is_constant = series.points.iter().all(|(_, nodes)| (nodes - series.points[0].1).abs() < 1e-9);
                assert_eq!(is_constant, series.name == "nodes", "{}: {:?}", series.name, series.points);
            }
            let at = |curve: usize, hour: usize| plot[curve].points[hour].1;
            assert!((0..168).all(|hour| (at(0, hour) - hosts).abs() < 1e-9), "all are there");
            assert!((0..168).all(|hour| at(1, hour) + at(2, hour) <= at(0, hour) + 1e-9), "no node is in two");
        }
    }

    /// What ours has to reach, on a seed by which nothing was chosen; without the network, which takes as long as everything else.
    #[test]
    fn ours_reaches_its_targets_on_the_recorded_leases_where_there_are_some() {
        let folder = std::env::var_os("GLEANER_TRACES").map(PathBuf::from);
        let Some(folder) = folder.filter(|folder| folder.join("chisim-chameleon").is_dir()) else {
            _ = std::io::Write::write_all(
                &mut std::io::stderr(),
                b"SKIPPED: ours_reaches_its_targets_on_the_recorded_leases_where_there_are_some: GLEANER_TRACES names no folder of traces with chisim-chameleon\n",
            );
            return;
        };
        let options = Options {
            seed: 3_001,
            forecasters: vec![Forecaster::RollingMean, Forecaster::RollingMedian],
            estimate_errors: Vec::new(),
            traces: Some(folder),
            ..Options::default()
        };
        let found = reproduce(&options, &|_, _, _| {}).unwrap();
        for id in ["chisim.utilisation_gain", "chisim.utilisation_given_up", "chisim.ours_waste", "chisim.ours_sudden"]
        {
            let figure = found.figures.iter().find(|figure| figure.id == id).unwrap();
            assert!(figure.holds && figure.ours.is_some_and(f64::is_finite), "{figure:?}");
        }
    }
}
