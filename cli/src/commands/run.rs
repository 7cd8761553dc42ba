//! `gleaner run`. In: a task list. Out: the list run on this machine, each task's output in a file, and a summary.
//! Called by [`super`].

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use gleaner_api::{Client, JobDetail, Request, Response, SubmitJob};
use gleaner_daemon::clock::Clock;
use gleaner_daemon::output::note;
use gleaner_planner::controller::HostView;
use gleaner_types::event::EventStamp;
use gleaner_types::id::{HostId, JobId};
use gleaner_types::job::{Goal, JobPhase, JobStatus};
use gleaner_types::report::HostHarm;
use gleaner_types::text::counted;
use gleaner_types::time::Timestamp;
use serde_json::json;

use crate::args::{JobArgs, RunArgs};
use crate::documents::print;
use crate::exit::{End, goal_met};
use crate::held::HeldTime;
use crate::stack::{Stack, StackSettings, running_here};
use crate::states::Meaning;
use crate::watch::{self, Display};
use crate::{flags, format, harmed, tasks};

/// What a private pair's run leaves beside its output, so that it can be explained afterwards.
#[derive(Debug)]
pub(crate) struct Saved;

impl Saved {
    /// Folder below the output.
    pub(crate) const FOLDER: &'static str = ".gleaner";
    /// The job with its last decision.
    pub(crate) const JOB: &'static str = "job.json";
    /// The host with its last report.
    const HOST: &'static str = "host.json";

    /// The lines of the events of a run, as far as they were kept, in the order of their times.
    pub(crate) fn events(folder: &Path) -> Vec<String> {
        let folders = [folder.join(Self::FOLDER), folder.to_owned()].map(|folder| folder.join("events"));
        let files = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
        let texts = files.filter_map(|file| std::fs::read_to_string(file.path()).ok());
        let mut lines: Vec<String> =
            texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
        lines.sort_by_cached_key(|line| EventStamp::from_json_line(line).map_or(Timestamp(0), |stamp| stamp.at));
        lines
    }

