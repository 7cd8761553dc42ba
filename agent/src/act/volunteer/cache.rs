//! The volunteer's part of the last-level cache and of the memory bandwidth, by a resctrl group of its own. In: how
//! much the config allows, and what the CPU can do. Out: the group, set. Tasks are moved into it as they are found. The
//! volunteer makes it; the thread of the memory bound moves the tasks. Never run on a CPU that has resctrl: tested on a
//! tree of files.
//!
//! The volunteer's tasks fill the fewest ways that were asked for. The foreground may still use every way.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use gleaner_types::command::Target;

use crate::act::ledger::{Ledger, LedgerError};
use crate::kernel_file::{read_bounded, read_short, write_existing};
use crate::levers::{AnyLever, LeverError, LeverValue, ResctrlLever};
use crate::process::threads;

/// How to mount the file system, which is left to the operator: from then on new tasks are counted by the group they are in.
const MOUNT: &str = "mount -t resctrl resctrl /sys/fs/resctrl";
/// Resources of the last-level cache; the last two where it is divided for code and data.
const CACHES: [&str; 3] = ["L3", "L3CODE", "L3DATA"];
const BANDWIDTH: &str = "MB";
/// Tries to move all threads of a process that starts more meanwhile. Those of a moved thread are where it is.
const ROUNDS: usize = 4;
/// Longest `/proc/cpuinfo` that is looked at.
const CPUINFO: u64 = 16 << 20;

/// What the config allows; nothing is all of it, and no group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheChoice {
    /// Ways of the last-level cache.
    pub ways: Option<u32>,
    /// Percent of the memory bandwidth.
    pub bandwidth_percent: Option<u32>,
}

/// Why there is no such group. The text completes "because …".
#[derive(Debug, thiserror::Error)]
pub(super) enum CacheError {
    /// The CPU could.
    #[error("resctrl is not mounted; mount it, then start the agent again: {MOUNT}")]
    NotMounted,
    /// Neither could it.
    #[error("this CPU, or its kernel, has no cache allocation (flags `cat_l3` and `mba`)")]
    NoCpu,
    /// The file system is there, without this.
    #[error("this CPU has no allocation of {0}")]
    NoResource(&'static str),
    /// As on CPUs that count it in bytes, and with the kernel's software controller.
    #[error("memory bandwidth is not counted in percent here, but as {0}")]
    NotPercent(String),
    /// More than there are.
    #[error("volunteer.cache_ways is {asked}, and this cache has {there}")]
    TooManyWays {
        /// As configured.
        asked: u32,
        /// Of the cache.
        there: u32,
    },
    /// Others have the rest.
    #[error(
        "{asked} ways side by side are asked for, and of cache {id} the default group has none such (its mask is {mask})"
    )]
    NoRun {
        /// Ways.
        asked: u32,
        /// The cache.
        id: String,
        /// What that group has of it.
        mask: String,
    },
    /// It is in no group of its own, or in one that was there before.
    #[error("only a volunteer in a cgroup that the agent makes has a resctrl group")]
    OtherVolunteer,
    /// Somebody else's.
    #[error("the group `{0}` is there already; if no other agent uses it, remove it: rmdir {0}")]
    Taken(String),
    /// A file of the file system.
    #[error("`{}` cannot be understood or read", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The group.
    #[error(transparent)]
    Lever(#[from] LeverError),
}

/// The group of a volunteer.
#[derive(Debug)]
pub(crate) struct CacheGroup {
    tasks: PathBuf,
}

