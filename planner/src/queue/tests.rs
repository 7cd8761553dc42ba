//! Queues that are played out second by second, as a batch system would run them: a free CPU goes to the first array by place
//! that its bound lets have one.

use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::*;

#[derive(Debug, Clone, Copy)]
struct Work {
    arrives_s: u32,
    tasks: u32,
    task_s: u32,
    cpus: u32,
    own_bound: Option<u32>,
    user: u32,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Policy {
    Credit,
    /// Equal parts, as far as an array can use them.
    Equal,
    /// In the order of submission.
    Fifo,
}

#[derive(Debug, Default)]
struct Played {
    ends_s: Vec<u32>,
    /// CPU seconds in which a task could have run and none did.
    wasted_s: u32,
    most_used: u32,
}

fn equal(arrays: &BTreeMap<u64, Array>, cpus: u32) -> BTreeMap<u64, u32> {
    let mut given: BTreeMap<u64, u32> = arrays.keys().map(|number| (*number, 0)).collect();
    let mut free = cpus;
    loop {
        let can = |(number, array): &(&u64, &Array)| given[*number] < array.useful() && array.cpus <= free;
        let first = arrays.iter().filter(can).min_by_key(|(number, array)| (given[*number] * array.cpus, **number));
        let Some((number, array)) = first else { return given };
        free -= array.cpus;
        *given.get_mut(number).unwrap() += 1;
    }
}

fn play(works: &[Work], cpus: u32, policy: Policy) -> Played {
    let mut account = QueueAccount::default();
    // Seconds left of each running task.
    let mut running: Vec<Vec<u32>> = vec![Vec::new(); works.len()];
    let mut waiting: Vec<u32> = works.iter().map(|work| work.tasks).collect();
    let mut played = Played { ends_s: vec![0; works.len()], ..Played::default() };
    for now in 0.. {
        assert!(now < 100_000, "it never ends");
        let here: Vec<usize> =
            (0..works.len()).filter(|&at| works[at].arrives_s <= now && played.ends_s[at] == 0).collect();
        if here.is_empty() && works.iter().all(|work| work.arrives_s <= now) {
            return played;
        }
        // Before the first task of an array has ended, its tasks are taken to be like all others.
        let finished = |at: usize| works[at].tasks - waiting[at] - u32::try_from(running[at].len()).unwrap();
        let all: u32 = (0..works.len()).map(finished).sum();
        let sum: u32 = (0..works.len()).map(|at| finished(at) * works[at].task_s).sum();
        let usual_s = if all > 0 { f64::from(sum) / f64::from(all) } else { 1.0 };
        let array = |at: usize| {
            let work = works[at];
            let task_s = if finished(at) > 0 { f64::from(work.task_s) } else { usual_s };
            let begun: f64 = running[at].iter().map(|left| f64::from(work.task_s - left).min(task_s)).sum();
            let left = f64::from(work.tasks - finished(at)) * task_s - begun;
            let array = Array {
                user: UserName::new(work.user.to_string()).ok(),
                cpus: work.cpus,
                waiting: waiting[at],
                running: u32::try_from(running[at].len()).unwrap(),
                left_cpu_s: left * f64::from(work.cpus),
                task_s,
                own_bound: work.own_bound,
            };
            (at as u64, array)
        };
        let arrays: BTreeMap<u64, Array> = here.iter().map(|at| array(*at)).collect();
        let turns = account.turns(&arrays, cpus, &UserShares::EQUAL, f64::from(now));
        let equal = equal(&arrays, cpus);
        let mut order = here.clone();
        if policy == Policy::Credit {
            order.sort_by_key(|at| turns[&(*at as u64)].place);
        }
        let mut used: u32 = here.iter().map(|&at| u32::try_from(running[at].len()).unwrap() * works[at].cpus).sum();
        for at in order {
            let number = at as u64;
            let bound = match policy {
                Policy::Credit => turns[&number].at_once,
                Policy::Equal => Some(equal[&number]),
                Policy::Fifo => None,
            };
            let bound = bound.unwrap_or(u32::MAX).min(works[at].own_bound.unwrap_or(u32::MAX));
            while waiting[at] > 0 && running[at].len() < bound as usize && used + works[at].cpus <= cpus {
                waiting[at] -= 1;
                running[at].push(works[at].task_s);
                used += works[at].cpus;
            }
        }
        played.most_used = played.most_used.max(used);
        let could = |&&at: &&usize| {
            let free = works[at].own_bound.is_none_or(|bound| running[at].len() < bound as usize);
            waiting[at] > 0 && free && used + works[at].cpus <= cpus
        };
        if here.iter().any(|at| could(&at)) {
            played.wasted_s += cpus - used;
        }
        for &at in &here {
            running[at].iter_mut().for_each(|left| *left -= 1);
            running[at].retain(|left| *left > 0);
            if waiting[at] == 0 && running[at].is_empty() {
                played.ends_s[at] = now + 1;
            }
        }
    }
    unreachable!("the loop returns")
}

fn mean_s(works: &[Work], played: &Played) -> f64 {
    let sum: u32 = works.iter().zip(&played.ends_s).map(|(work, end)| end - work.arrives_s).sum();
    f64::from(sum) / works.len() as f64
}

/// Eight arrays of several users: most short, some with most of the work.
fn mix(seed: u64) -> Vec<Work> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut below = |bound: u32| random.next_u32() % bound;
    let mut arrives_s = 0;
    let work = |_| {
        arrives_s += below(20);
        let tasks = if below(4) == 0 { 60 + below(60) } else { 5 + below(20) };
        Work { arrives_s, tasks, task_s: 3 + below(13), cpus: 1, own_bound: None, user: arrives_s }
    };
    (0..8).map(work).collect()
}

