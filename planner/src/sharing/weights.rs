//! Weights of jobs, and of the users and groups to which they belong: what is fair where not all are equal. In: a tree of groups
//! and the jobs that are there. Out: the weight of each of them. Called by everything that compares dominant shares.
//!
//! This is ours: the paper takes all jobs as equal. A group's part of the cluster is that of its parent, divided among
//! the parent's members by their weights. Only members with a job that has arrived and not ended count. What a job cannot
//! use goes to all others by their weights, and not first to those of its group.

use std::collections::BTreeMap;

use gleaner_types::id::JobId;
use serde::{Deserialize, Serialize};

use super::invalid::Invalid;

/// Least and largest weight; most groups. Chosen.
const LEAST: f64 = 1e-3;
const LARGEST: f64 = 1e6;
const MOST_GROUPS: usize = 2_000;
/// Most groups that contain one another. Chosen.
const MOST_LEVELS: usize = 10;

const fn one() -> f64 {
    1.0
}

/// Who shares with what weight. A job that is not named has weight 1 and belongs to no group.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Shares {
    /// Users and groups of them.
    pub groups: Vec<Group>,
    /// Jobs.
    pub jobs: Vec<Member>,
}

/// A user, or a group of users or of groups.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Its weight among the members of its parent.
    #[serde(default = "one")]
    pub weight: f64,
    /// The group to which it belongs, named before it in the list; `None` at the top.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
}

/// A job of a user or group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// The job.
    pub job: JobId,
    /// Its weight among the members of its group.
    #[serde(default = "one")]
    pub weight: f64,
    /// The group to which it belongs; `None` at the top.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// A checked tree.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tree {
    /// Parent and weight; parents come before their members.
    groups: Vec<(Option<usize>, f64)>,
    /// Group and weight of each job.
    jobs: Vec<(Option<usize>, f64)>,
}

fn invalid(field: String, value: impl ToString, rule: impl ToString) -> Invalid {
    Invalid { field, value: value.to_string(), rule: rule.to_string() }
}

fn check_weight(field: String, weight: f64, problems: &mut Vec<Invalid>) {
    if !(LEAST..=LARGEST).contains(&weight) {
        problems.push(invalid(field, weight, format!("{LEAST} to {LARGEST}")));
    }
}

