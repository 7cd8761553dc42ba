//! CPUs kept free of the volunteer, so that a foreground's wake-up finds one. In: how many. Out: the volunteer's cgroup
//! is kept to the other CPUs, or, where it is in no cgroup with the controller `cpuset`, each of its threads is. Called
//! by the volunteer as a cgroup.
//!
//! On version 2 the controller is used only where it is switched on already: switching it on at the root moves every
//! task of the host to another set, and kernels before 6.2 then forget the CPUs that a foreground's threads were pinned
//! to.

use std::path::{Path, PathBuf};

use gleaner_types::error::Chain;
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::bounds::Group;
use super::error::SpareError;
use crate::act::cgroup;
use crate::act::managed::{ForeignWrite, Managed};
use crate::act::settings::{ActSettings, VolunteerChoice};
use crate::hierarchies::{CgroupVersion, Hierarchies};
use crate::kernel_file::{read_bounded, write_existing};
use crate::levers::{CgroupFile, LeverValue};
use crate::online_cpus::{CPUS_ONLINE, cpus_of};
use crate::process::threads;
use crate::sense::perf::parse_cpu_list;

/// Longest list of CPUs that is read.
const LIST: u64 = 64 << 10;
/// So many former sets of CPUs are known. (Chosen: threads that have missed more changes than that keep theirs.)
const FORMER_SETS: usize = 64;

/// Keeps CPUs free of a volunteer.
#[derive(Debug)]
pub(super) struct SpareCpus {
    means: Means,
    sys: PathBuf,
    spare: u32,
    /// CPUs that it could run on without this, as last read, in the order in which they are kept free.
    order: Vec<usize>,
    /// Setting it failed: all CPUs have yet to be given back.
    to_give_back: bool,
    /// The last check of the CPUs that are kept free failed.
    lost: bool,
    /// Foreign writes that were met and are not returned yet.
    met: Option<ForeignWrite>,
}

#[derive(Debug)]
enum Means {
    /// The CPUs of its cgroup.
    Cpuset { lever: Box<Managed>, above: PathBuf, version: CgroupVersion },
    /// The affinity of its threads. They end with the volunteer, so nothing of it has to be put back.
    Affinity {
        dirs: Vec<PathBuf>,
        kept_to: Vec<usize>,
        /// What they were kept to before, latest first: a thread that was started while it changed may still be.
        former: Vec<Vec<usize>>,
    },
}

/// How CPUs could be kept free of such a volunteer, in a sentence.
pub(super) fn foreseen(settings: &ActSettings, hierarchies: &Hierarchies) -> String {
    let no_effect = if settings.idle_buffer.is_some() { "; guard.idle_buffer has no effect" } else { "" };
    let none = |why: &str| format!("no CPU can be kept free of the volunteer, because {why}{no_effect}");
    // A control domain does not see all CPUs.
    if settings.volunteer != VolunteerChoice::Domain && cpus_of(&settings.roots.sys.join(CPUS_ONLINE)) < 2 {
        return none("this host has one");
    }
    let by_cgroup = hierarchies.v1.contains_key("cpuset");
    let by = match settings.volunteer {
        VolunteerChoice::ProcessGroups => return none(&SpareError::ProcessGroups.to_string()),
        VolunteerChoice::Guest | VolunteerChoice::Unit => "by the controller `cpuset`, where its own cgroup has it",
        VolunteerChoice::Domain => "by the hard affinity of its domains' virtual CPUs, where the hypervisor tells it",
        _ if by_cgroup => "by the controller `cpuset`",
        _ => "by the controller `cpuset` where its cgroup has it, otherwise by the affinity of its threads",
    };
    let on = match (settings.idle_buffer.is_some(), settings.follow_harm) {
        (true, _) => "guard.idle_buffer keeps some idle while it runs",
        (false, true) => "they are when the harm asks for it",
        (false, false) => "guard.follow_harm and guard.idle_buffer are off",
    };
    format!("CPUs can be kept free of the volunteer, {by}; {on}")
}

