//! The ceiling on the volunteer's disk traffic. In: the counters of each disk with a mounted file system, and the
//! volunteer's own, five times a second while the volunteer runs. Out: `io.max` or `blkio.throttle.*`, set as the law
//! in `gleaner_planner::disk_bound` says, and events. The actor starts this thread. Disks that are mounted later have
//! no ceiling until the agent starts again; those that Xen domains are given later have one.
//!
//! If the thread cannot measure, the ceiling is the law's floor, and an event says so. Cgroup version 1 does not count
//! buffered writes for the volunteer, because the kernel writes them back later. There they count as the foreground's,
//! and the ceiling holds only synced and direct writes.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use gleaner_planner::disk_bound::{DiskBound as Law, DiskBoundSettings, DiskRates, DiskUse};
use gleaner_types::error::chain;
use gleaner_types::event::Event;
use gleaner_types::report::{Absence, AbsenceKind};
use gleaner_types::units::Fraction;
use procfs::process::MountInfo;

use super::cgroup::CgroupError;
use super::disk_threads::DiskThreads;
use super::managed::{ForeignWrite, Managed};
use super::restore::foreign_event;
use crate::facts::DeviceNumber;
use crate::hierarchies::CgroupVersion;
use crate::kernel_file::read_bounded;
use crate::levers::{AnyLever, CgroupFile, LeverError, LeverValue, Throttle};
use crate::roots::Roots;
use crate::xen::served::{self, whole_disk};

/// Time between two steps while the volunteer runs, and while it does not. (Chosen.)
const PERIOD: Duration = Duration::from_millis(200);
const LATENT_PERIOD: Duration = Duration::from_secs(1);
/// The sensor that tells of disks of Xen domains that pass by the ceiling.
const DOMAINS_SENSOR: &str = "disk bound of the volunteer's domains";
/// Bytes of a sector in a disk's `stat`, whatever the device's own.
const SECTOR: u64 = 512;
/// Longest file that is read.
const LONGEST: u64 = 1 << 20;
/// Most events kept for a caller that does not fetch them.
const EVENTS: usize = 16;

