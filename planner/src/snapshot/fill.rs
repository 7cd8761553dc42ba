//! Filling the gaps between reservations as a question and an answer, for `gleaner plan fill`. In: leases, nodes, running and waiting jobs, a
//! policy. Out: what to start where, which nodes get notice, and which jobs are ended for which lease, by the code in [`crate::reservations`].

mod answer;
mod checks;
mod cloud;
mod csv;
mod question;

pub use self::answer::{FillAnswer, LeaseHosts, Noticed, Preempted, Started};
use self::cloud::Cloud;
pub use self::csv::{InvalidLeases, leases_of_csv};
pub use self::question::{
    FillNode, FillPolicy, FillQuestion, Lease, NoticeGiven, Record, RecordGap, RunningJob, WaitingJob,
};
use super::problems::Problems;

/// Answers a question.
///
/// # Errors
/// Every field that is wrong.
pub fn fill(question: &FillQuestion) -> Result<FillAnswer, Problems> {
    let mut cloud = Cloud::new(question)?;
    let mut answer = FillAnswer {
        version: super::VERSION,
        policy: question.policy,
        wanted: 0,
        unknown: None,
        leases: Vec::new(),
        preempt: Vec::new(),
        notices: Vec::new(),
        withdrawn: Vec::new(),
        start: Vec::new(),
    };
    cloud.leases_begin(&mut answer);
    cloud.give_notice(&mut answer);
    cloud.start(&mut answer);
    Ok(answer)
}

#[cfg(test)]
mod tests;
