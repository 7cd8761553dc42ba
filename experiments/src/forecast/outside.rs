//! Methods that others use, each with one margin to set. In: a host and the moments of its promises. Out: at each moment two
//! numbers, `base + margin · unit` of which is the demand that the method allows for. Called by [`super`].
//!
//! All but the first two look at samples of a minute, or the host's own where those are further apart, as the originals do.

use std::collections::VecDeque;

use gleaner_planner::forecast::{ForecastSettings, Method};
use gleaner_simulator::traces::hosts::HostSeries;

use super::sets::Resource;
use super::walk::{Moments, promised, samples};

const DAY_S: f64 = 86_400.0;
/// Kubernetes' vertical autoscaler: samples count half after a day, buckets grow by 5 %, and the 95th percentile counts
/// (`pkg/recommender/model/aggregations_config.go` and `logic/recommender.go`).
const HALF_LIFE_S: f64 = DAY_S;
const BUCKET_GROWTH: f64 = 1.05;
const FIRST_BUCKET: f64 = 0.1;
const DECAYED_PERCENTILE: f64 = 0.95;
/// Crane's prediction: a week of history, of which the strongest waves go on (`pkg/prediction/dsp`); steps of 5 minutes, waves
/// of an hour and more, and a new prediction each hour are chosen.
const SPECTRUM_STEP_S: f64 = 300.0;
const SPECTRUM_DAYS: usize = 7;
const SPECTRUM_WAVES: usize = 50;

/// A method of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outside {
    /// The moving average of ten minutes, with standard deviations of means over the lookahead: the default of earlier versions.
    MovingAverage,
    /// The mean of ten minutes and standard deviations of samples.
    MeanPlusSigma,
    /// The mean of a day and standard deviations of its samples (large operators' N-sigma).
    DayPlusSigma,
    /// The 99th percentile of a day, times a margin.
    DayPercentile,
    /// The 95th percentile of a decaying histogram, times a margin: Kubernetes' vertical autoscaler.
    DecayedPercentile,
    /// The strongest waves of whole days, times a margin: Crane. Before two days the decayed percentile, as there.
    Spectrum,
    /// The last value and points of the host.
    LastPlusPoints,
}

impl Outside {
    /// All.
    pub const ALL: [Self; 7] = [
        Self::MovingAverage,
        Self::MeanPlusSigma,
        Self::DayPlusSigma,
        Self::DayPercentile,
        Self::DecayedPercentile,
        Self::Spectrum,
        Self::LastPlusPoints,
    ];

    /// Name for tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MovingAverage => "moving average + Nσ",
            Self::MeanPlusSigma => "mean of 10 min + Nσ",
            Self::DayPlusSigma => "mean of a day + Nσ",
            Self::DayPercentile => "p99 of a day × N",
            Self::DecayedPercentile => "decayed p95 × N (Kubernetes)",
            Self::Spectrum => "waves × N (Crane)",
            Self::LastPlusPoints => "last + N points",
        }
    }

    /// The margin that is usual.
    #[must_use]
    pub const fn usual(self) -> f64 {
        match self {
            Self::MovingAverage => 2.0,
            Self::MeanPlusSigma | Self::DayPlusSigma => 5.0,
            Self::DayPercentile => 1.0,
            Self::DecayedPercentile | Self::Spectrum => 1.15,
            Self::LastPlusPoints => 10.0,
        }
    }

    /// Base and unit at each moment; `None` where nothing can be said yet.
    pub(super) fn lines(
        self,
        host: &HostSeries,
        moments: &Moments,
        lookahead_s: f64,
        resource: Resource,
    ) -> Vec<Option<(f64, f64)>> {
        let every = moments.each.first().map_or(1, |(taken, _)| *taken);
        let step_s = host.step_s * every as f64;
        let coarse: Vec<f64> =
            host.values.chunks(every).map(|part| part.iter().sum::<f64>() / part.len() as f64).collect();
        let seen = &coarse[..moments.each.len().min(coarse.len())];
        match self {
            Self::MovingAverage => of_product(host, moments, lookahead_s, "moving_average"),
            Self::MeanPlusSigma => of_product(host, moments, lookahead_s, "mean_plus_sigma"),
            Self::DayPlusSigma => day_sigma(seen, samples(DAY_S, step_s)),
            Self::DayPercentile => day_percentile(seen, samples(DAY_S, step_s)),
            Self::DecayedPercentile => decayed(seen, step_s),
            Self::Spectrum => {
                let before = decayed(seen, step_s);
                let waves = spectrum(seen, step_s, lookahead_s, resource);
                waves.into_iter().zip(before).map(|(wave, before)| wave.or(before)).collect()
            }
            Self::LastPlusPoints => seen.iter().map(|last| Some((*last, 1.0))).collect(),
        }
    }
}

