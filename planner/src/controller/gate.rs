//! The last gate: what the independent checker objects to is not done. In: outputs, and what the controller knows. Out: the
//! same outputs, each that breaks a rule replaced by an event that says so. Called at the end of every input.

use gleaner_plan_check::{self as check, View, Violation};
use gleaner_types::event::Event;

use super::interface::Output;

pub(super) fn verified(view: &impl View, outputs: Vec<Output>) -> Vec<Output> {
    let passed = |output: Output| match violation(view, &output) {
        None => output,
        Some(violation) => Output::Event(Event::PlanRejected { violation: violation.to_string() }),
    };
    outputs.into_iter().map(passed).collect()
}

fn violation(view: &impl View, output: &Output) -> Option<Violation> {
    let verdict = match output {
        Output::Command { host, command } => check::command(view, host, command),
        Output::Engine { job, action } => check::engine(view, job, action),
        Output::Event(Event::JobSized { decision }) => check::decision(decision),
        Output::AskResponseTime { .. } | Output::Event(_) => Ok(()),
    };
    verdict.err()
}
