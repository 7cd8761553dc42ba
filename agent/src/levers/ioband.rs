//! dm-ioband, the disk lever of the papers: a device-mapper target, out of tree and rare. In: a weight or a bandwidth.
//! Out: messages that divide a disk between groups. A group is a process here (`type pid`), so a guest is one group.
//! Its table and messages are as its documentation (dm-ioband.txt) defines them. Called through the catalogue. A kernel
//! without it has no such lever.
//!
//! A table's line is "DEVICE NAME IO_THROTTLE IO_LIMIT TYPE POLICY TOKEN GROUPS…". A group of the policy `weight` is
//! "ID:WEIGHT", of `range-bw` "ID:LEAST:MOST" in KiB/s. The first group, without an id, holds all other processes.

use std::fmt;
use std::io;

use gleaner_types::command::Weight;
use gleaner_types::report::{Capability, Reason};
use serde::{Deserialize, Serialize};

use super::error::LeverError;
use super::ioband_table::{IobandPolicy, parse};
use super::lever::Lever;
use super::offer::{Finding, Host, absent};
use super::place::{Found, Place};
use super::role::{Kind, Role};
use super::value::{LeverValue, Throttle};
use crate::device_mapper::{DeviceMapper, TableLine};

const KIB: u64 = 1_024;

/// One process's part of a device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IobandLever {
    /// Name of the device-mapper device.
    pub device: String,
    /// The process.
    pub pid: i32,
    /// By what the device divides.
    pub policy: IobandPolicy,
}

/// Both policies on a table, for the fuzz targets.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(lines: &[TableLine]) {
    for policy in [IobandPolicy::Weight, IobandPolicy::Bandwidth] {
        _ = IobandLever { device: String::new(), pid: 1, policy }.of(lines);
    }
}

impl IobandLever {
    fn what(&self) -> String {
        format!("the part of process {} of the ioband device `{}`", self.pid, self.device)
    }

    fn of(&self, lines: &[TableLine]) -> Option<LeverValue> {
        match (self.policy, parse(lines, self.pid)?) {
            (IobandPolicy::Weight, (IobandPolicy::Weight, None)) => Some(LeverValue::Share(None)),
            (IobandPolicy::Weight, (IobandPolicy::Weight, Some(numbers))) => {
                Some(LeverValue::Share(Some(*numbers.first()?)))
            }
            (IobandPolicy::Bandwidth, (IobandPolicy::Bandwidth, numbers)) => {
                let most = match numbers {
                    Some(numbers) => Some(numbers.get(1)?.checked_mul(KIB)?),
                    None => None,
                };
                Some(LeverValue::Throttle(Throttle { read_bytes: most, write_bytes: most, ..Throttle::default() }))
            }
            _ => None,
        }
    }

    /// The messages that take the group from one value to another.
    fn messages(&self, from: &LeverValue, to: &LeverValue) -> Option<Vec<String>> {
        let pid = self.pid;
        let joined = |value: &LeverValue| match value {
            LeverValue::Share(weight) => *weight,
            LeverValue::Throttle(throttle) => throttle.read_bytes,
            _ => None,
        };
        let set = match (self.policy, to) {
            (IobandPolicy::Weight, LeverValue::Share(weight)) => weight.map(|weight| format!("weight {pid}:{weight}")),
            (IobandPolicy::Bandwidth, LeverValue::Throttle(throttle)) => {
                throttle.read_bytes.map(|most| format!("range-bw {pid}:0:{}", most / KIB))
            }
            _ => return None,
        };
        Some(match (joined(from), set) {
            (None, None) => Vec::new(),
            (Some(_), None) => vec![format!("detach {pid}")],
            (None, Some(set)) => vec![format!("attach {pid}"), set],
            (Some(_), Some(set)) => vec![set],
        })
    }
}

/// Kinds of this lever.
const KINDS: &[Kind] = &[
    Kind {
        name: "weight on a dm-ioband device",
        does: "a guest's share of the disk, by device-mapper message",
        exists: "the config names an ioband device of type pid and policy weight",
        restored: "detached, or the original weight",
        capability: Some(Capability::Ioband),
    },
    Kind {
        name: "bandwidth on a dm-ioband device",
        does: "bytes per second of a guest, reads and writes together, by device-mapper message",
        exists: "the config names an ioband device of type pid and policy range-bw",
        restored: "detached, or the original bandwidth",
        capability: Some(Capability::Ioband),
    },
];

impl fmt::Display for IobandLever {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what())
    }
}

impl Lever for IobandLever {
    const KINDS: &'static [Kind] = KINDS;

    fn offers(_: &Host<'_>) -> Vec<(Capability, Finding)> {
        let finding = match DeviceMapper::open().and_then(|mapper| mapper.targets()) {
            Ok(targets) if targets.iter().any(|target| target == "ioband") => {
                Ok("device-mapper target ioband".to_owned())
            }
            Ok(_) => absent(Reason::NoIoband),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => absent(Reason::DeviceMapperDenied),
            Err(error) => absent(Reason::DeviceMapperFailed { error: error.to_string().into() }),
        };
        vec![(Capability::Ioband, finding)]
    }

    fn find(place: &Place<'_>) -> Vec<Found<Self>> {
        let (Some(guest), Some((device, policy))) = (place.guest(), &place.ioband) else { return Vec::new() };
        vec![Found::alone(Self { device: device.clone(), pid: guest.pid, policy: *policy })]
    }

