//! Static facts of the host, gathered once at start. Too slow for sampling, and nothing that changes.

use gleaner_common::report::{HostFacts, Levers};
use gleaner_common::units::Bytes;
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

use crate::hierarchies::Hierarchies;
use crate::sense::perf;

/// The host's facts, with what the agent may change on it.
#[must_use]
pub fn facts(hierarchies: &Hierarchies, levers: Levers) -> HostFacts {
    let wanted =
        RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing()).with_memory(MemoryRefreshKind::nothing().with_ram());
    let system = System::new_with_specifics(wanted).ok();
    let cpus = system.as_ref().map_or(&[][..], System::cpus);
    HostFacts {
        cpu_model: cpus.first().map(|cpu| cpu.brand().trim().to_owned()).unwrap_or_default(),
        cores: u32::try_from(cpus.len()).unwrap_or(u32::MAX).max(1),
        memory: Bytes(system.as_ref().map_or(0, System::total_memory)),
        kernel: System::kernel_version().unwrap_or_default(),
        cgroups: hierarchies.mode(),
        counters: perf::probe(),
        levers,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use gleaner_common::report::VolunteerKind;

    use super::*;

    #[test]
    fn this_machine_has_facts() {
        let levers = Levers {
            acting: false,
            volunteer: VolunteerKind::None,
            quota: false,
            weight: false,
            idle: false,
            freeze: false,
            weaknesses: vec![],
        };
        let hierarchies = Hierarchies::detect(Path::new("/proc/self"), Path::new("/"));
        let facts = facts(&hierarchies, levers);
        assert!(facts.cores > 0 && facts.memory.0 > 0 && !facts.kernel.is_empty(), "{facts:?}");
    }
}