/// A method of the product that has a margin in standard deviations.
fn of_product(host: &HostSeries, moments: &Moments, lookahead_s: f64, method: &str) -> Vec<Option<(f64, f64)>> {
    // So few that no promise ends at nothing.
    const FEW: f64 = 1e-3;
    let method = Method::named(method).unwrap_or_default();
    let with = |sigma_k| {
        let settings = ForecastSettings { method, lookahead_s, sigma_k, ..ForecastSettings::default() };
        // These methods know CPU alone; memory is shown to them as such.
        promised(host, moments, settings, Resource::Cpu)
    };
    let line = |(none, few): (Option<f64>, Option<f64>)| Some((100.0 - none?, ((none? - few?) / FEW).max(0.0)));
    with(0.0).into_iter().zip(with(FEW)).map(line).collect()
}

fn day_sigma(values: &[f64], day: usize) -> Vec<Option<(f64, f64)>> {
    let (mut sum, mut squares) = (0.0, 0.0);
    let line = |(at, value): (usize, &f64)| {
        sum += value;
        squares += value * value;
        if let Some(old) = at.checked_sub(day).map(|old| values[old]) {
            sum -= old;
            squares -= old * old;
        }
        let count = (at + 1).min(day) as f64;
        let mean = sum / count;
        (at > 0).then(|| (mean, (squares / count - mean * mean).max(0.0).sqrt()))
    };
    values.iter().enumerate().map(line).collect()
}

fn day_percentile(values: &[f64], day: usize) -> Vec<Option<(f64, f64)>> {
    let mut sorted: Vec<f64> = Vec::new();
    let mut window: VecDeque<f64> = VecDeque::new();
    let place = |sorted: &[f64], value: f64| sorted.partition_point(|other| other.total_cmp(&value).is_lt());
    let line = |value: &f64| {
        sorted.insert(place(&sorted, *value), *value);
        window.push_back(*value);
        if window.len() > day
            && let Some(old) = window.pop_front()
        {
            sorted.remove(place(&sorted, old));
        }
        let rank = (sorted.len() * 99).div_ceil(100);
        Some((0.0, sorted[rank - 1]))
    };
    values.iter().map(line).collect()
}

fn decayed(values: &[f64], step_s: f64) -> Vec<Option<(f64, f64)>> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a percent has few buckets")]
    let bucket = |value: f64| ((value / FIRST_BUCKET).max(1.0).ln() / BUCKET_GROWTH.ln()).floor() as usize;
    let mut weights = vec![0.0; bucket(100.0) + 1];
    let fade = (-step_s / HALF_LIFE_S).exp2();
    let line = |value: &f64| {
        weights.iter_mut().for_each(|weight| *weight *= fade);
        weights[bucket(value.clamp(0.0, 100.0))] += 1.0;
        let wanted = DECAYED_PERCENTILE * weights.iter().sum::<f64>();
        let mut sum = 0.0;
        let within = |weight: &f64| {
            sum += weight;
            sum + 1e-12 >= wanted
        };
        let number = weights.iter().position(within).unwrap_or(weights.len() - 1);
        // The end of the bucket, as there.
        Some((0.0, FIRST_BUCKET * BUCKET_GROWTH.powf(number as f64 + 1.0)))
    };
    values.iter().map(line).collect()
}

