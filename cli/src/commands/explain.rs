//! `gleaner explain`. In: a job or an application. Out: the last decision about it, what it has of hosts that jobs share, and
//! the harm on its hosts, as text or JSON. Called by [`super`].

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context;
use gleaner_api::{Client, ClientError, ErrorCode, JobDetail, Request, Response, meant};
use gleaner_planner::controller::HostView;
use gleaner_types::application::{ApplicationSpec, ApplicationStatus};
use gleaner_types::id::{HostId, JobId};
use gleaner_types::job::{JobPhase, JobStatus, PoolShare, ReservedNode};
use gleaner_types::report::HostHarm;
use serde::Serialize;

use super::run::Saved;
use crate::documents::print;
use crate::exit::End;
use crate::failures::{FailedTask, FirstFailures};
use crate::format::CpuUnit;
use crate::{failures, format, harmed, held, reserved, watch};

pub(super) async fn explain(
    socket: &Path,
    name: &str,
    from: Option<&Path>,
    json: bool,
    unit: CpuUnit,
) -> anyhow::Result<End> {
    if from.is_none()
        && let Ok(application) = name.parse()
    {
        let client = Client::connect(socket).await?;
        let answer = client.call(&Request::Application { application }).await;
        if let Ok(Response::Application(status)) = answer {
            return application_decision(&client, &status, json).await;
        }
    }
    let job: JobId = name.parse()?;
    let (detail, hosts, first_failed) = match from {
        Some(folder) => {
            let detail = saved(folder, &job)?;
            let first_failed = saved_failures(folder, &detail.status);
            (detail, Saved::host(folder).into_iter().collect(), first_failed)
        }
        None => {
            let client = Client::connect(socket).await?;
            let detail = match watch::job(&client, &job).await {
                Ok(detail) => detail,
                Err(error) => return Err(nobody(&client, &job, error).await),
            };
            let hosts = of_job(watch::hosts(&client).await, &detail.status);
            let first_failed = first_failures(&client, &detail.status).await;
            (detail, hosts, first_failed)
        }
    };
    let status = &detail.status;
    let Some(decision) = &detail.decision else {
        let failed = failures::in_words(status, &first_failed).map(|failed| format!("\n{failed}")).unwrap_or_default();
        let about = format::job(status, held::of_hosts(hosts.iter()).as_deref()) + &failed;
        return undecided(&about, json, status.phase.is_final());
    };
    let about = AboutJob { status, first_failed: &first_failed };
    show(decision, |own| crate::decision::decision(own, unit), &hosts, Some(&about), json)?;
    Ok(End::Good)
}

/// What there is to say of a job or application about which nothing was decided. That is no decision, and no JSON.
fn undecided(about: &str, json: bool, is_over: bool) -> anyhow::Result<End> {
    let none = match is_over {
        true => "it ended before its size was decided for the first time",
        false => "no decision has been taken about it yet",
    };
    anyhow::ensure!(!json, none);
    print(&format!("{about}\n{none}"))?;
    Ok(if is_over { End::Good } else { End::Failed })
}

/// What is shown beside the decision about a job.
struct AboutJob<'a> {
    status: &'a JobStatus,
    first_failed: &'a [FailedTask],
}

impl AboutJob<'_> {
    /// Nodes that users' leases have or will have, where the job fills the gaps between them.
    fn leases(&self) -> &[ReservedNode] {
        self.status.progress.as_ref().map_or(&[], |progress| &progress.leases)
    }
}

/// The first tasks of a job that failed, by the aggregator's event log. An explanation without them is still one.
async fn first_failures(client: &Client, job: &JobStatus) -> Vec<FailedTask> {
    let Some(mut first) = FirstFailures::of(job) else { return Vec::new() };
    if let Ok(mut lines) = client.events(Some(job.submitted), false).await {
        while let Ok(Some(line)) = lines.next().await
            && first.take(&line)
        {}
    }
    first.found()
}

/// The same by the events that `gleaner run` left.
fn saved_failures(folder: &Path, job: &JobStatus) -> Vec<FailedTask> {
    let Some(mut first) = FirstFailures::of(job) else { return Vec::new() };
    _ = Saved::events(folder).iter().all(|line| first.take(line));
    first.found()
}

