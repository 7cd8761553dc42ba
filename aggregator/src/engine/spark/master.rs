//! A standalone master, by its web interface: which workers and applications it knows, and letting a worker go.

use std::time::Duration;

use gleaner_common::units::Bytes;

use super::http::Server;
use super::json::{Document, Field};
use super::{ApplicationId, DEFAULT_TIME_LIMIT, SparkError, check_host};

/// Most workers, dead ones included, and most applications in an answer. Chosen.
const MOST: usize = 20_000;

/// The master of a cluster.
#[derive(Debug)]
pub struct SparkMaster {
    server: Server,
}

/// What a master knows at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct MasterView {
    /// What workers and drivers call it: `spark://HOST:PORT`.
    pub url: String,
    /// Workers, also those that are gone, until `spark.dead.worker.persistence` forgets them.
    pub workers: Vec<Worker>,
    /// Applications that wait or run, then those that ended, of which it keeps `spark.deploy.retainedApplications`.
    pub applications: Vec<MasterApplication>,
}

/// A worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    /// Its name; a worker that is started again gets another.
    pub id: String,
    /// What it was started with as `--host`.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Whether it works.
    pub state: WorkerState,
    /// Cores it offers.
    pub cores: u32,
    /// Cores its executors hold. Stays as it was when the worker is decommissioned or dies.
    pub cores_used: u32,
    /// Memory it offers.
    pub memory: Bytes,
}

/// Whether a worker works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerState {
    /// It does.
    Alive,
    /// It gets no new executors; its executors finish what they have. Its process stays until it is ended.
    Decommissioned,
    /// It left, or was silent for `spark.worker.timeout`.
    Dead,
    /// Another word of the master.
    Other(String),
}

/// An application as its master knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MasterApplication {
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
pub enum ApplicationState {
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
pub enum Decommission {
    /// They are told. Asking again changes nothing.
    Told,
    /// There is no worker on that host.
    NoSuchWorker,
}

impl SparkMaster {
    /// The master whose web interface is at `master_ui_url`, such as `http://10.0.0.1:8080`.
    ///
    /// # Errors
    /// [`SparkError::Argument`] for anything but a plain address.
    pub fn new(master_ui_url: &str) -> Result<Self, SparkError> {
        Self::with_time_limit(master_ui_url, DEFAULT_TIME_LIMIT)
    }

    /// The same with another time limit.
    ///
    /// # Errors
    /// As [`SparkMaster::new`].
    pub fn with_time_limit(master_ui_url: &str, time_limit: Duration) -> Result<Self, SparkError> {
        Ok(Self { server: Server::new(master_ui_url, time_limit)? })
    }

    /// Everything it knows, by one request.
    ///
    /// # Errors
    /// [`SparkError`] if there is no answer or not a proper one.
    pub fn view(&self) -> Result<MasterView, SparkError> {
        parse_view(&self.server.json("/json/", self.server.deadline())?)
    }

    /// Its workers.
    ///
    /// # Errors
    /// As [`SparkMaster::view`].
    pub fn workers(&self) -> Result<Vec<Worker>, SparkError> {
        Ok(self.view()?.workers)
    }

    /// Its applications, the running ones first.
    ///
    /// # Errors
    /// As [`SparkMaster::view`].
    pub fn applications(&self) -> Result<Vec<MasterApplication>, SparkError> {
        Ok(self.view()?.applications)
    }

    /// Lets every worker on `host` go gracefully: no new tasks, running ones finish. The executors then end by
    /// themselves; the worker's own process does not, and is ended by whoever started it once
    /// [`SparkProgress::executors_on`](super::SparkProgress::executors_on) is 0 for the host.
    ///
    /// # Errors
    /// [`SparkError::DecommissionRefused`] if the cluster is not set up for it, others if there is no answer.
    pub fn decommission(&self, host: &str) -> Result<Decommission, SparkError> {
        check_host(host)?;
        let host = host.replace('[', "%5B").replace(']', "%5D");
        let (url, status) = self.server.post(&format!("/workers/kill/?host={host}"), self.server.deadline())?;
        match status {
            200..=299 => Ok(Decommission::Told),
            404 => Ok(Decommission::NoSuchWorker),
            // 3.5 answers 405 both when switched off and when the allow mode forbids it, 4 has 403 for the latter.
            401 | 403 | 405 => Err(SparkError::DecommissionRefused { url, status }),
            _ => Err(SparkError::Status { url, status }),
        }
    }
}

pub(super) fn parse_view(document: &Document) -> Result<MasterView, SparkError> {
    let root = document.root();
    let workers = root.get("workers").items(MOST)?.map(|worker| parse_worker(&worker));
    let active = root.get("activeapps").items(MOST)?;
    let applications = active.chain(root.get("completedapps").items(MOST)?);
    Ok(MasterView {
        url: root.get("url").text()?.to_owned(),
        workers: workers.collect::<Result<_, _>>()?,
        applications: applications.map(|application| parse_application(&application)).collect::<Result<_, _>>()?,
    })
}

fn parse_worker(worker: &Field<'_>) -> Result<Worker, SparkError> {
    let state = match worker.get("state").text()? {
        "ALIVE" => WorkerState::Alive,
        "DECOMMISSIONED" => WorkerState::Decommissioned,
        "DEAD" => WorkerState::Dead,
        other => WorkerState::Other(other.to_owned()),
    };
    Ok(Worker {
        id: worker.get("id").text()?.to_owned(),
        host: worker.get("host").text()?.to_owned(),
        port: worker.get("port").number()?,
        state,
        cores: worker.get("cores").number()?,
        cores_used: worker.get("coresused").counter()?,
        memory: Bytes::from_mib(worker.get("memory").number()?),
    })
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
