//! What each constant of the model does: the same runs with half and with twice of it. In: how many seeds, from 1 on, on which the
//! constants were chosen. Out: rows of details. Called by the experiment where they are asked for.

use gleaner_planner::balance::application::{Application, Settings};
use gleaner_planner::balance::constants::Constants;
use gleaner_planner::policy::Policy;
use gleaner_simulator::service::Disturbance;

use super::accuracy::gray_mape;
use super::figures::detail;
use super::runs::{
    CHANGES, Control, Course, FOUND, Hosted, Method, SETTLED, changing_clients, constant_clients, enough, mean,
    run_with,
};
use super::surge::{course, slow_again, worst};
use crate::Reproduction;

/// Clients before the surge: the steeper of the two.
const BEFORE_SURGE: f64 = 50.0;
const FACTORS: [f64; 2] = [0.5, 2.0];
/// Steady states and transients of a setting.
const QUANTITIES: [(&str, &str); 8] = [
    ("MAPE of LCMR(1,1), tpcw", "%"),
    ("R(e) with constant load, tpcw", "%"),
    ("R(e) with constant load, tpcc1", "%"),
    ("R(e) with changing load, tpcw", "%"),
    ("settling", "intervals"),
    ("worst after the fall", "of the target"),
    ("worst of the surge from 50 clients", "of the target"),
    ("slow intervals after it has calmed", "intervals"),
];

/// What the control of an application is made of.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Made {
    settings: Settings,
    constants: Constants,
}

