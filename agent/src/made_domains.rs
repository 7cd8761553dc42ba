//! Xen domains that Gleaner makes, from config files of `xl` that the operator names. In: those files, and the record of what was
//! made. Out: domains made before the agent starts, or destroyed when the host is restored. Called by the command line: the
//! agent itself never runs `xl`, because its sandbox is none for a toolstack.
//!
//! A domain is Gleaner's by its UUID alone, which is new for each one and on the disk before the domain is made. One that has the
//! name already and not such a UUID is the operator's: it is the volunteer all the same, and is never destroyed. Nothing is
//! made twice by itself: one try for each file whenever somebody, or systemd before it starts the agent, asks for it.

pub(crate) mod config_file;
mod record;
#[cfg(test)]
mod tests;
mod toolstack;

use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use gleaner_types::error::{Chain, chain};

pub(crate) use self::config_file::DomainConfigError;
pub use self::config_file::{DomainConfig, UnusableFile};
use self::record::{MadeDomain, Record, RecordError};
use self::toolstack::{Toolstack, ToolstackError};
use crate::kernel_file::read_bounded;
use crate::xen;

/// How long making all of them may take: systemd waits for it before it starts the agent. (Chosen: a Linux domain with disks takes
/// seconds, also where it is emulated.)
const MAKE: Duration = Duration::from_secs(60);
/// The same for a list of domains, and for what is left of one that could not be made.
const SHORT: Duration = Duration::from_secs(10);
/// The same for destroying all of them: less than systemd waits for what it runs after the agent.
const END: Duration = Duration::from_secs(15);
/// A domain that reboots is not there for the 2 s that xl waits before it makes it again, so it is looked for once more.
const REBOOT: Duration = Duration::from_secs(3);
/// A domain that is being destroyed is looked for this often.
const STEP: Duration = Duration::from_millis(200);
/// The kernel's source of UUIDs, a new one at each reading.
const UUIDS: &str = "/proc/sys/kernel/random/uuid";

/// What becomes of the domains that Gleaner made when the host is restored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AtRestore {
    /// They go on, with every limit as it was found.
    #[default]
    Leave,
    /// They are destroyed.
    Destroy,
}

impl AtRestore {
    /// Its words in the config.
    pub(crate) const WORDS: [(&str, Self); 2] = [("leave", Self::Leave), ("destroy", Self::Destroy)];
}

/// Nothing could be made or destroyed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MadeError {
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Toolstack(#[from] ToolstackError),
    #[error("failed to get a UUID from {UUIDS}")]
    Uuid(#[source] io::Error),
    #[error("it is still there, and there was no more time to destroy it")]
    StillThere,
    #[error("xl says that it made it, and lists none of its UUID")]
    NotThere,
    #[error("there was no time left for it: making the domains may take {} s", MAKE.as_secs())]
    NoTime,
}

/// What became of a domain.
#[derive(Debug)]
pub(crate) enum Fate {
    Made,
    /// An earlier call made it, and it runs.
    Stays,
    /// One of its name is there that Gleaner did not make.
    NotOurs,
    Destroyed,
    /// Gleaner made it, and it is not there: shut down, saved, or rebooting for longer than was waited.
    Absent,
    Failed(MadeError),
}

/// A domain and what became of it.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) name: String,
    pub(crate) fate: Fate,
}

impl Told {
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.fate, Fate::Failed(_))
    }
}

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = &self.name;
        match &self.fate {
            Fate::Made => write!(f, "{name}: made"),
            Fate::Stays => write!(f, "{name}: it is there already, made earlier"),
            Fate::NotOurs => write!(
                f,
                "{name}: a domain of this name that Gleaner did not make is there; it is used, and never destroyed"
            ),
            Fate::Destroyed => write!(f, "{name}: destroyed"),
            Fate::Absent => write!(
                f,
                "{name}: Gleaner made it, and it is not there; it is remembered, and destroyed by the next `gleaner-agent domains \
                 end` if it comes back"
            ),
            Fate::Failed(error) => write!(f, "{name}: failed: {}", Chain(error)),
        }
    }
}

/// Makes those that are not there yet.
///
/// # Errors
/// [`MadeError`] when none can be made.
pub(crate) fn make(configs: &[DomainConfig], state_dir: &Path) -> Result<Vec<Told>, MadeError> {
    make_by(&Toolstack::find()?, configs, state_dir)
}

