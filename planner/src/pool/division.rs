//! How a quantity is divided among users' jobs: by the weights of groups of users, of users, and of each user's jobs. In: what
//! each job wants at least and at most, whose it is, and the weights. Out: each job's part. Called by the account of the pool.
//!
//! At each level of the tree the parts are filled progressively: all that share there grow together, each as fast as it weighs,
//! and one that has all that is of use to it stops (max-min fairness with weights; DRF of one resource, Wei §5.3.3). So what a
//! job cannot use goes first to the other jobs of its user, then to other users of its group, and then to all.
//!
//! The paper takes all jobs as equal; users are ours. [`crate::sharing::weights`] divides several resources at once, and there
//! what a job cannot use goes to all others.

use std::collections::BTreeMap;

use gleaner_types::id::{InvalidId, UserName};
use serde::{Deserialize, Serialize};

/// Least and largest weight of a user or group. Chosen, as those of jobs.
pub const USER_WEIGHTS: std::ops::RangeInclusive<f64> = 0.01..=100.0;
/// Most users and groups that are named. Chosen.
pub const MOST_NAMED: usize = 10_000;
/// Most groups that contain one another. Chosen.
const MOST_GROUPS: usize = 8;

/// What a job wants of a pool, in workers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// How much of the pool it has when all want more, relative to the other jobs of its user; more than 0.
    pub weight: f64,
    /// What it always has: its dedicated capacity.
    pub least: f64,
    /// The most that is of use to it. One that wants nothing claims 0.
    pub most: f64,
    /// What it costs to move a worker from it or to it, in seconds: the rest of a task, and setting up.
    pub change_s: f64,
}

impl Claim {
    /// The same, with bounds that a ledger can count on.
    pub(super) fn sane(self) -> Self {
        let finite = |value: f64, least: f64| if value.is_finite() { value.max(least) } else { least };
        let least = finite(self.least, 0.0);
        let change_s = finite(self.change_s, 0.0);
        Self { weight: finite(self.weight, 1e-3), least, most: finite(self.most, least), change_s }
    }
}

/// Weights of users and of groups of users. A user that is not named weighs 1 and belongs to no group; jobs whose user is not
/// known belong to one such user.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct UserShares {
    users: BTreeMap<UserName, Vec<Level>>,
}

/// A user, or a group to which it belongs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Level {
    /// The names from the top, as in `physics/anna`; those of groups end with a slash.
    path: String,
    weight: f64,
}

/// What is wrong with the weights of users.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InvalidShares {
    /// An entry that cannot be read.
    #[error("has {0:?}; it must be NAME=WEIGHT, such as \"anna=2\" or \"physics/anna=2\"")]
    Entry(String),
    /// A name that no user or group can have.
    #[error("has {path:?}: {source}")]
    Name {
        /// The name with its groups.
        path: String,
        /// What is wrong with it.
        source: InvalidId,
    },
    /// A weight out of its range.
    #[error("gives {path:?} the weight {weight}; it must be {} to {}", USER_WEIGHTS.start(), USER_WEIGHTS.end())]
    Weight {
        /// The user or group.
        path: String,
        /// Its weight.
        weight: f64,
    },
    /// A user or group that has two weights.
    #[error("names {0:?} twice; each user and each group has one weight")]
    Twice(String),
    /// A member of a group that has no weight.
    #[error("has {path:?}, and there is no group {group:?}; give it a weight too, such as 1")]
    UnknownGroup {
        /// The member.
        path: String,
        /// The group.
        group: String,
    },
    /// A user that belongs to two groups.
    #[error("has user {user:?} as {first:?} and as {second:?}; a user belongs to one group")]
    TwoGroups {
        /// The user.
        user: String,
        /// The first entry.
        first: String,
        /// The second entry.
        second: String,
    },
    /// Groups that contain one another too often.
    #[error("has {0:?}; at most {MOST_GROUPS} groups contain one another")]
    TooDeep(String),
    /// Too many entries.
    #[error("has {0} entries; at most {MOST_NAMED} are read")]
    TooMany(usize),
}

impl UserShares {
    /// No user is named: all weigh 1.
    pub const EQUAL: Self = Self { users: BTreeMap::new() };

