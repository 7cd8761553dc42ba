//! Control files of one cgroup, on version 1 and version 2 hierarchies. In: typed values. Out: CPU ceiling, weight,
//! idle class, freezer, memory, disk ceilings and disk weight, written and read. Called through the catalogue.

use std::fmt;
use std::io;
use std::path::PathBuf;

use gleaner_types::report::{Capability, Reason};
use gleaner_types::units::Bytes;
use serde::{Deserialize, Serialize};

use super::error::LeverError;
use super::lever::Lever;
use super::offer::{Finding, Host, absent, writable};
use super::place::{Found, Group, Place};
use super::plan::{Planned, Shortfall, Wanted, plan};
use super::role::{Kind, Role};
use super::scale::Scale;
use super::value::{LeverValue, Throttle};
use crate::facts::{DeviceNumber, DiskWeighing};
use crate::hierarchies::CgroupVersion;
use crate::kernel_file::{names, read_bounded, write_existing};
use crate::xen::is_control_domain;

/// Periods the kernel takes, in microseconds.
const PERIOD_US: std::ops::RangeInclusive<u64> = 1_000..=1_000_000;
/// Memory limits from here on are "unlimited" of version 1 (the largest number of pages there is, in bytes).
const NO_MEMORY_LIMIT: u64 = 1 << 62;
/// Longest file with a line per device that is looked at.
const DEVICE_LINES: u64 = 64 << 10;

/// What a control file does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CgroupFile {
    /// Ceiling on CPU time per period: `cpu.cfs_quota_us` with `cpu.cfs_period_us`, or `cpu.max`.
    Quota,
    /// Share under contention: `cpu.shares` or `cpu.weight`.
    Weight,
    /// The idle class of the scheduler: `cpu.idle` on both versions, since Linux 5.15.
    Idle,
    /// Stops every task: `freezer.state` or `cgroup.freeze`.
    Freezer,
    /// Memory beyond which the kernel reclaims, without ever killing: `memory.high`, or
    /// `memory.soft_limit_in_bytes`, which the kernel heeds only when the whole host is short.
    Memory,
    /// Ceilings on one disk: `io.max`, or the four `blkio.throttle.*_device` files. Version 1 does not see
    /// buffered writes, which the kernel writes back on nobody's account.
    Disk(DeviceNumber),
    /// Share of the disks under contention: `io.weight` (in force where `io.cost.qos` enables it) or `blkio.weight`.
    DiskWeight,
    /// The same by the BFQ scheduler: `io.bfq.weight` or `blkio.bfq.weight`.
    BfqWeight,
    /// Memory that cannot be exceeded: beyond it the kernel kills in the cgroup: `memory.max` or
    /// `memory.limit_in_bytes`.
    MemoryMax,
    /// Swap beyond that: `memory.swap.max`; or memory and swap together, `memory.memsw.limit_in_bytes`.
    SwapMax,
    /// When memory runs out in the cgroup all of it is killed, not one process: `memory.oom.group`, version 2 alone.
    OomGroup,
    /// Processes and threads that there may be: `pids.max`.
    Pids,
    /// CPUs that its tasks may run on, as the kernel writes a list: `cpuset.cpus`. Empty, in version 2 alone, is those of the
    /// cgroup above.
    Cpus,
}

/// One control file of one cgroup.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CgroupLever {
    /// The cgroup's folder.
    pub cgroup: PathBuf,
    /// Version of its hierarchy.
    pub version: CgroupVersion,
    /// What it does.
    pub kind: CgroupFile,
}

/// The parsers of lines per device, for the fuzz targets.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(data: &[u8]) {
    let device = DeviceNumber { major: 8, minor: 0 };
    let lever = CgroupLever { cgroup: PathBuf::new(), version: CgroupVersion::V2, kind: CgroupFile::Disk(device) };
    if let Ok(text) = std::str::from_utf8(data) {
        _ = lever.io_max(device, text);
        _ = text.parse::<DeviceNumber>();
    }
}

const V1_PERIOD: &str = "cpu.cfs_period_us";
/// Files of version 1 for ceilings on a disk, in the order of [`Throttle`]'s fields.
pub(super) const V1_THROTTLE: [&str; 4] = [
    "blkio.throttle.read_bps_device",
    "blkio.throttle.write_bps_device",
    "blkio.throttle.read_iops_device",
    "blkio.throttle.write_iops_device",
];

