//! Memory on a control domain of Xen, as the helper tells it. Data only.

use serde::Deserialize;

/// The hypervisor's memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct HostMemory {
    pub(crate) total_bytes: u64,
    pub(crate) free_bytes: u64,
    /// What domains that are not the volunteer's may still take, by the hypervisor's bounds on them, and have not.
    pub(crate) wanted_bytes: u64,
}

impl HostMemory {
    /// What nobody has and no foreground may take.
    pub(crate) fn available_bytes(&self) -> u64 {
        self.free_bytes.saturating_sub(self.wanted_bytes)
    }
}

/// The hypervisor's memory, and what the volunteer's domains have of it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct MemoryNow {
    #[serde(flatten)]
    pub(crate) host: HostMemory,
    pub(crate) volunteers: Vec<VolunteerMemory>,
}

/// What one domain of the volunteer has.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct VolunteerMemory {
    pub(crate) uuid: String,
    pub(crate) id: u32,
    pub(crate) memory_bytes: u64,
}

/// What xenstore says now of a domain's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct MemoryTarget {
    pub(crate) id: u32,
    pub(crate) memory_bytes: u64,
    pub(crate) memory_target_bytes: Option<u64>,
    /// No target may be above it.
    pub(crate) static_most_bytes: Option<u64>,
}