fn make_by(toolstack: &Toolstack, configs: &[DomainConfig], state_dir: &Path) -> Result<Vec<Told>, MadeError> {
    let deadline = Instant::now() + MAKE;
    let mut record = Record::open(state_dir)?;
    let there = toolstack.domains(SHORT)?;
    let mut told = Vec::new();
    for config in configs {
        let fate = match there.iter().find(|domain| domain.name == config.name) {
            Some(domain) if record.has(&domain.uuid) => Fate::Stays,
            Some(_) => Fate::NotOurs,
            None => {
                let left = deadline.saturating_duration_since(Instant::now());
                make_one(toolstack, config, &mut record, left).map_or_else(Fate::Failed, |()| Fate::Made)
            }
        };
        told.push(Told { name: config.name.clone(), fate });
    }
    Ok(told)
}

fn make_one(
    toolstack: &Toolstack,
    config: &DomainConfig,
    record: &mut Record,
    left: Duration,
) -> Result<(), MadeError> {
    if left.is_zero() {
        return Err(MadeError::NoTime);
    }
    let uuid = read_bounded(Path::new(UUIDS), 64).map_err(MadeError::Uuid)?.trim().to_owned();
    // On the disk before there is a domain: whoever is killed in between leaves one that the next restore knows.
    let there: Vec<String> = toolstack.domains(SHORT)?.into_iter().map(|domain| domain.uuid).collect();
    record.add(MadeDomain { uuid: uuid.clone(), name: config.name.clone(), file: config.file.clone() }, &there)?;
    let made = toolstack.create(config, &uuid, left).map_err(MadeError::from);
    let made = made.and_then(|()| match toolstack.domains(SHORT)?.iter().any(|domain| domain.uuid == uuid) {
        true => Ok(()),
        false => Err(MadeError::NotThere),
    });
    if made.is_err() {
        // What an ended xl has left of it is no domain that could run.
        match destroy(toolstack, &uuid, Instant::now() + SHORT) {
            Ok(_) => record.remove(&uuid)?,
            Err(error) => {
                tracing::warn!(
                    domain = config.name,
                    error = chain(&error),
                    "what is left of it could not be destroyed"
                );
            }
        }
    }
    made
}

/// Destroys those that Gleaner made and that are there.
///
/// # Errors
/// [`MadeError`] when none can be destroyed.
pub(crate) fn end(state_dir: &Path) -> Result<Vec<Told>, MadeError> {
    // Where nothing was made there need not be a toolstack.
    if !has_made(state_dir)? {
        return Ok(Vec::new());
    }
    end_by(&Toolstack::find()?, state_dir, REBOOT)
}

fn end_by(toolstack: &Toolstack, state_dir: &Path, reboot: Duration) -> Result<Vec<Told>, MadeError> {
    let deadline = Instant::now() + END;
    let mut record = Record::open(state_dir)?;
    let (mut told, mut absent) = (Vec::new(), record.domains().to_vec());
    if absent.is_empty() {
        return Ok(told);
    }
    absent = end_those_there(toolstack, absent, &mut record, deadline, &mut told)?;
    let is_told = |made: &MadeDomain| told.iter().any(|told: &Told| told.name == made.name);
    let left = deadline.saturating_duration_since(Instant::now());
    // A name that was told is that of a later one; without time left nothing more can be learnt.
    if !absent.iter().all(is_told) && left > reboot {
        thread::sleep(reboot);
        match end_those_there(toolstack, absent.clone(), &mut record, deadline, &mut told) {
            Ok(rest) => absent = rest,
            // What was destroyed is told all the same.
            Err(error) => tracing::warn!(error = chain(&error), "whether a domain has come back is not known"),
        }
    }
    // Each name once: a domain may have been made many times.
    let mut names: Vec<String> = absent.into_iter().map(|made| made.name).collect();
    names.sort();
    names.dedup();
    names.retain(|name| told.iter().all(|told| told.name != *name));
    told.extend(names.into_iter().map(|name| Told { name, fate: Fate::Absent }));
    Ok(told)
}

