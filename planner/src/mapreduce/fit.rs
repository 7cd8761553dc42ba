//! The coefficients of a workload from training runs (Gandhi et al., §IV-C). In: runs with their sizes, clusters and
//! measured stages. Out: [`Coefficients`] with R² and Δ of both stages, or why the runs do not say them.
//!
//! Least squares of the relative error, as Δ is a relative one; a reduce stage counts as many times as it has tasks, since the noise of a
//! mean of n is 1/√n of one's. Polynomials have the degree, up to the second, with the
//! least error on runs left out one at a time; so a coefficient that the runs do not support is zero, as α₂ is in the paper. Of them
//! only those count by which more input never takes less time, nor ever less the more there is: noise gives others, and beyond the
//! training runs they would be absurd.

use serde::{Deserialize, Serialize};

use super::equations::{Coefficients, Layout, Polynomial, Work, tasks_per_core, waves};
use crate::balance::least_squares::Normal;
use crate::sharing::invalid::short;

/// Least and largest number of seconds and MB of a run. Chosen.
const AMOUNTS: (f64, f64) = (1e-6, 1e12);
/// Least and largest number of cores of a run; parts of cores are those of a job that shares them. Chosen.
const CORES: (f64, f64) = (0.01, 1e6);
/// Largest number of tasks of a run, and of slots of a core. Chosen.
const MOST_TASKS: f64 = 1e7;
/// A polynomial of a higher degree must be better by this part, on runs left out. Chosen.
const BETTER: f64 = 0.02;

/// A run of a workload on one cluster.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainingRun {
    /// D, in MB.
    pub input_mb: f64,
    /// M.
    pub maps: u32,
    /// R.
    #[serde(default)]
    pub reduces: u32,
    /// N_mc.
    pub map_cores: f64,
    /// n_ms.
    #[serde(default = "one")]
    pub map_slots_per_core: u32,
    /// N_rc.
    #[serde(default)]
    pub reduce_cores: f64,
    /// n_rs.
    #[serde(default = "one")]
    pub reduce_slots_per_core: u32,
    /// T̂_ms: from the start of the first map task to the end of the last.
    pub map_stage_s: f64,
    /// T̂_rs: from there to the end of the last reduce task.
    #[serde(default)]
    pub reduce_stage_s: f64,
    /// What the job took before its first map task.
    #[serde(default)]
    pub set_up_s: f64,
}

const fn one() -> u32 {
    1
}

impl TrainingRun {
    const fn work(&self) -> Work {
        Work { input_mb: self.input_mb, maps: self.maps, reduces: self.reduces }
    }

    const fn layout(&self) -> Layout {
        Layout {
            map_cores: self.map_cores,
            map_slots_per_core: self.map_slots_per_core,
            reduce_cores: self.reduce_cores,
            reduce_slots_per_core: self.reduce_slots_per_core,
        }
    }
}

/// How well a stage was fitted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Quality {
    /// Runs.
    pub runs: usize,
    /// R²; NaN where all runs took as long, which leaves nothing to explain.
    pub r_squared: f64,
    /// Δ of §IV-C: mean of |measured − model| / model, in percent.
    pub delta_percent: f64,
    /// The same with every run, and its copies, left out of the fit that predicts it; infinite where the others do not give a fit.
    pub left_out_percent: f64,
    /// The least and the most MB of a task among the runs. Beyond them the polynomial is a guess.
    pub task_mb: (f64, f64),
}

/// Coefficients and how well they fit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Fitted {
    /// The coefficients.
    pub coefficients: Coefficients,
    /// Of T_ms.
    pub map: Quality,
    /// Of T_rs; `None` where no run had reduce tasks.
    pub reduce: Option<Quality>,
}

/// Runs do not give coefficients.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FitError {
    /// A field of a run.
    #[error("[{run}].{field}: is {value}; it must be {rule}")]
    Field {
        /// Which run, from 0.
        run: usize,
        /// Which field.
        field: &'static str,
        /// What it is.
        value: String,
        /// What is allowed.
        rule: &'static str,
    },
    /// Too few of them.
    #[error(": there are {runs} runs {of}; there must be at least {least}")]
    TooFew {
        /// How many there are.
        runs: usize,
        /// What kind of runs is meant.
        of: &'static str,
        /// How many it takes.
        least: usize,
    },
    /// They are too much alike.
    #[error(": the runs do not tell the coefficients of {stage} apart; {advice}")]
    Singular {
        /// Which stage.
        stage: &'static str,
        /// What to do.
        advice: &'static str,
    },
}

