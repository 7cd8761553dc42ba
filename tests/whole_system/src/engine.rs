//! The simulated engine. In: actions of the core loop. Out: the same, to the simulation, which reports progress. Called
//! by [`crate::aggregator`].

use std::collections::BTreeMap;

use gleaner_aggregator::engine::{Engine, Job, Problems};
use gleaner_types::id::{HostId, JobId};
use gleaner_types::job::EngineAction;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// The name by which jobs ask for it.
pub const NAME: &str = "simulated";

/// The engine.
#[derive(Debug)]
pub struct SimulatedEngine {
    /// Takes what is asked.
    pub actions: mpsc::UnboundedSender<(JobId, EngineAction)>,
}

impl SimulatedEngine {
    fn pass_on(&self, job: &Job<'_>, action: EngineAction) {
        // A simulation that has ended wants nothing any more.
        _ = self.actions.send((job.spec.id.clone(), action));
    }
}

impl Engine for SimulatedEngine {
    fn check(&self, _: &Value, _: &mut Problems) {}

    fn set_slots(&mut self, job: &Job<'_>, slots: BTreeMap<HostId, u32>) {
        self.pass_on(job, EngineAction::SetSlots(slots));
    }

    fn cancel(&mut self, job: &Job<'_>) {
        self.pass_on(job, EngineAction::Cancel);
    }

    fn stop(&mut self) -> Vec<JoinHandle<()>> {
        Vec::new()
    }
}