impl CacheGroup {
    /// Makes and sets the group; the ledger knows of it before. `None` where the config asks for none.
    ///
    /// # Errors
    /// The ledger's; within, why there is no group.
    pub(super) fn open(
        choice: CacheChoice,
        sys: &Path,
        proc: &Path,
        ledger: &mut Ledger,
    ) -> Result<Option<Result<Self, CacheError>>, LedgerError> {
        if choice == CacheChoice::default() {
            return Ok(None);
        }
        let lever = ResctrlLever::new(sys);
        let wanted = match wanted(choice, &lever, proc) {
            Ok(wanted) => wanted,
            Err(error) => return Ok(Some(Err(error))),
        };
        let tasks = lever.group().join("tasks");
        let lever = AnyLever::Resctrl(lever);
        match lever.read() {
            Ok(found) if found == none() => {
                ledger.about_to_set(&Target::Volunteer, &[(lever.clone(), found, wanted.clone())])?;
            }
            Ok(_) => return Ok(Some(Err(CacheError::Taken(lever.to_string())))),
            Err(error) => return Ok(Some(Err(error.into()))),
        }
        Ok(Some(match lever.set(wanted) {
            Ok(()) => Ok(Self { tasks }),
            Err(error) => {
                // What cannot be removed now the ledger still knows of.
                _ = lever.undo(&none());
                Err(error.into())
            }
        }))
    }

    /// A group with this file of tasks.
    #[cfg(test)]
    pub(crate) fn with(tasks: PathBuf) -> Self {
        Self { tasks }
    }

    /// Moves the threads of a process into the group; what they start is in it from the first. One that has ended has
    /// nothing to move.
    ///
    /// # Errors
    /// The system's, when a thread that is there cannot be moved.
    pub(crate) fn enter(&self, proc: &Path, pid: i32) -> io::Result<()> {
        let mut moved = BTreeSet::new();
        for _ in 0..ROUNDS {
            let new: Vec<i32> = threads(proc, pid).into_iter().filter(|thread| !moved.contains(thread)).collect();
            if new.is_empty() {
                break;
            }
            for thread in new {
                match write_existing(&self.tasks, &thread.to_string()) {
                    Err(error) if error.raw_os_error() != Some(libc::ESRCH) => return Err(error),
                    _ => moved.insert(thread),
                };
            }
        }
        Ok(())
    }
}

fn none() -> LeverValue {
    LeverValue::Text(String::new())
}

/// What the volunteer could have of the cache on this host, in a sentence. Nothing is changed.
pub(super) fn foreseen(choice: CacheChoice, sys: &Path, proc: &Path) -> String {
    let lever = ResctrlLever::new(sys);
    let asked = choice != CacheChoice::default();
    let probed = if asked { wanted(choice, &lever, proc).map(drop) } else { mounted(&lever, proc) };
    match (probed, asked) {
        (Ok(()), true) => {
            "the volunteer's part of the cache and of the memory bandwidth is bounded, by resctrl, in a cgroup that the \
             agent makes"
                .to_owned()
        }
        (Ok(()), false) => {
            "the volunteer's part of the cache could be bounded, by resctrl: volunteer.cache_ways".to_owned()
        }
        (Err(error), _) => lacking(&error),
    }
}

/// That a volunteer which is in no cgroup of the agent's making has no such group, in a sentence; `None` if none is asked for.
pub(super) fn lacking_elsewhere(choice: CacheChoice) -> Option<String> {
    (choice != CacheChoice::default()).then(|| lacking(&CacheError::OtherVolunteer))
}

/// That a volunteer has no such group, in a sentence.
pub(super) fn lacking(error: &CacheError) -> String {
    let why = gleaner_types::error::chain(error);
    format!("the volunteer's part of the last-level cache is not bounded, because {why}")
}

fn mounted(lever: &ResctrlLever, proc: &Path) -> Result<(), CacheError> {
    if lever.root().join("schemata").exists() {
        return Ok(());
    }
    let cpuinfo = read_bounded(&proc.join("cpuinfo"), CPUINFO).unwrap_or_default();
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let has = flags.split_whitespace().any(|flag| flag == "cat_l3" || flag == "mba");
    Err(if has { CacheError::NotMounted } else { CacheError::NoCpu })
}