/// A term of a stage's time: what a coefficient is multiplied with.
type Row = Vec<f64>;

/// Rows of an equation and the measured values.
struct Sample {
    rows: Vec<Row>,
    measured: Vec<f64>,
    /// What each counts: the tasks whose times it is the mean of.
    tasks: Vec<f64>,
}

impl Sample {
    /// Least squares of the relative error without the run `left_out` and its copies, which would predict it without any error;
    /// `None` where that is singular. Columns are scaled, as their units differ by orders.
    fn solve(&self, left_out: Option<usize>) -> Option<Vec<f64>> {
        let columns = self.rows.first()?.len();
        let scale: Vec<f64> =
            (0..columns).map(|at| self.rows.iter().fold(0.0, |most: f64, row| most.max(row[at].abs()))).collect();
        if scale.iter().any(|most| *most <= 0.0) {
            return None;
        }
        let mut normal = Normal::new(columns);
        for (index, (row, measured)) in self.rows.iter().zip(&self.measured).enumerate() {
            if left_out.is_none_or(|own| !self.is_copy(index, own)) {
                let scaled: Row = row.iter().zip(&scale).map(|(x, most)| x / most).collect();
                normal.add(&scaled, *measured, self.tasks[index] / (measured * measured));
            }
        }
        let solution = normal.unconstrained()?;
        Some(solution.iter().zip(&scale).map(|(x, most)| x / most).collect())
    }

    /// Both runs have the same sizes and took exactly as long: one of them says no more than the other.
    fn is_copy(&self, index: usize, other: usize) -> bool {
        let is_same = |a: f64, b: f64| a.total_cmp(&b).is_eq();
        let all = self.rows[index].iter().zip(&self.rows[other]);
        is_same(self.measured[index], self.measured[other]) && all.into_iter().all(|(a, b)| is_same(*a, *b))
    }

    fn model(&self, index: usize, solution: &[f64]) -> f64 {
        self.rows[index].iter().zip(solution).map(|(x, c)| x * c).sum()
    }

    /// Mean relative error in percent on runs left out one at a time.
    fn left_out_percent(&self) -> Option<f64> {
        let error = |index: usize| {
            let model = self.model(index, &self.solve(Some(index))?);
            Some((self.measured[index] - model).abs() / self.measured[index])
        };
        let errors: Option<Vec<f64>> = (0..self.rows.len()).map(error).collect();
        errors.map(|errors| 100.0 * errors.iter().sum::<f64>() / errors.len() as f64)
    }

    fn quality(&self, solution: &[f64], left_out_percent: f64, task_mb: (f64, f64)) -> Quality {
        let runs = self.measured.len();
        let mean = self.measured.iter().sum::<f64>() / runs as f64;
        let (mut off, mut spread, mut delta) = (0.0, 0.0, 0.0);
        for (index, measured) in self.measured.iter().enumerate() {
            let model = self.model(index, solution);
            off += (measured - model).powi(2);
            spread += (measured - mean).powi(2);
            delta += (measured - model).abs() / model.abs() / runs as f64;
        }
        let r_squared = if spread > 0.0 { 1.0 - off / spread } else { f64::NAN };
        Quality { runs, r_squared, delta_percent: 100.0 * delta, left_out_percent, task_mb }
    }
}

/// 1, x, x² up to a degree, times a factor.
fn powers(x: f64, degree: usize, factor: f64) -> impl Iterator<Item = f64> {
    (0..=degree).map(move |power| factor * x.powi(i32::try_from(power).unwrap_or(0)))
}

fn polynomial(coefficients: &[f64]) -> Polynomial {
    let mut own = [0.0; 3];
    own.iter_mut().zip(coefficients).for_each(|(own, given)| *own = *given);
    Polynomial(own)
}

/// Time of a task is positive, and grows with its input at least linearly, from the least input of the training on. A millionth is rounding.
fn plausible(coefficients: &[f64], (least, most): (f64, f64)) -> bool {
    let own = polynomial(coefficients);
    let ([_, c1, c2], slack) = (own.0, 1e-6 * own.at(most).abs());
    own.at(least) > 0.0 && c2 * most * most >= -slack && (c1 + 2.0 * c2 * least) * least >= -slack
}

