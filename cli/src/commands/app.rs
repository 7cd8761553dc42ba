//! `gleaner app`: applications with response-time targets. In: a description, or a name. Out: a request to the
//! aggregator, and its answer. Called by [`super`].

use std::path::Path;

use anyhow::bail;
use gleaner_api::{Client, Request, Response};
use gleaner_daemon::clock::Clock;
use gleaner_types::application::ApplicationSpec;

use crate::args::AppCommand;
use crate::documents::{print, read_document};
use crate::exit::End;
use crate::list::or_none_passes;
use crate::{columns, format};

pub(super) async fn app(socket: &Path, command: AppCommand, json: bool) -> anyhow::Result<End> {
    let client = Client::connect(socket).await?;
    match command {
        AppCommand::Apply { file } => {
            let spec: ApplicationSpec = read_document(&file)?;
            let name = spec.name.clone();
            client.call(&Request::Apply(Box::new(spec))).await?;
            let line = format!("{name} is applied; follow it with `gleaner explain {name}`");
            print(&if json { serde_json::json!({ "application": name }).to_string() } else { line })?;
        }
        AppCommand::List { list } => {
            let now = Clock::start().now();
            let list = list.over(columns::applications(now))?;
            let Response::Applications(all) = client.call(&Request::Applications).await? else {
                bail!("unexpected answer")
            };
            let of = all.len();
            let all = list.rows(all)?;
            let table = || or_none_passes(format::applications(&all, now), all.len(), of);
            print(&if json { serde_json::to_string_pretty(&all)? } else { table() })?;
        }
        AppCommand::Show { application } => {
            let Response::Application(status) = client.call(&Request::Application { application }).await? else {
                bail!("unexpected answer")
            };
            print(&if json { serde_json::to_string_pretty(&status)? } else { format::application(&status) })?;
        }
        AppCommand::Remove { application } => {
            client.call(&Request::Remove { application: application.clone() }).await?;
            let line = format!("{application} is removed; its limits are given back");
            print(&if json { serde_json::json!({ "application": application }).to_string() } else { line })?;
        }
        AppCommand::Respond { application, milliseconds } => {
            client.call(&Request::Respond { application: application.clone(), mean_ms: milliseconds }).await?;
            if json {
                print(&serde_json::json!({ "application": application }).to_string())?;
            }
        }
    }
    Ok(End::Good)
}