/// Gives a cgroup of version 1 that was just made the CPUs and memory nodes of the one above: until then no task can enter.
pub(super) fn inherit(dir: &Path) -> Result<(), SpareError> {
    let above = dir.parent().unwrap_or(dir);
    for name in ["cpuset.cpus", "cpuset.mems"] {
        let (own, from) = (dir.join(name), above.join(name));
        if read(&own)?.trim().is_empty() {
            let failed = |source| SpareError::File { file: own.clone(), source };
            write_existing(&own, read(&from)?.trim()).map_err(failed)?;
        }
    }
    Ok(())
}

fn read(file: &Path) -> Result<String, SpareError> {
    read_bounded(file, LIST).map_err(|source| SpareError::File { file: file.to_owned(), source })
}

impl SpareCpus {
    /// Of a volunteer whose cgroup with the controller `cpuset` is known; otherwise of the threads in `dirs`, which must be
    /// Gleaner's own to set.
    ///
    /// # Errors
    /// [`SpareError`] when it is neither.
    pub(super) fn find(cpuset: Option<&Group>, dirs: Option<&[PathBuf]>, sys: &Path) -> Result<Self, SpareError> {
        let of = |means| {
            let (sys, order) = (sys.to_owned(), Vec::new());
            let mut spare = Self { means, sys, spare: 0, order, to_give_back: false, lost: false, met: None };
            // What cannot be read now fails when it is to be set.
            _ = spare.read_available();
            spare
        };
        let missing = match cpuset.map(|group| (group, group.managed(CgroupFile::Cpus))) {
            Some((group, Ok(lever))) => {
                let above = group.dir.parent().unwrap_or(&group.dir).to_owned();
                return Ok(of(Means::Cpuset { lever: Box::new(lever), above, version: group.version }));
            }
            Some((_, Err(error))) => error.into(),
            None => SpareError::NoCpuset,
        };
        match dirs {
            Some(dirs) => Ok(of(Means::Affinity { dirs: dirs.to_vec(), kept_to: Vec::new(), former: Vec::new() })),
            None => Err(missing),
        }
    }

    /// The lever that has to be put back, if it is one.
    pub(super) fn lever(&self) -> Option<&Managed> {
        match &self.means {
            Means::Cpuset { lever, .. } => Some(lever.as_ref()),
            Means::Affinity { .. } => None,
        }
    }

    /// CPUs that the volunteer could run on without this, as last read.
    pub(super) fn available_cpus(&self) -> usize {
        self.order.len()
    }

    /// CPUs can be kept free, as far as last seen: nobody else has set them, and the last try succeeded.
    pub(super) fn is_ours(&self) -> bool {
        let foreign = self.lever().is_some_and(Managed::is_foreign);
        !foreign && !self.lost && !self.to_give_back
    }

    /// Keeps so many CPUs free from now on, whole cores first; one is always left to the volunteer. What
    /// somebody else has set is not overwritten; the next check returns it.
    ///
    /// # Errors
    /// [`SpareError`] when that cannot be done.
    pub(super) fn keep_free(&mut self, spare: u32) -> Result<(), SpareError> {
        let set = self.set(spare);
        // What may have been set in part is given back with the next check that can.
        self.to_give_back = set.is_err();
        self.spare = if set.is_ok() { spare } else { 0 };
        self.lost = false;
        set
    }

    fn set(&mut self, spare: u32) -> Result<(), SpareError> {
        self.read_available()?;
        let left = without(&self.order, spare);
        match &mut self.means {
            Means::Cpuset { lever, version, .. } => {
                let wanted = match (spare, *version) {
                    (0, CgroupVersion::V2) => lever.original.clone(),
                    _ => LeverValue::Text(list(&left)),
                };
                let met = lever.set(wanted)?;
                self.met = met.or(self.met.take());
                match lever.is_foreign() {
                    true => Err(SpareError::Foreign(lever.lever.to_string())),
                    false => Ok(()),
                }
            }
            Means::Affinity { dirs, kept_to, former } => {
                // Also where that fails in part.
                let before = std::mem::replace(kept_to, left);
                former.retain(|set| *set != before && set != kept_to);
                former.insert(0, before);
                former.truncate(FORMER_SETS);
                keep_threads(dirs, kept_to, former)
            }
        }
    }

