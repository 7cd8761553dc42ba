//! The table of a dm-ioband device. In: its name, or its lines. Out: by what it divides, and the numbers of one group.
//! Called by [`super::place`] and by the lever itself.

use std::io;

use serde::{Deserialize, Serialize};

use crate::device_mapper::{DeviceMapper, TableLine};

/// By what a device divides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IobandPolicy {
    /// By weight.
    Weight,
    /// By bandwidth, reads and writes together.
    Bandwidth,
}

/// A device's policy, and the numbers of a group in it, if it has joined.
pub(super) fn parse(lines: &[TableLine], pid: i32) -> Option<(IobandPolicy, Option<Vec<u64>>)> {
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
