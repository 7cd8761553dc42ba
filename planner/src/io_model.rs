//! The I/O model of a cluster: what the dedicated hosts' disks can deliver, where volunteers stop helping, and how much
//! of its potential a cluster of a given size really uses (RHIC §4.3). In: observations of potential, actual
//! productivity and disk utilisation. Out: a curve, which [`crate::sizing`] uses. The controller keeps one per job.
//!
//! The curve maps aggregate potential to aggregate actual productivity. RHIC draws it over the volunteers; here it
//! is drawn over the whole cluster, because volunteers that saturate the disks slow the dedicated hosts too, and
//! because the profile of the dedicated hosts alone is then its first point.

use std::collections::VecDeque;

use gleaner_types::job::IoKnot;
use gleaner_types::units::{CoreShare, Fraction};
use serde::{Deserialize, Serialize};

use crate::half_life;

/// Utilisation from which a disk counts as saturated. Chosen: iostat's figure rarely reaches 100 %.
pub const SATURATED: f64 = 0.95;
/// Utilisation below which nothing is known about the disks' limit. Chosen.
const IDLE: f64 = 0.01;
/// Points kept: at one per 10 s almost three hours of a size.
const MOST_POINTS: usize = 1_000;
/// Half-life of a point, in seconds. Chosen: ten evaluation intervals of RHIC.
const HALF_LIFE_S: f64 = 600.0;
/// Weight of a point however old it is: next to nothing beside a newer one. Chosen.
const LEAST_WEIGHT: f64 = 1e-6;
/// Bandwidth of the mean shift, relative to the largest potential seen. Chosen: a volunteer of RHIC's test bed.
const BANDWIDTH: f64 = 0.03;

/// Range in which the volunteers saturate the dedicated hosts' disks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Saturation {
    /// One dedicated host serves all volunteers (RHIC Eq. 4).
    pub worst: CoreShare,
    /// All serve equally much (RHIC Eq. 3).
    pub best: CoreShare,
}

/// RHIC Eq. 2–4: from the mean disk utilisation while the dedicated hosts ran alone, and the largest productivity
/// `p_max` of one of them, the volunteer productivity their disks could feed besides. `mean_disk` is the mean B_K
/// (§4.6). `None` where the disks are idle: then they limit nothing.
#[must_use]
pub fn saturation(utilisation: Fraction, p_max: CoreShare, dedicated: u32, mean_disk: f64) -> Option<Saturation> {
    let used = utilisation.value();
    (used >= IDLE).then(|| {
        let supported = p_max * ((1.0 / used - 1.0).max(0.0) * mean_disk);
        Saturation { worst: supported, best: supported * f64::from(dedicated) }
    })
}

/// One observation of the whole cluster.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct IoPoint {
    /// When, in seconds of any clock.
    pub at_s: f64,
    /// Aggregate potential productivity.
    pub potential: CoreShare,
    /// Aggregate actual productivity.
    pub actual: CoreShare,
    /// Mean utilisation of the dedicated hosts' disks, where it is known.
    pub disk: Option<Fraction>,
}

/// What was observed of a job, newest last.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct IoModel {
    points: VecDeque<IoPoint>,
}

impl IoModel {
    /// Adds a point. One without potential is ignored.
    pub fn observe(&mut self, point: IoPoint) {
        if point.potential > CoreShare::ZERO && point.at_s.is_finite() {
            if self.points.len() >= MOST_POINTS {
                // One of another size may be all that is known of that, as those of the profile.
                let near = point.potential.percent() * BANDWIDTH;
                let is_like = |old: &IoPoint| (old.potential.percent() - point.potential.percent()).abs() <= near;
                self.points.remove(self.points.iter().position(is_like).unwrap_or(0));
            }
            self.points.push_back(point);
        }
    }

    /// What was observed, oldest first.
    pub fn points(&self) -> impl ExactSizeIterator<Item = &IoPoint> {
        self.points.iter()
    }

