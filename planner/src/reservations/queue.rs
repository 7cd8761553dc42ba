//! Waiting jobs from which many nodes choose. In: the jobs in the order of their turns. Out: the job that [`super::surviving::place`] would
//! choose for a node, found in logarithmic time. `gleaner plan fill` calls it, whose clouds may have 100,000 nodes and as many jobs.

use super::surviving::{Gap, Waiting};

/// What a job that was taken needs: more cores than there are.
const TAKEN: u64 = u64::MAX;

/// Waiting jobs.
#[derive(Debug, Clone)]
pub struct Queue {
    /// Cores of each job, in the order of turns.
    turns: Least,
    /// Jobs with an estimate, with it, the longest first, and of equal ones the first first.
    lengths: Vec<(f64, usize)>,
    /// Cores of each of `lengths`.
    longest: Least,
    /// The position of each job in `lengths`.
    positions: Vec<Option<usize>>,
}

impl Queue {
    /// Jobs, the first first.
    #[must_use]
    pub fn new(jobs: &[Waiting]) -> Self {
        let cores = |index: usize| u64::from(jobs[index].cores);
        let estimates = jobs.iter().enumerate().filter_map(|(index, job)| Some((job.estimate_s?, index)));
        let mut lengths: Vec<(f64, usize)> = estimates.collect();
        lengths.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut positions = vec![None; jobs.len()];
        for (position, (_, index)) in lengths.iter().enumerate() {
            positions[*index] = Some(position);
        }
        let turns = Least::new((0..jobs.len()).map(cores));
        let longest = Least::new(lengths.iter().map(|(_, index)| cores(*index)));
        Self { turns, lengths, longest, positions }
    }

    /// Takes the job that a node with `open` cores should start: the first that fits, or in a gap the longest that ends in time. `None` when
    /// none does. The number is the job's place in the list that the queue was made of.
    pub fn take(&mut self, open: u32, gap: Option<Gap>, now_s: f64) -> Option<usize> {
        let index = match gap {
            None => self.turns.first(0, open.into())?,
            Some(gap) => {
                let gap_s = gap.ends_s - now_s;
                // Where nothing would be lost, as when the gap is over, every job is as good as one that ends in time.
                let certain = gap_s <= 0.0 || gap.probability <= 0.0;
                let from =
                    if certain { 0 } else { self.lengths.partition_point(|(estimate_s, _)| *estimate_s > gap_s) };
                self.lengths[self.longest.first(from, open.into())?].1
            }
        };
        self.turns.remove(index);
        if let Some(position) = self.positions[index] {
            self.longest.remove(position);
        }
        Some(index)
    }
}

/// A row of numbers, in which the first that is small enough is found: a binary tree of the least of each part. Node `n` has the children `2 n`
/// and `2 n + 1`; node 1 is the root.
#[derive(Debug, Clone)]
struct Least {
    leaves: usize,
    tree: Vec<u64>,
}

impl Least {
    fn new(numbers: impl ExactSizeIterator<Item = u64>) -> Self {
        let leaves = numbers.len().next_power_of_two();
        let mut tree = vec![TAKEN; leaves];
        tree.extend(numbers);
        tree.resize(2 * leaves, TAKEN);
        for node in (1..leaves).rev() {
            tree[node] = tree[2 * node].min(tree[2 * node + 1]);
        }
        Self { leaves, tree }
    }

    fn remove(&mut self, position: usize) {
        let mut node = self.leaves + position;
        self.tree[node] = TAKEN;
        while node > 1 {
            node /= 2;
            self.tree[node] = self.tree[2 * node].min(self.tree[2 * node + 1]);
        }
    }

    /// The first at or after `from` that is at most `most`.
    fn first(&self, from: usize, most: u64) -> Option<usize> {
        if from >= self.leaves {
            return None;
        }
        // To the first part that has one: from a part to its right neighbour, or to that of the part that both are the end of.
        let mut node = self.leaves + from;
        while self.tree[node] > most {
            while node % 2 == 1 {
                node /= 2;
            }
            if node == 0 {
                return None;
            }
            node += 1;
        }
        while node < self.leaves {
            node = 2 * node + usize::from(self.tree[2 * node] > most);
        }
        Some(node - self.leaves)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::surviving::place;
    use super::*;

    #[test]
    fn an_empty_queue_has_no_job() {
        let mut queue = Queue::new(&[]);
        assert_eq!(queue.take(9, None, 0.0), None);
        assert_eq!(queue.take(9, Some(Gap { ends_s: 5.0, probability: 1.0 }), 0.0), None);
    }

    proptest! {
        /// The queue chooses as [`place`] does, which looks at every job.
        #[test]
        fn the_choice_is_that_of_looking_at_every_job(
            jobs in prop::collection::vec((1_u32..6, prop::option::of(1_u32..8)), 0..20),
            nodes in prop::collection::vec((0_u32..7, prop::option::of((-1_i32..9, 0_u32..3))), 0..40),
        ) {
            let jobs: Vec<Waiting> = jobs
                .into_iter()
                .map(|(cores, estimate)| Waiting { cores, estimate_s: estimate.map(f64::from), checkpoint_s: None })
                .collect();
            let mut queue = Queue::new(&jobs);
            let mut left: Vec<usize> = (0..jobs.len()).collect();
            for (open, gap) in nodes {
                let gap = gap.map(|(ends, half)| Gap { ends_s: 100.0 + f64::from(ends), probability: f64::from(half) / 2.0 });
                let waiting: Vec<Waiting> = left.iter().map(|index| jobs[*index]).collect();
                let expected = place(&waiting, open, gap, 100.0).map(|position| left.remove(position));
                prop_assert_eq!(queue.take(open, gap, 100.0), expected);
            }
        }
    }
}
