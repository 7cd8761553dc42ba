//! Stages that Spark will not run, because the output of the same shuffle is there from an earlier job: what a sort, a join
//! or an iteration reads again. In: polls of a driver. Out: the same without these stages and their tasks. Called by `application`.
//!
//! Until the job is over, Spark lists such a stage as one that waits. A stage waits in truth for one that runs, and numbers
//! rise from parents to children. So one before which no stage of its job runs, while a later one does, is skipped. A
//! poll may come just between two stages, therefore two polls must say so, one after the other. Where one before it does run, as
//! in a join of an old shuffle with a new one, that it will be skipped is not seen.

use std::collections::BTreeSet;

use super::progress::{JobRow, JobStatus, Observation};

/// The stages of which the last poll said so, and those of which two did.
#[derive(Debug, Default)]
pub(super) struct Skipped {
    suspected: BTreeSet<u32>,
    certain: BTreeSet<u32>,
}

impl Skipped {
    /// Leaves the stages out that are skipped.
    pub(super) fn leave_out(&mut self, observed: &mut Observation) {
        let now = suspected(observed);
        let begun = begun(observed);
        // Between two stages nothing runs, and nothing is said.
        self.certain.retain(|id| !begun.contains(id) && observed.stages.iter().any(|row| row.id == *id));
        self.certain.extend(now.intersection(&self.suspected));
        self.suspected = now;
        let skipped = &self.certain;
        if skipped.is_empty() {
            return;
        }
        for job in observed.jobs.iter_mut().filter(|job| job.status == JobStatus::Running) {
            let own = observed.stages.iter().filter(|row| skipped.contains(&row.id) && job.stages.contains(&row.id));
            let tasks = own.fold(0, |sum: u32, row| sum.saturating_add(row.tasks));
            // Of a stage that another job has run already, Spark counts no tasks for this one.
            let others =
                observed.stages.iter().filter(|row| !skipped.contains(&row.id) && job.stages.contains(&row.id));
            let counted = others.fold(job.completed, |sum: u32, row| sum.saturating_add(row.left(0)));
            // Once Spark says it itself, it is not counted twice.
            job.skipped = job.skipped.max(tasks.min(job.tasks.saturating_sub(counted)));
            job.stages.retain(|id| !skipped.contains(id));
        }
        observed.stages.retain(|row| !skipped.contains(&row.id));
    }
}

/// Stages that run or have run.
fn begun(observed: &Observation) -> BTreeSet<u32> {
    let begun = observed.stages.iter().filter(|row| row.running || row.attempt > 0 || row.completed > 0);
    begun.map(|row| row.id).collect()
}

fn suspected(observed: &Observation) -> BTreeSet<u32> {
    let running: BTreeSet<u32> = observed.stages.iter().filter(|row| row.running).map(|row| row.id).collect();
    let begun = begun(observed);
    let jobs = || observed.jobs.iter().filter(|job| job.status == JobStatus::Running);
    let first = |job: &JobRow| job.stages.iter().filter(|id| running.contains(id)).min().copied();
    let is_skipped_by = |job: &JobRow, id: u32| first(job).is_some_and(|first| id < first);
    let waiting = observed.stages.iter().map(|row| row.id).filter(|id| !begun.contains(id));
    // A stage may be of several jobs, and only one of them has to need it.
    let of_all = |id: &u32| {
        let mut own = jobs().filter(|job| job.stages.contains(id)).peekable();
        own.peek().is_some() && own.all(|job| is_skipped_by(job, *id))
    };
    waiting.filter(of_all).collect()
}

#[cfg(test)]
mod tests {
    use super::super::progress::StageRow;
    use super::*;

    fn stage(id: u32, running: bool, tasks: u32) -> StageRow {
        let (attempt, active_tasks, completed) = (0, u32::from(running), 0);
        let (runs_completed, runs_failed, run_time_ms) = (0, 0, 0);
        StageRow { id, attempt, running, tasks, active_tasks, completed, runs_completed, runs_failed, run_time_ms }
    }

