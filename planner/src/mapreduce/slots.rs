//! When slots that differ have finished so many equal tasks. In: slots with their task times, and when each is free. Out: the time
//! at which the last task ends. [`estimate`](super::estimate) calls it.
//!
//! As in Hadoop, the slot that is free next takes the next task, also a slow one while a faster would end it earlier. On equal slots that
//! are all free it is the task time × ⌈tasks / slots⌉, the waves of Gandhi et al., Eq. 2 and 4. Of slots that are free at the same
//! moment any may get the last tasks; the median of all ways counts, of two the later.

use super::sharing::Shares;

/// What a count of whole tasks may be off by, as a part of a task.
const ROUNDING: f64 = 1e-7;
/// Most halvings of the interval in which the last start lies.
pub(super) const HALVINGS: u32 = 60;

/// Equal slots.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slots {
    /// Their next tasks start then.
    pub free_s: f64,
    /// Time of the first task of each, where that differs from the others'.
    pub first_s: Option<f64>,
    /// Time of a task.
    pub task_s: f64,
    /// Which of how many shared slots the first of them is; `None` for slots of the job alone.
    pub shared: Option<(u32, u32)>,
    /// How many.
    pub many: u32,
}

impl Slots {
    fn first_s(&self) -> f64 {
        self.first_s.unwrap_or(self.task_s)
    }

    /// Tasks that each has started by `at_s`. A slot that the job has a part of only takes a task so late that it ends with the work that the part
    /// gives: then a task runs at full speed, as it does in Hadoop.
    fn started(&self, at_s: f64, shares: &Shares) -> f64 {
        // Work until some seconds after `at_s`, less those: at least 0 where a task of that time can start by then.
        let work_s = |task_s: f64| match self.shared {
            None => at_s - self.free_s,
            Some((slot, slots)) => shares.work_s(slot, slots, self.free_s, at_s + task_s) - task_s,
        };
        let first_s = self.first_s();
        if work_s(first_s) < -ROUNDING * first_s {
            return 0.0;
        }
        1.0 + ((work_s(self.task_s) - first_s) / self.task_s + 1.0 + ROUNDING).floor().max(0.0)
    }

    /// When each has finished so many tasks, at least one.
    fn end_s(&self, tasks: f64, shares: &Shares) -> f64 {
        let work_s = self.first_s() + (tasks - 1.0) * self.task_s;
        match self.shared {
            None => self.free_s + work_s,
            Some((slot, slots)) => shares.reach_s(slot, slots, self.free_s, work_s),
        }
    }
}

/// The same slots, divided so that all of an entry get the same work.
fn divided(slots: &[Slots], shares: &Shares) -> Vec<Slots> {
    let mut all = Vec::with_capacity(slots.len());
    let of = slots.iter().find_map(|own| own.shared).map_or(0, |(_, of)| of);
    let bounds = if of > 0 { shares.bounds(of) } else { Vec::new() };
    for own in slots {
        let Some((from, of)) = own.shared else {
            all.push(*own);
            continue;
        };
        let (mut at, end) = (from, from + own.many);
        let within = bounds.iter().copied().filter(|bound| (from + 1..end).contains(bound));
        for bound in within.chain([end]) {
            all.push(Slots { shared: Some((at, of)), many: bound - at, ..*own });
            at = bound;
        }
    }
    all
}

/// The time at which the slots have finished so many tasks; infinite where they never do.
#[must_use]
pub fn finish_s(slots: &[Slots], tasks: u32, shares: &Shares) -> f64 {
    if tasks == 0 {
        return 0.0;
    }
    let (slots, tasks) = (divided(slots, shares), f64::from(tasks));
    let started = |at_s: f64| slots.iter().map(|own| f64::from(own.many) * own.started(at_s, shares)).sum::<f64>();
    // The slot that would be done first with all of them alone bounds the search, whatever its share is later.
    let alone_s = |own: &Slots| own.free_s + own.first_s() + own.task_s * tasks;
    let mut high_s = slots.iter().map(alone_s).fold(f64::INFINITY, f64::min);
    let mut doublings = 0;
    while started(high_s) < tasks {
        high_s *= 2.0;
        doublings += 1;
        if doublings > HALVINGS || !high_s.is_finite() {
            return f64::INFINITY;
        }
    }
    let precision_s = 0.5 * ROUNDING * slots.iter().map(|own| own.task_s).fold(f64::INFINITY, f64::min);
    let mut low_s = 0.0;
    for _ in 0..HALVINGS {
        if high_s - low_s <= precision_s {
            break;
        }
        let middle_s = 0.5 * (low_s + high_s);
        if started(middle_s) >= tasks { high_s = middle_s } else { low_s = middle_s }
    }
    last_end_s(&slots, tasks, shares, high_s)
}

