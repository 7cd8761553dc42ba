//! Commands that ask a running aggregator: hosts, top, events, job. In: arguments. Out: a request, and its answer as a
//! table or lines. Called by [`super`].

use std::collections::{BTreeMap, VecDeque};
use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

use anyhow::bail;
use gleaner_api::{AuditRecord, Client, EventLines, Leadership, Overview, Request, Response, SubmitCluster, meant};
use gleaner_daemon::clock::Clock;
use gleaner_daemon::output::note;
use gleaner_planner::controller::HostView;
use gleaner_types::event::EventRecord;
use gleaner_types::id::HostId;
use gleaner_types::job::JobStatus;
use gleaner_types::text::{counted, harmless_json};
use gleaner_types::time::Timestamp;
use serde::Serialize;

use super::run::submission;
use crate::admission::Admission;
use crate::args::{HostCommand, JobCommand, Since};
use crate::columns::{EventLine, OrderLine};
use crate::documents::{print, print_over, read_document};
use crate::events::{self, Guard};
use crate::exit::End;
use crate::format::CpuUnit;
use crate::list::{ListArgs, or_none_passes};
use crate::{columns, flags, format, guests, held, tasks, watch};

pub(super) async fn hosts(socket: &Path, list: &ListArgs, json: bool, unit: CpuUnit) -> anyhow::Result<End> {
    let now = Clock::start().now();
    let list = list.over(columns::hosts(now))?;
    let client = Client::connect(socket).await?;
    let Response::Hosts(hosts) = client.call(&Request::Hosts).await? else { bail!("unexpected answer") };
    let of = hosts.len();
    let hosts = list.rows(hosts)?;
    if json {
        print(&serde_json::to_string_pretty(&hosts)?)?;
        return Ok(End::Good);
    }
    let Response::Overview(overview) = client.call(&Request::Overview).await? else { bail!("unexpected answer") };
    if let Some(hold) = &overview.all_held {
        print(&format!("{}\n", format::all_held(hold)))?;
    }
    print(&or_none_passes(format::hosts(&hosts, overview.all_held.as_deref(), now, unit), hosts.len(), of))?;
    if !overview.held_ahead.is_empty() {
        let names: Vec<&str> = overview.held_ahead.iter().map(HostId::as_str).collect();
        print(&format!("held before they have joined: {}", names.join(", ")))?;
    }
    Ok(End::Good)
}

pub(super) async fn guests(
    socket: &Path,
    host: Option<&HostId>,
    list: &ListArgs,
    json: bool,
    unit: CpuUnit,
) -> anyhow::Result<End> {
    let now = Clock::start().now();
    let list = list.over(columns::guests(now))?;
    let client = Client::connect(socket).await?;
    let Response::Hosts(hosts) = client.call(&Request::Hosts).await? else { bail!("unexpected answer") };
    let names = guests::names(&client).await?;
    if let Some(host) = host.filter(|wanted| !hosts.iter().any(|own| own.host == **wanted)) {
        let meant = meant(host.as_str(), hosts.iter().map(|own| own.host.as_str()));
        bail!("there is no host {host}{meant} (`gleaner hosts` lists them)");
    }
    let wanted = || hosts.iter().filter(|own| host.is_none_or(|host| own.host == *host));
    let all = guests::of_hosts(wanted(), &names);
    let of = all.len();
    let shown = list.rows(all)?;
    let mut remarks = guests::remarks(wanted(), &names, now);
    // Of all hosts they would bury the list.
    let one = hosts.iter().filter(|own| host == Some(&own.host)).flat_map(guests::weaknesses);
    remarks.extend(one);
    if json {
        print(&serde_json::to_string_pretty(&shown)?)?;
        remarks.iter().for_each(note);
    } else {
        print(&or_none_passes(guests::text(&shown, unit, now), shown.len(), of))?;
        remarks.iter().try_for_each(|remark| print(remark))?;
    }
    Ok(End::Good)
}

/// What `gleaner top --once --json` prints.
#[derive(Serialize)]
struct TopDocument<'a> {
    overview: &'a Overview,
    hosts: &'a [HostView],
    jobs: &'a [JobStatus],
}