    fn job(id: u32, stages: &[u32], tasks: u32) -> JobRow {
        let status = JobStatus::Running;
        JobRow { id, status, stages: stages.to_vec(), tasks, skipped: 0, completed: 0, lost: 0 }
    }

    /// What is left after two polls that say the same: stages, and the tasks that each job skips.
    fn left(jobs: &[JobRow], stages: &[StageRow]) -> (Vec<u32>, Vec<u32>) {
        let mut skipped = Skipped::default();
        let poll = || Observation { jobs: jobs.to_vec(), stages: stages.to_vec(), ..Observation::default() };
        let mut first = poll();
        skipped.leave_out(&mut first);
        assert_eq!(first, poll(), "one poll may come between two stages");
        let mut second = poll();
        skipped.leave_out(&mut second);
        let skips = second.jobs.iter().map(|job| job.skipped).collect();
        (second.stages.iter().map(|stage| stage.id).collect(), skips)
    }

    #[test]
    fn what_an_earlier_job_has_written_is_not_waited_for() {
        // A sort after a count: the map stage and its shuffle are there, the stage that reads it runs.
        let (map, read, sort) = (stage(4, false, 152), stage(5, true, 4), stage(6, false, 4));
        assert_eq!(left(&[job(2, &[4, 5, 6], 160)], &[map.clone(), read, sort.clone()]), (vec![5, 6], vec![152]));
        // Its results were lost, and it runs again.
        let again = StageRow { running: true, ..map.clone() };
        let reader = StageRow { attempt: 1, ..stage(5, false, 4) };
        assert_eq!(left(&[job(2, &[4, 5, 6], 160)], &[again, reader, sort.clone()]).0, [4, 5, 6]);
        // Nothing runs: the job has just been submitted.
        assert_eq!(left(&[job(2, &[4, 6], 156)], &[map, sort]).0, [4, 6]);
    }

    #[test]
    fn a_stage_that_waits_for_another_is_kept() {
        // 0 → 1 and 2, both read by 3.
        let chain = [stage(0, true, 9), stage(1, false, 9), stage(2, true, 9), stage(3, false, 9)];
        assert_eq!(left(&[job(0, &[0, 1, 2, 3], 36)], &chain), (vec![0, 1, 2, 3], vec![0]));
        // The same stage of two jobs, of which the second waits for it.
        let shared = [stage(1, false, 9), stage(2, true, 9)];
        assert_eq!(left(&[job(0, &[1, 2], 18), job(1, &[1], 9)], &shared).0, [1, 2]);
    }

    #[test]
    fn tasks_that_spark_itself_calls_skipped_count_once() {
        let own = JobRow { skipped: 152, ..job(2, &[4, 5], 156) };
        assert_eq!(left(&[own], &[stage(4, false, 152), stage(5, true, 4)]), (vec![5], vec![152]));
    }

    #[test]
    fn tasks_that_a_job_never_had_are_not_taken_from_it() {
        // The stage was run by the first of two jobs, and listed again for both when the second began.
        let first = JobRow { completed: 152, ..job(1, &[3, 4], 156) };
        let second = job(2, &[3, 5], 4);
        let stages = [stage(3, false, 152), stage(4, true, 4), stage(5, true, 4)];
        assert_eq!(left(&[first, second], &stages), (vec![4, 5], vec![0, 0]));
    }

    #[test]
    fn what_was_certain_stays_so_while_nothing_runs() {
        let mut skipped = Skipped::default();
        let mut poll = |reads: bool, runs_again: bool| {
            let jobs = vec![job(2, &[4, 5, 6], 160)];
            let stages = vec![stage(4, runs_again, 152), stage(5, reads, 4), stage(6, false, 4)];
            let mut observed = Observation { jobs, stages, ..Observation::default() };
            skipped.leave_out(&mut observed);
            observed.stages.len()
        };
        assert_eq!([poll(true, false), poll(true, false), poll(false, false), poll(false, true)], [3, 2, 2, 3]);
    }
}
