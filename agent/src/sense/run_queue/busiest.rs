//! The busiest processes of the machine, where everything but the volunteer is foreground. In: `/proc/PID/stat` of all
//! processes, once a minute. Out: at most 32 processes, those that used most CPU since the last scan first. Called by
//! [`super`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::kernel_file::{TASK_LIST, names, read_bounded};
use crate::process::{pids, stat};

/// Most cgroups below one that are looked at.
pub(super) const MOST_GROUPS: usize = 1_024;
/// Most processes followed. Chosen: what a user waits for is among them.
const MOST_PROCESSES: usize = 32;
/// How long a choice holds: looking at every process costs some milliseconds.
const CHOICE_LIFETIME: Duration = Duration::from_secs(60);

/// How the volunteer's processes are told from others.
#[derive(Debug, Clone, Default)]
pub(crate) struct VolunteerMark {
    /// Its cgroups.
    pub(crate) groups: Vec<PathBuf>,
    /// Its registry of process groups.
    pub(crate) registry: Option<PathBuf>,
}

/// The choice, and what it was made by.
#[derive(Debug)]
pub(super) struct Busiest {
    proc: PathBuf,
    volunteer: VolunteerMark,
    /// CPU of each process at the last scan, by pid and start time.
    used: BTreeMap<(i32, u64), u64>,
    chosen: Vec<i32>,
    at: Option<Instant>,
}

impl Busiest {
    pub(super) fn new(proc: &Path, volunteer: VolunteerMark) -> Self {
        Self { proc: proc.to_owned(), volunteer, used: BTreeMap::new(), chosen: Vec::new(), at: None }
    }

    /// The busiest processes. The first choice is by what each used since it started.
    pub(super) fn choose(&mut self, now: Instant) -> &[i32] {
        if self.at.is_none_or(|at| now.duration_since(at) >= CHOICE_LIFETIME) {
            self.at = Some(now);
            self.rescan();
        }
        &self.chosen
    }

    fn rescan(&mut self) {
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        let (members, groups) = self.of_volunteer();
        let mut used = BTreeMap::new();
        let mut busy: Vec<(u64, i32)> = Vec::new();
        for (pid, stat) in pids(&self.proc).into_iter().filter_map(|pid| Some((pid, stat(&self.proc, pid).ok()?))) {
            let key = (pid, stat.start_ticks);
            let since = stat.cpu_ns.saturating_sub(self.used.get(&key).copied().unwrap_or(0));
            used.insert(key, stat.cpu_ns);
            // Threads of the kernel have no memory of their own; nobody waits for them by name.
            let counts = pid != own && stat.resident_pages > 0 && since > 0;
            if counts && !members.contains(&pid) && !groups.contains(&stat.group) {
                busy.push((since, pid));
            }
        }
        self.used = used;
        busy.sort_by_key(|(since, pid)| (std::cmp::Reverse(*since), *pid));
        self.chosen = busy.into_iter().take(MOST_PROCESSES).map(|(_, pid)| pid).collect();
    }

    /// The volunteer's processes, and its process groups.
    fn of_volunteer(&self) -> (BTreeSet<i32>, BTreeSet<i32>) {
        let mut members = BTreeSet::new();
        let mut folders = self.volunteer.groups.clone();
        while let Some(folder) = folders.pop() {
            let list = read_bounded(&folder.join("cgroup.procs"), TASK_LIST as u64).unwrap_or_default();
            members.extend(list.lines().filter_map(|line| line.parse::<i32>().ok()));
            if folders.len() < MOST_GROUPS {
                folders.extend(names(&folder).into_iter().map(|name| folder.join(name)).filter(|path| path.is_dir()));
            }
        }
        let registered = self.volunteer.registry.iter().flat_map(|folder| names(folder));
        (members, registered.filter_map(|name| name.parse().ok()).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn write(proc: &Path, pid: i32, group: i32, ticks: u64, pages: u64) {
        fs::create_dir_all(proc.join(pid.to_string())).unwrap();
        let text = format!("{pid} (x) R 1 {group} 1 0 -1 0 1 2 3 4 {ticks} 0 0 0 20 0 1 0 99 1000 {pages} 0");
        fs::write(proc.join(format!("{pid}/stat")), text).unwrap();
    }

    #[test]
    fn the_busiest_of_the_last_minute_without_the_volunteer_and_the_kernel() {
        let root = tempfile::tempdir().unwrap();
        let (proc, group, registry) = (root.path().join("proc"), root.path().join("vol"), root.path().join("reg"));
        fs::create_dir_all(group.join("below")).unwrap();
        fs::create_dir_all(&registry).unwrap();
        fs::write(group.join("cgroup.procs"), "3\n").unwrap();
        fs::write(group.join("below/cgroup.procs"), "4\n").unwrap();
        fs::write(registry.join("50"), "99").unwrap();
        for (pid, pgid, ticks, pages) in [
            (2, 0, 900, 0),
            (3, 3, 800, 9),
            (4, 4, 800, 9),
            (5, 50, 800, 9),
            (6, 6, 100, 9),
            (7, 7, 500, 9),
            (8, 8, 0, 9),
        ] {
            write(&proc, pid, pgid, ticks, pages);
        }
        let mark = VolunteerMark { groups: vec![group], registry: Some(registry) };
        let mut busiest = Busiest::new(&proc, mark);
        let begin = Instant::now();
        assert_eq!(busiest.choose(begin), [7, 6]);
        write(&proc, 6, 6, 300, 9);
        write(&proc, 8, 8, 50, 9);
        assert_eq!(busiest.choose(begin + Duration::from_secs(59)), [7, 6], "a choice holds");
        assert_eq!(busiest.choose(begin + CHOICE_LIFETIME), [6, 8], "7 has done nothing since");
    }

    /// A list that was cut to nothing made the volunteer's processes the foreground's.
    #[test]
    fn however_many_the_volunteer_has_none_is_the_foregrounds() {
        let root = tempfile::tempdir().unwrap();
        let (proc, group) = (root.path().join("proc"), root.path().join("vol"));
        fs::create_dir_all(&group).unwrap();
        let list: String = (1_000_000..1_200_000).map(|pid| format!("{pid}\n")).collect();
        assert!(list.len() > 1 << 20);
        fs::write(group.join("cgroup.procs"), list).unwrap();
        write(&proc, 1_199_999, 1, 900, 9);
        write(&proc, 6, 6, 100, 9);
        let mut busiest = Busiest::new(&proc, VolunteerMark { groups: vec![group], registry: None });
        assert_eq!(busiest.choose(Instant::now()), [6]);
    }

    #[test]
    fn at_most_32() {
        let root = tempfile::tempdir().unwrap();
        for pid in 100..200 {
            write(root.path(), pid, pid, u64::from(pid.unsigned_abs()), 9);
        }
        let mut busiest = Busiest::new(root.path(), VolunteerMark::default());
        let chosen = busiest.choose(Instant::now());
        assert_eq!((chosen.len(), chosen[0]), (32, 199));
    }
}