/// Hosts and jobs. One that stands by knows of none.
async fn fleet(client: &Client, overview: &Overview) -> anyhow::Result<(Vec<HostView>, Vec<JobStatus>)> {
    if overview.leadership.as_ref().is_some_and(|leadership| !leadership.leads) {
        return Ok((Vec::new(), Vec::new()));
    }
    let (Response::Hosts(hosts), Response::Jobs(jobs)) =
        (client.call(&Request::Hosts).await?, client.call(&Request::Jobs).await?)
    else {
        bail!("unexpected answer");
    };
    Ok((hosts, jobs))
}

/// The same as `gleaner top`, once, as JSON.
pub(super) async fn top_as_json(socket: &Path) -> anyhow::Result<End> {
    let client = Client::connect(socket).await?;
    let Response::Overview(overview) = client.call(&Request::Overview).await? else { bail!("unexpected answer") };
    let (hosts, jobs) = fleet(&client, &overview).await?;
    print(&serde_json::to_string_pretty(&TopDocument { overview: &overview, hosts: &hosts, jobs: &jobs })?)?;
    Ok(End::Good)
}

pub(super) async fn top(socket: &Path, once: bool, unit: CpuUnit) -> anyhow::Result<End> {
    let client = Client::connect(socket).await?;
    let mut events = LastEvents::of(&client, !once).await?;
    loop {
        let clock = Clock::start();
        let Response::Overview(overview) = client.call(&Request::Overview).await? else { bail!("unexpected answer") };
        let mut text = headline(&overview);
        if overview.leadership.as_ref().is_none_or(|leadership| leadership.leads) {
            let (hosts, mut jobs) = fleet(&client, &overview).await?;
            jobs.truncate(10);
            let of_hosts = format::hosts(&hosts, overview.all_held.as_deref(), clock.now(), unit);
            text.push_str(&format!("\n\n{of_hosts}\n\n{}\n", format::jobs(&jobs, &hosts)));
        }
        for line in events.now().await? {
            text.push_str(&format!("\n{line}"));
        }
        if once {
            print(&text)?;
            return Ok(End::Good);
        }
        if std::io::stdout().is_terminal() {
            print_over(&text)?
        } else {
            print(&text)?
        }
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
            let (hosts, jobs) = (counted(hosts_connected, "host"), counted(jobs_active, "job"));
            text.push_str(&format!("{hosts} connected, {jobs} active"));
            if let Some(Leadership { name, epoch, .. }) = leading {
                text.push_str(&format!(", leads as {name}, epoch {}", epoch.unwrap_or_default()));
            }
        }
    }
    text.extend(overview.all_held.as_ref().map(|hold| format!("\n{}", format::all_held(hold))));
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
        let in_words = |line: &String| Some(events::event(&EventRecord::from_json_line(line).ok()?));
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

pub(super) async fn audit(socket: &Path, since: Option<Since>, list: &ListArgs, json: bool) -> anyhow::Result<End> {
    let list = list.over(columns::orders())?;
    let client = Client::connect(socket).await?;
    let mut lines = client.audit(since.map(moment)).await?;
    // An order has a line before it is done and one after; the last says most.
    let mut orders = BTreeMap::new();
    while let Some(line) = lines.next().await? {
        match serde_json::from_str::<AuditRecord>(&line) {
            Ok(order) => _ = orders.insert(order.id, OrderLine { order, line }),
            // One of a newer version.
            Err(_) => print(&harmless_json(&line))?,
        }
    }
    let of = orders.len();
    let orders = list.newest(orders.into_values().collect())?;
    if json {
        orders.iter().try_for_each(|own| print(&harmless_json(&own.line)))?;
    } else {
        print(&or_none_passes(format::audit(orders.iter().map(|own| &own.order)), orders.len(), of))?;
    }
    Ok(End::Good)
}

/// How `gleaner events` shows them.
#[derive(Debug, Clone, Copy)]
pub(super) struct EventsHow {
    pub(super) follow: bool,
    /// Every event of the guard.
    pub(super) details: bool,
    pub(super) json: bool,
}