impl CgroupLever {
    /// Name of the file that sets it; of ceilings on a disk in version 1 the first of four.
    #[must_use]
    pub fn file(&self) -> &'static str {
        use CgroupVersion::{V1, V2};
        match (self.kind, self.version) {
            (CgroupFile::Quota, V1) => "cpu.cfs_quota_us",
            (CgroupFile::Quota, V2) => "cpu.max",
            (CgroupFile::Weight, V1) => "cpu.shares",
            (CgroupFile::Weight, V2) => "cpu.weight",
            (CgroupFile::Idle, _) => "cpu.idle",
            (CgroupFile::Freezer, V1) => "freezer.state",
            (CgroupFile::Freezer, V2) => "cgroup.freeze",
            (CgroupFile::Memory, V1) => "memory.soft_limit_in_bytes",
            (CgroupFile::Memory, V2) => "memory.high",
            (CgroupFile::Disk(_), V1) => V1_THROTTLE[0],
            (CgroupFile::Disk(_), V2) => "io.max",
            (CgroupFile::DiskWeight, V1) => "blkio.weight",
            (CgroupFile::DiskWeight, V2) => "io.weight",
            (CgroupFile::BfqWeight, V1) => "blkio.bfq.weight",
            (CgroupFile::BfqWeight, V2) => "io.bfq.weight",
            (CgroupFile::MemoryMax, V1) => "memory.limit_in_bytes",
            (CgroupFile::MemoryMax, V2) => "memory.max",
            (CgroupFile::SwapMax, V1) => "memory.memsw.limit_in_bytes",
            (CgroupFile::SwapMax, V2) => "memory.swap.max",
            (CgroupFile::OomGroup, _) => "memory.oom.group",
            (CgroupFile::Pids, _) => "pids.max",
            (CgroupFile::Cpus, _) => "cpuset.cpus",
        }
    }

    /// Path of the file that sets it.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.cgroup.join(self.file())
    }

    /// A device's line of `io.max`: "254:0 rbps=1048576 wbps=max riops=max wiops=max"; no line is no ceiling.
    fn io_max(&self, device: DeviceNumber, text: &str) -> Result<Throttle, LeverError> {
        let mut throttle = Throttle::default();
        for field in self.line_of(device, text).unwrap_or_default().split_whitespace() {
            let (key, limit) = field.split_once('=').unwrap_or((field, ""));
            let slot = match key {
                "rbps" => &mut throttle.read_bytes,
                "wbps" => &mut throttle.write_bytes,
                "riops" => &mut throttle.read_operations,
                "wiops" => &mut throttle.write_operations,
                _ => return Err(self.malformed("io.max", text, "rbps, wbps, riops and wiops")),
            };
            *slot = self.limit("io.max", limit)?;
        }
        Ok(throttle)
    }

    /// What follows a device's number in a file with a line per device.
    fn line_of<'t>(&self, device: DeviceNumber, text: &'t str) -> Option<&'t str> {
        let start = format!("{device} ");
        text.lines().find_map(|line| line.strip_prefix(&start)).map(str::trim)
    }

    fn what(&self, file: &str) -> String {
        let group = self.cgroup.file_name().unwrap_or(self.cgroup.as_os_str()).to_string_lossy();
        format!("`{file}` of `{group}`")
    }

    fn read_file(&self, file: &'static str) -> Result<String, LeverError> {
        let text = read_bounded(&self.cgroup.join(file), DEVICE_LINES)
            .map_err(|source: io::Error| LeverError::Read { what: self.what(file), source })?;
        Ok(text.trim_end().to_owned())
    }

    fn write_file(&self, file: &'static str, value: &str) -> Result<(), LeverError> {
        write_existing(&self.cgroup.join(file), value).map_err(|source| LeverError::Write {
            value: value.to_owned(),
            what: self.what(file),
            source,
        })
    }

    fn number(&self, file: &'static str, text: &str) -> Result<u64, LeverError> {
        text.parse().map_err(|_| self.malformed(file, text, "a whole number"))
    }

    /// A number, or "max" for none.
    fn limit(&self, file: &'static str, text: &str) -> Result<Option<u64>, LeverError> {
        if text == "max" { Ok(None) } else { self.number(file, text).map(Some) }
    }

    fn period(&self, file: &'static str, text: &str) -> Result<u64, LeverError> {
        let period = self.number(file, text)?;
        if PERIOD_US.contains(&period) {
            Ok(period)
        } else {
            Err(self.malformed(file, text, "a period of 1000 to 1000000 microseconds"))
        }
    }

    fn flag(&self, file: &'static str, text: &str) -> Result<bool, LeverError> {
        match text {
            "0" => Ok(false),
            "1" => Ok(true),
            _ => Err(self.malformed(file, text, "0 or 1")),
        }
    }

    fn malformed(&self, file: &str, text: &str, expected: &'static str) -> LeverError {
        LeverError::Malformed { what: self.what(file), text: text.chars().take(64).collect(), expected }
    }
}

