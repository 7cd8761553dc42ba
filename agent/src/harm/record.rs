//! What the volunteer's postures did on this host, in a file of the agent's state folder. In: what `planner::protecting` has to
//! remember. Out: the same for the next agent, if nothing has changed that it depends on. Called by the meter's thread, and
//! opened by the agent's loop.
//!
//! The file helps, and nothing depends on it: one that is missing, damaged, of a newer version or somebody else's is not used,
//! and the agent starts as cautiously as on a new host.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gleaner_daemon::durable;
use gleaner_planner::harm::Budgets;
use gleaner_planner::protecting::{NotRemembered, Remembered, Standing};
use gleaner_types::error::chain;
use gleaner_types::event::Event;
use gleaner_types::report::{Absence, AbsenceKind};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::state_file::{self, Known};

const FILE: &str = "protection.json";
/// Formats: 1 is the first.
const FORMAT: u64 = 1;
/// Bytes of the longest file that is read. What can be remembered takes less than a quarter of that.
const LONGEST: u64 = 64 << 10;
/// A change of posture or of a standing is stored at once, anything else no more often than this. (Chosen: a write is waited
/// for, and what it adds is how old the evidence is.)
const SAVE_INTERVAL: Duration = Duration::from_secs(300);

/// The time since the machine started, also while it slept. The same clock for every process of a boot.
pub(super) fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    // The kernel gives neither a negative time nor a second of more than a thousand million nanoseconds.
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// What the harm of a posture depends on, as far as it can be told: with another kernel (another boot), other CPUs, another
/// volunteer, other budgets or points that are forced anyway, what was learnt says nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Circumstances {
    /// The kernel's id of this boot. The file's times are of its clock.
    pub(crate) boot_id: String,
    /// CPUs of the host.
    pub(crate) cpus: u32,
    /// What the volunteer is.
    pub(crate) volunteer: String,
    /// The budgets that standings are relative to, as text.
    pub(crate) budgets: String,
    /// Scheduling points are forced always (`guard.scheduling_points`).
    pub(crate) scheduling_points: bool,
}

