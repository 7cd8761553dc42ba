//! Levers that a QEMU guest's monitor sets: whether its virtual CPUs run, its balloon, and ceilings on its disks. In:
//! typed values. Out: commands of `crate::qmp`. Called through the catalogue.

use std::fmt;
use std::io;
use std::path::PathBuf;

use gleaner_types::report::Capability;
use gleaner_types::units::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::error::LeverError;
use super::lever::Lever;
use super::place::{Found, Place};
use super::role::{Kind, Role};
use super::value::{LeverValue, Throttle};
use crate::facts::ProcessId;
use crate::qmp::{Monitor, disks, whole_memory};

/// What a monitor's lever does.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MonitorKind {
    /// The virtual CPUs run, or are stopped.
    Running,
    /// Memory the guest keeps, by its balloon. A guest without the driver keeps what it has.
    Balloon {
        /// All the memory the guest had when it was last asked, plugged memory included, in bytes.
        whole: u64,
    },
    /// Ceilings on the disk of this device, in QEMU itself, so that they hold whatever the host's caches do.
    Disk {
        /// Path of the device, such as `/machine/peripheral/vd0/virtio-backend`.
        device: String,
    },
}

impl PartialEq for MonitorKind {
    /// A balloon is the same one when memory was plugged into its guest.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Running, Self::Running) | (Self::Balloon { .. }, Self::Balloon { .. }) => true,
            (Self::Disk { device }, Self::Disk { device: other }) => device == other,
            _ => false,
        }
    }
}

impl Eq for MonitorKind {}

/// One lever behind a monitor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MonitorLever {
    /// The monitor's socket.
    pub socket: PathBuf,
    /// The guest's process. Whoever else listens there is not set.
    pub owner: ProcessId,
    /// What it does.
    pub kind: MonitorKind,
}

impl MonitorLever {
    fn what(&self) -> String {
        let socket = self.socket.display();
        match &self.kind {
            MonitorKind::Running => format!("the state of the guest at `{socket}`"),
            MonitorKind::Balloon { .. } => format!("the balloon of the guest at `{socket}`"),
            MonitorKind::Disk { device } => format!("the disk `{device}` of the guest at `{socket}`"),
        }
    }
}

fn unexpected(command: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("`{command}` answered something unexpected"))
}

/// A socket on which no process listens is that of a guest that has ended.
fn absent_if_gone(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::ConnectionRefused {
        io::Error::new(io::ErrorKind::NotFound, error)
    } else {
        error
    }
}

/// Kinds of this lever.
const KINDS: &[Kind] = &[
    Kind {
        name: "run state of a guest",
        does: "stops and continues the virtual CPUs of a volunteer that is a guest (QMP `stop`, `cont`)",
        exists: "a QEMU guest with a monitor of its own",
        restored: "running or stopped, as before",
        capability: Some(Capability::Guests),
    },
    Kind {
        name: "balloon of a guest",
        does: "memory that the guest keeps (QMP `balloon`)",
        exists: "a QEMU guest with a monitor and a balloon device",
        restored: "all the guest's memory, or the original size; recorded until the guest has it back",
        capability: Some(Capability::MemoryLimit),
    },
    Kind {
        name: "disk ceilings of a guest",
        does: "bytes and operations per second on each disk, in QEMU (QMP `block_set_io_throttle`)",
        exists: "a QEMU guest with a monitor, on cgroup version 1",
        restored: "the original ceilings",
        capability: Some(Capability::DiskLimit),
    },
];

impl fmt::Display for MonitorLever {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what())
    }
}

impl Lever for MonitorLever {
    const KINDS: &'static [Kind] = KINDS;

    fn find(place: &Place<'_>) -> Vec<Found<Self>> {
        let Some(monitor) = place.monitor() else { return Vec::new() };
        let behind = |kind| Found::alone(Self { socket: monitor.socket.clone(), owner: monitor.owner, kind });
        let mut found: Vec<Found<Self>> =
            monitor.balloon.map(|whole| behind(MonitorKind::Balloon { whole })).into_iter().collect();
        if place.ioband.is_none() && place.throttled_by_monitor() {
            found.extend(monitor.disks.iter().map(|device| behind(MonitorKind::Disk { device: device.clone() })));
        }
        found
    }

    fn role(&self) -> Option<Role> {
        match self.kind {
            MonitorKind::Running => None,
            MonitorKind::Balloon { .. } => Some(Role::Memory),
            MonitorKind::Disk { .. } => Some(Role::Disk),
        }
    }

    fn exists(&self) -> bool {
        self.socket.exists()
    }

