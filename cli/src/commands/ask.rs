//! Commands that ask a running aggregator: hosts, top, events, job. In: arguments. Out: a request, and its answer as a
//! table or lines. Called by [`super`].

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use anyhow::bail;
use gleaner_api::{AuditRecord, Client, EventLines, Leadership, Overview, Request, Response, SubmitCluster};
use gleaner_daemon::clock::Clock;
use gleaner_types::event::EventRecord;
use gleaner_types::text::harmless_json;
use gleaner_types::time::Timestamp;

use super::run::submission;
use crate::args::{HostCommand, JobCommand, Since};
use crate::documents::{print, read_document};
use crate::exit::End;
use crate::{format, tasks, watch};

pub(super) async fn hosts(socket: &Path, json: bool) -> anyhow::Result<End> {
    let client = Client::connect(socket).await?;
    let Response::Hosts(hosts) = client.call(&Request::Hosts).await? else { bail!("unexpected answer") };
    let text = match json {
        true => serde_json::to_string_pretty(&hosts)?,
        false => format::hosts(&hosts, Clock::start().now().0),
    };
    print(&text)?;
    Ok(End::Good)
}

pub(super) async fn top(socket: &Path, once: bool) -> anyhow::Result<End> {
    let client = Client::connect(socket).await?;
    let mut events = LastEvents::of(&client, !once).await?;
    loop {
        let clock = Clock::start();
        let Response::Overview(overview) = client.call(&Request::Overview).await? else { bail!("unexpected answer") };
        let mut text = headline(&overview);
        // One that stands by knows of no hosts and jobs.
        if overview.leadership.as_ref().is_none_or(|leadership| leadership.leads) {
            let (Response::Hosts(hosts), Response::Jobs(mut jobs)) =
                (client.call(&Request::Hosts).await?, client.call(&Request::Jobs).await?)
            else {
                bail!("unexpected answer");
            };
            jobs.truncate(10);
            text.push_str(&format!("\n\n{}\n\n{}\n", format::hosts(&hosts, clock.now().0), format::jobs(&jobs)));
        }
        for line in events.now().await? {
            text.push_str(&format!("\n{line}"));
        }
        if once {
            print(&text)?;
            return Ok(End::Good);
        }
        // Home, the text with each line's old rest erased, then everything below erased: no flicker.
        let lines: Vec<String> = text.lines().map(|line| format!("{line}\x1b[K")).collect();
        print(&format!("\x1b[H{}\x1b[J", lines.join("\n")))?;
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
            () = watch::interrupted() => return Ok(End::Good),
        }
    }
}

/// The aggregator in a line, and its troubles.
fn headline(overview: &Overview) -> String {
    let Overview { software, local_host, now, hosts_connected, jobs_active, .. } = overview;
    let mut text = format!("gleaner {software} on {local_host}  {now}  ");
    match &overview.leadership {
        Some(Leadership { name, leads: false, leader, .. }) => {
            let leads = leader.as_ref().map_or("who leads is not known".to_owned(), |leader| format!("{leader} leads"));
            text.push_str(&format!("stands by as {name}; {leads}"));
        }
        leading => {
            text.push_str(&format!("{hosts_connected} hosts connected, {jobs_active} jobs active"));
            if let Some(Leadership { name, epoch, .. }) = leading {
                text.push_str(&format!(", leads as {name}, epoch {}", epoch.unwrap_or_default()));
            }
        }
    }
    let troubles = overview.event_log_error.iter().chain(&overview.state_error);
    let troubles: Vec<&String> = troubles.chain(overview.leadership.iter().flat_map(|one| &one.error)).collect();
    for (index, error) in troubles.iter().enumerate() {
        if !troubles[..index].contains(error) {
            text.push_str(&format!("\nTROUBLE: {}", format::clean(error)));
        }
    }
    text
}

/// How far back events are shown that happened before.
const HISTORY_MS: u64 = 900_000;
/// Most events shown.
const MOST_EVENTS: usize = 8;

/// Most lines taken before the screen is drawn again: a log that never rests must not hold it up.
const MOST_AT_ONCE: usize = 100_000;

/// The last events, from one stream: to ask anew every second would have the aggregator search its log every second.
struct LastEvents {
    stream: EventLines,
    follow: bool,
    lines: VecDeque<String>,
}

impl LastEvents {
    async fn of(client: &Client, follow: bool) -> anyhow::Result<Self> {
        let since = Timestamp(Clock::start().now().0.saturating_sub(HISTORY_MS));
        Ok(Self { stream: client.events(Some(since), follow).await?, follow, lines: VecDeque::new() })
    }

    /// Takes what has come, and gives the last of it in words.
    async fn now(&mut self) -> anyhow::Result<Vec<String>> {
        // A stream that goes on says no end: then what is there is what comes without a wait.
        let quiet = if self.follow { Duration::from_millis(50) } else { Duration::MAX };
        for _ in 0..MOST_AT_ONCE {
            let Ok(line) = tokio::time::timeout(quiet, self.stream.next()).await else { break };
            let Some(line) = line? else { break };
            self.lines.push_back(line);
            if self.lines.len() > MOST_EVENTS {
                self.lines.pop_front();
            }
        }
        let in_words = |line: &String| Some(format::event(&EventRecord::from_json_line(line).ok()?));
        Ok(self.lines.iter().filter_map(in_words).collect())
    }
}

fn moment(since: Since) -> Timestamp {
    match since {
        Since::At(at) => Timestamp(at),
        Since::Ago(ago) => {
            Timestamp(Clock::start().now().0.saturating_sub(u64::try_from(ago.as_millis()).unwrap_or(u64::MAX)))
        }
    }
}