impl Circumstances {
    /// Budgets as [`Circumstances::budgets`] has them.
    pub(crate) fn text_of(budgets: &Budgets) -> String {
        let own: String =
            budgets.own_percent.iter().map(|(workload, percent)| format!(", {workload} {percent} %")).collect();
        format!("{} %{own}", budgets.all_percent)
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    format: u64,
    /// The version of Gleaner that wrote it.
    written_by: String,
    circumstances: Circumstances,
    remembered: Remembered,
}

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    /// It cannot be read or understood.
    #[error(transparent)]
    File(#[from] state_file::Unusable),
    /// It is damaged although it can be understood.
    #[error(transparent)]
    Impossible(#[from] NotRemembered),
}

/// What was found, and where to store what is learnt from now on.
#[derive(Debug, Default)]
pub(crate) struct Recalled {
    /// `None` stores nothing.
    pub(super) record: Option<Record>,
    pub(super) remembered: Option<Remembered>,
    /// That a file was found and not used.
    pub(super) warning: Option<Event>,
}

/// The file.
#[derive(Debug)]
pub(super) struct Record {
    path: PathBuf,
    circumstances: Circumstances,
    last: Option<Remembered>,
    /// When it was last tried to store something.
    tried: Option<Duration>,
    failed: bool,
}

impl Recalled {
    /// Reads the file of a state folder that is this agent's.
    pub(crate) fn open(dir: &Path, circumstances: Circumstances) -> Self {
        Self::open_at(dir, circumstances, since_boot())
    }

    fn open_at(dir: &Path, circumstances: Circumstances, now: Duration) -> Self {
        let path = dir.join(FILE);
        let (remembered, error) = match read(&path, &circumstances, now) {
            Ok(remembered) => (remembered, None),
            Err(error) => (None, Some(error)),
        };
        let warning = error.as_ref().map(|error| {
            let reason =
                format!("{} is not used, so the volunteer is held as on a new host: {}", path.display(), chain(error));
            tracing::warn!(reason, "what was learnt of the volunteer's harm is lost");
            let absent = Some(Absence::described(AbsenceKind::Malformed, reason));
            Event::SensorChanged { sensor: "learnt protection".to_owned(), absent }
        });
        // Only a newer version could still use it.
        let keeps = matches!(&error, Some(Unusable::File(error)) if error.is_newer());
        let record = Record { path, circumstances, last: None, tried: None, failed: false };
        Self { record: (!keeps).then_some(record), remembered, warning }
    }
}

/// What is in the file; `None` if there is none, or it is of other circumstances.
fn read(path: &Path, circumstances: &Circumstances, now: Duration) -> Result<Option<Remembered>, Unusable> {
    let known = Known { format: FORMAT, longest: LONGEST };
    let Some(contents) = state_file::read::<Contents>(path, known)? else { return Ok(None) };
    if contents.circumstances != *circumstances {
        tracing::info!(then = ?contents.circumstances, "what was learnt of the volunteer's harm no longer applies");
        return Ok(None);
    }
    contents.remembered.check(circumstances.cpus, now)?;
    Ok(Some(contents.remembered))
}

impl Record {
    /// What is learnt now is still of the circumstances that the file names.
    pub(super) fn applies(&self, cpus: u32, budgets: &Budgets) -> bool {
        self.circumstances.cpus == cpus && self.circumstances.budgets == Circumstances::text_of(budgets)
    }

    /// Removes the file.
    pub(super) fn remove(self) {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, file = %self.path.display(), "what no longer applies cannot be removed");
            }
            _ => {}
        }
    }

    /// Stores what is to be remembered, if that is due; at the end of the agent whatever is new.
    pub(super) fn save(&mut self, remembered: &Remembered, now: Duration, at_end: bool) {
        if !self.is_due(remembered, now, at_end) {
            return;
        }
        self.tried = Some(now);
        self.last = Some(remembered.clone());
        match self.write(remembered) {
            Ok(()) => {
                self.failed = false;
            }
            Err(error) => {
                if !std::mem::replace(&mut self.failed, true) {
                    let file = self.path.display();
                    tracing::warn!(%error, %file, "what is learnt of the volunteer's harm cannot be stored");
                }
            }
        }
    }

    fn is_due(&self, remembered: &Remembered, now: Duration, at_end: bool) -> bool {
        let lately = self.tried.is_some_and(|tried| now.saturating_sub(tried) < SAVE_INTERVAL);
        match &self.last {
            Some(last) if last == remembered && !self.failed => false,
            Some(last) => at_end || !lately || gist(last) != gist(remembered),
            None => true,
        }
    }

    fn write(&self, remembered: &Remembered) -> io::Result<()> {
        let contents = Contents {
            format: FORMAT,
            written_by: env!("CARGO_PKG_VERSION").to_owned(),
            circumstances: self.circumstances.clone(),
            remembered: remembered.clone(),
        };
        durable::replace(&self.path, &serde_json::to_vec_pretty(&contents)?, 0o600)
    }
}

