//! Who may have how many workers of a pool that several jobs want, by credit (CANAL, Wei §5.3). In: what each job holds,
//! wants at most and has done, and the time. Out: its fair share, its credit, when it would be done under fair sharing
//! alone, and how many workers it may have until the next epoch. Called by the controller's jobs on clusters.
//!
//! Workers of a pool are alike, so a dominant share is a part of the pool. The ledger runs weighted max-min fair sharing in
//! which work can be cut at will beside what really happens (DRF of one resource, §5.3.3). A job's fair completion is when it is
//! done there. Jobs are ranked by it, and the first may borrow what the others can do without until their own.
//!
//! What a job cannot do without is found from the end: all that is left is put as late as it can be, each job before its
//! fair completion and never on more workers than it can use. What does not fit after the coming epoch has to be done in it.
//! This stands for §5.3.4's largest gap G, whose cases are about the same: that the first ranks together never lend (Eq. 5.2),
//! and that credit cannot be returned faster than a job has tasks for. The theorem of §5.3.2 is about work that can be
//! divided; tests hold whole tasks to three times the sum of the longest task and an epoch after a job's fair completion.
//! The simpler rule of [`crate::queue`], by which only what a job's own bounds do not let wait has a part before its turn, was
//! tried here: late jobs are 5 % fewer in all, but 9 % more where hosts come and go (mean 3 % longer); in most loads the latest is later.
//!
//! A job of which no progress is known yet neither lends nor borrows. One that has ended early stays in the fair schedule
//! until it would have had there what it really had, so what it borrowed is paid back. One that turns out to need less than
//! it was given there gives the rest to the others, as if they had had it: they lent it.

mod division;

use std::collections::BTreeMap;

use gleaner_types::id::UserName;
use serde::{Deserialize, Serialize};

use division::Tree;
pub use division::{Claim, InvalidShares, MOST_NAMED, USER_WEIGHTS, UserShares, water_fill};

/// Least part of a job that has to be done before its work is estimated from it. Chosen.
const LEAST_DONE: f64 = 0.01;
/// Jobs that are ranked. The ranks of so many take some milliseconds, and grow with the square; of more, each has its fair
/// share alone. Chosen.
const MOST_RANKED: usize = 100;
/// Epochs by which a job must be ahead of another to borrow what that works on, beside what the change costs. Chosen.
const EPOCHS_TO_SETTLE: f64 = 1.0;
/// Part of a quantity that is rounding.
const ROUNDING: f64 = 1e-9;
/// Halvings in which the level of a piece is found.
const HALVINGS: u32 = 60;

/// One job in the ledger; sums are in worker-seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Account {
    claim: Claim,
    /// Whose it is.
    #[serde(default)]
    user: Option<UserName>,
    /// The most it has claimed so far: in the fair schedule, where it has more left, its last tasks have not come yet.
    widest: f64,
    /// What it holds now.
    held: f64,
    /// Of that, what it gives back as soon as its tasks have ended.
    leaving: f64,
    /// What it has had.
    had: f64,
    /// What it would have had.
    fair: f64,
    /// What it had had, and how much of it was done in 0..=1, when both began to be known together.
    begun: Option<(f64, f64)>,
    /// All that it takes to its end, once that can be told.
    work: Option<f64>,
    ended: bool,
}

impl Account {
    /// Left under fair sharing; endless where its work is not known.
    fn fair_left(&self) -> f64 {
        self.work.map_or(f64::INFINITY, |work| work - self.fair)
    }

    fn is_done_fairly(&self) -> bool {
        self.work.is_some_and(|work| self.fair >= work * (1.0 - ROUNDING))
    }

    fn credit(&self) -> f64 {
        self.had - self.fair
    }
}

