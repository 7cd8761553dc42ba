//! Corrects the models while a job runs, by the times of its finished map tasks (ours; the paper fits before the job, §IV-C). In:
//! what the model expects of a task, and for each node its speed and its finished tasks. Out: how much longer tasks of this job
//! take everywhere, and the speed of each node. [`estimate`](super::estimate) calls it.
//!
//! All tasks of a job have equal input, so one factor on f is all that they tell. A node's own deviation from it is its speed. What was
//! believed before counts as [`BELIEVED`] tasks. f comes from whole stages, so it has the waits between tasks in it, and so must the times here.

/// How many finished tasks the training counts for. Chosen: the noise of so many tasks is about the error of a fit.
pub const BELIEVED: f64 = 10.0;
/// Least and greatest factor that is believed. Chosen.
const MOST: f64 = 20.0;

/// Finished tasks of a node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Finished {
    /// Speed of the node's cores as known before; 1 is the trained one.
    pub speed: f64,
    /// How many tasks.
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

/// Weighs what nodes have finished against the model's `task_s`. Nodes without finished tasks keep their speed.
#[must_use]
pub fn refit(task_s: f64, nodes: &[Finished]) -> Refit {
    let ratio = |node: &Finished| (node.mean_s * node.speed / task_s).clamp(1.0 / MOST, MOST);
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
}
