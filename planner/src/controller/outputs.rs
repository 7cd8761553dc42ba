//! What is to be done, in the order in which it was decided. In: commands, orders for engines, questions to sources and
//! events, from the owners of hosts, jobs and applications. Out: the list that leaves the controller.

use gleaner_types::command::Command;
use gleaner_types::event::Event;
use gleaner_types::id::{ApplicationId, HostId, JobId};
use gleaner_types::job::EngineAction;

use super::interface::Output;

/// Outputs of one input.
#[derive(Debug, Default)]
pub(super) struct Outputs(Vec<Output>);

impl Outputs {
    pub(super) fn command(&mut self, host: HostId, command: Command) {
        self.0.push(Output::Command { host, command });
    }

    pub(super) fn engine(&mut self, job: JobId, action: EngineAction) {
        self.0.push(Output::Engine { job, action });
    }

    pub(super) fn ask(&mut self, application: ApplicationId) {
        self.0.push(Output::AskResponseTime { application });
    }

    pub(super) fn event(&mut self, event: Event) {
        self.0.push(Output::Event(event));
    }

    pub(super) fn into_vec(self) -> Vec<Output> {
        self.0
    }
}
