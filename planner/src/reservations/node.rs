//! The nodes of a cloud as strategies see them. In: who has a node, its jobs, a notice. Out: what would be lost if it were taken. All of
//! [`super`] uses it.

use serde::{Deserialize, Serialize};

/// Who has a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Held {
    /// A cloud user.
    Leased,
    /// Nobody.
    Free,
    /// Jobs, or it is being set up for them.
    Filled,
    /// Nobody: its jobs were ended for a lease that is expected.
    Reserved,
    /// It is switched off or broken.
    Away,
}

/// A job on a node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Running {
    /// A number that no other has.
    pub job: u64,
    /// Cores.
    pub cores: u32,
    /// When it started here.
    pub started_s: f64,
    /// How long it is expected to run in all; `None` is not known.
    pub estimate_s: Option<f64>,
    /// Time between its checkpoints; `None` when it starts from its initial state again (CHISim, section 2).
    pub checkpoint_s: Option<f64>,
    /// How often it was preempted before.
    pub resubmissions: u32,
}

impl Running {
    /// Core seconds of work that are done and would have to be done again if it ended at `at_s`.
    #[must_use]
    pub fn lost_core_s(&self, at_s: f64) -> f64 {
        let ran_s = (at_s - self.started_s).max(0.0);
        let lost_s = match self.checkpoint_s {
            Some(every_s) if every_s > 0.0 => ran_s % every_s,
            _ => ran_s,
        };
        f64::from(self.cores) * lost_s
    }

    /// Time that it still needs at `now_s`; `None` without an estimate, 0 when it has run for longer than that.
    #[must_use]
    pub fn remaining_s(&self, now_s: f64) -> Option<f64> {
        self.estimate_s.map(|estimate_s| (self.started_s + estimate_s - now_s).max(0.0))
    }
}

/// Word to a node's jobs that it may be taken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Notice {
    /// When it was given.
    pub given_s: f64,
    /// When the node is expected to be taken at the earliest.
    pub wanted_s: f64,
    /// When at the latest.
    pub latest_s: f64,
    /// When the notice ends if it has not been.
    pub until_s: f64,
    /// The probability that it is taken by then.
    pub probability: f64,
}

/// A node.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Cores for jobs.
    pub cores: u32,
    /// Who has it.
    pub held: Held,
    /// When jobs got it.
    pub deployed_s: f64,
    /// When it is set up for jobs.
    pub ready_s: f64,
    /// The jobs on it.
    pub running: Vec<Running>,
    /// A notice that holds.
    pub notice: Option<Notice>,
}

impl Node {
    /// A node that nobody has.
    #[must_use]
    pub fn free(cores: u32) -> Self {
        Self { cores, held: Held::Free, deployed_s: 0.0, ready_s: 0.0, running: Vec::new(), notice: None }
    }

    /// Cores that jobs use.
    #[must_use]
    pub fn busy(&self) -> u32 {
        self.running.iter().map(|running| running.cores).sum()
    }

    /// Cores that a job could have at `now_s`.
    #[must_use]
    pub fn open(&self, now_s: f64) -> u32 {
        match self.held == Held::Filled && self.ready_s <= now_s {
            true => self.cores.saturating_sub(self.busy()),
            false => 0,
        }
    }

    /// Core seconds of work that would have to be done again if it were taken at `at_s`.
    #[must_use]
    pub fn lost_core_s(&self, at_s: f64) -> f64 {
        self.running.iter().map(|running| running.lost_core_s(at_s)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_work_by_hand() {
        let running = Running {
            job: 1,
            cores: 2,
            started_s: 100.0,
            estimate_s: Some(500.0),
            checkpoint_s: None,
            resubmissions: 0,
        };
        assert!((running.lost_core_s(400.0) - 600.0).abs() < 1e-9);
        assert!((Running { checkpoint_s: Some(200.0), ..running }.lost_core_s(400.0) - 200.0).abs() < 1e-9);
        assert_eq!(running.remaining_s(400.0), Some(200.0));
        assert_eq!(running.remaining_s(900.0), Some(0.0));
        assert!(running.lost_core_s(50.0).abs() < 1e-9, "before its start nothing is lost");
    }
}
