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
        // The last is the next to arrive.
        let mut coming: Vec<&Claim> = others.iter().collect();
        coming.sort_by(|a, b| b.arrives_s.total_cmp(&a.arrives_s));
        // All that are present get the same work for each unit of weight: `had_s` of it so far. A job ends when that is its own work, over
        // its weight, more than it was when it came. So many, and its weight, of each that is present; the last is the next to end.
        let mut present: Vec<(f64, f64)> = Vec::new();
        let (mut now, mut had_s, mut steps) = (0.0, 0.0, Vec::new());
        // Each round but the first begins with an arrival or an end.
        loop {
            while let Some(own) = coming.pop_if(|own| own.arrives_s <= now) {
                let end_s = had_s + own.core_s.map_or(f64::INFINITY, |core_s| core_s / own.weight);
                let place = present.partition_point(|(other, _)| *other > end_s);
                present.insert(place, (end_s, own.weight));
            }
            while present.pop_if(|(end_s, _)| *end_s <= had_s).is_some() {}
            let sum = weight + present.iter().map(|(_, weight)| weight).sum::<f64>();
            steps.push((now, weight / sum));
            let first_end_s = present.last().map_or(f64::INFINITY, |(end_s, _)| *end_s);
            let end = now + (first_end_s - had_s) * sum / cores;
            let arrival = coming.last().map_or(f64::INFINITY, |own| own.arrives_s);
            let next = end.min(arrival);
            if !next.is_finite() {
                return Self(steps);
            }
            had_s = if end <= arrival { first_end_s } else { had_s + (next - now) * cores / sum };
            now = next;
        }
    }

    /// The share at a time.
    #[must_use]
    pub fn at(&self, at_s: f64) -> f64 {
        self.0.iter().rev().find(|(from, _)| *from <= at_s).map_or(1.0, |(_, share)| *share)
    }

    /// Each part with its end, and what the `slot`-th of `slots` shared slots works for the job in a second of it. A job with half of three
    /// slots has one and half of another.
    fn rates(&self, slot: u32, slots: u32) -> impl Iterator<Item = (f64, f64, f64)> {
        self.0.iter().enumerate().map(move |(index, (from_s, share))| {
            let until_s = self.0.get(index + 1).map_or(f64::INFINITY, |(next_s, _)| *next_s);
            (*from_s, until_s, (f64::from(slots) * share - f64::from(slot)).clamp(0.0, 1.0))
        })
    }

    /// Seconds that the `slot`-th of `slots` shared slots works for the job between two times.
    #[must_use]
    pub fn work_s(&self, slot: u32, slots: u32, from_s: f64, to_s: f64) -> f64 {
        let parts = self.rates(slot, slots).map(|(begin_s, until_s, rate)| {
            let time_s = until_s.min(to_s) - begin_s.max(from_s);
            if time_s > 0.0 { time_s * rate } else { 0.0 }
        });
        parts.sum()
    }

    /// When such a slot has worked so many seconds for the job, from a time on; infinite where it never does.
    #[must_use]
    pub fn reach_s(&self, slot: u32, slots: u32, from_s: f64, work_s: f64) -> f64 {
        let mut left_s = work_s;
        for (begin_s, until_s, rate) in self.rates(slot, slots) {
            let begin_s = begin_s.max(from_s);
            if until_s <= begin_s || rate <= 0.0 {
                continue;
            }
            let end_s = begin_s + left_s / rate;
            if end_s <= until_s {
                return end_s;
            }
            left_s -= (until_s - begin_s) * rate;
        }
        f64::INFINITY
    }

    /// The shared slots, of so many, from which on the work of a slot is another than that of the one before, in rising order.
    #[must_use]
    pub fn bounds(&self, slots: u32) -> Vec<u32> {
        let whole = |share: f64| {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most the number of slots")]
            let whole = (f64::from(slots) * share) as u32;
            whole
        };
        let mut all: Vec<u32> = self.0.iter().flat_map(|(_, share)| [whole(*share), whole(*share) + 1]).collect();
        all.sort_unstable();
        all.dedup();
        all
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

    #[test]
    fn many_jobs_as_by_steps_of_time() {
        let own = |index: u32| Claim {
            weight: f64::from(1 + index % 3),
            arrives_s: f64::from(index * 37 % 101),
            core_s: Some(f64::from(10 + index * 53 % 89)),
        };
        let others: Vec<Claim> = (0..20).map(own).collect();
        let shares = Shares::beside(2.0, &others, 4.0);
        assert!(shares.0.len() <= 2 * others.len() + 1);
        let mut left: Vec<f64> = others.iter().map(|own| own.core_s.unwrap()).collect();
        let step_s = 0.02;
        for step in 0..25_000_u32 {
            let now = f64::from(step) * step_s;
            let active: Vec<usize> = (0..20).filter(|at| others[*at].arrives_s <= now && left[*at] > 0.0).collect();
            let sum = 2.0 + active.iter().map(|at| others[*at].weight).sum::<f64>();
            let about_now = |off: i32| (shares.at(now + step_s * f64::from(off)) - 2.0 / sum).abs() < 1e-9;
            assert!((-10..=10).any(about_now), "{now}: {} and {}", 2.0 / sum, shares.at(now));
            active.into_iter().for_each(|at| left[at] -= step_s * 4.0 * others[at].weight / sum);
        }
        assert!(left.iter().all(|left| *left <= 0.0));
    }

    #[test]
    fn work_and_the_time_that_it_takes_agree() {
        let shares = Shares::beside(1.0, &[claim(120.0, Some(60.0)), claim(50.0, None)], 2.0);
        for (slot, from_s, to_s) in [(0, 0.0, 300.0), (0, 130.0, 160.0), (1, 0.0, 40.0)] {
            let work_s = shares.work_s(slot, 2, from_s, to_s);
            assert!((shares.reach_s(slot, 2, from_s, work_s) - to_s).abs() < 1e-9, "{slot} {from_s} {to_s}");
        }
        assert!(shares.reach_s(1, 2, 60.0, 1.0).is_infinite());
    }
}
