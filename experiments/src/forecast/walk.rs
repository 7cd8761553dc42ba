//! Walks forward through one host: at every moment something is promised from what was before, and judged by what came. In:
//! a host, a lookahead, and promises. Out: how many broke, by days, and what they offered. Called by [`super`].
//!
//! A moment is each sample, or each minute where samples are closer. A promise is kept when what the foreground wanted over
//! the lookahead (CPU: in the mean; memory: at any sample) left that much. What is harvested is what kept promises offered; a
//! broken one offers nothing.

use gleaner_planner::forecast::{ForecastSettings, ResidualForecaster};
use gleaner_simulator::traces::hosts::HostSeries;
use gleaner_types::units::{Bytes, CoreShare};

use super::sets::Resource;

/// The first hours of a host, which are judged apart, in seconds.
const FIRST_S: f64 = 10_800.0;
const DAY_S: f64 = 86_400.0;
/// Bytes of a percent of a host's memory. Chosen: 100 GB in all.
const BYTES_PER_PERCENT: f64 = 1e9;
/// A moment is at least this long, in seconds.
const MOMENT_S: f64 = 60.0;
/// What counts as broken: more than this, in points of the host.
const TOLERANCE: f64 = 0.01;
/// A day of which fewer moments are judged is no day. Chosen.
const LEAST_MOMENTS: u64 = 20;

/// Moments at which a promise is made, with what came.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Moments {
    /// How many samples were taken, and what was wanted over the lookahead that followed, in percent.
    pub(super) each: Vec<(usize, f64)>,
}

impl Moments {
    pub(super) fn new(host: &HostSeries, lookahead_s: f64, resource: Resource) -> Self {
        let ahead = samples(lookahead_s, host.step_s);
        let every = samples(MOMENT_S, host.step_s);
        // Sums up to each sample, so that a mean is a difference.
        let sums: Vec<f64> = std::iter::once(0.0)
            .chain(host.values.iter().scan(0.0, |sum, value| {
                *sum += value;
                Some(*sum)
            }))
            .collect();
        let came = |taken: usize| match resource {
            Resource::Cpu => (sums[taken + ahead] - sums[taken]) / ahead as f64,
            Resource::Memory => host.values[taken..taken + ahead].iter().copied().fold(0.0, f64::max),
        };
        let last = (host.values.len() + 1).saturating_sub(ahead);
        Self { each: (every..last).step_by(every).map(|taken| (taken, came(taken))).collect() }
    }
}

/// Samples in that time, at least one.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
pub(super) fn samples(seconds: f64, step_s: f64) -> usize {
    ((seconds / step_s).round() as usize).max(1)
}

/// Promised percent of a host at each moment by one of the product's methods; `None` where it does not say anything yet.
pub(super) fn promised(
    host: &HostSeries,
    moments: &Moments,
    settings: ForecastSettings,
    resource: Resource,
) -> Vec<Option<f64>> {
    let whole = CoreShare::clamped(100.0);
    let mut forecaster = ResidualForecaster::new(settings);
    let mut taken = 0;
    let mut promises = Vec::with_capacity(moments.each.len());
    for (until, _) in &moments.each {
        for value in &host.values[taken..*until] {
            let (cpu, memory) = match resource {
                Resource::Cpu => (Some(CoreShare::clamped(*value)), None),
                Resource::Memory => (None, Some(bytes(100.0 - value))),
            };
            forecaster.observe(whole, cpu, memory, host.step_s);
        }
        taken = *until;
        let forecast = forecaster.forecast();
        promises.push(match resource {
            Resource::Cpu => forecast.cpu.value().map(|cpu| cpu.safe.percent()),
            Resource::Memory => forecast.memory.value().map(|memory| memory.safe.0 as f64 / BYTES_PER_PERCENT),
        });
    }
    promises
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
fn bytes(percent: f64) -> Bytes {
    Bytes((percent * BYTES_PER_PERCENT) as u64)
}

/// Promises judged.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Count {
    judged: u64,
    broken: u64,
}

impl Count {
    fn push(&mut self, broken: bool) {
        self.judged += 1;
        self.broken += u64::from(broken);
    }

    fn percent(self) -> f64 {
        self.broken as f64 / self.judged.max(1) as f64 * 100.0
    }
}

/// How promises held on some hosts.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Held {
    days: Vec<Count>,
    first: Count,
    all: Count,
    kept: f64,
    offered: f64,
    free: f64,
}