impl Tree {
    /// Checks who shares with what weight.
    ///
    /// # Errors
    /// Every field that is wrong, 20 at most.
    pub(super) fn new<'a>(shares: &Shares, jobs: impl Iterator<Item = &'a JobId>) -> Result<Self, Vec<Invalid>> {
        let mut problems = Vec::new();
        if shares.groups.len() > MOST_GROUPS {
            let rule = format!("at most {MOST_GROUPS}");
            return Err(vec![invalid("shares.groups: their number".to_owned(), shares.groups.len(), rule)]);
        }
        let mut known: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        let mut groups = Vec::new();
        for (index, group) in shares.groups.iter().enumerate() {
            let field = format!("shares.groups[{index}] ({})", group.name);
            check_weight(format!("{field}.weight"), group.weight, &mut problems);
            let parent = group.parent.as_deref().map(|name| (name, known.get(name).copied()));
            if let Some((name, None)) = parent {
                problems.push(invalid(format!("{field}.parent"), name, "a group that is named before this one"));
            }
            let parent = parent.and_then(|(_, found)| found);
            let level = parent.map_or(1, |(_, level)| level + 1);
            if level > MOST_LEVELS {
                problems.push(invalid(format!("{field}.parent"), level, format!("at most {MOST_LEVELS} levels")));
            }
            if known.insert(&group.name, (index, level)).is_some() {
                problems.push(invalid(format!("{field}.name"), &group.name, "the only one of its name"));
            }
            groups.push((parent.map(|(parent, _)| parent), group.weight));
        }
        let names: BTreeMap<&JobId, usize> = jobs.enumerate().map(|(index, name)| (name, index)).collect();
        let mut own: Vec<Option<(Option<usize>, f64)>> = vec![None; names.len()];
        for (index, member) in shares.jobs.iter().enumerate() {
            let field = format!("shares.jobs[{index}] ({})", member.job);
            check_weight(format!("{field}.weight"), member.weight, &mut problems);
            let group = member.group.as_deref().map(|name| (name, known.get(name).copied()));
            if let Some((name, None)) = group {
                problems.push(invalid(format!("{field}.group"), name, "the name of a group"));
            }
            let group = group.and_then(|(_, found)| found).map(|(group, _)| group);
            let place = names.get(&member.job).and_then(|&job| own.get_mut(job));
            match place {
                None => problems.push(invalid(format!("{field}.job"), &member.job, "the name of a job")),
                Some(Some(_)) => problems.push(invalid(format!("{field}.job"), &member.job, "named once")),
                Some(place) => *place = Some((group, member.weight)),
            }
        }
        problems.truncate(20);
        if problems.is_empty() {
            Ok(Self { groups, jobs: own.into_iter().map(|job| job.unwrap_or((None, 1.0))).collect() })
        } else {
            Err(problems)
        }
    }

    /// The group of a job.
    pub(super) fn group(&self, job: usize) -> Option<usize> {
        self.jobs[job].0
    }

    /// The weight of each of the jobs that are there, by the number of the job: the part of the cluster that is theirs, times
    /// the number of these jobs, so that equal jobs have weight 1.
    fn weights(&self, present: &[usize]) -> Vec<f64> {
        let mut members = vec![0.0; self.groups.len()];
        let mut top = 0.0;
        let mut counted = vec![false; self.groups.len()];
        for &job in present {
            let (mut parent, mut weight) = self.jobs[job];
            // Up to the first group that another job has counted.
            loop {
                let Some(group) = parent else {
                    top += weight;
                    break;
                };
                members[group] += weight;
                if std::mem::replace(&mut counted[group], true) {
                    break;
                }
                (parent, weight) = self.groups[group];
            }
        }
        let mut parts = vec![0.0; self.groups.len()];
        for (index, &(parent, weight)) in self.groups.iter().enumerate() {
            parts[index] = match parent {
                Some(parent) if members[parent] > 0.0 => parts[parent] * weight / members[parent],
                Some(_) => 0.0,
                None => weight / top,
            };
        }
        let mut weights = vec![1.0; self.jobs.len()];
        for &job in present {
            let (group, weight) = self.jobs[job];
            let part = group.map_or(weight / top, |group| parts[group] * weight / members[group]);
            weights[job] = part * present.len() as f64;
        }
        weights
    }
}

/// Weights at one time.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Weights(Option<Vec<f64>>);

impl Weights {
    /// Of the jobs that are there; all are 1 without a tree.
    pub(super) fn new(tree: Option<&Tree>, present: &[usize]) -> Self {
        Self(tree.map(|tree| tree.weights(present)))
    }

    /// The weight of a job that is there.
    pub(super) fn of(&self, job: usize) -> f64 {
        self.0.as_ref().map_or(1.0, |weights| weights[job])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn jobs(count: usize) -> Vec<JobId> {
        (0..count).map(|index| JobId::new(format!("j{index}")).unwrap()).collect()
    }

    fn group(name: &str, weight: f64, parent: Option<&str>) -> Group {
        Group { name: name.to_owned(), weight, parent: parent.map(str::to_owned) }
    }

    fn member(job: usize, weight: f64, group: Option<&str>) -> Member {
        Member { job: JobId::new(format!("j{job}")).unwrap(), weight, group: group.map(str::to_owned) }
    }

    /// A department of 3 with users of 1 and 2 beside another of 1; j3 is named nowhere, so it is a member of the top.
    fn departments() -> Shares {
        Shares {
            groups: vec![
                group("a", 3.0, None),
                group("ann", 1.0, Some("a")),
                group("abe", 2.0, Some("a")),
                group("b", 1.0, None),
            ],
            jobs: vec![
                member(0, 1.0, Some("ann")),
                member(1, 1.0, Some("abe")),
                member(2, 3.0, Some("abe")),
                member(4, 1.0, Some("b")),
            ],
        }
    }

    fn parts(present: &[usize]) -> Vec<f64> {
        let tree = Tree::new(&departments(), jobs(5).iter()).unwrap();
        let weights = Weights::new(Some(&tree), present);
        present.iter().map(|&job| weights.of(job) / present.len() as f64).collect()
    }

    fn close(own: &[f64], expected: &[f64]) {
        let equal = own.len() == expected.len() && own.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12);
        assert!(equal, "{own:?} is not {expected:?}");
    }

