//! Potential and actual productivity: what a volunteer could contribute, and how much of that volunteers really
//! contribute (RHIC §4.2–4.3). In: residual CPU and memory, and what workers used. Out: potentials, yields and
//! efficiencies for the controller. CPU and productivity are in percent of one core.

use std::collections::BTreeMap;

use gleaner_types::units::{Bytes, CoreShare};
use serde::{Deserialize, Serialize};

use crate::half_life;

/// Slots that fit into a host's residual memory: RHIC's N_slots. A job that needs no memory fits any number.
#[must_use]
pub fn slots_in_memory(residual: Bytes, per_slot: Bytes) -> u32 {
    match residual.0.checked_div(per_slot.0) {
        Some(slots) => u32::try_from(slots).unwrap_or(u32::MAX),
        None => u32::MAX,
    }
}

/// Potential productivity of a volunteer, RHIC Eq. 1: min(CPU_max − CPU_fg, 100 % × N_slots), where
/// `residual` is the predicted CPU_max − CPU_fg (never negative).
#[must_use]
pub fn potential(residual: CoreShare, slots: u32) -> CoreShare {
    residual.min(CoreShare::from_cores(slots))
}

/// How much of the potential the workers really used: the ratio of aggregate actual to aggregate potential
/// productivity, recent intervals counting more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Yield {
    used: f64,
    offered: f64,
}

/// Half-life of an observation of the yield, in seconds. Chosen: one evaluation interval of RHIC.
const HALF_LIFE_S: f64 = 60.0;

/// Least yield assumed. Chosen: below it a model is certainly wrong, and a tenth keeps estimates finite.
const LEAST: f64 = 0.1;

impl Yield {
    /// Adds what the workers used and could have used over an interval.
    pub fn observe(&mut self, actual: CoreShare, potential: CoreShare, interval_s: f64) {
        if potential <= CoreShare::ZERO || interval_s <= 0.0 {
            return;
        }
        let fade = half_life::weight(interval_s, HALF_LIFE_S);
        self.used = self.used * fade + actual.percent() * interval_s;
        self.offered = self.offered * fade + potential.percent() * interval_s;
    }

    /// The ratio, in 0.1..=1; `None` before the first observation.
    #[must_use]
    pub fn ratio(self) -> Option<f64> {
        (self.offered > 0.0).then(|| (self.used / self.offered).clamp(LEAST, 1.0))
    }
}

/// How much work the classes of hosts do per unit of productivity, relative to the class most hosts are of
/// (RHIC §4.6).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Efficiency {
    base: Option<String>,
    classes: BTreeMap<String, ClassRecord>,
    /// Part of the job that a class must have done before its efficiency is used.
    #[serde(default)]
    least_done: Option<f64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct ClassRecord {
    /// Part of the job done by hosts of the class.
    done: f64,
    /// Productivity that took, in percent of one core × seconds.
    cpu_percent_s: f64,
}

/// Tasks that a class must have done before its efficiency is used, and the bounds of that as a part of the job. Chosen: with twenty
/// tasks that vary by half the efficiency is off by a ninth.
const LEAST_TASKS: f64 = 20.0;
const LEAST_DONE: (f64, f64) = (0.000_5, 0.05);
/// The same of a job whose tasks are not known. Chosen: a few dozen tasks of the papers' jobs.
const LEAST_DONE_OF_ANY: f64 = 0.005;

/// Most classes of a job that are told apart: what a host says of its CPU is stored with the job. Chosen.
const MOST_CLASSES: usize = 64;

