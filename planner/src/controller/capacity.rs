//! What jobs may know of hosts: what each offers a volunteer once operators and applications have had theirs. In: hosts
//! and applications, as they are. Out: facts, reports and residuals. Called by the jobs.

use std::collections::BTreeSet;

use gleaner_types::id::HostId;
use gleaner_types::units::{Bytes, CoreShare};

use super::applications::Applications;
use super::hosts::{Host, Hosts};
use super::unusable::Unusable;

/// Hosts as jobs see them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Capacity<'a> {
    hosts: &'a Hosts,
    applications: &'a Applications,
}

impl<'a> Capacity<'a> {
    pub(super) const fn new(hosts: &'a Hosts, applications: &'a Applications) -> Self {
        Self { hosts, applications }
    }

    /// A host, its facts and its last report.
    pub(super) fn host(&self, id: &HostId) -> Option<&'a Host> {
        self.hosts.get(id)
    }

    /// Names of the hardware of all hosts.
    pub(super) fn classes(&self) -> impl Iterator<Item = &'a str> {
        self.hosts.iter().map(|(_, host)| host.facts().cpu_model.as_str())
    }

    /// How many hosts have a volunteer that can work, whether it does or not, but for some.
    pub(super) fn usable_but(&self, named: &BTreeSet<HostId>) -> usize {
        let others = self.hosts.iter().filter(|(id, _)| !named.contains(*id));
        others.filter(|(id, _)| self.residual(id).is_ok()).count()
    }

    /// Hosts whose volunteers do nothing, by name.
    pub(super) fn latent(&self) -> impl Iterator<Item = &'a HostId> {
        self.hosts.iter().filter(|(_, host)| host.is_latent()).map(|(id, _)| id)
    }

    /// Residual CPU and memory a host can offer a volunteer now. Foreground applications come first, even where they do
    /// not use what they were granted yet.
    pub(super) fn residual(&self, id: &HostId) -> Result<(CoreShare, Bytes), Unusable> {
        let (cpu, memory) = self.hosts.residual(id)?;
        Ok((cpu.min(self.applications.left_on(id, self.hosts)?), memory))
    }

    /// Its agent is not connected, or has not reported since it connected; nobody holds it.
    pub(super) fn is_away(&self, id: &HostId) -> bool {
        self.hosts.is_away(id)
    }
}