/// How a job stands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Standing {
    /// Workers it would have now under fair sharing.
    pub fair: f64,
    /// Worker-seconds it has had beyond its fair share (Eq. 5.6); less than 0 was lent.
    pub credit: f64,
    /// Seconds until it would be done under fair sharing alone, if nobody came; 0 if it would be already. `None` while its
    /// work is not known.
    pub fair_completion_in_s: Option<f64>,
}

/// The ledger of one pool. Jobs are named by their numbers in the order of their submission, which also breaks ties.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Ledger {
    capacity: f64,
    /// Until when it is kept, in seconds.
    at_s: f64,
    accounts: BTreeMap<u64, Account>,
    /// Weights of users.
    #[serde(default)]
    users: UserShares,
}

/// The fair schedule from now on, if nobody comes.
struct Ahead {
    /// Of each job that is not done in it: its share now.
    shares: BTreeMap<u64, f64>,
    /// Seconds until each is done; endless where that is not known, and of all where they are too many.
    ends_in_s: BTreeMap<u64, f64>,
}

impl Ledger {
    /// Jobs that have not ended.
    pub fn jobs(&self) -> impl Iterator<Item = u64> {
        self.present().map(|(job, _)| job)
    }

    /// Jobs that have an account: also those that have ended, while the others still have a right to what they borrowed.
    pub fn accounts(&self) -> impl Iterator<Item = u64> {
        self.accounts.keys().copied()
    }

    /// What all jobs hold now.
    #[must_use]
    pub fn held(&self) -> f64 {
        self.present().map(|(_, account)| account.held).sum()
    }

    /// Until when it is kept, in seconds.
    #[must_use]
    pub const fn at_s(&self) -> f64 {
        self.at_s
    }

    /// What jobs that have not ended always have, together.
    #[must_use]
    pub fn reserved(&self) -> f64 {
        self.present().map(|(_, account)| account.claim.least).sum()
    }

    /// From now on there is so much.
    pub fn set_capacity(&mut self, capacity: f64) {
        self.capacity = if capacity.is_finite() { capacity.max(0.0) } else { 0.0 };
    }

    /// Users weigh so much from now on.
    pub fn set_users(&mut self, users: &UserShares) {
        if self.users != *users {
            self.users.clone_from(users);
        }
    }

    /// Whose a job is that has claimed something; all jobs without a user are one user's.
    pub fn belongs(&mut self, job: u64, user: Option<&UserName>) {
        if let Some(account) = self.accounts.get_mut(&job)
            && account.user.as_ref() != user
        {
            account.user = user.cloned();
        }
    }

    /// The user of a job; `None` where it has none, or is not known.
    #[must_use]
    pub fn user(&self, job: u64) -> Option<&UserName> {
        self.accounts.get(&job)?.user.as_ref()
    }

    /// What a job wants from now on. The first claim is its arrival.
    pub fn claim(&mut self, job: u64, claim: Claim) {
        let claim = claim.sane();
        let new = || Account {
            claim,
            user: None,
            widest: 0.0,
            held: 0.0,
            leaving: 0.0,
            had: 0.0,
            fair: 0.0,
            begun: None,
            work: None,
            ended: false,
        };
        let account = self.accounts.entry(job).or_insert_with(new);
        if !account.ended {
            account.claim = claim;
            account.widest = account.widest.max(claim.most);
        }
    }

    /// What a job wants, as it last said; `None` of one that is not known, or has ended.
    #[must_use]
    pub fn claimed(&self, job: u64) -> Option<Claim> {
        self.accounts.get(&job).filter(|account| !account.ended).map(|account| account.claim)
    }

    /// What a job holds from now on, and what of that it gives back as soon as its tasks have ended.
    pub fn hold(&mut self, job: u64, workers: f64, leaving: f64) {
        let finite = workers.is_finite() && leaving.is_finite();
        if let Some(account) = self.accounts.get_mut(&job).filter(|account| !account.ended && finite) {
            account.held = workers.max(0.0);
            account.leaving = leaving.clamp(0.0, account.held);
        }
    }

