//! Corrects the models while a job runs, by the times of its map tasks (ours; the paper fits before the job, §IV-C). In:
//! what the model expects of a task, and for each node its speed and what it has done. Out: how much longer tasks of this job
//! take everywhere, and the speed of each node. [`estimate`](super::estimate) calls it.
//!
//! All tasks of a job have equal input, so one factor on f is all that they tell. A node's own deviation from it is its speed. What was
//! believed before counts as [`BELIEVED`] tasks. f comes from whole stages, so it has the waits between tasks in it, and so must the times here.

/// How many finished tasks the training counts for. Chosen: the noise of so many tasks is about the error of a fit.
pub const BELIEVED: f64 = 10.0;
/// Least and greatest factor that is believed. Chosen.
const MOST: f64 = 20.0;

/// Finished tasks of a node, and the done parts of those that run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Finished {
    /// Speed of the node's cores as known before; 1 is the trained one.
    pub speed: f64,
    /// How many tasks; the part done of a running one counts as that part.
    pub tasks: f64,
    /// Time of a slot for each, in seconds of a core of its own: divided by the tasks that the core ran at once.
    pub mean_s: f64,
}

/// What finished tasks say.
#[derive(Debug, Clone, PartialEq)]
pub struct Refit {
    /// Tasks take so many times what the model says.
    pub factor: f64,
    /// Speed of each node.
    pub speeds: Vec<f64>,
}

/// Weighs what nodes have done against the model's `task_s`. Nodes that have done nothing keep their speed.
#[must_use]
pub fn refit(task_s: f64, nodes: &[Finished]) -> Refit {
    let ratio = |node: &Finished| {
        // Less than a task done in the time of several tasks tells more the longer it took.
        let most = MOST / node.tasks.clamp(f64::MIN_POSITIVE, 1.0);
        (node.mean_s * node.speed / task_s).clamp(1.0 / MOST, most)
    };
    let seen = |node: &&Finished| node.tasks > 0.0 && node.mean_s > 0.0;
    let (mut sum, mut count) = (BELIEVED, BELIEVED);
    for node in nodes.iter().filter(seen) {
        sum += node.tasks * ratio(node);
        count += node.tasks;
    }
    let factor = sum / count;
    let speed = |node: &Finished| {
        if !seen(&node) {
            return node.speed;
        }
        let slower = (BELIEVED + node.tasks * ratio(node) / factor) / (BELIEVED + node.tasks);
        node.speed / slower
    };
    Refit { factor, speeds: nodes.iter().map(speed).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_job_and_a_slow_node_are_told_apart() {
        let node = |speed, tasks, mean_s| Finished { speed, tasks, mean_s };
        // Everything takes 1.5 times as long: the job is slow, no node is.
        let slow = refit(30.0, &[node(1.0, 500.0, 45.0), node(2.0, 1_000.0, 22.5)]);
        assert!((slow.factor - 1.5).abs() < 0.01, "{slow:?}");
        assert!((slow.speeds[0] - 1.0).abs() < 0.01 && (slow.speeds[1] - 2.0).abs() < 0.01, "{slow:?}");
        // One of five takes twice as long.
        let all = [30.0, 30.0, 30.0, 30.0, 60.0].map(|mean_s| node(1.0, 500.0, mean_s));
        let one = refit(30.0, &all);
        assert!((one.factor / one.speeds[4] - 2.0).abs() < 0.05, "{one:?}");
        assert!((one.factor / one.speeds[0] - 1.0).abs() < 0.05, "{one:?}");
    }

    #[test]
    fn few_tasks_say_little() {
        let few = refit(30.0, &[Finished { speed: 1.0, tasks: 1.0, mean_s: 60.0 }]);
        assert!((few.factor - 12.0 / 11.0).abs() < 1e-9, "{few:?}");
        let none = refit(30.0, &[Finished { speed: 0.5, tasks: 0.0, mean_s: 0.0 }]);
        assert_eq!(none, Refit { factor: 1.0, speeds: vec![0.5] });
    }

    /// Four slots have a tenth of their first task done after 150 s, where a task should take 30 s: the time of 20 tasks for 0.4.
    #[test]
    fn running_tasks_that_take_too_long_count_before_one_has_finished() {
        let nodes = vec![Finished { speed: 1.0, tasks: 0.1, mean_s: 1_500.0 }; 4];
        let found = refit(30.0, &nodes);
        assert!((found.factor - (10.0 + 20.0) / 10.4).abs() < 1e-9, "{found:?}");
        // However long it was, an unfinished task counts for twenty.
        let longer = refit(30.0, &[Finished { speed: 1.0, tasks: 0.1, mean_s: 1e9 }]);
        assert!((longer.factor - (10.0 + 20.0) / 10.1).abs() < 1e-9, "{longer:?}");
    }
}
