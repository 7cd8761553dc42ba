//! The volunteer as Xen domains, on a real control domain booted under software emulation: held, given way with, watched
//! by the helper when the agent is killed or stands still, and left as it was found. The test of `xen.rs` boots the host.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command as Program, Stdio};
use std::time::{Duration, Instant};

use gleaner_agent::act::{ActSettings, Actor, VolunteerChoice};
use gleaner_agent::hierarchies::Hierarchies;
use gleaner_planner::memory_bound::MemoryBoundSettings;
use gleaner_test_support::lab;
use gleaner_types::command::{Command, Desired, Outcome, Quota, Target, Version};
use gleaner_types::report::{VolunteerKind, VolunteerState};
use gleaner_types::time::Timestamp;
use gleaner_types::units::{Bytes, CoreShare};
use serde_json::Value;

use crate::guests::{PATIENCE, agent, sh, until};
use crate::xen::{knobs, run};

/// Demands beside each way to hold the volunteer.
const ROUNDS: u64 = 5;
/// Demands of which each one's time until the volunteer has given way is measured.
const DEMANDS: usize = 30;
/// As many without the guard.
const UNGUARDED: usize = 5;
/// Over this time the volunteer's part is judged: one interval of the guard.
const INTERVAL: Duration = Duration::from_millis(50);
/// A tenth of the bed's two CPUs, in percent of one.
const TENTH_PERCENT: f64 = 20.0;
/// Most of the agent's own CPU that counts as left to the foreground, in percent of one: more is a fault of the agent's.
const MOST_OWN_PERCENT: f64 = TENTH_PERCENT;
/// Set for the process that holds a volunteer until it is killed.
const HOLDS: &str = "GLEANER_LAB_HOLDS";