/// The plausible form with the least error on runs left out; a later one must be better by [`BETTER`]. With two runs of one form nothing
/// can be left out; the first form that is not singular stands then.
fn best<F: Copy>(
    forms: &[F],
    sample: impl Fn(F) -> Sample,
    plausible: impl Fn(F, &[f64]) -> bool,
) -> Option<(F, Sample, Vec<f64>, f64)> {
    let mut best: Option<(F, Sample, Vec<f64>, f64)> = None;
    for form in forms {
        let own = sample(*form);
        if own.rows.first().is_none_or(|row| row.len() > own.rows.len()) {
            continue;
        }
        let Some(solution) = own.solve(None).filter(|solution| plausible(*form, solution)) else { continue };
        let error = own.left_out_percent().unwrap_or(f64::INFINITY);
        if best.as_ref().is_none_or(|(.., least)| error < *least * (1.0 - BETTER)) {
            best = Some((*form, own, solution, error));
        }
    }
    best
}

fn check(runs: &[TrainingRun]) -> Result<(), FitError> {
    let amount = (AMOUNTS, "0.000001 to 1e12");
    let cores = (CORES, "0.01 to 1000000");
    let number = ((1.0, MOST_TASKS), "1 to 10000000");
    for (run, own) in runs.iter().enumerate() {
        let always = [
            ("input_mb", own.input_mb, amount),
            ("maps", own.maps.into(), number),
            ("map_cores", own.map_cores, cores),
            ("map_slots_per_core", own.map_slots_per_core.into(), number),
            ("map_stage_s", own.map_stage_s, amount),
            ("set_up_s", own.set_up_s, ((0.0, AMOUNTS.1), "0 to 1e12")),
        ];
        let of_reduce = [
            ("reduces", own.reduces.into(), number),
            ("reduce_cores", own.reduce_cores, cores),
            ("reduce_slots_per_core", own.reduce_slots_per_core.into(), number),
            ("reduce_stage_s", own.reduce_stage_s, amount),
        ];
        let all = always.into_iter().chain(of_reduce.into_iter().filter(|_| own.reduces > 0));
        for (field, value, ((least, most), rule)) in all {
            if !(least..=most).contains(&value) {
                return Err(FitError::Field { run, field, value: short(value), rule });
            }
        }
    }
    Ok(())
}

/// Least and most.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), x| (least.min(x), most.max(x)))
}

/// Fits the coefficients of Eq. 10.
///
/// Runs that give all map tasks the same MB fit a constant f. Where no run has a second wave of reduce tasks, g_s is g_f + λM/R
/// at that size. λ is zero where the runs cannot tell it from g_f.
///
/// # Errors
/// [`FitError`]; its text begins where the name of the list of runs ends.
pub fn fit(runs: &[TrainingRun]) -> Result<Fitted, FitError> {
    check(runs)?;
    if runs.len() < 2 {
        return Err(FitError::TooFew { runs: runs.len(), of: "in all", least: 2 });
    }
    let task_mb = |run: &TrainingRun| run.input_mb / f64::from(run.maps);
    let at_once = |run: &TrainingRun| tasks_per_core(run.maps, run.map_cores, run.map_slots_per_core);
    let map_sample = |(degree, [with_wait, _]): Form| {
        let row = |run: &TrainingRun| {
            let on = run.layout();
            let factor = waves(run.maps, on.map_cores, on.map_slots_per_core) * at_once(run);
            let wait = if at_once(run) > 1.0 { -factor } else { 0.0 };
            powers(task_mb(run), degree, factor).chain(Some(wait).filter(|_| with_wait)).collect()
        };
        Sample {
            rows: runs.iter().map(row).collect(),
            measured: runs.iter().map(|run| run.map_stage_s).collect(),
            tasks: vec![1.0; runs.len()],
        }
    };
    let told = [one_and_several(runs.iter().map(at_once)), false];
    let forms = forms(if varies(runs.iter().map(task_mb)) { 3 } else { 1 }, told);
    let singular = FitError::Singular { stage: "the map stage", advice: "vary the MB of a map task" };
    let task_range = range(runs.iter().map(task_mb));
    // With more than half of the least task two slots would not keep a core busy, and the time would not be linear in the wait.
    let map_plausible = |(degree, [with_wait, _]): Form, solution: &[f64]| {
        let own = &solution[..=degree];
        let wait = if with_wait { solution[degree + 1] } else { 0.0 };
        plausible(own, task_range) && (0.0..=0.5 * polynomial(own).at(task_range.0)).contains(&wait)
    };
    let ((degree, [with_wait, _]), sample, solution, left_out) =
        best(&forms, map_sample, map_plausible).ok_or(singular)?;
    let mut coefficients = Coefficients { map: polynomial(&solution[..=degree]), ..Coefficients::default() };
    if with_wait {
        coefficients.map_wait_s = solution[degree + 1];
    }
    let map = sample.quality(&solution, left_out, task_range);
    coefficients.set_up_s = runs.iter().map(|run| run.set_up_s).sum::<f64>() / runs.len() as f64;
    let with_reduce: Vec<TrainingRun> = runs.iter().filter(|run| run.reduces > 0).copied().collect();
    let reduce = if with_reduce.is_empty() { None } else { Some(fit_reduce(&with_reduce, &mut coefficients)?) };
    Ok(Fitted { coefficients, map, reduce })
}

