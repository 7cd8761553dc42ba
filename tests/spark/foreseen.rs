//! When a job was said to end. In: the decisions about it, as `job show` tells them. Out: how far they were off. Called by the
//! bed.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

/// Decisions about a job, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Foreseen(BTreeMap<u64, Value>);

/// How far half of the decisions were off at most, as part of the job's whole time.
#[derive(Debug)]
pub(crate) struct Off {
    /// By the model of its stages.
    pub(crate) by_stages: f64,
    /// By its rate, at the same moments.
    pub(crate) by_rate: f64,
    decisions: usize,
}

impl fmt::Display for Off {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { by_stages, by_rate, decisions } = self;
        let (by_stages, by_rate) = (by_stages * 100.0, by_rate * 100.0);
        write!(
            f,
            "half of {decisions} decisions were off by {by_stages:.1} % at most by the stages, by {by_rate:.1} % by the rate"
        )
    }
}

impl Foreseen {
    /// Takes a job's newest decision; the same one any number of times.
    pub(crate) fn take(&mut self, decision: &Value) {
        if let Some(number) = decision["number"].as_u64() {
            self.0.insert(number, decision.clone());
        }
    }

    /// How far they were off about a job that has ended. Each tells one duration per size; what it tells of the end is with
    /// the sizes that the job then had, so that a later decision is not an error of an earlier one.
    pub(crate) fn off(&self, job: &Value) -> Off {
        let (submitted_s, ended_s) = (moment_s(&job["submitted"]), moment_s(&job["ended"]));
        let taken: Vec<&Value> = self.0.values().collect();
        let (mut by_stages, mut by_rate) = (Vec::new(), Vec::new());
        for (at, decision) in taken.iter().enumerate() {
            let told_end_s = |durations: &Value| told_end_s(&taken[at..], durations.as_array()?);
            // Above zero it was told to end too late.
            let off = |durations| Some((told_end_s(durations)? - ended_s) / (ended_s - submitted_s));
            let stages = off(&decision["stages"]["predicted"]["sizes"]);
            if let (Some(stages), Some(rate)) = (stages, off(&decision["candidates"])) {
                eprintln!(
                    "{:6.1} s  size {}, {:.3} left: off by {:+.1} % by the stages, {:+.1} % by the rate",
                    moment_s(&decision["at"]) - submitted_s,
                    decision["size"],
                    decision["remaining"].as_f64().unwrap_or(f64::NAN),
                    stages * 100.0,
                    rate * 100.0
                );
                by_stages.push(stages.abs());
                by_rate.push(rate.abs());
            }
        }
        let middle = |mut all: Vec<f64>| {
            all.sort_by(f64::total_cmp);
            all.get(all.len() / 2).copied().unwrap_or(f64::INFINITY)
        };
        Off { decisions: by_stages.len(), by_stages: middle(by_stages), by_rate: middle(by_rate) }
    }
}

fn moment_s(value: &Value) -> f64 {
    value.as_f64().unwrap() / 1_000.0
}

/// When a job ends by one decision's durations, with the sizes of this and all later decisions. While it has a size, a job
/// does the part of its work that is left at that decision as fast as this size's duration tells.
fn told_end_s(decisions: &[&Value], durations: &[Value]) -> Option<f64> {
    let mut left = 1.0;
    for (at, decision) in decisions.iter().enumerate() {
        let own = durations.iter().find(|own| own["size"] == decision["size"])?;
        let (duration_s, from_s) = (own["completion_s"].as_f64()?, moment_s(&decision["at"]));
        let until_s = decisions.get(at + 1).map_or(f64::INFINITY, |next| moment_s(&next["at"]));
        if from_s + left * duration_s <= until_s {
            return Some(from_s + left * duration_s);
        }
        left -= (until_s - from_s) / duration_s;
    }
    None
}

#[test]
fn a_later_size_is_no_error_of_an_earlier_decision() {
    let sizes = serde_json::json!([{"size": 1, "completion_s": 100.0}, {"size": 2, "completion_s": 50.0}]);
    let decision = |number: u64, at_s: u64, size: u64| {
        serde_json::json!({"number": number, "at": at_s * 1_000, "size": size, "candidates": sizes,
            "stages": {"predicted": {"sizes": sizes}}})
    };
    let mut foreseen = Foreseen::default();
    foreseen.take(&decision(1, 1_000, 1));
    // Half of the work is left, which takes 25 s more with two.
    foreseen.take(&decision(2, 1_050, 2));
    let durations = sizes.as_array().unwrap();
    let taken: Vec<&Value> = foreseen.0.values().collect();
    assert_eq!(told_end_s(&taken, durations), Some(1_075.0));
    let off = foreseen.off(&serde_json::json!({"submitted": 1_000_000, "ended": 1_075_000}));
    // The first one was right; the second told a whole job of the half that was left.
    assert!(off.decisions == 2 && (off.by_stages - 25.0 / 75.0).abs() < 1e-9, "{off}");
}