/// A helper of the test's own, which asks the hypervisor beside the agent's.
pub(crate) struct Hypervisor {
    child: Child,
    input: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Drop for Hypervisor {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

impl Hypervisor {
    pub(crate) fn open() -> Self {
        let program = agent().with_file_name("gleaner-agent-xen");
        let mut child = Program::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, answers }
    }

    pub(crate) fn ask(&mut self, question: &str) -> Value {
        writeln!(self.input, "{question}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap()
    }

    pub(crate) fn state(&mut self, uuid: &str) -> Value {
        self.ask(&format!(r#"{{"state":{{"uuid":"{uuid}"}}}}"#))["state"].clone()
    }

    pub(crate) fn is_paused(&mut self, uuid: &str) -> bool {
        self.state(uuid)["paused"] == true
    }

    /// CPU that a domain has used, in ns.
    pub(crate) fn cpu_ns(&mut self, uuid: &str) -> f64 {
        self.state(uuid)["cpu_ns"].as_f64().unwrap()
    }

    pub(crate) fn pause(&mut self, uuid: &str, paused: bool) {
        let answer = self.ask(&format!(r#"{{"set":{{"uuid":"{uuid}","paused":{paused}}}}}"#));
        assert_eq!(answer.to_string(), r#"{"set":{}}"#);
    }

    /// Percent of one CPU that domains use, over a time.
    pub(crate) fn percent(&mut self, uuids: &[&str], over: Duration) -> f64 {
        let (start, before) = (Instant::now(), self.sum_ns(uuids));
        std::thread::sleep(over);
        (self.sum_ns(uuids) - before) * 100.0 / start.elapsed().as_nanos() as f64
    }

    /// CPU that domains have used together, in ns.
    fn sum_ns(&mut self, uuids: &[&str]) -> f64 {
        uuids.iter().map(|uuid| self.cpu_ns(uuid)).sum()
    }
}

pub(crate) fn make(name: &str) -> String {
    sh(&format!("mkdom {name} burn && xl pause {name}"));
    uuid(name)
}

pub(crate) fn uuid(name: &str) -> String {
    sh(&format!("xl vm-list | awk '$3 == \"{name}\" {{ print $1 }}'"))
}

pub(crate) fn settings(domains: &[&str]) -> ActSettings {
    let memory_bound = MemoryBoundSettings { floor: Some(Bytes::from_mib(16)), ..MemoryBoundSettings::default() };
    ActSettings {
        acting: true,
        volunteer: VolunteerChoice::Domain,
        volunteer_domains: domains.iter().map(|name| (*name).to_owned()).collect(),
        memory_bound,
        ..ActSettings::observing("/tmp/state".into())
    }
}

pub(crate) fn open(settings: ActSettings) -> Actor {
    Actor::open(settings, &Hierarchies::detect(Path::new("/proc/self"), Path::new("/"))).unwrap().0
}

/// The volunteer, found running.
fn take(xen: &mut Hypervisor, volunteer: &str) -> Actor {
    xen.pause(volunteer, false);
    let actor = open(settings(&["vol"]));
    let state = xen.state(volunteer);
    assert_eq!((&state["weight"], &state["paused"]), (&1.into(), &true.into()), "{state}");
    actor
}

pub(crate) fn order(actor: &mut Actor, number: u64, desired: Desired) {
    let version = Version { epoch: 1, number };
    let command = Command { target: Target::Volunteer, version, lease_ms: 600_000, desired };
    let outcome = actor.apply(&command, Timestamp(1_000_000)).outcome;
    assert!(matches!(outcome, Outcome::Applied { .. }), "{outcome:?}");
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// CPU and time of one look, in µs, over many.
fn cost_of_a_look() -> (f64, f64) {
    let mut helper = Hypervisor::open();
    helper.ask(r#"{"look":{}}"#);
    let stat = format!("/proc/{}/schedstat", helper.child.id());
    let cpu_us =
        || std::fs::read_to_string(&stat).unwrap().split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1e3;
    let (before, start) = (cpu_us(), Instant::now());
    for _ in 0..1_000 {
        assert!(helper.ask(r#"{"look":{}}"#)["look"].is_object());
    }
    ((cpu_us() - before) / 1_000.0, start.elapsed().as_micros() as f64 / 1_000.0)
}

fn caps_bite_and_it_is_left_as_found(xen: &mut Hypervisor, volunteer: &str) {
    let scheduler = sh("xl info | sed -n 's/^xen_scheduler *: *//p'");
    sh(&format!("xl sched-{scheduler} -d vol -w 300; xl sched-{scheduler} -d vol -c 70"));
    xen.pause(volunteer, false);
    let found = knobs("vol");
    let mut actor = take(xen, volunteer);
    assert_eq!(actor.volunteer_kind(), &VolunteerKind::Guest { name: "vol".to_owned() });
    assert_eq!(actor.volunteer_domains(), Some(&[volunteer.to_owned()][..]));
    let levers = actor.levers();
    assert!(levers.quota && levers.weight && levers.freeze && !levers.idle, "{levers:?}");

    order(&mut actor, 1, Desired::Run { cap: Quota::AtMost(CoreShare::clamped(30.0)) });
    until("its ceiling is the command's", || xen.state(volunteer)["cap_percent"] == 30);
    let used = xen.percent(&[volunteer], Duration::from_secs(8));
    println!("a volunteer capped at 30 % uses {used:.1} %");
    assert!((used - 30.0).abs() < 4.0, "{used}");
    order(&mut actor, 2, Desired::Run { cap: Quota::Unlimited });
    until("only the operator's own ceiling holds", || xen.state(volunteer)["cap_percent"] == 70);
    order(&mut actor, 3, Desired::Stop);
    until("it is paused", || xen.is_paused(volunteer));
    assert!(xen.percent(&[volunteer], Duration::from_secs(1)) < 1.0);

    // What somebody else sets is told, and left.
    order(&mut actor, 4, Desired::Run { cap: Quota::Unlimited });
    until("it runs", || !xen.is_paused(volunteer));
    sh(&format!("xl sched-{scheduler} -d vol -c 55"));
    until("it is stopped under a foreign ceiling", || {
        actor.tick(Timestamp(1_000_000));
        xen.is_paused(volunteer)
    });
    assert_eq!(xen.state(volunteer)["cap_percent"], 55);
    sh(&format!("xl sched-{scheduler} -d vol -c 70"));
    let report = actor.restore_all();
    assert!(report.failed.is_empty() && report.foreign.is_empty(), "{report:?}");
    assert_eq!(knobs("vol"), found);
    xen.pause(volunteer, true);
    sh(&format!("xl sched-{scheduler} -d vol -w 256; xl sched-{scheduler} -d vol -c 0"));
}

/// How a volunteer gives way to a demand.
struct GivesWay {
    /// From when three domains want two CPUs until it has no more than a tenth of them over an interval of the guard, in ms.
    /// `None` where it had more for three seconds.
    after_ms: Option<f64>,
    /// What it uses over the half second after that, in percent of one CPU.
    then_percent: f64,
}

fn gives_way(xen: &mut Hypervisor, volunteer: &str, foreground: &[&str]) -> GivesWay {
    foreground.iter().for_each(|domain| xen.pause(domain, true));
    until("the volunteer uses what is left", || xen.percent(&[volunteer], INTERVAL) > 2.0 * TENTH_PERCENT);
    let wanted = Instant::now();
    foreground.iter().for_each(|domain| xen.pause(domain, false));
    let mut looks = Vec::new();
    let mut after_ms = None;
    while after_ms.is_none() && wanted.elapsed() < Duration::from_secs(3) {
        let (now, used) = (Instant::now(), xen.cpu_ns(volunteer));
        looks.push((now, used));
        let before = looks.iter().rev().find(|(at, _)| now.duration_since(*at) >= INTERVAL);
        let part = before.map(|(at, old)| (used - old) * 100.0 / now.duration_since(*at).as_nanos() as f64);
        after_ms = part.filter(|part| *part <= TENTH_PERCENT).map(|_| wanted.elapsed().as_secs_f64() * 1e3);
        std::thread::sleep(Duration::from_millis(5));
    }
    GivesWay { after_ms, then_percent: xen.percent(&[volunteer], 10 * INTERVAL) }
}

/// Rounded, in rising order.
fn sorted(values: impl Iterator<Item = f64>) -> String {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.iter().map(|value| format!("{value:.0}")).collect::<Vec<_>>().join(" ")
}

fn the_volunteer_gives_way_in_time(xen: &mut Hypervisor, volunteer: &str, foreground: &[&str]) {
    let mut actor = take(xen, volunteer);
    order(&mut actor, 1, Desired::Run { cap: Quota::Unlimited });
    until("the volunteer runs", || !xen.is_paused(volunteer));
    let guarded: Vec<GivesWay> = (0..DEMANDS).map(|_| gives_way(xen, volunteer, foreground)).collect();
    foreground.iter().for_each(|domain| xen.pause(domain, true));
    assert!(actor.restore_all().failed.is_empty());
    // It was found with a domain's usual weight: the same of a volunteer that nobody guards.
    let unguarded: Vec<GivesWay> = (0..UNGUARDED).map(|_| gives_way(xen, volunteer, foreground)).collect();
    foreground.iter().chain([&volunteer]).for_each(|domain| xen.pause(domain, true));
    for (which, demands) in [("guarded", &guarded), ("not guarded and of their own weight", &unguarded)] {
        println!(
            "a volunteer that is {which}: ms from a demand for every CPU until it has at most a tenth of them over 50 ms, sorted: {}; not within \
             3 s: {}; percent of one CPU over the half second after, sorted: {}",
            sorted(demands.iter().filter_map(|demand| demand.after_ms)),
            demands.iter().filter(|demand| demand.after_ms.is_none()).count(),
            sorted(demands.iter().map(|demand| demand.then_percent)),
        );
    }
    let then = |demands: &[GivesWay]| median(demands.iter().map(|demand| demand.then_percent).collect());
    let (held, free) = (then(&guarded), then(&unguarded));
    assert!(held < 0.6 * free, "a guarded volunteer keeps {held:.0} % of a CPU, one that nobody guards {free:.0} %");
}

/// CPU that a process and its children have used, in ns.
fn used_ns(process: u32) -> f64 {
    let tasks = |process: &str| -> Vec<PathBuf> {
        let tasks = std::fs::read_dir(format!("/proc/{process}/task"));
        tasks.into_iter().flatten().flatten().map(|task| task.path()).collect()
    };
    // One that has ended meanwhile has used nothing.
    let text = |task: &Path, file: &str| std::fs::read_to_string(task.join(file)).unwrap_or_default();
    let mut all = tasks(&process.to_string());
    let children: String = all.iter().map(|task| text(task, "children")).collect();
    all.extend(children.split_whitespace().flat_map(tasks));
    all.iter().filter_map(|task| text(task, "schedstat").split_whitespace().next()?.parse::<f64>().ok()).sum()
}

/// What the agent used of the control domain's CPU, which nobody else then has and no volunteer took: emulated it costs some
/// ten times what it does on hardware. Of percent of one CPU that the test's process used with and without an agent.
fn credit(with: f64, without: f64) -> f64 {
    (with - without).clamp(0.0, MOST_OWN_PERCENT)
}

#[test]
fn what_the_agent_uses_is_credited_with_its_helpers_up_to_a_bound() {
    if lab::inside() {
        return;
    }
    assert_eq!((credit(12.0, 2.0), credit(1.0, 2.0), credit(190.0, 2.0)), (10.0, 0.0, MOST_OWN_PERCENT));
    let script = "sh -c 'while :; do :; done' & read end; kill $!";
    let mut parent = Program::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap();
    until("a child's CPU counts, too", || used_ns(parent.id()) > 2e8);
    // Its input's end ends both.
    drop(parent.stdin.take());
    parent.wait().unwrap();
}

/// CPU that the foreground has in a second of a demand for more CPUs than there are, beside each way to hold the volunteer.
/// Nothing polls in that second but the guard itself. The ways take turns, so that a slow emulator is slow for all of them.
fn the_foreground_gets_its_cpu(xen: &mut Hypervisor, volunteer: &str, foreground: &[&str]) {
    let demand = |xen: &mut Hypervisor| {
        foreground.iter().for_each(|domain| xen.pause(domain, false));
        let (start, before) = (Instant::now(), used_ns(std::process::id()));
        let got = xen.percent(foreground, Duration::from_secs(1));
        let own = (used_ns(std::process::id()) - before) * 100.0 / start.elapsed().as_nanos() as f64;
        foreground.iter().for_each(|domain| xen.pause(domain, true));
        (got, own)
    };
    let scheduler = sh("xl info | sed -n 's/^xen_scheduler *: *//p'");
    let by_hand = |xen: &mut Hypervisor, runs: bool, weight: u32| {
        sh(&format!("xl sched-{scheduler} -d vol -w {weight}"));
        xen.pause(volunteer, !runs);
        let got = demand(xen);
        xen.pause(volunteer, true);
        sh(&format!("xl sched-{scheduler} -d vol -w 256"));
        got
    };
    let [mut alone, mut beside, mut by_weight, mut guarded] = [const { Vec::new() }; 4];
    for round in 0..ROUNDS {
        alone.push(by_hand(xen, false, 256));
        beside.push(by_hand(xen, true, 256));
        by_weight.push(by_hand(xen, true, 1));
        let mut actor = take(xen, volunteer);
        order(&mut actor, round, Desired::Run { cap: Quota::Unlimited });
        until("the volunteer runs", || !xen.is_paused(volunteer));
        guarded.push(demand(xen));
        let state = xen.state(volunteer);
        // Under credit the guard also caps it while the others wait.
        assert!(state["weight"] == 1 && (state["cap_percent"] == 0 || scheduler == "credit"), "{state}");
        assert!(actor.restore_all().failed.is_empty());
        xen.pause(volunteer, true);
    }
    let own = |demands: &[(f64, f64)]| median(demands.iter().map(|(_, own)| *own).collect());
    let (with, without) = (own(&guarded), own(&by_weight));
    let got = |demands: Vec<(f64, f64)>| median(demands.into_iter().map(|(got, _)| got).collect());
    let [alone, beside, by_weight, guarded] = [alone, beside, by_weight, guarded].map(got);
    println!(
        "percent of a CPU that the foreground had under {scheduler} in a second of a demand for every CPU: alone {alone:.0}, \
         beside a volunteer of its own weight {beside:.0}, beside one of the least weight {by_weight:.0}, beside a guarded \
         one {guarded:.0}; the test used {without:.1}, with the agent in it {with:.1}"
    );
    if by_weight < 1.1 * beside {
        gleaner_test_support::skipped!(
            "what the guard leaves the foreground of {scheduler}: the least weight shows too little in this emulation to \
             judge by ({by_weight:.0} to {beside:.0})"
        );
        return;
    }
    assert!(
        guarded > beside && guarded + credit(with, without) > 0.85 * by_weight,
        "alone {alone}, beside {beside}, by weight {by_weight}, guarded {guarded}; used {without}, with the agent {with}"
    );
}

/// A process that holds the volunteer as an agent does, until it is killed.
struct Holder(Child);

impl Holder {
    fn start() -> Self {
        let mut command = Program::new(std::env::current_exe().unwrap());
        command.args(["--exact", "--nocapture", "xen_volunteer::holds_a_xen_volunteer_until_it_is_killed"]);
        Self(command.env(HOLDS, "vol").stdout(Stdio::null()).spawn().unwrap())
    }

    fn signal(&self, name: &str, helpers: bool) {
        let pid = self.0.id();
        let whom = if helpers { format!("$(cat /proc/{pid}/task/*/children)") } else { pid.to_string() };
        sh(&format!("kill -{name} {whom}"));
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

fn nobody_who_looks_after_it_leaves_it_paused(xen: &mut Hypervisor, volunteer: &str) {
    xen.pause(volunteer, false);
    let found = knobs("vol");
    let mut holder = Holder::start();
    let mut expect = |what: &str, paused: bool| {
        let start = Instant::now();
        while xen.is_paused(volunteer) != paused {
            assert!(start.elapsed() < PATIENCE, "not so: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
        println!("{what}: after {} ms", start.elapsed().as_millis());
    };
    expect("taken, so paused", true);
    expect("it runs", false);
    holder.signal("STOP", false);
    expect("the agent stands still, so the helper has paused the volunteer", true);
    holder.signal("CONT", false);
    expect("the agent goes on, so it runs again", false);
    holder.signal("STOP", true);
    expect("the helpers hang, so another has paused the volunteer", true);
    expect("the guard measures again, so it runs", false);
    holder.signal("KILL", true);
    expect("the helpers were killed, so another has paused the volunteer", true);
    expect("the guard measures again, so it runs once more", false);
    holder.signal("KILL", false);
    holder.0.wait().unwrap();
    expect("the agent was killed, so its helper has paused the volunteer", true);
    assert_ne!(knobs("vol"), found);
    println!("{}", run(&["restore"]).trim());
    assert!(!xen.is_paused(volunteer), "it ran when it was found");
    assert_eq!(knobs("vol"), found);
    xen.pause(volunteer, true);
}

fn what_the_operator_has_paused_stays_paused(xen: &mut Hypervisor, volunteer: &str) {
    xen.pause(volunteer, false);
    let mut actor = open(settings(&["vol"]));
    order(&mut actor, 1, Desired::Run { cap: Quota::Unlimited });
    until("it runs", || !xen.is_paused(volunteer));
    sh("xl pause vol");
    let report = actor.restore_all();
    assert_eq!((report.failed.len(), report.foreign.len()), (0, 1), "{report:?}");
    let state = xen.state(volunteer);
    assert_eq!((&state["weight"], &state["paused"]), (&256.into(), &true.into()), "{state}");
    drop(actor);

    // Also where that was before Gleaner came: it may still be being built.
    let found = knobs("vol");
    let mut actor = open(settings(&["vol"]));
    order(&mut actor, 1, Desired::Run { cap: Quota::Unlimited });
    until("it is told that there is none to hold", || {
        actor.tick(Timestamp(1_000_000));
        actor.guard_status().unwrap().failure.is_some_and(|why| why.contains("has yet to let it run"))
    });
    assert_eq!(knobs("vol"), found);
    sh("xl unpause vol");
    until("it is taken once it was let run", || {
        actor.tick(Timestamp(1_000_000));
        xen.state(volunteer)["weight"] == 1 && !xen.is_paused(volunteer)
    });
    assert!(actor.restore_all().failed.is_empty());
    let state = xen.state(volunteer);
    assert_eq!((&state["weight"], &state["paused"]), (&256.into(), &false.into()), "{state}");
    xen.pause(volunteer, true);
}

fn domains_that_vanish_and_come_back(xen: &mut Hypervisor, volunteer: &str) {
    let second = make("second");
    [volunteer, &second].iter().for_each(|domain| xen.pause(domain, false));
    let mut actor = open(settings(&[volunteer, &second]));
    order(&mut actor, 1, Desired::Run { cap: Quota::Unlimited });
    until("both run", || !xen.is_paused(volunteer) && !xen.is_paused(&second));
    sh("xl destroy second");
    let before = xen.cpu_ns(volunteer);
    until("the other goes on", || xen.cpu_ns(volunteer) - before > 3e8);
    sh("xl destroy vol");
    until("without a domain there is nothing to guard", || {
        actor.guard_status().unwrap().failure.is_some_and(|why| why.contains("none of the volunteer's Xen domains"))
    });
    assert!(run(&["observe", "--count", "2"]).contains("xen_domain"), "sensing goes on");
    // One that was named by its UUID is that domain alone: another of the same name is somebody else's.
    sh("mkdom vol burn");
    let stranger = uuid("vol");
    let before = xen.cpu_ns(&stranger);
    until("it runs on", || xen.cpu_ns(&stranger) - before > 5e8);
    let state = xen.state(&stranger);
    assert_eq!((&state["weight"], &state["cap_percent"], &state["paused"]), (&256.into(), &0.into(), &false.into()));
    sh("xl destroy vol");
    // As after a restart: the same domain under another number, running and without limits.
    sh(&format!("xl create -q /tmp/vol.cfg 'uuid=\"{volunteer}\"'"));
    until("it is held again", || {
        actor.tick(Timestamp(1_000_000));
        let state = xen.state(volunteer);
        state["weight"] == 1 && state["cap_percent"] == 0
    });
    until("and runs", || actor.guard_status().unwrap().state == VolunteerState::Active && !xen.is_paused(volunteer));
    // Once more, and now somebody is still building it when Gleaner has to put everything back.
    sh(&format!("xl destroy vol; xl create -q -p /tmp/vol.cfg 'uuid=\"{volunteer}\"'"));
    assert!(actor.restore_all().failed.is_empty(), "what is gone needs nothing put back");
    let state = xen.state(volunteer);
    assert_eq!((&state["weight"], &state["paused"]), (&256.into(), &true.into()), "as it was started: {state}");
}

#[test]
fn holds_a_xen_volunteer_until_it_is_killed() {
    let Ok(name) = std::env::var(HOLDS) else { return };
    let mut actor = open(settings(&[&name]));
    order(&mut actor, 1, Desired::Run { cap: Quota::Unlimited });
    loop {
        for event in actor.tick(Timestamp(1_000_000)) {
            eprintln!("{event:?}");
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

#[test]
fn xen_domains_as_the_volunteer_from_inside() {
    if !lab::inside() || std::env::var_os(HOLDS).is_some() {
        return;
    }
    let (cpu, time) = cost_of_a_look();
    let count = sh("xl list | wc -l").parse::<u32>().unwrap() - 1;
    println!("a look at {count} domains costs {cpu:.0} µs of CPU and takes {time:.0} µs");
    sh("for domain in $(xl list | awk 'NR > 2 { print $1 }'); do xl destroy $domain; done");
    sh("xl vcpu-pin Domain-0 all all");
    let volunteer = make("vol");
    let foreground = [make("front1"), make("front2"), make("front3")];
    let foreground: Vec<&str> = foreground.iter().map(String::as_str).collect();
    let (cpu, time) = cost_of_a_look();
    println!("a look at 5 domains costs {cpu:.0} µs of CPU and takes {time:.0} µs");

    let xen = &mut Hypervisor::open();
    caps_bite_and_it_is_left_as_found(xen, &volunteer);
    nobody_who_looks_after_it_leaves_it_paused(xen, &volunteer);
    what_the_operator_has_paused_stays_paused(xen, &volunteer);
    domains_that_vanish_and_come_back(xen, &volunteer);
    the_foreground_gets_its_cpu(xen, &volunteer, &foreground);
    the_volunteer_gives_way_in_time(xen, &volunteer, &foreground);
}
