//! Entries for the fuzz targets, one per interface. In: any bytes. Out: nothing; no parser of what the kernel, a
//! hypervisor, a monitor, the helper or the state folder says may panic. Called by `fuzz/fuzz_targets`.

use crate::levers::ioband;
use crate::sense::{cgroup, machine, perf};
use crate::{device_mapper, netlink, process, qmp, xen};

/// Files of procfs.
pub fn proc_files(data: &[u8]) {
    _ = machine::parse_stat(data);
    _ = machine::parse_loadavg(data);
    _ = machine::parse_meminfo(data);
    _ = machine::parse_pressure(data);
    _ = machine::parse_diskstats(data, |_| true);
    _ = machine::parse_netdev(data, |_| true);
    _ = process::parse_stat(data);
    _ = process::parse_schedstat(data);
    _ = process::parse_statm(data);
    _ = process::parse_io(data);
    if let Ok(text) = std::str::from_utf8(data) {
        _ = perf::parse_cpu_list(text);
    }
}

/// Files of cgroups.
pub fn cgroup_files(data: &[u8]) {
    _ = cgroup::parse_cpu_stat(data);
    _ = cgroup::parse_pressure_total(data);
    _ = cgroup::parse_blkio(data);
    _ = cgroup::parse_io_stat(data, |_| true);
    crate::levers::cgroup::fuzz(data);
}

/// QEMU's command lines, its monitor's lines, and libvirt's files about it.
pub fn qemu(data: &[u8]) {
    _ = process::parse_qemu(data);
    crate::names::fuzz(data);
    _ = process::is_vcpu_thread(data);
    if let Ok(qmp::Line::Answer(answer)) = qmp::parse_line(data) {
        _ = qmp::block_stats(&answer);
        _ = qmp::disks(&answer);
    }
}

/// Datagrams of rtnetlink.
pub fn netlink(data: &[u8]) {
    netlink::fuzz(data);
}

/// Answers of device-mapper, and dm-ioband's tables.
pub fn device_mapper(data: &[u8]) {
    _ = device_mapper::parse_versions(data);
    if let Ok(lines) = device_mapper::parse_table(data) {
        ioband::fuzz(&lines);
    }
}

/// Answers of the helper for Xen.
pub fn xen(data: &[u8]) {
    if let Ok(answer) = serde_json::from_slice(data) {
        _ = xen::parse_sample(&answer);
    }
}

/// The record of what must be restored.
pub fn ledger(data: &[u8]) {
    crate::act::ledger::fuzz(data);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use gleaner_daemon::config::Source;
    use gleaner_test_support::kept::replay;

    use super::*;

    #[test]
    fn kept_inputs_and_mutations_of_them_make_nothing_panic() {
        replay("proc_files", proc_files);
        replay("cgroup_files", cgroup_files);
        replay("qemu", qemu);
        replay("netlink", netlink);
        replay("device_mapper", device_mapper);
        replay("xen", xen);
        replay("ledger", ledger);
        replay("config", |data| {
            let text = String::from_utf8_lossy(data);
            _ = crate::config::Config::from_source(&Source::from_text(Path::new("kept.toml"), &text));
        });
    }
}