/// Destroys those of them that are there now, and returns the others.
fn end_those_there(
    toolstack: &Toolstack,
    domains: Vec<MadeDomain>,
    record: &mut Record,
    deadline: Instant,
    told: &mut Vec<Told>,
) -> Result<Vec<MadeDomain>, MadeError> {
    let left = deadline.saturating_duration_since(Instant::now());
    let there = toolstack.domains(left.min(SHORT))?;
    let is_there = |made: &MadeDomain| there.iter().any(|domain| domain.uuid == made.uuid);
    let (there, mut absent): (Vec<_>, Vec<_>) = domains.into_iter().partition(is_there);
    for made in there {
        let fate = match destroy(toolstack, &made.uuid, deadline) {
            // It has ended meanwhile, and may be about to be started again.
            Ok(false) => {
                absent.push(made);
                continue;
            }
            Ok(true) => record.remove(&made.uuid).map_or_else(|error| Fate::Failed(error.into()), |()| Fate::Destroyed),
            Err(error) => Fate::Failed(error),
        };
        told.push(Told { name: made.name, fate });
    }
    Ok(absent)
}

/// Destroys the domain of this UUID, by the number that it has right before; `false` if there is none.
fn destroy(toolstack: &Toolstack, uuid: &str, deadline: Instant) -> Result<bool, MadeError> {
    let left = || deadline.saturating_duration_since(Instant::now());
    let find = || -> Result<Option<u32>, ToolstackError> {
        let there = toolstack.domains(left().min(SHORT))?;
        Ok(there.into_iter().find(|domain| domain.uuid == uuid).map(|domain| domain.id))
    };
    if left().is_zero() {
        return Err(MadeError::StillThere);
    }
    let Some(id) = find()? else { return Ok(false) };
    toolstack.destroy(id, left())?;
    while find()?.is_some() {
        if left().is_zero() {
            return Err(MadeError::StillThere);
        }
        thread::sleep(STEP);
    }
    Ok(true)
}

/// Whether Gleaner made domains of which some may be there.
///
/// # Errors
/// [`RecordError`] when that cannot be read.
pub(crate) fn has_made(state_dir: &Path) -> Result<bool, RecordError> {
    Ok(!record::read(state_dir)?.is_empty())
}

/// The UUID of the domain that was last made from a file, by which it is held also where the file cannot be used any more.
///
/// # Errors
/// [`RecordError`] when that cannot be read.
pub(crate) fn last_made_from(file: &Path, state_dir: &Path) -> Result<Option<String>, RecordError> {
    Ok(record::read(state_dir)?.into_iter().rev().find(|made| made.file == file).map(|made| made.uuid))
}

/// What would become of the domains of these files, in sentences. `acts`: the host does not only observe. Nothing is changed.
pub(crate) fn foreseen(
    configs: &[DomainConfig],
    unusable: &[UnusableFile],
    at_restore: AtRestore,
    acts: bool,
    state_dir: &Path,
) -> Vec<String> {
    let is_asked = !configs.is_empty() || !unusable.is_empty();
    let mut said = Vec::new();
    if is_asked && !acts {
        said.push("while act.enabled is false no domain of volunteer.domain_configs is made".to_owned());
    } else if !configs.is_empty() {
        let then = match at_restore {
            AtRestore::Leave => "left as they were made",
            AtRestore::Destroy => "destroyed",
        };
        let files: Vec<String> =
            configs.iter().map(|config| format!("{} from {}", config.name, config.file.display())).collect();
        said.push(format!("`gleaner-agent domains make` makes {}; at restore they are {then}", files.join(", ")));
        if let Err(error) = Toolstack::find() {
            said.push(format!("WARNING: they cannot be made, because {}", Chain(&error)));
        }
    }
    said.extend(unusable.iter().map(|file| format!("PROBLEM: {file}")));
    match record::read(state_dir) {
        // Most hosts have nothing to do with such domains.
        Err(RecordError::NotAllowed { .. }) if !is_asked => {}
        Err(error @ RecordError::NotAllowed { .. }) => said.push(error.to_string()),
        Err(error) => said.push(format!("PROBLEM: {}", Chain(&error))),
        Ok(made) if made.is_empty() => {}
        Ok(made) => {
            let there = xen::sample().map(|hypervisor| hypervisor.domains).unwrap_or_default();
            let own: Vec<String> = made
                .into_iter()
                .filter(|made| there.iter().any(|domain| domain.uuid == made.uuid))
                .map(|made| made.name)
                .collect();
            if !own.is_empty() {
                said.push(format!("made by Gleaner and there now: {}", own.join(", ")));
            }
        }
    }
    said
}