/// What is stored at once when it changes.
fn gist(remembered: &Remembered) -> impl PartialEq {
    let standing = |standing: Standing| standing == Standing::Over;
    let learnt = remembered.learnt.iter().map(|(posture, known)| (*posture, standing(known.standing), known.overs));
    // When the posture began, too: one that is tried after hold counts as hold, which then has begun anew.
    (remembered.posture, remembered.since, remembered.holds, learnt.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use gleaner_planner::protecting::{Known, Posture};
    use gleaner_types::harm::HarmInterval;

    use super::*;

    const NOW: Duration = Duration::from_secs(50_000);
    const HALF: Posture = Posture::Share { percent: 50 };

    fn circumstances() -> Circumstances {
        Circumstances {
            boot_id: "b".to_owned(),
            cpus: 2,
            volunteer: "a cgroup".to_owned(),
            budgets: Circumstances::text_of(&Budgets { all_percent: 1.0, ..Budgets::default() }),
            scheduling_points: false,
        }
    }

    fn remembered(posture: Posture, at: Duration) -> Remembered {
        let harm = HarmInterval::new(0.1 + 0.2, 0.1, 0.7, 20).unwrap();
        let known = Known { standing: Standing::Within, harm, harvest_cores: 0.9, at, overs: 1 };
        Remembered { posture, since: NOW, at, holds: 1, learnt: vec![(HALF, known)] }
    }

    fn open(dir: &Path) -> Recalled {
        Recalled::open_at(dir, circumstances(), NOW)
    }

    /// A folder with what an agent has left in it.
    fn left() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        open(dir.path()).record.unwrap().save(&remembered(HALF, NOW), NOW, false);
        let file = dir.path().join(FILE);
        (dir, file)
    }

    #[test]
    fn what_was_stored_is_found_and_only_the_agent_may_read_it() {
        let (dir, file) = left();
        let recalled = open(dir.path());
        assert_eq!((recalled.remembered, recalled.warning), (Some(remembered(HALF, NOW)), None));
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
        let empty = tempfile::tempdir().unwrap();
        let recalled = open(empty.path());
        assert_eq!((recalled.remembered, recalled.warning), (None, None));
    }

    #[test]
    fn it_does_not_apply_after_a_boot_or_on_another_machine_volunteer_or_budget() {
        let (dir, _) = left();
        let of = |change: &dyn Fn(&mut Circumstances)| {
            let mut other = circumstances();
            change(&mut other);
            let recalled = Recalled::open_at(dir.path(), other, NOW);
            assert!(recalled.record.is_some() && recalled.warning.is_none());
            recalled.remembered
        };
        assert_eq!(of(&|_| ()), Some(remembered(HALF, NOW)));
        assert_eq!(of(&|other| other.boot_id = "c".to_owned()), None);
        assert_eq!(of(&|other| other.cpus = 4), None);
        assert_eq!(of(&|other| other.volunteer = "a guest".to_owned()), None);
        assert_eq!(of(&|other| other.budgets = "2 %".to_owned()), None);
        assert_eq!(of(&|other| other.scheduling_points = true), None);
        let record = open(dir.path()).record.unwrap();
        let budgets = |all_percent| Budgets { all_percent, ..Budgets::default() };
        assert!(record.applies(2, &budgets(1.0)) && !record.applies(3, &budgets(1.0)));
        assert!(!record.applies(2, &budgets(2.0)));
    }

    #[test]
    fn a_damaged_one_is_warned_of_once_and_replaced() {
        let (dir, file) = left();
        let whole = fs::read_to_string(&file).unwrap();
        let damaged = [
            String::new(),
            whole[..whole.len() / 2].to_owned(),
            whole.replace("\"percent\": 50", "\"percent\": 100"),
            whole.replace("\"holds\"", "\"more\""),
            whole.replace("\"secs\": 50000", "\"secs\": 50001"),
            whole.clone() + &" ".repeat(usize::try_from(LONGEST).unwrap()),
        ];
        for text in damaged {
            assert_ne!(text, whole);
            fs::write(&file, &text).unwrap();
            let recalled = open(dir.path());
            assert_eq!(recalled.remembered, None, "{text}");
            assert!(matches!(recalled.warning, Some(Event::SensorChanged { absent: Some(_), .. })), "{text}");
            recalled.record.unwrap().save(&remembered(HALF, NOW), NOW, false);
            assert_eq!(fs::read_to_string(&file).unwrap(), whole);
            assert_eq!(open(dir.path()).warning, None);
        }
    }

    #[test]
    fn one_of_a_newer_version_stays_as_it_is() {
        let (dir, file) = left();
        fs::write(&file, r#"{"format": 2, "written_by": "9.9.9", "unheard": []}"#).unwrap();
        let recalled = open(dir.path());
        assert!(recalled.record.is_none() && recalled.remembered.is_none());
        let said = format!("{:?}", recalled.warning.unwrap());
        assert!(said.contains("gleaner 9.9.9 wrote it in format 2"), "{said}");
    }

    #[test]
    fn one_that_others_can_write_or_that_is_a_link_is_not_used() {
        let (dir, file) = left();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o620)).unwrap();
        let said = |recalled: Recalled| format!("{:?} {:?}", recalled.remembered, recalled.warning);
        let found = said(open(dir.path()));
        assert!(found.starts_with("None") && found.contains("its mode is 620"), "{found}");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let elsewhere = dir.path().join("elsewhere");
        fs::rename(&file, &elsewhere).unwrap();
        symlink(&elsewhere, &file).unwrap();
        let found = said(open(dir.path()));
        assert!(found.starts_with("None") && found.contains("symbolic link"), "{found}");
        // Storing replaces the link and not what it leads to.
        let before = fs::read(&elsewhere).unwrap();
        open(dir.path()).record.unwrap().save(&remembered(Posture::Hold, NOW), NOW, false);
        assert_eq!(fs::read(&elsewhere).unwrap(), before);
        assert_eq!(open(dir.path()).remembered, Some(remembered(Posture::Hold, NOW)));
    }

    #[test]
    fn changes_are_stored_at_once_and_age_now_and_then() {
        let (dir, file) = left();
        let mut record = open(dir.path()).record.unwrap();
        let stored = || open_later(dir.path());
        record.save(&remembered(HALF, NOW), NOW, false);
        let (soon, later) = (NOW + Duration::from_secs(12), NOW + SAVE_INTERVAL);
        record.save(&remembered(HALF, soon), soon, false);
        assert_eq!(stored(), remembered(HALF, NOW), "only its age has changed");
        record.save(&remembered(Posture::Hold, soon), soon, false);
        assert_eq!(stored(), remembered(Posture::Hold, soon));
        record.save(&remembered(Posture::Hold, later + soon), later + soon, false);
        assert_eq!(stored(), remembered(Posture::Hold, later + soon));
        // A posture that is tried after hold counts as hold, and this hold has begun anew.
        let anew = Remembered { since: later + soon, ..remembered(Posture::Hold, later + soon) };
        record.save(&anew, later + soon, false);
        assert_eq!(stored(), anew);
        let end = later + soon + Duration::from_secs(1);
        record.save(&remembered(Posture::Hold, end), end, true);
        assert_eq!(stored(), remembered(Posture::Hold, end));
        record.remove();
        assert!(!file.exists());
    }

    #[test]
    fn a_change_is_tried_at_once_after_one_that_could_not_be_stored() {
        let (dir, file) = left();
        let mut record = open(dir.path()).record.unwrap();
        // A folder is in the way of what is written beside it.
        let beside = dir.path().join(format!("{FILE}.new"));
        fs::create_dir(&beside).unwrap();
        fs::write(beside.join("something"), "").unwrap();
        let (first, second) = (NOW + Duration::from_secs(1), NOW + Duration::from_secs(2));
        record.save(&remembered(Posture::Points, first), first, false);
        assert!(record.failed && open_later(dir.path()) == remembered(HALF, NOW));
        fs::remove_dir_all(&beside).unwrap();
        record.save(&remembered(Posture::Hold, second), second, false);
        assert_eq!(open_later(dir.path()), remembered(Posture::Hold, second));
        assert!(file.exists());
    }

    fn open_later(dir: &Path) -> Remembered {
        Recalled::open_at(dir, circumstances(), NOW * 3).remembered.unwrap()
    }

    /// A file of this format stays readable: these bytes are not written anew.
    #[test]
    fn the_first_format_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let text = r#"{"format": 1, "written_by": "0.1.0",
            "circumstances": {"boot_id": "b", "cpus": 2, "volunteer": "a cgroup", "budgets": "1 %", "scheduling_points": false},
            "remembered": {"posture": "points", "since": {"secs": 5, "nanos": 6}, "at": {"secs": 7, "nanos": 8}, "holds": 9,
                "learnt": [["open", {"standing": "over", "harm": {"low_percent": 1.5, "mean_percent": 2.0, "high_percent": 2.5,
                    "trials": 20}, "harvest_cores": 1.25, "at": {"secs": 7, "nanos": 0}, "overs": 2}],
                    [{"spare": {"cpus": 1}}, {"standing": "within", "harm": {"low_percent": 0.0, "mean_percent": 0.1,
                    "high_percent": 0.2, "trials": 21}, "harvest_cores": 0.5, "at": {"secs": 6, "nanos": 0}, "overs": 0}]]}}"#;
        fs::write(dir.path().join(FILE), text).unwrap();
        let remembered = open(dir.path()).remembered.unwrap();
        assert_eq!((remembered.posture, remembered.holds), (Posture::Points, 9));
        assert_eq!((remembered.since, remembered.at), (Duration::new(5, 6), Duration::new(7, 8)));
        let [(Posture::Open, over), (Posture::Spare { cpus: 1 }, within)] = remembered.learnt[..] else {
            panic!("{remembered:?}")
        };
        assert_eq!((over.standing, over.overs, over.harm.trials), (Standing::Over, 2, 20));
        assert_eq!((within.standing, within.harvest_cores), (Standing::Within, 0.5));
    }
}
