//! The other jobs, as one of them sees them while it moves on: who holds which host. In: the jobs submitted before it and
//! after it. Out: hosts it must leave alone, and hosts that it could have of them. Called by a job.

use std::collections::BTreeSet;

use gleaner_types::id::HostId;

use super::cluster::Cluster;
use super::job::Job;

/// All jobs but one.
#[derive(Clone, Copy)]
pub(super) struct Others<'a> {
    /// Submitted before it.
    pub(super) before: &'a [Job],
    /// Submitted after it.
    pub(super) after: &'a [Job],
}

impl<'a> Others<'a> {
    fn unfinished(self) -> impl Iterator<Item = &'a Job> {
        self.before.iter().chain(self.after).filter(|job| !job.is_over())
    }

    /// The job on a cluster that has the volunteer of a host: its tasks there end before a job of engine `local` begins.
    pub(super) fn cluster_on(self, host: &HostId) -> Option<&'a Job> {
        self.unfinished().find(|job| job.is_on_cluster() && job.uses(host))
    }

    /// Some are jobs of engine `local` on this host.
    pub(super) fn are_on(self, host: &HostId) -> bool {
        self.unfinished().any(|job| job.is_on(host))
    }

    /// Hosts that other jobs name: those have them before anybody's volunteers.
    pub(super) fn named(self) -> BTreeSet<HostId> {
        self.unfinished().flat_map(Job::named).cloned().collect()
    }

    /// Hosts that other jobs on clusters work on, or that drain for them.
    pub(super) fn volunteers(self) -> BTreeSet<&'a HostId> {
        self.unfinished().flat_map(Job::volunteers).collect()
    }

    /// Those on clusters that have fewer hosts than they may.
    pub(super) fn short(self) -> impl Iterator<Item = &'a Job> {
        self.unfinished().filter(|job| job.cluster().is_some_and(Cluster::is_short))
    }

    /// No other job is on a cluster.
    pub(super) fn is_alone(self) -> bool {
        !self.unfinished().any(Job::is_on_cluster)
    }
}