    /// So much of a job is done, in 0..=1: what is left of it is learned from what it had for that.
    pub fn progressed(&mut self, job: u64, done: f64) {
        let Some(account) = self.accounts.get_mut(&job).filter(|account| !account.ended && done.is_finite()) else {
            return;
        };
        let done = done.clamp(0.0, 1.0);
        let (had, done_before) = *account.begun.get_or_insert((account.had, done));
        let (spent, more) = (account.had - had, done - done_before);
        if more >= LEAST_DONE && spent > 0.0 {
            account.work = Some(account.had + (1.0 - done) * spent / more);
            self.give_back(job);
        }
    }

    /// So much of a job is left, in worker-seconds, where that is known by other means than its progress.
    pub fn left(&mut self, job: u64, left: f64) {
        if let Some(account) = self.accounts.get_mut(&job).filter(|account| !account.ended && left.is_finite()) {
            account.work = Some(account.had + left.max(0.0));
            self.give_back(job);
        }
    }

    /// A job has ended, well or not. It has had all that it will.
    pub fn end(&mut self, job: u64) {
        if let Some(account) = self.accounts.get_mut(&job).filter(|account| !account.ended) {
            account.ended = true;
            (account.held, account.leaving) = (0.0, 0.0);
            account.claim.least = 0.0;
            account.work = Some(account.had);
            self.give_back(job);
        }
        self.forget();
    }

    /// What a job was given in the fair schedule beyond all its work goes to the others, by their shares. Other users have it
    /// only where its own has no other job that could use more, as they would have in the schedule.
    fn give_back(&mut self, job: u64) {
        let Some(account) = self.accounts.get_mut(&job) else { return };
        let over = account.fair - account.work.unwrap_or(f64::INFINITY);
        if over <= 0.0 {
            return;
        }
        account.fair -= over;
        let shares = self.shares().into_iter();
        let mut others: Vec<(u64, f64)> = shares.filter(|(other, share)| *other != job && *share > 0.0).collect();
        let is_own = |other: u64| self.user(other) == self.user(job);
        let could_use = |other: u64, share: f64| {
            self.accounts.get(&other).is_some_and(|account| share < account.widest * (1.0 - ROUNDING))
        };
        let first = |&(other, share): &(u64, f64)| is_own(other) && could_use(other, share);
        if others.iter().any(first) && !others.iter().all(|(other, _)| is_own(*other)) {
            others.retain(first);
        }
        let left = |other: &u64| self.accounts.get(other).map_or(0.0, Account::fair_left);
        let claims: Vec<Claim> = others
            .iter()
            .map(|(other, share)| Claim { weight: *share, least: 0.0, most: left(other), change_s: 0.0 })
            .collect();
        let given: Vec<(u64, f64)> = others.iter().map(|(other, _)| *other).zip(water_fill(over, &claims)).collect();
        for (other, more) in given {
            if let Some(account) = self.accounts.get_mut(&other) {
                account.fair += more;
            }
        }
    }

    /// Accounts of jobs that have ended in truth and in the fair schedule.
    fn forget(&mut self) {
        self.accounts.retain(|_, account| !account.ended || !account.is_done_fairly());
    }

    /// What has passed until a time, in seconds, counts for nobody: it is not known what was shared. Nor does what jobs have
    /// done meanwhile teach anything about their work.
    pub fn skip(&mut self, to_s: f64) {
        self.at_s = self.at_s.max(to_s);
        self.accounts.values_mut().for_each(|account| account.begun = None);
    }

