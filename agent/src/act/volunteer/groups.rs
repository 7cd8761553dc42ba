//! The volunteer where no cgroup can be written: process groups. In: a file for each group, written by the program that
//! starts it. The file is named after the group and holds its leader's start time. Out: groups stopped in rotation to
//! keep a ceiling, or all stopped to freeze them. Called by the volunteer, and by restoring.
//!
//! A group is signalled only while its leader is alive or unreaped, has the registered start time, and belongs to the
//! agent's user. So a reused number never hits another program.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use gleaner_types::command::Quota;
use gleaner_types::units::CoreShare;
use rustix::process::{Pid, Signal};

use super::error::VolunteerError;
use crate::kernel_file::read_bounded;

/// Most groups that are looked at; a bound, far above the slots of any machine.
const GROUPS: usize = 4_096;
/// How long one selection of groups runs; those left out run in a later interval.
const ROTATION_INTERVAL: Duration = Duration::from_secs(1);
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// A registered group: its number and its leader's start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Group {
    pgid: i32,
    started: u64,
}

/// The registered process groups.
#[derive(Debug)]
pub(crate) struct ProcessGroups {
    registry: PathBuf,
    proc: PathBuf,
    /// How each group was last signalled: true is to run.
    signalled: BTreeMap<Group, bool>,
    opened: Instant,
}

/// What is weaker with process groups, and how to get the full protection.
pub(super) fn weaknesses(reason: &str) -> Vec<String> {
    vec![
        format!(
            "no cgroup can be used for the volunteer, because {reason}; run the agent as root, or give it a cgroup of \
             its own, for the full protection"
        ),
        "the volunteer's ceiling is kept by stopping whole process groups in turn: it holds on average over seconds, \
         and a group with several busy threads can exceed its share"
            .to_owned(),
        "the volunteer yields by scheduling class (SCHED_IDLE) and nice value, which whoever starts it must set; it is \
         measured by the CPU time of niced processes"
            .to_owned(),
        "a process that leaves its process group leaves the volunteer".to_owned(),
    ]
}

impl ProcessGroups {
    /// Makes the registry, or takes it over.
    pub(crate) fn open(registry: &Path, proc: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(registry)?;
        Ok(Self {
            registry: registry.to_owned(),
            proc: proc.to_owned(),
            signalled: BTreeMap::new(),
            opened: Instant::now(),
        })
    }

    pub(crate) fn registry(&self) -> &Path {
        &self.registry
    }

    /// The numbers of the groups, as last enforced.
    pub(crate) fn numbers(&self) -> Vec<i32> {
        self.signalled.keys().map(|group| group.pgid).collect()
    }

    pub(crate) fn proc(&self) -> &Path {
        &self.proc
    }

    pub(crate) fn error(&self, error: io::Error) -> VolunteerError {
        VolunteerError::Registry(self.registry.clone(), error)
    }

    /// The valid groups, lowest number first. Entries that are stale, mismatching, foreign or no entries at
    /// all are removed.
    pub(crate) fn members(&mut self) -> io::Result<Vec<Group>> {
        let mut members = Vec::new();
        for entry in fs::read_dir(&self.registry)?.take(GROUPS) {
            let entry = entry?;
            match self.valid(&entry.path()) {
                Ok(Some(group)) => members.push(group),
                // Half-written: whoever registers may be between creating and writing.
                Ok(None) => {}
                Err(()) => remove_entry(&entry.path()),
            }
        }
        members.sort();
        self.signalled.retain(|group, _| members.binary_search(group).is_ok());
        Ok(members)
    }

    /// The group an entry speaks of; `Ok(None)` for an entry that is still empty.
    fn valid(&self, entry: &Path) -> Result<Option<Group>, ()> {
        let name = entry.file_name().and_then(|name| name.to_str()).ok_or(())?;
        let pgid: i32 = name.parse().map_err(drop)?;
        // 0 and 1 mean something else to kill(2) or are init's; the canonical spelling makes names unique.
        if pgid <= 1 || pgid.to_string() != name || pgid == own_group() {
            return Err(());
        }
        let text = read_bounded(entry, 64).map_err(drop)?;
        let leader = self.proc.join(name);
        let (group, started) = group_and_start(&read_bounded(&leader.join("stat"), 4096).map_err(drop)?).ok_or(())?;
        if text.trim().is_empty() {
            return Ok(None);
        }
        let registered: u64 = text.trim().parse().map_err(drop)?;
        let owner = fs::metadata(&leader).map_err(drop)?.uid();
        let agent_uid = rustix::process::geteuid().as_raw();
        // Only this user can write here; root's agent runs tasks of other users too.
        let may = owner == agent_uid || agent_uid == 0;
        if group == pgid && started == registered && may { Ok(Some(Group { pgid, started })) } else { Err(()) }
    }