/// What is neither a job nor an application.
async fn nobody(client: &Client, name: &JobId, error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref::<ClientError>() {
        Some(ClientError::Refused(refusal)) if refusal.code == ErrorCode::NotFound => {
            // The nearest of both. An answer that does not come names none.
            let jobs = match client.call(&Request::Jobs).await {
                Ok(Response::Jobs(jobs)) => jobs,
                _ => Vec::new(),
            };
            let applications = match client.call(&Request::Applications).await {
                Ok(Response::Applications(applications)) => applications,
                _ => Vec::new(),
            };
            let of_jobs = jobs.iter().map(|job| job.spec.id.as_str());
            let meant = meant(name.as_str(), of_jobs.chain(applications.iter().map(|own| own.spec.name.as_str())));
            anyhow::anyhow!(
                "there is no job and no application {name}{meant} (`gleaner job list` and `gleaner app list` list them)"
            )
        }
        _ => error,
    }
}

async fn application_decision(client: &Client, status: &ApplicationStatus, json: bool) -> anyhow::Result<End> {
    let Some(decision) = &status.decision else {
        return undecided(&format::application(status), json, false);
    };
    let hosts = of_application(watch::hosts(client).await, &status.spec);
    show(decision, format::balance, &hosts, None, json)?;
    Ok(End::Good)
}

/// The hosts whose volunteers work for a job now.
fn of_job(hosts: Vec<HostView>, job: &JobStatus) -> Vec<HostView> {
    hosts.into_iter().filter(|view| held::works_for(view, job)).collect()
}

/// The hosts that an application's tiers are on.
fn of_application(hosts: Vec<HostView>, spec: &ApplicationSpec) -> Vec<HostView> {
    let own: BTreeSet<&HostId> = spec.tiers.iter().map(|tier| &tier.host).collect();
    hosts.into_iter().filter(|host| own.contains(&host.host)).collect()
}

/// A decision as JSON: itself, and beside it a job's share, failed tasks and leases, and the harm on its hosts.
#[derive(Serialize)]
struct Explained<'a, D> {
    #[serde(flatten)]
    decision: &'a D,
    #[serde(skip_serializing_if = "Option::is_none")]
    share: Option<&'a PoolShare>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    first_failed: &'a [FailedTask],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    leases: &'a [ReservedNode],
    harm: Vec<HarmOn<'a>>,
}

#[derive(Serialize)]
struct HarmOn<'a> {
    host: &'a HostId,
    #[serde(flatten)]
    harm: &'a HostHarm,
    /// Why the guard holds its volunteer now, although a job has it.
    volunteer_held: Option<String>,
}

fn as_json<D: Serialize>(decision: &D, hosts: &[HostView], job: Option<&AboutJob<'_>>) -> serde_json::Result<String> {
    let harm = hosts.iter().filter_map(|view| {
        let harm = &view.report.as_ref()?.harm;
        Some(HarmOn { host: &view.host, harm, volunteer_held: held::by_guard(view) })
    });
    let share = job.and_then(|job| job.status.share.as_ref());
    let first_failed = job.map_or(&[][..], |job| job.first_failed);
    let leases = job.map_or(&[][..], AboutJob::leases);
    serde_json::to_string_pretty(&Explained { decision, share, first_failed, leases, harm: harm.collect() })
}

fn as_text<D>(decision: &D, words: impl Fn(&D) -> String, hosts: &[HostView], job: Option<&AboutJob<'_>>) -> String {
    let ended = job.and_then(|job| match &job.status.phase {
        JobPhase::Failed { reason } => {
            Some(format!("job {} has failed: {}", job.status.spec.id, format::clean(reason)))
        }
        _ => None,
    });
    let failed = job.and_then(|job| failures::in_words(job.status, job.first_failed));
    let share = job.and_then(|job| {
        let share = job.status.share.as_ref()?;
        Some(format!("share now: {}", format::pool_share(share, &job.status.spec.workers)))
    });
    let leases = job.map_or(&[][..], AboutJob::leases).iter().map(|node| format!("lease: {}", reserved::line(node)));
    let harm = hosts.iter().filter_map(|view| Some(harmed::host_harm(&view.host, &view.report.as_ref()?.harm)));
    let held = held::of_hosts(hosts.iter());
    let before = ended.into_iter().chain(failed);
    before.chain([words(decision)]).chain(share).chain(leases).chain(harm).chain(held).collect::<Vec<_>>().join("\n")
}

