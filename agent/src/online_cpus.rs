//! How many CPUs this host has. In: the list of those that are online in `/sys`. Out: their number. Called by what keeps some of them
//! free and by the harm meter.

use std::path::Path;

use crate::kernel_file::read_short;
use crate::sense::perf::parse_cpu_list;

/// Below `/sys`: the CPUs that are there.
pub(crate) const CPUS_ONLINE: &str = "devices/system/cpu/online";

/// CPUs of this host, however many of them the agent itself may use.
pub(crate) fn cpus() -> u32 {
    cpus_of(&Path::new("/sys").join(CPUS_ONLINE))
}

/// CPUs in a list of the kernel's; 1 if that cannot be read.
pub(crate) fn cpus_of(online: &Path) -> u32 {
    let online = read_short(online).ok();
    let cpus = online.and_then(|text| parse_cpu_list(&text)).map_or(1, |cpus| cpus.len());
    u32::try_from(cpus).unwrap_or(u32::MAX)
}