/// Time between two looks whether a minute of the guard's events is over, and how late they may come.
const GUARD_PAUSE_MS: u64 = 5_000;

pub(super) async fn events(
    socket: &Path,
    since: Option<Since>,
    how: EventsHow,
    list: &ListArgs,
) -> anyhow::Result<End> {
    let needs_all = list.needs_all();
    let list = list.over(columns::events())?;
    let client = Client::connect(socket).await?;
    let mut lines = client.events(since.map(moment), how.follow).await?;
    let clock = Clock::start();
    let mut guard = (!how.details && !how.json).then(Guard::default);
    let mut all = Vec::new();
    let show = |line: &EventLine| match EventRecord::from_json_line(&line.line) {
        Ok(record) if !how.json => print(&events::line(line, &record)),
        _ => print(&line.line),
    };
    loop {
        let line = tokio::select! {
            line = lines.next() => line?,
            () = watch::interrupted() => None,
            () = tokio::time::sleep(Duration::from_millis(GUARD_PAUSE_MS)), if how.follow => {
                let late = Timestamp(clock.now().0.saturating_sub(GUARD_PAUSE_MS));
                guard.iter_mut().flat_map(|guard| guard.over(late)).try_for_each(|line| show(&line))?;
                continue;
            }
        };
        let Some(line) = line else { break };
        match EventLine::parse(line) {
            Ok(line) if !list.passes(&line) => {}
            Ok(line) => {
                let ready = match &mut guard {
                    Some(guard) => guard.take(line),
                    None => vec![line],
                };
                if needs_all {
                    all.extend(ready);
                } else {
                    ready.iter().try_for_each(show)?;
                }
            }
            Err(line) => print(&line)?,
        }
    }
    all.extend(guard.iter_mut().flat_map(|guard| guard.over(Timestamp(u64::MAX))));
    if needs_all {
        all = list.newest(all)?;
    }
    all.iter().try_for_each(show)?;
    Ok(End::Good)
}