    /// The curve as of `now_s`: points weighted by age, gathered by mean shift, their centres joined by straight
    /// lines. `None` before the first point. Old points give way to newer ones near them; where there are none, such as at the size of
    /// the profile, they are still better than what newer ones elsewhere extrapolate to.
    #[must_use]
    pub fn curve(&self, now_s: f64) -> Option<IoCurve> {
        let weight = |point: &IoPoint| half_life::weight((now_s - point.at_s).max(0.0), HALF_LIFE_S).max(LEAST_WEIGHT);
        let aged: Vec<Weighted> = self
            .points
            .iter()
            .map(|point| Weighted {
                x: point.potential.percent(),
                y: point.actual.percent().min(point.potential.percent()),
                disk: point.disk.map_or(f64::NAN, Fraction::value),
                weight: weight(point),
            })
            .collect();
        let largest = aged.iter().map(|point| point.x).fold(0.0, f64::max);
        IoCurve::through(clusters(aged, largest * BANDWIDTH))
    }
}

/// A point with its weight, or a cluster of such.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Weighted {
    x: f64,
    y: f64,
    /// NaN where it is not known.
    disk: f64,
    weight: f64,
}

/// Weighted mean of points.
fn centre<'a>(points: impl Iterator<Item = &'a Weighted>) -> Option<Weighted> {
    let (mut sum, mut disks) = (Weighted { x: 0.0, y: 0.0, disk: 0.0, weight: 0.0 }, 0.0);
    for point in points {
        sum.x += point.weight * point.x;
        sum.y += point.weight * point.y;
        sum.weight += point.weight;
        if point.disk.is_finite() {
            sum.disk += point.weight * point.disk;
            disks += point.weight;
        }
    }
    (sum.weight > 0.0).then(|| Weighted {
        x: sum.x / sum.weight,
        y: sum.y / sum.weight,
        disk: if disks > 0.0 { sum.disk / disks } else { f64::NAN },
        weight: sum.weight,
    })
}

/// Mean-shift clustering (Cheng 1995) with a flat kernel of radius `bandwidth` over both axes. Each grid cell of
/// half the bandwidth that has points is shifted, not each point, which gives the same modes for less.
fn clusters(mut points: Vec<Weighted>, bandwidth: f64) -> Vec<Weighted> {
    if points.is_empty() || bandwidth <= 0.0 {
        return points;
    }
    points.sort_by(|a, b| a.x.total_cmp(&b.x).then(a.y.total_cmp(&b.y)));
    let near = |mode: &Weighted| {
        let from = points.partition_point(|point| point.x < mode.x - bandwidth);
        let to = points.partition_point(|point| point.x <= mode.x + bandwidth);
        let (x, y) = (mode.x, mode.y);
        points[from..to].iter().filter(move |point| (point.x - x).hypot(point.y - y) <= bandwidth)
    };
    let cell = |point: &Weighted| ((2.0 * point.x / bandwidth).floor(), (2.0 * point.y / bandwidth).floor());
    let mut cells: Vec<(f64, f64)> = points.iter().map(cell).collect();
    cells.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    cells.dedup();
    let mut modes: Vec<Weighted> = Vec::new();
    for (column, row) in cells {
        let half = bandwidth / 2.0;
        let mut mode = Weighted { x: (column + 0.5) * half, y: (row + 0.5) * half, disk: f64::NAN, weight: 0.0 };
        // Flat kernels converge in a few steps; the bound is for rounding that oscillates.
        for _ in 0..50 {
            let Some(next) = centre(near(&mode)) else { break };
            let moved = (next.x - mode.x).hypot(next.y - mode.y);
            mode = next;
            if moved < bandwidth * 1e-3 {
                break;
            }
        }
        let known = modes.iter().any(|other| (other.x - mode.x).hypot(other.y - mode.y) < half);
        if mode.weight > 0.0 && !known {
            modes.push(mode);
        }
    }
    modes
}