/// Kinds of lever on one cgroup.
const KINDS: &[Kind] = &[
    Kind {
        name: "CPU ceiling of a cgroup",
        does: "CPU time per period: `cpu.max`, or `cpu.cfs_quota_us` with its period",
        exists: "cgroup version 1 and 2, controller `cpu`",
        restored: "the original quota and period",
        capability: Some(Capability::CpuQuota),
    },
    Kind {
        name: "CPU weight of a cgroup",
        does: "share of the CPU under contention: `cpu.weight` or `cpu.shares`",
        exists: "cgroup version 1 and 2, controller `cpu`",
        restored: "the original weight",
        capability: Some(Capability::CpuWeight),
    },
    Kind {
        name: "idle class of a cgroup",
        does: "the volunteer yields outright: `cpu.idle`",
        exists: "Linux 5.15, controller `cpu`",
        restored: "out of the class, then the original weight",
        capability: Some(Capability::CpuIdle),
    },
    Kind {
        name: "freezer of a cgroup",
        does: "stops every task of the volunteer: `cgroup.freeze` or `freezer.state`",
        exists: "cgroup version 2, or version 1 with the controller `freezer`",
        restored: "thawed",
        capability: Some(Capability::Freezer),
    },
    Kind {
        name: "memory of a cgroup",
        does: "memory beyond which the kernel reclaims: `memory.high`, or `memory.soft_limit_in_bytes`",
        exists: "controller `memory`; not for a guest with a balloon",
        restored: "the original limit",
        capability: Some(Capability::MemoryLimit),
    },
    Kind {
        name: "disk ceilings of a cgroup",
        does: "bytes and operations per second on each disk: `io.max` or `blkio.throttle.*`",
        exists: "controller `io` or `blkio`; on version 1 not for a guest with a monitor",
        restored: "the original ceilings, by device",
        capability: Some(Capability::DiskLimit),
    },
    Kind {
        name: "disk weight of a cgroup",
        does: "share of the disks under contention: `io.weight`, `io.bfq.weight` or `blkio.weight`",
        exists: "a disk with `io.cost`, BFQ or CFQ",
        restored: "the original weight",
        capability: Some(Capability::DiskWeight),
    },
    Kind {
        name: "memory bound of the volunteer",
        does: "memory that it cannot exceed: `memory.max` and `memory.high`, or `memory.limit_in_bytes`",
        exists: "controller `memory`",
        restored: "the original limits; a cgroup that Gleaner made goes away",
        capability: None,
    },
    Kind {
        name: "swap of the volunteer",
        does: "no swap: `memory.swap.max`, or `memory.memsw.limit_in_bytes` with the memory bound",
        exists: "controller `memory` with swap accounting",
        restored: "the original limit; a cgroup that Gleaner made goes away",
        capability: None,
    },
    Kind {
        name: "end of a volunteer out of memory",
        does: "the kernel kills all of it, not one process: `memory.oom.group`",
        exists: "cgroup version 2, controller `memory`",
        restored: "the original value; a cgroup that Gleaner made goes away",
        capability: None,
    },
    Kind {
        name: "processes of the volunteer",
        does: "processes and threads that there may be: `pids.max`",
        exists: "controller `pids`",
        restored: "the original limit; a cgroup that Gleaner made goes away",
        capability: None,
    },
    Kind {
        name: "CPUs of the volunteer",
        does: "CPUs that it may run on, so that others are kept free for the foreground: `cpuset.cpus` (`guard.follow_harm`, `guard.idle_buffer`)",
        exists: "controller `cpuset`; on version 2 where it is switched on for others already",
        restored: "the original CPUs; a cgroup that Gleaner made goes away",
        capability: None,
    },
];