    /// From entries `NAME=WEIGHT`, as [`Self::new`].
    ///
    /// # Errors
    /// All that is wrong.
    pub fn from_entries(entries: &[String]) -> Result<Self, Vec<InvalidShares>> {
        let mut problems = Vec::new();
        let mut weights = Vec::new();
        for text in entries {
            let entry =
                text.rsplit_once('=').and_then(|(path, weight)| Some((path.trim(), weight.trim().parse().ok()?)));
            match entry {
                Some(entry) => weights.push(entry),
                None => problems.push(InvalidShares::Entry(shortened(text))),
            }
        }
        let shares = Self::new(weights);
        if problems.is_empty() {
            return shares;
        }
        problems.extend(shares.err().into_iter().flatten());
        Err(problems)
    }

    /// From names with weights, in any order. The name of a member of a group begins with the group's and a slash; the group has
    /// a weight of its own.
    ///
    /// # Errors
    /// All that is wrong.
    pub fn new<'a>(entries: impl IntoIterator<Item = (&'a str, f64)>) -> Result<Self, Vec<InvalidShares>> {
        let mut problems = Vec::new();
        let mut weights: BTreeMap<&str, f64> = BTreeMap::new();
        for (path, weight) in entries {
            if let Some(source) = path.split('/').find_map(|name| UserName::new(name).err()) {
                problems.push(InvalidShares::Name { path: shortened(path), source });
            } else if !USER_WEIGHTS.contains(&weight) {
                problems.push(InvalidShares::Weight { path: path.to_owned(), weight });
            } else if weights.insert(path, weight).is_some() {
                problems.push(InvalidShares::Twice(path.to_owned()));
            }
        }
        if weights.len() > MOST_NAMED {
            return Err(vec![InvalidShares::TooMany(weights.len())]);
        }
        let mut users: BTreeMap<UserName, Vec<Level>> = BTreeMap::new();
        for (path, weight) in &weights {
            let levels = match levels(path, *weight, &weights) {
                Ok(levels) => levels,
                Err(problem) => {
                    problems.push(problem);
                    continue;
                }
            };
            let user = path.rsplit('/').next().and_then(|name| UserName::new(name).ok());
            let Some(user) = user.filter(|_| !is_group(path, &weights)) else { continue };
            match users.get(&user).and_then(|levels| levels.last()) {
                Some(first) => problems.push(InvalidShares::TwoGroups {
                    user: user.to_string(),
                    first: first.path.clone(),
                    second: (*path).to_owned(),
                }),
                None => _ = users.insert(user, levels),
            }
        }
        if problems.is_empty() { Ok(Self { users }) } else { Err(problems) }
    }

    /// What a user is a part of, from the top to itself, with the weight of each.
    fn levels<'a>(&'a self, user: Option<&'a UserName>) -> impl Iterator<Item = (&'a str, f64)> {
        let named = user.and_then(|user| self.users.get(user));
        let alone = if named.is_none() { Some((user.map_or("", UserName::as_str), 1.0)) } else { None };
        named.into_iter().flatten().map(|level| (level.path.as_str(), level.weight)).chain(alone)
    }
}

/// What is shown of a text of any length.
fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

/// Somebody belongs to it.
fn is_group(path: &str, weights: &BTreeMap<&str, f64>) -> bool {
    let prefix = format!("{path}/");
    weights.range(prefix.as_str()..).next().is_some_and(|(other, _)| other.starts_with(&prefix))
}

/// A user or group with the groups to which it belongs, from the top.
fn levels(path: &str, weight: f64, weights: &BTreeMap<&str, f64>) -> Result<Vec<Level>, InvalidShares> {
    let mut levels = Vec::new();
    for (end, _) in path.match_indices('/') {
        let group = &path[..end];
        let Some(weight) = weights.get(group) else {
            return Err(InvalidShares::UnknownGroup { path: path.to_owned(), group: group.to_owned() });
        };
        levels.push(Level { path: format!("{group}/"), weight: *weight });
    }
    if levels.len() > MOST_GROUPS {
        return Err(InvalidShares::TooDeep(path.to_owned()));
    }
    levels.push(Level { path: path.to_owned(), weight });
    Ok(levels)
}

/// Some jobs, and the users and groups to which they belong.
#[derive(Debug)]
pub(super) struct Tree {
    /// Weights of users and groups.
    weights: Vec<f64>,
    /// Of each job: its groups from the top, and its user, as places in `weights`.
    paths: Vec<Vec<usize>>,
}

