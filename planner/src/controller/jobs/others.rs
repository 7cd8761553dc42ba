//! The other jobs, as one of them sees them while it moves on: who holds which host, and whose turn it is. In: the jobs
//! submitted before it and after it. Out: hosts it must leave alone, its place in the round. Called by a job.

use std::collections::BTreeSet;

use gleaner_types::id::HostId;

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

    /// The job that has the volunteer of a host before this job of engine `local`: any older one, and a younger one on a
    /// cluster, which lets its tasks there end first.
    pub(super) fn holder_before(self, host: &HostId) -> Option<&'a Job> {
        let clusters = self.after.iter().filter(|job| job.is_on_cluster());
        self.before.iter().chain(clusters).find(|job| !job.is_over() && job.uses(host))
    }

    /// Hosts that other jobs name: those have them before anybody's volunteers.
    pub(super) fn named(self) -> BTreeSet<HostId> {
        self.unfinished().flat_map(Job::named).cloned().collect()
    }

    /// Hosts that other jobs name or work on.
    pub(super) fn taken(self) -> impl Iterator<Item = &'a HostId> {
        self.unfinished().flat_map(|job| job.named().chain(job.volunteers()))
    }

    /// The place of this job among those on clusters, and how many they are with it.
    pub(super) fn turn(self) -> (usize, usize) {
        let active = |jobs: &[Job]| jobs.iter().filter(|job| job.is_on_cluster() && !job.is_over()).count();
        let place = active(self.before);
        (place, place + 1 + active(self.after))
    }
}