fn cpu_quota(host: &Host<'_>) -> Finding {
    let means = host.controller("cpu", "cpu", "cpu.cfs_quota_us", "cpu.max")?;
    if host.roots.proc.join("sys/kernel/sched_cfs_bandwidth_slice_us").exists() {
        return Ok(means);
    }
    absent(Reason::NoBandwidthControl)
}

fn cpu_idle(host: &Host<'_>) -> Finding {
    host.controller("cpu", "cpu", "", "")?;
    if host.kernel_at_least((5, 15)) { Ok("cpu.idle".to_owned()) } else { absent(Reason::KernelTooOld) }
}

fn freezer(host: &Host<'_>) -> Finding {
    match (host.hierarchies.v1.get("freezer"), &host.hierarchies.v2) {
        (Some(mount), _) => writable(mount, "freezer.state"),
        (None, Some(mount)) => writable(mount, "cgroup.freeze"),
        (None, None) => absent(Reason::NoFreezer),
    }
}

fn disk_weight(host: &Host<'_>) -> Finding {
    host.controller("blkio", "io", "", "")?;
    let disks = host.roots.sys.join("block");
    let is_bfq = |disk: &String| {
        let text = std::fs::read_to_string(disks.join(disk).join("queue/scheduler"));
        text.is_ok_and(|text| text.contains("[bfq]"))
    };
    if let Some(disk) = names(&disks).iter().find(|disk| is_bfq(disk)) {
        return Ok(format!("the bfq scheduler of {disk}"));
    }
    let cost = host.hierarchies.v2.as_ref().map(|mount| mount.join("io.cost.qos"));
    let text = cost.and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
    if text.lines().any(|line| line.split_whitespace().any(|word| word == "enable=1")) {
        return Ok("io.weight with io.cost".to_owned());
    }
    absent(Reason::NoDiskWeights)
}

impl fmt::Display for CgroupLever {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path().display())
    }
}

impl Lever for CgroupLever {
    const KINDS: &'static [Kind] = KINDS;

    fn offers(host: &Host<'_>) -> Vec<(Capability, Finding)> {
        let soft_limit = "memory.soft_limit_in_bytes, which the kernel heeds only when the whole host is short; guests with a \
                          monitor have their balloon";
        let high = "memory.high, and guests' balloons";
        let throttle = "blkio.throttle, which buffered writes escape";
        let mut offers = vec![
            (Capability::CpuQuota, cpu_quota(host)),
            (Capability::CpuWeight, host.controller("cpu", "cpu", "cpu.shares", "cpu.weight")),
            (Capability::CpuIdle, cpu_idle(host)),
            (Capability::Freezer, freezer(host)),
            (Capability::MemoryLimit, host.controller("memory", "memory", soft_limit, high)),
            (Capability::DiskWeight, disk_weight(host)),
        ];
        // Those of Xen domains are levers of their own.
        if !is_control_domain(&host.roots.proc) {
            offers.push((Capability::DiskLimit, host.controller("blkio", "io", throttle, "io.max")));
        }
        offers
    }

    fn find(place: &Place<'_>) -> Vec<Found<Self>> {
        let at = |group: &Group, kind, counted: &Group| {
            let lever = Self { cgroup: group.dir.clone(), version: group.version, kind };
            lever.exists().then(|| Found { lever, cgroup: Some(counted.dir.clone()) })
        };
        let mut found = Vec::new();
        if let Some((cpu, vcpus)) = place.cpu() {
            found.extend(at(&cpu, CgroupFile::Weight, &cpu));
            let bounded = if vcpus.is_empty() { vec![cpu.clone()] } else { vcpus };
            found.extend(bounded.iter().filter_map(|group| at(group, CgroupFile::Quota, &cpu)));
        }
        // A guest's memory is nothing the host could reclaim without swapping; its balloon gives what it does not need.
        if place.monitor().is_none_or(|monitor| monitor.balloon.is_none())
            && let Some(memory) = place.group("memory")
        {
            found.extend(at(&memory, CgroupFile::Memory, &memory));
        }
        if place.ioband.is_none()
            && let Some(io) = place.group("io").or_else(|| place.group("blkio"))
        {
            let disks = place.disks.numbers.iter().filter(|_| !place.throttled_by_monitor());
            found.extend(disks.filter_map(|disk| at(&io, CgroupFile::Disk(*disk), &io)));
            let weight = place.disks.weighed_by.map(|weighing| match weighing {
                DiskWeighing::Bfq => CgroupFile::BfqWeight,
                DiskWeighing::CostOrCfq => CgroupFile::DiskWeight,
            });
            found.extend(weight.and_then(|kind| at(&io, kind, &io)));
        }
        found
    }

