//! `gleaner explain`. In: a job or an application. Out: the last decision about it, what it has of hosts that jobs share, and
//! the harm on its hosts, as text or JSON. Called by [`super`].

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context;
use gleaner_api::{Client, ClientError, ErrorCode, JobDetail, Request, Response, meant};
use gleaner_planner::controller::HostView;
use gleaner_types::application::{ApplicationSpec, ApplicationStatus};
use gleaner_types::id::{HostId, JobId};
use gleaner_types::job::{JobPhase, JobStatus, PoolShare, Workers};
use gleaner_types::report::HostHarm;
use serde::Serialize;

use super::run::Saved;
use crate::documents::print;
use crate::exit::End;
use crate::{format, watch};

pub(super) async fn explain(socket: &Path, name: &str, from: Option<&Path>, json: bool) -> anyhow::Result<End> {
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
    let (detail, hosts) = match from {
        Some(folder) => (saved(folder, &job)?, Saved::host(folder).into_iter().collect()),
        None => {
            let client = Client::connect(socket).await?;
            let detail = match watch::job(&client, &job).await {
                Ok(detail) => detail,
                Err(error) => return Err(nobody(&client, &job, error).await),
            };
            let hosts = of_job(hosts_now(&client).await, &detail.status);
            (detail, hosts)
        }
    };
    let Some(decision) = &detail.decision else {
        print(&format!("{}\nno decision has been taken about it yet", format::job(&detail.status)))?;
        return Ok(End::Failed);
    };
    let share = detail.status.share.as_ref().map(|share| (share, &detail.status.spec.workers));
    show(decision, format::decision, &hosts, share, json)?;
    Ok(End::Good)
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
        print(&format!("{}\nno decision has been taken about it yet", format::application(status)))?;
        return Ok(End::Failed);
    };
    let hosts = of_application(hosts_now(client).await, &status.spec);
    show(decision, format::balance, &hosts, None, json)?;
    Ok(End::Good)
}

/// All hosts. A decision without them is still one.
async fn hosts_now(client: &Client) -> Vec<HostView> {
    match client.call(&Request::Hosts).await {
        Ok(Response::Hosts(hosts)) => hosts,
        _ => Vec::new(),
    }
}

/// The hosts whose volunteers work for a job now. Several jobs may share the slots of one machine, which names the oldest.
fn of_job(hosts: Vec<HostView>, job: &JobStatus) -> Vec<HostView> {
    let is_active = matches!(job.phase, JobPhase::Profiling | JobPhase::Running);
    let machine = job.spec.workers.slots().filter(|_| is_active).map(|local| &local.host);
    let is_own = |host: &HostView| host.job.as_ref() == Some(&job.spec.id) || machine == Some(&host.host);
    hosts.into_iter().filter(is_own).collect()
}

/// The hosts that an application's tiers are on.
fn of_application(hosts: Vec<HostView>, spec: &ApplicationSpec) -> Vec<HostView> {
    let own: BTreeSet<&HostId> = spec.tiers.iter().map(|tier| &tier.host).collect();
    hosts.into_iter().filter(|host| own.contains(&host.host)).collect()
}

/// A decision as JSON: itself, and beside it a job's share and the harm on its hosts.
#[derive(Serialize)]
struct Explained<'a, D> {
    #[serde(flatten)]
    decision: &'a D,
    #[serde(skip_serializing_if = "Option::is_none")]
    share: Option<&'a PoolShare>,
    harm: Vec<HarmOn<'a>>,
}

#[derive(Serialize)]
struct HarmOn<'a> {
    host: &'a HostId,
    #[serde(flatten)]
    harm: &'a HostHarm,
    /// Why its volunteer is held for another resource than CPU.
    volunteer_held: Option<String>,
}

fn as_json<D: Serialize>(decision: &D, hosts: &[HostView], share: Option<&PoolShare>) -> serde_json::Result<String> {
    let harm = hosts.iter().filter_map(|view| {
        let harm = &view.report.as_ref()?.harm;
        Some(HarmOn { host: &view.host, harm, volunteer_held: format::volunteer_held(view) })
    });
    serde_json::to_string_pretty(&Explained { decision, share, harm: harm.collect() })
}

fn as_text<D>(
    decision: &D,
    words: fn(&D) -> String,
    hosts: &[HostView],
    share: Option<(&PoolShare, &Workers)>,
) -> String {
    let share = share.map(|(share, workers)| format!("share now: {}", format::pool_share(share, workers)));
    let harm = hosts.iter().filter_map(|view| Some(format::host_harm(&view.host, &view.report.as_ref()?.harm)));
    let held = hosts.iter().filter_map(format::volunteer_held);
    std::iter::once(words(decision)).chain(share).chain(harm).chain(held).collect::<Vec<_>>().join("\n")
}

fn show<D: Serialize>(
    decision: &D,
    words: fn(&D) -> String,
    hosts: &[HostView],
    share: Option<(&PoolShare, &Workers)>,
    json: bool,
) -> anyhow::Result<()> {
    print(&if json {
        as_json(decision, hosts, share.map(|(share, _)| share))?
    } else {
        as_text(decision, words, hosts, share)
    })
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
    use gleaner_types::job::{ClusterSpec, JobSpec, SlotSpec};
    use gleaner_types::report::Reading;
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
        let text = as_text(&(), |()| "a decision".to_owned(), &[view("h1", None)], Some((&share, &hosts)));
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
        let text = as_text(&(), |()| "a decision".to_owned(), &[], Some((&share, &slots)));
        assert!(
            text.contains(
                "2 of 5 slots it wants, fair would be 3.0 (its user's 2 jobs together 4.5); 120 slot-seconds lent"
            ),
            "{text}"
        );
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