fn show<D: Serialize>(
    decision: &D,
    words: impl Fn(&D) -> String,
    hosts: &[HostView],
    job: Option<&AboutJob<'_>>,
    json: bool,
) -> anyhow::Result<()> {
    print(&if json { as_json(decision, hosts, job)? } else { as_text(decision, words, hosts, job) })
}

fn saved(folder: &Path, job: &JobId) -> anyhow::Result<JobDetail> {
    let file = [folder.join(Saved::FOLDER), folder.to_owned()]
        .into_iter()
        .map(|folder| folder.join(Saved::JOB))
        .find(|file| file.exists())
        .with_context(|| format!("{} holds no records of `gleaner run`", folder.display()))?;
    let text = std::fs::read(&file).with_context(|| format!("failed to read {}", file.display()))?;
    let detail: JobDetail =
        serde_json::from_slice(&text).with_context(|| format!("{} is no job's record", file.display()))?;
    anyhow::ensure!(
        detail.status.spec.id == *job,
        "{} is about job {}, not {job}",
        file.display(),
        detail.status.spec.id
    );
    Ok(detail)
}

#[cfg(test)]
mod tests {
    use gleaner_types::harm::HarmInterval;
    use gleaner_types::id::ReservationId;
    use gleaner_types::job::{ClusterSpec, JobSpec, ReservedStage, SlotSpec, Workers};
    use gleaner_types::report::Reading;
    use gleaner_types::time::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::host_view;

    fn view(name: &str, job: Option<&str>) -> HostView {
        let host = HostId::new(name).unwrap();
        let mut report = gleaner_test_support::report::report(&host, 1);
        report.harm.foreground = Reading::Value(HarmInterval::new(0.4, 0.1, 0.7, 40).unwrap());
        report.harm.budget_percent = 1.0;
        report.harm.paused_s = 70.25;
        HostView { job: job.map(|job| JobId::new(job).unwrap()), ..host_view(report) }
    }

    /// A job of engine `local` on a machine.
    fn on(machine: &str, phase: JobPhase) -> JobStatus {
        let job = crate::fixtures::job("j", phase);
        let workers = Workers::Slots(SlotSpec {
            host: HostId::new(machine).unwrap(),
            tasks: 10,
            dedicated_slots: 1,
            max_slots: None,
        });
        JobStatus { spec: JobSpec { workers, ..job.spec }, ..job }
    }

    fn names(hosts: &[HostView]) -> Vec<&str> {
        hosts.iter().map(|view| view.host.as_str()).collect()
    }