#[test]
fn by_credit_arrays_end_sooner_than_by_submission_or_in_equal_parts() {
    let mut sums = [0.0; 3];
    let mut later = [0; 3];
    for seed in 1..=20 {
        let works = mix(seed);
        let [credit, equal, fifo] =
            [Policy::Credit, Policy::Equal, Policy::Fifo].map(|policy| play(&works, 16, policy));
        for (sum, played) in sums.iter_mut().zip([&credit, &equal, &fifo]) {
            *sum += mean_s(&works, played) / 20.0;
        }
        for (count, played) in later.iter_mut().zip([&credit, &equal, &fifo]) {
            let late =
                |at: &usize| f64::from(played.ends_s[*at]) > f64::from(equal.ends_s[*at] + works[*at].task_s) + EPOCH_S;
            *count += (0..works.len()).filter(late).count();
        }
    }
    println!(
        "mean completion: by credit {:.1} s, in equal parts {:.1} s, by submission {:.1} s",
        sums[0], sums[1], sums[2]
    );
    println!(
        "later than in equal parts by over a task and {EPOCH_S} s: {}, {}, {} of 160",
        later[0], later[1], later[2]
    );
    assert!(sums[0] < sums[1] && sums[1] < sums[2]);
    assert!(later[0] * 10 < later[2], "{later:?}");
}

#[test]
fn an_array_that_is_alone_needs_no_bound_and_an_own_one_stays() {
    let mut account = QueueAccount::default();
    let array = |own_bound| Array {
        user: UserName::new("alice").ok(),
        cpus: 1,
        waiting: 50,
        running: 0,
        left_cpu_s: 500.0,
        task_s: 10.0,
        own_bound,
    };
    let alone = account.turns(&[(7, array(None))].into(), 60, &UserShares::EQUAL, 0.0)[&7];
    assert_eq!((alone.place, alone.at_once), (0, None));
    let few = account.turns(&[(7, array(None))].into(), 8, &UserShares::EQUAL, 1.0)[&7];
    assert_eq!(few.at_once, Some(8));
    // One that can have two at once may be late by an epoch and a task, and then has both: nobody can use what its user does
    // not let it have.
    let runs = |running| Array { running, waiting: 50 - running, ..array(None) };
    let both = |account: &mut QueueAccount, at_s| {
        account.turns(&[(7, runs(8)), (8, array(Some(2)))].into(), 8, &UserShares::EQUAL, at_s)
    };
    both(&mut account, 2.0);
    let later = both(&mut account, 12.0);
    assert_eq!((later[&7].at_once, later[&8].at_once), (Some(6), None));
}

/// Two arrays that are alike: one after the other is as good for the second, and better for the first.
#[test]
fn alike_arrays_have_their_turns_and_keep_them() {
    let work = Work { arrives_s: 0, tasks: 40, task_s: 4, cpus: 1, own_bound: None, user: 0 };
    let works = [work, Work { user: 1, ..work }];
    let [credit, equal, fifo] = [Policy::Credit, Policy::Equal, Policy::Fifo].map(|policy| play(&works, 8, policy));
    println!("{:?} {:?} {:?}", credit.ends_s, equal.ends_s, fifo.ends_s);
    assert!(mean_s(&works, &credit) <= 1.1 * mean_s(&works, &fifo), "{:?}", credit.ends_s);
    assert!(credit.ends_s.iter().all(|end| *end <= 44), "{:?}", credit.ends_s);
}

/// Many arrays of one user are no more than one array of another.
#[test]
fn users_have_alike_shares_however_many_arrays_they_have() {
    let many = Work { arrives_s: 0, tasks: 20, task_s: 5, cpus: 1, own_bound: None, user: 0 };
    let works = [many, many, many, many, many, Work { tasks: 100, user: 1, ..many }];
    let credit = play(&works, 10, Policy::Credit);
    // All of it takes 100 s. Fairly each user has half of the CPUs until both are done.
    let first = works.len() - 1;
    println!("{:?}", credit.ends_s);
    assert!(credit.ends_s[..first].iter().all(|end| *end <= 110) && credit.ends_s[first] <= 110);
}

#[test]
fn tasks_of_several_cpus_have_their_turn() {
    let wide = Work { arrives_s: 0, tasks: 5, task_s: 4, cpus: 2, own_bound: None, user: 0 };
    let long = Work { tasks: 60, cpus: 1, user: 1, ..wide };
    let works = [long, Work { tasks: 30, user: 2, ..long }, wide];
    let credit = play(&works, 8, Policy::Credit);
    println!("{:?}", credit.ends_s);
    assert!(credit.ends_s[2] <= 24, "{:?}", credit.ends_s);
}

fn works() -> impl Strategy<Value = Vec<Work>> {
    let bound = prop::sample::select(vec![None, None, Some(1), Some(3)]);
    let work = (0..60_u32, 1..30_u32, 1..12_u32, 1..4_u32, bound);
    let work = work.prop_map(|(arrives_s, tasks, task_s, cpus, own_bound)| Work {
        arrives_s,
        tasks,
        task_s,
        cpus,
        own_bound,
        user: tasks % 3,
    });
    prop::collection::vec(work, 1..7)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// All tasks run, never more at once than there are CPUs, and no CPU is free for long that a task could use.
    #[test]
    fn every_queue_ends_and_wastes_little(works in works(), cpus in 4..12_u32) {
        let played = play(&works, cpus, Policy::Credit);
        prop_assert!(played.most_used <= cpus);
        let all: u32 = works.iter().map(|work| work.tasks * work.task_s * work.cpus).sum();
        prop_assert!(f64::from(played.wasted_s) <= 0.05 * f64::from(all) + f64::from(cpus * 4), "{} of {all}", played.wasted_s);
    }
}