    fn role(&self) -> Option<Role> {
        match self.kind {
            CgroupFile::Quota => Some(Role::Quota),
            CgroupFile::Weight => Some(Role::Weight),
            CgroupFile::Memory => Some(Role::Memory),
            CgroupFile::Disk(_) => Some(Role::Disk),
            CgroupFile::DiskWeight | CgroupFile::BfqWeight => Some(Role::DiskWeight),
            CgroupFile::Idle
            | CgroupFile::Freezer
            | CgroupFile::MemoryMax
            | CgroupFile::SwapMax
            | CgroupFile::OomGroup
            | CgroupFile::Pids
            | CgroupFile::Cpus => None,
        }
    }

    fn exists(&self) -> bool {
        self.path().exists()
    }

    fn read(&self) -> Result<LeverValue, LeverError> {
        use CgroupVersion::{V1, V2};
        let file = self.file();
        let text = self.read_file(file)?;
        match (self.kind, self.version) {
            (CgroupFile::Quota, V1) => {
                let period_us = self.period(V1_PERIOD, &self.read_file(V1_PERIOD)?)?;
                let quota_us = if text == "-1" { None } else { Some(self.number(file, &text)?) };
                Ok(LeverValue::Quota { quota_us, period_us })
            }
            (CgroupFile::Quota, V2) => {
                let Some((quota, period)) = text.split_once(' ') else {
                    return Err(self.malformed(file, &text, "a quota and a period"));
                };
                let period_us = self.period(file, period)?;
                Ok(LeverValue::Quota { quota_us: self.limit(file, quota)?, period_us })
            }
            (CgroupFile::Weight, _) => self.number(file, &text).map(LeverValue::Weight),
            (CgroupFile::DiskWeight | CgroupFile::BfqWeight, _) => {
                // "default 100", then lines of single devices.
                let first = text.lines().next().unwrap_or_default();
                self.number(file, first.strip_prefix("default ").unwrap_or(first)).map(LeverValue::Weight)
            }
            (CgroupFile::Idle, _) => self.flag(file, &text).map(LeverValue::Idle),
            (CgroupFile::Freezer, V1) => match text.as_str() {
                // FREEZING is on its way to FROZEN; what was asked for is the same.
                "FROZEN" | "FREEZING" => Ok(LeverValue::Frozen(true)),
                "THAWED" => Ok(LeverValue::Frozen(false)),
                _ => Err(self.malformed(file, &text, "THAWED, FREEZING or FROZEN")),
            },
            (CgroupFile::Freezer, V2) => self.flag(file, &text).map(LeverValue::Frozen),
            (CgroupFile::OomGroup, _) => self.flag(file, &text).map(LeverValue::KilledWhole),
            (CgroupFile::Pids, _) => self.limit(file, &text).map(LeverValue::Count),
            (CgroupFile::Cpus, _) => Ok(LeverValue::Text(text)),
            (CgroupFile::Memory | CgroupFile::MemoryMax | CgroupFile::SwapMax, _) => {
                let limit = self.limit(file, &text)?;
                Ok(LeverValue::Memory(limit.filter(|bytes| *bytes < NO_MEMORY_LIMIT)))
            }
            (CgroupFile::Disk(device), V2) => self.io_max(device, &text).map(LeverValue::Throttle),
            (CgroupFile::Disk(device), V1) => {
                let mut limits = [None; 4];
                for (limit, file) in limits.iter_mut().zip(V1_THROTTLE) {
                    *limit = self.line_of(device, &self.read_file(file)?).map(|n| self.number(file, n)).transpose()?;
                }
                let [read_bytes, write_bytes, read_operations, write_operations] = limits;
                Ok(LeverValue::Throttle(Throttle { read_bytes, write_bytes, read_operations, write_operations }))
            }
        }
    }

