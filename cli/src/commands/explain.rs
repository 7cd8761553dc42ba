//! `gleaner explain`. In: a job or an application. Out: the last decision about it, as text. Called by [`super`].

use std::path::Path;

use anyhow::Context;
use gleaner_api::{Client, JobDetail, Request, Response};
use gleaner_planner::controller::HostView;
use gleaner_types::application::ApplicationStatus;
use gleaner_types::id::JobId;

use super::run::Saved;
use crate::documents::print;
use crate::exit::End;
use crate::{format, watch};

pub(super) async fn explain(socket: &Path, name: &str, from: Option<&Path>, json: bool) -> anyhow::Result<End> {
    if from.is_none()
        && let Ok(application) = name.parse()
    {
        let answer = Client::connect(socket).await?.call(&Request::Application { application }).await;
        if let Ok(Response::Application(status)) = answer {
            return application_decision(&status, json);
        }
    }
    let job: JobId = name.parse()?;
    let detail = match from {
        Some(folder) => saved(folder, &job)?,
        None => watch::job(&Client::connect(socket).await?, &job).await?,
    };
    let Some(decision) = &detail.decision else {
        print(&format!("{}\nno decision has been taken about it yet", format::job(&detail.status)))?;
        return Ok(End::Failed);
    };
    if json {
        print(&serde_json::to_string_pretty(decision)?)?;
        return Ok(End::Good);
    }
    print(&format::decision(decision))?;
    match from {
        Some(folder) => {
            if let Some(host) = Saved::host(folder) {
                print_harm(&host)?;
            }
        }
        None => {
            // The job's hosts now; a decision without them is still one.
            if let Ok(Response::Hosts(hosts)) = Client::connect(socket).await?.call(&Request::Hosts).await {
                let own: Vec<&HostView> = hosts.iter().filter(|host| host.job.as_ref() == Some(&job)).collect();
                own.iter().try_for_each(|host| print_harm(host))?;
                own.iter().filter_map(|host| format::volunteer_held(host)).try_for_each(|line| print(&line))?;
            }
        }
    }
    Ok(End::Good)
}

fn print_harm(host: &HostView) -> anyhow::Result<()> {
    host.report.iter().try_for_each(|report| print(&format::host_harm(&host.host, &report.harm)))
}

fn application_decision(status: &ApplicationStatus, json: bool) -> anyhow::Result<End> {
    match &status.decision {
        None => {
            print(&format!("{}\nno decision has been taken about it yet", format::application(status)))?;
            Ok(End::Failed)
        }
        Some(decision) => {
            print(&if json { serde_json::to_string_pretty(decision)? } else { format::balance(decision) })?;
            Ok(End::Good)
        }
    }
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