/// When the last of the tasks ends that have started by `at_s`, which is when the last of so many starts.
fn last_end_s(slots: &[Slots], tasks: f64, shares: &Shares, at_s: f64) -> f64 {
    let (mut end_s, mut all) = (0.0_f64, 0.0);
    // Those that start last, with the time at which the task before ends.
    let mut last: Vec<(f64, f64, &Slots)> = Vec::new();
    for own in slots {
        let started = own.started(at_s, shares);
        if started < 1.0 {
            continue;
        }
        all += started * f64::from(own.many);
        let own_end_s = own.end_s(started, shares);
        let task_s = if started < 2.0 { own.first_s() } else { own.task_s };
        if own_end_s - task_s >= at_s - 2.0 * ROUNDING * task_s {
            let before_s = if started < 2.0 { 0.0 } else { own.end_s(started - 1.0, shares) };
            last.push((own_end_s, before_s, own));
        } else {
            end_s = end_s.max(own_end_s);
        }
    }
    // More can start at that moment than there are tasks, and any of them may get one. From the slowest on: how likely is it that none of
    // those so far gets one? `idle` of all get none. In a group of equal slots the middle one stands for each.
    last.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (idle, together) = (all - tasks, last.iter().map(|(.., own)| f64::from(own.many)).sum::<f64>());
    let (mut passed, mut none) = (0.0, 1.0);
    for (own_end_s, before_s, own) in last {
        let many = f64::from(own.many);
        let middle = passed + 0.5 * (many - 1.0);
        none *= ((idle - middle) / (together - middle)).max(0.0).powf(many);
        passed += many;
        if none <= 0.5 {
            return end_s.max(own_end_s);
        }
        end_s = end_s.max(before_s);
    }
    end_s
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::sharing::Claim;
    use super::*;

    fn slot(free_s: f64, task_s: f64) -> Slots {
        Slots { free_s, first_s: None, task_s, shared: None, many: 1 }
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-4
    }

    #[test]
    fn waves_on_equal_slots() {
        let whole = Shares::whole();
        for (slots, tasks, waves) in [(1, 7, 7.0), (3, 7, 3.0), (7, 7, 1.0), (8, 7, 1.0), (3, 0, 0.0)] {
            assert!(close(finish_s(&vec![slot(0.0, 30.0); slots], tasks, &whole), waves * 30.0), "{slots} {tasks}");
            let together = Slots { many: u32::try_from(slots).unwrap(), ..slot(0.0, 30.0) };
            assert!(close(finish_s(&[together], tasks, &whole), waves * 30.0), "{slots} {tasks}");
        }
        assert!(finish_s(&[], 1, &whole).is_infinite());
    }

    #[test]
    fn slots_that_differ() {
        let whole = Shares::whole();
        // Twice as fast does two of three.
        assert!(close(finish_s(&[slot(0.0, 10.0), slot(0.0, 5.0)], 3, &whole), 10.0));
        // Both are free at 10, so either may get the fourth.
        assert!(close(finish_s(&[slot(0.0, 10.0), slot(0.0, 5.0)], 4, &whole), 20.0));
        // One that comes at 25 takes the fourth, as the other is busy until 30.
        assert!(close(finish_s(&[slot(0.0, 10.0), slot(25.0, 10.0)], 4, &whole), 35.0));
        // A first task that takes longer.
        let long = Slots { first_s: Some(50.0), ..slot(0.0, 10.0) };
        assert!(close(finish_s(&[long], 3, &whole), 70.0));
        // Half of a slot, for ever, and none of a second.
        let half = Shares::beside(1.0, &[Claim { weight: 1.0, arrives_s: 0.0, core_s: None }], 2.0);
        let shared = |index| Slots { shared: Some((index, 2)), ..slot(0.0, 10.0) };
        assert!(close(finish_s(&[shared(0), shared(1)], 4, &half), 40.0));
        assert!(close(finish_s(&[Slots { many: 2, ..shared(0) }], 4, &half), 40.0));
        assert!(finish_s(&[shared(1)], 1, &half).is_infinite());
    }

    /// Hadoop gives a task to the slow slot too, as it is free: the job waits for it.
    #[test]
    fn a_slow_slot_that_is_free_takes_a_task() {
        let whole = Shares::whole();
        assert!(close(finish_s(&[slot(0.0, 100.0), slot(0.0, 400.0)], 3, &whole), 400.0));
        assert!(close(finish_s(&[slot(0.0, 100.0), slot(150.0, 400.0)], 2, &whole), 200.0));
        assert!(close(finish_s(&[slot(0.0, 100.0), slot(150.0, 400.0)], 3, &whole), 550.0));
    }

    #[test]
    fn where_any_slot_may_get_the_last_task_the_median_counts() {
        let whole = Shares::whole();
        let slots = [slot(0.0, 20.0), slot(0.0, 400.0), slot(0.0, 10.0)];
        let ends = [1, 2, 3, 4].map(|tasks| finish_s(&slots, tasks, &whole));
        assert!(close(ends[0], 20.0) && ends[1..].iter().all(|end_s| close(*end_s, 400.0)), "{ends:?}");
        // One slow slot among twenty gets one of three tasks in 3 of 20 cases, and one of ten in half of them.
        let twenty = [Slots { many: 19, ..slot(0.0, 10.0) }, slot(0.0, 400.0)];
        let ends = [3, 10, 19].map(|tasks| finish_s(&twenty, tasks, &whole));
        assert!(close(ends[0], 10.0) && close(ends[1], 400.0) && close(ends[2], 400.0), "{ends:?}");
    }

    /// A twentieth of a slot takes its first task when it has the work for it, and not before: the others are done by then.
    #[test]
    fn a_small_part_of_a_slot_does_not_hold_up_the_job() {
        let part = Shares::beside(1.0, &[Claim { weight: 19.0, arrives_s: 0.0, core_s: None }], 21.0);
        let shared = Slots { shared: Some((0, 21)), many: 21, ..slot(0.0, 10.0) };
        assert!(close(finish_s(&[shared], 10, &part), 100.0), "{}", finish_s(&[shared], 10, &part));
        assert!(close(finish_s(&[shared], 21, &part), 200.0), "{}", finish_s(&[shared], 21, &part));
    }

    /// One task after the other, each to the slot that is free first, the slowest of them or the fastest.
    fn one_by_one(slots: &[Slots], tasks: u32, slowest: bool) -> f64 {
        let mut free: Vec<(f64, f64, f64)> = Vec::new();
        for own in slots {
            free.extend(std::iter::repeat_n((own.free_s, own.first_s(), own.task_s), own.many as usize));
        }
        let mut end_s = 0.0_f64;
        for _ in 0..tasks {
            let earlier = |a: &&mut (f64, f64, f64), b: &&mut (f64, f64, f64)| {
                let same = (a.0 - b.0).abs() < 1e-9;
                match same {
                    true if slowest => b.1.total_cmp(&a.1),
                    true => a.1.total_cmp(&b.1),
                    false => a.0.total_cmp(&b.0),
                }
            };
            let next = free.iter_mut().min_by(earlier).unwrap();
            next.0 += next.1;
            next.1 = next.2;
            end_s = end_s.max(next.0);
        }
        end_s
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn it_is_what_giving_out_tasks_one_by_one_takes(
            all in prop::collection::vec((0_u32..4, 1_u32..12, 1_u32..12, 1_u32..4), 1..6),
            tasks in 1_u32..60,
        ) {
            let own = |(free, first, task, many): (u32, u32, u32, u32)| Slots {
                free_s: 7.0 * f64::from(free),
                first_s: first.is_multiple_of(2).then_some(5.0 * f64::from(first)),
                task_s: 5.0 * f64::from(task),
                shared: None,
                many,
            };
            let slots: Vec<Slots> = all.into_iter().map(own).collect();
            let (found, at_least) = (finish_s(&slots, tasks, &Shares::whole()), one_by_one(&slots, tasks, false));
            let at_most = one_by_one(&slots, tasks, true);
            prop_assert!(at_least - 1e-6 < found && found < at_most + 1e-6, "{at_least}, {found}, {at_most}");
        }
    }
}