    /// Keeps the ledger up to a time, in seconds. An earlier one changes nothing.
    pub fn pass(&mut self, to_s: f64) {
        let mut left_s = to_s - self.at_s;
        if !(left_s > 0.0 && left_s.is_finite()) {
            return;
        }
        self.at_s = to_s;
        for account in self.accounts.values_mut() {
            account.had += account.held * left_s;
        }
        // At most one job ends in each round but the last.
        for _ in 0..=self.accounts.len() {
            let shares = self.shares();
            let end_s = |(job, share): (&u64, &f64)| {
                let left = self.accounts.get(job).map_or(f64::INFINITY, Account::fair_left);
                if *share > 0.0 { left / share } else { f64::INFINITY }
            };
            let first_s = shares.iter().map(end_s).fold(f64::INFINITY, f64::min);
            let step_s = first_s.min(left_s);
            for (job, share) in &shares {
                if let Some(account) = self.accounts.get_mut(job) {
                    account.fair += share * step_s;
                }
            }
            left_s -= step_s;
            if left_s <= 0.0 {
                break;
            }
        }
        self.forget();
    }

    fn present(&self) -> impl Iterator<Item = (u64, &Account)> {
        self.accounts.iter().filter(|(_, account)| !account.ended).map(|(job, account)| (*job, account))
    }

    /// Fair shares now, of those that are not done fairly.
    fn shares(&self) -> BTreeMap<u64, f64> {
        let sharing = || self.accounts.iter().filter(|(_, account)| !account.is_done_fairly());
        // One that wants nothing is no part of it, until it wants something again.
        let most = |account: &Account| if account.ended || account.claim.most > 0.0 { account.widest } else { 0.0 };
        let claims: Vec<Claim> = sharing().map(|(_, account)| Claim { most: most(account), ..account.claim }).collect();
        let tree = Tree::new(&self.users, sharing().map(|(_, account)| account.user.as_ref()));
        sharing().map(|(job, _)| *job).zip(tree.divide(self.capacity, &claims)).collect()
    }

    /// The fair schedule from now on.
    fn ahead(&self) -> Ahead {
        let mut fluid = self.clone();
        let shares = fluid.shares();
        let mut ends_in_s: BTreeMap<u64, f64> = self.accounts.keys().map(|job| (*job, f64::INFINITY)).collect();
        for (job, account) in &self.accounts {
            if account.is_done_fairly() {
                ends_in_s.insert(*job, 0.0);
            }
        }
        let (mut now_s, mut current) = (0.0, shares.clone());
        let rounds = if self.present().count() > MOST_RANKED { 0 } else { self.accounts.len() };
        for _ in 0..rounds {
            let left_s = |(job, share): (&u64, &f64)| {
                let left = fluid.accounts.get(job).map_or(f64::INFINITY, Account::fair_left);
                if *share > 0.0 { left / share } else { f64::INFINITY }
            };
            let step_s = current.iter().map(left_s).fold(f64::INFINITY, f64::min);
            if !step_s.is_finite() {
                break;
            }
            now_s += step_s;
            for (job, share) in &current {
                let Some(account) = fluid.accounts.get_mut(job) else { continue };
                account.fair += share * step_s;
                if account.is_done_fairly() {
                    ends_in_s.insert(*job, now_s);
                }
            }
            current = fluid.shares();
        }
        Ahead { shares, ends_in_s }
    }

    /// How every job stands that has not ended, and whole workers that it may have in the coming epoch.
    #[must_use]
    pub fn outlook(&self, epoch_s: f64) -> BTreeMap<u64, (Standing, u32)> {
        let ahead = self.ahead();
        let (standings, allotted) = (self.standings_by(&ahead), self.allot_by(&ahead, epoch_s));
        let of = |(job, standing): (u64, Standing)| (job, (standing, allotted.get(&job).copied().unwrap_or(0)));
        standings.into_iter().map(of).collect()
    }

    /// How every job stands that has not ended.
    #[must_use]
    pub fn standings(&self) -> BTreeMap<u64, Standing> {
        self.standings_by(&self.ahead())
    }

    fn standings_by(&self, ahead: &Ahead) -> BTreeMap<u64, Standing> {
        let of = |(job, account): (u64, &Account)| {
            let end_in_s = ahead.ends_in_s.get(&job).copied().filter(|end_s| end_s.is_finite());
            let standing = Standing {
                fair: ahead.shares.get(&job).copied().unwrap_or(0.0),
                credit: account.credit(),
                fair_completion_in_s: end_in_s,
            };
            (job, standing)
        };
        self.present().map(of).collect()
    }