impl Held {
    /// Adds one host's.
    pub(super) fn push(&mut self, host: &HostSeries, moments: &Moments, promises: impl Iterator<Item = Option<f64>>) {
        let mut days: Vec<Count> = Vec::new();
        for ((taken, came), promise) in moments.each.iter().zip(promises) {
            let Some(promise) = promise else { continue };
            let (promise, free) = (promise.clamp(0.0, 100.0), (100.0 - came).max(0.0));
            let broken = promise > free + TOLERANCE;
            let at_s = *taken as f64 * host.step_s;
            if at_s < FIRST_S {
                self.first.push(broken);
                continue;
            }
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few days")]
            let day = (at_s / DAY_S) as usize;
            days.resize(days.len().max(day + 1), Count::default());
            days[day].push(broken);
            self.all.push(broken);
            self.free += free;
            self.offered += promise.min(free);
            self.kept += if broken { 0.0 } else { promise.min(free) };
        }
        self.days.extend(days.into_iter().filter(|day| day.judged >= LEAST_MOMENTS));
    }

    /// Broken promises of the host and day at this part of all, in percent.
    fn day(&self, part: f64) -> f64 {
        let mut shares: Vec<f64> = self.days.iter().map(|day| day.percent()).collect();
        shares.sort_by(f64::total_cmp);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a length")]
        let index = (shares.len() as f64 * part) as usize;
        shares.get(index.min(shares.len().saturating_sub(1))).copied().unwrap_or(0.0)
    }

    pub(super) fn outcome(&self) -> Outcome {
        let of_free = |sum: f64| if self.free > 0.0 { sum / self.free * 100.0 } else { 0.0 };
        Outcome {
            days: self.days.len(),
            broken: self.all.percent(),
            broken_median: self.day(0.5),
            broken_p95: self.day(0.95),
            broken_worst: self.day(1.0),
            harvested: of_free(self.kept),
            offered: of_free(self.offered),
            first_hours_broken: self.first.percent(),
        }
    }
}

/// How promises held, in percent: of those from the third hour of a host on, but for the last figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Days of hosts.
    pub days: usize,
    /// Broken, of all.
    pub broken: f64,
    /// Broken, of those of the median host and day.
    pub broken_median: f64,
    /// Broken, of those of the host and day of which 5 % are worse.
    pub broken_p95: f64,
    /// Broken, of those of the worst host and day.
    pub broken_worst: f64,
    /// What kept promises offered, of what was free.
    pub harvested: f64,
    /// What all promises offered that was there, of what was free: of a broken one, what was free.
    pub offered: f64,
    /// Broken within the first three hours of a host.
    pub first_hours_broken: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(values: Vec<f64>) -> HostSeries {
        HostSeries { name: "h".into(), step_s: 300.0, values }
    }

    #[test]
    fn moments_are_judged_by_what_came() {
        let host = host(vec![10.0, 20.0, 30.0, 60.0]);
        assert_eq!(Moments::new(&host, 600.0, Resource::Cpu).each, [(1, 25.0), (2, 45.0)]);
        assert_eq!(Moments::new(&host, 600.0, Resource::Memory).each, [(1, 30.0), (2, 60.0)]);
        let fast = HostSeries { step_s: 10.0, ..host };
        assert!(Moments::new(&fast, 60.0, Resource::Cpu).each.is_empty());
    }

    #[test]
    fn only_kept_promises_are_harvested() {
        let host = host(vec![50.0; 100]);
        let moments = Moments::new(&host, 300.0, Resource::Cpu);
        let mut held = Held::default();
        // The first 35 moments are within three hours; of the other 64 every fourth promise is broken.
        held.push(&host, &moments, (0..99).map(|at| Some(if at % 4 == 3 { 60.0 } else { 25.0 })));
        let outcome = held.outcome();
        assert_eq!((outcome.days, outcome.broken), (1, 25.0));
        assert!((outcome.harvested - 37.5).abs() < 1e-9, "{outcome:?}");
        // Of a broken one all 50 that were free.
        assert!((outcome.offered - 62.5).abs() < 1e-9, "{outcome:?}");
        assert!((outcome.first_hours_broken - 8.0 / 35.0 * 100.0).abs() < 1e-9, "{outcome:?}");
    }

    #[test]
    fn a_constant_host_is_promised_whole_and_never_broken() {
        let host = host(vec![20.0; 288]);
        for (resource, lookahead_s) in [(Resource::Cpu, 300.0), (Resource::Cpu, 1_800.0), (Resource::Memory, 600.0)] {
            let settings = ForecastSettings { lookahead_s, ..ForecastSettings::default() };
            let moments = Moments::new(&host, lookahead_s, resource);
            let mut held = Held::default();
            held.push(&host, &moments, promised(&host, &moments, settings, resource).into_iter());
            let outcome = held.outcome();
            assert!(outcome.broken == 0.0 && outcome.harvested > 99.9, "{resource:?}, {lookahead_s}: {outcome:?}");
        }
    }
}
