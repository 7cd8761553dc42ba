//! Jobs that share the slots of one machine: played task by task, by credit, beside one job after the other and beside
//! equal parts; and what happens to their slots when one is cancelled, or the aggregator is started again.

use super::*;

/// Slots of the machine: its CPUs.
const SLOTS: u32 = 4;

/// A job of equal tasks.
#[derive(Debug, Clone, Copy)]
struct Work {
    arrives_s: u32,
    tasks: u32,
    task_s: u32,
    /// Its deadline, if that is its goal.
    within_s: Option<u32>,
}

const fn of(arrives_s: u32, tasks: u32, task_s: u32) -> Work {
    Work { arrives_s, tasks, task_s, within_s: None }
}

/// A job with a list of tasks, and so many dedicated slots.
fn listed(name: &str, tasks: u32, dedicated_slots: u32) -> JobSpec {
    let workers = Workers::Slots(SlotSpec { host: id(), tasks, dedicated_slots, max_slots: None });
    JobSpec { workers, ..spec(name, Goal::Cost { budget: None }) }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum By {
    Credit,
    /// The next is submitted when the last has ended.
    Turns,
}

#[derive(Debug, Clone, Default)]
struct Playing {
    submitted: bool,
    waiting: u32,
    slots: u32,
    /// Seconds left of each task that runs.
    running: Vec<u32>,
    done: u32,
    ends_s: Option<u32>,
}

fn name(job: usize) -> JobId {
    JobId::new(format!("j{job}")).unwrap()
}

/// When each job ends, and the most tasks that ran at once.
fn play(works: &[Work], by: By) -> (Vec<u32>, usize) {
    let mut bench = Bench::joined();
    let mut jobs: Vec<Playing> =
        works.iter().map(|work| Playing { waiting: work.tasks, ..Playing::default() }).collect();
    let mut most = 0;
    for now_s in 1..100_000 {
        bench.now = bench.now.after(Duration::from_secs(1));
        let mut outputs = Vec::new();
        for job in 0..works.len() {
            let turn = by == By::Credit || jobs[..job].iter().all(|before| before.ends_s.is_some());
            if !jobs[job].submitted && works[job].arrives_s < now_s && turn {
                jobs[job].submitted = true;
                let mut own = listed(name(job).as_str(), works[job].tasks, 1);
                if let Some(within_s) = works[job].within_s {
                    own.goal = Goal::Deadline { within_s: within_s.into() };
                }
                outputs.extend(bench.send(Input::JobSubmitted(Box::new(own))));
            }
        }
        for (job, (work, playing)) in works.iter().zip(&mut jobs).enumerate() {
            if !playing.submitted || playing.ends_s.is_some() {
                continue;
            }
            playing.running.iter_mut().for_each(|left| *left -= 1);
            let before = playing.running.len();
            playing.running.retain(|left| *left > 0);
            playing.done += u32::try_from(before - playing.running.len()).unwrap();
            let running = u32::try_from(playing.running.len()).unwrap();
            let left_s: u32 = playing.running.iter().sum();
            let parts = f64::from(playing.done + running) - f64::from(left_s) / f64::from(work.task_s);
            let progress = EngineProgress {
                tasks_total: work.tasks,
                tasks_done: playing.done,
                mean_task_s: (playing.done > 0).then_some(f64::from(work.task_s)),
                slots_in_use: playing.slots.max(running),
                ..progress(parts / f64::from(work.tasks), running)
            };
            if playing.done < work.tasks {
                outputs.extend(bench.send(Input::Progress { job: name(job), progress }));
                continue;
            }
            playing.ends_s = Some(now_s);
            let end = Input::EngineEnded { job: name(job), end: EngineEnd::Completed, progress: Some(progress) };
            outputs.extend(bench.send(end));
        }
        let running: usize = jobs.iter().map(|playing| playing.running.len()).sum();
        most = most.max(running);
        outputs.extend(bench.report(f64::from(SLOTS) * 100.0, running as f64 * 100.0));
        for output in outputs {
            if let Output::Engine { job, action: EngineAction::SetSlots(slots) } = output {
                let job = (0..works.len()).find(|place| name(*place) == job).unwrap();
                jobs[job].slots = slots.get(&id()).copied().unwrap_or(0);
            }
        }
        for (work, playing) in works.iter().zip(&mut jobs) {
            while playing.waiting > 0 && playing.running.len() < playing.slots as usize {
                playing.waiting -= 1;
                playing.running.push(work.task_s);
            }
        }
        if jobs.iter().all(|playing| playing.ends_s.is_some()) {
            break;
        }
    }
    (jobs.iter().map(|playing| playing.ends_s.unwrap()).collect(), most)
}

/// The same with slots in equal parts at once, from the first second on, without a controller.
fn equal_parts(works: &[Work]) -> Vec<u32> {
    let mut jobs: Vec<Playing> =
        works.iter().map(|work| Playing { waiting: work.tasks, ..Playing::default() }).collect();
    for now_s in 1..100_000 {
        for playing in jobs.iter_mut().filter(|playing| playing.ends_s.is_none()) {
            playing.running.iter_mut().for_each(|left| *left -= 1);
            playing.running.retain(|left| *left > 0);
            if playing.waiting == 0 && playing.running.is_empty() {
                playing.ends_s = Some(now_s);
            }
        }
        loop {
            let running: usize = jobs.iter().map(|playing| playing.running.len()).sum();
            let next = (0..works.len()).filter(|&job| works[job].arrives_s < now_s && jobs[job].waiting > 0);
            let Some(job) = next.min_by_key(|&job| jobs[job].running.len()) else { break };
            if running >= SLOTS as usize {
                break;
            }
            jobs[job].waiting -= 1;
            jobs[job].running.push(works[job].task_s);
        }
        if jobs.iter().all(|playing| playing.ends_s.is_some()) {
            break;
        }
    }
    jobs.iter().map(|playing| playing.ends_s.unwrap()).collect()
}

fn mean_s(works: &[Work], ends_s: &[u32]) -> f64 {
    let took = works.iter().zip(ends_s).map(|(work, end_s)| f64::from(end_s - work.arrives_s));
    took.sum::<f64>() / works.len() as f64
}

#[test]
fn short_jobs_on_one_machine_do_not_wait_for_a_long_one() {
    let mixes: [(&str, &[Work]); 5] = [
        ("400 tasks of 5 s; 20 of 5 s after 30 s, and after 200 s", &[of(0, 400, 5), of(30, 20, 5), of(200, 20, 5)]),
        ("two of 100 tasks of 10 s at once", &[of(0, 100, 10), of(0, 100, 10)]),
        (
            "three of 60 tasks of 2 s, 10 s apart; then 200 of 4 s",
            &[of(0, 60, 2), of(10, 60, 2), of(20, 60, 2), of(30, 200, 4)],
        ),
        (
            "300 tasks of 3 s; 100 of 20 s after 60 s; 10 of 1 s after 120 s",
            &[of(0, 300, 3), of(60, 100, 20), of(120, 10, 1)],
        ),
        ("one job alone: 50 tasks of 8 s", &[of(0, 50, 8)]),
    ];
    println!(
        "| jobs on {SLOTS} slots | mean by credit | in equal parts | in turn | ends by credit; in equal parts; in turn |"
    );
    println!("| --- | --- | --- | --- | --- |");
    for (what, works) in mixes {
        let (ends_s, most) = play(works, By::Credit);
        let (turns_s, _) = play(works, By::Turns);
        let equal_s = equal_parts(works);
        let [credit, turns, equal] = [&ends_s, &turns_s, &equal_s].map(|ends_s| mean_s(works, ends_s));
        println!(
            "| {what} | {credit:.0} s | {equal:.0} s | {turns:.0} s | {}; {}; {} |",
            listing(&ends_s),
            listing(&equal_s),
            listing(&turns_s)
        );
        assert!(most <= SLOTS as usize, "{most} tasks ran at once");
        // Its profile takes a job that is alone some seconds.
        assert!(credit <= turns && (works.len() == 1 || credit < equal), "{what}: {credit} {turns} {equal}");
        // Nobody ends later than in equal parts by over its longest task, an epoch, and the profiles.
        let longest_s = works.iter().map(|work| work.task_s).max().unwrap();
        for (end_s, fairly_s) in ends_s.iter().zip(&equal_s) {
            assert!(*end_s <= fairly_s + longest_s + 20, "{what}: {ends_s:?} {equal_s:?}");
        }
        // Slots are not left idle: all is done no later than in turn, plus a task.
        let last_s = |ends_s: &[u32]| ends_s.iter().copied().max().unwrap();
        assert!(last_s(&ends_s) <= last_s(&turns_s) + longest_s, "{what}: {ends_s:?} {turns_s:?}");
    }
}

fn listing(ends_s: &[u32]) -> String {
    ends_s.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

#[test]
fn more_jobs_than_slots_all_end_and_never_have_more_slots_than_there_are() {
    let ten: Vec<Work> = (0..10).map(|job| of(job * 3, 6 + job, 1 + job % 4)).collect();
    // More than are ranked.
    let many: Vec<Work> = (0..104).map(|_| of(0, 2, 1)).collect();
    for works in [ten, many] {
        let (ends_s, most) = play(&works, By::Credit);
        assert!(most <= SLOTS as usize, "{most} tasks ran at once");
        let last_s = ends_s.iter().copied().max().unwrap();
        let work_s: u32 = works.iter().map(|work| work.tasks * work.task_s).sum();
        // A slot comes to its next job a second after its last task has ended.
        assert!(
            last_s <= works.last().unwrap().arrives_s + work_s / 2,
            "{last_s} s for {work_s} s of work on {SLOTS} slots"
        );
    }
}

#[test]
fn a_job_meets_its_deadline_beside_a_long_one_and_one_with_much_time_does_not_hold_it_up() {
    let urgent = Work { within_s: Some(120), ..of(40, 40, 5) };
    let patient = Work { within_s: Some(2_000), ..of(0, 200, 5) };
    for long in [of(0, 300, 5), patient] {
        let (ends_s, most) = play(&[long, urgent], By::Credit);
        assert!(most <= SLOTS as usize, "{most} tasks ran at once");
        assert!(ends_s[1] <= 40 + 120, "{ends_s:?}");
        assert!(long.within_s.is_none_or(|within_s| ends_s[0] <= within_s), "{ends_s:?}");
    }
}

/// Slots of each job, as its engine was last told.
#[derive(Debug, Default)]
struct Told(BTreeMap<JobId, u32>);

impl Told {
    fn take(&mut self, outputs: &[Output]) {
        for output in outputs {
            if let Output::Engine { job, action: EngineAction::SetSlots(slots) } = output {
                self.0.insert(job.clone(), slots.get(&id()).copied().unwrap_or(0));
            }
        }
    }

    fn of(&self, job: &str) -> Option<u32> {
        self.0.get(&JobId::new(job).unwrap()).copied()
    }
}

/// One second; engines say how many tasks their jobs have, and how many of them are done and run. Each takes a second.
fn pass(bench: &mut Bench, told: &mut Told, jobs: &[(&str, u32, u32, u32)]) {
    bench.now = bench.now.after(Duration::from_secs(1));
    for (job, tasks, done, running) in jobs {
        let progress = EngineProgress {
            tasks_total: *tasks,
            tasks_done: *done,
            slots_in_use: told.of(job).unwrap_or(0).max(*running),
            ..progress(f64::from(*done) / f64::from(*tasks), *running)
        };
        told.take(&bench.send(Input::Progress { job: JobId::new(*job).unwrap(), progress }));
    }
    let running: u32 = jobs.iter().map(|(.., running)| running).sum();
    told.take(&bench.report(400.0, f64::from(running) * 100.0));
}

#[test]
fn slots_move_as_tasks_end_and_those_of_a_cancelled_job_at_once() {
    let (mut bench, mut told) = (Bench::joined(), Told::default());
    bench.report(400.0, 0.0);
    told.take(&bench.send(Input::JobSubmitted(Box::new(listed("long", 100, 4)))));
    assert_eq!(told.of("long"), Some(4));
    // Nobody has said yet what runs: there may be a task in each slot.
    told.take(&bench.send(Input::JobSubmitted(Box::new(listed("short", 8, 4)))));
    // The short one comes first; the long one's tasks run on, and it starts no other.
    assert_eq!((told.of("long"), told.of("short")), (Some(0), Some(0)));
    pass(&mut bench, &mut told, &[("long", 100, 4, 4)]);
    assert_eq!((told.of("long"), told.of("short")), (Some(0), Some(0)));
    pass(&mut bench, &mut told, &[("long", 100, 5, 3)]);
    assert_eq!((told.of("long"), told.of("short")), (Some(0), Some(1)));
    pass(&mut bench, &mut told, &[("long", 100, 7, 1)]);
    assert_eq!((told.of("long"), told.of("short")), (Some(0), Some(3)));
    let share = bench.controller.job(&JobId::new("short").unwrap()).unwrap().share.clone().unwrap();
    assert_eq!((share.wanted, share.allotted), (4, 4));
    let long = bench.controller.job(&JobId::new("long").unwrap()).unwrap().clone();
    assert_eq!((long.share.unwrap().allotted, long.volunteers), (0, 0));

    told.take(&bench.send(Input::JobCancelled { job: JobId::new("short").unwrap() }));
    assert_eq!(told.of("long"), Some(4), "it has the machine for itself");
    assert_eq!(bench.controller.job(&JobId::new("long").unwrap()).unwrap().share, None);
}

/// What a job that lends its dedicated slot has, it does not pay for, and its decisions say that others have it.
#[test]
fn a_job_that_lends_all_its_slots_says_so_and_pays_nothing() {
    let (mut bench, mut told) = (Bench::joined(), Told::default());
    let mut long = listed("long", 100, 2);
    long.prices.dedicated = gleaner_types::units::DollarsPerHour::clamped(1.0);
    told.take(&bench.send(Input::JobSubmitted(Box::new(long))));
    for done in 0..15 {
        pass(&mut bench, &mut told, &[("long", 100, done, 2)]);
    }
    let job = |bench: &Bench| bench.controller.job(&JobId::new("long").unwrap()).unwrap().clone();
    assert_eq!(job(&bench).phase, JobPhase::Running);
    told.take(&bench.send(Input::JobSubmitted(Box::new(listed("short", 8, 4)))));
    for _ in 0..3 {
        let running = told.of("short").unwrap_or(0);
        pass(&mut bench, &mut told, &[("long", 100, 18, 0), ("short", 8, 0, running)]);
    }
    assert_eq!((told.of("long"), told.of("short")), (Some(0), Some(4)), "{told:?}");
    let before = job(&bench).cost;
    for _ in 0..10 {
        pass(&mut bench, &mut told, &[("long", 100, 18, 0), ("short", 8, 1, 4)]);
    }
    assert_eq!(job(&bench).cost, before);
    let decision = bench.controller.last_decision(&JobId::new("long").unwrap()).unwrap();
    assert_eq!((decision.bound, decision.size, decision.selection.get(&id())), (Bound::Share, 0, Some(&0)));
}

#[test]
fn jobs_on_other_machines_are_not_concerned() {
    let (mut bench, mut told) = (Bench::joined(), Told::default());
    let other = HostId::new("h2").unwrap();
    bench.send(Input::HostJoined { host: other.clone(), incarnation: 1, facts: Box::new(facts(true)) });
    bench.send(Input::Report(Box::new(HostReport { host: other.clone(), ..report(1, 400.0, 0.0) })));
    let elsewhere = Workers::Slots(SlotSpec { host: other.clone(), tasks: 100, dedicated_slots: 4, max_slots: None });
    told.take(&bench.send(Input::JobSubmitted(Box::new(listed("here", 100, 4)))));
    let outputs = bench.send(Input::JobSubmitted(Box::new(JobSpec { workers: elsewhere, ..listed("there", 100, 4) })));
    let has = |output: &Output| {
        let Output::Engine { action: EngineAction::SetSlots(slots), .. } = output else { return false };
        slots.get(&other) == Some(&4)
    };
    assert!(outputs.iter().any(has), "{outputs:?}");
    pass(&mut bench, &mut told, &[("here", 100, 1, 4)]);
    assert_eq!(told.of("here"), Some(4));
    assert!(
        ["here", "there"].iter().all(|job| {
            bench.controller.job(&JobId::new(*job).unwrap()).is_some_and(|status| status.share.is_none())
        })
    );
}

/// After a restart, or on a standby, which has the stored state, the account goes on, and nothing is started beside what runs.
#[test]
fn the_account_of_a_machine_outlives_a_restart() {
    let (mut bench, mut told) = (Bench::joined(), Told::default());
    bench.report(400.0, 0.0);
    told.take(&bench.send(Input::JobSubmitted(Box::new(listed("long", 100, 4)))));
    told.take(&bench.send(Input::JobSubmitted(Box::new(listed("short", 20, 4)))));
    pass(&mut bench, &mut told, &[("long", 100, 4, 4)]);
    for second in 0..20 {
        pass(&mut bench, &mut told, &[("long", 100, 8, 0), ("short", 20, second / 4, 4)]);
    }
    let credit = |bench: &Bench, job: &str| {
        bench.controller.job(&JobId::new(job).unwrap()).unwrap().share.as_ref().unwrap().credit_s
    };
    let before = credit(&bench, "long");
    assert!(before < -20.0, "it has lent: {before}");
    let mut bytes = Vec::new();
    encode_value(0, &bench.controller, &mut bytes).unwrap();
    bench.controller = decode_value(0, &bytes).unwrap();
    bench.now = bench.now.after(Duration::from_secs(60));
    told.0.clear();
    told.take(&bench.send(Input::Resumed));
    assert_eq!(told.of("short"), None, "its host is away");
    told.take(&bench.send(Input::HostJoined { host: id(), incarnation: 1, facts: Box::new(facts(true)) }));
    told.take(&bench.report(400.0, 400.0));
    assert_eq!((told.of("long"), told.of("short")), (Some(0), Some(4)), "tasks run on, and their engines hear of them");
    // The minute without an aggregator counts for nobody.
    assert!((credit(&bench, "long") - before).abs() < 5.0, "{before} {}", credit(&bench, "long"));
    told.take(&bench.send(Input::JobSubmitted(Box::new(listed("third", 1, 1)))));
    pass(&mut bench, &mut told, &[("long", 100, 8, 0), ("short", 20, 6, 4)]);
    let in_all: f64 = ["long", "short", "third"].iter().map(|job| credit(&bench, job)).sum();
    assert!(in_all.abs() < 5.0, "what is lent is borrowed: {in_all}");
}
