//! When slots that differ have finished so many equal tasks. In: slots with their task times, and when each is free. Out: the earliest
//! time. [`estimate`](super::estimate) calls it.
//!
//! On equal slots that are all free it is the task time × ⌈tasks / slots⌉, the waves of Gandhi et al., Eq. 2 and 4. Each slot counts with
//! the whole tasks that it can finish, so a slot that is slow, comes late or is still busy has fewer waves.

use super::sharing::Shares;

/// What a count of whole tasks may be off by, as a part of a task.
const ROUNDING: f64 = 1e-7;
/// Halvings of the interval in which the time lies.
const HALVINGS: u32 = 60;

/// A slot.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slot {
    /// Its next task starts then.
    pub free_s: f64,
    /// Time of its first task, where that differs from the others'.
    pub first_s: Option<f64>,
    /// Time of a task.
    pub task_s: f64,
    /// Which of how many shared slots it is; `None` for a slot of the job alone.
    pub shared: Option<(u32, u32)>,
}

impl Slot {
    /// Whole tasks that it has finished by `at_s`.
    fn finished(&self, at_s: f64, shares: &Shares) -> f64 {
        let work_s = match self.shared {
            None => at_s - self.free_s,
            Some((slot, slots)) => shares.work_s(slot, slots, self.free_s, at_s),
        };
        let first_s = self.first_s.unwrap_or(self.task_s);
        if work_s < first_s * (1.0 - ROUNDING) {
            return 0.0;
        }
        1.0 + ((work_s - first_s) / self.task_s + ROUNDING).floor().max(0.0)
    }
}

/// The earliest time by which the slots have finished so many tasks; infinite where they never do.
#[must_use]
pub fn finish_s(slots: &[Slot], tasks: u32, shares: &Shares) -> f64 {
    if tasks == 0 {
        return 0.0;
    }
    let finished = |at_s: f64| slots.iter().map(|slot| slot.finished(at_s, shares)).sum::<f64>() >= f64::from(tasks);
    // The slot that would be done first with all of them alone bounds the search, whatever its share is later.
    let alone = |slot: &Slot| slot.free_s + slot.first_s.unwrap_or(slot.task_s) + slot.task_s * f64::from(tasks);
    let mut high = slots.iter().map(alone).fold(f64::INFINITY, f64::min);
    let mut doublings = 0;
    while !finished(high) {
        high *= 2.0;
        doublings += 1;
        if doublings > HALVINGS || !high.is_finite() {
            return f64::INFINITY;
        }
    }
    let mut low = 0.0;
    for _ in 0..HALVINGS {
        let middle = 0.5 * (low + high);
        if finished(middle) { high = middle } else { low = middle }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::super::sharing::Claim;
    use super::*;

    fn slot(free_s: f64, task_s: f64) -> Slot {
        Slot { free_s, first_s: None, task_s, shared: None }
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-4
    }

    #[test]
    fn waves_on_equal_slots() {
        let whole = Shares::whole();
        for (slots, tasks, waves) in [(1, 7, 7.0), (3, 7, 3.0), (7, 7, 1.0), (8, 7, 1.0), (3, 0, 0.0)] {
            assert!(close(finish_s(&vec![slot(0.0, 30.0); slots], tasks, &whole), waves * 30.0), "{slots} {tasks}");
        }
        assert!(finish_s(&[], 1, &whole).is_infinite());
    }

    #[test]
    fn slots_that_differ() {
        let whole = Shares::whole();
        // Twice as fast does two of three.
        assert!(close(finish_s(&[slot(0.0, 10.0), slot(0.0, 5.0)], 3, &whole), 10.0));
        // One that comes at 25 has done one by 35, while the other has done three.
        assert!(close(finish_s(&[slot(0.0, 10.0), slot(25.0, 10.0)], 4, &whole), 35.0));
        // A first task that takes longer.
        let long = Slot { first_s: Some(50.0), ..slot(0.0, 10.0) };
        assert!(close(finish_s(&[long], 3, &whole), 70.0));
        // Half of a slot, for ever, and none of a second.
        let half = Shares::beside(1.0, &[Claim { weight: 1.0, arrives_s: 0.0, core_s: None }], 2.0);
        let shared = |index| Slot { shared: Some((index, 2)), ..slot(0.0, 10.0) };
        assert!(close(finish_s(&[shared(0), shared(1)], 4, &half), 40.0));
        assert!(finish_s(&[shared(1)], 1, &half).is_infinite());
    }
}
