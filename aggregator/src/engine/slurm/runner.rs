//! Runs one job: looks at its partition every two seconds, until its queue is empty. In: the hosts that the controller wants.
//! Out: progress, to the controller. An aggregator that ends gives users' arrays back what they had; tasks run on.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gleaner_types::error::chain;
use gleaner_types::event::Event;
use gleaner_types::id::{HostId, JobId};
use gleaner_types::job::EngineEnd;
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;

use super::options::{PERIOD, SlurmOptions};
use super::session::Session;
use super::tools::SlurmError;
use crate::engine::interface::EngineReport;
use crate::engine::runners::Orders;

/// Events about the same trouble are at least this far apart. Chosen.
const SAY_AGAIN: Duration = Duration::from_secs(600);

/// Runs one job.
#[derive(Debug)]
pub(super) struct SlurmRunner {
    pub(super) job: JobId,
    pub(super) options: SlurmOptions,
    pub(super) dedicated: Vec<HostId>,
    /// The job's own; records of partitions are beside it.
    pub(super) folder: PathBuf,
    pub(super) reports: mpsc::Sender<EngineReport>,
    pub(super) orders: watch::Receiver<Orders>,
}

impl SlurmRunner {
    /// Runs the job to its end, or until it is ordered to leave it.
    pub(super) async fn run(mut self) {
        let mut session = match Session::open(&self.job, self.options.clone(), &self.dedicated, &self.folder) {
            Ok(session) => session,
            Err(error) => {
                let end = EngineEnd::Broken { reason: chain(&error) };
                _ = self.reports.send(EngineReport::Ended { job: self.job.clone(), end, progress: None }).await;
                return;
            }
        };
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut said: Option<(String, Instant)> = None;
        loop {
            let orders = self.orders.borrow_and_update().clone();
            if orders.stopping {
                if let Err(error) = session.give_back().await {
                    tracing::warn!(job = %self.job, %error, "arrays keep their bounds until the aggregator is back");
                }
                return;
            }
            if orders.cancelled {
                match session.leave().await {
                    Ok(()) => return,
                    Err(error) => tracing::warn!(job = %self.job, %error, "Slurm does not know yet that a job is over"),
                }
            } else {
                let trouble = match session.look(&orders.slots, now_s()).await {
                    Ok(look) => {
                        session.said(&look.progress);
                        let (job, progress) = (self.job.clone(), look.progress);
                        let left = if look.is_over { session.leave().await } else { Ok(()) };
                        let is_over = look.is_over && left.is_ok();
                        let report = if is_over {
                            EngineReport::Ended { job, end: EngineEnd::Completed, progress: Some(progress) }
                        } else {
                            EngineReport::Progress { job, progress }
                        };
                        if self.reports.send(report).await.is_err() || is_over {
                            return;
                        }
                        look.trouble.or(left.err().map(|error| error.to_string()))
                    }
                    // The last bounds stay; Slurm goes on by itself.
                    Err(error) => Some(self.as_trouble(&error)),
                };
                self.say(trouble, &mut said).await;
            }
            tokio::select! {
                _ = ticks.tick() => {}
                changed = self.orders.changed() => if changed.is_err() { return },
            }
        }
    }

    fn as_trouble(&self, error: &SlurmError) -> String {
        tracing::warn!(job = %self.job, %error, "Slurm cannot be looked at");
        format!("Slurm cannot be looked at: {}", chain(error))
    }

    /// Tells operators of trouble, once and then now and then.
    async fn say(&self, trouble: Option<String>, said: &mut Option<(String, Instant)>) {
        let Some(reason) = trouble else {
            *said = None;
            return;
        };
        if said.as_ref().is_some_and(|(before, at)| *before == reason && at.elapsed() < SAY_AGAIN) {
            return;
        }
        *said = Some((reason.clone(), Instant::now()));
        let event = Event::JobWaiting { job: self.job.clone(), reason };
        _ = self.reports.send(EngineReport::Event(event)).await;
    }
}

/// Now, in seconds since 1970: Slurm's own times are by that clock.
fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