    #[cfg(test)]
    fn allot(&self, epoch_s: f64) -> BTreeMap<u64, u32> {
        self.allot_by(&self.ahead(), epoch_s)
    }

    /// Whole workers that each job may have in the coming epoch. Together they fit into the pool, unless what jobs always have
    /// alone does not. Nothing stays free that a job can use.
    fn allot_by(&self, ahead: &Ahead, epoch_s: f64) -> BTreeMap<u64, u32> {
        let mut ranks: Vec<Rank<'_>> = self.present().map(|(job, account)| Rank::new(job, account, ahead)).collect();
        ranks.sort_by(|a, b| a.end_in_s.total_cmp(&b.end_in_s).then(a.job.cmp(&b.job)));
        let unknown: f64 = ranks.iter().filter(|rank| !rank.is_known()).map(|rank| rank.fair).sum();
        put_late(&mut ranks, self.capacity - unknown, epoch_s);
        let tree = Tree::new(&self.users, ranks.iter().map(|rank| rank.account.user.as_ref()));
        let mut round = Round::new(self.capacity, &ranks, &tree);
        // Of two that are about as far, first the one that has more already.
        let mut known: Vec<usize> = (0..ranks.len()).filter(|place| ranks[*place].is_known()).collect();
        known.sort_by(|&a, &b| ranks[a].settled_s(epoch_s).total_cmp(&ranks[b].settled_s(epoch_s)).then(a.cmp(&b)));
        for place in &known {
            round.give_up_to(*place, (ranks[*place].must - ROUNDING).ceil());
        }
        for (place, rank) in ranks.iter().enumerate().filter(|(_, rank)| !rank.is_known()) {
            round.give_up_to(place, (rank.fair + ROUNDING).floor());
        }
        // A part of a worker that none of them can have is lent until it is a whole one for an epoch.
        for (place, rank) in ranks.iter().enumerate().filter(|(_, rank)| !rank.is_known()) {
            if rank.account.credit() <= -epoch_s {
                round.give_up_to(place, (rank.fair).floor() + 1.0);
            }
        }
        // What is left goes to the first, whole.
        for place in known {
            round.give_up_to(place, f64::INFINITY);
        }
        while let Some(place) = round.furthest_behind() {
            round.give_up_to(place, round.workers[place] + 1.0);
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
        ranks.iter().zip(round.workers).map(|(rank, workers)| (rank.job, workers as u32)).collect()
    }
}

/// A job in the order of fair completions.
struct Rank<'a> {
    job: u64,
    account: &'a Account,
    /// Seconds until its fair completion; endless where its work is not known.
    end_in_s: f64,
    /// Its fair share now.
    fair: f64,
    /// What it cannot do without in the coming epoch.
    must: f64,
}

impl<'a> Rank<'a> {
    fn new(job: u64, account: &'a Account, ahead: &Ahead) -> Self {
        let end_in_s = ahead.ends_in_s.get(&job).copied().unwrap_or(f64::INFINITY);
        Self { job, account, end_in_s, fair: ahead.shares.get(&job).copied().unwrap_or(0.0), must: 0.0 }
    }

    fn is_known(&self) -> bool {
        self.account.work.is_some() && self.end_in_s.is_finite()
    }

    /// Its fair completion for the order in which it borrows: earlier by what changes cost, as far as it works on what it can
    /// use. Estimates differ by a task or so from one epoch to the next, and jobs that are alike would change places.
    fn settled_s(&self, epoch_s: f64) -> f64 {
        let account = self.account;
        let working = account.held - account.leaving - account.claim.least;
        let part = if self.more() > 0.0 { (working / self.more()).clamp(0.0, 1.0) } else { 0.0 };
        self.end_in_s - part * (EPOCHS_TO_SETTLE * epoch_s + account.claim.change_s)
    }

