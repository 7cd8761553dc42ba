//! The papers' experiments on simulated test beds, paper beside ours, and the baselines that they compare with.
//!
//! In: options and seeds, from `gleaner reproduce`. Out: a [`Reproduction`], the same for the same seeds. The services, hosts
//! and traces are the simulator's, the decisions the planner's; nothing that ships to hosts uses this crate.

pub mod baselines;
pub mod bconf;
pub mod canal;
pub mod chisim;
pub mod forecast;
pub mod interval;
pub mod jobs;
pub mod mapreduce;
pub mod pool;
pub mod rhic;
pub mod sharing;
pub mod stfc;

use self::mapreduce::error::BedError;
use gleaner_simulator::cluster::ScenarioError;
use gleaner_simulator::traces::TraceError;

/// One figure of a paper and what we get.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Its name, which stays the same for ever.
    pub id: &'static str,
    /// What the paper reports; `None` where it gives no number.
    pub paper: Option<f64>,
    /// What this run measured; `None` when it could not, with the reason in `note`.
    pub ours: Option<f64>,
    /// The same figure of medians over the runs in place of means, for experiments that say one.
    pub median: Option<f64>,
    /// 95 % confidence interval of `ours` over the runs, for experiments that say one ([`interval`]).
    pub interval: Option<[f64; 2]>,
    /// Unit of both.
    pub unit: &'static str,
    /// What we hold ourselves to, in words.
    pub target: String,
    /// Ours is within the target.
    pub holds: bool,
    /// What is in the figure, in a sentence.
    pub note: String,
}

impl Figure {
    /// A figure without medians and interval. What is no finite number was not measured, and holds no target.
    #[must_use]
    pub fn new(
        id: &'static str,
        paper: impl Into<Option<f64>>,
        ours: impl Into<Option<f64>>,
        unit: &'static str,
        (target, holds): (impl Into<String>, bool),
        note: impl Into<String>,
    ) -> Self {
        let ours = finite(ours.into());
        Self {
            id,
            paper: paper.into(),
            ours,
            median: None,
            interval: None,
            unit,
            target: target.into(),
            holds: holds && ours.is_some(),
            note: note.into(),
        }
    }

    /// With the same figure of medians.
    #[must_use]
    pub fn with_median(self, median: f64) -> Self {
        Self { median: finite(Some(median)), ..self }
    }

    /// With its interval over the runs, where there is one.
    #[must_use]
    pub fn with_interval(self, interval: Option<[f64; 2]>) -> Self {
        Self { interval, ..self }
    }
}

fn finite(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite())
}

/// A curve for a plot.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Plot it belongs to.
    pub plot: String,
    /// Its name in the legend.
    pub name: String,
    /// Name and unit of the horizontal axis.
    pub x: &'static str,
    /// Name and unit of the vertical axis.
    pub y: &'static str,
    /// Single points rather than a line.
    pub points_only: bool,
    /// The points.
    pub points: Vec<(f64, f64)>,
    /// The least and the greatest value at each of the points, for curves that have a band; empty for others.
    pub band: Vec<[f64; 2]>,
}

/// A row of detail behind the figures.
#[derive(Debug, Clone, PartialEq)]
pub struct Detail {
    /// Experiment.
    pub experiment: String,
    /// Case within it.
    pub case: String,
    /// What is measured.
    pub quantity: &'static str,
    /// How much.
    pub value: f64,
    /// Unit.
    pub unit: &'static str,
}

/// Everything that came of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reproduction {
    /// Figures of the papers, ours beside them.
    pub figures: Vec<Figure>,
    /// What is behind them.
    pub details: Vec<Detail>,
    /// Curves for plots.
    pub series: Vec<Series>,
    /// What could not be measured, and why.
    pub skipped: Vec<String>,
}

/// What stops a reproduction.
#[derive(Debug, thiserror::Error)]
pub enum ReproduceError {
    /// A scenario that cannot be run, which is a bug.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A recorded trace that is there and cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A test bed of MapReduce that does not work, which is a bug.
    #[error(transparent)]
    MapReduce(#[from] BedError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_is_not_measured_and_holds_nothing() {
        let measured = Figure::new("bconf.harmed", 1.0, 0.0, "tenants", ("0", true), "note").with_median(2.0);
        assert_eq!((measured.ours, measured.median, measured.holds), (Some(0.0), Some(2.0), true));
        let not = Figure::new("bconf.harmed", None, f64::NAN, "tenants", ("0", true), "note").with_median(f64::NAN);
        assert_eq!((not.paper, not.ours, not.median, not.holds), (None, None, None, false));
    }
}
