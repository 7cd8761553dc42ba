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
    by_rate: f64,
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

    /// How far they were off about a job that has ended, each with the size that it took. Later ones took other sizes, and what
    /// that changed counts as an error too.
    pub(crate) fn off(&self, job: &Value) -> Off {
        let moment = |value: &Value| value.as_f64().unwrap() / 1_000.0;
        let (submitted_s, ended_s) = (moment(&job["submitted"]), moment(&job["ended"]));
        let (mut by_stages, mut by_rate) = (Vec::new(), Vec::new());
        for decision in self.0.values() {
            let sizes = decision["stages"]["predicted"]["sizes"].as_array().cloned().unwrap_or_default();
            let of = |list: &[Value]| {
                let own = list.iter().find(|own| own["size"] == decision["size"])?;
                let end_s = moment(&decision["at"]) + own["completion_s"].as_f64()?;
                Some((end_s - ended_s).abs() / (ended_s - submitted_s))
            };
            if let (Some(stages), Some(rate)) = (of(&sizes), of(decision["candidates"].as_array().unwrap())) {
                eprintln!(
                    "{:6.1} s  size {}: off by {:.1} % by the stages, {:.1} % by the rate",
                    moment(&decision["at"]) - submitted_s,
                    decision["size"],
                    stages * 100.0,
                    rate * 100.0
                );
                by_stages.push(stages);
                by_rate.push(rate);
            }
        }
        let middle = |mut all: Vec<f64>| {
            all.sort_by(f64::total_cmp);
            all.get(all.len() / 2).copied().unwrap_or(f64::INFINITY)
        };
        Off { decisions: by_stages.len(), by_stages: middle(by_stages), by_rate: middle(by_rate) }
    }
}