/// A constant in words, and how it becomes a multiple of itself.
type Constant = (&'static str, fn(&mut Made, f64));

/// All of them. Weights of what is old, and what is left of a whole, vary by what they are short of 1.
const CONSTANTS: [Constant; 15] = [
    ("how fast rows are forgotten", |made, factor| {
        made.constants.memory = rest(made.constants.memory, factor);
    }),
    ("variances of the level's steps", |made, factor| {
        made.constants.steps = made.constants.steps.map(|own| own * factor);
    }),
    ("variances of the prior", |made, factor| {
        made.constants.priors = made.constants.priors.map(|own| own * factor);
    }),
    ("noise before any data", |made, factor| made.constants.noise *= factor),
    ("rows that this noise counts", |made, factor| made.constants.noise_rows *= factor),
    ("standard deviations of a change", |made, factor| made.constants.change *= factor),
    ("window", |made, factor| made.constants.window = count(made.constants.window, factor)),
    ("least rows of a condition", |made, factor| made.constants.least_rows = count(made.constants.least_rows, factor)),
    ("rows per coefficient", |made, factor| {
        made.constants.rows_per_coefficient = count(made.constants.rows_per_coefficient, factor);
    }),
    ("weight of the newest use in the prior", |made, factor| made.constants.used_weight *= factor),
    ("what the most use in the prior leaves free", |made, factor| {
        made.constants.most_used = rest(made.constants.most_used, factor);
    }),
    ("samples before λ", |made, factor| {
        made.constants.exponent_first = count(made.constants.exponent_first, factor);
    }),
    ("weight of the newest share in the average", |made, factor| made.constants.average_weight *= factor),
    ("variation of shares", |made, factor| made.settings.probe *= factor),
    ("part of it that goes on", |made, factor| made.constants.settled_probe *= factor),
];

/// What is short of 1 times a factor.
fn rest(part: f64, factor: f64) -> f64 {
    1.0 - (1.0 - part) * factor
}

/// A count times a factor, at least 1.
fn count(of: usize, factor: f64) -> usize {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small positive number")]
    let scaled = (of as f64 * factor).round() as usize;
    scaled.max(1)
}

impl Made {
    fn control(&self, applications: usize) -> Control {
        let policy = |_| Box::new(Application::with(self.settings, self.constants)) as Box<dyn Policy>;
        Control::of(Method::BConf, (0..applications).map(policy).collect())
    }

    fn courses(&self, hosted: &[Hosted], seed: u64) -> Vec<Course> {
        let first = hosted.iter().map(Hosted::first_shares).collect();
        run_with(self.control(hosted.len()), first, hosted, seed)
    }

    /// The quantities, in their order, as means over the seeds.
    fn measured(&self, disturbance: Disturbance, seeds: &[u64]) -> [f64; 8] {
        let [constant, changing] = [constant_clients(), changing_clients()].map(|clients| {
            let hosted = enough(disturbance, clients);
            seeds.iter().map(|seed| self.courses(&hosted, *seed)).collect::<Vec<_>>()
        });
        let surge = |seed: &u64| course(disturbance, |count| self.control(count), BEFORE_SURGE, true, *seed);
        let surges: Vec<Course> = seeds.iter().map(surge).collect();
        let of = |runs: &[Vec<Course>], application: usize, value: &dyn Fn(&Course) -> f64| {
            mean(runs.iter().filter_map(|run| run.get(application)).map(value))
        };
        let from_found = |course: &Course| course.deviation_from(FOUND);
        [
            gray_mape(self.constants, disturbance, seeds),
            of(&constant, 0, &from_found),
            of(&constant, 1, &from_found),
            of(&changing, 0, &Course::deviation),
            of(&changing, 0, &|course| course.settling(CHANGES[0].0, SETTLED, SETTLED)),
            of(&changing, 0, &|course| course.worst(CHANGES[1].0)),
            mean(surges.iter().map(worst)),
            mean(surges.iter().map(slow_again)),
        ]
    }
}

/// Rows for each constant at half and at twice its value, beside those with all as they are.
pub(super) fn sensitivity(
    out: &mut Reproduction,
    disturbance: Disturbance,
    runs: u64,
    progress: &dyn Fn(usize, usize),
) {
    rows(out, &CONSTANTS, disturbance, runs, progress);
}

fn rows(
    out: &mut Reproduction,
    constants: &[Constant],
    disturbance: Disturbance,
    runs: u64,
    progress: &dyn Fn(usize, usize),
) {
    let seeds: Vec<u64> = (1..=runs).collect();
    let mut settings = vec![("all as they are".to_owned(), Made::default())];
    for (name, multiply) in constants {
        for factor in FACTORS {
            let mut made = Made::default();
            multiply(&mut made, factor);
            settings.push((format!("{name} × {factor}"), made));
        }
    }
    for (at, (case, made)) in settings.iter().enumerate() {
        progress(at, settings.len());
        for ((quantity, unit), value) in QUANTITIES.into_iter().zip(made.measured(disturbance, &seeds)) {
            detail(out, "constants of the model", case.clone(), quantity, value, unit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_constant_becomes_less_and_more_and_each_another_one() {
        let mut all = vec![Made::default()];
        for (name, multiply) in CONSTANTS {
            for factor in FACTORS {
                let mut made = Made::default();
                multiply(&mut made, factor);
                assert!(!all.contains(&made), "{name} × {factor}: {made:?}");
                all.push(made);
            }
        }
        assert!((rest(0.9, 2.0) - 0.8).abs() < 1e-12 && (rest(0.9, 0.5) - 0.95).abs() < 1e-12);
        assert_eq!([count(60, 0.5), count(3, 0.5), count(6, 2.0), count(1, 0.1)], [30, 2, 12, 1]);
    }

    #[test]
    fn what_a_constant_does_is_in_the_rows() {
        let mut out = Reproduction::default();
        rows(&mut out, &CONSTANTS[..1], Disturbance::NONE, 1, &|_, _| {});
        assert_eq!(out.details.len(), 3 * QUANTITIES.len());
        assert!(out.details.iter().all(|detail| detail.value.is_finite()), "{:?}", out.details);
        let of = |case: usize| {
            let rows = &out.details[case * QUANTITIES.len()..(case + 1) * QUANTITIES.len()];
            rows.iter().map(|detail| detail.value).collect::<Vec<f64>>()
        };
        assert!(of(0) != of(1) && of(0) != of(2), "the model is made of what is varied");
    }
}