/// Waves of the whole days before, going on. Nothing before two days.
fn spectrum(values: &[f64], step_s: f64, lookahead_s: f64, resource: Resource) -> Vec<Option<(f64, f64)>> {
    let every = samples(SPECTRUM_STEP_S, step_s);
    let steps: Vec<f64> = values.chunks_exact(every).map(|part| part.iter().sum::<f64>() / every as f64).collect();
    let step_s = step_s * every as f64;
    let (day, hour, ahead) = (samples(DAY_S, step_s), samples(3_600.0, step_s), samples(lookahead_s, step_s));
    let mut next: Vec<f64> = Vec::new();
    let mut begun = 0;
    let line = |at: usize| {
        let known = (at + 1) / every;
        let days = (known / day).min(SPECTRUM_DAYS);
        if days < 2 {
            return None;
        }
        if next.is_empty() || known >= begun + hour {
            begun = known;
            next = go_on(&steps[known - days * day..known], hour, hour + ahead);
        }
        let wave = &next[known - begun..known - begun + ahead];
        let demand = match resource {
            Resource::Cpu => wave.iter().sum::<f64>() / ahead as f64,
            Resource::Memory => wave.iter().copied().fold(0.0, f64::max),
        };
        Some((0.0, demand.max(0.0)))
    };
    (0..values.len()).map(line).collect()
}

/// The strongest waves of a series at its next `ahead` steps, no wave shorter than `shortest`.
fn go_on(series: &[f64], shortest: usize, ahead: usize) -> Vec<f64> {
    let length = series.len();
    let mean = series.iter().sum::<f64>() / length as f64;
    let turn = |wave: usize| std::f64::consts::TAU * wave as f64 / length as f64;
    let of = |wave: usize| {
        // One rotation a step in place of a sine each.
        let (sin_step, cos_step) = turn(wave).sin_cos();
        let (mut sin, mut cos, mut real, mut imaginary) = (0.0, 1.0, 0.0, 0.0);
        for value in series {
            real += (value - mean) * cos;
            imaginary += (value - mean) * sin;
            (sin, cos) = (sin * cos_step + cos * sin_step, cos * cos_step - sin * sin_step);
        }
        (wave, real * 2.0 / length as f64, imaginary * 2.0 / length as f64)
    };
    let mut waves: Vec<(usize, f64, f64)> = (1..length / shortest.max(2)).map(of).collect();
    waves.sort_by(|a, b| b.1.hypot(b.2).total_cmp(&a.1.hypot(a.2)));
    waves.truncate(SPECTRUM_WAVES);
    let value = |step: usize| {
        let at = |(wave, real, imaginary): &(usize, f64, f64)| {
            let (sin, cos) = (turn(*wave) * (length + step) as f64).sin_cos();
            real * cos + imaginary * sin
        };
        mean + waves.iter().map(at).sum::<f64>()
    };
    (0..ahead).map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: Option<(f64, f64)>, wanted: (f64, f64)) -> bool {
        found.is_some_and(|(base, unit)| (base - wanted.0).abs() < 1e-6 && (unit - wanted.1).abs() < 1e-6)
    }

    #[test]
    fn lines_by_hand() {
        let values = [10.0, 30.0, 20.0, 40.0];
        assert!(close(day_sigma(&values, 2)[3], (30.0, 10.0)) && day_sigma(&values, 2)[0].is_none());
        assert!(close(day_percentile(&values, 2)[2], (0.0, 30.0)) && close(day_percentile(&values, 3)[3], (0.0, 40.0)));
        let p95 = decayed(&[20.0; 10], 60.0)[9].unwrap().1;
        assert!((20.0..21.0).contains(&p95), "{p95}");
    }

    #[test]
    fn a_daily_wave_goes_on() {
        let at = |step: usize| 50.0 + 30.0 * (std::f64::consts::TAU * step as f64 / 288.0).sin();
        let values: Vec<f64> = (0..288 * 4).map(at).collect();
        let lines = spectrum(&values, 300.0, 300.0, Resource::Cpu);
        assert!(lines[288].is_none());
        for step in [600, 777, 1_000] {
            let found = lines[step].unwrap().1;
            assert!((found - at(step + 1)).abs() < 0.5, "{step}: {found}");
        }
    }

    #[test]
    fn every_method_has_a_line_for_every_moment() {
        let host =
            HostSeries { name: "h".into(), step_s: 10.0, values: (0..9_000).map(|at| f64::from(at % 50)).collect() };
        let moments = Moments::new(&host, 300.0, Resource::Cpu);
        for outside in Outside::ALL {
            let lines = outside.lines(&host, &moments, 300.0, Resource::Cpu);
            assert_eq!(lines.len(), moments.each.len(), "{outside:?}");
            assert!(lines[20..].iter().flatten().count() == lines.len() - 20, "{outside:?}");
        }
    }
}