/// Why there is no ceiling, or it cannot follow. The text completes "because …".
#[derive(Debug, thiserror::Error)]
pub(super) enum DiskError {
    /// The config has switched it off.
    #[error("guard.disk_ceiling is off")]
    Off,
    /// The volunteer's cgroup has no such lever. On version 2 Gleaner does not switch the controller on, because that
    /// would affect other cgroups.
    #[error(
        "the volunteer is in no cgroup with `io.max` or `blkio.throttle`; on version 2 switch the controller io on: \
             echo +io >/sys/fs/cgroup/cgroup.subtree_control"
    )]
    NoController,
    /// No disk has a mounted file system, as where all of them are on another machine.
    #[error("no disk of this machine has a mounted file system")]
    NoDisk,
    /// A counter cannot be read or understood.
    #[error("`{}` cannot be read or understood", file.display())]
    Counter {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A ceiling cannot be read or set.
    #[error(transparent)]
    Lever(#[from] LeverError),
    /// A thread that serves a disk of a Xen domain cannot be moved into its cgroup.
    #[error("a thread that serves a disk of the volunteer's Xen domains cannot be moved into its cgroup")]
    Serving(#[source] io::Error),
    /// Its cgroup cannot be made.
    #[error(transparent)]
    Group(#[from] CgroupError),
    /// The system gives no thread.
    #[error("its thread cannot be started")]
    Thread(#[source] io::Error),
}

fn counter(file: &Path) -> impl FnOnce(io::Error) -> DiskError {
    move |source| DiskError::Counter { file: file.to_owned(), source }
}

/// The cgroup in which a volunteer's disk traffic can be held.
pub(super) fn group_of(dirs: &[PathBuf]) -> Result<(PathBuf, CgroupVersion), DiskError> {
    let with = |file: &str| dirs.iter().find(|dir| dir.join(file).exists());
    let v2 = with("io.max").map(|dir| (dir.clone(), CgroupVersion::V2));
    let v1 = || with("blkio.throttle.write_bps_device").map(|dir| (dir.clone(), CgroupVersion::V1));
    v2.or_else(v1).ok_or(DiskError::NoController)
}

/// The same, and those that are served to Xen domains.
pub(super) fn disks_and_served(roots: &Roots) -> Result<BTreeSet<DeviceNumber>, DiskError> {
    let served = served(&roots.sys);
    match disks(roots) {
        Err(DiskError::NoDisk) if !served.is_empty() => Ok(served),
        found => found.map(|found| found.union(&served).copied().collect()),
    }
}

/// The whole disks that are served to Xen domains.
fn served(sys: &Path) -> BTreeSet<DeviceNumber> {
    served::disks(sys).into_iter().map(|(_, disk)| disk).collect()
}

/// The whole disks that have a mounted file system which can be written.
pub(super) fn disks(roots: &Roots) -> Result<BTreeSet<DeviceNumber>, DiskError> {
    let file = roots.proc.join("self/mountinfo");
    let text = std::fs::read_to_string(&file).map_err(counter(&file))?;
    let mounts = text.lines().filter_map(|line| MountInfo::from_line(line).ok());
    let writable = mounts.filter(|mount| mount.mount_options.contains_key("rw"));
    let found: BTreeSet<DeviceNumber> = writable.filter_map(|mount| whole_disk(&roots.sys, &mount.majmin)).collect();
    if found.is_empty() { Err(DiskError::NoDisk) } else { Ok(found) }
}

/// The levers of these disks, with what they are set to.
pub(super) fn levers(
    dir: &Path,
    version: CgroupVersion,
    disks: &BTreeSet<DeviceNumber>,
) -> Result<Vec<Managed>, DiskError> {
    let lever = |disk: &DeviceNumber| AnyLever::new(dir, version, CgroupFile::Disk(*disk));
    disks.iter().map(|disk| Ok(Managed::new(lever(disk), lever(disk).read()?))).collect()
}

/// What would hold a volunteer's disk traffic on this host, in a sentence. Nothing is changed.
pub(super) fn foreseen(wanted: bool, roots: &Roots, controller: Option<CgroupVersion>) -> String {
    foreseen_on(wanted, controller, || disks(roots))
}

/// The same for a volunteer of Xen domains.
pub(super) fn foreseen_on_domains(wanted: bool, roots: &Roots, controller: Option<CgroupVersion>) -> String {
    foreseen_on(wanted, controller, || disks_and_served(roots))
}

fn foreseen_on(
    wanted: bool,
    controller: Option<CgroupVersion>,
    disks: impl FnOnce() -> Result<BTreeSet<DeviceNumber>, DiskError>,
) -> String {
    let found = match (wanted, controller) {
        (false, _) => Err(DiskError::Off),
        (true, None) => Err(DiskError::NoController),
        (true, Some(version)) => disks().map(|disks| (version, disks)),
    };
    match found {
        Ok((version, disks)) => {
            let names: Vec<String> = disks.iter().map(ToString::to_string).collect();
            let by = match version {
                CgroupVersion::V1 => "blkio.throttle, which buffered writes escape",
                CgroupVersion::V2 => "io.max",
            };
            format!("the volunteer's disk traffic has a ceiling on {}, by {by}", names.join(", "))
        }
        Err(error) => format!("the volunteer's disk traffic has no ceiling, because {}", chain(&error)),
    }
}

#[derive(Debug, Default)]
struct Inner {
    quit: bool,
    events: Vec<Event>,
    /// What of the volunteer's disk traffic has no ceiling.
    passing_by: Option<String>,
}

#[derive(Debug, Default)]
struct Shared {
    inner: Mutex<Inner>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic of another holder leaves plain values, valid in any combination.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread that holds the ceilings. When it is dropped they stay as they are: the ledger has what was found.
#[derive(Debug)]
pub(super) struct DiskBound {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl DiskBound {
    /// Puts the floor in force on each lever, which the ledger must know, and starts the thread. `is_active` tells whether
    /// the volunteer may run; `pressure` is its cgroup's own file of waiting for disks.
    pub(super) fn start(
        roots: &Roots,
        levers: Vec<Managed>,
        pressure: Option<PathBuf>,
        threads: Option<DiskThreads>,
        is_active: impl Fn() -> bool + Send + 'static,
    ) -> Result<Self, DiskError> {
        let mut holder = Holder { threads, ..Holder::new(roots, levers, pressure) };
        let met = holder.rest()?;
        let shared = Arc::<Shared>::default();
        shared.lock().events.extend(met.iter().map(foreign_event));
        let on_thread = Arc::clone(&shared);
        let run = move || hold(&on_thread, &mut holder, is_active);
        let thread = thread::Builder::new().name("disk-bound".to_owned()).spawn(run).map_err(DiskError::Thread)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// What happened since the last call.
    pub(super) fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut self.shared.lock().events)
    }

    /// Why a part of the volunteer's disk traffic has no ceiling; `None` where all is held as far as known.
    pub(super) fn lacking(&self) -> Option<String> {
        self.shared.lock().passing_by.clone()
    }
}

impl Drop for DiskBound {
    fn drop(&mut self) {
        self.shared.lock().quit = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic in the thread has been printed.
            let _ = thread.join();
        }
    }
}

/// The thread.
fn hold(shared: &Shared, holder: &mut Holder, is_active: impl Fn() -> bool) {
    let mut failing = false;
    loop {
        let active = is_active();
        let outcome = holder.follow(Instant::now());
        let outcome = outcome.and_then(|()| if active { holder.step(Instant::now()) } else { holder.rest() });
        // What cannot be set now is tried again at the next step.
        let outcome = outcome.inspect_err(|_| drop(holder.rest()));
        // Not while it is locked: it may wait for a helper.
        let passing_by = holder.threads.as_ref().and_then(DiskThreads::passing_by);
        let mut inner = shared.lock();
        let mut events: Vec<Event> = outcome.iter().flatten().map(foreign_event).collect();
        if outcome.is_err() != failing {
            failing = outcome.is_err();
            let reason = outcome.err().map(|error| chain(&error));
            if let Some(reason) = &reason {
                tracing::warn!(reason, "the volunteer's disk traffic cannot be measured; it has the least ceiling");
            }
            let absent = reason.map(|reason| Absence::described(AbsenceKind::Vanished, reason));
            events.push(Event::SensorChanged { sensor: "disk bound".to_owned(), absent });
        }
        if passing_by != inner.passing_by && inner.events.len() + events.len() < EVENTS {
            let absent = passing_by.as_ref().map(|what| {
                let why = format!("a part of the volunteer's disk traffic has no ceiling, because {what}");
                Absence::described(AbsenceKind::NotSupported, why)
            });
            events.push(Event::SensorChanged { sensor: DOMAINS_SENSOR.to_owned(), absent });
            inner.passing_by = passing_by;
        }
        let room = EVENTS.saturating_sub(inner.events.len());
        inner.events.extend(events.into_iter().take(room));
        let period = if active { PERIOD } else { LATENT_PERIOD };
        let waited = shared.changed.wait_timeout_while(inner, period, |inner| !inner.quit);
        if waited.unwrap_or_else(PoisonError::into_inner).0.quit {
            return;
        }
    }
}

/// Counters of reads and writes, in the order of [`DiskRates`]: bytes read, bytes written, reads, writes.
type Counts = [u64; 4];

/// One disk.
#[derive(Debug)]
struct Disk {
    number: DeviceNumber,
    lever: Managed,
    law: Law,
    last: Option<(Instant, Counts, Counts)>,
}

impl Disk {
    /// `None` for what is no lever of a disk.
    fn new(lever: Managed) -> Option<Self> {
        let CgroupFile::Disk(number) = lever.lever.as_cgroup()?.kind else { return None };
        Some(Self { number, lever, law: Law::new(DiskBoundSettings::default()), last: None })
    }

    fn set(&mut self, ceiling: Option<DiskRates>) -> Result<Option<ForeignWrite>, DiskError> {
        let wanted = LeverValue::Throttle(throttle(ceiling, &self.lever.original));
        if *self.lever.ours() == wanted && !self.lever.has_drifted() {
            return Ok(None);
        }
        Ok(self.lever.set(wanted)?)
    }
}

/// What the thread owns.
#[derive(Debug)]
struct Holder {
    sys: PathBuf,
    /// Files of waiting for disks: the host's and the volunteer's.
    pressures: Option<[PathBuf; 2]>,
    waited: Option<(Instant, [u64; 2])>,
    disks: Vec<Disk>,
    /// What serves the disks of Xen domains.
    threads: Option<DiskThreads>,
}

impl Holder {
    fn new(roots: &Roots, levers: Vec<Managed>, pressure: Option<PathBuf>) -> Self {
        Self {
            sys: roots.sys.clone(),
            pressures: pressure.map(|own| [roots.proc.join("pressure/io"), own]),
            waited: None,
            disks: levers.into_iter().filter_map(Disk::new).collect(),
            threads: None,
        }
    }

    /// Threads that serve the disks of Xen domains come with them, and so do disks.
    fn follow(&mut self, now: Instant) -> Result<(), DiskError> {
        let Some(threads) = self.threads.as_ref().filter(|threads| threads.is_due(now)) else { return Ok(()) };
        let (group, version) = threads.group();
        let block = self.sys.join("dev/block");
        // One that is gone cannot be measured, and carries nothing.
        self.disks.retain(|disk| block.join(disk.number.to_string()).exists());
        let mut result = Ok(());
        for number in served(&self.sys) {
            if self.disks.iter().any(|disk| disk.number == number) {
                continue;
            }
            // They need no record: the group is Gleaner's, and is removed with them.
            match Self::late(group, version, number) {
                Ok(late) => self.disks.extend(late),
                Err(error) => result = Err(error),
            }
        }
        // Those of the other disks are held all the same.
        let gathered = threads.gather().map_err(DiskError::Serving);
        result.and(gathered)?;
        if let Some(threads) = &mut self.threads {
            threads.has_looked(now);
        }
        Ok(())
    }

    /// A disk that came late, at its least ceiling.
    fn late(group: &Path, version: CgroupVersion, number: DeviceNumber) -> Result<Vec<Disk>, DiskError> {
        let found = levers(group, version, &BTreeSet::from([number]))?;
        let mut disks: Vec<Disk> = found.into_iter().filter_map(Disk::new).collect();
        for disk in &mut disks {
            // What was read a moment ago is nobody else's.
            disk.set(disk.law.ceiling())?;
        }
        Ok(disks)
    }

    /// The volunteer does not run, or is not measured: the least ceilings, and the law begins anew.
    fn rest(&mut self) -> Result<Vec<ForeignWrite>, DiskError> {
        self.waited = None;
        let mut met = Vec::new();
        for disk in &mut self.disks {
            disk.law.reset();
            disk.last = None;
            met.extend(disk.set(disk.law.ceiling())?);
        }
        Ok(met)
    }

    /// Reads every disk's counters and sets the ceilings that follow.
    fn step(&mut self, now: Instant) -> Result<Vec<ForeignWrite>, DiskError> {
        let waiting = self.waiting(now);
        let mut met = Vec::new();
        for disk in &mut self.disks {
            let file = self.sys.join("dev/block").join(disk.number.to_string()).join("stat");
            let text = read_bounded(&file, LONGEST).map_err(counter(&file))?;
            let all = stat(&text).ok_or_else(|| counter(&file)(io::ErrorKind::InvalidData.into()))?;
            let own = own(&disk.lever, disk.number)?;
            // The first step only starts an interval.
            let Some((at, all_before, own_before)) = disk.last.replace((now, all, own)) else { continue };
            let interval_s = now.duration_since(at).as_secs_f64();
            let sample = DiskUse {
                device: rates(all_before, all, interval_s),
                volunteer: rates(own_before, own, interval_s),
                waiting,
            };
            let ceiling = disk.law.step(sample, interval_s);
            met.extend(disk.set(ceiling)?);
        }
        Ok(met)
    }

    /// Part of the time in which some task of the host waited for disks, less that in which one of the volunteer's did.
    fn waiting(&mut self, now: Instant) -> Option<Fraction> {
        let total = |file: &PathBuf| {
            let text = read_bounded(file, LONGEST).ok()?;
            let some = text.lines().find(|line| line.starts_with("some "))?;
            some.split_whitespace().find_map(|field| field.strip_prefix("total=")?.parse::<u64>().ok())
        };
        let [host, own] = self.pressures.as_ref()?;
        let totals = [total(host)?, total(own)?];
        let (at, before) = self.waited.replace((now, totals))?;
        let interval_us = now.duration_since(at).as_secs_f64() * 1e6;
        let waited_us = |which: usize| totals[which].saturating_sub(before[which]) as f64;
        (interval_us > 0.0).then(|| Fraction::clamped((waited_us(0) - waited_us(1)) / interval_us))
    }
}

/// Ceilings as the kernel takes them, never above those that were found: they are the operator's.
fn throttle(ceiling: Option<DiskRates>, found: &LeverValue) -> Throttle {
    let found = match found {
        LeverValue::Throttle(found) => *found,
        _ => Throttle::default(),
    };
    let Some(rates) = ceiling else { return found };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate of at least 0; `as` saturates")]
    let least = |rate: f64, found: Option<u64>| {
        let rate = (rate as u64).max(1);
        Some(found.map_or(rate, |found| found.min(rate)))
    };
    Throttle {
        read_bytes: least(rates.read_bytes, found.read_bytes),
        write_bytes: least(rates.write_bytes, found.write_bytes),
        // The kernel keeps these in 32 bits.
        read_operations: least(rates.read_operations.min(f64::from(u32::MAX)), found.read_operations),
        write_operations: least(rates.write_operations.min(f64::from(u32::MAX)), found.write_operations),
    }
}

fn rates(before: Counts, now: Counts, interval_s: f64) -> DiskRates {
    let rate = |which: usize| {
        let counted = now[which].saturating_sub(before[which]) as f64;
        if interval_s > 0.0 { counted / interval_s } else { 0.0 }
    };
    DiskRates { read_bytes: rate(0), write_bytes: rate(1), read_operations: rate(2), write_operations: rate(3) }
}

/// A disk's `stat`: reads, merged ones, sectors, time; the same of writes; and more.
fn stat(text: &str) -> Option<Counts> {
    let numbers: Vec<u64> = text.split_whitespace().map_while(|number| number.parse().ok()).collect();
    let [reads, _, sectors_read, _, writes, _, sectors_written, ..] = numbers[..] else { return None };
    Some([sectors_read.wrapping_mul(SECTOR), sectors_written.wrapping_mul(SECTOR), reads, writes])
}

/// What the volunteer's cgroup did on a disk; a disk that it has not used has no line.
fn own(lever: &Managed, disk: DeviceNumber) -> Result<Counts, DiskError> {
    let Some(group) = lever.lever.as_cgroup() else { return Ok(Counts::default()) };
    let read = |name: &str| {
        let file = group.cgroup.join(name);
        read_bounded(&file, LONGEST).map_err(counter(&file))
    };
    Ok(match group.version {
        CgroupVersion::V2 => io_stat(&read("io.stat")?, disk),
        CgroupVersion::V1 => {
            let [read_bytes, write_bytes] = blkio(&read("blkio.throttle.io_service_bytes_recursive")?, disk);
            let [reads, writes] = blkio(&read("blkio.throttle.io_serviced_recursive")?, disk);
            [read_bytes, write_bytes, reads, writes]
        }
    })
}

/// "254:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0".
fn io_stat(text: &str, disk: DeviceNumber) -> Counts {
    let start = format!("{disk} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&start)).unwrap_or_default();
    let field =
        |key: &str| line.split_whitespace().find_map(|field| field.strip_prefix(key)?.strip_prefix('=')?.parse().ok());
    ["rbytes", "wbytes", "rios", "wios"].map(|key| field(key).unwrap_or(0))
}

/// "254:0 Read 1", "254:0 Write 2", and others.
fn blkio(text: &str, disk: DeviceNumber) -> [u64; 2] {
    ["Read", "Write"].map(|operation| {
        let start = format!("{disk} {operation} ");
        text.lines().find_map(|line| line.strip_prefix(&start)?.trim().parse().ok()).unwrap_or(0)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use gleaner_types::command::{Command, Desired, Outcome, Quota, Target, Version};
    use gleaner_types::time::Timestamp;

    use super::*;
    use crate::act::tests::scene::{Scene, eventually};
    use crate::act::{ActSettings, Actor, Bound};

    /// A disk 8:0 with a mounted partition 8:1, and a cgroup.
    fn scene() -> (tempfile::TempDir, Roots) {
        let dir = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| {
            let file = dir.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        put("sys/devices/sda/dev", "8:0\n");
        put("sys/devices/sda/stat", "0 0 0 0 0 0 0 0 0 0 0\n");
        put("sys/devices/sda/sda1/dev", "8:1\n");
        put("sys/devices/sda/sda1/partition", "1\n");
        fs::create_dir_all(dir.path().join("sys/dev/block")).unwrap();
        for (number, device) in [("8:0", "sda"), ("8:1", "sda/sda1")] {
            let device = dir.path().join("sys/devices").join(device);
            std::os::unix::fs::symlink(device, dir.path().join("sys/dev/block").join(number)).unwrap();
        }
        put(
            "proc/self/mountinfo",
            "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n30 22 0:40 / /x rw - tmpfs none rw\n31 22 7:9 / /y ro - ext4 z ro\n",
        );
        put("cg/io.max", "");
        put("cg/io.stat", "");
        let roots = Roots { proc: dir.path().join("proc"), sys: dir.path().join("sys"), ..Roots::default() };
        (dir, roots)
    }

    #[test]
    fn a_partitions_disk_is_held_and_what_is_no_disk_is_not() {
        let (dir, roots) = scene();
        let found = disks(&roots).unwrap();
        assert_eq!(found, BTreeSet::from(["8:0".parse().unwrap()]));
        assert_eq!(group_of(&[dir.path().join("no"), dir.path().join("cg")]).unwrap().1, CgroupVersion::V2);
        assert!(matches!(group_of(&[dir.path().join("no")]), Err(DiskError::NoController)));
        assert!(
            foreseen(true, &roots, Some(CgroupVersion::V1))
                .ends_with("on 8:0, by blkio.throttle, which buffered writes escape")
        );
        assert!(foreseen(false, &roots, None).ends_with("because guard.disk_ceiling is off"));
    }

    #[test]
    fn the_ceiling_opens_on_an_idle_disk_and_falls_at_once_beside_a_foreground() {
        let (dir, roots) = scene();
        let levers = levers(&dir.path().join("cg"), CgroupVersion::V2, &disks(&roots).unwrap()).unwrap();
        let mut holder = Holder::new(&roots, levers, None);
        let read = || fs::read_to_string(dir.path().join("cg/io.max")).unwrap();
        holder.rest().unwrap();
        assert_eq!(read(), "8:0 rbps=2000000 wbps=2000000 riops=20 wiops=20");
        let mut now = Instant::now();
        for _ in 0..100 {
            holder.step(now).unwrap();
            now += PERIOD;
        }
        assert_eq!(read(), "8:0 rbps=max wbps=max riops=max wiops=max");
        // 100 writes of 8 KiB in 0.2 s, none of them the volunteer's.
        fs::write(dir.path().join("sys/devices/sda/stat"), "0 0 0 0 100 0 1600 0 0 0 0\n").unwrap();
        holder.step(now).unwrap();
        assert_eq!(read(), "8:0 rbps=2000000 wbps=2000000 riops=20 wiops=20", "in one step");
        fs::write(dir.path().join("sys/devices/sda/stat"), "nonsense\n").unwrap();
        assert!(matches!(holder.step(now + PERIOD), Err(DiskError::Counter { .. })));
    }

    #[test]
    fn a_disk_that_a_domain_is_given_later_is_held_and_one_that_is_gone_is_forgotten() {
        let (dir, roots) = scene();
        let group = dir.path().join("cg");
        let levers = levers(&group, CgroupVersion::V2, &disks_and_served(&roots).unwrap()).unwrap();
        let mut holder = Holder::new(&roots, levers, None);
        holder.threads = Some(DiskThreads::new(&roots.proc, group.clone(), CgroupVersion::V2));
        let numbers =
            |holder: &Holder| -> Vec<String> { holder.disks.iter().map(|disk| disk.number.to_string()).collect() };
        let now = Instant::now();
        holder.follow(now).unwrap();
        assert_eq!(numbers(&holder), ["8:0"]);

        let sdb = dir.path().join("sys/devices/sdb");
        let vbd = dir.path().join("sys/bus/xen-backend/devices/vbd-1-51712");
        fs::create_dir_all(&sdb).unwrap();
        fs::create_dir_all(&vbd).unwrap();
        fs::write(sdb.join("dev"), "8:16\n").unwrap();
        fs::write(sdb.join("stat"), "0 0 0 0 0 0 0 0 0 0 0\n").unwrap();
        std::os::unix::fs::symlink(&sdb, dir.path().join("sys/dev/block/8:16")).unwrap();
        fs::write(vbd.join("physical_device"), "8:10\n").unwrap();
        let soon = now + Duration::from_millis(100);
        holder.follow(soon).unwrap();
        assert_eq!(numbers(&holder), ["8:0"], "looked for from time to time");
        let later = now + Duration::from_secs(2);
        holder.follow(later).unwrap();
        assert_eq!(numbers(&holder), ["8:0", "8:16"]);
        let least = "8:16 rbps=2000000 wbps=2000000 riops=20 wiops=20";
        assert_eq!(fs::read_to_string(group.join("io.max")).unwrap(), least);
        holder.step(later).unwrap();

        fs::remove_dir_all(&vbd).unwrap();
        fs::remove_file(dir.path().join("sys/dev/block/8:16")).unwrap();
        assert!(holder.step(later).is_err());
        let last = later + Duration::from_secs(2);
        holder.follow(last).unwrap();
        holder.step(last).unwrap();
        assert_eq!(numbers(&holder), ["8:0"]);

        // One that cannot be held is told with each step, until it can be.
        fs::create_dir_all(&vbd).unwrap();
        fs::write(vbd.join("physical_device"), "8:10\n").unwrap();
        std::os::unix::fs::symlink(&sdb, dir.path().join("sys/dev/block/8:16")).unwrap();
        fs::remove_file(group.join("io.max")).unwrap();
        let again = last + Duration::from_secs(2);
        assert!(holder.follow(again).is_err() && holder.follow(again).is_err());
        fs::write(group.join("io.max"), "").unwrap();
        holder.follow(again).unwrap();
        assert_eq!(numbers(&holder), ["8:0", "8:16"]);
    }

    #[test]
    fn counters_of_both_versions() {
        let disk = "8:0".parse().unwrap();
        assert_eq!(io_stat("8:16 rbytes=9\n8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0\n", disk), [1, 2, 3, 4]);
        assert_eq!(blkio("8:0 Read 5\n8:0 Write 6\n8:0 Total 11\nTotal 11\n", disk), [5, 6]);
        assert_eq!((io_stat("", disk), blkio("8:0 Read x\n", disk)), ([0; 4], [0; 2]));
        assert_eq!(stat("1 0 8 0 2 0 16 0"), Some([4096, 8192, 1, 2]));
        assert_eq!(stat("1 0 8"), None);
    }

    #[test]
    fn an_operators_ceiling_is_never_raised() {
        let found = LeverValue::Throttle(Throttle { write_bytes: Some(7), ..Throttle::default() });
        let rates = DiskRates { write_bytes: 1e6, read_bytes: 0.1, ..DiskRates::default() };
        let held = throttle(Some(rates), &found);
        assert_eq!((held.write_bytes, held.read_bytes), (Some(7), Some(1)));
        assert_eq!(throttle(None, &found), Throttle { write_bytes: Some(7), ..Throttle::default() });
    }

    #[test]
    fn a_real_volunteer_is_held_on_every_disk_and_nothing_is_left_of_it() {
        let test = "a_real_volunteer_is_held_on_every_disk_and_nothing_is_left_of_it";
        let Some(scene) = Scene::open(test) else { return };
        let settings = ActSettings { disk_ceiling: true, required: vec![Bound::Disk], ..scene.settings() };
        let (mut actor, _) = Actor::open(settings, &scene.hierarchies).unwrap();
        let found = group_of(actor.volunteer_cgroups()).and_then(|(dir, version)| {
            let held = levers(&dir, version, &disks(&Roots::default())?)?;
            Ok((dir, version, held))
        });
        let command = Command {
            target: Target::Volunteer,
            version: Version { epoch: 1, number: 1 },
            lease_ms: 60_000,
            desired: Desired::Run { cap: Quota::Unlimited },
        };
        let outcome = actor.apply(&command, Timestamp(1_000_000)).outcome;
        match found {
            Ok((dir, version, held)) => {
                assert!(!held.is_empty() && matches!(outcome, Outcome::Applied { .. }), "{outcome:?}");
                for lever in &held {
                    let LeverValue::Throttle(throttle) = &lever.original else { panic!("{lever:?}") };
                    assert!(throttle.write_bytes.is_some() && throttle.read_operations.is_some(), "{throttle:?}");
                }
                let weaknesses = actor.levers().weaknesses.join("\n");
                assert_eq!(weaknesses.contains("synced and direct writes only"), version == CgroupVersion::V1);
                eventually("the ceiling opens", || held.iter().any(|held| held.lever.read().unwrap() != held.original));
                assert!(actor.restore_all().failed.is_empty());
                assert!(!dir.exists());
            }
            Err(error) => {
                assert!(matches!(outcome, Outcome::Refused { .. }), "{outcome:?}");
                gleaner_test_support::skipped!("{test}: no ceiling here: {}", chain(&error));
            }
        }
    }
}
