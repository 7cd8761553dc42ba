//! Follows one job to its end. In: a job's name. Out: a progress bar on a terminal, plain lines elsewhere. Called by
//! `gleaner run` and the demo, which wait for a job; `ask` and `explain` use parts of it.

use std::io::IsTerminal;
use std::time::Duration;

use gleaner_api::{Client, JobDetail, Request, Response};
use gleaner_daemon::clock::Clock;
use gleaner_daemon::output::note;
use gleaner_planner::controller::HostView;
use gleaner_types::id::JobId;
use gleaner_types::job::{JobPhase, JobStatus};
use gleaner_types::time::Timestamp;
use indicatif::{ProgressBar, ProgressStyle};

use crate::format;

/// Time between two polls of the job.
pub(crate) const POLL_PERIOD: Duration = Duration::from_millis(500);

/// Plain lines are at least this far apart, unless something changed.
const LINE_PAUSE: Duration = Duration::from_secs(10);

/// Shows a job's progress.
#[derive(Debug)]
pub(crate) struct Display {
    bar: Option<ProgressBar>,
    clock: Clock,
    last_line: Option<(String, Timestamp)>,
    quiet: bool,
}

impl Display {
    /// A bar on a terminal, lines otherwise; nothing if `quiet`.
    pub(crate) fn new(quiet: bool) -> Self {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new(1_000);
            if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3} %  {msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self { bar, clock: Clock::start(), last_line: None, quiet }
    }

    pub(crate) fn show(&mut self, job: &JobStatus) {
        let now = self.clock.now();
        let permille = job.progress.as_ref().map_or(0.0, |p| p.fraction_done.value() * 1_000.0);
        let text = line(job, now);
        if let Some(bar) = &self.bar {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1000")]
            bar.set_position(permille as u64);
            bar.set_message(text);
        } else if !self.quiet {
            let key = format!("{} {}", job.phase.word(), job.volunteers);
            let due =
                self.last_line.as_ref().is_none_or(|(last_line, at)| *last_line != key || now.since(*at) >= LINE_PAUSE);
            if due {
                note(format_args!("{:>3.0} %  {text}", permille / 10.0));
                self.last_line = Some((key, now));
            }
        }
    }

    /// A line beside the progress.
    pub(crate) fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None if self.quiet => {}
            None => note(text),
        }
    }

    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn line(job: &JobStatus, now: Timestamp) -> String {
    if let JobPhase::Waiting { reason } = &job.phase {
        return format!("waiting: {}", format::clean(reason));
    }
    let mut parts = vec![job.phase.word().to_owned()];
    if let Some(p) = &job.progress {
        parts.push(format!("{}/{} tasks, {} running", p.tasks_done, p.tasks_total, p.tasks_running));
    }
    if let Some(estimate) = job.completion_estimate {
        parts.push(format!("done in {}", format::seconds(estimate.seconds_since(now))));
    }
    if let Some(deadline) = job.deadline {
        let left = deadline.seconds_since(now) - now.seconds_since(deadline);
        parts.push(format::deadline(left));
    }
    parts.push(job.cost.to_string());
    parts.join(", ")
}

/// Asks for a job.
pub(crate) async fn job(client: &Client, job: &JobId) -> anyhow::Result<JobDetail> {
    match client.call(&Request::Job { job: job.clone() }).await? {
        Response::Job(detail) => Ok(*detail),
        other => anyhow::bail!("the aggregator answers {other:?} to a question about a job"),
    }
}

/// All hosts; none where they cannot be asked for: what is said of a job is worth saying without them.
pub(crate) async fn hosts(client: &Client) -> Vec<HostView> {
    match client.call(&Request::Hosts).await {
        Ok(Response::Hosts(hosts)) => hosts,
        _ => Vec::new(),
    }
}

/// Waits for the signal to stop that a person or a service manager sends.
pub(crate) async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
