//! The division among users: an example by hand, what may not be, and what holds for every tree.

use proptest::prelude::*;

use super::*;

fn user(name: &str) -> Option<UserName> {
    UserName::new(name).ok()
}

fn claim(weight: f64, most: f64) -> Claim {
    Claim { weight, least: 0.0, most, change_s: 0.0 }
}

fn close(own: &[f64], expected: &[f64]) {
    let equal = own.len() == expected.len() && own.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9);
    assert!(equal, "{own:?} are not {expected:?}");
}

/// The parts of jobs, each given as its user and its claim.
fn divide(quantity: f64, shares: &UserShares, jobs: &[(Option<UserName>, Claim)]) -> Vec<f64> {
    let claims: Vec<Claim> = jobs.iter().map(|(_, claim)| claim.sane()).collect();
    Tree::new(shares, jobs.iter().map(|(user, _)| user.as_ref())).divide(quantity, &claims)
}

/// Physics of weight 2 with two users of 1 and 3, beside bob: 8 of 12 workers are physics', 6 of these abe's.
#[test]
fn parts_by_hand() {
    let shares = UserShares::new([("physics", 2.0), ("physics/anna", 1.0), ("physics/abe", 3.0)]).unwrap();
    let divided = |mosts: [f64; 4]| {
        let [anna, small, large, bob] = mosts;
        let jobs = [
            (user("anna"), claim(1.0, anna)),
            (user("abe"), claim(1.0, small)),
            (user("abe"), claim(2.0, large)),
            (user("bob"), claim(5.0, bob)),
        ];
        divide(12.0, &shares, &jobs)
    };
    close(&divided([50.0; 4]), &[2.0, 2.0, 4.0, 4.0]);
    // What a job cannot use goes to its user's other job first,
    close(&divided([50.0, 50.0, 1.0, 50.0]), &[2.0, 5.0, 1.0, 4.0]);
    // what a user cannot use to the other one of its group,
    close(&divided([50.0, 1.0, 1.0, 50.0]), &[6.0, 1.0, 1.0, 4.0]);
    // and what the group cannot use to all.
    close(&divided([1.0, 1.0, 1.0, 50.0]), &[1.0, 1.0, 1.0, 9.0]);
    close(&divided([1.0; 4]), &[1.0; 4]);
}

/// Jobs whose user is not known are one user's, and a user that is called like a group is no member of it.
#[test]
fn who_is_not_named_weighs_one() {
    let shares = UserShares::new([("lab", 3.0), ("lab/anna", 1.0)]).unwrap();
    let jobs = [(user("anna"), 9.0), (user("lab"), 9.0), (None, 9.0), (None, 9.0)];
    let jobs = jobs.map(|(user, most)| (user, claim(1.0, most)));
    close(&divide(5.0, &shares, &jobs), &[3.0, 1.0, 0.5, 0.5]);
    close(&divide(5.0, &UserShares::EQUAL, &[]), &[]);
}

#[test]
fn what_is_wrong_is_named() {
    let said = |entries: &[(&str, f64)]| -> Vec<String> {
        UserShares::new(entries.iter().copied()).unwrap_err().iter().map(ToString::to_string).collect()
    };
    assert_eq!(said(&[("a", f64::NAN)]), ["gives \"a\" the weight NaN; it must be 0.01 to 100"]);
    assert_eq!(said(&[("a", f64::INFINITY), ("b", 0.0), ("c", -1.0), ("d", 101.0)]).len(), 4);
    assert!(said(&[("a\u{7}", 1.0)])[0].contains("user name \"a\\u{7}\" is not valid"));
    assert!(said(&[("a/", 1.0)])[0].contains("user name \"\" is not valid"));
    assert_eq!(said(&[("a/b", 1.0)]), ["has \"a/b\", and there is no group \"a\"; give it a weight too, such as 1"]);
    assert_eq!(said(&[("a", 1.0), ("a", 2.0)]), ["names \"a\" twice; each user and each group has one weight"]);
    let two = [("a", 1.0), ("b", 1.0), ("a/eve", 1.0), ("b/eve", 2.0)];
    assert_eq!(said(&two), ["has user \"eve\" as \"a/eve\" and as \"b/eve\"; a user belongs to one group"]);
    let paths: Vec<String> = (1..=10).map(|levels| vec!["g"; levels].join("/")).collect();
    let deep: Vec<(&str, f64)> = paths.iter().map(|path| (path.as_str(), 1.0)).collect();
    assert!(said(&deep)[0].contains("at most 8 groups contain one another"));
    // A group's name beside one that only begins like it.
    assert!(UserShares::new([("a", 1.0), ("a-b", 1.0), ("a/c", 1.0)]).is_ok());
    let entries =
        |texts: &[&str]| UserShares::from_entries(&texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>());
    assert_eq!(entries(&["b = 2"]), UserShares::new([("b", 2.0)]));
    assert_eq!(entries(&["b", "c=0", "d=x"]).unwrap_err().len(), 3);
}

