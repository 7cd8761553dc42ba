//! The purpose of a lever, and its description for people. Data only: each lever says its own; the plan, the limits in
//! force and docs/levers.md are made by them.

use gleaner_types::report::Capability;

/// What a lever of a workload limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// A ceiling on CPU; several share the workload's evenly (one group per virtual CPU).
    Quota,
    /// A share of the CPU.
    Weight,
    /// Memory.
    Memory,
    /// Ceilings on one disk.
    Disk,
    /// A share of the disks.
    DiskWeight,
    /// A ceiling on what it receives; several interfaces each hold it.
    Receive,
    /// A ceiling on what it sends.
    Transmit,
}

impl Role {
    /// For an operator: "there is no lever for …".
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Quota => "a ceiling on CPU",
            Self::Weight => "a weight on the CPU",
            Self::Memory => "memory",
            Self::Disk => "disk traffic",
            Self::DiskWeight => "a weight on the disks",
            Self::Receive => "what it receives from the network",
            Self::Transmit => "what it sends to the network",
        }
    }
}

/// One kind of lever, for people: a row of docs/levers.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub does: &'static str,
    /// Where it exists.
    pub exists: &'static str,
    /// What restoring it means.
    pub restored: &'static str,
    /// The capability of the host that it is a part of, as `gleaner-agent doctor` lists it; `None` for a bound of the
    /// volunteer, of which doctor has a list of its own.
    pub capability: Option<Capability>,
}