impl Tree {
    /// The tree of jobs of these users.
    pub(super) fn new<'a>(shares: &'a UserShares, users: impl Iterator<Item = Option<&'a UserName>>) -> Self {
        let mut places: BTreeMap<&str, usize> = BTreeMap::new();
        let mut weights = Vec::new();
        let mut path = |user: Option<&'a UserName>| {
            let place = |(path, weight)| {
                *places.entry(path).or_insert_with(|| {
                    weights.push(weight);
                    weights.len() - 1
                })
            };
            shares.levels(user).map(place).collect()
        };
        let paths = users.map(&mut path).collect();
        Self { weights, paths }
    }

    /// The users and groups of a job, from the top, by numbers less than [`Self::len`].
    pub(super) fn path(&self, job: usize) -> &[usize] {
        &self.paths[job]
    }

    /// Users and groups.
    pub(super) fn len(&self) -> usize {
        self.weights.len()
    }

    /// The weight of a user or group.
    pub(super) fn weight(&self, of: usize) -> f64 {
        self.weights[of]
    }

    /// Divides a quantity among the jobs, whose claims are in the order of their users. No job has more than its most, and
    /// each has its least unless all of these do not fit. All of the quantity is divided, or every job has its most.
    pub(super) fn divide(&self, quantity: f64, claims: &[Claim]) -> Vec<f64> {
        if self.paths.windows(2).all(|two| two[0] == two[1]) {
            return water_fill(quantity, claims);
        }
        let mut parts = vec![0.0; claims.len()];
        let all: Vec<usize> = (0..claims.len()).collect();
        self.divide_level(quantity, 0, &all, claims, &mut parts);
        parts
    }

    /// Divides what a user or group has, or the whole, among its members. They have the first `depth` levels in common.
    fn divide_level(&self, quantity: f64, depth: usize, jobs: &[usize], claims: &[Claim], parts: &mut [f64]) {
        let mut members: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for &job in jobs {
            // Paths that have a user in common are equal, so all end here or none does.
            if let Some(&member) = self.paths[job].get(depth) {
                members.entry(member).or_default().push(job);
            }
        }
        if members.is_empty() {
            let own: Vec<Claim> = jobs.iter().map(|&job| claims[job]).collect();
            jobs.iter().zip(water_fill(quantity, &own)).for_each(|(&job, part)| parts[job] = part);
            return;
        }
        let sum = |jobs: &[usize], of: fn(&Claim) -> f64| jobs.iter().map(|&job| of(&claims[job])).sum::<f64>();
        let together = |(&member, jobs): (&usize, &Vec<usize>)| Claim {
            weight: self.weights[member],
            least: sum(jobs, |claim| claim.least),
            most: sum(jobs, |claim| claim.most),
            change_s: 0.0,
        };
        let level: Vec<Claim> = members.iter().map(together).collect();
        for (jobs, part) in members.values().zip(water_fill(quantity, &level)) {
            self.divide_level(part, depth + 1, jobs, claims, parts);
        }
    }
}

/// Weighted max-min shares: everybody has its least, nobody more than its most, and between them as much for its weight as
/// the others. Where all of the least does not fit it is cut in proportion.
#[must_use]
pub fn water_fill(capacity: f64, claims: &[Claim]) -> Vec<f64> {
    let (least, most) = claims.iter().fold((0.0, 0.0), |(least, most), claim| (least + claim.least, most + claim.most));
    if most <= capacity {
        return claims.iter().map(|claim| claim.most).collect();
    }
    if least >= capacity {
        return claims.iter().map(|claim| claim.least * capacity / least.max(f64::MIN_POSITIVE)).collect();
    }
    // Where a share begins to grow with the level, and where it stops.
    let bends =
        |claim: &Claim| [(claim.least / claim.weight, claim.weight), (claim.most / claim.weight, -claim.weight)];
    let mut bends: Vec<(f64, f64)> = claims.iter().flat_map(bends).collect();
    bends.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
    let (mut level, mut slope, mut sum) = (0.0, 0.0, least);
    for (at, change) in bends {
        let until = sum + slope * (at - level);
        if until >= capacity {
            break;
        }
        (level, sum) = (at, until);
        slope += change;
    }
    if slope > 0.0 {
        level += (capacity - sum) / slope;
    }
    claims.iter().map(|claim| (claim.weight * level).clamp(claim.least, claim.most)).collect()
}

#[cfg(test)]
mod tests;