    /// Workers it can use beside those it always has.
    fn more(&self) -> f64 {
        self.account.claim.most - self.account.claim.least
    }
}

/// How jobs are put into a piece of time, the last piece first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Put {
    /// The last of the ranks first, so that the first ranks come to run now; but each as much as it needs so that its workers
    /// are enough for the rest of it.
    LastFirst,
    /// The longest way to go first. What is left then is the least there can be in all.
    LongestFirst,
}

/// Puts what is left of each job as late as it can be. What does not fit after the coming epoch is `must`, in workers
/// over the epoch, with what the job always has.
fn put_late(ranks: &mut [Rank<'_>], capacity: f64, epoch_s: f64) {
    let known = ranks.iter().position(|rank| !rank.is_known()).unwrap_or(ranks.len());
    let ranks = &mut ranks[..known];
    let mut lefts = left_after_epoch(ranks, capacity, epoch_s, Put::LastFirst);
    let least: f64 = ranks.iter().map(|rank| rank.account.claim.least).sum();
    let fits = |(rank, left): (&Rank<'_>, &f64)| *left <= rank.more() * epoch_s * (1.0 + ROUNDING);
    let sum: f64 = lefts.iter().sum();
    if sum > (capacity - least).max(0.0) * epoch_s * (1.0 + ROUNDING) || !ranks.iter().zip(&lefts).all(fits) {
        lefts = left_after_epoch(ranks, capacity, epoch_s, Put::LongestFirst);
    }
    for (rank, left) in ranks.iter_mut().zip(lefts) {
        rank.must = (rank.account.claim.least + left / epoch_s).min(rank.account.claim.most);
    }
}

fn left_after_epoch(ranks: &[Rank<'_>], capacity: f64, epoch_s: f64, put: Put) -> Vec<f64> {
    let left = |rank: &Rank<'_>| {
        let work = rank.account.work.unwrap_or(0.0) - rank.account.had;
        // What it always has works on until then.
        (work - rank.account.claim.least * rank.end_in_s.max(epoch_s)).max(0.0)
    };
    let mut lefts: Vec<f64> = ranks.iter().map(left).collect();
    let mut to_s = ranks.last().map_or(0.0, |rank| rank.end_in_s);
    // In each piece the jobs from `first` on have not come to their fair completions.
    for first in (0..ranks.len()).rev() {
        let from_s = if first == 0 { epoch_s } else { ranks[first - 1].end_in_s.max(epoch_s) };
        let length_s = to_s - from_s;
        if length_s <= 0.0 {
            continue;
        }
        to_s = from_s;
        let least: f64 = ranks[first..].iter().map(|rank| rank.account.claim.least).sum();
        let room = (capacity - least).max(0.0) * length_s;
        let mores: Vec<f64> = ranks[first..].iter().map(Rank::more).collect();
        match put {
            Put::LastFirst => fill_last_first(&mut lefts[first..], &mores, from_s, length_s, room),
            Put::LongestFirst => fill_longest_first(&mut lefts[first..], &mores, length_s, room),
        }
    }
    lefts
}

/// Takes from what is left of each job what fits into a piece of time: what its workers cannot do before the piece, then the
/// rest of the last jobs.
fn fill_last_first(lefts: &mut [f64], mores: &[f64], from_s: f64, length_s: f64, mut room: f64) {
    let mut taken = vec![0.0; lefts.len()];
    for part in [from_s, 0.0] {
        for (place, more) in mores.iter().enumerate().rev() {
            let needed = (lefts[place] - more * part).max(0.0).min(more * length_s - taken[place]).min(room).max(0.0);
            lefts[place] -= needed;
            taken[place] += needed;
            room -= needed;
        }
    }
}

/// Takes from what is left of each job what fits into a piece of time, so that the longest time left on all workers that a job
/// can use becomes as short as it can.
fn fill_longest_first(lefts: &mut [f64], mores: &[f64], length_s: f64, room: f64) {
    let taken = |left: f64, more: f64, level_s: f64| (left - more * level_s).clamp(0.0, more * length_s);
    let sum = |lefts: &[f64], level_s: f64| -> f64 {
        lefts.iter().zip(mores).map(|(left, more)| taken(*left, *more, level_s)).sum()
    };
    let longest = |(left, more): (&f64, &f64)| if *more > 0.0 { left / more } else { 0.0 };
    let (mut low, mut high) = (0.0, lefts.iter().zip(mores).map(longest).fold(0.0, f64::max));
    if sum(lefts, low) > room {
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(low, high);
            if sum(lefts, middle) > room { low = middle } else { high = middle }
        }
    } else {
        high = 0.0;
    }
    for (left, more) in lefts.iter_mut().zip(mores) {
        *left -= taken(*left, *more, high);
    }
}

/// Whole workers as they are given.
struct Round<'a> {
    free: f64,
    workers: Vec<f64>,
    ranks: &'a [Rank<'a>],
    tree: &'a Tree,
    /// Workers that each user and group has, and their credit.
    sums: Vec<(f64, f64)>,
}

