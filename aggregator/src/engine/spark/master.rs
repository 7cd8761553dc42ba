//! A standalone master's web interface. In: a question. Out: the applications it knows; or a worker that is
//! decommissioned. Called by the runner.

use std::time::Duration;

use super::error::{ApplicationId, DEFAULT_TIME_LIMIT, SparkError, check_host};
use super::http::Server;
use super::json::{Document, Field};

/// Most applications in an answer. Chosen.
const MOST: usize = 20_000;

/// The master of a cluster.
#[derive(Debug)]
pub(super) struct SparkMaster {
    server: Server,
}

/// An application as its master knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MasterApplication {
    /// Its name in the cluster.
    pub id: ApplicationId,
    /// The name its program gave it.
    pub name: String,
    /// Where it stands.
    pub state: ApplicationState,
    /// Since its submission, until now or its end.
    pub duration: Duration,
}

/// Where an application stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ApplicationState {
    /// It has no executors yet.
    Waiting,
    /// It has executors.
    Running,
    /// Its driver went, for whatever reason: the master cannot tell success from a crash.
    Finished,
    /// The master gave it up, because its executors failed again and again.
    Failed,
    /// Somebody stopped it by the web interface.
    Killed,
    /// Another word of the master.
    Other(String),
}

/// What became of a wish to let a host's workers go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decommission {
    /// They are told. Asking again changes nothing.
    Accepted,
    /// There is no worker on that host.
    NoSuchWorker,
}

impl SparkMaster {
    /// The master whose web interface is at `master_ui_url`, such as `http://10.0.0.1:8080`.
    ///
    /// # Errors
    /// [`SparkError::Argument`] for anything but a plain address.
    pub(super) fn new(master_ui_url: &str) -> Result<Self, SparkError> {
        Self::with_time_limit(master_ui_url, DEFAULT_TIME_LIMIT)
    }

    /// The same with another time limit.
    ///
    /// # Errors
    /// As [`SparkMaster::new`].
    pub(super) fn with_time_limit(master_ui_url: &str, time_limit: Duration) -> Result<Self, SparkError> {
        Ok(Self { server: Server::new(master_ui_url, time_limit)? })
    }

    /// Its applications, the running ones first.
    ///
    /// # Errors
    /// [`SparkError`] if there is no answer or not a proper one.
    pub(super) fn applications(&self) -> Result<Vec<MasterApplication>, SparkError> {
        parse_applications(&self.server.json("/json/", self.server.deadline())?)
    }

    /// Lets every worker on `host` go gracefully: no new tasks, running ones finish. The executors then end by
    /// themselves; the worker's own process does not, and is ended by whoever started it once there is no executor on
    /// the host any more.
    ///
    /// # Errors
    /// [`SparkError::DecommissionRefused`] if the cluster is not set up for it, others if there is no answer.
    pub(super) fn decommission(&self, host: &str) -> Result<Decommission, SparkError> {
        check_host(host)?;
        let host = host.replace('[', "%5B").replace(']', "%5D");
        let (url, status) = self.server.post(&format!("/workers/kill/?host={host}"), self.server.deadline())?;
        match status {
            200..=299 => Ok(Decommission::Accepted),
            404 => Ok(Decommission::NoSuchWorker),
            // 3.5 answers 405 both when switched off and when the allow mode forbids it, 4 has 403 for the latter.
            401 | 403 | 405 => Err(SparkError::DecommissionRefused { url, status }),
            _ => Err(SparkError::Status { url, status }),
        }
    }

    /// Stops an application for good. One that has ended is left as it is.
    ///
    /// # Errors
    /// [`SparkError`] if there is no answer, or the cluster does not allow it (`spark.ui.killEnabled`).
    pub(super) fn kill(&self, application: &ApplicationId) -> Result<(), SparkError> {
        let path = format!("/app/kill/?id={application}&terminate=true");
        match self.server.post(&path, self.server.deadline())? {
            // It answers with the way back to its first page.
            (_, 200..=399) => Ok(()),
            (url, status) => Err(SparkError::Status { url, status }),
        }
    }
}

pub(super) fn parse_applications(document: &Document) -> Result<Vec<MasterApplication>, SparkError> {
    let root = document.root();
    let active = root.get("activeapps").items(MOST)?;
    let applications = active.chain(root.get("completedapps").items(MOST)?);
    applications.map(|application| parse_application(&application)).collect()
}

fn parse_application(application: &Field<'_>) -> Result<MasterApplication, SparkError> {
    let state = match application.get("state").text()? {
        "WAITING" => ApplicationState::Waiting,
        "RUNNING" => ApplicationState::Running,
        "FINISHED" => ApplicationState::Finished,
        "FAILED" => ApplicationState::Failed,
        "KILLED" => ApplicationState::Killed,
        other => ApplicationState::Other(other.to_owned()),
    };
    Ok(MasterApplication {
        id: parse_id(&application.get("id"))?,
        // Any text a program likes, also none.
        name: application.get("name").text().unwrap_or_default().to_owned(),
        state,
        duration: Duration::from_millis(application.get("duration").counter()?),
    })
}

pub(super) fn parse_id(field: &Field<'_>) -> Result<ApplicationId, SparkError> {
    field.text()?.parse().map_err(|_| field.malformed("an application's name of letters, digits, - and _"))
}
