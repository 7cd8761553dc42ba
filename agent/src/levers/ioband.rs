//! dm-ioband, the disk lever of the papers: a device-mapper target, out of tree and rare, that divides a disk
//! between groups by weight or by bandwidth. Groups are processes here (`type pid`): a guest is one. Its table and
//! messages are as its documentation (dm-ioband.txt) defines them; kernels without it answer that there is no such
//! device.
//!
//! A table's line is "DEVICE NAME IO_THROTTLE IO_LIMIT TYPE POLICY TOKEN GROUPS…"; a group of the policy `weight` is
//! "ID:WEIGHT", of `range-bw` "ID:LEAST:MOST" in KiB/s; the first, without an id, is everybody else's.

use std::io;

use serde::{Deserialize, Serialize};

use super::error::LeverError;
use super::value::{LeverValue, Throttle};
use crate::device_mapper::{DeviceMapper, TableLine};

const KIB: u64 = 1_024;

/// By what a device divides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IobandPolicy {
    /// By weight.
    Weight,
    /// By bandwidth, reads and writes together.
    Bandwidth,
}

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

/// A device's policy, and the numbers of a group in it, if it has joined.
fn parse(lines: &[TableLine], pid: i32) -> Option<(IobandPolicy, Option<Vec<u64>>)> {
    let line = lines.iter().find(|line| line.target == "ioband")?;
    let mut words = line.parameters.split_whitespace().skip(4);
    let kind = words.next()?;
    let policy = match words.next()? {
        "weight" => IobandPolicy::Weight,
        "range-bw" => IobandPolicy::Bandwidth,
        _ => return None,
    };
    if kind != "pid" {
        return None;
    }
    let own = format!("{pid}:");
    let numbers: Option<Result<Vec<u64>, std::num::ParseIntError>> =
        words.find_map(|word| word.strip_prefix(&own)).map(|numbers| numbers.split(':').map(str::parse).collect());
    match numbers {
        None => Some((policy, None)),
        Some(numbers) => Some((policy, Some(numbers.ok()?))),
    }
}

/// By what a device divides between processes.
pub(crate) fn policy(device: &str) -> io::Result<IobandPolicy> {
    let lines = DeviceMapper::open()?.table(device)?;
    let odd = || {
        io::Error::new(io::ErrorKind::InvalidData, "it is no ioband device of type pid with policy weight or range-bw")
    };
    parse(&lines, 0).map(|(policy, _)| policy).ok_or_else(odd)
}

/// Both policies on a table, for the fuzz targets.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(lines: &[TableLine]) {
    for policy in [IobandPolicy::Weight, IobandPolicy::Bandwidth] {
        _ = IobandLever { device: String::new(), pid: 1, policy }.of(lines);
    }
}

impl IobandLever {
    pub(super) fn what(&self) -> String {
        format!("the part of process {} of the ioband device `{}`", self.pid, self.device)
    }

    pub(super) fn read(&self) -> Result<LeverValue, LeverError> {
        let lines = DeviceMapper::open().and_then(|mapper| mapper.table(&self.device));
        let lines = lines.map_err(|source| LeverError::Read { what: self.what(), source })?;
        self.of(&lines).ok_or_else(|| LeverError::Malformed {
            what: self.what(),
            text: lines.first().map(|line| line.parameters.chars().take(64).collect()).unwrap_or_default(),
            expected: "a table of ioband with type pid and the same policy as before",
        })
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
    fn messages(&self, from: LeverValue, to: LeverValue) -> Option<Vec<String>> {
        let pid = self.pid;
        let joined = |value: LeverValue| match value {
            LeverValue::Share(weight) => weight,
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

    pub(super) fn write(&self, value: LeverValue) -> Result<(), LeverError> {
        let found = self.read()?;
        let Some(messages) = self.messages(found, value) else {
            let (what, text) = (self.what(), value.to_string());
            return Err(LeverError::Malformed { what, text, expected: "a value of this lever" });
        };
        let send = || {
            let mapper = DeviceMapper::open()?;
            messages.iter().try_for_each(|message| mapper.message(&self.device, message))
        };
        send().map_err(|source| LeverError::Write { value: value.to_string(), what: self.what(), source })
    }

    /// The nearest value it can hold: one bandwidth, the lower, in whole KiB/s.
    pub(super) fn nearest(&self, value: LeverValue) -> LeverValue {
        let LeverValue::Throttle(throttle) = value else { return value };
        let most = throttle.read_bytes.into_iter().chain(throttle.write_bytes).min();
        let most = most.map(|bytes| (bytes / KIB).max(1) * KIB);
        LeverValue::Throttle(Throttle { read_bytes: most, write_bytes: most, ..Throttle::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::levers::Fault;

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
        let say = |from, to| weight.messages(LeverValue::Share(from), LeverValue::Share(to)).unwrap();
        assert_eq!(say(None, Some(40)), ["attach 1000", "weight 1000:40"]);
        assert_eq!(say(Some(40), Some(10)), ["weight 1000:10"]);
        assert_eq!(say(Some(10), None), ["detach 1000"]);
        let by_bandwidth = lever(IobandPolicy::Bandwidth);
        let most =
            by_bandwidth.nearest(LeverValue::Throttle(Throttle { write_bytes: Some(5_000), ..Throttle::default() }));
        assert_eq!(most, bandwidth(Some(4_096)));
        assert_eq!(by_bandwidth.messages(bandwidth(None), most).unwrap(), ["attach 1000", "range-bw 1000:0:4"]);
        assert_eq!(by_bandwidth.messages(most, LeverValue::Idle(true)), None);
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