    fn read(&self) -> Result<LeverValue, LeverError> {
        let read = Monitor::with(&self.socket, self.owner, |monitor| match &self.kind {
            MonitorKind::Running => {
                let status = monitor.execute("query-status", Value::Null)?;
                let running = status.get("running").and_then(Value::as_bool);
                running.map(|running| LeverValue::Frozen(!running)).ok_or_else(|| unexpected("query-status"))
            }
            MonitorKind::Balloon { .. } => {
                let balloon = monitor.execute("query-balloon", Value::Null)?;
                let actual =
                    balloon.get("actual").and_then(Value::as_u64).ok_or_else(|| unexpected("query-balloon"))?;
                // Memory may have been plugged since the lever was found.
                Ok(LeverValue::Memory((actual < whole_memory(monitor)?).then_some(actual)))
            }
            MonitorKind::Disk { device } => {
                let found = disks(&monitor.execute("query-block", Value::Null)?);
                let disk = found.into_iter().find(|disk| disk.device == *device).ok_or(io::ErrorKind::NotFound)?;
                let [read_bytes, write_bytes, read_operations, write_operations] =
                    disk.throttle.map(|limit| (limit > 0).then_some(limit));
                Ok(LeverValue::Throttle(Throttle { read_bytes, write_bytes, read_operations, write_operations }))
            }
        });
        read.map_err(|source| LeverError::Read { what: self.what(), source: absent_if_gone(source) })
    }

    fn write(&self, value: LeverValue) -> Result<(), LeverError> {
        let (command, mut arguments) = match (&self.kind, &value) {
            (MonitorKind::Running, LeverValue::Frozen(stopped)) => {
                (if *stopped { "stop" } else { "cont" }, Value::Null)
            }
            (MonitorKind::Balloon { .. }, LeverValue::Memory(_)) => ("balloon", Value::Null),
            (MonitorKind::Disk { device }, LeverValue::Throttle(throttle)) => {
                // In QEMU 0 is no ceiling.
                let Throttle { read_bytes, write_bytes, read_operations, write_operations } = *throttle;
                let limits = json!({
                    "id": device, "bps": 0, "iops": 0,
                    "bps_rd": read_bytes.unwrap_or(0), "bps_wr": write_bytes.unwrap_or(0),
                    "iops_rd": read_operations.unwrap_or(0), "iops_wr": write_operations.unwrap_or(0),
                });
                ("block_set_io_throttle", limits)
            }
            _ => {
                let (what, text) = (self.what(), value.to_string());
                return Err(LeverError::Malformed { what, text, expected: "a value of this lever" });
            }
        };
        let written = Monitor::with(&self.socket, self.owner, |monitor| {
            if let LeverValue::Memory(limit) = &value {
                // As it is now: without a limit on it the guest has what was plugged too.
                let whole = whole_memory(monitor)?;
                arguments = json!({ "value": limit.unwrap_or(whole).min(whole) });
            }
            monitor.execute(command, arguments).map(drop)
        });
        written.map_err(|source| LeverError::Write {
            value: value.to_string(),
            what: self.what(),
            source: absent_if_gone(source),
        })
    }

    /// A balloon reads what the guest has given so far.
    fn reads_as_set(&self) -> bool {
        !matches!(self.kind, MonitorKind::Balloon { .. })
    }

    fn whole_memory(&self, current: &LeverValue) -> Option<Bytes> {
        match (&self.kind, current) {
            (_, LeverValue::Memory(Some(bytes))) => Some(Bytes(*bytes)),
            (MonitorKind::Balloon { whole }, _) => Some(Bytes(*whole)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qmp::tests::{BalloonGuest, own};

    #[test]
    fn a_balloon_without_a_limit_leaves_plugged_memory_to_the_guest() {
        const GIB: u64 = 1 << 30;
        let folder = tempfile::tempdir().unwrap();
        let guest = BalloonGuest::start(&folder.path().join("qmp"), 4 * GIB, 0);
        let lever =
            MonitorLever { socket: guest.socket.clone(), owner: own(), kind: MonitorKind::Balloon { whole: 4 * GIB } };
        lever.write(LeverValue::Memory(Some(3 * GIB))).unwrap();
        assert_eq!(guest.balloon_target(), 3 * GIB);
        // Two are plugged while the balloon holds one.
        guest.has(4 * GIB, 2 * GIB, 5 * GIB);
        assert_eq!(lever.read().unwrap(), LeverValue::Memory(Some(5 * GIB)));
        lever.write(LeverValue::Memory(None)).unwrap();
        assert_eq!(guest.balloon_target(), 6 * GIB);
        guest.has(4 * GIB, 2 * GIB, 6 * GIB);
        assert_eq!(lever.read().unwrap(), LeverValue::Memory(None));
    }
}
