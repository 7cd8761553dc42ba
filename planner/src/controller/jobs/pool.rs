//! The account of interactive hosts that several jobs on clusters want: what each holds, wants and has done, second by second,
//! and how many it may have by credit ([`crate::pool`]). In: the jobs, what one of them wants, how many hosts there are. Out:
//! its share. Called by the owner of the jobs and by a job that is sized.

use std::collections::{BTreeMap, BTreeSet};

use gleaner_types::id::UserName;
use gleaner_types::job::PoolShare;
use gleaner_types::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::job::Job;
use crate::controller::interface::seconds;
use crate::pool::{Claim, Ledger, Standing, UserShares};

/// Longest time between two inputs that counts, in seconds; they come every second. Chosen.
const LONGEST_STEP_S: f64 = 120.0;

/// Who has had how much of the hosts that jobs share. A job's dedicated hosts are part of what it has: whoever brings more
/// of them needs less of the others (DRF's dominant share over all it holds).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Pool {
    ledger: Ledger,
    /// Interactive hosts that jobs can share, as last counted.
    hosts: u32,
    /// The last number that was given to a job.
    last: u64,
}

impl Pool {
    /// Books the time since the last call, and what each job on a cluster holds from now on. Says whether one is gone.
    pub(super) fn keep(&mut self, jobs: &mut [Job], users: &UserShares, now: Timestamp) -> bool {
        self.pass(now);
        self.ledger.set_users(users);
        let mut present = BTreeSet::new();
        for job in jobs.iter_mut().filter(|job| !job.is_over()) {
            let active = job.is_active();
            let Some(cluster) = job.cluster_mut() else { continue };
            if active && cluster.number.is_none() {
                self.last += 1;
                cluster.number = Some(self.last);
            }
            let (Some(number), wanted, taken) = (cluster.number, cluster.wanted, cluster.taken().count()) else {
                continue;
            };
            let leaving = cluster.draining() as f64;
            let Some(own) = job.claim(wanted) else { continue };
            present.insert(number);
            if !active {
                self.ledger.claim(number, Claim { least: 0.0, most: 0.0, ..own });
                self.ledger.hold(number, 0.0, 0.0);
                self.ledger.belongs(number, job.status.spec.user.as_ref());
                continue;
            }
            // It begins, or goes on after it has waited.
            if self.ledger.claimed(number).is_none_or(|claim| claim.most <= 0.0) {
                self.ledger.claim(number, own);
            }
            self.ledger.hold(number, own.least + taken as f64, leaving);
            self.ledger.belongs(number, job.status.spec.user.as_ref());
        }
        let gone: Vec<u64> = self.ledger.jobs().filter(|number| !present.contains(number)).collect();
        gone.iter().for_each(|number| self.ledger.end(*number));
        self.ledger.set_capacity(self.ledger.reserved() + f64::from(self.hosts));
        !gone.is_empty()
    }

    /// So much of a job is done, in 0..=1.
    pub(super) fn progressed(&mut self, number: u64, done: f64, now: Timestamp) {
        self.pass(now);
        self.ledger.progressed(number, done);
    }

    /// Books the time until now. After a leap of the clock, or a long sleep, nobody knows what jobs had meanwhile.
    fn pass(&mut self, now: Timestamp) {
        let now_s = at_s(now);
        if now_s - self.ledger.at_s() > LONGEST_STEP_S { self.ledger.skip(now_s) } else { self.ledger.pass(now_s) }
    }

    /// No aggregator ran until now, and nobody knows what jobs had meanwhile.
    pub(super) fn skip(&mut self, now: Timestamp) {
        self.ledger.skip(at_s(now));
    }

    /// Takes what a job would have if nobody else wanted any. Says whether that is news.
    pub(super) fn claim(&mut self, number: u64, claim: Claim) -> bool {
        let before = self.ledger.claimed(number);
        let news = before.is_none_or(|before| (before.least, before.most) != (claim.least, claim.most));
        self.ledger.claim(number, claim);
        news
    }

    /// So many interactive hosts can be shared from now on.
    pub(super) fn count(&mut self, hosts: usize) {
        self.hosts = u32::try_from(hosts).unwrap_or(u32::MAX);
        self.ledger.set_capacity(self.ledger.reserved() + f64::from(self.hosts));
    }

    /// What each job may have for so many seconds, by its number.
    pub(super) fn shares(&self, epoch_s: f64, now: Timestamp) -> BTreeMap<u64, PoolShare> {
        let outlook = self.ledger.outlook(epoch_s);
        let fair = |standing: &Standing, claim: &Claim| (standing.fair - claim.least).max(0.0);
        // Of each user: what its jobs that want hosts would have fairly, and how many these are.
        let mut users: BTreeMap<Option<&UserName>, (f64, u32)> = BTreeMap::new();
        for (number, (standing, _)) in &outlook {
            let Some(claim) = self.ledger.claimed(*number).filter(|claim| claim.most > 0.0) else { continue };
            let (sum, jobs) = users.entry(self.ledger.user(*number)).or_default();
            (*sum, *jobs) = (*sum + fair(standing, &claim), *jobs + 1);
        }
        let of = |(number, (standing, workers)): (u64, (Standing, u32))| {
            let claim = self.ledger.claimed(number)?;
            let (user_fair, user_jobs) = users.get(&self.ledger.user(number)).copied().unwrap_or_default();
            let workers = f64::from(workers);
            let share = PoolShare {
                wanted: whole(claim.most - claim.least),
                allotted: whole(workers - claim.least),
                fair: fair(&standing, &claim),
                user_fair,
                user_jobs,
                credit_s: standing.credit,
                ahead_s: if standing.fair > 0.0 { standing.credit / standing.fair } else { 0.0 },
                fair_completion: standing.fair_completion_in_s.map(|in_s| now.after(seconds(in_s))),
            };
            Some((number, share))
        };
        outlook.into_iter().filter_map(of).collect()
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
const fn whole(hosts: f64) -> u32 {
    hosts as u32
}

impl Job {
    /// What it has always, and what it would have if nobody else wanted any; `None` of jobs on one machine.
    pub(super) fn claim(&self, wanted: u32) -> Option<Claim> {
        let (weight, least) = (self.cluster_spec()?.weight, f64::from(self.dedicated()));
        let mean_task_s = self.status.progress.as_ref().and_then(|progress| progress.mean_task_s).unwrap_or(0.0);
        let change_s = self.status.spec.set_up_s + mean_task_s;
        Some(Claim { weight, least, most: least + f64::from(wanted), change_s })
    }
}

fn at_s(now: Timestamp) -> f64 {
    now.seconds_since(Timestamp(0))
}