    fn write(&self, value: LeverValue) -> Result<(), LeverError> {
        use CgroupVersion::{V1, V2};
        let file = self.file();
        match (self.kind, self.version, &value) {
            (CgroupFile::Quota, V1, LeverValue::Quota { quota_us, period_us }) => {
                if self.read_file(V1_PERIOD)? != period_us.to_string() {
                    // Without a ceiling any period is valid, with one the kernel may refuse the pair.
                    self.write_file(file, "-1")?;
                    self.write_file(V1_PERIOD, &period_us.to_string())?;
                }
                self.write_file(file, &quota_us.map_or_else(|| "-1".to_owned(), |quota| quota.to_string()))
            }
            (CgroupFile::Freezer, V1, LeverValue::Frozen(frozen)) => {
                self.write_file(file, if *frozen { "FROZEN" } else { "THAWED" })
            }
            // A write of nothing would not reach the kernel.
            (CgroupFile::Cpus, _, LeverValue::Text(cpus)) => self.write_file(file, &format!("{cpus}\n")),
            (CgroupFile::Memory | CgroupFile::MemoryMax | CgroupFile::SwapMax, V1, LeverValue::Memory(None)) => {
                self.write_file(file, "-1")
            }
            (CgroupFile::Disk(device), V1, LeverValue::Throttle(throttle)) => {
                let Throttle { read_bytes, write_bytes, read_operations, write_operations } = *throttle;
                let limits = [read_bytes, write_bytes, read_operations, write_operations];
                for (file, limit) in V1_THROTTLE.into_iter().zip(limits) {
                    // 0 takes the device off the list.
                    self.write_file(file, &format!("{device} {}", limit.unwrap_or(0)))?;
                }
                Ok(())
            }
            (CgroupFile::Disk(device), V2, LeverValue::Throttle(_)) => {
                self.write_file(file, &format!("{device} {value}"))
            }
            (CgroupFile::Quota, V2, LeverValue::Quota { .. })
            | (CgroupFile::Weight | CgroupFile::DiskWeight | CgroupFile::BfqWeight, _, LeverValue::Weight(_))
            | (CgroupFile::Idle, _, LeverValue::Idle(_))
            | (CgroupFile::Memory | CgroupFile::MemoryMax | CgroupFile::SwapMax, _, LeverValue::Memory(_))
            | (CgroupFile::OomGroup, _, LeverValue::KilledWhole(_))
            | (CgroupFile::Pids, _, LeverValue::Count(_))
            | (CgroupFile::Freezer, V2, LeverValue::Frozen(_)) => self.write_file(file, &value.to_string()),
            _ => Err(self.malformed(file, &value.to_string(), "a value of this lever")),
        }
    }

    fn plan(&self, wanted: &Wanted<'_>, found: &LeverValue) -> Planned {
        let Some(role) = self.role() else { return Planned::as_found(found) };
        let mut planned = plan(role, |weight| self.weight(weight), wanted, found);
        let disk = wanted.limits.disk;
        let writes = disk.write.is_some() || disk.write_operations.is_some();
        if role == Role::Disk && self.version == CgroupVersion::V1 && writes {
            planned.shortfalls.insert(Shortfall::BufferedWrites);
        }
        planned
    }

    fn is_written_in_parts(&self) -> bool {
        self.version == CgroupVersion::V1 && matches!(self.kind, CgroupFile::Quota | CgroupFile::Disk(_))
    }

    fn nearest(&self, value: LeverValue) -> LeverValue {
        match value {
            LeverValue::Memory(Some(bytes)) => {
                let page = rustix::param::page_size() as u64;
                LeverValue::Memory(Some(bytes / page * page))
            }
            value => value,
        }
    }

    fn whole_memory(&self, _: &LeverValue) -> Option<Bytes> {
        None
    }

