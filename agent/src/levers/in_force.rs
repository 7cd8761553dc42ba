//! From what levers read to the limits in force. In: the values, one after another. Out: limits. Called by
//! `act/plan.rs`, for the answer to a command.

use gleaner_types::command::{DiskLimit, Limits, NetworkLimit, Quota, Weight};
use gleaner_types::units::{Bytes, BytesPerSec, CoreShare, PerSec};

use super::headroom::without_emulator_headroom;
use super::role::Role;
use super::value::LeverValue;

/// Limits in force, as they are put together: the sum of ceilings that share one, the lowest of those that each hold by
/// themselves.
#[derive(Debug, Clone, Default)]
pub struct InForce {
    /// Ceilings on CPU; `None` is none.
    quotas: Vec<Option<CoreShare>>,
    weight: Option<Weight>,
    disk_weight: Option<Weight>,
    memory: Option<Bytes>,
    disk: [Option<f64>; 4],
    network: [Option<f64>; 2],
}

impl InForce {
    /// One lever's ceiling on CPU. Ceilings add up. If one lever has no ceiling, the sum has none.
    pub fn add_ceiling(&mut self, ceiling: Option<CoreShare>) {
        self.quotas.push(ceiling);
    }

    /// What a lever of this role reads, where that is one of the role's usual values. `weight` is the value as a weight.
    pub(super) fn add(&mut self, role: Role, value: &LeverValue, weight: Option<Weight>) {
        let least = |found: &mut Option<f64>, limit: Option<u64>| {
            if let Some(limit) = limit {
                *found = Some(found.map_or(limit as f64, |found| found.min(limit as f64)));
            }
        };
        match (role, value) {
            (Role::Quota, value) => self.add_ceiling(value.ceiling()),
            (Role::Weight, _) => self.weight = weight,
            (Role::DiskWeight, _) => self.disk_weight = weight,
            (Role::Memory, LeverValue::Memory(limit)) => self.memory = limit.map(Bytes),
            (Role::Disk, LeverValue::Throttle(throttle)) => {
                least(&mut self.disk[0], throttle.read_bytes);
                least(&mut self.disk[1], throttle.write_bytes);
                least(&mut self.disk[2], throttle.read_operations);
                least(&mut self.disk[3], throttle.write_operations);
            }
            (Role::Receive, LeverValue::Rate(limit)) => least(&mut self.network[0], *limit),
            (Role::Transmit, LeverValue::Rate(limit)) => least(&mut self.network[1], *limit),
            _ => {}
        }
    }

    /// The limits. `emulator_inside`: the ceiling on CPU also holds a guest's emulator.
    #[must_use]
    pub fn limits(&self, emulator_inside: bool) -> Limits {
        let total = self.quotas.iter().try_fold(CoreShare::ZERO, |sum, part| part.map(|part| sum + part));
        let total = total.filter(|_| !self.quotas.is_empty());
        let quota = total.map_or(Quota::Unlimited, |total| {
            Quota::AtMost(if emulator_inside { without_emulator_headroom(total) } else { total })
        });
        let [read, write, read_operations, write_operations] = self.disk;
        let [receive, transmit] = self.network;
        Limits {
            quota,
            weight: self.weight,
            disk_weight: self.disk_weight,
            memory: self.memory,
            disk: DiskLimit {
                read: read.map(BytesPerSec::clamped),
                write: write.map(BytesPerSec::clamped),
                read_operations: read_operations.map(PerSec::clamped),
                write_operations: write_operations.map(PerSec::clamped),
            },
            network: NetworkLimit {
                receive: receive.map(BytesPerSec::clamped),
                transmit: transmit.map(BytesPerSec::clamped),
            },
        }
    }
}