    fn role(&self) -> Option<Role> {
        Some(match self.policy {
            IobandPolicy::Weight => Role::DiskWeight,
            IobandPolicy::Bandwidth => Role::Disk,
        })
    }

    fn exists(&self) -> bool {
        self.read().is_ok()
    }

    fn read(&self) -> Result<LeverValue, LeverError> {
        let lines = DeviceMapper::open().and_then(|mapper| mapper.table(&self.device));
        let lines = lines.map_err(|source| LeverError::Read { what: self.what(), source })?;
        self.of(&lines).ok_or_else(|| LeverError::Malformed {
            what: self.what(),
            text: lines.first().map(|line| line.parameters.chars().take(64).collect()).unwrap_or_default(),
            expected: "a table of ioband with type pid and the same policy as before",
        })
    }

    fn write(&self, value: LeverValue) -> Result<(), LeverError> {
        let found = self.read()?;
        let Some(messages) = self.messages(&found, &value) else {
            let (what, text) = (self.what(), value.to_string());
            return Err(LeverError::Malformed { what, text, expected: "a value of this lever" });
        };
        let send = || {
            let mapper = DeviceMapper::open()?;
            messages.iter().try_for_each(|message| mapper.message(&self.device, message))
        };
        send().map_err(|source| LeverError::Write { value: value.to_string(), what: self.what(), source })
    }

    fn nearest(&self, value: LeverValue) -> LeverValue {
        let LeverValue::Throttle(throttle) = value else { return value };
        let most = throttle.read_bytes.into_iter().chain(throttle.write_bytes).min();
        let most = most.map(|bytes| (bytes / KIB).max(1) * KIB);
        LeverValue::Throttle(Throttle { read_bytes: most, write_bytes: most, ..Throttle::default() })
    }

    fn weight(&self, weight: Weight) -> LeverValue {
        LeverValue::Share(Some(self.scale().to_lever(weight)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::levers::Fault;
    use crate::levers::ioband_table::policy;

    fn table(parameters: &str) -> Vec<TableLine> {
        vec![TableLine { target: "ioband".into(), parameters: parameters.into() }]
    }

    fn lever(policy: IobandPolicy) -> IobandLever {
        IobandLever { device: "ioband1".into(), pid: 1000, policy }
    }

    fn bandwidth(most: Option<u64>) -> LeverValue {
        LeverValue::Throttle(Throttle { read_bytes: most, write_bytes: most, ..Throttle::default() })
    }

    #[test]
    fn weights_and_bandwidths_as_the_table_tells_them() {
        let weight = lever(IobandPolicy::Weight);
        assert_eq!(
            weight.of(&table("8:29 share1 4 192 pid weight 768 :100 1000:40")),
            Some(LeverValue::Share(Some(40)))
        );
        assert_eq!(weight.of(&table("8:29 share1 4 192 pid weight 768 :100")), Some(LeverValue::Share(None)));
        let by_bandwidth = lever(IobandPolicy::Bandwidth);
        let line = table("8:29 share1 4 192 pid range-bw 0 :0:0 1000:50:500");
        assert_eq!(by_bandwidth.of(&line), Some(bandwidth(Some(512_000))));
        for hostile in
            ["", "8:29 share1 4 192 pid", "8:29 s 4 192 user weight 768 :100", "8:29 s 4 192 pid weight 1 1000:x"]
        {
            assert_eq!(weight.of(&table(hostile)), None, "{hostile}");
        }
        assert_eq!(weight.of(&line), None, "another policy");
    }

    #[test]
    fn joins_before_it_sets_and_leaves_at_last() {
        let weight = lever(IobandPolicy::Weight);
        let say = |from, to| weight.messages(&LeverValue::Share(from), &LeverValue::Share(to)).unwrap();
        assert_eq!(say(None, Some(40)), ["attach 1000", "weight 1000:40"]);
        assert_eq!(say(Some(40), Some(10)), ["weight 1000:10"]);
        assert_eq!(say(Some(10), None), ["detach 1000"]);
        let by_bandwidth = lever(IobandPolicy::Bandwidth);
        let most =
            by_bandwidth.nearest(LeverValue::Throttle(Throttle { write_bytes: Some(5_000), ..Throttle::default() }));
        assert_eq!(most, bandwidth(Some(4_096)));
        assert_eq!(by_bandwidth.messages(&bandwidth(None), &most).unwrap(), ["attach 1000", "range-bw 1000:0:4"]);
        assert_eq!(by_bandwidth.messages(&most, &LeverValue::Idle(true)), None);
    }

    #[test]
    fn where_there_is_none_the_error_says_so() {
        let error = lever(IobandPolicy::Weight).read().unwrap_err();
        assert!(matches!(error.fault(), Fault::Absent | Fault::Denied), "{error:?}");
        assert!(error.to_string().contains("`ioband1`"), "{error}");
        assert!(policy("no-such-device").is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_table_makes_it_panic(parameters in "(8:0 |s |4 |pid |weight |range-bw |1000:|[0-9: a-z]){0,30}") {
            for policy in [IobandPolicy::Weight, IobandPolicy::Bandwidth] {
                _ = lever(policy).of(&table(&parameters));
            }
        }
    }
}