    /// The host of a run, if it is among what was kept.
    pub(crate) fn host(folder: &Path) -> Option<HostView> {
        let files = [folder.join(Self::FOLDER), folder.to_owned()].map(|folder| folder.join(Self::HOST));
        let text = std::fs::read(files.into_iter().find(|file| file.exists())?).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

/// The request for a job. Tasks run where the command was given, with its environment's PATH and HOME.
pub(crate) fn submission(args: &JobArgs, tasks: Vec<String>, output: Option<&Path>) -> anyhow::Result<SubmitJob> {
    let here = std::env::current_dir().context("failed to find the current folder")?;
    let absolute = |path: &Path| here.join(path).display().to_string();
    let keep = |name: &str| Some((name.to_owned(), std::env::var(name).ok()?));
    Ok(SubmitJob {
        job: args.name.clone(),
        goal: args.goal(),
        prices: args.prices(),
        tasks,
        environment: ["PATH", "HOME", "LANG", "TMPDIR", "USER"].into_iter().filter_map(keep).collect(),
        working_dir: here.display().to_string(),
        output_dir: output.or(args.output.as_deref()).map(absolute),
        dedicated_slots: args.dedicated_slots,
        max_slots: args.slots,
        memory_per_slot: args.memory_per_task,
        max_attempts: args.attempts,
        task_timeout_s: args.task_timeout.map(|timeout| timeout.as_secs_f64()),
    })
}

pub(super) async fn run(args: &RunArgs, socket: &Path, json: bool) -> anyhow::Result<End> {
    let list = tasks::read(&args.job.file)?;
    let name = match &args.job.name {
        Some(name) => name.clone(),
        None => JobId::new(format!("run-{}", std::process::id()))?,
    };
    let mut output = args.job.output.clone().unwrap_or_else(|| PathBuf::from("gleaner-output").join(name.as_str()));
    let running = if args.private { None } else { running_here(socket).await };
    if running.is_some() && args.job.output.is_none() {
        output = unused(output);
    }
    let mut submit = submission(&args.job, list, Some(&output))?;
    submit.job = Some(name);
    let display = Display::new(json);
    if let Some((client, overview)) = running {
        display.say(&format!("using the aggregator on {} (process {})", socket.display(), overview.pid));
        let (detail, held) = follow(&client, submit, display, Some(&overview.local_host), None).await?;
        let harm = match client.call(&Request::Hosts).await {
            Ok(Response::Hosts(hosts)) => {
                hosts.into_iter().find(|view| view.host == overview.local_host).and_then(harm_of)
            }
            _ => None,
        };
        return conclude(&detail, harm.as_ref(), &held, &output, (false, json));
    }
    let settings = StackSettings { volunteer: args.volunteer, ..StackSettings::default() };
    display.say("starting a private aggregator and agent");
    let mut stack = Stack::start(&settings).await?;
    if let Ok(Some(view)) = stack.host().await {
        for weakness in &view.facts.levers.weaknesses {
            display.say(&format!("weaker protection: {weakness}"));
        }
    }
    let client = stack.client().await?;
    let followed = follow(&client, submit, display, None, Some(&mut stack)).await;
    let host = stack.host().await.ok().flatten();
    let saved = match &followed {
        Ok((detail, _)) => save(&stack, detail, host.as_ref(), &output),
        Err(_) => Ok(()),
    };
    let restored = stack.end(followed.is_ok()).await;
    let (detail, held) = followed?;
    if let Err(error) = saved {
        note(format_args!(
            "gleaner: the records for `gleaner explain` could not be kept: {}",
            gleaner_types::error::Chain(&*error)
        ));
    }
    let harm = host.and_then(harm_of);
    let end = conclude(&detail, harm.as_ref(), &held, &output, (true, json))?;
    if restored { Ok(end) } else { bail!("the machine could not be restored completely; see above") }
}

/// A folder that is not there yet: jobs of one name follow one another, and each keeps its outputs.
fn unused(folder: PathBuf) -> PathBuf {
    let numbered = |run: u32| {
        let mut next = folder.clone();
        next.as_mut_os_string().push(format!(".run-{run}"));
        next
    };
    if folder.exists() { (2..).map(numbered).find(|next| !next.exists()).unwrap_or(folder) } else { folder }
}

/// Time between two looks whether the guard holds the volunteer.
const LOOK_PERIOD: Duration = Duration::from_secs(2);
/// Hosts for which an answer is worth a look period: of a larger fleet, which are all in the answer, looks are rarer. Chosen.
const HOSTS_A_LOOK: usize = 50;

/// Submits and waits for the end, looking at the host that the tasks run on, the only one where it has no name. A signal cancels
/// the job.
async fn follow(
    client: &Client,
    submit: SubmitJob,
    mut display: Display,
    host: Option<&HostId>,
    mut stack: Option<&mut Stack>,
) -> anyhow::Result<(JobDetail, HeldTime)> {
    let answer = client.call(&Request::Submit(Box::new(submit))).await.map_err(flags::named)?;
    let Response::Submitted { job, .. } = answer else { bail!("unexpected answer") };
    let (clock, mut held, mut look) = (Clock::start(), HeldTime::default(), Instant::now());
    // One that comes while an answer is awaited counts too.
    let mut interrupted = std::pin::pin!(watch::interrupted());
    loop {
        tokio::select! {
            () = tokio::time::sleep(watch::POLL_PERIOD) => {}
            () = &mut interrupted => {
                interrupted.set(watch::interrupted());
                display.say("cancelling the job");
                // This run and no other: its name may be another job's by now.
                let run = JobId::of_run(job.name(), job.run()).unwrap_or_else(|_| job.clone());
                client.call(&Request::Cancel { job: run }).await?;
            }
        }
        if let Some(stack) = stack.as_deref_mut()
            && let Some(restarted) = stack.supervise()?
        {
            display.say(&restarted);
        }
        let detail = match watch::job(client, &job).await {
            Ok(detail) => detail,
            // Its daemons may be being started again; `supervise` gives up in the end.
            Err(_) if stack.is_some() => continue,
            Err(error) => return Err(error),
        };
        display.show(&detail.status);
        if detail.status.phase.is_final() {
            display.finish();
            return Ok((detail, held));
        }
        if Instant::now() < look {
            continue;
        }
        let Ok(Response::Hosts(hosts)) = client.call(&Request::Hosts).await else { continue };
        let rarer = u32::try_from(hosts.len() / HOSTS_A_LOOK).unwrap_or(u32::MAX).saturating_add(1);
        look = Instant::now() + LOOK_PERIOD.saturating_mul(rarer.min(100));
        if let Some(view) = hosts.iter().find(|view| host.is_none_or(|host| view.host == *host))
            && let Some(line) = held.look(view, clock.now())
        {
            display.say(&line);
        }
    }
}

/// Keeps the job's record, the events and the journal beside the output.
fn save(stack: &Stack, detail: &JobDetail, host: Option<&HostView>, output: &Path) -> anyhow::Result<()> {
    let folder = output.join(Saved::FOLDER);
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join(Saved::JOB), serde_json::to_vec_pretty(detail)?)?;
    if let Some(host) = host {
        std::fs::write(folder.join(Saved::HOST), serde_json::to_vec_pretty(host)?)?;
    }
    for kind in ["events", "journal"] {
        let (from, to) = (stack.folder().join("aggregator").join(kind), folder.join(kind));
        std::fs::create_dir_all(&to)?;
        for entry in std::fs::read_dir(from)? {
            let entry = entry?;
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

fn harm_of(host: HostView) -> Option<HostHarm> {
    Some(host.report?.harm)
}

fn conclude(
    detail: &JobDetail,
    harm: Option<&HostHarm>,
    held: &HeldTime,
    output: &Path,
    (private, json): (bool, bool),
) -> anyhow::Result<End> {
    let job = &detail.status;
    let met = goal_met(job);
    let failed = job.progress.as_ref().map_or(0, |progress| progress.tasks_failed);
    let end = match (&job.phase, met) {
        (JobPhase::Cancelled, _) => End::Failed,
        (JobPhase::Failed { .. }, _) if failed > 0 => End::TasksFailed,
        (JobPhase::Failed { .. }, _) => End::Failed,
        (_, Some(false)) => End::GoalMissed,
        _ => End::Good,
    };
    let elapsed_s = job.ended.map(|ended| ended.seconds_since(job.submitted));
    if json {
        let summary = json!({
            "job": job.spec.id, "phase": job.phase.word(), "goal_met": met, "elapsed_s": elapsed_s,
            "tasks": job.progress, "cost": job.cost, "harvested_core_s": job.harvested_core_s,
            "idle_core_s": job.idle_core_s,
            "decisions": job.decisions, "decision": detail.decision, "output": output,
            "harm": harm, "held_s": held.total_s(),
        });
        print(&summary.to_string())?;
        return Ok(end);
    }
    print(&format::job(job, None))?;
    let verdict = verdict(job, held);
    let meaning = match end {
        End::Good => Meaning::Good,
        End::GoalMissed | End::TasksFailed | End::Failed => Meaning::Bad,
    };
    print(&meaning.paint(&verdict))?;
    // Of a job that was late it is said with that.
    if !is_late(job) {
        held.summary().iter().try_for_each(|line| print(line))?;
    }
    // The job's own summary has it otherwise.
    if let Some(harm) = harm.filter(|_| job.harm.is_none()) {
        print(&harmed::harm(&harm.foreground))?;
    }
    let from = if private { format!(" --from {}", output.display()) } else { String::new() };
    print(&format!("why it ran as it did: gleaner explain {}{from}", job.spec.id))?;
    Ok(end)
}

/// How a run ended, in a line: what is done, whether its goal was met, and where not by how much and why.
fn verdict(job: &JobStatus, held: &HeldTime) -> String {
    let (done, failed, of) =
        job.progress.as_ref().map_or((0, 0, 0), |own| (own.tasks_done, own.tasks_failed, own.tasks_total));
    let tasks = counted(of, "task");
    match &job.phase {
        JobPhase::Completed => {
            let all = match of {
                0 => "it is done".to_owned(),
                1 => "the task is done".to_owned(),
                _ => format!("all {tasks} are done"),
            };
            format!("{all}{}", of_goal(job, held))
        }
        JobPhase::Failed { .. } if failed > 0 => {
            format!("{failed} of {tasks} failed after the last attempt, so the goal was not reached; {done} done")
        }
        JobPhase::Failed { .. } => format!("it failed, so the goal was not reached; {done} of {tasks} done"),
        phase => format!("{}; {done} of {tasks} done", phase.word()),
    }
}

/// All of it is done, after its deadline.
fn is_late(job: &JobStatus) -> bool {
    job.phase == JobPhase::Completed && matches!(job.spec.goal, Goal::Deadline { .. }) && goal_met(job) == Some(false)
}

/// How a job that is done stands to its goal.
fn of_goal(job: &JobStatus, held: &HeldTime) -> String {
    match (job.spec.goal, goal_met(job)) {
        (Goal::Deadline { .. }, _) => {
            let (Some(ended), Some(deadline)) = (job.ended, job.deadline) else { return String::new() };
            if !is_late(job) {
                return format!("; deadline met, {} early", format::seconds(deadline.seconds_since(ended)));
            }
            let why = held.summary().map(|held| format!(": {held}")).unwrap_or_default();
            format!(", {} late for the deadline{why}", format::seconds(ended.seconds_since(deadline)))
        }
        (Goal::Cost { budget: Some(budget) }, Some(false)) => {
            format!("; it cost {}, more than the budget of {budget}", job.cost)
        }
        (Goal::Cost { budget: Some(budget) }, _) => format!("; it cost {}, within the budget of {budget}", job.cost),
        (Goal::Cost { budget: None }, _) => ", as cheaply as possible".to_owned(),
        (Goal::Energy, _) => ", with as little energy as possible".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use gleaner_types::units::Dollars;

    use super::*;
    use crate::fixtures::{job, progress};

    fn ended(phase: JobPhase, failed: u32, ended_ms: u64) -> JobStatus {
        JobStatus { progress: Some(progress(failed)), ended: Some(Timestamp(ended_ms)), ..job("j", phase) }
    }

    #[test]
    fn the_last_line_says_what_is_done_and_by_how_much_it_is_late() {
        let none = HeldTime::default();
        // The deadline is 300 s after the submission.
        let said = |phase, failed, ended_ms| verdict(&ended(phase, failed, ended_ms), &none);
        assert_eq!(said(JobPhase::Completed, 0, 286_000), "all 10 tasks are done; deadline met, 14 s early");
        assert_eq!(said(JobPhase::Completed, 0, 312_000), "all 10 tasks are done, 12 s late for the deadline");
        assert_eq!(
            said(JobPhase::Failed { reason: String::new() }, 3, 100_000),
            "3 of 10 tasks failed after the last attempt, so the goal was not reached; 7 done"
        );
        assert_eq!(said(JobPhase::Cancelled, 0, 100_000), "cancelled; 10 of 10 tasks done");
        let mut cheap = ended(JobPhase::Completed, 0, 1);
        cheap.spec.goal = Goal::Cost { budget: Some(Dollars::clamped(0.5)) };
        cheap.cost = Dollars::clamped(0.75);
        let said = verdict(&cheap, &none);
        assert!(said.contains("all 10 tasks are done; it cost ") && said.contains("more than the budget of"), "{said}");
    }
}