fn varies(values: impl Iterator<Item = f64>) -> bool {
    let (least, most) = range(values);
    most > least * 1.01
}

/// A form of a stage: degree of the polynomials, and which of the coefficients besides them are in it: the wait of the map stage; λ and the copying
/// of the other.
type Form = (usize, [bool; 2]);

/// Forms from the simplest on, with those coefficients besides the polynomials that the runs can tell.
fn forms(degrees: usize, told: [bool; 2]) -> Vec<Form> {
    let all = [[false, false], [true, false], [false, true], [true, true]];
    let all = all.into_iter().filter(|own| own.iter().zip(told).all(|(own, told)| told || !own));
    (0..degrees).flat_map(|degree| all.clone().map(move |own| (degree, own))).collect()
}

/// Some runs have one task on a core, and some have several.
fn one_and_several(mut at_once: impl Iterator<Item = f64> + Clone) -> bool {
    at_once.clone().any(|own| own > 1.0) && at_once.any(|own| own <= 1.0)
}

fn fit_reduce(runs: &[TrainingRun], coefficients: &mut Coefficients) -> Result<Quality, FitError> {
    if runs.len() < 2 {
        return Err(FitError::TooFew { runs: runs.len(), of: "with reduce tasks", least: 2 });
    }
    let task_mb = |run: &TrainingRun| run.input_mb / f64::from(run.reduces);
    let later_waves = |run: &TrainingRun| {
        let on = run.layout();
        waves(run.reduces, on.reduce_cores, on.reduce_slots_per_core) - 1.0
    };
    let second_wave = runs.iter().any(|run| later_waves(run) > 0.5);
    let at_once = |run: &TrainingRun| tasks_per_core(run.reduces, run.reduce_cores, run.reduce_slots_per_core);
    let sample = |(degree, [with_shuffle, with_copy]): Form| {
        let row = |run: &TrainingRun| {
            let shared = at_once(run);
            let copy = if shared > 1.0 { -shared * later_waves(run) * task_mb(run) } else { 0.0 };
            let first = powers(task_mb(run), degree, shared);
            let later = powers(task_mb(run), degree, shared * later_waves(run)).filter(|_| second_wave);
            let shuffle = f64::from(run.maps) / f64::from(run.reduces);
            let besides = [(shuffle, with_shuffle), (copy, with_copy)].into_iter().filter(|(_, with)| *with);
            first.chain(later).chain(besides.map(|(column, _)| column)).collect()
        };
        Sample {
            rows: runs.iter().map(row).collect(),
            measured: runs.iter().map(|run| run.reduce_stage_s).collect(),
            tasks: runs.iter().map(|run| run.reduces.into()).collect(),
        }
    };
    let of_later = runs.iter().filter(|run| later_waves(run) > 0.5).map(at_once);
    let forms = forms(if varies(runs.iter().map(task_mb)) { 3 } else { 1 }, [true, one_and_several(of_later)]);
    let advice = "vary the MB, the number and the waves of reduce tasks";
    let singular = FitError::Singular { stage: "the reduce stage", advice };
    let task_range = range(runs.iter().map(task_mb));
    let later_range = range(runs.iter().filter(|run| later_waves(run) > 0.5).map(task_mb));
    let besides = |(_, [with_shuffle, with_copy]): Form, solution: &[f64]| {
        let mut last = solution.iter().rev();
        let copy = if with_copy { last.next().copied() } else { None };
        let shuffle = if with_shuffle { last.next().copied() } else { None };
        [shuffle.unwrap_or(0.0), copy.unwrap_or(0.0)]
    };
    let reduce_plausible = |form: Form, solution: &[f64]| {
        let (degree, later) = (form.0, &solution[form.0 + 1..]);
        let [shuffle, copy] = besides(form, solution);
        // As of the wait of map tasks.
        let most = |mb: f64| 0.5 * polynomial(&later[..=degree]).at(mb) / mb;
        plausible(&solution[..=degree], task_range)
            && (!second_wave || plausible(&later[..=degree], later_range))
            && shuffle >= 0.0
            && copy >= 0.0
            && (copy <= 0.0 || copy <= most(later_range.0).min(most(later_range.1)))
    };
    let (form, own, solution, left_out) = best(&forms, sample, reduce_plausible).ok_or(singular)?;
    let degree = form.0;
    coefficients.reduce_first = polynomial(&solution[..=degree]);
    [coefficients.shuffle, coefficients.copy] = besides(form, &solution);
    coefficients.reduce_later = if second_wave {
        polynomial(&solution[degree + 1..=2 * degree + 1])
    } else {
        // Nothing was seen of later waves; they cost at least what the first does, with its shuffle.
        let shuffle = runs.iter().map(|run| coefficients.shuffle_s(run.work())).sum::<f64>() / runs.len() as f64;
        let [c0, c1, c2] = coefficients.reduce_first.0;
        Polynomial([c0 + shuffle, c1, c2])
    };
    Ok(own.quality(&solution, left_out, task_range))
}