pub(super) async fn audit(socket: &Path, since: Option<Since>, json: bool) -> anyhow::Result<End> {
    let client = Client::connect(socket).await?;
    let mut lines = client.audit(since.map(moment)).await?;
    // An order has a line before it is done and one after; the last says most.
    let mut orders = std::collections::BTreeMap::new();
    while let Some(line) = lines.next().await? {
        match serde_json::from_str::<AuditRecord>(&line) {
            Ok(record) if !json => _ = orders.insert(record.id, record),
            // One of a newer version too.
            _ => print(&harmless_json(&line))?,
        }
    }
    if !json {
        print(&format::audit(orders.values()))?;
    }
    Ok(End::Good)
}

pub(super) async fn events(socket: &Path, since: Option<Since>, follow: bool, json: bool) -> anyhow::Result<End> {
    let client = Client::connect(socket).await?;
    let mut lines = client.events(since.map(moment), follow).await?;
    loop {
        let line = tokio::select! {
            line = lines.next() => line?,
            () = watch::interrupted() => None,
        };
        let Some(line) = line else { return Ok(End::Good) };
        match EventRecord::from_json_line(&line) {
            Ok(record) if !json => print(&format::event(&record))?,
            _ => print(&line)?,
        }
    }
}

pub(super) async fn job(socket: &Path, command: JobCommand, json: bool) -> anyhow::Result<End> {
    let client = Client::connect(socket).await?;
    match command {
        JobCommand::Submit(args) => {
            let submit = submission(&args, tasks::read(&args.file)?, None)?;
            let answer = client.call(&Request::Submit(Box::new(submit))).await?;
            let Response::Submitted { job, output_dir } = answer else { bail!("unexpected answer") };
            match json {
                true => print(&serde_json::json!({ "job": job, "output_dir": output_dir }).to_string())?,
                false => print(&format!("{job} is submitted; output goes to {}", format::clean(&output_dir)))?,
            }
        }
        JobCommand::SubmitCluster { file } => {
            let submit: SubmitCluster = read_document(&file)?;
            let answer = client.call(&Request::SubmitCluster(Box::new(submit))).await?;
            let Response::Submitted { job, .. } = answer else { bail!("unexpected answer") };
            let line = format!("{job} is submitted; follow it with `gleaner explain {job}`");
            print(&if json { serde_json::json!({ "job": job }).to_string() } else { line })?;
        }
        JobCommand::List => {
            let Response::Jobs(jobs) = client.call(&Request::Jobs).await? else { bail!("unexpected answer") };
            print(&if json { serde_json::to_string_pretty(&jobs)? } else { format::jobs(&jobs) })?;
        }
        JobCommand::Show { job } => {
            let detail = watch::job(&client, &job).await?;
            print(&if json { serde_json::to_string_pretty(&detail)? } else { format::job(&detail.status) })?;
        }
        JobCommand::Cancel { job } => {
            client.call(&Request::Cancel { job: job.clone() }).await?;
            print(&format!("{job} is cancelled"))?;
        }
    }
    Ok(End::Good)
}

pub(super) async fn host(socket: &Path, command: HostCommand, json: bool) -> anyhow::Result<End> {
    let client = Client::connect(socket).await?;
    match command {
        HostCommand::Hold { host, time } => {
            let request = Request::Hold { host: host.clone(), for_s: time.as_secs_f64() };
            let Response::Held { until } = client.call(&request).await? else { bail!("unexpected answer") };
            match json {
                true => print(&serde_json::json!({ "host": host, "held_until": until }).to_string())?,
                false => print(&format!("{host} is left alone until {until}"))?,
            }
        }
        HostCommand::Release { host } => {
            client.call(&Request::Release { host: host.clone() }).await?;
            match json {
                true => print(&serde_json::json!({ "host": host, "held_until": null }).to_string())?,
                false => print(&format!("hold on {host} lifted"))?,
            }
        }
        HostCommand::Invite { host, time, addresses } => {
            let request = Request::Invite { host: host.clone(), for_s: time.as_secs_f64(), addresses };
            let Response::Invited(invited) = client.call(&request).await? else { bail!("unexpected answer") };
            if json {
                print(&serde_json::to_string(&invited)?)?;
            } else {
                // The token alone on standard output, so that it can be piped to where it is needed.
                eprintln!(
                    "host {host} may join once until {}; on it, run `gleaner-agent join -` and give it this line:",
                    invited.expires
                );
                if invited.replaced {
                    eprintln!("its older invitation serves no more");
                }
                print(invited.token.as_str())?;
            }
        }
        HostCommand::Invitations => {
            let answer = client.call(&Request::Invitations).await?;
            let Response::Invitations { invitations, revocations } = answer else { bail!("unexpected answer") };
            match json {
                true => print(&serde_json::to_string_pretty(
                    &serde_json::json!({ "invitations": invitations, "revocations": revocations }),
                )?)?,
                false => print(&format::invitations(&invitations, &revocations))?,
            }
        }
        HostCommand::Uninvite { host } => {
            client.call(&Request::Uninvite { host: host.clone() }).await?;
            match json {
                true => print(&serde_json::json!({ "host": host }).to_string())?,
                false => print(&format!("the invitation of {host} is withdrawn"))?,
            }
        }
        HostCommand::Revoke { host } => {
            let answer = client.call(&Request::Revoke { host: host.clone() }).await?;
            let Response::Revoked { through, was_connected } = answer else { bail!("unexpected answer") };
            let ended = if was_connected { "; its connection is ended" } else { "; it was not connected" };
            match json {
                true => print(
                    &serde_json::json!({ "host": host, "through": through, "was_connected": was_connected })
                        .to_string(),
                )?,
                false => print(&format!("certificates of {host} issued until {through} count no more{ended}"))?,
            }
        }
    }
    Ok(End::Good)
}
