//! `gleaner demo`: everything on this machine in under three minutes. In: a seed. Out: a summary of measurements, good
//! or bad. A foreground measures its own slowdown, first alone and then beside a real job with a deadline.

mod busy;
mod load;
mod summary;
mod used;
mod words;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use gleaner_api::{Client, Request, Response, SubmitJob};
use gleaner_types::id::JobId;
use gleaner_types::job::{Goal, Prices};
use gleaner_types::text::counted;
use gleaner_types::units::Bytes;

use crate::args::DemoArgs;
use crate::documents::print;
use crate::exit::End;
use crate::foreground_load::{calibrate, cpus};
use crate::stack::{Stack, StackSettings};
use crate::watch::{self, Display};
use load::Load;
use summary::Summary;
use used::Used;
use words::Text;

/// Length of one replay of the foreground's trace: alone first, then again and again beside the job.
const REPLAY_S: u32 = 30;

/// CPU the job needs, in seconds of the whole machine. Chosen, as are the next two: the demo ends in time.
const JOB_MACHINE_S: f64 = 41.0;

/// What the package's configuration has.
const INSTALLED_PAUSE_SHARE: f64 = 0.03;

/// Deadline of the job. The dedicated slot alone could not keep it.
const DEADLINE_S: f64 = 75.0;

/// Part of the time in which the volunteer is held still. On a fast machine the job runs for half a minute, which is then
/// about twelve pauses; a figure of harm needs eight. Chosen: with more the deadline would be in danger.
const PAUSE_SHARE: f64 = 0.15;

/// After this long the demo gives up on the job.
const DEMO_TIMEOUT: Duration = Duration::from_secs(110);

/// Runs the demo.
pub(crate) async fn run(args: &DemoArgs, json: bool) -> anyhow::Result<End> {
    let display = Display::new(json);
    display.say(&format!(
        "Gleaner demo on {}, seed {}; this takes about two and a half minutes",
        counted(cpus(), "CPU"),
        args.seed
    ));
    display.say("1/4  starting an aggregator and an agent, as separate processes over QUIC");
    let settings = StackSettings {
        volunteer: args.volunteer,
        evaluation_interval_s: 5.0,
        forecast_history_s: 60.0,
        forecast_lookahead_s: 15.0,
        pause_share: PAUSE_SHARE,
    };
    let mut stack = Stack::start(&settings).await?;
    let outcome = tokio::select! {
        outcome = perform(args, &mut stack, display) => outcome,
        () = watch::interrupted() => Err(anyhow::anyhow!("interrupted")),
    };
    let restored = stack.end(outcome.is_ok()).await;
    let summary = outcome?;
    print(&if json { summary.json().to_string() } else { summary.text() })?;
    if !restored {
        bail!("the machine could not be restored completely; see above");
    }
    Ok(summary.end())
}