#[cfg(test)]
mod tests {
    use super::super::equations::{TERA_SORT, WORD_COUNT};
    use super::*;

    /// Runs that take what the coefficients say, times a factor that alternates around one.
    fn runs(of: &Coefficients, off: f64) -> Vec<TrainingRun> {
        let mut all = Vec::new();
        for (index, task_mb) in [50.0, 64.0, 96.0, 128.0].into_iter().enumerate() {
            for (maps, reduces, cores) in [(20, 1, 1.0), (40, 4, 2.0), (60, 6, 2.0), (80, 9, 3.0), (30, 12, 4.0)] {
                let input_mb = task_mb * f64::from(maps);
                let work = Work { input_mb, maps, reduces };
                let layout =
                    Layout { map_cores: cores, map_slots_per_core: 2, reduce_cores: 2.0, reduce_slots_per_core: 1 };
                let factor = if (index + all.len()) % 2 == 0 { 1.0 + off } else { 1.0 - off };
                all.push(TrainingRun {
                    input_mb,
                    maps,
                    reduces,
                    map_cores: cores,
                    map_slots_per_core: 2,
                    reduce_cores: 2.0,
                    reduce_slots_per_core: 1,
                    map_stage_s: factor * of.map_stage_s(work, layout).unwrap(),
                    reduce_stage_s: factor * of.reduce_stage_s(work, layout).unwrap(),
                    set_up_s: 2.0,
                });
            }
        }
        all
    }

    #[test]
    fn exact_runs_give_the_tables_back() {
        for table in [WORD_COUNT, TERA_SORT] {
            let found = fit(&runs(&table, 0.0)).unwrap();
            let close = |a: f64, b: f64| (a - b).abs() < 1e-6 * (1.0 + b.abs());
            let (own, all) = (found.coefficients, [0, 1, 2]);
            assert!(all.into_iter().all(|i| close(own.map.0[i], table.map.0[i])), "{own:?}");
            assert!(all.into_iter().all(|i| close(own.reduce_first.0[i], table.reduce_first.0[i])), "{own:?}");
            assert!(all.into_iter().all(|i| close(own.reduce_later.0[i], table.reduce_later.0[i])), "{own:?}");
            assert!(close(own.shuffle, table.shuffle) && close(own.set_up_s, 2.0), "{own:?}");
            let reduce = found.reduce.unwrap();
            assert!(found.map.r_squared > 0.999_999 && reduce.r_squared > 0.999_999);
            assert!(found.map.delta_percent < 1e-3 && reduce.delta_percent < 1e-3);
            assert_eq!(found.map.task_mb, (50.0, 128.0));
        }
    }