    #[test]
    fn json_has_the_decision_as_it_was_and_the_harm_of_its_hosts() {
        let decision = json!({"number": 3, "reason": "because"});
        let silent = HostView { report: None, ..view("silent", Some("j")) };
        let text = as_json(&decision, &[view("h1", Some("j")), silent], None).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&value["number"], &value["reason"]), (&json!(3), &json!("because")));
        let [harm] = value["harm"].as_array().unwrap().as_slice() else { panic!("{text}") };
        assert_eq!(
            (&harm["host"], &harm["paused_s"], &harm["volunteer_held"]),
            (&json!("h1"), &json!(70.25), &Value::Null)
        );
        assert_eq!(harm["foreground"]["value"]["mean_percent"], 0.4, "{text}");
    }

    #[test]
    fn text_ends_with_the_share_the_harm_and_what_measuring_it_cost() {
        let share = PoolShare {
            wanted: 5,
            allotted: 2,
            fair: 3.0,
            user_fair: 4.5,
            user_jobs: 2,
            credit_s: -120.0,
            ahead_s: -30.0,
            fair_completion: None,
        };
        let hosts = Workers::Hosts(ClusterSpec {
            dedicated: Vec::new(),
            max_volunteers: None,
            max_slots_per_host: None,
            weight: 1.0,
        });
        let on_hosts = |share: PoolShare, workers: Workers| {
            let mut job = crate::fixtures::job("j", JobPhase::Running);
            (job.share, job.spec.workers) = (Some(share), workers);
            job
        };
        let job = on_hosts(share.clone(), hosts);
        let about = AboutJob { status: &job, first_failed: &[] };
        let text = as_text(&(), |()| "a decision".to_owned(), &[view("h1", None)], Some(&about));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "a decision",
                "share now: 2 of 5 hosts it wants, fair would be 3.0 (its user's 2 jobs together 4.5); 120 host-seconds lent \
                 (-30 s against fair sharing); \
                 when it would be done by fair sharing alone is not known yet",
                "harm on h1: foreground 0.4 % ± 0.3 % slower (40 pauses); budget 1 %",
                "  pauses to measure it cost the volunteer 1 min 10 s so far"
            ]
        );
        let slots = on("h1", JobPhase::Running).spec.workers;
        let job = on_hosts(share, slots);
        let text = as_text(&(), |()| "a decision".to_owned(), &[], Some(&AboutJob { status: &job, first_failed: &[] }));
        assert!(
            text.contains(
                "2 of 5 slots it wants, fair would be 3.0 (its user's 2 jobs together 4.5); 120 slot-seconds lent"
            ),
            "{text}"
        );
    }

    #[test]
    fn a_failed_job_says_first_why_and_which_tasks() {
        let mut job = crate::fixtures::job("j", JobPhase::Failed { reason: "a\u{1b} reason".into() });
        let text = |job: &JobStatus, first_failed: &[FailedTask]| {
            as_text(&(), |()| "a decision".to_owned(), &[], Some(&AboutJob { status: job, first_failed }))
        };
        assert_eq!(text(&job, &[]), "job j has failed: a? reason\na decision");
        job.progress = Some(crate::fixtures::progress(1));
        let failed = [FailedTask { task: 7, how: "exited with 3".into(), attempts: 1, host: None, output: None }];
        let said = text(&job, &failed);
        assert!(said.contains("1 of 10 tasks failed:\n  task 7 of the list: exited with 3\na decision"), "{said}");
        let about = AboutJob { status: &job, first_failed: &failed };
        let value: Value = serde_json::from_str(&as_json(&json!({}), &[], Some(&about)).unwrap()).unwrap();
        assert_eq!(value["first_failed"], json!([{"task": 7, "how": "exited with 3", "attempts": 1}]));
    }

    #[test]
    fn leases_of_a_jobs_nodes_are_said() {
        let mut job = crate::fixtures::job("j", JobPhase::Running);
        let mut progress = crate::fixtures::progress(0);
        progress.leases.push(ReservedNode {
            node: HostId::new("d1").unwrap(),
            lease: ReservationId::new("course").unwrap(),
            begins: Timestamp(60_000),
            ends: Timestamp(120_000),
            stage: ReservedStage::Draining,
            tasks: 2,
        });
        job.progress = Some(progress);
        let about = AboutJob { status: &job, first_failed: &[] };
        let text = as_text(&(), |()| "a decision".to_owned(), &[view("h1", None)], Some(&about));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[..2],
            [
                "a decision",
                "lease: d1 for course from 1970-01-01T00:01:00.000Z to 1970-01-01T00:02:00.000Z: 2 tasks on it, and none starts any more"
            ]
        );
        let value: Value = serde_json::from_str(&as_json(&json!({}), &[], Some(&about)).unwrap()).unwrap();
        assert_eq!((&value["leases"][0]["stage"], &value["leases"][0]["tasks"]), (&json!("draining"), &json!(2)));
    }

    #[test]
    fn a_job_has_its_volunteers_hosts_and_an_application_those_of_its_tiers() {
        let hosts = || vec![view("h1", Some("j")), view("h2", None), view("h3", Some("other"))];
        let waiting = JobPhase::Waiting { reason: String::new() };
        assert_eq!(names(&of_job(hosts(), &on("h2", waiting))), ["h1"]);
        // Several jobs of engine `local` share a machine.
        assert_eq!(names(&of_job(hosts(), &on("h3", JobPhase::Running))), ["h1", "h3"]);
        let tier = |host: &str| json!({"name": "db", "host": host, "workload": "w"});
        let spec = json!({
            "name": "shop",
            "target_ms": 100.0,
            "response_time": "push",
            "tier": [tier("h3"), tier("h2"), tier("h2")],
        });
        let spec: ApplicationSpec = serde_json::from_value(spec).unwrap();
        assert_eq!(names(&of_application(hosts(), &spec)), ["h2", "h3"]);
    }
}