    /// Lets as many groups run as `limit` has whole cores, and one more for the part of each second that
    /// the rest is of a core; passes the turn on every second.
    pub(crate) fn enforce(&mut self, limit: Quota, frozen: bool, now: Instant) -> io::Result<()> {
        let members = self.members()?;
        let running = match limit {
            _ if frozen => 0,
            Quota::AtMost(limit) => groups_to_run(limit, now.duration_since(self.opened)),
            Quota::Unlimited => members.len(),
        };
        let turn = now.duration_since(self.opened).as_secs();
        let wanted = whose_turn(members.len(), running, turn);
        let next: Vec<(Group, bool)> = members.into_iter().zip(wanted).collect();
        // First stop, then continue, so that the ceiling is not exceeded in between.
        for run in [false, true] {
            for (group, _) in next.iter().filter(|(_, wanted)| *wanted == run) {
                if self.signalled.get(group) != Some(&run) {
                    signal(*group, if run { Signal::CONT } else { Signal::STOP });
                    self.signalled.insert(*group, run);
                }
            }
        }
        Ok(())
    }

    /// Kills every group and waits until none is left; returns how many there were.
    pub(crate) fn end(&mut self, within: Duration) -> io::Result<usize> {
        let start = Instant::now();
        let first = self.members()?.len();
        loop {
            let members = self.members()?;
            let living: Vec<_> = members.iter().filter(|group| !self.is_zombie(**group)).collect();
            if living.is_empty() {
                // Leaders that nobody has reaped yet: their groups are killed, their entries not needed.
                for group in &members {
                    signal(*group, Signal::KILL);
                    remove_entry(&self.registry.join(group.pgid.to_string()));
                }
                return Ok(first);
            }
            if start.elapsed() > within {
                let message = format!("{} process groups are still there after they were killed", living.len());
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
            for group in &members {
                signal(*group, Signal::KILL);
            }
            thread::sleep(RETRY_PAUSE);
        }
    }

    fn is_zombie(&self, group: Group) -> bool {
        let stat = read_bounded(&self.proc.join(group.pgid.to_string()).join("stat"), 4096).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
    }
}

/// Ends every group registered in a folder left by an earlier run, and removes the folder.
pub(crate) fn end_registry(registry: &Path, within: Duration) -> io::Result<usize> {
    // Not through a symbolic link.
    if !registry.symlink_metadata().is_ok_and(|found| found.is_dir()) {
        return Ok(0);
    }
    let ended = ProcessGroups::open(registry, Path::new("/proc"))?.end(within)?;
    // Only entries, which are files: what else somebody put there is not ours to remove.
    for entry in fs::read_dir(registry)?.take(GROUPS) {
        remove_entry(&entry?.path());
    }
    match fs::remove_dir(registry) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(ended),
    }
}

fn remove_entry(path: &Path) {
    // Somebody may have removed it already; what is not a file is not an entry and stays.
    let _ = fs::remove_file(path);
}

fn signal(group: Group, signal: Signal) {
    if let Some(pgid) = Pid::from_raw(group.pgid) {
        // It may have ended since it was looked at.
        let _ = rustix::process::kill_process_group(pgid, signal);
    }
}

/// This process's own group; 0 where its leader is outside this pid namespace, which rustix does not expect.
#[expect(unsafe_code, reason = "the safe wrapper panics on 0")]
fn own_group() -> i32 {
    // SAFETY: getpgrp takes nothing, touches no memory and cannot fail.
    unsafe { libc::getpgrp() }
}

/// Process group (field 5) and start time (field 22) of a line of `/proc/PID/stat`. The name in field 2 is
/// the process's own choice and may hold anything, so fields are counted from its last parenthesis.
fn group_and_start(stat: &str) -> Option<(i32, u64)> {
    let (_, after_name) = stat.rsplit_once(") ")?;
    let mut fields = after_name.split(' ');
    let group = fields.nth(2)?.parse().ok()?;
    let started = fields.nth(16)?.trim_end().parse().ok()?;
    Some((group, started))
}

/// How many groups run at `elapsed` under a ceiling: one per whole core, and one more during the first part
/// of each second, as long as the rest is of a core.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates; a share is never negative"
)]
fn groups_to_run(limit: CoreShare, elapsed: Duration) -> usize {
    let whole = limit.cores().floor();
    let rest = limit.cores() - whole;
    let phase = elapsed.as_secs_f64() / ROTATION_INTERVAL.as_secs_f64() % 1.0;
    (whole as usize).saturating_add(usize::from(phase < rest))
}