impl<'a> Round<'a> {
    /// Each job has what it always has.
    fn new(capacity: f64, ranks: &'a [Rank<'a>], tree: &'a Tree) -> Self {
        let workers: Vec<f64> = ranks.iter().map(|rank| (rank.account.claim.least + ROUNDING).floor()).collect();
        let used: f64 = ranks.iter().map(|rank| rank.account.claim.least).sum();
        let mut sums = vec![(0.0, 0.0); tree.len()];
        for (place, rank) in ranks.iter().enumerate() {
            for &of in tree.path(place) {
                sums[of].0 += workers[place];
                sums[of].1 += rank.account.credit();
            }
        }
        Self { free: (capacity - used).max(0.0), workers, ranks, tree, sums }
    }

    /// Gives a job workers up to a number, as far as it can use them and the pool has them.
    fn give_up_to(&mut self, place: usize, workers: f64) {
        let most = (self.ranks[place].account.claim.most + ROUNDING).floor().min(workers);
        let more = (most - self.workers[place]).min((self.free + ROUNDING).floor());
        if more > 0.0 {
            self.workers[place] += more;
            self.free -= more;
            self.tree.path(place).iter().for_each(|&of| self.sums[of].0 += more);
        }
    }

    /// The job without known work that comes next: of the group, then the user, then the job that has least for its weight,
    /// among those that can have one more; the lowest credit breaks ties.
    fn furthest_behind(&self) -> Option<usize> {
        let can = |place: &usize| {
            let most = self.ranks[*place].account.claim.most;
            !self.ranks[*place].is_known()
                && self.workers[*place] + 1.0 <= most + ROUNDING
                && self.free + ROUNDING >= 1.0
        };
        let order = |a: (f64, f64), b: (f64, f64)| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1));
        let behind = |place: usize| {
            let weight = self.ranks[place].account.claim.weight;
            (self.workers[place] / weight, self.ranks[place].account.credit() / weight)
        };
        let together = |of: usize| {
            let ((workers, credit), weight) = (self.sums[of], self.tree.weight(of));
            (workers / weight, credit / weight)
        };
        (0..self.ranks.len()).filter(can).min_by(|&a, &b| {
            // They part where one's group or user is not the other's; without, both are jobs of one user.
            let parting = self.tree.path(a).iter().zip(self.tree.path(b)).find(|(of_a, of_b)| of_a != of_b);
            match parting {
                Some((&of_a, &of_b)) => order(together(of_a), together(of_b)).then(of_a.cmp(&of_b)),
                None => order(behind(a), behind(b)).then(a.cmp(&b)),
            }
        })
    }
}

#[cfg(test)]
mod tests;