/// The group's schemata: what the group of all other tasks has, less what is taken from the volunteer.
fn wanted(choice: CacheChoice, lever: &ResctrlLever, proc: &Path) -> Result<LeverValue, CacheError> {
    mounted(lever, proc)?;
    let root = lever.root();
    let whole =
        ResctrlLever::schemata(&root).map_err(|source| CacheError::File { file: root.join("schemata"), source })?;
    let (mut cache, mut bandwidth) = (false, false);
    let mut lines = Vec::new();
    for line in whole.lines() {
        let Some((resource, domains)) = line.split_once(':') else {
            lines.push(line.to_owned());
            continue;
        };
        let domains = domains.split(';').filter_map(|domain| domain.split_once('='));
        let limits: Vec<String> = match (choice.ways, choice.bandwidth_percent) {
            (Some(ways), _) if CACHES.contains(&resource) => {
                cache = true;
                let asked = taken(&root, resource, ways)?;
                let limit = |(id, whole)| Ok(format!("{id}={:x}", lowest(&root, id, whole, asked)?));
                domains.map(limit).collect::<Result<_, CacheError>>()?
            }
            (_, Some(percent)) if resource == BANDWIDTH => {
                bandwidth = true;
                let asked = rounded(&root, percent)?;
                let limit = |(id, whole)| Ok(format!("{id}={}", percent_of(whole)?.min(asked)));
                domains.map(limit).collect::<Result<_, CacheError>>()?
            }
            _ => {
                lines.push(line.to_owned());
                continue;
            }
        };
        lines.push(format!("{resource}:{}", limits.join(";")));
    }
    match choice {
        CacheChoice { ways: Some(_), .. } if !cache => Err(CacheError::NoResource("the last-level cache")),
        CacheChoice { bandwidth_percent: Some(_), .. } if !bandwidth => {
            Err(CacheError::NoResource("the memory bandwidth"))
        }
        _ => Ok(LeverValue::Text(lines.join("\n"))),
    }
}

fn info<T>(root: &Path, resource: &str, name: &str, parse: impl Fn(&str) -> Option<T>) -> Result<T, CacheError> {
    let file = root.join("info").join(resource).join(name);
    let read = read_short(&file).and_then(|text| parse(text.trim()).ok_or_else(|| io::ErrorKind::InvalidData.into()));
    read.map_err(|source| CacheError::File { file, source })
}

/// So many ways of a cache; no fewer than the CPU takes.
fn taken(root: &Path, resource: &str, ways: u32) -> Result<u32, CacheError> {
    let whole = info(root, resource, "cbm_mask", |text| u64::from_str_radix(text, 16).ok())?;
    let least = info(root, resource, "min_cbm_bits", |text| text.parse::<u32>().ok())?;
    let (asked, there) = (ways.max(least).max(1), whole.count_ones());
    if asked > there { Err(CacheError::TooManyWays { asked, there }) } else { Ok(asked) }
}

/// The lowest ways side by side of those that the default group has of cache `id`: what it lacks is somebody else's.
fn lowest(root: &Path, id: &str, mask: &str, asked: u32) -> Result<u64, CacheError> {
    let whole = u64::from_str_radix(mask, 16)
        .map_err(|_| CacheError::File { file: root.join("schemata"), source: io::ErrorKind::InvalidData.into() })?;
    let run = u64::MAX.checked_shr(u64::BITS - asked).unwrap_or(0);
    let found = (0..=u64::BITS - asked).map(|shift| run << shift).find(|run| run & whole == *run);
    found.ok_or_else(|| CacheError::NoRun { asked, id: id.to_owned(), mask: mask.to_owned() })
}

/// What the default group has, if it is counted in percent.
fn percent_of(limit: &str) -> Result<u32, CacheError> {
    let number = limit.parse().ok().filter(|percent: &u32| *percent <= 100);
    number.ok_or_else(|| CacheError::NotPercent(limit.to_owned()))
}