    /// Clusters with one slot on a core and with two tell how much of a task leaves its core idle; those with one slot alone do not.
    #[test]
    fn idle_cores_are_found_where_slots_vary() {
        let of = Coefficients { map_wait_s: 4.0, copy: 0.002, shuffle: 0.0, ..WORD_COUNT };
        let with = |slots: u32| {
            let change = move |mut run: TrainingRun| {
                (run.map_slots_per_core, run.reduce_slots_per_core) = (slots, slots);
                run.map_stage_s = of.map_stage_s(run.work(), run.layout()).unwrap();
                run.reduce_stage_s = of.reduce_stage_s(run.work(), run.layout()).unwrap();
                run
            };
            runs(&of, 0.0).into_iter().map(change).collect::<Vec<_>>()
        };
        let found = fit(&[with(1), with(2)].concat()).unwrap().coefficients;
        assert!((found.map_wait_s - 4.0).abs() < 1e-6 && (found.copy - 0.002).abs() < 1e-6, "{found:?}");
        assert!((found.map.at(64.0) - WORD_COUNT.map.at(64.0)).abs() < 1e-6, "{found:?}");
        let one = fit(&with(1)).unwrap().coefficients;
        assert!(one.map_wait_s == 0.0 && one.copy == 0.0, "{one:?}");
    }

    #[test]
    fn noisy_runs_give_about_the_same_and_delta_says_how_noisy() {
        let found = fit(&runs(&WORD_COUNT, 0.03)).unwrap();
        assert!((found.coefficients.map.at(64.0) - WORD_COUNT.map.at(64.0)).abs() < 0.04 * WORD_COUNT.map.at(64.0));
        assert!((2.0..4.0).contains(&found.map.delta_percent), "{:?}", found.map);
        assert!(found.map.left_out_percent >= found.map.delta_percent * 0.9);
    }

    #[test]
    fn runs_that_do_not_say_it_are_errors() {
        let all = runs(&WORD_COUNT, 0.0);
        assert_eq!(fit(&all[..1]).unwrap_err().to_string(), ": there are 1 runs in all; there must be at least 2");
        assert!(fit(&[]).is_err());
        let mut wrong = all.clone();
        wrong[3].map_stage_s = f64::NAN;
        let said = fit(&wrong).unwrap_err().to_string();
        assert_eq!(said, "[3].map_stage_s: is NaN; it must be 0.000001 to 1e12");
        for change in [
            |run: &mut TrainingRun| run.input_mb = -5.0,
            |run: &mut TrainingRun| run.maps = 0,
            |run: &mut TrainingRun| run.map_cores = 0.0,
            |run: &mut TrainingRun| run.reduce_cores = 0.0,
            |run: &mut TrainingRun| run.map_cores = 1e-300,
            |run: &mut TrainingRun| run.reduce_cores = 1e7,
            |run: &mut TrainingRun| run.set_up_s = -1.0,
        ] {
            let mut wrong = all.clone();
            change(&mut wrong[2]);
            assert!(matches!(fit(&wrong), Err(FitError::Field { run: 2, .. })));
        }
        // One run with reduce tasks among runs without.
        let mut few = all.clone();
        few.iter_mut().skip(1).for_each(|run| run.reduces = 0);
        assert!(matches!(fit(&few), Err(FitError::TooFew { runs: 1, .. })));
        // Two runs of two waves each tell nothing of the first wave.
        let same = [all[4], all[4]];
        let said = fit(&same).unwrap_err().to_string();
        assert!(said.contains("the reduce stage apart; vary"), "{said}");
    }

    /// Each run predicts its copy without any error, which says nothing of other runs.
    #[test]
    fn copies_of_runs_are_no_estimate_of_the_error() {
        let one = TrainingRun { reduces: 0, ..runs(&WORD_COUNT, 0.0)[0] };
        let found = fit(&[one; 2]).unwrap().map;
        assert!(found.left_out_percent.is_infinite() && found.r_squared.is_nan(), "{found:?}");
        // Measured twice, the runs differ by what measuring does.
        let again = TrainingRun { map_stage_s: 1.1 * one.map_stage_s, ..one };
        let found = fit(&[one, again]).unwrap().map;
        assert!((9.0..11.0).contains(&found.left_out_percent), "{found:?}");
        let noisy = runs(&WORD_COUNT, 0.03);
        let (once, twice) = (fit(&noisy).unwrap().map, fit(&[noisy.clone(), noisy].concat()).unwrap().map);
        assert!((twice.left_out_percent - once.left_out_percent).abs() < 1e-6, "{once:?} {twice:?}");
    }

    #[test]
    fn runs_of_one_block_size_fit_a_constant() {
        let one: Vec<TrainingRun> = runs(&WORD_COUNT, 0.0)
            .into_iter()
            .filter(|run| (run.input_mb / f64::from(run.maps) - 64.0).abs() < 1e-9)
            .collect();
        let found = fit(&one).unwrap();
        assert!((found.coefficients.map.0[0] - 31.6).abs() < 1e-6 && found.coefficients.map.0[1] == 0.0);
    }
}
