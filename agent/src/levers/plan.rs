//! From limits and a lever's original value to what it should be. Pure. In: limits, and the value from before the first
//! change. Out: the value wanted, and what of it cannot be had. Called by [`super::lever::Lever::plan`].

use std::collections::BTreeSet;

use gleaner_types::command::{DiskLimit, Limits, Quota, Weight};
use gleaner_types::units::{Bytes, BytesPerSec, CoreShare, PerSec};

use super::headroom::with_emulator_headroom;
use super::role::Role;
use super::value::{LeverValue, Throttle};
use crate::rounding::whole;

/// What is asked of a workload's levers.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The limits.
    pub limits: &'a Limits,
    /// The limit on memory to set now, which may still be on its way to the one asked for.
    pub memory: Option<Bytes>,
    /// Levers that share the ceiling on CPU evenly; one at least.
    pub sharing: usize,
    /// A ceiling on CPU also holds a QEMU process's emulator and I/O threads.
    pub emulator_inside: bool,
}

impl Wanted<'_> {
    /// One lever's part of the ceiling on CPU; `None` for no ceiling.
    #[must_use]
    pub fn ceiling(&self) -> Option<CoreShare> {
        match self.limits.quota {
            Quota::AtMost(ceiling) => {
                let whole = if self.emulator_inside { with_emulator_headroom(ceiling) } else { ceiling };
                Some(whole * (1.0 / self.sharing as f64))
            }
            Quota::Unlimited => None,
        }
    }
}

/// What of a limit cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shortfall {
    /// Version 1 throttles direct writes alone.
    BufferedWrites,
    /// The kernel takes no less.
    Raised,
    /// Somebody's own ceiling is lower.
    BoundByFound,
    /// Another, in a sentence.
    Other(&'static str),
}

impl Shortfall {
    /// In a sentence.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::BufferedWrites => "version 1 cgroups do not see buffered writes: only direct ones are held",
            Self::Raised => "the ceiling on CPU was raised to 1 ms per period, the least the kernel takes",
            Self::BoundByFound => "a ceiling stays at the one found on the workload, which is lower",
            Self::Other(text) => text,
        }
    }
}

/// What a lever should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// The value.
    pub value: LeverValue,
    /// What of the limits it cannot hold.
    pub shortfalls: BTreeSet<Shortfall>,
}

impl Planned {
    /// What was found stays, or comes back.
    #[must_use]
    pub fn as_found(found: &LeverValue) -> Self {
        Self { value: found.clone(), shortfalls: BTreeSet::new() }
    }

    /// The lower of two ceilings. One that is lower than an operator's is Gleaner's to set; a higher one is not.
    fn lower(&mut self, found: Option<u64>, wanted: Option<u64>) -> Option<u64> {
        match (found, wanted) {
            (Some(found), Some(wanted)) if wanted > found => {
                self.shortfalls.insert(Shortfall::BoundByFound);
                Some(found)
            }
            (found, None) => found,
            (_, wanted) => wanted,
        }
    }
}

/// Plans a lever whose values are the usual ones of its role. A ceiling is never set above the one found, because that
/// one is the operator's. What is not asked for goes back to what was found. `weight` makes the lever's value of a
/// weight.
pub(super) fn plan(
    role: Role,
    weight: impl Fn(Weight) -> LeverValue,
    wanted: &Wanted<'_>,
    found: &LeverValue,
) -> Planned {
    // A ceiling of less than one a second would be none at all.
    let bytes = |rate: Option<BytesPerSec>| rate.map(|rate| whole(rate.per_sec()).max(1));
    let operations = |rate: Option<PerSec>| rate.map(|rate| whole(rate.per_sec()).max(1));
    let limits = wanted.limits;
    let mut planned = Planned::as_found(found);
    planned.value = match (role, found) {
        (Role::Quota, LeverValue::Quota { quota_us: found, period_us }) => {
            let ceiling = wanted.ceiling().map(|ceiling| LeverValue::quota_of(ceiling, *period_us));
            if ceiling.is_some_and(|(_, was_raised)| was_raised) {
                planned.shortfalls.insert(Shortfall::Raised);
            }
            let quota_us = planned.lower(*found, ceiling.map(|(quota_us, _)| quota_us));
            LeverValue::Quota { quota_us, period_us: *period_us }
        }
        (Role::Weight, found) => limits.weight.map_or_else(|| found.clone(), weight),
        (Role::DiskWeight, found) => limits.disk_weight.map_or_else(|| found.clone(), weight),
        (Role::Memory, LeverValue::Memory(found)) => {
            LeverValue::Memory(planned.lower(*found, wanted.memory.map(|bytes| bytes.0)))
        }
        (Role::Disk, LeverValue::Throttle(found)) => {
            let DiskLimit { read, write, read_operations, write_operations } = limits.disk;
            LeverValue::Throttle(Throttle {
                read_bytes: planned.lower(found.read_bytes, bytes(read)),
                write_bytes: planned.lower(found.write_bytes, bytes(write)),
                read_operations: planned.lower(found.read_operations, operations(read_operations)),
                write_operations: planned.lower(found.write_operations, operations(write_operations)),
            })
        }
        (Role::Receive, LeverValue::Rate(found)) => {
            LeverValue::Rate(planned.lower(*found, bytes(limits.network.receive)))
        }
        (Role::Transmit, LeverValue::Rate(found)) => {
            LeverValue::Rate(planned.lower(*found, bytes(limits.network.transmit)))
        }
        (_, other) => other.clone(),
    };
    planned
}