    /// Keeps it so, while CPUs are kept free; returns each foreign write once. Threads that have entered since,
    /// and a new cgroup of the same name, are kept to the same CPUs.
    pub(super) fn foreign_write(&mut self) -> Option<ForeignWrite> {
        let mut met = self.met.take();
        if self.to_give_back {
            _ = self.keep_free(0);
        }
        if self.spare == 0 {
            return met;
        }
        let kept = self.keep(&mut met);
        if let Err(error) = &kept
            && !self.lost
        {
            tracing::warn!(error = %Chain(error), "CPUs are no longer kept free of the volunteer");
        }
        self.lost = kept.is_err();
        met
    }

    fn keep(&mut self, met: &mut Option<ForeignWrite>) -> Result<(), SpareError> {
        match &mut self.means {
            Means::Cpuset { lever, .. } => {
                let found = lever.foreign_write()?;
                *met = met.take().or(found);
                // A foreign value is left, and told as such. The one that was found at first belongs to a new cgroup.
                if lever.has_drifted() && !lever.is_foreign() { self.set(self.spare) } else { Ok(()) }
            }
            Means::Affinity { dirs, kept_to, former } => keep_threads(dirs, kept_to, former),
        }
    }

    /// Reads which CPUs the volunteer could run on without this; their order only where they are others than before.
    fn read_available(&mut self) -> Result<(), SpareError> {
        let cpus = self.available()?;
        let is_same = cpus.len() == self.order.len() && cpus.iter().all(|cpu| self.order.contains(cpu));
        if !is_same {
            self.order = in_order(cpus, &self.sys);
        }
        Ok(())
    }

    /// Those CPUs, as the kernel tells them now.
    fn available(&self) -> Result<Vec<usize>, SpareError> {
        let file = match &self.means {
            Means::Cpuset { lever, version: CgroupVersion::V2, .. } if has_cpus(&lever.original) => {
                let cpus = parse_cpu_list(&lever.original.to_string());
                return cpus.ok_or_else(|| SpareError::NoList(lever.lever.to_string()));
            }
            Means::Cpuset { above, version: CgroupVersion::V2, .. } => above.join("cpuset.cpus.effective"),
            Means::Cpuset { above, version: CgroupVersion::V1, .. } => above.join("cpuset.cpus"),
            Means::Affinity { .. } => self.sys.join("devices/system/cpu/online"),
        };
        parse_cpu_list(&read(&file)?).ok_or_else(|| SpareError::NoList(format!("`{}`", file.display())))
    }
}

fn has_cpus(value: &LeverValue) -> bool {
    matches!(value, LeverValue::Text(text) if !text.is_empty())
}

/// CPUs in the order in which they are kept free: cores are freed whole, the first core first, where the kernel itself has
/// most of its own work.
fn in_order(mut cpus: Vec<usize>, sys: &Path) -> Vec<usize> {
    let core = |cpu: usize| {
        let file = sys.join(format!("devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"));
        let siblings = read_bounded(&file, LIST).ok().and_then(|text| parse_cpu_list(&text));
        siblings.and_then(|siblings| siblings.first().copied()).unwrap_or(cpu)
    };
    cpus.sort_by_cached_key(|cpu| (core(*cpu), *cpu));
    cpus
}

/// The CPUs that are left, ascending, when `spare` are kept free in this order; one at least.
fn without(order: &[usize], spare: u32) -> Vec<usize> {
    let spare = usize::try_from(spare).unwrap_or(usize::MAX).min(order.len().saturating_sub(1));
    let mut left: Vec<usize> = order.iter().skip(spare).copied().collect();
    left.sort_unstable();
    left
}