    /// The scale of a weight file. `cpu.shares` are converted as the kernel itself does it, by
    /// `shares = round(weight * 1024 / 100)` (`sched_weight_from_cgroup`).
    fn scale(&self) -> Scale {
        let (least, most, normal) = match (self.kind, self.version) {
            (CgroupFile::Weight, CgroupVersion::V1) => (2, 262_144, 1_024),
            (CgroupFile::DiskWeight, CgroupVersion::V1) => (10, 1_000, 500),
            (CgroupFile::BfqWeight, _) => (1, 1_000, 100),
            _ => (1, 10_000, 100),
        };
        Scale { least, most, normal }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::fs;
    use std::path::Path;

    use gleaner_types::command::Weight;
    use gleaner_types::units::CoreShare;

    use super::*;
    use crate::levers::{AnyLever, Fault};

    fn group(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    fn quota(quota_us: Option<u64>, period_us: u64) -> LeverValue {
        LeverValue::Quota { quota_us, period_us }
    }

    #[test]
    fn reads_and_writes_version_1() {
        let dir = group(&[
            ("cpu.cfs_quota_us", "-1\n"),
            ("cpu.cfs_period_us", "100000\n"),
            ("cpu.shares", "1024\n"),
            ("cpu.idle", "0\n"),
            ("freezer.state", "FREEZING\n"),
        ]);
        let lever = |kind| AnyLever::new(dir.path(), CgroupVersion::V1, kind);
        assert_eq!(lever(CgroupFile::Quota).read().unwrap(), quota(None, 100_000));
        assert_eq!(lever(CgroupFile::Weight).read().unwrap(), LeverValue::Weight(1024));
        assert_eq!(lever(CgroupFile::Idle).read().unwrap(), LeverValue::Idle(false));
        assert_eq!(lever(CgroupFile::Freezer).read().unwrap(), LeverValue::Frozen(true));

        lever(CgroupFile::Quota).set(quota(Some(10_000), 20_000)).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("cpu.cfs_period_us")).unwrap(), "20000");
        assert_eq!(fs::read_to_string(dir.path().join("cpu.cfs_quota_us")).unwrap(), "10000");
        lever(CgroupFile::Freezer).set(LeverValue::Frozen(false)).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("freezer.state")).unwrap(), "THAWED");
    }

    #[test]
    fn reads_and_writes_version_2() {
        let dir =
            group(&[("cpu.max", "max 100000\n"), ("cpu.weight", "100\n"), ("cpu.idle", "0"), ("cgroup.freeze", "0\n")]);
        let lever = |kind| AnyLever::new(dir.path(), CgroupVersion::V2, kind);
        assert_eq!(lever(CgroupFile::Quota).read().unwrap(), quota(None, 100_000));
        lever(CgroupFile::Quota).set(quota(Some(50_000), 100_000)).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("cpu.max")).unwrap(), "50000 100000");
        lever(CgroupFile::Freezer).set(LeverValue::Frozen(true)).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("cgroup.freeze")).unwrap(), "1");
        assert!(lever(CgroupFile::Weight).write(LeverValue::Idle(true)).is_err());
    }

    #[test]
    fn errors_say_what_was_done_to_what_and_have_a_kind() {
        let dir = tempfile::tempdir().unwrap();
        let scope = dir.path().join("machine-qemu-7.scope");
        let lever = AnyLever::new(&scope, CgroupVersion::V2, CgroupFile::Quota);
        let error = lever.write(quota(Some(50_000), 100_000)).unwrap_err();
        assert_eq!(error.to_string(), "failed to write `50000 100000` to `cpu.max` of `machine-qemu-7.scope`");
        assert_eq!(error.fault(), Fault::Absent);
        assert!(error.source().is_some());
        assert_eq!(lever.read().unwrap_err().fault(), Fault::Absent);

        let kind = |errno: rustix::io::Errno| Fault::of(&errno.into());
        assert_eq!(kind(rustix::io::Errno::PERM), Fault::Denied);
        assert_eq!(kind(rustix::io::Errno::BUSY), Fault::Transient);
        assert_eq!(kind(rustix::io::Errno::INVAL), Fault::Malformed);
    }

    #[test]
    fn hostile_files_are_malformed() {
        let long = "9".repeat(100_000);
        for text in ["", "max", "-5 100000", "1 2 3", "max 0", "max 99999999", "50000 -1", "\u{0}", long.as_str()] {
            let dir = group(&[("cpu.max", text)]);
            let error = AnyLever::new(dir.path(), CgroupVersion::V2, CgroupFile::Quota).read().unwrap_err();
            assert_eq!(error.fault(), Fault::Malformed, "{error}");
        }
    }

    #[test]
    fn weights_convert_as_the_kernel_does() {
        let lever = |version, kind| AnyLever::new(Path::new("/cg"), version, kind);
        let shares = |weight| lever(CgroupVersion::V1, CgroupFile::Weight).weight(Weight::new(weight).unwrap());
        assert_eq!(shares(1), LeverValue::Weight(10));
        assert_eq!(shares(100), LeverValue::Weight(1024));
        assert_eq!(shares(10_000), LeverValue::Weight(102_400));
        let back =
            |version, kind, number| lever(version, kind).as_weight(&LeverValue::Weight(number)).unwrap().number();
        assert_eq!(back(CgroupVersion::V1, CgroupFile::Weight, 1024), 100);
        assert_eq!(back(CgroupVersion::V1, CgroupFile::Weight, 2), 1);
        assert_eq!(back(CgroupVersion::V2, CgroupFile::Weight, 0), 1, "0 while idle");
        assert_eq!(back(CgroupVersion::V1, CgroupFile::DiskWeight, 500), 100);
        let bfq = lever(CgroupVersion::V2, CgroupFile::BfqWeight);
        assert_eq!(bfq.weight(Weight::new(10_000).unwrap()), LeverValue::Weight(1_000));
    }

    #[test]
    fn disks_and_memory_of_version_2() {
        let dir = group(&[
            ("io.max", "8:0 rbps=max wbps=5 riops=max wiops=max\n254:0 rbps=1048576 wbps=max riops=max wiops=100\n"),
            ("io.weight", "default 100\n254:0 50\n"),
            ("memory.high", "max\n"),
        ]);
        let lever = |kind| AnyLever::new(dir.path(), CgroupVersion::V2, kind);
        let vda = CgroupFile::Disk("254:0".parse().unwrap());
        let found = Throttle { read_bytes: Some(1 << 20), write_operations: Some(100), ..Throttle::default() };
        assert_eq!(lever(vda).read().unwrap(), LeverValue::Throttle(found));
        assert_eq!(
            lever(CgroupFile::Disk("254:16".parse().unwrap())).read().unwrap(),
            LeverValue::Throttle(Throttle::default())
        );
        assert_eq!(lever(CgroupFile::DiskWeight).read().unwrap(), LeverValue::Weight(100));
        assert_eq!(lever(CgroupFile::Memory).read().unwrap(), LeverValue::Memory(None));
        lever(CgroupFile::Memory).set(LeverValue::Memory(Some(4096))).unwrap();
        lever(vda).write(LeverValue::Throttle(Throttle { write_bytes: Some(7), ..Throttle::default() })).unwrap();
        let written = fs::read_to_string(dir.path().join("io.max")).unwrap();
        assert_eq!(written, "254:0 rbps=max wbps=7 riops=max wiops=max");
        for hostile in ["254:0 rbps=x\n", "254:0 bps=1\n", "254:0 rbps\n"] {
            fs::write(dir.path().join("io.max"), hostile).unwrap();
            assert_eq!(lever(vda).read().unwrap_err().fault(), Fault::Malformed, "{hostile}");
        }
    }

    #[test]
    fn disks_and_memory_of_version_1() {
        let dir = group(&[
            ("blkio.throttle.read_bps_device", "254:0 1048576\n"),
            ("blkio.throttle.write_bps_device", ""),
            ("blkio.throttle.read_iops_device", ""),
            ("blkio.throttle.write_iops_device", "8:0 3\n"),
            ("memory.soft_limit_in_bytes", "9223372036854771712\n"),
        ]);
        let lever = |kind| AnyLever::new(dir.path(), CgroupVersion::V1, kind);
        let found = Throttle { read_bytes: Some(1 << 20), ..Throttle::default() };
        let vda = lever(CgroupFile::Disk("254:0".parse().unwrap()));
        assert_eq!(vda.read().unwrap(), LeverValue::Throttle(found));
        assert_eq!(lever(CgroupFile::Memory).read().unwrap(), LeverValue::Memory(None));
        vda.write(LeverValue::Throttle(Throttle::default())).unwrap();
        let written = fs::read_to_string(dir.path().join("blkio.throttle.read_bps_device")).unwrap();
        assert_eq!(written, "254:0 0", "0 is no ceiling");
    }

    #[test]
    fn a_ceiling_too_small_for_the_kernel_is_raised_and_said() {
        let share = |percent| CoreShare::new(percent).unwrap();
        assert_eq!(LeverValue::at_most(share(150.0), 100_000), (quota(Some(150_000), 100_000), false));
        assert_eq!(LeverValue::at_most(share(0.5), 100_000), (quota(Some(1_000), 100_000), true));
        assert_eq!(LeverValue::at_most(share(5.0), 20_000), (quota(Some(1_000), 20_000), false));
        assert_eq!(quota(Some(30_000), 20_000).ceiling(), Some(share(150.0)));
        assert_eq!(quota(None, 20_000).ceiling(), None);
    }
}
