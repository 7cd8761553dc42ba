//! What is known of an array's tasks, for [`super::Array`]: how long one takes, how much is left, and whether they start where
//! they could. In: what a batch system shows at each look. Out: estimates. Called by engine `slurm`.

use std::collections::BTreeMap;

/// What a task takes at least, in seconds: batch systems tell times in whole seconds.
const LEAST_TASK_S: f64 = 0.5;
/// Looks in a row at which CPUs may be free that an array's tasks could have. Then some of those that were given to others are of
/// no use to them: a constraint, or memory, keeps them away. Chosen: Slurm starts tasks within that time.
const MOST_IDLE_LOOKS: u32 = 4;

/// Wall time of an array's task, in seconds: the mean of those that have ended. Before there are any, that of all arrays
/// (`usual_s`), or the longest that one of its own runs (`running_s`).
pub fn task_s(mean_ended_s: Option<f64>, usual_s: f64, running_s: impl Iterator<Item = f64>) -> f64 {
    mean_ended_s.unwrap_or_else(|| running_s.fold(usual_s, f64::max)).max(LEAST_TASK_S)
}

/// What is left of an array, in CPU seconds: of so many tasks that have not ended, each of so many CPUs and seconds. Of those that
/// run (`running_s`, since when) no more counts as done than a task takes.
pub fn left_cpu_s(unfinished: u32, cpus: u32, task_s: f64, running_s: impl Iterator<Item = f64>) -> f64 {
    let begun_s: f64 = running_s.map(|running_s| running_s.clamp(0.0, task_s)).sum();
    (f64::from(unfinished) * task_s - begun_s) * f64::from(cpus)
}

/// What a look shows of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Starts {
    /// Tasks that run.
    pub running: u32,
    /// One more could have begun: it waits for nothing but CPUs, its bound lets it, and enough are idle.
    pub could_more: bool,
}

/// Arrays whose tasks do not start although CPUs are idle, look after look.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stuck {
    /// In how many looks in a row, and how many ran at the first.
    looks: BTreeMap<u64, (u32, u32)>,
}

impl Stuck {
    /// Takes a look. An array that is missing has gone.
    pub fn look(&mut self, arrays: impl Iterator<Item = (u64, Starts)>) {
        let before = std::mem::take(&mut self.looks);
        for (number, Starts { running, could_more }) in arrays {
            let known = before.get(&number).copied();
            let now = match known {
                Some((_, ran)) if running > ran => could_more.then_some((0, running)),
                // Once it is stuck, others use the CPUs: that none is idle says nothing.
                Some((looks, ran)) if could_more || looks >= MOST_IDLE_LOOKS => {
                    Some((if could_more { looks.saturating_add(1) } else { looks }, ran))
                }
                _ => could_more.then_some((1, running)),
            };
            if let Some(now) = now {
                self.looks.insert(number, now);
            }
        }
    }

    /// CPUs were idle for it, again and again, and its tasks did not start: a constraint, or memory, keeps them away.
    #[must_use]
    pub fn is_stuck(&self, number: u64) -> bool {
        self.looks.get(&number).is_some_and(|(looks, _)| *looks >= MOST_IDLE_LOOKS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_takes_what_those_before_it_took() {
        let running = || [3.0, 7.0].into_iter();
        for (mean_ended_s, usual_s, right) in
            [(Some(4.0), 20.0, 4.0), (None, 5.0, 7.0), (None, 20.0, 20.0), (Some(0.0), 20.0, LEAST_TASK_S)]
        {
            let task_s = task_s(mean_ended_s, usual_s, running());
            assert!((task_s - right).abs() < 1e-9, "{task_s} {right}");
        }
    }

    /// Ten tasks of two CPUs and 4 s; one has run 3 s, one longer than any before.
    #[test]
    fn what_runs_is_done_in_part() {
        let left = left_cpu_s(10, 2, 4.0, [3.0, 9.0].into_iter());
        assert!((left - 2.0 * (40.0 - 3.0 - 4.0)).abs() < 1e-9, "{left}");
    }

    #[test]
    fn an_array_is_stuck_after_some_looks_and_until_more_of_it_runs() {
        let mut stuck = Stuck::default();
        let mut look = |running, could_more| {
            stuck.look([(7, Starts { running, could_more })].into_iter());
            stuck.is_stuck(7)
        };
        assert!((0..3).all(|_| !look(2, true)), "Slurm needs some seconds");
        assert!(!look(2, false), "none was idle: it is counted anew");
        assert!((0..3).all(|_| !look(2, true)) && look(2, true) && look(2, true));
        assert!(look(2, false) && look(1, false), "others use what it cannot");
        assert!(!look(3, true), "it runs more");
        stuck.look(std::iter::empty());
        assert_eq!(stuck, Stuck::default());
    }
}
