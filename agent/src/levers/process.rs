//! How readily the kernel kills one process when memory runs out: `oom_score_adj`. In: a process. Out: its score.
//! Called by the volunteer's bounds, for a volunteer that was there before: what is started in a volunteer that Gleaner
//! made ends with it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::LeverError;
use super::lever::Lever;
use super::place::{Found, Place};
use super::role::{Kind, Role};
use super::value::LeverValue;
use crate::kernel_file::{read_bounded, write_existing};
use crate::process::stat;

/// The `oom_score_adj` of one process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessLever {
    /// The process.
    pub pid: i32,
    /// When it started, in ticks since boot: its number may be another's by now.
    pub start_ticks: u64,
}

impl ProcessLever {
    /// Of a process that runs.
    #[must_use]
    pub fn of(pid: i32) -> Option<Self> {
        let start_ticks = stat(Path::new("/proc"), pid).ok()?.start_ticks;
        Some(Self { pid, start_ticks })
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/oom_score_adj", self.pid))
    }

    /// That it is still the same process.
    fn check(&self) -> io::Result<()> {
        let same = Self::of(self.pid).is_some_and(|now| now == *self);
        if same { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ENOENT)) }
    }
}

impl fmt::Display for ProcessLever {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path().display())
    }
}

impl Lever for ProcessLever {
    const KINDS: &'static [Kind] = &[Kind {
        name: "OOM score of a process",
        does: "the kernel kills it first when the host's memory runs out: `oom_score_adj`",
        exists: "everywhere",
        restored: "the original score",
        capability: None,
    }];

    fn find(_: &Place<'_>) -> Vec<Found<Self>> {
        Vec::new()
    }

    fn role(&self) -> Option<Role> {
        None
    }

    fn exists(&self) -> bool {
        self.check().is_ok()
    }

    fn read(&self) -> Result<LeverValue, LeverError> {
        let text = self.check().and_then(|()| read_bounded(&self.path(), 64));
        let text = text.map_err(|source| LeverError::Read { what: format!("`{self}`"), source })?;
        text.trim().parse().map(LeverValue::OomScore).map_err(|_| LeverError::Malformed {
            what: format!("`{self}`"),
            text: text.chars().take(64).collect(),
            expected: "a whole number",
        })
    }

    fn write(&self, value: LeverValue) -> Result<(), LeverError> {
        let LeverValue::OomScore(score) = value else {
            let (what, text) = (format!("`{self}`"), value.to_string());
            return Err(LeverError::Malformed { what, text, expected: "a score of -1000 to 1000" });
        };
        let written = self.check().and_then(|()| write_existing(&self.path(), &score.to_string()));
        written.map_err(|source| LeverError::Write { value: score.to_string(), what: format!("`{self}`"), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_process_is_scored_and_another_of_its_number_is_not() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let lever = ProcessLever::of(i32::try_from(child.id()).unwrap()).unwrap();
        lever.set(LeverValue::OomScore(900)).unwrap();
        assert_eq!(lever.read().unwrap(), LeverValue::OomScore(900));
        let other = ProcessLever { start_ticks: lever.start_ticks + 1, ..lever.clone() };
        assert!(other.read().is_err() && other.write(LeverValue::OomScore(1)).is_err() && !other.exists());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(lever.read().is_err());
    }
}
