//! What a host offers through levers. In: the host, as its kernel shows it. Out: by what means it offers a capability,
//! or why it does not. Each lever says it of its own kinds ([`super::lever::Lever::offers`]); here are the questions
//! that several ask. Called by the levers, and by the probe of the host's facts.

use std::collections::BTreeMap;
use std::path::Path;

use gleaner_types::report::{Absence, Capability, Reason};

use crate::hierarchies::Hierarchies;
use crate::roots::Roots;

/// By what means a capability is offered, or why it is not.
pub type Finding = Result<String, Absence>;

/// It is not offered, for this reason.
///
/// # Errors
/// Always: the absence.
pub const fn absent(reason: Reason) -> Finding {
    Err(Absence::because(reason))
}

/// A host that is asked.
#[derive(Debug, Clone, Copy)]
pub struct Host<'a> {
    /// Where its kernel's interfaces are.
    pub roots: &'a Roots,
    /// Its hierarchies of cgroups.
    pub hierarchies: &'a Hierarchies,
    /// Whether to try, out of everybody's way, what can only be found out by doing it; the kernel may load a module for it.
    pub trying: bool,
}

impl Host<'_> {
    /// A controller is mounted and its hierarchy can be written.
    ///
    /// # Errors
    /// The absence, where it is not.
    pub fn controller(&self, v1: &str, v2: &str, by_v1: &str, by_v2: &str) -> Finding {
        let found = self.hierarchies.v1.get(v1).map(|mount| (mount.as_path(), by_v1));
        let found = found.or_else(|| self.hierarchies.of(v2).map(|(mount, _)| (mount, by_v2)));
        match found {
            Some((mount, means)) => writable(mount, means),
            None => absent(Reason::NoController { controller: v2.into() }),
        }
    }

    /// The kernel's release is this one or newer.
    #[must_use]
    pub fn kernel_at_least(&self, wanted: (u32, u32)) -> bool {
        let release = std::fs::read_to_string(self.roots.proc.join("sys/kernel/osrelease")).unwrap_or_default();
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= wanted
    }
}

/// By these means, where the folder of a hierarchy can be written.
///
/// # Errors
/// The absence, where it cannot.
pub fn writable(mount: &Path, means: &str) -> Finding {
    match rustix::fs::access(mount, rustix::fs::Access::WRITE_OK) {
        Ok(()) => Ok(means.to_owned()),
        Err(error) => absent(Reason::NotWritable {
            folder: mount.display().to_string().into(),
            errno: Some(error.raw_os_error()),
        }),
    }
}

/// Each capability once. Of several means the first that there is counts, and where there is none the first reason.
#[must_use]
pub fn each_once(found: impl IntoIterator<Item = (Capability, Finding)>) -> BTreeMap<Capability, Finding> {
    let mut all: BTreeMap<Capability, Finding> = BTreeMap::new();
    for (capability, finding) in found {
        let known = all.entry(capability).or_insert_with(|| finding.clone());
        if known.is_err() && finding.is_ok() {
            *known = finding;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_means_the_first_that_there_is_counts() {
        let cpu = Capability::CpuQuota;
        let no = |controller: &str| (cpu, absent(Reason::NoController { controller: controller.into() }));
        let by = |means: &str| (cpu, Ok(means.to_owned()));
        let of = |found: [(Capability, Finding); 3]| each_once(found).remove(&cpu).unwrap();
        assert_eq!(of([no("a"), by("b"), by("c")]).unwrap(), "b");
        assert_eq!(of([by("a"), no("b"), by("c")]).unwrap(), "a");
        assert_eq!(of([no("a"), no("b"), no("c")]), no("a").1);
    }
}