/// A tree of three groups, of which users are members or of none; and jobs of users.
#[derive(Debug, Clone)]
struct Case {
    groups: Vec<f64>,
    /// Of each user the group, if it has one, and its weight.
    users: Vec<(usize, f64)>,
    /// Of each job the user, the weight, the least and what it can use beyond.
    jobs: Vec<(usize, f64, f64, f64)>,
}

impl Case {
    fn shares(&self) -> UserShares {
        let groups = self.groups.iter().enumerate().map(|(group, weight)| (format!("g{group}"), *weight));
        let of = |(user, (group, weight)): (usize, &(usize, f64))| {
            let prefix = if *group < self.groups.len() { format!("g{group}/") } else { String::new() };
            (format!("{prefix}u{user}"), *weight)
        };
        let all: Vec<(String, f64)> = groups.chain(self.users.iter().enumerate().map(of)).collect();
        UserShares::new(all.iter().map(|(path, weight)| (path.as_str(), *weight))).unwrap()
    }

    fn claims(&self) -> Vec<(Option<UserName>, Claim)> {
        let of = |&(owner, weight, least, more): &(usize, f64, f64, f64)| {
            (user(&format!("u{owner}")), Claim { weight, least, most: least + more, change_s: 0.0 })
        };
        self.jobs.iter().map(of).collect()
    }

    /// The jobs of a group; of one of no group its own number stands for it.
    fn of_group(&self, group: usize) -> Vec<usize> {
        (0..self.jobs.len()).filter(|&job| self.users[self.jobs[job].0].0 == group).collect()
    }