/// As the kernel writes it: "0-2,8".
pub(super) fn list(cpus: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for cpu in cpus {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *cpu => *last = *cpu,
            _ => runs.push((*cpu, *cpu)),
        }
    }
    let one =
        |(first, last): &(usize, usize)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    runs.iter().map(one).collect::<Vec<_>>().join(",")
}

fn set_of(cpus: &[usize]) -> Result<CpuSet, SpareError> {
    let mut set = CpuSet::new();
    for cpu in cpus {
        if *cpu >= CpuSet::MAX_CPU {
            return Err(SpareError::CpuNumber(*cpu));
        }
        set.set(*cpu);
    }
    Ok(set)
}

/// Keeps the threads in the cgroups to `cpus`. A thread that has chosen fewer CPUs stays on those. One that was kept to
/// a set of `former` is not kept to it any more. When one cannot be moved, the others are moved all the same.
fn keep_threads(dirs: &[PathBuf], cpus: &[usize], former: &[Vec<usize>]) -> Result<(), SpareError> {
    let wanted = set_of(cpus)?;
    let former = former.iter().map(|cpus| set_of(cpus)).collect::<Result<Vec<_>, _>>()?;
    let proc = Path::new("/proc");
    let processes = cgroup::processes_of(dirs)?;
    let mut failure = None;
    for thread in processes.into_iter().flat_map(|pid| threads(proc, pid)).filter_map(Pid::from_raw) {
        // One that has ended meanwhile runs nowhere.
        let Ok(found) = sched_getaffinity(Some(thread)) else { continue };
        let elsewhere = (0..CpuSet::MAX_CPU).any(|cpu| found.is_set(cpu) && !wanted.is_set(cpu));
        if found != wanted && (elsewhere || former.contains(&found)) {
            match sched_setaffinity(Some(thread), &wanted) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => {
                    failure = Some(SpareError::Thread { thread: thread.as_raw_nonzero().get(), source: error.into() })
                }
            }
        }
    }
    failure.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Instant;

    use gleaner_planner::idle_buffer::BufferSize;
    use gleaner_types::command::Quota;
    use gleaner_types::report::VolunteerKind;

    use super::*;
    use crate::act::ledger::Ledger;
    use crate::act::restore::restore_all;
    use crate::act::tests::scene::{Burner, Scene, eventually};
    use crate::act::volunteer::Volunteer;

    #[test]
    fn cpus_are_listed_as_the_kernel_does() {
        assert_eq!(list(&[0, 1, 2, 8, 10, 11]), "0-2,8,10-11");
        assert_eq!(list(&[]), "");
    }

    #[test]
    fn cores_are_freed_whole_and_one_cpu_is_always_left() {
        let sys = tempfile::tempdir().unwrap();
        for (cpu, siblings) in [(0, "0,2"), (1, "1,3"), (2, "0,2"), (3, "1,3")] {
            let folder = sys.path().join(format!("devices/system/cpu/cpu{cpu}/topology"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("thread_siblings_list"), siblings).unwrap();
        }
        let left = |spare| list(&without(&in_order(vec![0, 1, 2, 3], sys.path()), spare));
        assert_eq!([left(0), left(1), left(2), left(3), left(9)], ["0-3", "1-3", "1,3", "3", "3"]);
        assert_eq!(list(&without(&in_order(vec![4, 5], sys.path()), 1)), "5", "nothing is known of cores");
    }

    #[test]
    fn it_is_said_before_whether_cpus_can_be_kept_free() {
        let sys = tempfile::tempdir().unwrap();
        fs::create_dir_all(sys.path().join("devices/system/cpu")).unwrap();
        let mut settings = ActSettings::observing(sys.path().to_owned());
        settings.roots.sys = sys.path().to_owned();
        let mut hierarchies = Hierarchies::default();
        let online = |cpus: &str| fs::write(sys.path().join(CPUS_ONLINE), cpus).unwrap();
        online("0-3\n");
        assert!(foreseen(&settings, &hierarchies).ends_with("guard.follow_harm and guard.idle_buffer are off"));
        settings.idle_buffer = Some(BufferSize::Fixed(1));
        assert!(
            foreseen(&settings, &hierarchies)
                .contains("otherwise by the affinity of its threads; guard.idle_buffer keeps")
        );
        hierarchies.v1.insert("cpuset".to_owned(), "/cpuset".into());
        let said = foreseen(&settings, &hierarchies);
        assert!(said.contains("by the controller `cpuset`; guard.idle_buffer keeps some idle"), "{said}");
        settings.volunteer = VolunteerChoice::ProcessGroups;
        let said = foreseen(&settings, &hierarchies);
        assert!(said.ends_with("because process groups are in no cgroup; guard.idle_buffer has no effect"), "{said}");
        settings.volunteer = VolunteerChoice::Auto;
        online("0\n");
        let said = foreseen(&settings, &hierarchies);
        assert!(said.ends_with("because this host has one; guard.idle_buffer has no effect"), "{said}");
    }

    #[test]
    fn on_version_2_what_was_found_is_narrowed_and_put_back() {
        let dir = tempfile::tempdir().unwrap();
        let leaf = dir.path().join("leaf");
        fs::create_dir(&leaf).unwrap();
        fs::write(dir.path().join("cpuset.cpus.effective"), "0-3\n").unwrap();
        let group = Group { dir: leaf.clone(), version: CgroupVersion::V2 };
        let read = || fs::read_to_string(leaf.join("cpuset.cpus")).unwrap();
        for (found, narrowed) in [("", "1-3\n"), ("2-3", "3\n")] {
            fs::write(leaf.join("cpuset.cpus"), format!("{found}\n")).unwrap();
            let mut spare = SpareCpus::find(Some(&group), None, dir.path()).unwrap();
            spare.keep_free(1).unwrap();
            assert_eq!(read(), narrowed);
            fs::write(leaf.join("cpuset.cpus"), format!("{found}\n")).unwrap();
            assert!(
                spare.foreign_write().is_some() && read() == narrowed,
                "a unit that was started anew is kept off as well"
            );
            assert!(spare.is_ours());
            fs::write(leaf.join("cpuset.cpus"), "0-1\n").unwrap();
            assert!(
                spare.foreign_write().is_some() && !spare.is_ours() && read() == "0-1\n",
                "somebody else's is left"
            );
            assert!(spare.keep_free(0).is_err() && !spare.is_ours());
            fs::write(leaf.join("cpuset.cpus"), narrowed).unwrap();
            spare.foreign_write();
            assert!(spare.is_ours() && read() == format!("{found}\n"), "set back, it is given back");
            spare.keep_free(1).unwrap();
            fs::rename(leaf.join("cpuset.cpus"), leaf.join("away")).unwrap();
            assert!(spare.foreign_write().is_none() && !spare.is_ours(), "it cannot be read");
            fs::rename(leaf.join("away"), leaf.join("cpuset.cpus")).unwrap();
            spare.foreign_write();
            assert!(spare.is_ours());
            spare.keep_free(0).unwrap();
            assert_eq!(read(), format!("{found}\n"));
            fs::write(leaf.join("cpuset.cpus"), "0\n").unwrap();
            assert!(matches!(spare.keep_free(1), Err(SpareError::Foreign(_))));
            assert!(
                spare.foreign_write().is_some() && spare.foreign_write().is_none(),
                "a foreign write is returned once"
            );
            assert_eq!(read(), "0\n", "and left");
        }
        assert!(matches!(SpareCpus::find(None, None, dir.path()), Err(SpareError::NoCpuset)));
    }

    /// CPUs that a process may run on.
    fn allowed(pid: u32) -> String {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        line.unwrap_or_default().trim().to_owned()
    }

    /// A real burner in a real volunteer leaves the CPU that is kept free, may use it again, and all is as it was at the end.
    fn moves_a_burner(test: &str, with_cpuset: bool) {
        let Some(mut scene) = Scene::open(test) else { return };
        let all = allowed(std::process::id());
        if parse_cpu_list(&all).is_none_or(|cpus| cpus.len() < 2) {
            gleaner_test_support::skipped!("{test}: there is one CPU");
            return;
        }
        if !with_cpuset {
            scene.hierarchies.v1.remove("cpuset");
            scene.hierarchies.v2_controllers.retain(|controller| controller != "cpuset");
        }
        let mut ledger = Ledger::open(scene.state.path()).unwrap();
        let mut settings = scene.settings();
        settings.idle_buffer = Some(BufferSize::Follow);
        let mut volunteer = Volunteer::open(&settings, &scene.hierarchies, &mut ledger).unwrap();
        let VolunteerKind::Cgroup { procs_files } = volunteer.kind() else { panic!("no cgroup volunteer") };
        assert!(volunteer.can_spare());
        let burner = Burner::start(&procs_files);
        volunteer.enforce(Quota::Unlimited, false, Instant::now()).unwrap();
        let before = allowed(burner.id());
        let cpus = parse_cpu_list(&before).unwrap();
        volunteer.keep_free(1).unwrap();
        let narrowed = allowed(burner.id());
        assert_eq!(parse_cpu_list(&narrowed).unwrap().len(), cpus.len() - 1, "{before} to {narrowed}");
        let late = Burner::start(&procs_files);
        volunteer.foreign_writes().unwrap();
        assert_eq!(allowed(late.id()), narrowed, "one that enters later too");
        let on = || {
            fs::read_to_string(format!("/proc/{}/stat", burner.id()))
                .unwrap()
                .rsplit_once(") ")
                .unwrap()
                .1
                .split(' ')
                .nth(36)
                .map(str::to_owned)
        };
        let kept = parse_cpu_list(&narrowed).unwrap();
        eventually("it runs elsewhere", || on().is_some_and(|cpu| kept.contains(&cpu.parse().unwrap())));
        if with_cpuset {
            let dirs = volunteer.dirs();
            let file = dirs.iter().map(|dir| dir.join("cpuset.cpus")).find(|file| file.exists()).unwrap();
            let freed = cpus.iter().find(|cpu| !kept.contains(cpu)).unwrap();
            fs::write(&file, freed.to_string()).unwrap();
            volunteer.foreign_writes().unwrap();
            assert!(!volunteer.can_spare(), "somebody else has set its CPUs");
            fs::write(&file, &narrowed).unwrap();
            volunteer.foreign_writes().unwrap();
            assert!(volunteer.can_spare());
        }
        volunteer.keep_free(0).unwrap();
        assert_eq!((allowed(burner.id()), allowed(late.id())), (before.clone(), before.clone()));
        if !with_cpuset {
            // As one that was started by a thread that was kept to them still.
            let pid = Pid::from_raw(burner.id().cast_signed());
            sched_setaffinity(pid, &set_of(&parse_cpu_list(&narrowed).unwrap()).unwrap()).unwrap();
            volunteer.keep_free(0).unwrap();
            assert_eq!(allowed(burner.id()), before, "what it was kept to once is not its own choice");
        }
        volunteer.keep_free(1).unwrap();
        let dirs = volunteer.dirs();
        drop(volunteer);
        let report = restore_all(&mut ledger).unwrap();
        assert!(report.failed.is_empty() && report.processes_ended >= 2, "{report:?}");
        assert!(dirs.iter().all(|dir| !dir.exists()), "{dirs:?}");
    }

    #[test]
    fn a_real_burner_is_moved_off_a_cpu_by_its_cgroup() {
        const TEST: &str = "a_real_burner_is_moved_off_a_cpu_by_its_cgroup";
        if !Hierarchies::of_this_machine().v1.contains_key("cpuset") {
            gleaner_test_support::skipped!("{TEST}: the controller cpuset is on no hierarchy of version 1");
            return;
        }
        moves_a_burner(TEST, true);
    }

    #[test]
    fn a_real_burner_is_moved_off_a_cpu_by_its_affinity() {
        moves_a_burner("a_real_burner_is_moved_off_a_cpu_by_its_affinity", false);
    }
}