/// Which of `groups` groups run when `running` may: those that follow each other from the turn's first.
fn whose_turn(groups: usize, running: usize, turn: u64) -> Vec<bool> {
    let groups_wide = (groups as u64).max(1);
    let first = turn % groups_wide;
    (0..groups as u64).map(|index| (index + groups_wide - first) % groups_wide < running as u64).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};

    use super::*;

    fn share(percent: f64) -> CoreShare {
        CoreShare::new(percent).unwrap()
    }

    #[test]
    fn a_ceiling_is_kept_by_whole_groups_and_a_part_of_each_second() {
        let at = |percent, ms| groups_to_run(share(percent), Duration::from_millis(ms));
        assert_eq!((at(200.0, 0), at(200.0, 999)), (2, 2));
        assert_eq!((at(140.0, 0), at(140.0, 390), at(140.0, 410), at(140.0, 1_100)), (2, 2, 1, 2));
        assert_eq!((at(0.0, 0), at(30.0, 290), at(30.0, 310)), (0, 1, 0));
    }

    #[test]
    fn every_group_has_its_turn() {
        assert_eq!(whose_turn(3, 2, 0), [true, true, false]);
        assert_eq!(whose_turn(3, 2, 1), [false, true, true]);
        assert_eq!(whose_turn(3, 2, 2), [true, false, true]);
        assert_eq!(whose_turn(2, 5, 7), [true, true]);
        assert!(whose_turn(0, 1, 3).is_empty());
    }

    #[test]
    fn reads_the_group_behind_a_hostile_name() {
        let stat = "42 (a) R 9 9 (b) S 1 42 42 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 777 2000 3\n";
        assert_eq!(group_and_start(stat), Some((42, 777)));
        for bad in ["", "42 (a", "42 (a) S 1", "42 (a) S 1 x 42 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 777"] {
            assert_eq!(group_and_start(bad), None, "{bad}");
        }
    }

    /// A process group of its own that burns CPU, ended with the value.
    struct Burner(Child);

    impl Burner {
        fn start() -> Self {
            Self(Command::new("sh").args(["-c", "while :; do :; done"]).process_group(0).spawn().unwrap())
        }

        fn stat(&self) -> String {
            fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap()
        }

        fn register(&self, registry: &Path, started: u64) -> PathBuf {
            let entry = registry.join(self.0.id().to_string());
            fs::write(&entry, started.to_string()).unwrap();
            entry
        }

        fn started(&self) -> u64 {
            group_and_start(&self.stat()).unwrap().1
        }

        fn is_stopped(&self) -> bool {
            self.stat().rsplit_once(") ").unwrap().1.starts_with('T')
        }
    }

    impl Drop for Burner {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !condition() {
            assert!(Instant::now() < deadline, "waited 10 s for: {what}");
            thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn stops_continues_and_ends_real_groups() {
        let dir = tempfile::tempdir().unwrap();
        let registry = dir.path().join("volunteer");
        let mut volunteer = ProcessGroups::open(&registry, Path::new("/proc")).unwrap();
        let burners = [Burner::start(), Burner::start()];
        for burner in &burners {
            burner.register(&registry, burner.started());
        }
        let stopped = || burners.iter().filter(|burner| burner.is_stopped()).count();
        let start = volunteer.opened;
        let at = |ms| start + Duration::from_millis(ms);

        volunteer.enforce(Quota::AtMost(share(200.0)), true, at(0)).unwrap();
        eventually("all stopped", || stopped() == 2);
        volunteer.enforce(Quota::AtMost(share(100.0)), false, at(10)).unwrap();
        eventually("one continued", || stopped() == 1);
        let first = burners[0].is_stopped();
        volunteer.enforce(Quota::AtMost(share(100.0)), false, at(1_010)).unwrap();
        eventually("the other's turn", || stopped() == 1 && burners[0].is_stopped() != first);
        volunteer.enforce(Quota::AtMost(share(200.0)), false, at(1_020)).unwrap();
        eventually("both run", || stopped() == 0);
        volunteer.enforce(Quota::AtMost(share(0.0)), true, at(1_030)).unwrap();

        assert_eq!(end_registry(&registry, Duration::from_secs(5)).unwrap(), 2);
        assert!(!registry.exists());
        for burner in &burners {
            eventually("dead", || burner.stat().contains(") Z"));
        }
    }

    #[test]
    fn a_group_that_is_not_the_registered_one_is_removed_and_never_signalled() {
        let dir = tempfile::tempdir().unwrap();
        let mut volunteer = ProcessGroups::open(dir.path(), Path::new("/proc")).unwrap();
        let stranger = Burner::start();
        let mismatch = stranger.register(dir.path(), stranger.started() + 1);
        let own_group = dir.path().join(own_group().to_string());
        for bad in ["0", "1", "-5", "007", "x", "99999999999"] {
            fs::write(dir.path().join(bad), "1").unwrap();
        }
        fs::write(&own_group, "1").unwrap();
        volunteer.enforce(Quota::AtMost(share(0.0)), true, Instant::now()).unwrap();
        assert!(volunteer.members().unwrap().is_empty());
        assert!(!mismatch.exists() && !own_group.exists());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(!stranger.is_stopped());
        // An entry that is still empty is being written.
        fs::write(&mismatch, "").unwrap();
        assert!(volunteer.members().unwrap().is_empty());
        assert!(mismatch.exists());
    }
}
