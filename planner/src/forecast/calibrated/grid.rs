//! A series as means over equal buckets of time, at whatever pace it is sampled. In: values and how long each held. Out: the
//! means, oldest first, of the last day at most. Called by [`Series`](super::Series).

use std::collections::VecDeque;

/// Buckets of a day, where a bucket is a minute.
pub(super) const DAY: usize = 1_440;
/// Buckets kept at most: a day, and an hour for what followed yesterday's same moment.
pub(super) const MOST: usize = DAY + 60;

/// Length of a bucket in seconds: a minute, or a fifth of the lookahead where that is shorter.
pub(in crate::forecast) fn bucket_s(lookahead_s: f64) -> f64 {
    (lookahead_s / 5.0).min(60.0)
}

/// The means, and what goes toward the next one.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Grid {
    /// Length of a bucket, in seconds.
    bucket_s: f64,
    /// Oldest first; not a number where less than half of the bucket was sampled.
    means: VecDeque<f32>,
    /// Toward the next bucket: time that passed, time that was sampled, and the sum over the latter.
    passed_s: f64,
    sampled_s: f64,
    sum: f64,
}

impl Grid {
    pub(super) fn new(lookahead_s: f64) -> Self {
        let bucket_s = bucket_s(lookahead_s);
        Self { bucket_s, means: VecDeque::new(), passed_s: 0.0, sampled_s: 0.0, sum: 0.0 }
    }

    pub(super) const fn bucket_s(&self) -> f64 {
        self.bucket_s
    }

    pub(super) const fn means(&self) -> &VecDeque<f32> {
        &self.means
    }

    /// Goes on from means of earlier, oldest first.
    pub(super) fn restore(&mut self, means: impl IntoIterator<Item = f32>) {
        self.means = means.into_iter().collect();
    }

    /// Buckets in that time, at least one.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
    pub(super) fn buckets(&self, seconds: f64) -> usize {
        ((seconds / self.bucket_s).round() as usize).max(1)
    }

    /// Adds a value that held for `interval_s`, or a gap. Out: how many buckets ended.
    pub(super) fn push(&mut self, value: Option<f64>, interval_s: f64) -> usize {
        // Of a longer time only the end would be kept.
        let mut left_s = interval_s.min(self.bucket_s * MOST as f64);
        let mut ended = 0;
        loop {
            let room_s = self.bucket_s - self.passed_s;
            let taken_s = left_s.min(room_s);
            self.passed_s += taken_s;
            if let Some(value) = value {
                self.sampled_s += taken_s;
                self.sum += taken_s * value;
            }
            left_s -= taken_s;
            // A millionth of a bucket of slack for sums of many intervals.
            if self.passed_s < self.bucket_s * (1.0 - 1e-6) {
                return ended;
            }
            self.end_bucket();
            ended += 1;
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "seven digits are more than a kernel's counters resolve")]
    fn end_bucket(&mut self) {
        let known = self.sampled_s >= self.bucket_s / 2.0;
        self.means.push_back(if known { (self.sum / self.sampled_s) as f32 } else { f32::NAN });
        if self.means.len() > MOST {
            self.means.pop_front();
        }
        (self.passed_s, self.sampled_s, self.sum) = (0.0, 0.0, 0.0);
    }

    /// Mean over the `length` buckets that end `before` buckets ago, or over those of them that are known.
    pub(super) fn mean(&self, length: usize, before: usize) -> Option<f64> {
        let end = self.means.len().checked_sub(before)?;
        let known = self.means.range(end.saturating_sub(length)..end).filter(|mean| !mean.is_nan());
        let (sum, count) = known.fold((0.0, 0_u32), |(sum, count), mean| (sum + f64::from(*mean), count + 1));
        (count > 0).then(|| sum / f64::from(count))
    }

    /// Least and largest mean.
    pub(super) fn range(&self) -> Option<(f64, f64)> {
        let known = self.means.iter().filter(|mean| !mean.is_nan()).map(|mean| f64::from(*mean));
        known.fold(None, |range, mean| {
            let (least, most) = range.unwrap_or((mean, mean));
            Some((f64::min(least, mean), f64::max(most, mean)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn means(grid: &Grid) -> Vec<f32> {
        grid.means.iter().copied().collect()
    }

    #[test]
    fn values_are_split_over_buckets_at_any_pace() {
        // Buckets of a minute.
        let (mut slow, mut fast) = (Grid::new(300.0), Grid::new(300.0));
        assert_eq!((slow.push(Some(30.0), 90.0), slow.push(Some(10.0), 90.0)), (1, 2));
        let ended: Vec<u32> =
            (0..1_800).filter(|tenth| fast.push(Some(if *tenth < 900 { 30.0 } else { 10.0 }), 0.1) > 0).collect();
        assert_eq!(ended, [599, 1_199, 1_799]);
        assert_eq!(means(&slow), [30.0, 20.0, 10.0]);
        assert!(means(&fast).iter().zip([30.0, 20.0, 10.0]).all(|(mean, wanted)| (mean - wanted).abs() < 1e-4));
        assert_eq!((slow.mean(2, 0), slow.mean(9, 1), slow.mean(1, 3)), (Some(15.0), Some(25.0), None));
        assert_eq!(slow.range(), Some((10.0, 30.0)));
    }

    #[test]
    fn a_gap_is_no_value() {
        let mut grid = Grid::new(300.0);
        grid.push(Some(30.0), 80.0);
        grid.push(None, 100.0);
        assert_eq!(grid.mean(1, 2), Some(30.0));
        assert!(grid.means[1].is_nan() && grid.means[2].is_nan());
        grid.push(Some(1.0), 1e12);
        assert_eq!((grid.means.len(), grid.mean(MOST, 0)), (MOST, Some(1.0)));
    }
}