    /// 3/5 go to department a: a third of that to ann, two thirds to abe, of whose jobs one has weight 3 of 4.
    #[test]
    fn parts_by_hand() {
        close(&parts(&[0, 1, 2, 3, 4]), &[0.2, 0.1, 0.3, 0.2, 0.2]);
        // Without abe's jobs all of the department is ann's; without department b it is 3 of 4.
        close(&parts(&[0, 3]), &[0.75, 0.25]);
        close(&parts(&[2]), &[1.0]);
        close(&parts(&[]), &[]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = |change: &dyn Fn(&mut Shares), part: &str| {
            let mut shares = departments();
            change(&mut shares);
            let said: Vec<String> =
                Tree::new(&shares, jobs(5).iter()).unwrap_err().iter().map(ToString::to_string).collect();
            assert!(said.iter().any(|line| line.contains(part)), "{part} not in {said:?}");
        };
        wrong(&|own| own.groups[0].weight = 0.0, "shares.groups[0] (a).weight: is 0");
        wrong(&|own| own.groups[0].weight = f64::NAN, "shares.groups[0] (a).weight: is NaN");
        wrong(&|own| own.groups[0].parent = Some("a".to_owned()), "shares.groups[0] (a).parent: is a");
        wrong(&|own| own.groups[3].name = "a".to_owned(), "shares.groups[3] (a).name: is a; it must be the only one");
        wrong(&|own| own.jobs[0].weight = -1.0, "shares.jobs[0] (j0).weight: is -1");
        wrong(&|own| own.jobs[0].group = Some("c".to_owned()), "shares.jobs[0] (j0).group: is c");
        wrong(&|own| own.jobs[0] = member(9, 1.0, None), "shares.jobs[0] (j9).job: is j9");
        wrong(&|own| own.jobs[0] = member(1, 1.0, None), "shares.jobs[1] (j1).job: is j1; it must be named once");
        let chain = |own: &mut Shares| {
            let level = |index: usize| {
                group(&format!("g{index}"), 1.0, (index > 0).then(|| format!("g{}", index - 1)).as_deref())
            };
            own.groups.extend((0..=MOST_LEVELS).map(level));
        };
        wrong(&chain, "shares.groups[14] (g10).parent: is 11; it must be at most 10 levels");
    }

    proptest! {
        /// The parts of the jobs that are there are all of the cluster, each group's jobs together have what the group would as
        /// one job, and nothing changes where all weights are multiplied alike.
        #[test]
        fn parts_are_the_whole(
            members in proptest::collection::vec((0..4_usize, 0.1..10.0_f64, any::<bool>()), 1..12),
            groups in proptest::collection::vec(0.1..10.0_f64, 3),
            factor in 0.5..2.0_f64,
        ) {
            let shares = |factor: f64| Shares {
                groups: (0..3).map(|index| group(&format!("g{index}"), factor * groups[index], None)).collect(),
                jobs: members.iter().enumerate().map(|(job, &(own, weight, _))| {
                    member(job, factor * weight, (own < 3).then(|| format!("g{own}")).as_deref())
                }).collect(),
            };
            let present: Vec<usize> = (0..members.len()).filter(|&job| members[job].2).collect();
            let weights = |factor: f64| {
                Weights::new(Some(&Tree::new(&shares(factor), jobs(members.len()).iter()).unwrap()), &present)
            };
            let (own, other) = (weights(1.0), weights(factor));
            let sum: f64 = present.iter().map(|&job| own.of(job)).sum();
            prop_assert!((sum - present.len() as f64).abs() < 1e-9);
            prop_assert!(present.iter().all(|&job| (own.of(job) - other.of(job)).abs() < 1e-9));
            let of_group = |index: usize| present.iter().filter(|&&job| members[job].0 == index).map(|&job| own.of(job)).sum::<f64>();
            let (first, second) = (of_group(0), of_group(1));
            if first > 0.0 && second > 0.0 {
                prop_assert!((first / second - groups[0] / groups[1]).abs() < 1e-6 * groups[0] / groups[1]);
            }
        }
    }
}