/// Aggregate actual over aggregate potential productivity, as straight lines between the centres of clusters.
#[derive(Debug, Clone, PartialEq)]
pub struct IoCurve {
    knots: Vec<Weighted>,
    /// Part of the last slope that is used beyond the last knot.
    beyond: f64,
}

impl IoCurve {
    /// The curve through clusters; those at about the same potential are one knot, the fresher counting more.
    fn through(mut modes: Vec<Weighted>) -> Option<Self> {
        modes.sort_by(|a, b| a.x.total_cmp(&b.x));
        let apart = modes.last()?.x * BANDWIDTH;
        let mut knots: Vec<Weighted> = Vec::new();
        for group in modes.chunk_by(|a, b| b.x - a.x < apart) {
            knots.extend(centre(group.iter()));
        }
        Some(Self { knots, beyond: 1.0 })
    }

    /// A curve of a constant yield, for a job of which only the profile is known.
    #[must_use]
    pub fn constant(potential: CoreShare, actual: CoreShare, disk: Option<Fraction>) -> Option<Self> {
        let disk = disk.map_or(f64::NAN, Fraction::value);
        Self::through(vec![Weighted { x: potential.percent(), y: actual.percent(), disk, weight: 1.0 }])
            .filter(|curve| curve.knots[0].x > 0.0)
    }

    /// The same curve with half of the extrapolated gain. Chosen.
    #[must_use]
    pub fn cautious(&self) -> Self {
        Self { beyond: 0.5, ..self.clone() }
    }

    /// What more potential brings after the last knot: its yield, or less where the last stretch already brought less.
    fn last_slope(&self, last: &Weighted) -> f64 {
        let average = last.y / last.x;
        let before = self.knots.len().checked_sub(2).and_then(|before| self.knots.get(before));
        let recent = before.map(|before| (last.y - before.y) / (last.x - before.x));
        self.beyond * recent.map_or(average, |recent| recent.clamp(0.0, average))
    }

    /// Aggregate actual productivity at an aggregate potential: interpolated between knots, in proportion before
    /// the first. Beyond the last it keeps the last slope, up to what the disks deliver at full utilisation, which is
    /// RHIC Eq. 2 applied to the newest measurements instead of the profile.
    #[must_use]
    pub fn actual(&self, potential: CoreShare) -> CoreShare {
        let x = potential.percent();
        let after = self.knots.partition_point(|knot| knot.x < x);
        let value = match (after.checked_sub(1).and_then(|before| self.knots.get(before)), self.knots.get(after)) {
            (None, Some(first)) => x * first.y / first.x,
            (Some(a), Some(b)) => a.y + (b.y - a.y) * (x - a.x) / (b.x - a.x),
            (Some(last), None) => {
                let ceiling = if last.disk >= IDLE { last.y / last.disk.min(1.0) } else { f64::INFINITY };
                (last.y + (x - last.x) * self.last_slope(last)).min(ceiling).max(last.y)
            }
            (None, None) => 0.0,
        };
        CoreShare::clamped(value.min(x))
    }

    /// Its points for a decision's record, evenly thinned to a few.
    #[must_use]
    pub fn record(&self) -> Vec<IoKnot> {
        const MOST: usize = 12;
        let every = self.knots.len().div_ceil(MOST).max(1);
        let last = self.knots.len().saturating_sub(1);
        let kept = self.knots().enumerate().filter(|(index, _)| index % every == 0 || *index == last);
        kept.map(|(_, (potential, actual, disk))| IoKnot { potential, actual, disk }).collect()
    }

    /// Its knots: potential, actual, and the disks' utilisation where known.
    pub fn knots(&self) -> impl ExactSizeIterator<Item = (CoreShare, CoreShare, Option<Fraction>)> {
        self.knots.iter().map(|knot| {
            let disk = knot.disk.is_finite().then(|| Fraction::clamped(knot.disk));
            (CoreShare::clamped(knot.x), CoreShare::clamped(knot.y), disk)
        })
    }
}

