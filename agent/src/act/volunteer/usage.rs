//! Where a volunteer's CPU time is counted. Data only: the volunteer makes it, and the guard's meter reads it.

use std::path::PathBuf;

/// Where the CPU time a volunteer used can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolunteerUsage {
    /// A `cpuacct.usage` of version 1.
    CpuacctUsage(PathBuf),
    /// A `cpu.stat` of version 2.
    CpuStat(PathBuf),
    /// Nowhere by itself; the CPU time of niced processes in `/proc/stat` stands for it. Time its
    /// processes spend in the kernel is not in that and counts as foreground, which errs on the safe side.
    NiceTime,
    /// The hypervisor counts it, together with everybody else's.
    Hypervisor,
}