/// A percentage that the CPU takes: the next step, and no less than its least.
fn rounded(root: &Path, percent: u32) -> Result<u32, CacheError> {
    let number = |text: &str| text.parse::<u32>().ok();
    let least = info(root, BANDWIDTH, "min_bandwidth", number)?;
    let step = info(root, BANDWIDTH, "bandwidth_gran", number)?.max(1);
    Ok(percent.div_ceil(step).saturating_mul(step).clamp(least.min(100), 100))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A tree as the kernel shows it on a machine with two caches of eleven ways.
    fn tree(schemata: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("fs/resctrl");
        for (file, text) in [
            ("info/L3/cbm_mask", "7ff\n"),
            ("info/L3/min_cbm_bits", "2\n"),
            ("info/MB/min_bandwidth", "10\n"),
            ("info/MB/bandwidth_gran", "10\n"),
            ("schemata", schemata),
        ] {
            fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
            fs::write(root.join(file), text).unwrap();
        }
        dir
    }

    const SCHEMATA: &str = "    MB:0=100;1=100\n    L3:0=7ff;1=7ff\n";

    fn of(dir: &Path, ways: Option<u32>, bandwidth_percent: Option<u32>) -> Result<String, String> {
        let wanted = wanted(CacheChoice { ways, bandwidth_percent }, &ResctrlLever::new(dir), Path::new("/proc"));
        wanted.map(|value| value.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_fewest_ways_and_the_next_percentage_that_the_cpu_takes() {
        let dir = tree(SCHEMATA);
        let of = |ways, percent| of(dir.path(), ways, percent).unwrap();
        assert_eq!(of(Some(1), None), "MB:0=100;1=100\nL3:0=3;1=3", "two at least");
        assert_eq!(of(Some(11), None), "MB:0=100;1=100\nL3:0=7ff;1=7ff");
        assert_eq!(of(None, Some(11)), "MB:0=20;1=20\nL3:0=7ff;1=7ff");
        assert_eq!(of(Some(4), Some(1)), "MB:0=10;1=10\nL3:0=f;1=f");
        assert_eq!(of(None, Some(100)), "MB:0=100;1=100\nL3:0=7ff;1=7ff");
    }

    /// Others may have taken ways and bandwidth from the default group, for themselves alone.
    #[test]
    fn only_what_the_default_group_has_is_taken() {
        let dir = tree("MB:0=90;1=10\nL3:0=7f0;1=7db\n");
        let of = |ways, percent| of(dir.path(), ways, percent);
        assert_eq!(of(Some(2), Some(100)).unwrap(), "MB:0=90;1=10\nL3:0=30;1=3");
        assert_eq!(of(Some(3), Some(15)).unwrap(), "MB:0=20;1=10\nL3:0=70;1=1c0");
        let why = of(Some(6), None).unwrap_err();
        assert!(why.contains("of cache 1") && why.contains("7db"), "{why}");
        assert!(of(Some(8), None).unwrap_err().contains("of cache 0"));
    }

    #[test]
    fn what_the_host_lacks_is_said_with_what_to_do() {
        let dir = tree(SCHEMATA);
        assert_eq!(of(dir.path(), Some(12), None).unwrap_err(), "volunteer.cache_ways is 12, and this cache has 11");
        let amd = tree("MB:0=2048\nL3:0=ffff\n");
        assert!(of(amd.path(), None, Some(10)).unwrap_err().contains("not counted in percent here, but as 2048"));
        let cache = tree("L3:0=7ff\n");
        assert_eq!(of(cache.path(), None, Some(10)).unwrap_err(), "this CPU has no allocation of the memory bandwidth");

        let (sys, proc) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let choice = CacheChoice { ways: Some(2), bandwidth_percent: None };
        fs::write(proc.path().join("cpuinfo"), "processor\t: 0\nflags\t\t: fpu cat_l3 mba\n").unwrap();
        assert!(foreseen(choice, sys.path(), proc.path()).ends_with(MOUNT));
        fs::write(proc.path().join("cpuinfo"), "processor\t: 0\nflags\t\t: fpu\n").unwrap();
        assert!(foreseen(CacheChoice::default(), sys.path(), proc.path()).contains("has no cache allocation"));
        assert!(foreseen(choice, dir.path(), proc.path()).contains("is bounded, by resctrl"));
    }

    #[test]
    fn a_volunteer_that_the_agent_does_not_make_a_cgroup_for_has_no_group() {
        use crate::act::settings::{ActSettings, VolunteerChoice};
        let dir = tree(SCHEMATA);
        let roots = crate::roots::Roots { sys: dir.path().to_owned(), ..crate::roots::Roots::default() };
        let said = |volunteer, ways| {
            let cache = CacheChoice { ways, bandwidth_percent: None };
            let observing = ActSettings::observing(dir.path().join("state"));
            let settings = ActSettings { volunteer, cache, roots: roots.clone(), ..observing };
            super::super::foreseen(&settings, &crate::hierarchies::Hierarchies::default()).join("\n")
        };
        let lacking = "only a volunteer in a cgroup that the agent makes";
        for volunteer in [VolunteerChoice::ProcessGroups, VolunteerChoice::Unit, VolunteerChoice::Guest] {
            let text = said(volunteer, Some(2));
            assert!(text.contains(lacking) && !text.contains("by resctrl"), "{text}");
            assert!(!said(volunteer, None).contains("cache"), "nothing was asked for");
        }
        assert!(said(VolunteerChoice::Cgroup, Some(2)).contains("is bounded, by resctrl, in a cgroup"));
    }

    #[test]
    fn hostile_files_give_no_group() {
        let dir = tree("L3\n:\n;;=\nL3:\n");
        assert_eq!(of(dir.path(), Some(2), None).unwrap(), "L3\n:\n;;=\nL3:", "no cache is named");
        fs::write(dir.path().join("fs/resctrl/info/L3/cbm_mask"), "x").unwrap();
        assert!(of(dir.path(), Some(2), None).unwrap_err().contains("cbm_mask"));
    }

    #[test]
    fn the_ledger_knows_of_the_group_and_another_agents_is_left_alone() {
        let (dir, state) = (tree(SCHEMATA), tempfile::tempdir().unwrap());
        let proc = Path::new("/proc");
        let mut ledger = Ledger::open(state.path()).unwrap();
        let choice = CacheChoice { ways: Some(2), bandwidth_percent: Some(10) };
        let mut open = |choice| CacheGroup::open(choice, dir.path(), proc, &mut ledger).unwrap();
        assert!(open(CacheChoice::default()).is_none());
        // The kernel fills a folder that is made; a tree of files does not, so the group cannot be set here.
        assert!(matches!(open(choice), Some(Err(CacheError::Lever(_)))));
        let group = ResctrlLever::new(dir.path()).group();
        assert!(!group.exists(), "undone");
        fs::create_dir(&group).unwrap();
        fs::write(group.join("schemata"), SCHEMATA).unwrap();
        assert!(matches!(open(choice), Some(Err(CacheError::Taken(_)))));
        let [record] = &ledger.contents().records[..] else { panic!("{:?}", ledger.contents()) };
        assert_eq!(record.original, none());
        assert_eq!(record.ours, [LeverValue::Text("MB:0=10;1=10\nL3:0=3;1=3".to_owned())]);
    }

    #[test]
    fn every_thread_of_a_process_enters() {
        let dir = tempfile::tempdir().unwrap();
        for thread in [7, 9] {
            fs::create_dir_all(dir.path().join(format!("7/task/{thread}"))).unwrap();
        }
        let tasks = dir.path().join("tasks");
        fs::write(&tasks, "").unwrap();
        let group = CacheGroup { tasks: tasks.clone() };
        group.enter(dir.path(), 7).unwrap();
        group.enter(dir.path(), 8).unwrap();
        // One number a write, as the kernel wants it: a plain file keeps the last.
        assert_eq!(fs::read_to_string(&tasks).unwrap(), "9");
        fs::remove_file(&tasks).unwrap();
        assert!(group.enter(dir.path(), 7).is_err());
        group.enter(dir.path(), 8).unwrap();
    }
}