    fn of_user(&self, user: usize) -> Vec<usize> {
        (0..self.jobs.len()).filter(|&job| self.jobs[job].0 == user).collect()
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let groups = prop::collection::vec(0.1..10.0_f64, 3);
    let users = prop::collection::vec((0..5_usize, 0.1..10.0_f64), 5);
    let least = prop_oneof![Just(0.0), 0.0..3.0_f64];
    let more = prop_oneof![0.0..4.0_f64, Just(1_000.0)];
    let jobs = prop::collection::vec((0..5_usize, 0.1..10.0_f64, least, more), 1..12);
    (groups, users, jobs).prop_map(|(groups, users, jobs)| Case { groups, users, jobs })
}

/// Of two that share, each with what it has, at least, at most and its weight: neither could have more at the other's cost.
fn are_level(two: [(f64, f64, f64, f64); 2]) -> bool {
    let level = |(part, _, _, weight): (f64, f64, f64, f64)| part / weight;
    let may_grow = |(part, _, most, _): (f64, f64, f64, f64)| part < most - 1e-6;
    let may_shrink = |(part, least, ..): (f64, f64, f64, f64)| part > least + 1e-6;
    let unfair =
        |small, large| may_grow(small) && may_shrink(large) && level(small) < level(large) * (1.0 - 1e-6) - 1e-6;
    !unfair(two[0], two[1]) && !unfair(two[1], two[0])
}

proptest! {
    /// All is divided or every job has what it wants, none has more than that, and none less than its least.
    #[test]
    fn parts_are_the_whole_and_within_bounds(case in cases(), quantity in 0.0..40.0_f64) {
        let claims = case.claims();
        let parts = divide(quantity, &case.shares(), &claims);
        let sum = |of: fn(&Claim) -> f64| claims.iter().map(|(_, claim)| of(claim)).sum::<f64>();
        let (least, most) = (sum(|claim| claim.least), sum(|claim| claim.most));
        prop_assert!((parts.iter().sum::<f64>() - quantity.min(most)).abs() < 1e-6);
        for ((_, claim), part) in claims.iter().zip(&parts) {
            prop_assert!(*part <= claim.most + 1e-9, "{part} is more than {}", claim.most);
            prop_assert!(least > quantity || *part >= claim.least - 1e-9, "{part} is less than {}", claim.least);
        }
    }

    /// Where there is more, nobody has less.
    #[test]
    fn parts_grow_with_the_whole(case in cases(), quantity in 0.0..40.0_f64, more in 0.0..10.0_f64) {
        let (shares, claims) = (case.shares(), case.claims());
        let (before, after) = (divide(quantity, &shares, &claims), divide(quantity + more, &shares, &claims));
        prop_assert!(before.iter().zip(&after).all(|(before, after)| *after >= before - 1e-6), "{before:?} {after:?}");
    }

    /// At every level whoever has less for its weight has all it can use, or the other only what it always has.
    #[test]
    fn weights_count_at_every_level(case in cases(), quantity in 0.0..40.0_f64) {
        let claims = case.claims();
        prop_assume!(claims.iter().map(|(_, claim)| claim.least).sum::<f64>() <= quantity);
        let parts = divide(quantity, &case.shares(), &claims);
        let of = |jobs: &[usize], weight: f64| {
            let sum = |of: &dyn Fn(usize) -> f64| jobs.iter().map(|&job| of(job)).sum::<f64>();
            (sum(&|job| parts[job]), sum(&|job| claims[job].1.least), sum(&|job| claims[job].1.most), weight)
        };
        // What shares at the top: groups, and users of none. Then the users of each group, then the jobs of each user.
        let users = |of_group: &dyn Fn(usize) -> bool| {
            let mine = |user: &usize| of_group(case.users[*user].0) && !case.of_user(*user).is_empty();
            (0..case.users.len()).filter(mine).map(|user| of(&case.of_user(user), case.users[user].1)).collect::<Vec<_>>()
        };
        let groups = (0..3).filter(|&group| !case.of_group(group).is_empty());
        let mut top: Vec<_> = groups.map(|group| of(&case.of_group(group), case.groups[group])).collect();
        top.extend(users(&|group| group >= 3));
        let mut levels = vec![top];
        levels.extend((0..3).map(|group| users(&|own| own == group)));
        levels.extend((0..case.users.len()).map(|user| {
            case.of_user(user).into_iter().map(|job| of(&[job], claims[job].1.weight)).collect::<Vec<_>>()
        }));
        for level in levels {
            for a in 0..level.len() {
                for b in 0..a {
                    prop_assert!(are_level([level[a], level[b]]), "{:?} beside {:?}", level[a], level[b]);
                }
            }
        }
    }

    /// One job of each user is divided by the users' weights alone, and one user's jobs by theirs: as without users.
    #[test]
    fn without_a_second_level_it_is_progressive_filling(case in cases(), quantity in 0.0..40.0_f64) {
        let claims: Vec<Claim> = case.claims().into_iter().map(|(_, claim)| claim).collect();
        let one: Vec<_> = claims.iter().map(|claim| (user("one"), *claim)).collect();
        prop_assert_eq!(divide(quantity, &UserShares::EQUAL, &one), water_fill(quantity, &claims));
        let names: Vec<String> = (0..claims.len()).map(|job| format!("u{job:02}")).collect();
        let weighed = names.iter().zip(&claims).map(|(name, claim)| (name.as_str(), claim.weight));
        let shares = UserShares::new(weighed).unwrap();
        let own: Vec<_> = names.iter().zip(&claims).map(|(name, claim)| (user(name), Claim { weight: 7.0, ..*claim })).collect();
        let (parts, flat) = (divide(quantity, &shares, &own), water_fill(quantity, &claims));
        prop_assert!(parts.iter().zip(&flat).all(|(a, b)| (a - b).abs() < 1e-9), "{parts:?} {flat:?}");
    }

    /// A user that wants all there is has its part, and a further job of it takes nothing from the others.
    #[test]
    fn a_further_job_takes_nothing_from_other_users(case in cases(), quantity in 0.0..40.0_f64, weight in 0.1..10.0_f64) {
        let mut claims = case.claims();
        claims.iter_mut().for_each(|(_, claim)| claim.least = 0.0);
        claims.push((user("u0"), claim(1.0, 1_000.0)));
        let before = divide(quantity, &case.shares(), &claims);
        claims.push((user("u0"), claim(weight, 1_000.0)));
        let after = divide(quantity, &case.shares(), &claims);
        for ((own, _), (before, after)) in claims.iter().zip(before.iter().zip(&after)) {
            prop_assert!(*own == user("u0") || (before - after).abs() < 1e-6, "{before} became {after}");
        }
    }
}