pub(super) async fn job(socket: &Path, command: JobCommand, json: bool) -> anyhow::Result<End> {
    let client = Client::connect(socket).await?;
    match command {
        JobCommand::Submit(args) => {
            let submit = submission(&args, tasks::read(&args.file)?, None)?;
            let answer = client.call(&Request::Submit(Box::new(submit))).await.map_err(flags::named)?;
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
        JobCommand::List { all, list } => {
            let list = list.over(columns::jobs())?;
            let Response::Jobs(mut jobs) = client.call(&Request::Jobs).await? else { bail!("unexpected answer") };
            if !all {
                // They come newest first.
                let mut names = std::collections::BTreeSet::new();
                jobs.retain(|job| names.insert(job.spec.id.name().to_owned()));
            }
            let of = jobs.len();
            let jobs = list.rows(jobs)?;
            if json {
                print(&serde_json::to_string_pretty(&jobs)?)?;
            } else {
                let go_on = jobs.iter().any(|job| !job.phase.is_final());
                let hosts = if go_on { watch::hosts(&client).await } else { Vec::new() };
                print(&or_none_passes(format::jobs(&jobs, &hosts), jobs.len(), of))?;
            }
        }
        JobCommand::Show { job } => {
            let detail = watch::job(&client, &job).await?;
            if json {
                print(&serde_json::to_string_pretty(&detail)?)?;
            } else {
                let status = &detail.status;
                let hosts = if status.phase.is_final() { Vec::new() } else { watch::hosts(&client).await };
                print(&format::job(status, held::of_job(&hosts, status).as_deref()))?;
            }
        }
        JobCommand::Cancel { job } => {
            let answer = client.call(&Request::Cancel { job }).await?;
            let Response::Cancelled { job, user } = answer else { bail!("unexpected answer") };
            let by = user.as_ref().map_or_else(String::new, |user| format!(", submitted by {user},"));
            let line = format!("job {job}{by} is cancelled");
            print(&if json { serde_json::json!({ "job": job, "user": user }).to_string() } else { line })?;
        }
    }
    Ok(End::Good)
}

pub(super) async fn host(socket: &Path, command: HostCommand, json: bool) -> anyhow::Result<End> {
    let client = Client::connect(socket).await?;
    match command {
        HostCommand::Hold { host: Some(host), time, unknown, .. } => {
            let for_s = time.map(|time| time.as_secs_f64());
            let request = Request::Hold { host: host.clone(), for_s, unknown };
            let Response::Held { until } = client.call(&request).await.map_err(flags::named)? else {
                bail!("unexpected answer")
            };
            match json {
                true => print(&serde_json::json!({ "host": host, "held_until": until }).to_string())?,
                false => print(&format!("{host} is {}", until.in_words(None)))?,
            }
        }
        HostCommand::Hold { host: None, time, .. } => {
            let request = Request::HoldAll { for_s: time.map(|time| time.as_secs_f64()) };
            let Response::Held { until } = client.call(&request).await.map_err(flags::named)? else {
                bail!("unexpected answer")
            };
            match json {
                true => print(&serde_json::json!({ "all": true, "held_until": until }).to_string())?,
                false => print(&format!("all hosts are {}", until.in_words(None)))?,
            }
        }
        HostCommand::Release { host: Some(host), .. } => {
            client.call(&Request::Release { host: host.clone() }).await?;
            match json {
                true => print(&serde_json::json!({ "host": host, "held_until": null }).to_string())?,
                false => print(&format!("{host} is released"))?,
            }
        }
        HostCommand::Release { host: None, .. } => {
            client.call(&Request::ReleaseAll).await?;
            match json {
                true => print(&serde_json::json!({ "all": true, "held_until": null }).to_string())?,
                false => print("all hosts are released, but for those that are held by name")?,
            }
        }
        HostCommand::Remove { host } => {
            client.call(&Request::RemoveHost { host: host.clone() }).await?;
            match json {
                true => print(&serde_json::json!({ "host": host, "removed": true }).to_string())?,
                false => print(&format!("{host} is removed; it is listed again if its agent joins again"))?,
            }
        }
        HostCommand::Invite { host, time, addresses } => {
            let request = Request::Invite { host: host.clone(), for_s: time.as_secs_f64(), addresses };
            let Response::Invited(invited) = client.call(&request).await.map_err(flags::named)? else {
                bail!("unexpected answer")
            };
            if json {
                print(&serde_json::to_string(&invited)?)?;
            } else {
                // The token alone on standard output, so that it can be piped to where it is needed.
                note(format_args!(
                    "host {host} may join once until {}; on it, run `gleaner-agent join -` and give it this line:",
                    invited.expires
                ));
                if invited.replaced {
                    note("its older invitation serves no more");
                }
                print(invited.token.as_str())?;
            }
        }
        HostCommand::Invitations { list } => {
            let now = Clock::start().now();
            let list = list.over(columns::admissions(now))?;
            let answer = client.call(&Request::Invitations).await?;
            let Response::Invitations { invitations, revocations } = answer else { bail!("unexpected answer") };
            let of = invitations.len() + revocations.len();
            let revocations = revocations.into_iter().map(Admission::Revoked);
            let rows = list.rows(invitations.into_iter().map(Admission::Invited).chain(revocations).collect())?;
            if !json {
                print(&or_none_passes(format::admissions(&rows, now), rows.len(), of))?;
                return Ok(End::Good);
            }
            let (mut invitations, mut revocations) = (Vec::new(), Vec::new());
            for row in rows {
                match row {
                    Admission::Invited(one) => invitations.push(one),
                    Admission::Revoked(one) => revocations.push(one),
                }
            }
            let document = serde_json::json!({ "invitations": invitations, "revocations": revocations });
            print(&serde_json::to_string_pretty(&document)?)?;
        }
        HostCommand::Uninvite { host } => {
            client.call(&Request::Uninvite { host: host.clone() }).await?;
            match json {
                true => print(&serde_json::json!({ "host": host }).to_string())?,
                false => print(&format!("the invitation of {host} is withdrawn"))?,
            }
        }
        HostCommand::Revoke { host, unknown } => {
            let answer = client.call(&Request::Revoke { host: host.clone(), unknown }).await?;
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