/// A folder that goes away with its owner.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> anyhow::Result<Self> {
        let folder = std::env::temp_dir().join(format!("gleaner-demo-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Text and word counts of the demo, of no further use; what cannot be removed does no harm.
        _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn perform(args: &DemoArgs, stack: &mut Stack, mut display: Display) -> anyhow::Result<Summary> {
    let Some(host) = stack.host().await? else { bail!("the agent is gone") };
    let levers = &host.facts.levers;
    display.say(&format!(
        "     protection: {}",
        match (levers.idle, levers.weight) {
            (true, true) => "cgroup in the idle class, CPU quota, freezer",
            (false, true) => "cgroup with the least weight, CPU quota, freezer",
            _ => "scheduling class and priority, stopping whole process groups",
        }
    ));
    for weakness in &levers.weaknesses {
        display.say(&format!("     weaker: {weakness}"));
    }

    display.say(&format!(
        "     harm is measured in pauses of the job, {:.0} % of the time (an installed agent takes {:.0} %)",
        PAUSE_SHARE * 100.0,
        INSTALLED_PAUSE_SHARE * 100.0
    ));
    let others = busy::measure(stack).await;
    if let Some(others) = others.filter(|others| others.is_much()) {
        display.say(&format!("     {others}: what follows is measured beside that"));
    }

    display.say("2/4  generating text, and measuring how fast this machine counts words");
    let scratch = Scratch::new()?;
    let (folder, seed) = (scratch.0.clone(), args.seed);
    let budget_s = JOB_MACHINE_S * cpus() as f64;
    let text = tokio::task::spawn_blocking(move || Text::generate(&folder, seed, budget_s)).await??;
    let rounds = tokio::task::spawn_blocking(calibrate).await?;

    display.say(&format!("3/4  the foreground alone, for {REPLAY_S} s: its own response times are the baseline"));
    let load = Load { seed: args.seed, rounds, folder: scratch.0.clone() };
    let alone = load.replay(REPLAY_S).await?;

    display.say(&format!(
        "4/4  the same foreground, and beside it {} word counts over {:.0} MB with a deadline of {DEADLINE_S:.0} s",
        text.tasks().len(),
        text.bytes() as f64 / 1e6
    ));
    let client = stack.client().await?;
    let job = submit(&client, &text).await?;
    let mut used = Used::default();
    let mut beside = load.start(REPLAY_S)?;
    let mut replays = Vec::new();
    let began = std::time::Instant::now();
    let detail = loop {
        tokio::time::sleep(watch::POLL_PERIOD).await;
        if let Some(done) = beside.finished()? {
            replays.push(done);
            beside = load.start(REPLAY_S)?;
        }
        if let Some(restarted) = stack.supervise()? {
            display.say(&restarted);
        }
        if let Ok(Some(view)) = stack.host().await {
            used.observe(&view);
        }
        let Ok(detail) = watch::job(&client, &job).await else { continue };
        display.show(&detail.status);
        if detail.status.phase.is_final() || began.elapsed() > DEMO_TIMEOUT {
            break detail;
        }
    };
    display.finish();
    drop(beside);
    let verified = text.verify()?;
    Ok(Summary {
        seed: args.seed,
        cpus: cpus(),
        weaknesses: levers.weaknesses.clone(),
        decisions: decisions(&client).await?,
        detail,
        deadline_s: DEADLINE_S,
        used,
        alone,
        beside: load::merged(replays),
        words: verified,
        others,
    })
}

async fn submit(client: &Client, text: &Text) -> anyhow::Result<JobId> {
    let submit = SubmitJob {
        job: Some(JobId::new("word-count")?),
        goal: Goal::Deadline { within_s: DEADLINE_S },
        prices: Prices::default(),
        tasks: text.tasks(),
        environment: std::env::var("PATH").map(|path| ("PATH".to_owned(), path)).into_iter().collect(),
        working_dir: text.folder().display().to_string(),
        output_dir: Some(text.output().display().to_string()),
        dedicated_slots: 1,
        max_slots: None,
        memory_per_slot: Bytes::from_mib(64),
        max_attempts: 3,
        task_timeout_s: Some(60.0),
    };
    match client.call(&Request::Submit(Box::new(submit))).await? {
        Response::Submitted { job, .. } => Ok(job),
        other => bail!("unexpected answer {other:?}"),
    }
}

/// The sizes the job was given, and why.
async fn decisions(client: &Client) -> anyhow::Result<Vec<gleaner_types::job::Decision>> {
    let mut decisions = Vec::new();
    let mut lines = client.events(None, false).await?;
    while let Some(line) = lines.next().await? {
        let record = gleaner_types::event::EventRecord::from_json_line(&line);
        if let Ok(gleaner_types::event::EventRecord {
            event: gleaner_types::event::Event::JobSized { decision }, ..
        }) = record
        {
            decisions.push(decision);
        }
    }
    Ok(decisions)
}