/// The growth of a cluster to the point of saturation (RHIC Algorithm 1).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Growth {
    period: u32,
    over: bool,
}

/// What Algorithm 1 looks at in one period.
#[derive(Debug, Clone, Copy)]
pub struct GrowthView {
    /// Saturation estimated from the profile (Eq. 2–4); `None` where the disks limit nothing.
    pub saturation: Option<Saturation>,
    /// Size that would be best if the disks limited nothing: Max_DMR.
    pub most: CoreShare,
    /// Aggregate potential of the volunteers now.
    pub current: CoreShare,
    /// Mean disk utilisation over the last period.
    pub disk: Option<Fraction>,
    /// The same in the profile.
    pub profile_disk: Option<Fraction>,
}

impl Growth {
    /// The growth has ended.
    #[must_use]
    pub fn is_over(self) -> bool {
        self.over
    }

    /// Steps taken.
    #[must_use]
    pub fn steps(self) -> u32 {
        self.period
    }

    /// Leaves out the step to the worst case, in which one dedicated host serves all volunteers. Ours: the profile shows
    /// whether their disks share the load evenly, and if they do, that step only costs a minute.
    pub fn skip_worst_case(&mut self) {
        self.period = self.period.max(1);
    }

    /// Ends the growth before the disks are saturated.
    pub fn end(&mut self) {
        self.over = true;
    }

    /// The aggregate volunteer potential to try next, or `None` when the disks are saturated or more volunteers
    /// would not pay: then the curve decides from now on.
    pub fn next(&mut self, view: GrowthView) -> Option<CoreShare> {
        let GrowthView { saturation, most, current, disk, profile_disk } = view;
        let saturated = current > CoreShare::ZERO && disk.is_some_and(|disk| disk.value() >= SATURATED);
        let Some(Saturation { worst, best }) = saturation.filter(|_| !self.over && !saturated && current < most) else {
            self.over = true;
            return None;
        };
        self.period += 1;
        let next = match self.period {
            1 => worst.min(most),
            2 => ((best + worst) * 0.5).min(most),
            3 if most < best => most,
            3 => extrapolate(current, disk, profile_disk).unwrap_or(best),
            _ => current + worst,
        };
        // Line 21 with nothing to add would never end.
        if next <= current {
            self.over = true;
            return None;
        }
        Some(next.min(most))
    }
}

/// Line 18: the line through (0, profile's utilisation) and (current, utilisation now), followed to full use.
fn extrapolate(current: CoreShare, disk: Option<Fraction>, profile: Option<Fraction>) -> Option<CoreShare> {
    let (now, before) = (disk?.value(), profile?.value());
    let slope = (now - before) / current.percent();
    (slope > 0.0 && slope.is_finite()).then(|| CoreShare::clamped((1.0 - before) / slope))
}

/// Assigns volunteers to dedicated hosts round-robin, in proportion to their disks' B_K (RHIC §4.3 "Improving I/O
/// balance", §4.6): for each volunteer, the index of its dedicated host. Each goes where the load after it is least.
#[must_use]
pub fn assign(volunteers: usize, disks: &[f64]) -> Vec<usize> {
    let mut load = vec![0.0_f64; disks.len()];
    let after = |load: &[f64], index: usize| (load[index] + 1.0) / disks[index].max(f64::MIN_POSITIVE);
    let mut assigned = Vec::with_capacity(volunteers);
    for _ in 0..volunteers {
        let least = (0..disks.len()).min_by(|a, b| after(&load, *a).total_cmp(&after(&load, *b)));
        let Some(least) = least else { break };
        load[least] += 1.0;
        assigned.push(least);
    }
    assigned
}

#[cfg(test)]
mod tests;
