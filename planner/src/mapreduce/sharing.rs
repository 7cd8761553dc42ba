//! What part of shared nodes a job has, now and later (Gandhi et al., §IV-E: a job entitled to half of a core has N_mc = 0.5). In: its
//! weight and work, and those of jobs that run beside it or will arrive. Out: its share over time. [`estimate`](super::estimate)
//! calls it.
//!
//! Capacity is divided by weight among the jobs that are there, and what a job leaves goes to the others, as Hadoop's
//! CapacityScheduler does. Work counts as divisible here.

/// A job that wants shared nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Claim {
    /// Its weight.
    pub weight: f64,
    /// When it arrives, from now.
    pub arrives_s: f64,
    /// Core seconds that it needs; `None` where that is not known: it stays.
    pub core_s: Option<f64>,
}

/// Parts of shared capacity over time: from when, and which part; the first is from 0, the last stays.
#[derive(Debug, Clone, PartialEq)]
pub struct Shares(Vec<(f64, f64)>);

impl Shares {
    /// All of it, always.
    #[must_use]
    pub fn whole() -> Self {
        Self(vec![(0.0, 1.0)])
    }

    /// The share of a job with `weight` that stays, beside others, on so many cores.
    #[must_use]
    pub fn beside(weight: f64, others: &[Claim], cores: f64) -> Self {
        let mut left: Vec<f64> = others.iter().map(|own| own.core_s.unwrap_or(f64::INFINITY)).collect();
        let (mut now, mut steps) = (0.0, Vec::new());
        // Each round ends with an arrival or an end, of which every job has one.
        for _ in 0..=2 * others.len() {
            let present = |index: usize| others[index].arrives_s <= now && left[index] > 0.0;
            let active: Vec<usize> = (0..others.len()).filter(|index| present(*index)).collect();
            let sum = weight + active.iter().map(|index| others[*index].weight).sum::<f64>();
            steps.push((now, weight / sum));
            let rate = |index: usize| cores * others[index].weight / sum;
            let ends = active.iter().map(|index| now + left[*index] / rate(*index));
            let arrivals = others.iter().map(|own| own.arrives_s).filter(|at| *at > now);
            let next = ends.chain(arrivals).fold(f64::INFINITY, f64::min);
            if !next.is_finite() {
                break;
            }
            for index in active {
                let done = rate(index) * (next - now);
                // What is left by rounding alone is done.
                left[index] = if left[index] - done > 1e-9 * (1.0 + done) { left[index] - done } else { 0.0 };
            }
            now = next;
        }
        Self(steps)
    }

    /// The share at a time.
    #[must_use]
    pub fn at(&self, at_s: f64) -> f64 {
        self.0.iter().rev().find(|(from, _)| *from <= at_s).map_or(1.0, |(_, share)| *share)
    }

    /// Seconds that the `slot`-th of `slots` shared slots works for the job between two times. A job with half of three slots has one
    /// and half of another.
    #[must_use]
    pub fn work_s(&self, slot: u32, slots: u32, from_s: f64, to_s: f64) -> f64 {
        let mut sum = 0.0;
        for (index, (from, share)) in self.0.iter().enumerate() {
            let until = self.0.get(index + 1).map_or(f64::INFINITY, |(next, _)| *next);
            let time = until.min(to_s) - from.max(from_s);
            if time > 0.0 {
                sum += time * (f64::from(slots) * share - f64::from(slot)).clamp(0.0, 1.0);
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(arrives_s: f64, core_s: Option<f64>) -> Claim {
        Claim { weight: 1.0, arrives_s, core_s }
    }

    #[test]
    fn half_while_another_is_there() {
        assert_eq!(Shares::beside(1.0, &[], 2.0), Shares::whole());
        let stays = Shares::beside(1.0, &[claim(0.0, None)], 2.0);
        assert!((stays.at(0.0) - 0.5).abs() < 1e-12 && (stays.at(1e6) - 0.5).abs() < 1e-12);
        // It arrives at 120 and needs 60 core seconds of two cores, of which it gets one.
        let passes = Shares::beside(1.0, &[claim(120.0, Some(60.0))], 2.0);
        let at: Vec<f64> = [0.0, 119.0, 120.0, 179.0, 181.0].map(|at| passes.at(at)).to_vec();
        assert_eq!(at, [1.0, 1.0, 0.5, 0.5, 1.0]);
        // Of two slots the first is the job's throughout, the second only when it is alone.
        assert!((passes.work_s(0, 2, 0.0, 200.0) - 200.0).abs() < 1e-9);
        assert!((passes.work_s(1, 2, 0.0, 200.0) - 140.0).abs() < 1e-9);
        assert!((passes.work_s(0, 1, 110.0, 200.0) - (10.0 + 30.0 + 20.0)).abs() < 1e-9);
    }

    #[test]
    fn weights_and_what_a_job_leaves() {
        let others = [Claim { weight: 2.0, arrives_s: 0.0, core_s: Some(20.0) }, claim(0.0, Some(100.0))];
        let shares = Shares::beside(1.0, &others, 4.0);
        // Two of four cores for the first: it ends at 10; then two jobs have two cores each.
        assert!((shares.at(0.0) - 0.25).abs() < 1e-12 && (shares.at(10.5) - 0.5).abs() < 1e-12);
        // The second had 10 by then and needs 45 s more.
        assert!((shares.at(54.9) - 0.5).abs() < 1e-12 && (shares.at(55.1) - 1.0).abs() < 1e-12);
    }
}