impl Efficiency {
    /// The class whose efficiency is 1: the most common one when the job starts.
    #[must_use]
    pub fn relative_to<'a>(classes: impl Iterator<Item = &'a str>) -> Self {
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        for class in classes {
            *counts.entry(class).or_default() += 1;
        }
        // Of equally common ones the first by name, so that the choice is always the same.
        let base = counts.iter().rev().max_by_key(|(_, count)| **count).map(|(class, _)| (*class).to_owned());
        Self { base, classes: BTreeMap::new(), least_done: None }
    }

    /// The job has so many tasks.
    pub fn tasks(&mut self, total: u32) {
        if total > 0 {
            self.least_done = Some((LEAST_TASKS / f64::from(total)).clamp(LEAST_DONE.0, LEAST_DONE.1));
        }
    }

    /// Work per unit of productivity of a class, once it has done enough.
    fn per_unit(&self, class: &str) -> Option<f64> {
        let least = self.least_done.unwrap_or(LEAST_DONE_OF_ANY);
        let record = self.classes.get(class).filter(|record| record.done >= least)?;
        (record.cpu_percent_s > 0.0).then(|| record.done / record.cpu_percent_s)
    }

    /// Its efficiency has been seen, or is 1 by definition.
    #[must_use]
    pub fn is_known(&self, class: &str) -> bool {
        self.base.as_deref() == Some(class) || self.per_unit(class).is_some()
    }

    /// Productivity of all classes so far, by their present efficiencies, in percent of one core × seconds.
    #[must_use]
    pub fn productivity_percent_s(&self) -> f64 {
        self.classes.iter().map(|(class, record)| record.cpu_percent_s * self.of(class)).sum()
    }

    /// Takes work done by a host of a class, as a part of the job, and the productivity it took.
    pub fn observe(&mut self, class: &str, done: f64, actual: CoreShare, interval_s: f64) {
        if !self.classes.contains_key(class) {
            if self.classes.len() >= MOST_CLASSES {
                return;
            }
            self.classes.insert(class.to_owned(), ClassRecord::default());
        }
        if let Some(record) = self.classes.get_mut(class) {
            record.done += done.max(0.0);
            record.cpu_percent_s += actual.percent() * interval_s.max(0.0);
        }
    }

    /// E_K of RHIC Eq. 7: (J_K / P_K) × (P_0 / J_0); 1 for the base class and while there is too little data.
    #[must_use]
    pub fn of(&self, class: &str) -> f64 {
        let both = self
            .base
            .as_deref()
            .filter(|base| *base != class)
            .and_then(|base| Some(self.per_unit(class)? / self.per_unit(base)?));
        both.map_or(1.0, |ratio| ratio.clamp(0.05, 20.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(percent: f64) -> CoreShare {
        CoreShare::new(percent).unwrap()
    }

    #[test]
    fn a_host_that_changes_its_name_does_not_fill_the_state() {
        let mut efficiency = Efficiency::relative_to(["a"].into_iter());
        (0..1_000).for_each(|name| efficiency.observe(&format!("cpu {name}"), 0.1, share(100.0), 1.0));
        assert_eq!(efficiency.classes.len(), MOST_CLASSES);
        assert!((efficiency.of("cpu 999") - 1.0).abs() < 1e-9, "as the base class");
    }

    #[test]
    fn eq_1_takes_the_tighter_of_cpu_and_memory() {
        // Four cores, the foreground uses 130 %: 270 % are left, but memory holds two slots.
        let residual = share(400.0).saturating_sub(share(130.0));
        assert_eq!(slots_in_memory(Bytes::from_mib(2500), Bytes::from_mib(1000)), 2);
        assert_eq!(potential(residual, 2), share(200.0));
        assert_eq!(potential(residual, 4), share(270.0));
        assert_eq!(potential(share(100.0).saturating_sub(share(150.0)), 4), CoreShare::ZERO);
        assert_eq!(slots_in_memory(Bytes(5), Bytes(0)), u32::MAX);
    }

    #[test]
    fn eq_7_by_hand() {
        let mut seen = Efficiency::relative_to(["old", "new", "old"].into_iter());
        assert!((seen.of("new") - 1.0).abs() < f64::EPSILON, "nothing is known yet");
        seen.observe("old", 0.1, share(1_000.0), 10.0);
        seen.observe("new", 0.3, share(1_500.0), 10.0);
        // (0.3 / 15,000) × (10,000 / 0.1) = 2; Eq. 8: 400 % of the new class are 800 % in common units.
        assert!((seen.of("new") - 2.0).abs() < 1e-12);
        assert!((seen.of("old") - 1.0).abs() < f64::EPSILON && (seen.of("unseen") - 1.0).abs() < f64::EPSILON);
        assert!(((share(400.0) * seen.of("new")) - share(800.0)).abs() < 1e-9);
        // 10,000 and twice 15,000.
        assert!((seen.productivity_percent_s() - 40_000.0).abs() < 1e-6);
    }

    #[test]
    fn an_efficiency_is_known_after_some_tasks() {
        let mut seen = Efficiency::relative_to(["old"].into_iter());
        seen.tasks(1_000);
        seen.observe("old", 0.5, share(1_000.0), 10.0);
        seen.observe("new", 0.019, share(100.0), 10.0);
        assert!(seen.is_known("old") && !seen.is_known("new") && !seen.is_known("unseen"), "nineteen tasks");
        seen.observe("new", 0.001, share(0.0), 0.0);
        assert!(seen.is_known("new"));
    }

    #[test]
    fn yield_is_a_ratio_of_sums_that_fades() {
        let mut seen = Yield::default();
        assert_eq!(seen.ratio(), None);
        seen.observe(share(50.0), share(100.0), 60.0);
        assert!((seen.ratio().unwrap() - 0.5).abs() < 1e-12);
        // One half-life later the old counts half: (25·60 + 100·60) / (50·60 + 100·60) = 5/6.
        seen.observe(share(100.0), share(100.0), 60.0);
        assert!((seen.ratio().unwrap() - 5.0 / 6.0).abs() < 1e-12);
    }
}
